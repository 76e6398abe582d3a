"""Loads that meet the SLOs: the highest request rate at which a share of the requests meets all of them jointly, and
the replicas that a given rate takes.

A pilot of a few replications says how many the interval takes, and then as many fresh ones are made: adding until an
interval is narrow would stop too early. The load has its range over draws of costs and acceptance, too, and the
replicas that are recommended hold in nearly all of them.
Not here: the search for a load and for replicas (load_search), saturated throughput (sim.compare.capacity).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite

import msgspec

from sim.compare.capacity import CAPACITY_KEY
from sim.compare.point_runs import on_points, run_point
from sim.compare.pool import OnDone, Runner, lasting
from sim.compare.run_length import Length, transient_note
from sim.compare.side_by_side import mean_of
from sim.compare.verdict import Interval
from sim.costs.profile import Profile
from sim.draws import child_seed
from sim.metrics.stats import interval_95
from sim.metrics.summary import Run, number
from sim.run.resolve import resolve_all
from sim.run.scenario import Scenario
from sim.studies.answer import Answer, Stated
from sim.studies.cost_draws import DEFAULT_DRAWS, cost_draws, interval_90, stated
from sim.studies.evidence import asked_of, evidence
from sim.studies.load_search import NARROW, REQUESTS, Highest, Limit, LoadSearch, ReplicaSearch, with_length
from sim.workload.classes import Goodput
from sim.workload.generate import is_trace, num_requests

DEFAULT_SHARE = 0.95
PRICE_UNIT = "/gpu-h"


class HighestLoad(msgspec.Struct, frozen=True, kw_only=True):
    policy: str
    limit: Limit
    load: float | None
    """Requests per second; None for never and unbounded."""
    ci95: Interval | None
    """Over replications with costs and acceptance as given. None of runs that are too short for steady means."""
    draws_interval: Interval | None
    """5 to 95 % of the draws; None without draws, of short runs, and where some draw has no limit."""
    draw_loads: list[float | None]
    """[draws] the load of each; 0 where it is met never, None where it is unbounded."""
    replications: int
    saturated_per_s: float
    """Requests per second with a queue that never empties."""
    attainment: dict[str, float | None]
    """Mean share of requests that meet each SLO, and `all`, at that load; of one alone where the limit is never."""
    in_flight: float
    """Mean number of requests at that load."""
    output_tokens_per_s: float | None
    usd_per_million_tokens: float | None


class Replicas(Answer, frozen=True, kw_only=True):
    """The replicas that a rate takes, with the routing of the scenario."""

    policy: str
    routing: str
    replicas: int | None
    """Enough in so many draws that a further one holds with CONFIDENCE; None where the SLOs are never met."""
    usd_per_million_tokens: float | None
    utilisation: float | None
    """The rate over that many times the highest load of one, as given."""
    confidence: float | None
    """Chance with which the recommended replicas hold in a further draw; None without draws."""
    attainment_by_draw: list[float]


class Attainment(Stated, frozen=True, kw_only=True, rename={"costs": "profile"}):
    share: float
    of: str
    """Load that is searched: `request rate`."""
    highest: list[HighestLoad]
    target_rate: float | None
    fleets: list[Replicas]
    notes: list[str]
    evidence: list[str]


@lasting()
def highest_load(
    scenario: Scenario,
    profile: Profile,
    *,
    share: float = DEFAULT_SHARE,
    target_rate: float | None = None,
    price: float | None = None,
    draws: int | None = None,
    near: float | None = None,
    workers: int | None = None,
    on_done: OnDone = lambda stage, done, total: None,
) -> Attainment:
    """The highest load of every policy that meets `scenario.goodput`, and with `target_rate` the replicas for it.

    With `draws` of 0 costs and acceptance are taken as given; by default there are DEFAULT_DRAWS, or none with several
    draft models, of whose errors nothing is known. With `near`, a load that is known to be close, the search is brief.
    `price` is in dollars per hour of a GPU. Raises ValueError for a scenario without SLOs.
    """
    if scenario.goodput == Goodput():
        raise ValueError("no limit on latency is given. Add such as --goodput ttft:1000 tpot:40")
    if draws is None:
        draws = 0 if scenario.speculation.drafts else DEFAULT_DRAWS
    policies = [with_length(one, REQUESTS) for one in resolve_all(scenario, profile)]
    runner = Runner(workers, on_done)
    is_counted = isinstance(scenario.workload.num_prompts, int) or is_trace(scenario.workload)
    highest, fleets, notes = list[HighestLoad](), list[Replicas](), [*policies[0].assumed, *_unused(scenario)]
    for resolved in policies:
        alone = resolved.changed(policy=(resolved.policy.name,), replications=1, devices={"count": 1})
        search = LoadSearch(alone, share, runner, near)
        if not is_counted:
            search.lengthen()
        drawn = cost_draws(search.resolved, draws, search.scenario.seed) if draws else []
        found = search.highest()
        loads = search.loads_under(drawn, found) if drawn else []
        usd_per_h = None if price is None else price * search.resolved.group_gpus
        one, more = _highest(search, found, loads, usd_per_h, is_auto=not is_counted)
        highest.append(one)
        notes += more
        if target_rate is not None:
            fleets.append(_replicas(ReplicaSearch(search, target_rate, drawn, loads), one, usd_per_h))
    return Attainment(
        **stated(policies[0], draws),
        share=share,
        of="request rate",
        highest=highest,
        target_rate=target_rate,
        fleets=fleets,
        notes=notes + _of_scenario(scenario, draws),
        evidence=evidence(
            profile,
            [asked_of(one, (each.in_flight, each.in_flight)) for one, each in zip(policies, highest, strict=True)],
        ),
    )


def _highest(
    search: LoadSearch, found: Highest, loads: list[float], usd_per_h: float | None, *, is_auto: bool
) -> tuple[HighestLoad, list[str]]:
    """The load with runs at it, of all its replications, and notes on them."""
    load = found.load if found.limit in (Limit.SLO, Limit.THROUGHPUT) else None
    at = load if load is not None else (search.least if found.limit is Limit.NEVER else search.most)
    points, notes = [search.point(at, seed) for seed in found.seeds], list[str]()
    runs = [
        outcome.run for outcome in on_points(run_point, points, search.runner, f"{search.policy}: at the highest load")
    ]
    # The note of `compare` on a given length at that load.
    scenario, workload = points[0].resolved.scenario, points[0].resolved.scenario.workload
    length = Length(num_prompts=num_requests(workload), num_warmups=workload.num_warmups, is_auto=is_auto)
    transient = transient_note(scenario, length, _mean(runs, "mean_e2el_ms"))
    per_s = None
    if found.limit is not Limit.NEVER:
        served = _mean(runs, "steady_output_throughput") or _mean(runs, "output_throughput")
        per_s = served if load is None else _output_tokens_per_s(search, load)
    interval = search.saturated_ci95 if found.limit is Limit.THROUGHPUT else interval_95(found.pseudo)
    if transient is not None:
        notes.append(f"{search.policy}: {transient}")
    elif interval is not None and found.limit is Limit.SLO:
        half = (interval[1] - interval[0]) / 2.0 / found.load
        if half > 1.5 * NARROW:
            notes.append(
                f"{search.policy}: {len(runs)} replications leave {100.0 * half:.0f} % either way. Longer runs narrow "
                f"it: --set workload.num_prompts=N, above {length.num_prompts}"
            )
    # By Little's law, over runs that drain.
    loops = [(number(run, "request_throughput") or 0.0) * (number(run, "mean_e2el_ms") or 0.0) / 1e3 for run in runs]
    has_range = bool(loads) and transient is None and all(isfinite(value) for value in loads)
    met: list[dict[str, float | None]] = [run["slo_attainment"] for run in runs]  # type: ignore[misc]
    by_slo = {name: [each[name] for each in met] for name in met[0]}
    one = HighestLoad(
        policy=search.policy,
        limit=found.limit,
        load=load,
        ci95=None if load is None or transient is not None else interval,
        draws_interval=interval_90(loads) if has_range else None,
        draw_loads=[value if isfinite(value) else None for value in loads],
        replications=len(found.seeds),
        saturated_per_s=search.saturated_per_s,
        attainment={name: mean_of([share for share in shares if share is not None]) for name, shares in by_slo.items()},
        in_flight=sum(loops) / len(runs),
        output_tokens_per_s=per_s,
        usd_per_million_tokens=_usd(usd_per_h, 1, per_s),
    )
    return one, notes


def _replicas(fleet: ReplicaSearch, one: HighestLoad, usd_per_h: float | None) -> Replicas:
    search, rate_per_s, num_draws = fleet.search, fleet.rate_per_s, fleet.num_draws
    per_replica = 0.0 if one.limit is Limit.NEVER else one.load or search.saturated_per_s
    count = fleet.fewest(per_replica)
    return Replicas(
        policy=search.policy,
        routing=search.scenario.devices.routing.value,
        replicas=count,
        usd_per_million_tokens=_usd(usd_per_h, count, _output_tokens_per_s(search, rate_per_s)) if count else None,
        utilisation=rate_per_s / (count * per_replica) if count else None,
        confidence=fleet.num_meeting(count) / (num_draws + 1) if count and num_draws else None,
        attainment_by_draw=fleet.shares(count) if count and num_draws else [],
    )


def _output_tokens_per_s(search: LoadSearch, rate_per_s: float) -> float:
    """Output tokens per second of requests that come, and are served, at that rate."""
    mean = search.resolved.served.mean_tokens(child_seed(search.scenario.seed, CAPACITY_KEY))
    return rate_per_s * mean.output_per_sent


def usd_per_gpu_h(text: str | None) -> float | None:
    """Dollars per hour of one GPU; None where no price is given. Raises ValueError.

    >>> usd_per_gpu_h("3.5/gpu-h"), usd_per_gpu_h("$2/gpu-h"), usd_per_gpu_h(None)
    (3.5, 2.0, None)
    """
    if text is None:
        return None
    try:
        usd = float(text.strip().removeprefix("$").removesuffix(PRICE_UNIT))
    except ValueError:
        usd = -1.0
    if not 0.0 <= usd < inf or not text.strip().endswith(PRICE_UNIT):
        raise ValueError(f"--price {text!r} must be dollars per hour of one GPU, such as 3.5{PRICE_UNIT}")
    return usd


def _usd(usd_per_h: float | None, count: int, output_tokens_per_s: float | None) -> float | None:
    if usd_per_h is None or not output_tokens_per_s:
        return None
    return usd_per_h * count / (output_tokens_per_s * 3600.0) * 1e6


def _mean(runs: Sequence[Run], metric: str) -> float | None:
    return mean_of([value for run in runs if (value := number(run, metric)) is not None])


# -- saying


def _unused(scenario: Scenario) -> list[str]:
    count, window = scenario.devices.count, scenario.window
    keys = {
        "workload.max_concurrency": scenario.workload.max_concurrency,
        "devices.count": count if count > 1 else None,
        "window.arrivals_end_s": window.arrivals_end_s,
        "window.stop_s": window.stop_s,
    }
    given = ", ".join(f"{key}={value:g}" for key, value in keys.items() if value is not None)
    instead = "engine.max_num_seqs says how many it serves at once, --rate how many replicas"
    return [f"{given} not used: sought is the rate of one replica that nobody waits to send to ({instead})"] * bool(
        given
    )


def _of_scenario(scenario: Scenario, draws: int) -> list[str]:
    notes = []
    if scenario.workload.burstiness != 1.0:
        notes.append(f"arrivals of burstiness {scenario.workload.burstiness:g}: Poisson ones need less")
    if scenario.speculation.drafts and not draws:
        notes.append("several drafts: their errors are in no draw, costs and acceptance are taken as given")
    return notes
