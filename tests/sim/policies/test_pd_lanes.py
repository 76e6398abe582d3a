"""A cap per lane of PD, and lanes as processes: prompt 0.5 s, decode step 5 s, nothing drafted."""

from __future__ import annotations

from typing import Any

import pytest

from sim.costs.cost import Demands
from sim.costs.profile_files import load
from sim.devices.contention import Regime
from sim.interface.work import Kind
from sim.policies.options import EngineLimits
from sim.policies.registry import PolicyOptions
from sim.run.resolve import Resolved, resolve
from sim.run.scenario import Scenario
from tests.sim.constant_costs import ConstantCosts
from tests.sim.support import SECONDS, AlwaysAccept, SimRun, WorkLog, request

PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"


def decoded(**options: Any) -> WorkLog:
    """Decode steps of three requests that come together, three tokens each."""
    scenario = Scenario.of(
        profile="cpu/tiny", policy="pd", **{f"policy_options.{key}": options[key] for key in options}
    )
    run = SimRun(
        "pd",
        [request(index, output=3) for index in range(3)],
        draws=AlwaysAccept(),
        costs=ConstantCosts(device_s={**SECONDS, Kind.PREFILL: 0.5}, demand=Demands(0.0, 0.0)),
        options=PolicyOptions(poll_s=0.0, lanes=scenario.policy_options.lanes),
        limits=EngineLimits(max_num_seqs=4),
        draft_tokens=0,
    )
    return [work for work in run.works if work[2] == "decode"]


def test_a_request_keeps_its_seat_in_the_decode_lane_and_the_next_waits_for_it() -> None:
    assert decoded(lanes={"decode": {"max_num_seqs": 1}}) == [
        (0.5 + 5.0 * step, 5.5 + 5.0 * step, "decode", "verify", (step // 2,)) for step in range(6)
    ]
    # Without a cap all that are there go on together.
    assert [work[4] for work in decoded()] == [(0,), (1, 2, 0), (1, 2)]


def resolved(policy: str = "pd", **keys: Any) -> Resolved:
    scenario = Scenario.of(profile=PAIR, policy=policy, **{"engine.max_num_seqs": 8, **keys})
    return resolve(scenario, load(PAIR), policy)


def test_lanes_with_caps_seat_their_sum_and_a_lane_without_one_what_the_engine_seats() -> None:
    lanes = {"prefill": {"max_num_seqs": 3}, "decode": {"max_num_seqs": 5}}
    both = resolved(**{"policy_options.lanes": lanes})
    assert (both.max_seated, both.caps.decode_batch) == (8, 5)
    one = resolved(**{"policy_options.lanes": {"decode": {"max_num_seqs": 5}}, "policy_options.decode_batch": 2})
    assert (one.max_seated, one.caps.decode_batch) == (13, 2)
    assert (resolved().max_seated, resolved().caps.decode_batch) == (8, 8)


def test_processes_have_interpreters_and_weights_of_their_own_and_slices_of_time() -> None:
    streams, split = resolved(), resolved(**{"devices.overlap": "processes"})
    assert (split.costs.host_inflation(2), split.contention.regime) == (1.0, Regime.PROCESSES)
    assert streams.costs.host_inflation(2) > 1.0
    weights = sum(shape.weight_bytes for shape in split.models)
    tokens = 16 * (streams.num_blocks - split.num_blocks)
    assert tokens * sum(shape.kv_bytes_per_token for shape in split.models) == pytest.approx(
        weights + split.engine.reserved_bytes + split.engine.draft_reserved_bytes, rel=1e-3
    )
    mps = resolved(**{"devices.overlap": "processes", "devices.phi": 0.4})
    assert (mps.contention.regime, mps.contention.phi) == (Regime.LEFTOVER, 0.4)


def test_one_process_stays_as_it_is() -> None:
    one = resolved("continuous", **{"devices.overlap": "processes"})
    assert one.num_blocks == resolved("continuous").num_blocks
