"""Tables and numbers on the terminal. Not here: which numbers (sim.report.comparisons, sim.report.say)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from textwrap import wrap
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

FOLDED, WIDEST = 16, 10_000
"""Characters that are enough for a column of prose, and that no table has."""


def number(value: float | None) -> str:
    """About three significant digits, thousands grouped or as k; a dash for undefined."""
    if value is None:
        return "–"
    size = abs(value)
    if size >= 9999.5:
        return f"{value / 1000:,.0f}k" if size >= 99950 else f"{value / 1000:.1f}k"
    if size >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def percent(value: float | None) -> str:
    """An error with its sign; a dash for unknown."""
    return "–" if value is None else f"{value:+.2f} %"


def new_table(
    left: Sequence[str], right: Iterable[str], rows: Iterable[Sequence[str]], *, fold: Collection[str] = (), **look: Any
) -> Table:
    """A table of `rows` under titles of columns that begin at the `left` or end at the `right`; only those of `fold`
    may be broken."""
    usual: dict[str, Any] = {"box": SIMPLE_HEAD, "padding": 0}
    table = Table(**usual | look)
    for place, title in enumerate([*left, *right]):
        justify: Literal["left", "right"] = "left" if place < len(left) else "right"
        overflow: Literal["fold", "ellipsis"] = "fold" if title in fold else "ellipsis"
        table.add_column(title, justify=justify, no_wrap=title not in fold, overflow=overflow)
    for row in rows:
        table.add_row(*row)
    return table


def table_of(
    rows: Sequence[Mapping[str, str]], left: Collection[str], optional: Collection[str] = (), **look: Any
) -> Table:
    """A table of cells by their titles; columns of `optional` are left out where no row has a value."""
    titles = [title for title in rows[0] if title not in optional or any(row[title] != number(None) for row in rows)]
    sides = [title for title in titles if title in left], [title for title in titles if title not in left]
    return new_table(*sides, ([row[title] for title in titles] for row in rows), **look)


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width` characters; options such as --num-prompts stay whole."""
    return wrap(text, width, break_on_hyphens=False)


def say(console: Console, text: str, style: str | None = None) -> None:
    """A line, its text as it is: broken by the terminal where it likes, or with a style at words."""
    for line in [text] if style is None else wrapped(text, console.width) or [""]:
        console.print(line, style=style, highlight=False, markup=False, soft_wrap=True)


def print_table(console: Console, table: Table) -> None:
    """Print a table whole: where the terminal is too narrow for it, columns of prose (which fold) get narrower, and
    then lines run over; none is cut or left out."""
    folding = [column for column in table.columns if column.overflow == "fold"]
    for column in folding:
        column.max_width = FOLDED
    least = measured_width(console, table)
    for column in folding:
        column.max_width = None
    if least > console.width:
        table.width = least
    with console.capture() as printed:
        console.print(table, crop=False)
    # Cells are filled up with spaces, the last one too, and a box has empty lines above and below.
    for line in "\n".join(line.rstrip() for line in printed.get().splitlines()).strip("\n").splitlines():
        console.print(Text.from_ansi(line), soft_wrap=True)


def measured_width(console: Console, table: Table) -> int:
    """Characters that the table takes whole."""
    return Measurement.get(console, console.options.update(max_width=WIDEST), table).maximum
