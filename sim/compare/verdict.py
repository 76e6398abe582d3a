"""The sentence that a comparison comes to: which policy serves fastest by mean E2EL, and what may change that. Pure.

No policy is called fastest whose order against another one flips inside the bracket of overlap, or in draws of costs
and acceptance. Not here: where means, intervals and orders come from (sim.compare.side_by_side).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from math import ceil

import msgspec

from sim.metrics.load import Load, Verdict
from sim.names import in_words, span


class Order(StrEnum):
    """Order of two policies on one metric."""

    LOWER = "lower"
    """`a` is lower than `b`, at every phi."""
    HIGHER = "higher"
    SAME = "same"
    """No difference shows."""
    OVERLAP = "depends on overlap"
    DRAWS = "depends on draws"
    """One shows, but not in all draws of costs and acceptance within their errors."""
    NONE = "none"
    """Nothing can be said: one replication, a load without steady means, or streams that overlap up to the roofs."""


def order_of(interval: Interval) -> Order:
    """The order that the interval of a difference `a` - `b` tells."""
    low, high = interval
    return Order.LOWER if high < 0.0 else Order.HIGHER if low > 0.0 else Order.SAME


STATED = (Order.LOWER, Order.HIGHER)
HANGS_ON = {Order.OVERLAP: "overlap", Order.DRAWS: "errors of costs and acceptance"}
METRIC = "mean_e2el_ms"
Interval = tuple[float, float]
CLOSE_PCT = 5.0
"""A policy that is at most so much slower is said to be within that."""


class PolicySummary(msgspec.Struct, frozen=True, kw_only=True):
    """One policy over its replications."""

    policy: str
    load: Load
    unstable: bool
    """Requests arrive faster than they are served."""
    mean: dict[str, float | None]
    """Mean of every numeric metric, under the run's keys; None where a run has none."""
    ci95: dict[str, Interval | None]
    """None where a longer run would not repeat the mean, or too few samples are in a tail."""
    by_overlap: dict[str, dict[str, float | None]]
    """Means at each phi of the bracket, least overlap first; empty where overlap was measured or given, or nothing
    overlaps."""
    at_least: list[str] = []
    """Metrics whose means are too low: 99th percentiles near saturation, of runs that are too short for them."""


class Paired(msgspec.Struct, frozen=True, kw_only=True):
    """`a` - `b` of one metric, taken draw by draw."""

    a: str
    b: str
    metric: str
    difference: float | None
    ci95: Interval | None
    unstable: bool
    order: Order
    by_overlap: dict[str, float | None]
    """The difference at each phi of the bracket, where that matters."""
    break_even_phi: float | None = None
    """Phi at which the mean difference changes its sign, a straight line between two neighbouring phi of the bracket;
    None where the order does not depend on overlap, or the mean difference keeps its sign."""
    break_even_ci95: Interval | None = None
    """The lowest and the highest phi of the bracket at which the mean difference's 95 % interval holds 0, with draws of
    costs the interval over these."""


def verdict(policies: Sequence[PolicySummary], paired: Iterable[Paired], drafting: Collection[str]) -> str:
    """The sentence, where policies of `drafting` draft, such as `continuous serves fastest: mean E2EL 531 ms, 16 %
    shorter than without speculation`."""
    pairs = {frozenset((row.a, row.b)): row for row in paired if row.metric == METRIC}
    known = sorted((row for row in policies if row.load.is_steady and row.mean[METRIC] is not None), key=_mean)
    parts = _Sentence(known, pairs, drafting).parts() if known else []
    parts += _not_steady([row for row in policies if row not in known])
    return "; ".join(parts + _cut_off(policies))


class _Sentence:
    """Sentence on policies with steady means, the fastest first."""

    def __init__(
        self, known: Sequence[PolicySummary], pairs: Mapping[frozenset[str], Paired], drafting: Collection[str]
    ) -> None:
        self._best, *self._others = known
        self._pairs, self._drafting = pairs, drafting
        self._reference = next((row for row in known if row.policy not in drafting), None)
        self._rivals = [row for row in self._others if self._pair(row, self._best).order not in STATED]

    def parts(self) -> list[str]:
        behind = [self._behind(row) for row in self._others if row not in self._rivals and row is not self._reference]
        distances = [index for index, text in enumerate(behind) if not text.startswith("whether ")]
        if self._rivals and distances:
            behind[distances[0]] = f"against {self._best.policy}, {behind[distances[0]]}"
        return [self._head(), *behind]

    def _pair(self, row: PolicySummary, other: PolicySummary) -> Paired:
        return self._pairs[frozenset((row.policy, other.policy))]

    def _head(self) -> str:
        """Who is fastest, or which of several."""
        best, reference, first = self._best, self._reference, [self._best, *self._rivals]
        spans = in_words([_span(row) for row in first])
        if not self._rivals:
            if not self._others:
                return f"{self._name(best)}: mean E2EL {spans} ms"
            text = f"{self._name(best)} serves fastest: mean E2EL {spans} ms"
            if reference is None or reference is best:
                return text
            lower_pct = 100.0 * (1.0 - _mean(best) / _mean(reference))
            return f"{text}, {_percent(lower_pct)} % shorter than without speculation"
        pairs = [self._pair(row, best) for row in self._rivals]
        orders = dict.fromkeys(pair.order for pair in pairs)
        if Order.NONE in orders:
            return (
                f"{self._name(best)} has the lowest mean E2EL, {digits(_mean(best))} ms, in one run; --replications 2 "
                "or more tell that from chance"
            )
        hanging = [HANGS_ON[order] for order in orders if order in HANGS_ON]
        names = in_words([self._name(row) for row in first])
        if not hanging:
            return f"{names} serve fastest, with no difference that shows: mean E2EL {spans} ms"
        if hanging == [HANGS_ON[Order.DRAWS]]:
            rest = ", ".join(f"{self._name(row)} {_span(row)} ms" for row in first[1:])
            text = f"{self._name(best)} has the lowest mean E2EL, {_span(best)} ms, but not in every draw of costs and "
            return f"{text}acceptance: {rest}{self._under(first)}"
        on = f"{' and '.join(hanging)}{_phis(pairs)}"
        return f"which of {names} serves fastest depends on {on}: mean E2EL {spans} ms{self._under(first)}"

    def _under(self, first: Sequence[PolicySummary]) -> str:
        """The clause that all of `first` are under no speculation; empty where one is not."""
        reference = self._reference
        if reference is None or reference in first or not all(self._is_lower(row, reference) for row in first):
            return ""
        return f", all under the {digits(_mean(reference))} ms without speculation"

    def _behind(self, row: PolicySummary) -> str:
        """Distance behind the fastest; or that the policy may be worse than no speculation at all."""
        if self._reference is not None and self._best is not self._reference:
            paired = self._pair(row, self._reference)
            if paired.order in HANGS_ON:
                return (
                    f"whether {row.policy} is faster than no speculation depends on {HANGS_ON[paired.order]}"
                    f"{_phis([paired])}"
                )
        pair, name = self._pair(row, self._best), self._name(row)
        sign = 1.0 if pair.a == row.policy else -1.0
        differences = [sign * each for each in pair.by_overlap.values() if each is not None]
        differences = differences or [_mean(row) - _mean(self._best)]
        low, high = (100.0 * each / _mean(self._best) for each in (min(differences), max(differences)))
        if high <= CLOSE_PCT:
            return f"{name} within {max(1, ceil(high - 1e-9))} %"
        if high < 100.0:
            return f"{name} {span([_percent(low), _percent(high)])} % slower"
        return f"{name} {span(f'{1.0 + end / 100.0:.1f}' for end in (low, high))} times as long"

    def _is_lower(self, row: PolicySummary, other: PolicySummary) -> bool:
        pair = self._pair(row, other)
        return pair.order == (Order.LOWER if pair.a == row.policy else Order.HIGHER)

    def _name(self, row: PolicySummary) -> str:
        return row.policy if row.policy in self._drafting else f"{row.policy} (no speculation)"


def _cut_off(rows: Sequence[PolicySummary]) -> list[str]:
    """Requests that each policy finished, where a window closed before some did."""
    if not any(row.mean.get("censored") for row in rows):
        return []
    counts = [(row.policy, row.mean["completed"] or 0.0, row.mean["num_prompts"] or 0.0) for row in rows]
    finished = [f"{policy} finished {digits(done)} of {digits(count)} requests" for policy, done, count in counts]
    return [f"before the window closed {in_words(finished)}"]


def _not_steady(rows: Sequence[PolicySummary]) -> list[str]:
    """Policies without means that a longer run would repeat, by why."""
    by_why: dict[str, list[str]] = {}
    for row in rows:
        by_why.setdefault(_WHY.get(row.load.verdict, "without one request served"), []).append(row.policy)
    return [f"{in_words(names)} {'is' if len(names) == 1 else 'are'} {why}" for why, names in by_why.items()]


_WHY = {
    Verdict.OVERLOADED: "overloaded",
    Verdict.UNDECIDED: "so near capacity that no mean is stated",
    Verdict.BURST: "given all requests at once: means depend on their number",
}


def _mean(row: PolicySummary) -> float:
    value = row.mean[METRIC]
    assert value is not None
    return value


def _span(row: PolicySummary) -> str:
    """Mean, inside the bracket of overlap where it matters."""
    values = [value for means in row.by_overlap.values() if (value := means[METRIC]) is not None] or [_mean(row)]
    return span([digits(min(values)), digits(max(values))])


def digits(value: float) -> str:
    """Three digits that count; all before the point, thousands grouped."""
    return f"{value:,.0f}" if value >= 100.0 else f"{value:.3g}"


def _percent(value: float) -> str:
    return f"{value:.0f}" if value >= 0.95 else f"{value:.1g}"


def _phis(pairs: Sequence[Paired]) -> str:
    """` (phi* 0.09, within 0.05 to 0.14)`: where an order flips."""
    shown = list(dict.fromkeys(flip for row in pairs if (flip := flips_at(row)) is not None))
    return f" (phi* {'; '.join(shown)})" if shown else ""


def flips_at(row: Paired) -> str | None:
    """`0.09, within 0.05 to 0.14`: phi* with its interval; None where the mean difference keeps its sign."""
    if row.break_even_phi is None:
        return None
    phi = f"{row.break_even_phi:.2f}"
    return phi if row.break_even_ci95 is None else f"{phi}, within {{:.2f}} to {{:.2f}}".format(*row.break_even_ci95)
