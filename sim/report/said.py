"""An answer on the terminal: what it comes to, a table, how sure it is, what to type. One printer for all commands.

Not here: the parts of each answer (sim.report.comparisons, sim.report.say).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from sim.report.tables import print_table, say, wrapped

MORE = "--verbose: assumptions, sources, intervals. --json FILE: everything."
IN_JSON = "--json FILE: everything."
LABEL_WIDTH = 11
"""Characters that the label of a line takes."""
SURE, ASSUMED, DISPUTED = "how sure", "assumed", "disputed"
START, CHECK, NEXT = COMMANDS = "start it", "check", "next"
"""Labels of lines to type, which are broken as a shell takes them."""


class Said(NamedTuple):
    """Parts of an answer, in the order in which they are printed."""

    answer: str
    """Sentences, one a line. Those that do not fit into `height` lines of the terminal begin the line on doubt."""
    tables: Sequence[tuple[str, Table]]
    """Title and table."""
    lines: Sequence[tuple[str, str]] = ()
    """Label and text. Texts of one label are printed together."""
    details: Callable[[], Sequence[str | Table]] = tuple
    """Makes what is printed on demand, as it stands."""
    more: str = MORE
    """Where the rest is."""
    height: int = 3


def print_said(console: Console, said: Said, *, is_verbose: bool = False) -> None:
    """Print an answer; no line is wider than the console but commands and tables that cannot be narrower."""
    texts: dict[str, list[str]] = {SURE: []}
    room = said.height
    for place, sentence in enumerate(said.answer.splitlines()):
        room -= len(wrapped(sentence, console.width))
        if room < 0 and place:
            texts[SURE].append(sentence)
        else:
            say(console, sentence, "bold")
    for title, table in said.tables:
        say(console, "")
        if title:
            say(console, title, "")
        print_table(console, table)
    say(console, "")
    for label, text in [*said.lines, *([] if is_verbose else [("more", said.more)])]:
        texts.setdefault(label, []).append(text)
    for label, parts in texts.items():
        width = console.width - LABEL_WIDTH
        is_typed = label in COMMANDS
        lines = (
            [line for part in parts for line in _continued(part, width)]
            if is_typed
            else wrapped(" ".join(parts), width)
        )
        for place, line in enumerate(lines):
            say(console, f"{'' if place else label:<{LABEL_WIDTH}}{line}")
    for detail in ["", *said.details()] if is_verbose else ():
        if isinstance(detail, Table):
            print_table(console, detail)
        else:
            say(console, detail, "dim")


def _continued(command: str, width: int) -> Iterator[str]:
    """Lines of a shell, broken before flags and between the keys of JSON; one that is longer is not broken."""
    first, *flags = command.split(" --")
    line = first
    for flag in flags:
        if len(line) + len(flag) + len(" -- \\") <= width:
            line += f" --{flag}"
        else:
            yield f"{line} \\"
            line = f"  --{flag}"
    while "'{" in command and len(line) > width and (end := line.rfind(', "', 0, width)) > 0:
        yield line[: end + 1]
        line = f"    {line[end + 2 :]}"
    yield line
