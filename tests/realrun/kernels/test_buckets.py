# ruff: noqa: E402
"""Padding to buckets: no shape outruns a stream's buffers, and no policy's text changes."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from realrun.host.gpuhost import GpuHost
from realrun.kernels.host_slots import PromptChunk, Slot, decoding_shapes, plan_draft, plan_target
from realrun.kernels.pair_kernels import PairKernels
from sim.interface.work import Model
from sim.policies.options import EngineLimits
from sim.policies.registry import POLICIES, PolicyOptions, find_policy
from tests.properties import examples
from tests.realrun.support import StandsForAll, assert_greedy, tied_pair, tiny_model, tiny_options
from tests.sim.support import played, request

SLOTS = 5
BUCKETS = st.lists(st.integers(1, SLOTS), unique=True, max_size=3).map(lambda found: tuple(sorted({*found, SLOTS})))


@given(data=st.data(), buckets=BUCKETS)
@examples(4)
def test_every_pass_fits_the_buffers_and_every_captured_shape_is_listed(data: Any, buckets: tuple[int, ...]) -> None:
    """Slots decode with drafts of any length, or prefill, or do nothing."""
    options = tiny_options(slots=SLOTS, batch_buckets=buckets, draft_tokens_max=4)
    roles = data.draw(st.lists(st.sampled_from(["decode", "prefill", "idle"]), min_size=SLOTS, max_size=SLOTS))
    decoding, chunks = [], []
    for index, role in enumerate(roles):
        if role == "decode":
            lag = data.draw(st.integers(1, 2))
            decoding.append(Slot(index, 8, known_tokens=9, draft_lag=lag, prefilled_target=8, prefilled_draft=8))
        elif role == "prefill":
            chunks.append(PromptChunk(Slot(index, 8, known_tokens=8, draft_lag=8), data.draw(st.integers(1, 8))))
    if not decoding and not chunks:
        return
    plans = []
    if decoding:
        drafted = data.draw(st.integers(1, 4))
        plans.append(plan_draft(decoding, (), drafted, options))
        for slot in decoding:
            slot.drafted = data.draw(st.integers(0, drafted))
    plans.append(plan_target(decoding, chunks, None, options))
    for plan in plans:
        shape = plan.shape
        assert len(plan.inputs) == shape.num_rows <= options.max_rows
        assert shape.rows in (0, *buckets)
        assert [row[0] for row in plan.inputs[: len(decoding)]] == [slot.index for slot in decoding]
        assert {row[0] for row in plan.inputs[len(decoding) : shape.rows]} <= {SLOTS}
        assert sum(chunk.rows * chunk.width for chunk in shape.chunks) == sum(
            tokens for _, tokens in (chunks if shape.model is Model.TARGET else ())
        )
        if not shape.chunks:
            assert shape in decoding_shapes(options, (1, 2, 3, 4), has_draft=True)


@cache
def pair() -> tuple[Any, Any]:
    return tied_pair(tiny_model(), 2, 0.2)


REPLAYED = [name for name in POLICIES if not find_policy(name).drafts_ahead]


@pytest.mark.parametrize("policy", REPLAYED)
@given(
    buckets=BUCKETS,
    lengths=st.lists(st.tuples(st.integers(2, 20), st.integers(1, 9)), min_size=2, max_size=SLOTS),
    draft_tokens=st.integers(1, 4),
)
@examples(0.1, derandomize=True, suppress_health_check=list(HealthCheck))
def test_no_policy_emits_another_text_when_its_rows_are_padded(
    policy: str, buckets: tuple[int, ...], lengths: list[tuple[int, int]], draft_tokens: int
) -> None:
    target, draft = pair()
    options = tiny_options(slots=SLOTS, batch_buckets=buckets, draft_tokens_max=4)
    executor = StandsForAll(PairKernels(target, draft, options), seed=3)
    requests = [request(i, prompt=prompt, output=output) for i, (prompt, output) in enumerate(lengths)]
    with GpuHost(executor) as host:
        limits = EngineLimits(max_num_seqs=SLOTS, max_num_batched_tokens=12)
        played(host, policy, requests, PolicyOptions(poll_s=0.0005), limits, draft_tokens=draft_tokens)
    executor.reset()
    assert_greedy(executor, target, requests)
