# ruff: noqa: E402
"""Every pass at the models' full size on a fake GPU: devices, precisions, launches, nothing a graph cannot hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from realrun.kernels.device_passes import ChunkShape, PassShape
from realrun.kernels.host_slots import PairOptions
from realrun.kernels.pair_kernels import PairKernels
from realrun.model.memory import SPLIT_BYTES, Sizes, pass_bytes
from sim.costs.shapes import model as shape_of
from sim.interface.work import Kind, Model
from tests.realrun.fake_cuda import Watcher, fake_gpu, full_size
from tests.realrun.flash import flash_operations

PINNED: dict[str, dict[str, str]] = json.loads((Path(__file__).parents[1] / "schemas.json").read_text())
"""Schemas of the operations that passes call, by package and version."""
MAX_LAUNCHES = 900
"""A CUDA stream's queue holds about 1,000 launches: one pass fits a stream that waits."""
SLOTS, DRAFT_TOKENS = 64, 4
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


Pair = tuple[str, str]
PAIRS = [("llama-2-7b", "tinyllama-1.1b"), ("llama-3.1-8b", "llama-3.2-1b")]
"""One of the campaign's, and an older one."""


@pytest.fixture(scope="module")
def watched() -> dict[tuple[Pair, PassShape], Watcher]:
    """What every pass of every pair did; it ran to its end, so no watcher objected."""
    found = {}
    with flash_operations(), pytest.MonkeyPatch.context() as patch, fake_gpu(patch):
        for pair in PAIRS:
            kernels = kernels_of(pair)
            for shape in SHAPES:
                inputs = torch.empty(shape.num_rows, 4, dtype=torch.int64, device="cuda")
                with Watcher() as found[pair, shape]:
                    kernels.passes.run(shape, inputs)
    return found


def kernels_of(pair: Pair) -> PairKernels:
    sizes: dict[str, Any] = {"slots": SLOTS, "max_tokens": 1000, "draft_tokens_max": DRAFT_TOKENS}
    options = PairOptions(batch_buckets=(1, SLOTS), cuda_graphs=True, **sizes)
    return PairKernels(*map(full_size, pair), options)


Watched = dict[tuple[Pair, PassShape], Watcher]


def test_every_pass_runs_on_the_device_alone_and_fits_a_launch_queue(watched: Watched) -> None:
    """Of a draft every two of its passes: longer ones are captured, or they wait."""
    assert len(watched) == len(PAIRS) * len(SHAPES)
    for (_, shape), watcher in watched.items():
        assert 200 < watcher.num_launches <= MAX_LAUNCHES * max(1, shape.draft_tokens // 2), shape


def test_a_layer_is_fifteen_launches(watched: Watched) -> None:
    """Of torch's own operations, attention and what joins its splits counted as two: a model of 32 layers against one
    of 16."""
    pair, shape = PAIRS[-1], PassShape(Kind.VERIFY, Model.TARGET, SLOTS, DRAFT_TOKENS + 1)
    with flash_operations(), pytest.MonkeyPatch.context() as patch, fake_gpu(patch):
        kernels = kernels_of(("llama-3.2-1b", "llama-3.2-1b"))
        inputs = torch.empty(shape.num_rows, 4, dtype=torch.int64, device="cuda")
        with Watcher() as of_16:
            kernels.passes.run(shape, inputs)
    assert watched[pair, shape].num_launches - of_16.num_launches == 15 * (32 - 16)


def test_attention_is_one_call_per_layer_and_pass_whatever_is_in_it(watched: Watched) -> None:
    for (pair, shape), watcher in watched.items():
        layers = {"llama-2-7b": 32, "llama-3.1-8b": 32, "tinyllama-1.1b": 22, "llama-3.2-1b": 16}
        passes = max(1, shape.draft_tokens)
        assert watcher.launches["_flash_attention_forward"] == 2 * passes * layers[pair[shape.model is Model.DRAFT]]


def test_every_call_is_one_that_torch_2_11_and_2_13_know(watched: Watched) -> None:
    """By their schemas; what torch 2.11 lacks, the splits of its own kernel, it is not told."""
    calls = {name: call for watcher in watched.values() for name, call in watcher.calls.items()}
    del calls["prim::device"]
    for version in ("torch 2.11", "torch 2.13"):
        pinned = PINNED[version]
        assert sorted(calls) == sorted(pinned)
        for name, call in calls.items():
            arguments = torch._C.parse_schema(pinned[name]).arguments
            positional = [argument.name for argument in arguments if not argument.kwarg_only]
            unknown = call.names - {argument.name for argument in arguments}
            assert call.max_positional <= len(positional), name
            assert unknown <= ({"num_splits"} if version == "torch 2.11" else set()), name


def test_the_installed_torch_has_the_schemas_that_are_pinned_for_it(watched: Watched) -> None:
    pinned = PINNED.get("torch " + ".".join(torch.__version__.split(".")[:2]))
    if pinned is None:
        pytest.skip(f"nothing is pinned for torch {torch.__version__}")
    for watcher in watched.values():
        for name, call in watcher.calls.items():
            if name.startswith("aten::"):
                assert call.schema == pinned[name]


def test_what_reads_back_copies_from_the_host_or_follows_data_is_seen() -> None:
    """The watcher itself: each of these would break a capture or stall a stream."""
    with pytest.MonkeyPatch.context() as patch, fake_gpu(patch):
        tensor, flags = torch.ones(4, device="cuda"), torch.ones(4, dtype=torch.bool, device="cuda")
        for broken in (
            lambda: tensor.sum().item(),
            lambda: tensor.nonzero(),
            lambda: tensor[flags],
            lambda: tensor + torch.ones(4),
            lambda: tensor.copy_(torch.ones(4)),
            lambda: tensor.to("cpu"),
            lambda: torch.tensor([1.0, 2.0], device="cuda"),
            lambda: torch.where(flags, tensor, 0.0),
            lambda: tensor.double().exp(),
        ):
            with pytest.raises((AssertionError, RuntimeError)), Watcher():
                broken()


def test_the_ledger_covers_what_passes_make_and_not_much_more(watched: Watched) -> None:
    """Beside what FlashAttention and cuBLAS want for themselves."""
    for (pair, shape), watcher in watched.items():
        dimensions = shape_of(pair[shape.model is Model.DRAFT])
        sizes = Sizes(
            slots=shape.num_rows,
            max_tokens=1000,
            draft_tokens=shape.width - 1 if shape.model is Model.TARGET else 0,
            prompt_tokens=0,
            streams=1,
            has_graphs=True,
        )
        counted = pass_bytes(dimensions, shape.num_tokens, sizes) - SPLIT_BYTES
        assert 0.98 * watcher.max_bytes <= counted + SPLIT_BYTES, shape
        if shape.num_tokens > 100:
            assert counted <= 1.3 * watcher.max_bytes, shape
