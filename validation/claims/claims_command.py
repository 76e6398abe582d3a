"""The ledger of published claims on a terminal and as JSON: claimed, simulated, verdict, and what explains it.

    python -m validation claims [--section C F] [--draws 100] [--workers N] [--json FILE]

Fewer draws are quicker; `--json -` is stdout. Sections are simulated over several processes. Not here: claims and their
runs (validation/claims/claims.yaml), what their formulas compute (validation.claims.formulas).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import msgspec

from sim.cli.console import progress, write_json
from sim.compare.pool import Runner
from sim.files.json_values import Json
from validation.claims.formulas import finding
from validation.claims.ledger import ClaimRow, ClaimVerdict, section, sections
from validation.tables import grouped, markdown

RESULT_SCHEMA = 1
DRAWS = 100
"""Draws behind a row of single runs; runs of which a claim takes fewer say so."""


def main(section: Sequence[str] = (), json: Path | None = None, draws: int = DRAWS, workers: int | None = None) -> None:
    names = [name.upper() for name in dict.fromkeys(section)] or list(sections())
    with progress() as on_step:
        rows = judge_all(names, draws=draws, workers=workers, on_done=on_step)
    content: dict[str, Json] = {"schema": RESULT_SCHEMA, "rows": [msgspec.to_builtins(row) for row in rows]}
    if write_json(None if json is None else str(json), content):
        print_rows(rows)


def print_rows(rows: Sequence[ClaimRow]) -> None:
    """A line per row, by section, why and source below it, and how many of each verdict there are at the end."""
    from pandas import DataFrame

    for name, of in sorted(grouped(rows, lambda row: row.section).items()):
        lines = [(row.id, claimed_text(row), simulated_text(row), row.verdict) for row in of]
        table = markdown(DataFrame(lines, columns=["id", "claimed", "simulated [95 %]", "verdict"]))
        reasons = "\n".join(f"{row.id}: {row.why} ({row.source})" for row in of)
        print(f"\n{name}. {section(name).title}\n{section(name).source}\n\n{table}\n\n{reasons}")
    print(f"\n{tally(rows)}")


def tally(rows: Sequence[ClaimRow]) -> str:
    """Such as `41 rows: 30 reproduced, 8 explained, 2 refuted, 1 not testable`.

    >>> tally([])
    '0 rows'
    """
    counts = Counter(row.verdict for row in rows)
    parts = [f"{counts[verdict]} {verdict}" for verdict in ClaimVerdict if counts[verdict]]
    return f"{len(rows)} rows" + (f": {', '.join(parts)}" if parts else "")


def claimed_text(row: ClaimRow) -> str:
    return row.claimed if isinstance(row.claimed, str) else f"{figure(row.claimed)}{_unit(row)}"


def simulated_text(row: ClaimRow) -> str:
    if row.simulated is None:
        return "–"
    text = row.simulated if isinstance(row.simulated, str) else f"{figure(row.simulated)}{_unit(row)}"
    if row.interval is not None:
        text += f" [{figure(row.interval[0])}, {figure(row.interval[1])}]"
    return text


def _unit(row: ClaimRow) -> str:
    return f" {row.unit}" if row.unit and row.unit != "ratio" else ""


def figure(value: float) -> str:
    """Three significant digits, thousands grouped.

    >>> figure(46150.0), figure(33.72), figure(0.348), figure(0)
    ('46,150', '33.7', '0.348', '0')
    """
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


# -- simulating


LONGEST_FIRST = "AGBCDEFH"


def _judge(draws: int, part: str) -> list[ClaimRow]:
    """Rows of the claims whose ids begin with `part`, made in a worker."""
    claims = [claim for claim in section(part[0]).claims if claim.id.startswith(part)]
    return [claim.row(finding(claim, draws)) for claim in claims]


def judge_all(
    names: Sequence[str], *, draws: int, workers: int | None, on_done: Callable[[str, int, int], None]
) -> list[ClaimRow]:
    """Rows of the sections `names`, in the ledger's order. Raises ValueError for a section that is not there."""
    order = [claim.id for name in names for claim in section(name).claims]
    parts = [part for name in sorted(names, key=LONGEST_FIRST.index) for part in section(name).parts or [f"{name}."]]
    judged = Runner(workers, on_done).run(partial(_judge, draws), parts, "judging", ())
    return sorted(chain.from_iterable(judged), key=lambda row: order.index(row.id))
