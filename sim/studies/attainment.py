"""How much load meets the SLOs: the highest request rate, or concurrency, at which a share of the requests meets all of
them jointly, and the replicas that a given rate takes.

The interval of the load is over replications. A pilot of a few says how many it takes, and then as many fresh ones are
made: adding until an interval is narrow would stop too early. What costs and acceptance might as well be is drawn as
`tune` draws it: the load has its range over draws, and the replicas that are recommended hold in nearly all of them.
Not here: the search for a load and runs of fleets (load_search), draws, saturated throughput (sim.compare.capacity),
beyond which a bound on waiting is met by no load for long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import ceil, inf, isfinite

import msgspec

from sim.compare.capacity import CAPACITY_KEY
from sim.compare.point_runs import run_points
from sim.compare.pool import OnDone, Runner, lasting
from sim.compare.run_length import Length, transient_note
from sim.compare.side_by_side import CostSource, cost_source
from sim.compare.verdict import Interval
from sim.costs.profile import Profile
from sim.draws import child_seed
from sim.engine.fleet import Routing
from sim.metrics.price import Price
from sim.metrics.stats import interval_95
from sim.metrics.summary import Run, number
from sim.run.limits import served_by
from sim.run.resolve import Resolved, resolve_all
from sim.run.scenario import PlainScenario, Scenario, to_plain
from sim.studies.cost_draws import DEFAULT_DRAWS, Draw, cost_draws, covers, interval_90
from sim.studies.evidence import asked_of, evidence
from sim.studies.load_search import (
    NARROW,
    REQUESTS,
    FleetAttainment,
    Limit,
    LoadSearch,
    OwnLoads,
    SharesInDraws,
    attainment_of,
    num_prompts,
    with_length,
)
from sim.studies.plan.answer import Stated
from sim.workload.generate import is_trace

ATTAINMENT_SCHEMA = 1
DEFAULT_SHARE = 0.95
CONFIDENCE = 0.9
"""Chance with which the recommended replicas are enough: of n draws m hold, and a further one holds with m / (n +
1)."""
MAX_REPLICAS = 1024
ROUTINGS = (Routing.ROUND_ROBIN, Routing.LEAST_OUTSTANDING)


class Highest(msgspec.Struct, frozen=True, kw_only=True):
    """The highest load of one policy."""

    policy: str
    limit: Limit
    load: float | None
    """Requests per second, or requests in flight; None for never and unbounded."""
    ci95: Interval | None
    """Interval of the load over replications, costs and acceptance as given; of the saturated throughput where that is
    the limit. None of runs that are too short for steady means."""
    draws_interval: Interval | None
    """5 to 95 % of the draws; None without draws, of short runs, and where some draw has no limit."""
    draw_loads: list[float | None]
    """[draws] the load of each; 0 where it is met never, None where it is unbounded."""
    replications: int
    saturated_per_s: float
    """Requests per second with a queue that never empties."""
    attainment: dict[str, float | None]
    """Mean share of requests that meet each SLO, and `all` of them, at that load, over the replications; alone where
    the limit is never."""
    in_flight: float
    """Mean number of requests at that load."""
    output_tokens_per_s: float | None
    """Rate times mean output tokens of a request; of a concurrency what was served."""
    usd_per_million_tokens: float | None
    """Output tokens at that load."""


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """The replicas that a rate takes under one routing."""

    policy: str
    routing: str
    replicas: int | None = None
    """Recommended: enough as given, and in so many draws that a further one holds with CONFIDENCE; None where the SLOs
    are never met."""
    enough: FleetAttainment | None = None
    """The fewest with costs and acceptance as given."""
    one_fewer: FleetAttainment | None = None
    """Likewise, one fewer than these; None where one is enough."""
    usd_per_million_tokens: float | None = None
    utilisation: float | None = None
    """Utilisation of the recommended replicas: the rate over that many times the highest load of one, as given."""
    needed: list[tuple[int | None, int]] = []
    """[replicas, draws that need so many], rising; None of the draws in which the recommended are too few."""
    confidence: float | None = None
    """Chance with which the recommended replicas hold in a further draw; None without draws."""
    attainment_by_draw: list[float] = []
    """[draws] share of requests that meet all SLOs with the recommended replicas."""


class Attainment(Stated, frozen=True, kw_only=True):
    """What `capacity --json` holds."""

    schema: int = ATTAINMENT_SCHEMA
    scenario: PlainScenario
    profile: CostSource
    share: float
    """Share of requests that meet all SLOs jointly."""
    of: str
    """`request rate` or `concurrency`."""
    highest: list[Highest]
    target_rate: float | None
    fleets: list[Fleet]
    draws: int
    covers: str
    """What the draws are of; empty without any."""
    notes: list[str]
    evidence: list[str]
    """The nearest measured cells and the simulator's errors there."""


@lasting()
def highest_load(
    scenario: Scenario,
    profile: Profile,
    *,
    share: float = DEFAULT_SHARE,
    is_concurrency: bool = False,
    target_rate: float | None = None,
    price: Price | None = None,
    draws: int | None = None,
    routings: Sequence[Routing] = ROUTINGS,
    near: float | None = None,
    is_brief: bool = False,
    workers: int | None = None,
    on_done: OnDone = lambda stage, done, total: None,
) -> Attainment:
    """The highest load of every policy that meets `scenario.goodput`, and with `target_rate` the replicas for it.

    With `draws` of 0 costs and acceptance are taken as given; by default there are DEFAULT_DRAWS, or none where the
    drafts have several models, of whose errors nothing is known. `near` is a load to look about first; `is_brief`
    leaves the interval of the load as wide as a few replications make it, and sizes fleets by the draws alone. Raises
    ValueError for a scenario without SLOs, and for a price that does not say whose it is.
    """
    if not any(bound is not None for bound in scenario.goodput.bounds_ms.values()):
        raise ValueError("capacity: no SLO given; want some of --goodput ttft:MS tpot:MS e2el:MS")
    if not 0.0 < share < 1.0:
        raise ValueError(f"attainment={share!r} must be above 0 and below 1, such as 0.95")
    if target_rate is not None and not 0.0 < target_rate < inf:
        raise ValueError(f"target rate {target_rate!r} must be a finite number of requests per second above 0")
    if draws is None:
        draws = 0 if scenario.speculation.drafts else DEFAULT_DRAWS
    if draws < 0:
        raise ValueError(f"draws={draws!r} must be at least 0")
    is_counted = isinstance(scenario.workload.num_prompts, int) or is_trace(scenario.workload)
    scenario = with_length(scenario, REQUESTS)
    resolved = resolve_all(scenario, profile)
    usd_per_h = [None if price is None else _usd_per_h(price, profile, one) for one in resolved]
    drawn = cost_draws(scenario, profile, draws, scenario.seed) if draws else []
    answers = [
        _Answer(
            LoadSearch(
                scenario,
                policy,
                profile,
                share,
                is_concurrency=is_concurrency,
                is_counted=is_counted,
                near=near,
                is_brief=is_brief,
            ),
            drawn,
            usd,
            Runner(workers, on_done),
        )
        for policy, usd in zip(scenario.policy, usd_per_h, strict=True)
    ]
    highest = [answer.highest for answer in answers]
    fleets = []
    if target_rate is not None:
        size = _Answer.fleet_in_draws if is_brief and drawn else _Answer.fleet
        fleets = [size(answer, routing, target_rate) for answer in answers for routing in routings]
    return Attainment(
        scenario=to_plain(scenario),
        profile=cost_source(profile),
        share=share,
        of="concurrency" if is_concurrency else "request rate",
        highest=highest,
        target_rate=target_rate,
        fleets=fleets,
        draws=draws,
        covers=covers(scenario, profile) if draws else "",
        notes=_notes(scenario, answers, draws),
        evidence=evidence(
            profile,
            [asked_of(scenario, profile, found.policy, (found.in_flight, found.in_flight)) for found in highest],
        ),
    )


class _Answer:
    """What is said of one policy: its highest load, and fleets of it."""

    def __init__(self, search: LoadSearch, draws: Sequence[Draw], usd_per_h: float | None, runner: Runner) -> None:
        self.search, self.draws, self._usd_per_h, self._runner = search, draws, usd_per_h, runner
        own = search.own_loads(runner)
        self._load = _mean_load(search, own)
        self.draw_loads = search.loads_under(draws, own, self._load, runner) if draws else []
        self.note, self.highest = self._found(own)

    def _found(self, own: OwnLoads) -> tuple[str | None, Highest]:
        """A note on runs that are too short, and what the search found, by runs at the answer of all its
        replications."""
        search, load = self.search, self._load
        at = load if load is not None else (search.least if own.limit is Limit.NEVER else search.most)
        points = [search.point(at, seed) for seed in own.seeds]
        runs = [outcome.run for outcome in run_points(points, Runner(self._runner.workers))]
        note = _transient(search, points[0].resolved.scenario, runs)
        per_s = None
        if own.limit is not Limit.NEVER:
            is_rate = load is not None and not search.is_concurrency
            served = _mean(runs, "steady_output_throughput") or _mean(runs, "output_throughput")
            per_s = _output_tokens_per_s(search, at) if is_rate else served
        interval = search.saturated_ci95 if own.limit is Limit.THROUGHPUT else interval_95(own.loads)
        loads = self.draw_loads
        has_range = bool(loads) and note is None and all(isfinite(value) for value in loads)
        return note, Highest(
            policy=search.policy,
            limit=own.limit,
            load=load,
            ci95=None if load is None or note is not None else interval,
            draws_interval=interval_90(loads) if has_range else None,
            draw_loads=[value if isfinite(value) else None for value in loads],
            replications=len(own.loads),
            saturated_per_s=search.saturated_per_s,
            attainment=_mean_shares(runs),
            in_flight=_in_flight(runs),
            output_tokens_per_s=per_s,
            usd_per_million_tokens=_usd(self._usd_per_h, 1, per_s),
        )

    def fleet(self, routing: Routing, target_rate: float) -> Fleet:
        """The fewest replicas that are simulated to be enough while one fewer is not, as given; and so many that they
        are enough in nearly all draws."""
        if self.highest.limit is Limit.NEVER:
            return Fleet(policy=self.search.policy, routing=routing.value)
        search, per_replica = self.search, self._per_replica

        @cache
        def at(count: int) -> FleetAttainment:
            self._runner.on_done(f"{search.policy}, {routing.value}: {count} replicas", 0, 1)
            return attainment_of(search, routing, count, target_rate, self._runner.workers)

        count = _fewest(target_rate, per_replica, lambda count: at(count).meets)
        in_draws = SharesInDraws(search, self.draws, routing, target_rate)
        holding = self._holding(in_draws, count)
        replicas = max(holding, default=count)
        return Fleet(
            policy=search.policy,
            routing=routing.value,
            replicas=replicas,
            enough=at(count),
            one_fewer=None if count == 1 else at(count - 1),
            usd_per_million_tokens=_usd(self._usd_per_h, replicas, _output_tokens_per_s(search, target_rate)),
            utilisation=target_rate / (replicas * per_replica),
            needed=_needed(holding, len(self.draws)),
            confidence=holding[replicas] / (len(self.draws) + 1) if holding else None,
            attainment_by_draw=in_draws.all(replicas, self._runner.workers),
        )

    def fleet_in_draws(self, routing: Routing, target_rate: float) -> Fleet:
        """The fewest replicas that are enough in so many draws that a further one holds with CONFIDENCE; what is enough
        as given, and how many draws need fewer, is left open.

        The draw that is the last to hold where draws are put in the order of their highest loads is tried first.
        """
        search, in_draws = self.search, SharesInDraws(self.search, self.draws, routing, target_rate)
        order, wanted = self._order
        if not wanted:
            return Fleet(policy=search.policy, routing=routing.value)
        last = order[wanted - 1]

        def is_enough(count: int) -> bool:
            self._runner.on_done(f"{search.policy}, {routing.value}: {count} replicas", 0, 1)
            return in_draws.one(count, last) >= search.share

        count = _fewest(target_rate, self.draw_loads[last], is_enough)
        while sum(share >= search.share for share in in_draws.all(count, self._runner.workers)) < wanted:
            count = _one_more(count, target_rate)
        shares = in_draws.all(count, self._runner.workers)
        return Fleet(
            policy=search.policy,
            routing=routing.value,
            replicas=count,
            usd_per_million_tokens=_usd(self._usd_per_h, count, _output_tokens_per_s(search, target_rate)),
            utilisation=target_rate / (count * self._per_replica),
            confidence=sum(share >= search.share for share in shares) / (len(shares) + 1),
            attainment_by_draw=shares,
        )

    @property
    def _per_replica(self) -> float:
        """Requests per second of one, as given."""
        search = self.search
        return search.saturated_per_s if search.is_concurrency else self._load or search.saturated_per_s

    @property
    def _order(self) -> tuple[list[int], int]:
        """Draws, the one with the highest load first, and how many of them a recommendation has to hold in."""
        order = sorted(range(len(self.draws)), key=lambda index: self.draw_loads[index], reverse=True)
        most = sum(load > 0.0 for load in self.draw_loads)
        return order, min(most, ceil(CONFIDENCE * (len(order) + 1)))

    def _holding(self, in_draws: SharesInDraws, count: int) -> dict[int, int]:
        """Number of draws in which each number of replicas is enough, up to those recommended.

        Draws are put in the order of their highest loads, so that halving finds the last of those that hold; each is
        simulated once at every number it is tried at, on the same requests.
        """
        order, wanted = self._order
        most = sum(load > 0.0 for load in self.draw_loads)

        def holding(count: int, low: int, high: int, first: int) -> int:
            """Number of draws that hold, between `low`, which hold, and `high`, beyond which none does; `first` is
            tried first."""
            self._runner.on_done(f"{self.search.policy}, {in_draws.routing.value}: {count} replicas in draws", 0, 1)
            middle = first
            while low < high:
                if in_draws.one(count, order[middle - 1]) >= self.search.share:
                    low = middle
                else:
                    high = middle - 1
                middle = (low + high + 1) // 2
            return low

        if not order or most == 0:
            return {}
        found = {count: holding(count, 0, most, (most + 1) // 2)}
        fewer = count
        while fewer > 1 and found[fewer] > 0:
            fewer -= 1
            found[fewer] = holding(fewer, 0, found[fewer + 1], 1)
        while found[count] < wanted and count < MAX_REPLICAS:
            count += 1
            found[count] = holding(count, found[count - 1], most, most)
        return dict(sorted(found.items()))


def _fewest(target_rate: float, per_replica: float, is_enough: Callable[[int], bool]) -> int:
    """Replicas that are enough where one fewer is not, looked for from what their rates sum up to."""
    count = max(1, ceil(target_rate / per_replica))
    while not is_enough(count):
        count = _one_more(count, target_rate)
    while count > 1 and is_enough(count - 1):
        count -= 1
    return count


def _one_more(count: int, target_rate: float) -> int:
    if count >= MAX_REPLICAS:
        raise ValueError(f"target rate {target_rate:g}: more than {MAX_REPLICAS} replicas; want a lower one")
    return count + 1


def _mean_load(search: LoadSearch, own: OwnLoads) -> float | None:
    if own.limit is Limit.THROUGHPUT:
        return search.saturated_per_s
    return sum(own.loads) / len(own.loads) if own.limit is Limit.SLO else None


def _needed(holding: dict[int, int], num_draws: int) -> list[tuple[int | None, int]]:
    """[replicas, draws that need so many] from how many draws hold with each number of them."""
    found: list[tuple[int | None, int]] = []
    before = 0
    for count, num_holding in holding.items():
        if num_holding > before:
            found.append((count, num_holding - before))
        before = max(before, num_holding)
    return found if before == num_draws else [*found, (None, num_draws - before)]


# -- saying


def _transient(search: LoadSearch, scenario: Scenario, runs: Sequence[Run]) -> str | None:
    """What `compare` would say of a given length at that load."""
    workload = scenario.workload
    length = Length(num_prompts=num_prompts(scenario), num_warmups=workload.num_warmups, is_auto=not search.is_counted)
    mean_e2el_ms = _mean(runs, "mean_e2el_ms")
    return transient_note(scenario, length, None if mean_e2el_ms is None else mean_e2el_ms / 1e3)


def _output_tokens_per_s(search: LoadSearch, rate_per_s: float) -> float:
    """Output tokens per second of requests that come, and are served, at that rate."""
    mean = served_by(search.scenario, search.profile).mean_tokens(child_seed(search.scenario.seed, CAPACITY_KEY))
    return rate_per_s * mean.output_per_sent


def _mean(runs: Sequence[Run], metric: str) -> float | None:
    values = [value for run in runs if (value := number(run, metric)) is not None]
    return sum(values) / len(values) if values else None


def _in_flight(runs: Sequence[Run]) -> float:
    """Requests in flight by Little's law, over runs that drain."""
    return sum(
        (number(run, "request_throughput") or 0.0) * (number(run, "mean_e2el_ms") or 0.0) / 1e3 for run in runs
    ) / len(runs)


def _mean_shares(runs: Sequence[Run]) -> dict[str, float | None]:
    means: dict[str, float | None] = {}
    every = [run["slo_attainment"] for run in runs]
    first = every[0]
    assert isinstance(first, dict)
    for name in first:
        values = [shares[name] for shares in every if isinstance(shares, dict)]
        known = [float(value) for value in values if value is not None]
        means[name] = sum(known) / len(known) if known else None
    return means


def _usd_per_h(price: Price, profile: Profile, resolved: Resolved) -> float:
    """Price of a replica; of a profile of one rank of several, that rank's part."""
    own = resolved.num_gpus * profile.tensor_parallel
    return price.of_replica(own * profile.data_parallel) / profile.data_parallel


def _usd(usd_per_h: float | None, count: int, output_tokens_per_s: float | None) -> float | None:
    if usd_per_h is None or output_tokens_per_s is None or output_tokens_per_s <= 0.0:
        return None
    return usd_per_h * count / (output_tokens_per_s * 3600.0) * 1e6


def _notes(scenario: Scenario, answers: Sequence[_Answer], draws: int) -> list[str]:
    notes = []
    for answer in answers:
        found = answer.highest
        if answer.note is not None:
            notes.append(f"{found.policy}: {answer.note}")
        if found.ci95 is not None and found.load and found.limit is Limit.SLO:
            half = (found.ci95[1] - found.ci95[0]) / 2.0
            if half > 1.5 * NARROW * found.load:
                notes.append(
                    f"{found.policy}: {found.replications} replications leave {100.0 * half / found.load:.0f} % either "
                    f"way; longer runs (--num-prompts above {scenario.workload.num_prompts}) narrow it"
                )
    if scenario.workload.burstiness != 1.0:
        notes.append(f"arrivals of burstiness {scenario.workload.burstiness:g}: Poisson ones need less")
    if scenario.speculation.drafts and not draws:
        notes.append("several drafts: their errors are in no draw, costs and acceptance are taken as given")
    return notes
