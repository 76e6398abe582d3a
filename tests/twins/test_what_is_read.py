"""Twins of cost tables and their ends. Not here: results of benchmarks (tests.sim.workload.test_bench)."""

from __future__ import annotations

import msgspec
from hypothesis import assume
from hypothesis import strategies as st

import lanesim
from sim.costs.engine_costs import engine_of
from sim.costs.extrapolation import collecting
from sim.costs.forms.build import build_costs
from sim.costs.profile import Profile
from sim.costs.table_kernels import TableKernels
from sim.interface.work import Chunk, Kind, Model, Work
from tests.twins.twin import Pair, twin

TABLES = [name for name in lanesim.profile_names() if isinstance(lanesim.load_profile(name).kernels, TableKernels)]
tables = st.sampled_from(TABLES)


def prompt_s(profile: Profile, tokens: int) -> float:
    """Device seconds of a pass over one prompt."""
    costs = build_costs(profile, engine_of(None, profile))
    work = Work(kind=Kind.PREFILL, model=Model.TARGET, requests=(), chunks=(Chunk(tokens, 0),))
    with collecting():
        return costs.cost(work).device_s


def with_body(profile: Profile, points: list[tuple[int, float]]) -> Profile:
    """`profile` with other points of its layers, which were measured up to the last of them."""
    table = profile.table
    tokens, seconds = zip(*points, strict=True)
    target = msgspec.structs.replace(table.target, body=lanesim.Curve(tokens=tokens, seconds=seconds))
    return msgspec.structs.replace(profile, kernels=msgspec.structs.replace(table, target=target))


def body(profile: Profile) -> list[tuple[int, float]]:
    curve = profile.table.target.body
    return list(zip(curve.tokens, curve.seconds, strict=True))


@twin(tables, st.integers(2, 4), rel=0.15)
def test_a_point_more_beside_the_last_one_changes_little_beyond_it(name: str, times: int) -> Pair:
    """A2: kernels take as long for 16 tokens fewer, a stair."""
    profile = lanesim.load_profile(name)
    points = body(profile)
    (before, _), (last, last_s) = points[-2:]
    assume(last - 16 > before)
    step = [*points[:-1], (last - 16, last_s), (last, last_s)]
    return Pair(prompt_s(profile, times * last), prompt_s(with_body(profile, step), times * last))


@twin(tables, rel=0.3)
def test_half_of_a_table_says_what_the_other_half_holds(name: str) -> Pair:
    """A2."""
    profile = lanesim.load_profile(name)
    points = body(profile)
    last = points[-1][0]
    half = [point for point in points if point[0] <= last // 2]
    assume(len(half) > 3)
    return Pair(prompt_s(profile, last), prompt_s(with_body(profile, half), last))
