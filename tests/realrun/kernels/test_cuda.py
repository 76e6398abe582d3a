# ruff: noqa: E402
"""What only a CUDA device can show: graphs on streams, allocations. Skipped without one.

Not here: the fused kernel and captured passes beside the plain ones (calibrate.measure.campaign.smoke).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from realrun.kernels.host_slots import Slot, decoding_shapes
from realrun.kernels.issuer import Issuer
from realrun.kernels.pair_kernels import PairKernels
from realrun.model.weights import random_model
from sim.interface.work import Kind
from tests.realrun.support import (
    prefill_in_chunks,
    prompts,
    speculate,
    tied_pair,
    tiny_options,
    tiny_shape,
)

pytestmark = pytest.mark.gpu

LENGTHS = (7, 12, 3, 9)
DIMENSIONS: dict[str, Any] = {"hidden": 128, "intermediate": 256, "heads": 4, "kv_heads": 2, "head_dim": 32}
BUCKETS: dict[str, Any] = {"batch_buckets": (1, 2, 4), "max_tokens": 256}


def cuda_pair() -> tuple[Any, Any]:
    return tied_pair(random_model(tiny_shape(**DIMENSIONS), device="cuda"), 2, 0.2)


def serve(kernels: PairKernels, issuer: Issuer, numbers: range, num_tokens: int = 24) -> list[list[int]]:
    texts = prompts(LENGTHS)
    slots = [kernels.admit(texts[number]) for number in numbers]
    prefill_in_chunks(kernels, slots, 5, issuer)
    speculate(kernels, slots, num_tokens, (3, 1, 2), issuer)
    return [slot.output[:num_tokens] for slot in slots]


def warmed(kernels: PairKernels, name: str) -> Issuer:
    issuer = kernels.issuer(name)
    kernels.warm(issuer, decoding_shapes(kernels.options, (1, 2, 3), has_draft=True))
    return issuer


def test_decoding_passes_are_replayed_and_allocate_nothing() -> None:
    options = tiny_options(cuda_graphs=True, **BUCKETS)
    kernels = PairKernels(*cuda_pair(), options)
    issuer = warmed(kernels, "all")
    slots: list[Slot] = [kernels.admit(prompt) for prompt in prompts(LENGTHS)]
    prefill_in_chunks(kernels, slots, 64, issuer)
    before = kernels.runs_on.num_allocations()
    for _ in range(5):
        assert kernels.draft(slots, 3, issuer).pending.is_graph
        verify = kernels.verify(slots, issuer)
        assert verify.pending.is_graph
        assert verify.plan.shape.kind is Kind.VERIFY
        verify.result()
    assert kernels.runs_on.num_allocations() == before


def test_graphs_on_two_streams_give_what_one_gives() -> None:
    def run(together: bool) -> list[list[int]]:
        options = tiny_options(cuda_graphs=True, **BUCKETS)
        kernels = PairKernels(*cuda_pair(), options)
        work = [(range(2), warmed(kernels, "one")), (range(2, 4), warmed(kernels, "two"))]
        if together:
            with ThreadPoolExecutor(2) as pool:
                parts = list(pool.map(lambda half: serve(kernels, half[1], half[0]), work))
        else:
            parts = [serve(kernels, issuer, numbers) for numbers, issuer in work]
        return parts[0] + parts[1]

    assert run(together=True) == run(together=False)
