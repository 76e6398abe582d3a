# ruff: noqa: E402
"""Every policy on real passes and real threads, on the CPU: what comes out is the target's own text."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from realrun.host.gpuhost import GpuHost
from realrun.host.ticket import GpuTicket
from realrun.kernels.pair_kernels import PairKernels
from realrun.replay.pair_executor import PairExecutor
from sim.engine.draft_length import ByBatch
from sim.interface.request import Request
from sim.policies.options import Batching, EngineLimits, KvMode
from sim.policies.registry import PolicyOptions, find_policy
from tests.properties import some
from tests.realrun.support import StandsForAll, assert_greedy, tied_pair, tiny_model, tiny_options
from tests.sim.support import EVERY, PeriodicDraws, played, request

NUM_REQUESTS = 5


def requests() -> list[Request]:
    return [request(i, arrival_s=0.002 * i, prompt=7 + 3 * i, output=1 + 5 * i % 13) for i in range(NUM_REQUESTS)]


def executor() -> tuple[PairExecutor, object]:
    target, draft = tied_pair(tiny_model(), 2, 0.2)
    return StandsForAll(PairKernels(target, draft, tiny_options(slots=NUM_REQUESTS)), seed=3), target


def run(
    policy: str, executor: PairExecutor, options: PolicyOptions, draws: Any, limits: EngineLimits, **more: Any
) -> list[GpuTicket]:
    with GpuHost(executor, draws) as host:
        serving = played(host, policy, requests(), options, limits, draft_tokens=3, **more)
    assert serving.num_finished == NUM_REQUESTS
    executor.reset()
    return host.works


@pytest.mark.parametrize("lengths", [None, ByBatch(((1, 1, 3), (2, 9, 0)), 3)], ids=["3", "3 of one row, else 0"])
@pytest.mark.parametrize("batching", list(Batching))
@pytest.mark.parametrize("policy", EVERY)
def test_every_policy_emits_the_targets_greedy_text(policy: str, batching: Batching, lengths: Any) -> None:
    if find_policy(policy).is_continuous and batching is Batching.PER_REQUEST:
        pytest.skip("continuous batching batches")
    if find_policy(policy).drafts_ahead:
        pytest.skip("real kernels draft from verified tokens")
    pair, target = executor()
    options = PolicyOptions(batching=batching, workers=3, poll_s=0.0005)
    run(policy, pair, options, None, EngineLimits(max_num_batched_tokens=16), controller=lengths)
    assert_greedy(pair, target, requests())


@pytest.mark.parametrize("policy", ["pd", "continuous"])
def test_a_tape_dictates_what_is_accepted(policy: str) -> None:
    pair, _ = executor()
    draws = PeriodicDraws()
    works = run(policy, pair, PolicyOptions(poll_s=0.0005), draws, EngineLimits())
    for ticket in works:
        if ticket.work.kind.value in ("verify", "step"):
            assert ticket.job.forced == some(ticket.accepted)
            rows = zip(ticket.work.requests, ticket.job.emitted, ticket.job.drafted, strict=True)
            wanted = [draws.run_length(r.index, emitted, drafted) if drafted else 0 for r, emitted, drafted in rows]
            assert list(ticket.job.forced) == wanted[: ticket.work.rows]


def test_a_slot_is_used_again_and_waits_for_the_last_pass_of_its_former_request() -> None:
    target, draft = tied_pair(tiny_model(), 2, 0.2)
    pair = PairExecutor(PairKernels(target, draft, tiny_options(slots=2)), seed=3)
    with GpuHost(pair, PeriodicDraws()) as host:
        serving = played(host, "baseline", requests(), PolicyOptions(workers=2), draft_tokens=3)
    assert serving.num_finished == NUM_REQUESTS
    pair.reset()
    assert sorted(pair.outputs) == list(range(NUM_REQUESTS))


@pytest.mark.parametrize("kv", [KvMode.NONE, KvMode.REFORWARD])
def test_a_work_that_computes_tokens_again_has_no_real_passes(kv: KvMode) -> None:
    pair, _ = executor()
    with pytest.raises(ValueError, match="Use kv: rollback"):
        run("pd", pair, PolicyOptions(kv=kv), PeriodicDraws(), EngineLimits())
