"""The `lanesim` command: finds the sub-command, turns bad input into one line and an exit code.

Exit 0 done, 2 bad input, 1 the run itself failed, 130 interrupted. Sub-commands are loaded when used, so that
`lanesim compare` imports neither torch nor pandas. Not here: what they do (sim.commands, and the entry-point group
`lanesim.commands` for others).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

COMMANDS = {
    "compare": ("sim.commands.compare:compare_command", "Policies side by side on the same draws, with intervals."),
    "profiles": ("sim.commands.profiles:profiles_command", "Shipped cost profiles: source and held-out error."),
    "plot": ("sim.commands.plot:plot_command", "Throughput against latency over several results directories."),
    "trace": ("sim.commands.trace:trace_command", "Perfetto trace of a results directory."),
}


class Interrupted(Exception):
    """The user pressed Ctrl-C."""


class LazyGroup(click.Group):
    """Sub-commands by name from COMMANDS and from installed entry points, imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *sorted(set(_installed()) - set(COMMANDS))]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in COMMANDS:
            module, _, attribute = COMMANDS[name][0].partition(":")
            command = getattr(import_module(module), attribute)
        elif name in (installed := _installed()):
            command = installed[name].load()
        else:
            return None
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> object:
        """As click has it, but an interrupt does not print an empty line of its own."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and name not in COMMANDS and name not in _installed():
            from sim.names import unknown

            raise click.UsageError(unknown("command", name, self.list_commands(ctx)))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing the built-in ones."""
        rows = [(name, COMMANDS[name][1] if name in COMMANDS else "") for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _installed() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group="lanesim.commands")}


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="\b\nExample:\n  lanesim compare --policy pd --policy pdv --profile h100-sxm/llama-2-7b+tinyllama-1.1b",
)
@click.version_option(package_name="lanesim")
def lanesim() -> None:
    """Simulate speculative-decoding serving: which scheduler, which draft length, at which load."""


def run(args: Sequence[str]) -> int:
    """Run one command line; the exit code. Warnings become notes on stderr, each once."""
    import warnings

    warnings.showwarning = lambda message, *_, **__: print(f"lanesim: note: {message}", file=sys.stderr)
    try:
        lanesim.main(args=list(args), prog_name="lanesim", standalone_mode=False)
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        return _fail(error.format_message(), 2)
    except (Interrupted, KeyboardInterrupt, click.Abort):
        return _fail("interrupted; nothing incomplete was left", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ValueError as error:
        if os.environ.get("LANESIM_DEBUG"):
            raise
        return _fail(str(error), 2)
    except OSError as error:
        return _fail(f"{error.filename or 'file'}: {error.strerror or error}", 2)
    except MemoryError:
        return _fail("not enough memory for this run; fewer --num-prompts need less", 1)
    except RuntimeError as error:
        if os.environ.get("LANESIM_DEBUG"):
            raise
        return _fail(str(error), 1)
    return 0


def _fail(message: str, code: int) -> int:
    print("lanesim: " + " ".join(message.split()), file=sys.stderr)
    return code


def main() -> None:
    """Entry point of the `lanesim` script."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
