"""The sentence that a comparison comes to: which policy serves fastest by mean E2EL, and what may change that. Pure.

No policy is called fastest whose order against another one flips inside the bracket of overlap, or in draws of costs
and acceptance. Not here: where means, intervals and orders come from (sim.compare.side_by_side).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from math import ceil
from typing import NamedTuple

from sim.metrics.load import Load, Verdict


class Order(StrEnum):
    """What may be said of two policies on one metric."""

    LOWER = "lower"
    """`a` is lower than `b`, at every phi."""
    HIGHER = "higher"
    SAME = "same"
    """No difference shows."""
    OVERLAP = "depends on overlap"
    DRAWS = "depends on draws"
    """One shows, but not in all that costs and acceptance might as well be."""
    NONE = "none"
    """Nothing can be said: one replication, a load without steady means, or streams that overlap up to the roofs."""


STATED = (Order.LOWER, Order.HIGHER)
HANGS_ON = {Order.OVERLAP: "overlap", Order.DRAWS: "errors of costs and acceptance"}
CLOSE_PCT = 5.0
"""A policy that is at most so much slower is said to be within that."""


class Served(NamedTuple):
    """One policy of a comparison."""

    policy: str
    e2el_ms: float | None
    """Mean; None where no request was served."""
    load: Load
    drafts: bool
    by_overlap_ms: Sequence[float] = ()
    """Means inside the bracket of overlap, where it matters."""


class Pair(NamedTuple):
    """What may be said of the mean E2EL of `a` beside that of `b`."""

    a: str
    b: str
    order: Order
    by_overlap_ms: Sequence[float] = ()
    """`a` - `b` inside the bracket of overlap, where it matters."""
    break_even_phi: float | None = None
    """Where the order flips."""


def verdict(served: Sequence[Served], pairs: Iterable[Pair]) -> str:
    """The sentence.

    >>> from sim.metrics.load import Load, Verdict
    >>> stable = Load(verdict=Verdict.STABLE, rate_per_s=2.0)
    >>> policies = [Served("autoregressive", 629.0, stable, False), Served("continuous", 531.0, stable, True)]
    >>> verdict(policies, [Pair("continuous", "autoregressive", Order.LOWER)])
    'continuous serves fastest: mean E2EL 531 ms, 16 % under no speculation'
    """
    by_names = {frozenset((pair.a, pair.b)): pair for pair in pairs}
    known = sorted((row for row in served if row.load.is_steady and row.e2el_ms is not None), key=_mean)
    parts = []
    if known:
        best, *others = known
        pair_of = {row.policy: by_names[frozenset((row.policy, best.policy))] for row in others}
        rivals = [row for row in others if pair_of[row.policy].order not in STATED]
        reference = next((row for row in known if not row.drafts), None)
        parts = [_head(best, rivals, pair_of, reference, by_names)]
        behind = [
            _of_other(row, pair_of[row.policy], best, reference, by_names)
            for row in others
            if row not in rivals and row is not reference
        ]
        if rivals and behind:
            behind[0] = f"against {best.policy}, {behind[0]}"
        parts += behind
    parts += _not_steady([row for row in served if row not in known])
    return "; ".join(parts)


def _head(
    best: Served,
    rivals: Sequence[Served],
    pair_of: Mapping[str, Pair],
    reference: Served | None,
    by_names: Mapping[frozenset[str], Pair],
) -> str:
    """Who is fastest, or which of several."""
    first = [best, *rivals]
    spans = _listed([_span(row) for row in first])
    orders = [pair_of[row.policy].order for row in rivals]
    if not rivals:
        if not pair_of:
            return f"{_name(best)}: mean E2EL {spans} ms"
        text = f"{_name(best)} serves fastest: mean E2EL {spans} ms"
        if reference is None or reference is best:
            return text
        lower_pct = 100.0 * (1.0 - _mean(best) / _mean(reference))
        return f"{text}, {_percent(lower_pct)} % under no speculation"
    if Order.NONE in orders:
        return (
            f"{_name(best)} has the lowest mean E2EL, {_number(_mean(best))} ms, in one run; --replications 2 or more "
            "tell that from chance"
        )
    hanging = [HANGS_ON[order] for order in dict.fromkeys(orders) if order in HANGS_ON]
    names = _listed([_name(row) for row in first])
    if not hanging:
        return f"{names} serve fastest, with no difference that shows: mean E2EL {spans} ms"
    phis = [pair_of[row.policy].break_even_phi for row in rivals]
    shown = _phis([phi for phi in phis if phi is not None])
    text = f"which of {names} serves fastest depends on {' and '.join(hanging)}{shown}: mean E2EL {spans} ms"
    if reference is not None and reference not in first and all(_is_lower(row, reference, by_names) for row in first):
        text += f", all under the {_number(_mean(reference))} ms without speculation"
    return text


def _of_other(
    row: Served,
    pair: Pair,
    best: Served,
    reference: Served | None,
    by_names: Mapping[frozenset[str], Pair],
) -> str:
    """How far behind the fastest one is; or that it may be worse than no speculation at all."""
    if reference is not None and best is not reference:
        own = by_names[frozenset((row.policy, reference.policy))]
        if own.order in HANGS_ON:
            phi = _phis([] if own.break_even_phi is None else [own.break_even_phi])
            return f"whether {row.policy} is under no speculation depends on {HANGS_ON[own.order]}{phi}"
    sign = 1.0 if pair.a == row.policy else -1.0
    differences = [sign * each for each in pair.by_overlap_ms] or [_mean(row) - _mean(best)]
    low, high = (100.0 * each / _mean(best) for each in (min(differences), max(differences)))
    if high <= CLOSE_PCT:
        return f"{_name(row)} within {max(1, ceil(high - 1e-9))} %"
    if high < 100.0:
        return f"{_name(row)} {_range(_percent(low), _percent(high))} % slower"
    return f"{_name(row)} {_range(f'{1.0 + low / 100.0:.1f}', f'{1.0 + high / 100.0:.1f}')} times as long"


def _not_steady(rows: Sequence[Served]) -> list[str]:
    """Policies without means that a longer run would repeat, by why."""
    by_why: dict[str, list[str]] = {}
    for row in rows:
        by_why.setdefault(_WHY.get(row.load.verdict, "without one request served"), []).append(row.policy)
    return [f"{_listed(names)} {'is' if len(names) == 1 else 'are'} {why}" for why, names in by_why.items()]


_WHY = {
    Verdict.OVERLOADED: "overloaded",
    Verdict.UNDECIDED: "so near capacity that no mean is stated",
    Verdict.BURST: "given all requests at once: means depend on their number",
}


def _is_lower(row: Served, other: Served, by_names: Mapping[frozenset[str], Pair]) -> bool:
    pair = by_names[frozenset((row.policy, other.policy))]
    return pair.order == (Order.LOWER if pair.a == row.policy else Order.HIGHER)


def _mean(row: Served) -> float:
    assert row.e2el_ms is not None
    return row.e2el_ms


def _name(row: Served) -> str:
    return row.policy if row.drafts else f"{row.policy} (no speculation)"


def _span(row: Served) -> str:
    values = row.by_overlap_ms or [_mean(row)]
    return _range(_number(min(values)), _number(max(values)))


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100.0 else f"{value:.3g}"


def _percent(value: float) -> str:
    return f"{value:.0f}" if value >= 0.95 else f"{value:.1g}"


def _phis(values: Sequence[float]) -> str:
    """` (phi* 0.09)`: where an order flips."""
    shown = list(dict.fromkeys(f"{value:.2f}" for value in values))
    return f" (phi* {', '.join(shown)})" if shown else ""


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
