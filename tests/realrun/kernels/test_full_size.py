# ruff: noqa: E402
"""Every pass at the models' full size on a fake GPU: devices, precisions, launches, nothing a graph cannot hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from realrun.kernels.options import PairOptions
from realrun.kernels.pair_kernels import PairKernels
from realrun.kernels.passes import ChunkShape, PassShape
from realrun.model.attention import Attention
from sim.seam.work import Kind, Model
from tests.realrun.fake_cuda import Watcher, fake_gpu, full_size
from tests.realrun.flash import flash_operations

MOST_LAUNCHES = 900
"""A CUDA stream's queue holds about 1,000 launches: one pass fits a stream that waits."""
PAIRS = [("llama-2-7b", "tinyllama-1.1b"), ("llama-3.1-8b", "llama-3.2-1b")]
"""Of the campaign."""
SLOTS, DRAFT_TOKENS = 64, 4


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with flash_operations(), fake_gpu(monkeypatch):
        yield


def kernels_of(pair: tuple[str, str], **changes: Any) -> PairKernels:
    base: dict[str, Any] = {
        "slots": SLOTS,
        "max_tokens": 1000,
        "attention": Attention.FLASH_3,
        "draft_tokens_max": DRAFT_TOKENS,
        "batch_buckets": (1, SLOTS),
        "cuda_graphs": True,
    }
    return PairKernels(*(full_size(name) for name in pair), PairOptions(**{**base, **changes}))


def watched(kernels: PairKernels, shape: PassShape) -> Watcher:
    inputs = torch.empty(shape.num_rows, 4, dtype=torch.int64, device="cuda")
    with Watcher() as watcher:
        kernels.passes.run(shape, inputs)
    return watcher


PROMPTS = (ChunkShape(2, 512, True), ChunkShape(1, 300, False))
SHAPES = [
    PassShape(Kind.PREFILL, Model.TARGET, chunks=PROMPTS),
    PassShape(Kind.PREFILL, Model.DRAFT, chunks=PROMPTS),
    PassShape(Kind.VERIFY, Model.TARGET, SLOTS, DRAFT_TOKENS + 1),
    PassShape(Kind.VERIFY, Model.TARGET, 1, 1),
    PassShape(Kind.STEP, Model.TARGET, SLOTS, DRAFT_TOKENS + 1, chunks=PROMPTS),
    PassShape(Kind.DRAFT, Model.DRAFT, SLOTS, 2, 2, chunks=PROMPTS),
    PassShape(Kind.DRAFT, Model.DRAFT, SLOTS, 2, DRAFT_TOKENS),
]


@pytest.mark.parametrize(
    ("pair", "attention", "temperature"),
    [
        (PAIRS[0], Attention.FLASH, 1.0),
        (PAIRS[0], Attention.FLASH_3, 0.0),
        (PAIRS[1], Attention.FLASH_3, 1.0),
    ],
)
def test_every_pass_could_be_captured_and_fits_a_launch_queue(
    pair: tuple[str, str], attention: Attention, temperature: float
) -> None:
    """Of a draft every two of its passes: longer ones are captured, or they wait."""
    kernels = kernels_of(pair, attention=attention, temperature=temperature)
    for shape in SHAPES:
        watcher = watched(kernels, shape)
        assert watcher.num_launches <= MOST_LAUNCHES * max(1, shape.draft_tokens // 2), shape
