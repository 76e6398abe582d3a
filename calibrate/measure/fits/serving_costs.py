"""Costs that serving adds to a profile of passes. Not here: their measurement (calibrate.measure.serving_overhead)."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec import structs

from sim.costs.profile import Profile
from sim.costs.profile_files import round_constant


class Waits(NamedTuple):
    """Seconds that serving adds to a work."""

    prepare_s: float
    """Seconds from the moment when nothing but the threads kept it from being issued to its first kernel, to its issue
    where the device was busy. The bookkeeping of a pass is in it, less `row_s` of its rows."""
    result_s: float
    """Seconds from its end to the act of the coroutine that awaited it."""


class ServingCosts(msgspec.Struct, frozen=True, kw_only=True):
    works: Waits
    """All works; where passes are captured, those that are: decoding ones."""
    prompts: Waits | None = None
    """Works with prompt chunks, launched kernel by kernel, where the others are captured."""
    look_s: float
    """Seconds that the work under way loses per look of an idle worker."""
    probed_s: tuple[float, ...]
    """Seconds of fixed passes between the runs, by realrun.replay.machine_speed."""
    served: dict[str, float] = {}
    """Ratios by kind: how many times as long a pass lasts as the profile says."""
    how: str = ""
    """Runs that this is made of."""


def started(profile: Profile, *, is_cpu: bool) -> Profile:
    """`profile` with its host's rules: a CPU issues by executing, in turns; a GPU captures no prompts."""
    if not is_cpu:
        return structs.replace(profile, host=structs.replace(profile.host, captures_chunks=False))
    return structs.replace(
        profile,
        host=structs.replace(profile.host, is_synchronous=True),
        overlap=structs.replace(profile.overlap, has_priorities=False, takes_turns=True),
    )


def completed(profile: Profile, costs: ServingCosts, *, is_cpu: bool) -> Profile:
    """`profile` in service. What was measured there takes the place of the bookkeeping that was timed alone."""
    profile = started(profile, is_cpu=is_cpu)
    prompts = costs.prompts
    said = f"works of the threaded host, {_told(costs.works)}"
    if prompts is not None:
        said = f"captured {said}; eager_step_s and eager_result_s: its works on prompts, eager, {_told(prompts)}"
    host = structs.replace(
        profile.host,
        step_s=round_constant(costs.works.prepare_s),
        result_s=round_constant(costs.works.result_s),
        eager_step_s=None if prompts is None else round_constant(prompts.prepare_s),
        eager_result_s=None if prompts is None else round_constant(prompts.result_s),
        served=costs.served,
        look_s=round_constant(costs.look_s),
        probed_s=tuple(map(round_constant, costs.probed_s)),
        source=f"{profile.host.source}; step_s, result_s, served and look_s: {said}; {costs.how}",
    )
    return structs.replace(profile, host=host)


def _told(waits: Waits) -> str:
    return (
        f"{waits.prepare_s * 1e6:.0f} us per work beside its pass and {waits.result_s * 1e6:.0f} us from its end to "
        "the next act"
    )
