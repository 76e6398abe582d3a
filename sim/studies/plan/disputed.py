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
from sim.run.scenario import parse_scenario
from sim.studies.attainment import highest_load
from sim.studies.plan.search import Plan


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
    as long, as they do by the tables `whose` are: `; or about 16 GPUs if vllm's own tables hold`.

    Costs and acceptance are as given there, and a fleet is as many replicas as the rate takes at a replica's load.
    """
    best, host = result.deployments[0], profile.host
    served = {kind: ratio * host.served.get(kind, 1.0) for kind in SERVED_KINDS}
    slower = msgspec.structs.replace(profile, host=msgspec.structs.replace(host, served=served))
    one = highest_load(
        msgspec.structs.replace(parse_scenario(result.scenario), energy=False),
        slower,
        share=result.share,
        draws=0,
        near=best.rate_per_replica / best.dp / ratio,
        is_brief=True,
        workers=workers,
        on_done=on_done,
    )
    rate_per_s, gpus = (one.highest[0].load or 0.0) * best.dp, best.gpus // (best.replicas or 1)
    if rate_per_s == 0.0:
        comes_to = "none that meets the SLOs"
    elif result.rate_per_s is None:
        comes_to = f"{rate_per_s:.3g} requests/s"
    else:
        comes_to = f"about {ceil(result.rate_per_s / rate_per_s) * gpus} GPUs"
    return msgspec.structs.replace(result, verdict=f"{result.verdict}; or {comes_to} if {whose} tables hold")
