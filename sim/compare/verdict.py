"""The verdict of a comparison by mean E2EL, and its sentence. Pure.

There are four verdicts, by the 95 % interval of paired differences:

- fastest: the interval against every other policy excludes 0
- the same: all runs of two policies are equal to the last bit
- too close to call: the interval contains 0 and lies inside 5 % either way
- not enough runs: the interval contains 0 and reaches beyond

A policy whose interval against the lowest mean excludes 0 is slower. The interval spans the bracket of overlap, and
draws of costs and acceptance. Where one of these flips the order whatever the runs, it is too close to call at any
width, and the sentence says why: more runs would not settle it.
Not here: where means, intervals and orders come from (sim.compare.side_by_side).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from sim.metrics.load import Load, Verdict
from sim.names import in_words, span


class Order(StrEnum):
    """Order of two policies on one metric."""

    LOWER = "lower"
    """`a` is lower than `b`, at every phi."""
    HIGHER = "higher"
    SAME = "the same"
    CLOSE = "too close to call"
    FEW = "not enough runs"
    OVERLAP = "depends on overlap"
    DRAWS = "depends on draws"
    """The runs show one, but not in all draws of costs and acceptance within their errors."""
    NONE = "none"
    """Nothing can be said: a load without steady means, or streams that overlap up to the roofs."""


class Standing(StrEnum):
    """The verdict on a policy beside the lowest mean, and on this one beside all others."""

    FASTEST = "fastest"
    SAME = "the same"
    CLOSE = "too close to call"
    FEW = "not enough runs"
    SLOWER = "slower"


STATED = (Order.LOWER, Order.HIGHER)
HANGS_ON = {
    Order.OVERLAP: "overlap",
    Order.DRAWS: "errors of costs and acceptance",
    Order.NONE: "overlap, of which this is an upper bound",
}
OPEN = (Standing.SAME, Standing.CLOSE, Standing.FEW)
STANDING = dict.fromkeys(STATED, Standing.SLOWER) | {Order.SAME: Standing.SAME, Order.FEW: Standing.FEW}
"""The verdict on a policy by its order beside the lowest mean; of all others it is too close to call."""
METRIC = "mean_e2el_ms"
Interval = tuple[float, float]
CLOSE_SHARE = 0.05
"""Differences inside this share of the lower mean, either way, are too close to call."""


def sign_of(interval: Interval) -> Order | None:
    """The order that the interval of a difference `a` - `b` tells; None where it contains 0."""
    low, high = interval
    return Order.LOWER if high < 0.0 else Order.HIGHER if low > 0.0 else None


def order_of(interval: Interval | None, lower_mean: float) -> Order:
    """The order by the interval of a difference, which one run has not."""
    if interval is None:
        return Order.FEW
    is_close = max(-interval[0], interval[1]) <= CLOSE_SHARE * abs(lower_mean)
    return sign_of(interval) or (Order.CLOSE if is_close else Order.FEW)


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
    verdict: Standing | None = None
    """By mean E2EL; None of a policy alone or without a steady mean."""
    slower_pct: Interval | None = None
    """Percent by which a slower policy's mean E2EL is above the lowest, least and most over the bracket of overlap."""
    ran_in: list[str] = []
    """Forms of the simulator that its runs were in: core, python or simpy; none of a replay."""


class Paired(msgspec.Struct, frozen=True, kw_only=True):
    """`a` - `b` of one metric, taken draw by draw."""

    a: str
    b: str
    metric: str
    difference: float | None
    ci95: Interval | None
    unstable: bool
    interval: Interval | None = None
    """What the order rests on: `ci95` over the bracket of overlap, and an order that the runs show with draws of
    costs."""
    order: Order
    by_overlap: dict[str, float | None]
    """The difference at each phi of the bracket, where that matters."""
    break_even_phi: float | None = None
    """Phi at which the mean difference changes its sign, a straight line between two neighbouring phi of the bracket;
    None where the order does not depend on overlap, or the mean difference keeps its sign."""
    break_even_ci95: Interval | None = None
    """The lowest and the highest phi of the bracket at which the mean difference's 95 % interval holds 0, with draws of
    costs the interval over these."""


def hull(intervals: Iterable[Interval | None]) -> Interval | None:
    """From the lowest end to the highest; None where there is no interval."""
    known = [interval for interval in intervals if interval is not None]
    return (min(low for low, _ in known), max(high for _, high in known)) if known else None


def judged(policies: Sequence[PolicySummary], paired: Iterable[Paired]) -> list[PolicySummary]:
    """The policies with their verdicts."""
    known, pairs = _steady(policies), _by_names(paired)
    if len(known) < 2:
        return list(policies)
    best, *others = known
    found: dict[str, PolicySummary] = {}
    for row in others:
        pair = pairs[frozenset((row.policy, best.policy))]
        standing = STANDING.get(pair.order, Standing.CLOSE)
        slower_pct = None
        if standing is Standing.SLOWER:
            sign = 1.0 if pair.a == row.policy else -1.0
            differences = [sign * each for each in pair.by_overlap.values() if each is not None]
            differences = differences or [_mean(row) - _mean(best)]
            slower_pct = tuple(100.0 * end / _mean(best) for end in (min(differences), max(differences)))
        found[row.policy] = msgspec.structs.replace(row, verdict=standing, slower_pct=slower_pct)
    rivals = [row.verdict for row in found.values() if row.verdict in OPEN]
    found[best.policy] = msgspec.structs.replace(
        best, verdict=max(rivals, key=OPEN.index) if rivals else Standing.FASTEST, slower_pct=None
    )
    return [found.get(row.policy, row) for row in policies]


def verdict(policies: Sequence[PolicySummary], paired: Iterable[Paired], drafting: Collection[str]) -> str:
    """The sentence on `judged` policies, of which `drafting` draft, such as `continuous is fastest: mean E2EL 531 ms,
    16 % shorter than without speculation`."""
    known = _steady(policies)
    parts = _Sentence(known, _by_names(paired), drafting).parts() if known else []
    parts += _not_steady([row for row in policies if row not in known])
    return ". ".join(parts + _cut_off(policies))


def placed(row: PolicySummary) -> str:
    """The verdict on a policy, with its distance where it is slower; empty where there is none."""
    if row.slower_pct is None:
        return row.verdict or ""
    low, high = row.slower_pct
    if high < 100.0:
        return f"{span([_percent(low), _percent(high)])} % slower"
    return f"{span(f'{1.0 + end / 100.0:.1f}' for end in (low, high))} times as long"


def _steady(policies: Sequence[PolicySummary]) -> list[PolicySummary]:
    """Policies with means that a longer run would repeat, the lowest first."""
    return sorted((row for row in policies if row.load.is_steady and row.mean[METRIC] is not None), key=_mean)


def _by_names(paired: Iterable[Paired]) -> Mapping[frozenset[str], Paired]:
    return {frozenset((row.a, row.b)): row for row in paired if row.metric == METRIC}


class _Sentence:
    """Sentences on policies with steady means, the lowest first."""

    def __init__(
        self, known: Sequence[PolicySummary], pairs: Mapping[frozenset[str], Paired], drafting: Collection[str]
    ) -> None:
        self._best, *self._others = known
        self._pairs, self._drafting = pairs, drafting
        self._reference = next((row for row in known if row.policy not in drafting), None)

    def parts(self) -> list[str]:
        groups = {word: [row for row in self._others if row.verdict is word] for word in OPEN}
        parts: list[str] = []
        for word, rows in groups.items():
            parts += self._open(word, rows, is_first=not parts) if rows else []
        slower = [row for row in self._others if row.verdict is Standing.SLOWER]
        if not parts:
            parts = [self._head()]
            slower = [row for row in slower if row is not self._reference]
        doubts = [doubt for row in slower if (doubt := self._doubt(row)) is not None]
        if distances := [self._behind(row) for row in slower if self._doubt(row) is None]:
            against = f"Against {self._best.policy}, " if any(groups.values()) else ""
            parts.append(f"{against}{in_words(distances)}")
        return parts + doubts

    def _head(self) -> str:
        """The fastest."""
        best, reference = self._best, self._reference
        if not self._others:
            return f"{self._name(best)}: mean E2EL {_span(best)} ms"
        text = f"{self._name(best)} is fastest: mean E2EL {_span(best)} ms"
        if reference is None or reference is best:
            return text
        lower_pct = 100.0 * (1.0 - _mean(best) / _mean(reference))
        return f"{text}, {_percent(lower_pct)} % shorter than without speculation"

    def _open(self, word: Standing, rivals: Sequence[PolicySummary], *, is_first: bool) -> list[str]:
        """The verdict on policies that have no order beside the lowest mean, and why."""
        rows = [self._best, *rivals] if is_first or word is Standing.CLOSE else rivals
        names, spans = in_words([self._name(row) for row in rows]), in_words([_span(row) for row in rows])
        if word is Standing.SAME:
            return [f"{names} are the same: mean E2EL {_span(self._best)} ms"]
        if word is Standing.FEW:
            return [f"Not enough runs to {'order' if is_first else 'place'} {names}: mean E2EL {spans} ms"]
        text = [f"{names} are too close to call: mean E2EL {spans} ms"]
        pairs = [(row, self._pair(row, self._best)) for row in rivals]
        if hanging := [(row, pair) for row, pair in pairs if pair.order in HANGS_ON]:
            of = in_words([self._best.policy, *(row.policy for row, _ in hanging)])
            why = " and ".join(dict.fromkeys(HANGS_ON[pair.order] for _, pair in hanging))
            text.append(f"The order of {of} depends on {why}{_phis([pair for _, pair in hanging])}")
        return text

    def _pair(self, row: PolicySummary, other: PolicySummary) -> Paired:
        return self._pairs[frozenset((row.policy, other.policy))]

    def _doubt(self, row: PolicySummary) -> str | None:
        """That the policy may be worse than no speculation at all."""
        if self._reference is None or self._reference in (self._best, row):
            return None
        pair = self._pair(row, self._reference)
        if pair.order not in HANGS_ON:
            return None
        return f"Whether {row.policy} is faster than no speculation depends on {HANGS_ON[pair.order]}{_phis([pair])}"

    def _behind(self, row: PolicySummary) -> str:
        text = placed(row)
        return f"{self._name(row)} {'is' if text.endswith('slower') else 'takes'} {text}"

    def _name(self, row: PolicySummary) -> str:
        return row.policy if row.policy in self._drafting else f"{row.policy} (no speculation)"


def _cut_off(rows: Sequence[PolicySummary]) -> list[str]:
    """Requests that each policy finished, where a window closed before some did."""
    if not any(row.mean.get("censored") for row in rows):
        return []
    counts = [(row.policy, row.mean["completed"] or 0.0, row.mean["num_prompts"] or 0.0) for row in rows]
    finished = [f"{policy} finished {digits(done)} of {digits(count)} requests" for policy, done, count in counts]
    return [f"Before the window closed {in_words(finished)}"]


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
