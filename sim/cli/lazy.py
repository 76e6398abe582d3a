"""Click groups whose sub-commands are imported when they are used. Not here: any command."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

SOURCE = "lanesim.source"
"""Key of click's meta for the file or directory that the command is about, which errors name."""
LINE = 100
"""Most characters of what the help says of a command that is not built in."""
Commands = Mapping[str, tuple[str, str]]
"""Name -> (module:attribute, one line for the help)."""
ALIASES = {
    "lanesim probe": ("validate", "--fit-only"),
    "lanesim capacity": ("plan",),
    "lanesim calibrate production": ("fit",),
}
RENAMED = {"--target-rate": "--rate"}
"""Commands that went, the words that stand for them, and options of theirs that have another name now."""


def command_at(place: str) -> click.Command:
    """The command at module:attribute, imported now."""
    module, _, attribute = place.partition(":")
    command = getattr(import_module(module), attribute)
    assert isinstance(command, click.Command)
    return command


class LazyGroup(click.Group):
    """Sub-commands by name from `commands` and, with `entry_points`, from what is installed in that group.

    The help lists built-in ones without importing them; one whose module is not there is not listed. It imports
    installed ones for their line. A command that went still runs, by ALIASES.
    """

    def __init__(self, name: str, *, commands: Commands, entry_points: str | None = None, **more: Any) -> None:
        super().__init__(name, **more)
        self._lazy, self._entry_points = commands, entry_points

    def _installed(self) -> dict[str, EntryPoint]:
        if self._entry_points is None:
            return {}
        from sim.plugins import installed

        return installed(self._entry_points)

    def list_commands(self, ctx: click.Context) -> list[str]:
        built_in = [name for name, (place, _) in self._lazy.items() if find_spec(place.partition(":")[0])]
        return [*built_in, *sorted(set(self._installed()) - set(self._lazy))]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self._lazy:
            return self._loaded(name) if name in self._installed() else None
        place = self._lazy[name][0]
        return command_at(place) if find_spec(place.partition(":")[0]) else None

    def _loaded(self, name: str) -> click.Command:
        """An installed package's. Raises PluginError."""
        from sim.plugins import loaded

        command: click.Command = loaded(f"command {name!r}", self._installed()[name], click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        here = ctx.command_path
        if (words := ALIASES.get(f"{here} {args[0]}")) is not None:
            click.echo(f"lanesim: `{here} {args[0]}` is now `{here} {' '.join(words)}`", err=True)
            args = [*words, *(RENAMED.get(word, word) for word in args[1:])]
        name = args[0]
        if not name.startswith("-") and name not in self._lazy and name not in self._installed():
            from sim.names import unknown

            raise click.UsageError(unknown("command", name, self.list_commands(ctx)))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, line) for name in self.list_commands(ctx) if (line := self._line(name)) is not None]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def _line(self, name: str) -> str | None:
        """Help of a command in a line; None of a hidden one, and the reason where it cannot be imported."""
        if name in self._lazy:
            return self._lazy[name][1]
        from sim.plugins import PluginError

        try:
            command = self._loaded(name)
            return None if command.hidden else command.get_short_help_str(LINE)
        except PluginError as error:
            return f"(broken: {error})"
