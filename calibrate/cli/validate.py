"""`lanesim validate`: a replay's directory, or one of the sub-commands for other kinds of real runs.

The sub-commands live in modules of their own, loaded when used; one whose module is not there is not listed.
Not here: what they and the directory form (realrun.cli.validate) do.
"""

from __future__ import annotations

from typing import Any

import click

from sim.cli.lazy import Commands, LazyGroup, command_at

EXAMPLE = "Example: lanesim validate results/replay --json -"
SUB_COMMANDS: Commands = {
    "cells": (
        "calibrate.cli.validate_cells:cells_command",
        "Closed-loop cells of a table: concurrency, measured means.",
    ),
    "vllm": ("calibrate.cli.validate_vllm:vllm_command", "A real vLLM run, from its requests' timestamps."),
}
"""A directory of such a name is reached as ./NAME."""
REPLAY = "realrun.cli.validate:directory_command"
"""The form that takes a replay's directory."""
HELP_FLAGS = ("-h", "--help")
DIRECTORY = "DIRECTORY"
"""Put before a line that names no sub-command."""


class ValidateGroup(LazyGroup):
    """`directory`, which takes over whatever does not begin with the name of a sub-command."""

    def __init__(self, name: str, *, directory: str, commands: Commands = SUB_COMMANDS, **more: Any) -> None:
        """`directory` is the module:attribute of that command, imported when it is used."""
        super().__init__(name, commands=commands, **more)
        self._place = directory

    @property
    def _directory(self) -> click.Command:
        return command_at(self._place)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_own = not args or args[0] in (*HELP_FLAGS, *self.list_commands(ctx))
        return super().parse_args(ctx, args if is_own else [DIRECTORY, *args])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] == DIRECTORY:
            return None, self._directory, args[1:]
        return super().resolve_command(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [f"{DIRECTORY} [OPTIONS] | COMMAND ..." if self.list_commands(ctx) else f"{DIRECTORY} [OPTIONS]"]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The directory form's own flags, then the sub-commands."""
        self._directory.format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


@click.group(
    "validate",
    cls=ValidateGroup,
    directory=REPLAY,
    epilog=EXAMPLE,
    short_help="The simulator against a replay, a vLLM run, or measured cells: how far off, and why.",
)
def validate_command() -> None:
    """Simulate the scenario and tape of the replay in DIRECTORY, and say how far off the simulator was and why.

    mechanism: every work given its measured time. cost: the profile's times, streams alone. contention: the simulation
    as `lanesim compare` runs it.
    """
