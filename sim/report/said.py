"""An answer on the terminal: what it comes to, a table, how sure it is, what to type. One printer for all commands.

Not here: the parts of each answer (sim.report.comparisons, sim.report.say).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sim.report.tables import print_table, say

MORE = "--verbose: assumptions, sources, intervals. --json FILE: everything."
LABEL_WIDTH = 11
"""Characters that the label of a line takes."""
SURE, START, ASSUMED, CHECK, LIMITS = "how sure", "start it", "assumed", "check", "limits"
SERVED = "served"
COMMANDS = (START, CHECK)
"""Labels of lines to type, which are broken as a shell takes them."""


class Said(NamedTuple):
    """Parts of an answer, in the order in which they are printed."""

    answer: str
    """Sentences, a line or two each."""
    tables: Sequence[tuple[str, Table]]
    """Title and table."""
    lines: Sequence[tuple[str, str]] = ()
    """Label and text."""
    details: Callable[[], Sequence[str | Table]] = tuple
    """Makes what is printed on demand, as it stands."""
    more: str = MORE
    """Where the rest is."""


def labelled(label: str, lines: Iterable[str]) -> list[tuple[str, str]]:
    """Lines of which the first has the label."""
    return [("" if place else label, line) for place, line in enumerate(lines)]


def print_said(console: Console, said: Said, *, is_verbose: bool = False) -> None:
    """Print an answer; no line is wider than the console but commands and tables that cannot be narrower."""
    for line in said.answer.splitlines():
        say(console, line, "bold")
    for title, table in said.tables:
        say(console, "")
        if title:
            say(console, title, "")
        print_table(console, table)
    say(console, "")
    for label, text in [*said.lines, *([] if is_verbose else [("more", said.more)])]:
        _print_labelled(console, label, text)
    for detail in said.details() if is_verbose else ():
        if isinstance(detail, Table):
            print_table(console, detail)
        else:
            say(console, detail, "dim")


def _print_labelled(console: Console, label: str, text: str) -> None:
    """The text beside its label, its other lines below the first."""
    if label in COMMANDS:
        lines = list(_continued(text, console.width - LABEL_WIDTH))
        for place, line in enumerate(lines):
            say(console, f"{'' if place else label:<{LABEL_WIDTH}}{line}")
        return

    grid = Table.grid()
    grid.add_column(width=LABEL_WIDTH, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(label), Text(text, style="dim"))
    console.print(grid)


def _continued(command: str, width: int) -> Iterator[str]:
    """Lines of a shell, broken before flags; one that is longer is not broken."""
    first, *flags = command.split(" --")
    line = first
    for flag in flags:
        if len(line) + len(flag) + len(" -- \\") <= width:
            line += f" --{flag}"
        else:
            yield f"{line} \\"
            line = f"  --{flag}"
    yield line
