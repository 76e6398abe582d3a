"""The verdict of a comparison by mean E2EL, and its sentence. Pure.

There are four verdicts, by the 95 % interval of paired differences over the bracket of overlap and draws of costs:

- fastest: the interval against every other policy excludes 0
- the same: all runs of two policies are equal to the last bit
- too close to call: the interval contains 0 and lies inside 5 % either way, or more runs would not settle the order
- not enough runs: the interval contains 0 and reaches beyond

Not here: where means, intervals and orders come from (sim.compare.side_by_side).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from sim.metrics.load import Load, Verdict
from sim.names import capital, duration, in_words, span


class Order(StrEnum):
    LOWER = "lower"
    """`a` is lower than `b`, at every phi."""
    HIGHER = "higher"
    SAME = "the same"
    CLOSE = "too close to call"
    FEW = "not enough runs"
    OVERLAP = "depends on overlap"
    DRAWS = "depends on draws"
    """The runs show one, but not in all draws of costs and acceptance within their errors."""
    REPLAYS = "depends on replays"
    """Runs show one, which turns round where the simulator's errors on replays are taken out of both means."""
    NONE = "none"
    """Nothing can be said: a load without steady means, or streams that overlap up to the roofs."""


class Standing(StrEnum):
    """The verdict on a policy beside the lowest mean, and on the lowest beside all others."""

    FASTEST = "fastest"
    SAME = "the same"
    CLOSE = "too close to call"
    FEW = "not enough runs"
    SLOWER = "slower"


STATED = (Order.LOWER, Order.HIGHER)
HANGS_ON = {
    Order.OVERLAP: "how well two streams overlap",
    Order.DRAWS: "errors of GPU times and acceptance",
    Order.REPLAYS: "how far off the simulator was on a real GPU",
    Order.NONE: "how well two streams overlap",
}
"""What an order depends on that is open. Under `roofs` overlap is an upper bound."""
UNSPOKEN = "speculation="
"""Key whose values say by themselves what they are."""
SERVED_SHARE = 0.8
"""Share of capacity at which means are steady."""
NAMED = 2
"""Slower policies of which the answer names each."""
OPEN = (Standing.SAME, Standing.CLOSE, Standing.FEW)
STANDING = dict.fromkeys(STATED, Standing.SLOWER) | {Order.SAME: Standing.SAME, Order.FEW: Standing.FEW}
"""The verdict on a policy by its order beside the lowest mean; of all others it is too close to call."""
METRIC = "mean_e2el_ms"
Interval = tuple[float, float]
CLOSE_SHARE = 0.05
"""Differences inside this share of the lower mean, either way, are too close to call."""


def sign_of(interval: Interval) -> Order | None:
    """The order that the interval of a difference `a` - `b` tells; None where it contains 0.

    >>> [str(sign_of(ends)) for ends in ((-2.0, -1.0), (-1.0, 0.0), (0.0, 1.0), (1.0, 2.0))]
    ['lower', 'None', 'None', 'higher']
    """
    low, high = interval
    return Order.LOWER if high < 0.0 else Order.HIGHER if low > 0.0 else None


def order_of(interval: Interval | None, lower_mean: float) -> Order:
    """The order by the interval of a difference, which one run has not.

    >>> [str(order_of(ends, 100.0)) for ends in ((-5.0, 5.0), (-5.1, 5.0), (-5.0, 5.1), None)]
    ['too close to call', 'not enough runs', 'not enough runs', 'not enough runs']
    """
    if interval is None:
        return Order.FEW
    is_close = max(-interval[0], interval[1]) <= CLOSE_SHARE * abs(lower_mean)
    return sign_of(interval) or (Order.CLOSE if is_close else Order.FEW)


class PolicySummary(msgspec.Struct, frozen=True, kw_only=True):
    policy: str
    load: Load
    unstable: bool
    mean: dict[str, float | None]
    """Of every numeric metric, under the run's keys; None where a run has none."""
    ci95: dict[str, Interval | None]
    """None where a longer run would not repeat the mean, or too few samples are in a tail."""
    by_overlap: dict[str, dict[str, float | None]]
    """Means at each phi of the bracket, least overlap first; empty where that does not matter."""
    at_least: list[str] = []
    """Metrics whose means are too low: 99th percentiles near saturation, of runs that are too short for them."""
    verdict: Standing | None = None
    """By mean E2EL; None of a policy alone or without a steady mean."""
    slower_pct: Interval | None = None
    """Percent by which a slower policy's mean E2EL is above the lowest, least and most over the bracket of overlap."""
    by_prompts: dict[str, dict[str, float | None]] = {}
    """Means with the prompts of least and of most acceptance, by their name; empty where acceptance is stated. None
    where the policy does not keep up with such prompts."""
    ran_in: list[str] = []
    """Forms of the simulator: core, python or simpy; none of a replay."""


class Paired(msgspec.Struct, frozen=True, kw_only=True):
    """`a` - `b` of one metric, taken draw by draw."""

    a: str
    b: str
    metric: str
    difference: float | None
    ci95: Interval | None
    unstable: bool
    interval: Interval | None = None
    """What the order rests on: `ci95` over the bracket of overlap, with draws of costs."""
    order: Order
    by_overlap: dict[str, float | None]
    """The difference at each phi of the bracket, where that matters."""
    break_even_phi: float | None = None
    """Phi at which the mean difference changes its sign; None where it keeps it."""
    break_even_ci95: Interval | None = None
    """The lowest and the highest phi at which the interval of the mean difference holds 0."""


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
        standing, slower_pct = STANDING.get(pair.order, Standing.CLOSE), None
        if standing is Standing.SLOWER:
            sign = 1.0 if pair.a == row.policy else -1.0
            differences = [sign * each for each in pair.by_overlap.values() if each is not None]
            differences = differences or [_mean(row) - _mean(best)]
            slower_pct = tuple(100.0 * end / _mean(best) for end in (min(differences), max(differences)))
        found[row.policy] = msgspec.structs.replace(row, verdict=standing, slower_pct=slower_pct)
    rivals = [row.verdict for row in found.values() if row.verdict in OPEN]
    standing = max(rivals, key=OPEN.index) if rivals else Standing.FASTEST
    found[best.policy] = msgspec.structs.replace(best, verdict=standing, slower_pct=None)
    return [found.get(row.policy, row) for row in policies]


def verdict(policies: Sequence[PolicySummary], paired: Iterable[Paired], drafting: Collection[str]) -> str:
    """The answer on `judged` policies, of which `drafting` draft, such as
    `continuous is fastest: latency 0.531 s, 16 % below no speculation (0.632 s).`"""
    known = _steady(policies)
    lines = _Lines(policies, known, _by_names(paired), drafting).lines() if known else []
    return "\n".join(map(capital, [*lines, *_not_steady(policies, known), *_cut_off(policies)]))


def placed(row: PolicySummary) -> str:
    """The verdict on a policy, with its distance where it is slower; empty where there is none."""
    if row.slower_pct is None:
        return row.verdict or ""
    low, high = row.slower_pct
    if high < 100.0:
        return f"{span([_percent(low), _percent(high)])} % slower"
    return f"{span(f'{1.0 + end / 100.0:.1f}' for end in (low, high))} times as long"


def common_key(names: Iterable[str]) -> str:
    """`speculation=` where all names begin with it, as settings of one varied key do; else empty."""
    known = list(names)
    keys = {name.partition("=")[0] for name in known}
    return f"{keys.pop()}=" if len(keys) == 1 and all(name.count("=") == 1 for name in known) else ""


def _steady(policies: Sequence[PolicySummary]) -> list[PolicySummary]:
    """Policies with means that a longer run would repeat, the lowest first."""
    return sorted((row for row in policies if row.load.is_steady and row.mean[METRIC] is not None), key=_mean)


def _by_names(paired: Iterable[Paired]) -> Mapping[frozenset[str], Paired]:
    return {frozenset((row.a, row.b)): row for row in paired if row.metric == METRIC}


class _Lines:
    """Lines on policies with steady means, the lowest first."""

    def __init__(
        self,
        policies: Sequence[PolicySummary],
        known: Sequence[PolicySummary],
        pairs: Mapping[frozenset[str], Paired],
        drafting: Collection[str],
    ) -> None:
        self._best, *self._others = known
        self._pairs, self._is_alone = pairs, len(policies) == 1
        plain = [row for row in known if row.policy not in drafting]
        self._reference = plain[0] if len(plain) == 1 < len(known) else None

    def lines(self) -> list[str]:
        groups = {word: [row for row in self._others if row.verdict is word] for word in OPEN}
        lines: list[str] = []
        for word, rows in groups.items():
            lines += [self._open(word, rows, is_first=not lines)] if rows else []
        slower = [row for row in self._others if row.verdict is Standing.SLOWER]
        doubtful = [row for row in slower if self._is_doubtful(row)]
        if not lines:
            lines = [self._head()]
            slower = [row for row in slower if row is not self._reference]
        if slower:
            lines.append(self._behind(slower, f"Against {self._best.policy}, " if any(groups.values()) else ""))
        for row in [row for row in (self._best, *self._others) if row.by_prompts][:1]:
            if (times := self._times(row)) and times not in lines[0]:
                lines.append(f"{self._name(row)} is {times}.")
            if late := [prompts for prompts, means in row.by_prompts.items() if means[METRIC] is None]:
                lines.append(f"{self._name(row)} does not keep up with prompts like {in_words(late)}.")
        if hanging := [row for row in self._others if self._pair(row, self._best).order in HANGS_ON]:
            names = in_words([self._name(self._best), *map(self._name, hanging)])
            lines.append(f"The order of {names} depends on {self._why([(row, self._best) for row in hanging])}.")
        elif doubtful and self._reference is not None:
            why = self._why([(row, self._reference) for row in doubtful])
            lines.append(f"Whether {in_words(list(map(self._name, doubtful)))} beats no speculation depends on {why}.")
        return lines

    def _head(self) -> str:
        """The fastest, or the only one."""
        best, reference = self._best, self._reference
        if not self._others:
            ttft, tpot = best.mean.get("mean_ttft_ms"), best.mean.get("mean_tpot_ms")
            parts = [] if ttft is None else [f"{duration(ttft)} to the first token"]
            parts += [] if tpot is None else [f"then {duration(tpot)} a token"]
            who = "A request" if self._is_alone else f"{self._name(best)}: a request"
            takes = f"{who} takes {_span([best])} on average{_on_prompts(best)}"
            return takes + f": {', '.join(parts)}" * bool(parts) + "."
        text = f"{self._name(best)} is fastest: latency {_span([best])}"
        if reference is None or reference is best:
            return f"{text}{_on_prompts(best)}."
        if times := self._times(best):
            return f"{self._name(best)} is fastest: {times} (latency {_span([best])})."
        lower_pct = 100.0 * (1.0 - _mean(best) / _mean(reference))
        return f"{text}, {_percent(lower_pct)} % below no speculation ({duration(_mean(reference))})."

    def _open(self, word: Standing, rivals: Sequence[PolicySummary], *, is_first: bool) -> str:
        """The verdict on policies that have no order beside the lowest mean."""
        rows = [self._best, *rivals] if is_first or word is Standing.CLOSE else rivals
        names = in_words(list(map(self._name, rows)))
        if word is Standing.FEW:
            return f"Not enough runs to {'order' if is_first else 'place'} {names}: latency {_span(rows)}."
        return f"{names} are {word.value}: latency {_span(rows)}."

    def _behind(self, slower: Sequence[PolicySummary], against: str) -> str:
        """Distances of slower ones: of two at most, else of the nearest and the last."""
        if len(slower) <= NAMED:
            verbs = ["is" if placed(row).endswith("slower") else "takes" for row in slower]
            texts = [f"{self._name(row)} {verb} {placed(row)}" for verb, row in zip(verbs, slower, strict=True)]
            return f"{against}{in_words(texts)}."
        nearest, last = slower[0], slower[-1]
        texts = [f"{self._name(row)} ({placed(row)})" for row in (nearest, last)]
        return f"{against}the nearest of {len(slower)} others is {texts[0]} and the last {texts[1]}."

    def _times(self, row: PolicySummary) -> str:
        """`1.3 to 2.3 times as fast as no speculation, depending on prompts`; empty where the prompts are not open."""
        means = [each[METRIC] for each in row.by_prompts.values()]
        if self._reference is None or not any(means):
            return ""
        times = sorted(0.0 if mean is None else _mean(self._reference) / mean for mean in means)
        shown = span(f"{each:.1f}" for each in times) if times[0] else f"at most {times[-1]:.1f}"
        return f"{shown} times as fast as no speculation{_on_prompts(row)}"

    def _pair(self, row: PolicySummary, other: PolicySummary) -> Paired:
        return self._pairs[frozenset((row.policy, other.policy))]

    def _is_doubtful(self, row: PolicySummary) -> bool:
        """The policy may be worse than no speculation at all."""
        reference = self._reference
        return reference not in (None, self._best, row) and self._pair(row, reference).order in HANGS_ON

    def _why(self, pairs: Iterable[tuple[PolicySummary, PolicySummary]]) -> str:
        return " and ".join(dict.fromkeys(HANGS_ON[self._pair(*pair).order] for pair in pairs))

    def _name(self, row: PolicySummary) -> str:
        return "no speculation" if row is self._reference else row.policy.removeprefix(UNSPOKEN)


def _cut_off(rows: Sequence[PolicySummary]) -> list[str]:
    """Requests that each policy finished, where a window closed before some did."""
    if not any(row.mean.get("censored") for row in rows):
        return []
    counts = [(row.policy, row.mean["completed"] or 0.0, row.mean["num_prompts"] or 0.0) for row in rows]
    finished = [f"{policy} finished {digits(done)} of {digits(count)} requests" for policy, done, count in counts]
    return [f"Before the window closed {in_words(finished)}."]


def _not_steady(policies: Sequence[PolicySummary], steady: Sequence[PolicySummary]) -> list[str]:
    """Policies without means that a longer run would repeat, by why; a rate that all serve where none keeps up."""
    by_why: dict[Verdict, list[PolicySummary]] = {}
    for row in policies:
        if row not in steady:
            by_why.setdefault(row.load.verdict, []).append(row)
    lines = []
    for why, rows in by_why.items():
        text = _WHY.get(why, "no request is served")
        rates = [(row.load.rate_per_s, row.load.capacity_per_s) for row in rows]
        if why in (Verdict.OVERLOADED, Verdict.UNDECIDED) and all(None not in each for each in rates):
            arriving, served = (map(digits, sorted({each[end] or 0.0 for each in rates})) for end in (0, 1))
            text += f": {span(arriving)} requests/s arrive, {span(served)} can be served"
        names = in_words([row.policy.removeprefix(UNSPOKEN) for row in rows])
        lines.append(f"{names} {'is' if len(rows) == 1 else 'are'} {text}." if why in _WHY else f"{names}: {text}.")
    floors = [row.load.ci95[0] for row in policies if row.load.verdict is Verdict.OVERLOADED and row.load.ci95]
    if floors and len(floors) == len(policies):
        who = {1: "It", 2: "Both"}.get(len(floors), "All")
        rate = float(f"{SERVED_SHARE * min(floors):.2g}")
        lines.append(f"Try --request-rate {rate:g}. {who} can serve that.")
    return lines


_WHY = {
    Verdict.OVERLOADED: "overloaded",
    Verdict.UNDECIDED: "too near capacity for a mean",
    Verdict.BURST: "given all requests at once, so means depend on their number",
}


def _mean(row: PolicySummary) -> float:
    value = row.mean[METRIC]
    assert value is not None
    return value


def _span(rows: Iterable[PolicySummary]) -> str:
    """From the lowest mean to the highest, over the bracket of overlap where it matters."""
    values: list[float] = []
    for row in rows:
        ends = [*row.by_overlap.values(), *row.by_prompts.values()]
        values += [_mean(row), *(value for means in ends if (value := means[METRIC]) is not None)]
    return duration(min(values), max(values))


def _on_prompts(row: PolicySummary) -> str:
    return ", depending on prompts" * bool(row.by_prompts)


def digits(value: float) -> str:
    """Three digits that count; all before the point, thousands grouped."""
    return f"{value:,.0f}" if value >= 100.0 else f"{value:.3g}"


def _percent(value: float) -> str:
    return f"{value:.0f}" if value >= 0.95 else f"{value:.1g}"


def flips_at(row: Paired) -> str | None:
    """`0.09, within 0.05 to 0.14`: phi* with its interval; None where the mean difference keeps its sign."""
    if row.break_even_phi is None:
        return None
    phi = f"{row.break_even_phi:.2f}"
    return phi if row.break_even_ci95 is None else f"{phi}, within {{:.2f}} to {{:.2f}}".format(*row.break_even_ci95)
