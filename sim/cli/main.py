"""The `lanesim` command: finds the sub-command, turns bad input into one line and an exit code.

Exit 0 done, 2 bad input, 1 the run itself failed, 130, 143 or 129 stopped by a signal. Sub-commands are loaded when
used, so that `lanesim compare` imports neither torch nor pandas. Not here: what they do (one file each beside this one,
and the entry-point group `lanesim.commands` for others), signals (sim.cli.signals).
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

import click

from sim.cli.flags import EVERYWHERE
from sim.cli.lazy import SOURCE, LazyGroup
from sim.cli.signals import exit_code, have_streams, listen, stop, stopped_word

COMMANDS = {
    "compare": ("sim.cli.compare:compare_command", "Which scheduler, drafter or setting is fastest, and by how much."),
    "sweep": ("sim.cli.sweep:sweep_command", "Run a grid of scenarios into a store, in parallel."),
    "report": ("sim.cli.report:report_command", "Make an HTML page with pictures of a store."),
    "check": ("calibrate.cli.check_files:check_command", "What a file is, and whether lanesim can read it."),
    "profiles": ("sim.cli.profiles:profiles_command", "GPU times that are shipped: source and error."),
    "tune": (
        "calibrate.cli.tune:tune_command",
        "Best draft length at each load, and what it gains.",
    ),
    "diagnose": (
        "calibrate.cli.diagnose:diagnose_command",
        "Is my measured speed-up normal, and what is wrong if not?",
    ),
    "evidence": (
        "calibrate.measure.campaign.evidence_command:evidence_command",
        "Measure and predict whether lanes pay on this machine.",
    ),
}


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""A file that is full names itself; a stream does not."""
OBJECTS_PER_COLLECTION = 100_000
"""New objects from one look for cycles to the next; Python's own is 700."""


class Interrupted(Exception):
    """A signal asked the process to stop."""


class MainGroup(LazyGroup):
    """An interrupt does not print an empty line of its own, as click has it."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted from None
        except ValueError as error:
            source = ctx.meta.get(SOURCE)
            if source is not None and source not in str(error):
                error.add_note(f"({source!r})")
            raise


def _say_version(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    """Prints the distribution's version, and whether runs can go to the compiled core (setup.py)."""
    if is_asked:
        from importlib.metadata import version

        from sim.run import compiled

        click.echo(f"lanesim, version {version('lanesim')} ({compiled.build()})")
        context.exit()


@click.group(
    cls=MainGroup,
    params=list(EVERYWHERE.values()),
    commands=COMMANDS,
    entry_points="lanesim.commands",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="\b\nExample:\n  lanesim compare --profile h100-sxm/llama-3.1-8b --request-rate 8 --input-len 1000 \\\n"
    "    --output-len 200 --vary speculation=off,ngram,eagle3",
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_say_version, help="Version and build."
)
def lanesim() -> None:
    """Simulate speculative-decoding serving: which scheduler, which draft length, at which load."""


def run(args: Sequence[str]) -> int:
    """Run one command line; the exit code. Warnings become notes on stderr, each once, at the end."""
    from sim.cli.console import notes

    if nulls := [arg for arg in args if "\0" in arg]:
        return _fail(f"{nulls[0]!r}: no path or value holds a null character", 2)
    if foreign := [arg for arg in args if not _is_text(arg)]:
        return _fail(f"{foreign[0]!r}: the name is not UTF-8 text, so no result could hold it. Rename the file", 2)
    try:
        with notes(_tell):
            lanesim.main(args=list(args), prog_name="lanesim", standalone_mode=False)
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        return _fail(error.format_message(), 2)
    except (Interrupted, KeyboardInterrupt, click.Abort):
        return _fail(f"{stopped_word()}. Nothing incomplete was left", exit_code())
    except BrokenPipeError:
        return _nowhere(0)
    except ValueError as error:
        if os.environ.get("LANESIM_DEBUG"):
            raise
        return _fail(" ".join([str(error), *getattr(error, "__notes__", ())]), 2)
    except OSError as error:
        place = error.filename or ("stdout" if error.errno in FULL else "a file or stream")
        return _fail(f"{place}: {error.strerror or error}", 2)
    except MemoryError:
        return _fail("not enough memory for this run. Fewer --num-prompts need less", 1)
    except RuntimeError as error:
        if os.environ.get("LANESIM_DEBUG"):
            raise
        return _fail(str(error), 1)
    except Exception as error:
        # What pyarrow raises where the system gives it no thread or memory is no exception of the language's.
        arrow = sys.modules.get("pyarrow")
        if arrow is None or not isinstance(error, arrow.ArrowException):
            raise
        return _fail(f"tables: {error}", 1)
    return 0


def _is_text(arg: str) -> bool:
    """False for what was no UTF-8 on the command line."""
    try:
        arg.encode()
    except UnicodeEncodeError:
        return False
    return True


def _fail(message: str, code: int) -> int:
    _tell(message)
    return code


def _tell(message: str) -> None:
    """One line on stderr, if anybody listens there."""
    from sim.files.read import printable

    with suppress(OSError):
        print(f"lanesim: {printable(message)}", file=sys.stderr, flush=True)


def main() -> None:
    """Run the command line and exit with its code.

    Numpy's BLAS would start a thread per core as it is imported, which costs more than a small run; nothing here
    multiplies matrices. Python would look for cycles among all requests each time that 700 more are there: a fifth of
    the time of `plan`. A library must not decide that, so only the command does.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(OBJECTS_PER_COLLECTION)
    try:
        listen(stop)
        have_streams()
        code = _run_and_flush()
    except KeyboardInterrupt:
        code = _fail(f"{stopped_word()}. Nothing incomplete was left", exit_code())
    finally:
        listen(signal.SIG_IGN)
    gc.freeze()  # The process ends: it need not look for cycles once more.
    sys.exit(code)


def _run_and_flush() -> int:
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        return _nowhere(0)
    except OSError as error:
        return _nowhere(_fail(f"stdout: {error.strerror or error}", 2))
    return code


def _nowhere(code: int) -> int:
    """The code; stdout is closed to all that is still to be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


if __name__ == "__main__":
    main()
