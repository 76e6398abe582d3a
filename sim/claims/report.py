"""The ledger on a terminal and as JSON. Not here: how rows come about (sim.claims.run), figures (figures)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sim.claims.ledger import Row, Verdict, read_section
from sim.report.tables import print_table

STYLES = {
    Verdict.REPRODUCED: "green",
    Verdict.EXPLAINED: "cyan",
    Verdict.REFUTED: "red",
    Verdict.NOT_TESTABLE: "dim",
}
RESULT_SCHEMA = 1


def to_plain(rows: Sequence[Row]) -> dict[str, Any]:
    """What `claims --json` holds."""
    return {"schema": RESULT_SCHEMA, "rows": [msgspec.to_builtins(row) for row in rows]}


def print_rows(console: Console, rows: Sequence[Row]) -> None:
    """Per section a line per row, why and source below it, and how many of each verdict there are at the end."""
    for name in sorted({row.section for row in rows}):
        section = read_section(name)
        own = [row for row in rows if row.section == name]
        console.print(f"\n[bold]{name}. {section.title}[/]")
        console.print(section.source, style="dim", highlight=False)
        table = Table(box=SIMPLE_HEAD, padding=(0, 2, 0, 0))
        for title in ("id", "claimed", "simulated [95 %]", "verdict"):
            table.add_column(title, overflow="fold", no_wrap=title in ("id", "verdict"))
        for row in own:
            table.add_row(row.id, claimed_text(row), simulated_text(row), f"[{STYLES[row.verdict]}]{row.verdict}[/]")
        print_table(console, table)
        for row in own:
            console.print(f"[bold]{row.id}[/] {escape(row.why)} [dim]({escape(row.source)})[/]", highlight=False)
    console.print(f"\n{tally(rows)}", highlight=False)


def tally(rows: Sequence[Row]) -> str:
    """Such as `41 rows: 30 reproduced, 8 explained, 2 refuted, 1 not testable`.

    >>> tally([])
    '0 rows'
    """
    counts = Counter(row.verdict for row in rows)
    parts = [f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict]]
    return f"{len(rows)} rows" + (f": {', '.join(parts)}" if parts else "")


def claimed_text(row: Row) -> str:
    return row.claimed if isinstance(row.claimed, str) else f"{figure(row.claimed)}{_unit(row)}"


def simulated_text(row: Row) -> str:
    if row.simulated is None:
        return "–"
    text = row.simulated if isinstance(row.simulated, str) else f"{figure(row.simulated)}{_unit(row)}"
    if row.interval is not None:
        text += f" [{figure(row.interval[0])}, {figure(row.interval[1])}]"
    return text


def _unit(row: Row) -> str:
    return f" {row.unit}" if row.unit and row.unit != "ratio" else ""


def figure(value: float) -> str:
    """Three significant digits, thousands grouped.

    >>> figure(46150.0), figure(33.72), figure(0.348), figure(0)
    ('46,150', '33.7', '0.348', '0')
    """
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
