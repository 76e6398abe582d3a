# ruff: noqa: E402
"""Every pass of the GPU's co-runs at full size on a fake GPU: all of it could be captured, and fits what was
counted."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from calibrate.measure.overlap_cells import CONTEXTS, DRAFT_TOKENS, ROOM_TOKENS, coruns, slots
from calibrate.measure.pair import PASS_TOKENS
from calibrate.measure.timing import Bench
from realrun.kernels.pair_kernels import PairKernels
from realrun.kernels.pair_options import PairOptions
from realrun.model.attention import Attention
from realrun.model.memory import Sizes, pass_bytes
from sim.costs.shapes import model as shape_of
from tests.realrun.fake_cuda import Watcher, fake_gpu, full_size
from tests.realrun.flash import flash_operations
from tests.realrun.timed_device import TimedDevice

PAIR = ("llama-3.1-8b", "llama-3.2-1b")


def test_every_pass_can_be_captured_and_fits_what_was_counted() -> None:
    context = CONTEXTS["cuda"][0]
    planned = coruns("cuda", context)
    passes = dict.fromkeys(timed._replace(launch="graphed") for corun in planned for timed in corun.passes)
    num_slots = slots("cuda", context)
    sizes = Sizes(num_slots, context + ROOM_TOKENS, DRAFT_TOKENS, PASS_TOKENS["cuda"], streams=1, has_graphs=True)
    most = max(pass_bytes(shape_of(name), sizes.decoding_tokens + sizes.prompt_tokens, sizes) for name in PAIR)
    with flash_operations(), pytest.MonkeyPatch.context() as patch, fake_gpu(patch):
        options = PairOptions(
            slots=num_slots,
            max_tokens=context + ROOM_TOKENS,
            attention=Attention.FLASH,
            draft_tokens_max=DRAFT_TOKENS,
        )
        kernels = PairKernels(*(full_size(name) for name in PAIR), options, runs_on=TimedDevice())
        bench = Bench(kernels)
        for timed in passes:
            pass_ = bench.ready(timed)
            inputs = torch.empty(pass_.shape.num_rows, 4, dtype=torch.int64, device="cuda")
            with Watcher() as watcher:
                kernels.passes.run(pass_.shape, inputs)
            assert watcher.max_bytes <= most, timed
    assert len(passes) == 4 * 4
