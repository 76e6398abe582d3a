"""The plan's answer in a world of other tables: where two tables of the same kernels contradict each other, either may
hold, and the sentence says what both come to.

The other world is the best row's profile with every pass as many times as long as the other tables have a decode step.
Not here: whose tables those are and how long their step takes (calibrate.importers.plan_candidates).
"""

from __future__ import annotations

from math import ceil

import msgspec

from sim.compare.pool import OnDone
from sim.costs.profile import SERVED_KINDS, Profile
from sim.engine.fleet import Routing
from sim.run.scenario import parse_scenario
from sim.studies.attainment import Attainment, highest_load
from sim.studies.plan.search import Plan

MOST_TIMES = 4
"""Fleets are simulated where a replica serves at least this part of the requests that the ratio leaves it: with fewer,
some draws hardly ever meet the SLOs."""


def with_world(
    result: Plan,
    profile: Profile,
    ratio: float,
    whose: str,
    *,
    workers: int | None = None,
    on_done: OnDone = lambda stage, done, total: None,
) -> Plan:
    """`result`, whose best row has `profile`, and in its sentence what that row comes to if passes take `ratio` times
    as long, as they do by the tables `whose` are: `, or 15 GPUs if vllm's own tables hold`."""
    best, host = result.deployments[0], profile.host
    served = {kind: ratio * host.served.get(kind, 1.0) for kind in SERVED_KINDS}
    slower = msgspec.structs.replace(profile, host=msgspec.structs.replace(host, served=served))
    scenario = msgspec.structs.replace(parse_scenario(result.scenario), energy=False)
    near = best.rate_per_replica / best.dp / ratio

    def found(rate_per_s: float | None, draws: int) -> Attainment:
        return highest_load(
            scenario,
            slower,
            share=result.share,
            target_rate=rate_per_s,
            draws=draws,
            routings=(Routing.ROUND_ROBIN,),
            near=near,
            is_brief=True,
            workers=workers,
            on_done=on_done,
        )

    load, per_replica = found(None, 0).highest[0].load or 0.0, best.gpus // (best.replicas or 1)
    if load == 0.0:
        comes_to = "none that meets the SLOs"
    elif result.rate_per_s is None:
        comes_to = f"{load * best.dp:.3g} requests/s"
    elif load < near / MOST_TIMES:
        comes_to = f"more than {MOST_TIMES} times as many GPUs"
    else:
        fleet = found(result.rate_per_s, result.draws).fleets[0]
        comes_to = f"{ceil((fleet.replicas or 1) / best.dp) * per_replica} GPUs"
    return msgspec.structs.replace(result, verdict=f"{result.verdict}; or {comes_to} if {whose} tables hold")
