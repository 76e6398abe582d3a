"""How much load meets the SLOs: the highest request rate, or concurrency, at which a share of the requests meets all of
them jointly, and the replicas that a given rate takes.

Each replication finds its own highest load by bisection, on the same requests and luck at every load, so that only the
load moves its answers; the interval is over replications. A pilot of a few says how many it takes, and then as many
fresh ones are made: adding until an interval is narrow would stop at lucky moments.
Not here: saturated throughput (sim.experiment.capacity), beyond which a bound on waiting is met by no load for long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from math import ceil, exp, inf, log, sqrt
from typing import Any

import msgspec

from sim.costs.profile import Profile
from sim.draws import child_seed
from sim.engine.fleet import Routing
from sim.experiment.capacity import capacity
from sim.experiment.compare import CostSource, Interval, cost_source
from sim.experiment.points import Point, run_point, run_points
from sim.experiment.resolve import resolve_all
from sim.experiment.scenario import Scenario, to_plain
from sim.metrics.stats import interval_95, t_975
from sim.metrics.summary import Run, number
from sim.studies.evidence import asked_of, evidence
from sim.workload.generate import TraceArrivals, is_trace, trace_length

ATTAINMENT_SCHEMA = 1
DEFAULT_SHARE = 0.95
PILOTS = 5
MOST_REPLICATIONS = 20
NARROW = 0.02
"""Half of the interval over the answer, from which on it is narrow."""
BISECTED = 0.008
"""Relative width to which a replication's own answer is bisected; small beside NARROW, and without bias."""
ALONE = 1e-3
"""Share of the saturated throughput at which requests hardly ever meet."""
REQUESTS, REQUESTS_PER_REPLICA = 2000, 800
"""Of a run with its length left open; a tenth more come first and do not count."""
SPAN_IN_BOUNDS, MOST_REQUESTS = 50.0, 20_000
"""Of such a run: mean rate times the tightest bound on waiting, and a limit."""
WARMUP_SHARE = 0.1
PILOT_KEY, FRESH_KEY, FLEET_KEY = 1_000_031, 1_000_033, 1_000_037
"""Children of the scenario's seed."""
MOST_REPLICAS = 1024
ROUTINGS = (Routing.ROUND_ROBIN, Routing.LEAST_OUTSTANDING)


class Limit(StrEnum):
    """What ends the load that can be served."""

    SLO = "slo"
    """Beyond it too few requests meet the SLOs."""
    THROUGHPUT = "throughput"
    """The SLOs hold up to the saturated throughput."""
    NEVER = "never"
    """Too few requests meet them even alone."""
    UNBOUNDED = "unbounded"
    """The SLOs bound no waiting, and hold with every request at once."""


class Highest(msgspec.Struct, frozen=True, kw_only=True):
    """The highest load of one policy."""

    policy: str
    limit: Limit
    load: float | None
    """Requests per second, or requests in flight; None for never and unbounded."""
    ci95: Interval | None
    """Over replications; of the saturated throughput where that is the limit."""
    replications: int
    saturated_per_s: float
    """Requests per second with a queue that never empties."""
    attainment: dict[str, float | None]
    """Mean share of requests that meet each SLO, and `all` of them, at that load; alone where the limit is never."""
    in_flight: float
    """Mean number of requests at that load."""
    output_tokens_per_s: float | None
    usd_per_million_tokens: float | None
    """Output tokens at that load."""


class FleetAttainment(msgspec.Struct, frozen=True, kw_only=True):
    """Replicas at the target rate."""

    replicas: int
    attainment: float
    ci95: Interval
    meets: bool
    """The interval lies at or above the share asked for."""


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """The replicas that a rate takes under one routing."""

    policy: str
    routing: str
    replicas: int | None
    """None where the SLOs are never met."""
    enough: FleetAttainment | None
    one_fewer: FleetAttainment | None
    """None where one is enough."""
    usd_per_million_tokens: float | None


class Attainment(msgspec.Struct, frozen=True, kw_only=True):
    """What `capacity --json` holds."""

    schema: int = ATTAINMENT_SCHEMA
    scenario: dict[str, Any]
    profile: CostSource
    share: float
    """Of requests that meet all SLOs jointly."""
    of: str
    """`request rate` or `concurrency`."""
    highest: list[Highest]
    target_rate: float | None
    fleets: list[Fleet]
    notes: list[str]
    evidence: list[str]
    """The nearest measured cells and the simulator's errors there."""

    @property
    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


OnDone = Callable[[str, int, int], None]


def highest_load(
    scenario: Scenario,
    profile: Profile,
    *,
    share: float = DEFAULT_SHARE,
    is_concurrency: bool = False,
    target_rate: float | None = None,
    price_per_h: float | None = None,
    workers: int | None = None,
    on_done: OnDone = lambda stage, done, total: None,
) -> Attainment:
    """The highest load of every policy that meets `scenario.goodput`, and with `target_rate` the replicas for it.

    `price_per_h` is of one replica. Raises ValueError for a scenario without SLOs.
    """
    if not any(bound is not None for bound in scenario.goodput.bounds_ms.values()):
        raise ValueError("capacity: no SLO given; want some of --goodput ttft:MS tpot:MS e2el:MS")
    if not 0.0 < share < 1.0:
        raise ValueError(f"attainment={share!r} must be above 0 and below 1, such as 0.95")
    if target_rate is not None and not 0.0 < target_rate < inf:
        raise ValueError(f"target rate {target_rate!r} must be a finite number of requests per second above 0")
    is_counted = isinstance(scenario.workload.num_prompts, int) or is_trace(scenario.workload)
    scenario = _settled(scenario, REQUESTS)
    resolve_all(scenario, profile)
    questions = [
        _Question(scenario, policy, profile, share, is_concurrency=is_concurrency, is_counted=is_counted)
        for policy in scenario.policy
    ]
    highest = [question.answer(price_per_h, workers, on_done) for question in questions]
    fleets = []
    if target_rate is not None:
        fleets = [
            _fleet(question, found, routing, target_rate, price_per_h, workers, on_done)
            for question, found in zip(questions, highest, strict=True)
            for routing in ROUTINGS
        ]
    return Attainment(
        scenario=to_plain(scenario),
        profile=cost_source(profile),
        share=share,
        of="concurrency" if is_concurrency else "request rate",
        highest=highest,
        target_rate=target_rate,
        fleets=fleets,
        notes=_notes(scenario, highest),
        evidence=evidence(
            profile,
            [asked_of(scenario, profile, found.policy, (found.in_flight, found.in_flight)) for found in highest],
        ),
    )


class _Question:
    """One policy and its loads."""

    def __init__(
        self,
        scenario: Scenario,
        policy: str,
        profile: Profile,
        share: float,
        *,
        is_concurrency: bool,
        is_counted: bool = True,
    ) -> None:
        devices = msgspec.structs.replace(scenario.devices, count=1)
        self.scenario = msgspec.structs.replace(scenario, policy=(policy,), replications=1, devices=devices)
        self.policy, self.profile, self.share = policy, profile, share
        self.is_concurrency = is_concurrency
        self.saturated_per_s, self.saturated_ci95 = capacity(self.scenario, policy, profile)
        if not is_counted:
            self.scenario = _settled(self.scenario, self._long_enough())

    def _long_enough(self) -> int:
        """Requests whose arrivals span many times what the SLOs let one wait: else a short run ends before a queue that
        grows has become too long."""
        goodput = self.scenario.goodput
        bounds_ms = [bound for bound in (goodput.ttft_ms, goodput.e2el_ms) if bound is not None]
        spanned = ceil(SPAN_IN_BOUNDS * min(bounds_ms, default=0.0) / 1e3 * self.saturated_per_s)
        return min(MOST_REQUESTS, max(REQUESTS, spanned))

    @property
    def bounds_waiting(self) -> bool:
        goodput = self.scenario.goodput
        return goodput.ttft_ms is not None or goodput.e2el_ms is not None

    @property
    def most(self) -> float:
        """The largest load that is tried: with a bound on waiting the saturated rate, else everything at once."""
        if self.is_concurrency:
            return float(max(1, _count(self.scenario) // 2))
        return self.saturated_per_s if self.bounds_waiting else inf

    @property
    def least(self) -> float:
        return 1.0 if self.is_concurrency else ALONE * self.saturated_per_s

    def point(self, load: float, seed: int) -> Point:
        """One run at that load."""
        workload = self.scenario.workload
        changes: dict[str, Any] = {"request_rate": load, "max_concurrency": None}
        if self.is_concurrency:
            changes = {"request_rate": inf, "max_concurrency": round(load)}
        if is_trace(workload) and workload.trace_arrivals is TraceArrivals.RECORDED:
            changes["trace_arrivals"] = TraceArrivals.RESCALED
        workload = msgspec.structs.replace(workload, **changes)
        settled = msgspec.structs.replace(self.scenario, workload=workload)
        return Point(scenario=settled, policy=self.policy, seed=seed, profile=self.profile)

    def attains(self, load: float, seed: int) -> float:
        """Share of requests that meet all SLOs."""
        return _joint(run_point(self.point(load, seed)).run)

    def own_highest(self, seed: int, near: float | None = None) -> float:
        """One replication's highest load: 0 where the least fails, the most where that holds. It is looked for about
        `near` first."""
        low, high = self._bracket(seed, near)
        if low == high or low == 0.0:
            return low
        while not self._is_close(low, high):
            middle = exp(0.5 * (log(low) + log(high)))
            middle = float(round(middle)) if self.is_concurrency else middle
            if middle in (low, high):
                middle = low + 1.0
            if self.attains(middle, seed) >= self.share:
                low = middle
            else:
                high = middle
        return low if self.is_concurrency else sqrt(low * high)

    def _bracket(self, seed: int, near: float | None) -> tuple[float, float]:
        """A load that holds and one that fails; (0, 0) where the least fails, twice the most where that holds."""
        factor, low = 1.1, self.least if near is None else max(self.least, self._whole(near / 1.05))
        while low > self.least and self.attains(low, seed) < self.share:
            low, factor = max(self.least, self._whole(low / factor)), factor**2
        if low == self.least and self.attains(low, seed) < self.share:
            return 0.0, 0.0
        if near is None and self.attains(self.most, seed) >= self.share:
            return self.most, self.most
        step, high = 1.1, 2.0 * self.saturated_per_s if self.most == inf else self.most
        if near is not None:
            high = min(self.most, self._whole(near * 1.05) + self.is_concurrency)
        while self.attains(high, seed) >= self.share:
            if high >= self.most:
                return self.most, self.most
            low, high, step = high, min(self.most, self._whole(high * step) + self.is_concurrency), step**2
        return low, high

    def _whole(self, load: float) -> float:
        """`load`, rounded down where it is a number of requests."""
        return float(int(load)) if self.is_concurrency else load

    def _is_close(self, low: float, high: float) -> bool:
        return high - low <= 1.0 if self.is_concurrency else high / low - 1.0 <= BISECTED

    def answer(self, price_per_h: float | None, workers: int | None, on_done: OnDone) -> Highest:
        """By pilots, and as many fresh replications as a narrow interval takes."""
        pilots = self._pilots(workers, on_done)
        found = pilots if max(pilots) == 0.0 or min(pilots) >= self.most else self._fresh(pilots, workers, on_done)
        median = sorted(found)[len(found) // 2]
        if median == 0.0:
            return self._highest(Limit.NEVER, None, None, found, None, price_per_h)
        if median >= self.most:
            if self.most == inf or self.is_concurrency:
                return self._highest(Limit.UNBOUNDED, None, None, found, None, price_per_h)
            rate = self.saturated_per_s
            return self._highest(Limit.THROUGHPUT, rate, self.saturated_ci95, found, rate, price_per_h)
        load = sum(found) / len(found)
        return self._highest(Limit.SLO, load, interval_95(found), found, load, price_per_h)

    def _pilots(self, workers: int | None, on_done: OnDone) -> list[float]:
        """The first of them looks everywhere, the others where it found something."""
        first = self._replications(PILOT_KEY, 1, None, workers, on_done)
        near = first[0] if 0.0 < first[0] < self.most else None
        return self._replications(PILOT_KEY, PILOTS, near, workers, on_done)

    def _fresh(self, pilots: Sequence[float], workers: int | None, on_done: OnDone) -> list[float]:
        mean = sum(pilots) / len(pilots)
        spread = sqrt(sum((value - mean) ** 2 for value in pilots) / (len(pilots) - 1))
        count = PILOTS
        while count < MOST_REPLICATIONS and t_975(count - 1) * spread / sqrt(count) > NARROW * mean:
            count += 1
        return self._replications(FRESH_KEY, count, mean, workers, on_done)

    def _replications(
        self, key: int, count: int, near: float | None, workers: int | None, on_done: OnDone
    ) -> list[float]:
        # Here, since process pools take longer to import than a small run does.
        from sim.experiment.pool import default_workers, started

        tasks = [(child_seed(self.scenario.seed, key, index), near) for index in range(count)]
        stage = f"{self.policy}: {'pilots' if key == PILOT_KEY else 'replications'}"
        on_done(stage, 0, count)
        done = {}
        uses = {self.policy, self.scenario.speculation.acceptance_name}
        with started(min(count, workers or default_workers()), {"question": self}, uses=uses) as pool:
            for task, load in pool.run(_own_highest, tasks):
                done[task] = load
                on_done(stage, len(done), count)
        return [done[task] for task in tasks]

    def _highest(
        self,
        limit: Limit,
        load: float | None,
        ci95: Interval | None,
        found: Sequence[float],
        at: float | None,
        price_per_h: float | None,
    ) -> Highest:
        at = at if at is not None else (self.least if limit is Limit.NEVER else self.most)
        runs = [run_point(self.point(at, child_seed(self.scenario.seed, FRESH_KEY, i))).run for i in range(2)]
        tokens = [number(run, "steady_output_throughput") or number(run, "output_throughput") for run in runs]
        per_s = sum(value for value in tokens if value is not None) / len(tokens)
        return Highest(
            policy=self.policy,
            limit=limit,
            load=load,
            ci95=ci95,
            replications=len(found),
            saturated_per_s=self.saturated_per_s,
            attainment=_mean_shares(runs),
            in_flight=_in_flight(runs),
            output_tokens_per_s=None if limit is Limit.NEVER else per_s,
            usd_per_million_tokens=None if limit is Limit.NEVER else _usd(price_per_h, 1, per_s),
        )


def _own_highest(task: tuple[int, float | None]) -> float:
    """In a worker."""
    from sim.experiment.pool import given

    question: _Question = given("question")
    return question.own_highest(*task)


# -- replicas


def _fleet(
    question: _Question,
    highest: Highest,
    routing: Routing,
    target_rate: float,
    price_per_h: float | None,
    workers: int | None,
    on_done: OnDone,
) -> Fleet:
    """The fewest replicas that are simulated to be enough while one fewer is not."""
    if highest.limit is Limit.NEVER:
        return Fleet(
            policy=question.policy, routing=routing.value, replicas=None, enough=None, one_fewer=None,
            usd_per_million_tokens=None,
        )  # fmt: skip
    per_replica = highest.load or question.saturated_per_s
    if question.is_concurrency:
        per_replica = question.saturated_per_s
    known: dict[int, tuple[FleetAttainment, float]] = {}

    def at(count: int) -> FleetAttainment:
        if count not in known:
            on_done(f"{question.policy}, {routing.value}: {count} replicas", 0, 1)
            known[count] = _attainment_of(question, routing, count, target_rate, workers)
        return known[count][0]

    count = max(1, ceil(target_rate / per_replica))
    while not at(count).meets:
        count += 1
        if count > MOST_REPLICAS:
            raise ValueError(f"target rate {target_rate:g}: more than {MOST_REPLICAS} replicas; want a lower one")
    while count > 1 and at(count - 1).meets:
        count -= 1
    return Fleet(
        policy=question.policy,
        routing=routing.value,
        replicas=count,
        enough=at(count),
        one_fewer=None if count == 1 else at(count - 1),
        usd_per_million_tokens=_usd(price_per_h, count, known[count][1]),
    )


def _attainment_of(
    question: _Question, routing: Routing, count: int, target_rate: float, workers: int | None
) -> tuple[FleetAttainment, float]:
    """The share that meets the SLOs with so many replicas, and output tokens per second; runs grow with the replicas,
    up to a trace's length."""
    scenario = question.scenario
    workload = scenario.workload
    num_prompts = max(_count(scenario), REQUESTS_PER_REPLICA * count)
    num_prompts = min(num_prompts, trace_length(workload)) if is_trace(workload) else num_prompts
    changes: dict[str, Any] = {"num_prompts": num_prompts, "num_warmups": int(WARMUP_SHARE * num_prompts)}
    if is_trace(workload) and workload.trace_arrivals is TraceArrivals.RECORDED:
        changes["trace_arrivals"] = TraceArrivals.RESCALED
    workload = msgspec.structs.replace(workload, request_rate=target_rate, max_concurrency=None, **changes)
    devices = msgspec.structs.replace(scenario.devices, count=count, routing=routing)
    settled = msgspec.structs.replace(scenario, workload=workload, devices=devices)
    points = [
        Point(
            scenario=settled,
            policy=question.policy,
            seed=child_seed(scenario.seed, FLEET_KEY, index),
            profile=question.profile,
        )
        for index in range(PILOTS)
    ]
    runs = [outcome.run for _, outcome in sorted(run_points(points, workers=workers), key=lambda done: done[0])]
    shares = [_joint(run) for run in runs]
    interval = interval_95(shares)
    assert interval is not None
    mean = sum(shares) / len(shares)
    tokens = sum(number(run, "steady_output_throughput") or 0.0 for run in runs) / len(runs)
    found = FleetAttainment(replicas=count, attainment=mean, ci95=interval, meets=interval[0] >= question.share)
    return found, tokens


# -- saying


def _settled(scenario: Scenario, auto: int) -> Scenario:
    """With a length, `auto` where it is left open or was by this, and a warm-up; no window."""
    workload = scenario.workload
    is_open = workload.num_prompts in ("auto", REQUESTS) and not is_trace(workload)
    count = auto if is_open else _count(scenario)
    warmups = int(WARMUP_SHARE * count) if is_open else workload.num_warmups or int(WARMUP_SHARE * count)
    workload = msgspec.structs.replace(workload, num_prompts=count, num_warmups=warmups)
    return msgspec.structs.replace(scenario, workload=workload, window=type(scenario.window)())


def _count(scenario: Scenario) -> int:
    workload = scenario.workload
    if isinstance(workload.num_prompts, int):
        return workload.num_prompts
    return trace_length(workload) if is_trace(workload) else REQUESTS


def _joint(run: Run) -> float:
    shares = run["slo_attainment"]
    assert isinstance(shares, dict)
    joint = shares["all"]
    return 0.0 if joint is None else float(joint)


def _in_flight(runs: Sequence[Run]) -> float:
    """By Little's law, over runs that drain."""
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


def _usd(price_per_h: float | None, count: int, output_tokens_per_s: float) -> float | None:
    if price_per_h is None or output_tokens_per_s <= 0.0:
        return None
    return price_per_h * count / (output_tokens_per_s * 3600.0) * 1e6


def _notes(scenario: Scenario, highest: Sequence[Highest]) -> list[str]:
    notes = []
    for found in highest:
        if found.ci95 is not None and found.load and found.limit is Limit.SLO:
            half = (found.ci95[1] - found.ci95[0]) / 2.0
            if half > 1.5 * NARROW * found.load:
                notes.append(
                    f"{found.policy}: {found.replications} replications leave {100.0 * half / found.load:.0f} % either "
                    f"way; longer runs (--num-prompts above {scenario.workload.num_prompts}) narrow it"
                )
    if scenario.workload.burstiness != 1.0:
        notes.append(f"arrivals of burstiness {scenario.workload.burstiness:g}: Poisson ones need less")
    return notes
