"""Sections of the ledger, simulated over several processes. Not here: what a section simulates (one module each)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from sim.compare.pool import default_workers, given, started
from validation.claims import colocated, deployment, dispec, headline, hockey_stick, measured, noise, three_way
from validation.claims.ledger import Row, Section, read_section

DRAWS = 100
"""Draws of draws behind a row of single runs; sections whose rows are means take a few of them."""
Judge = Callable[[Section, int], list[Row]]
PARTS: dict[tuple[str, str], Judge] = {
    ("A", ""): headline.judge,
    ("G", "a100"): partial(deployment.judge, gpu="a100"),
    ("G", "h100"): partial(deployment.judge, gpu="h100"),
    ("B", ""): colocated.judge,
    ("C", ""): three_way.judge,
    ("D", ""): noise.judge,
    ("E", ""): hockey_stick.judge,
    ("F", ""): dispec.judge,
    ("H", ""): measured.judge,
}
"""Who judges a section, or a part of one that is long; the longest first."""


def judge(part: tuple[str, str], draws: int = DRAWS) -> list[Row]:
    """The rows of one part of a section."""
    return PARTS[part](read_section(part[0]), draws)


def _judge_given(part: tuple[str, str]) -> list[Row]:
    return judge(part, given("draws"))


def judge_all(
    names: Sequence[str],
    *,
    draws: int = DRAWS,
    workers: int | None = None,
    on_done: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> list[Row]:
    """The rows of the sections `names`, in their order and the ledger's; `on_done` hears how many parts are done.

    Raises ValueError for a section that is not in the ledger.
    """
    order = [claim.id for name in names for claim in read_section(name).claims]
    parts = [part for part in PARTS if part[0] in names]
    count = min(len(parts), default_workers() if workers is None else workers)
    rows: list[Row] = []
    with started(count, {"draws": draws}) as pool:
        on_done("judging", 0, len(parts))
        for done, (_, judged) in enumerate(pool.run(_judge_given, parts), start=1):
            rows += judged
            on_done("judging", done, len(parts))
    places = {claim_id: place for place, claim_id in enumerate(order)}
    return sorted(rows, key=lambda row: places[row.id])
