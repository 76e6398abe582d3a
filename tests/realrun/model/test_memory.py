# ruff: noqa: E402
"""The ledger of a device's memory: every job on 80 and 141 GB, and what it rests on."""

from __future__ import annotations

import doctest
from itertools import pairwise
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from calibrate.measure.campaign.plan import CAMPAIGNS
from calibrate.measure.pair import needs, pair_spec
from realrun.host import cuda
from realrun.model import memory
from realrun.model.memory import GIB, Ledger, Sizes, ledger
from sim.costs.shapes import model

USABLE = {"cuda": 79.1 * GIB, "cuda-24gb": 22.0 * GIB}
"""Of an H100 and an L4, by what torch says of them; 0.9 of it is what a replay takes unless told otherwise."""
UTILISATION = 0.9


def test_the_example_of_a_ledger_is_what_it_prints() -> None:
    done = doctest.testmod(memory)
    assert (done.attempted > 0, done.failed) == (True, 0)


def replayed(target: str, draft: str, slots: int, *, max_tokens: int = 655, prompt_tokens: int = 8192) -> Ledger:
    """A replay of the campaign: 512 prompt tokens and 128 output tokens, 4 drafted, 8 streams, graphs."""
    sizes = Sizes(
        slots=slots, max_tokens=max_tokens, draft_tokens=4, prompt_tokens=prompt_tokens, streams=8, has_graphs=True
    )
    return ledger([model(target), model(draft)], sizes)


@pytest.mark.parametrize("name", USABLE)
def test_every_step_of_a_campaign_fits_the_gpu_that_it_is_for(name: str) -> None:
    """Llama-2-7B with 48 rows of 2,048 tokens and fifteen workspaces took 88 GiB of 80."""
    job = CAMPAIGNS[name].job
    spec = pair_spec("cuda", job.target, job.draft, job.rows, job.context)
    assert needs(spec).total <= 0.95 * USABLE[name]
    assert replayed(job.target, job.draft, slots=64 + 8, max_tokens=768).total <= UTILISATION * USABLE[name]


def test_the_recipe_for_32_gb_fits_32_gb() -> None:
    """As docs/gpu.md has it; torch sees 31.0 GiB of an RTX 5090."""
    text = (Path(__file__).parents[3] / "docs" / "gpu.md").read_text().replace("\\\n", " ")
    measure, replay = (
        {
            key.removeprefix("--"): value
            for key, value in pairwise(line.replace("--set ", "--").replace("=", " ").split())
            if key.startswith("--")
        }
        for line in text.splitlines()
        if line.startswith((".venv-gpu/bin/lanesim calibrate measure", ".venv-gpu/bin/lanesim replay"))
    )
    rows, context = int(measure["measure.rows"]), int(measure["measure.context"])
    spec = pair_spec("cuda", measure["target"], measure["draft"], rows, context)
    assert needs(spec).total <= 0.95 * 31.0 * GIB
    slots, prompts = int(replay["max_concurrency"]) + 8, int(replay["engine.max_num_batched_tokens"])
    found = replayed(measure["target"], measure["draft"], slots, max_tokens=768, prompt_tokens=prompts)
    assert found.total <= UTILISATION * 31.0 * GIB


def test_the_ledger_sums_what_it_lists() -> None:
    """Llama-2-7B and TinyLlama, in numbers that can be checked by hand."""
    found = replayed("llama-2-7b", "tinyllama-1.1b", 72)
    weights = 2 * (6738149376 + 1099956224)
    per_token = 2 * 2 * (32 * 4096 + 22 * 256) + 8
    assert found.weights == pytest.approx(weights, rel=1e-3)
    assert found.kv == 73 * 655 * per_token
    assert found.libraries == 8 * 2 * (32 << 20) + GIB
    assert found.passes == 8 * ((8192 + 72 * 5) * (2 * (4096 + 4 * 11008) + 256) + (16 << 20))
    assert found.total == found.weights + found.kv + found.libraries + found.passes + found.graphs


def test_a_cpu_has_neither_libraries_nor_graphs() -> None:
    sizes = Sizes(slots=4, max_tokens=64, draft_tokens=4, prompt_tokens=64, streams=8, has_graphs=True)
    assert ledger([model("tiny-target")], sizes, is_cuda=False)[3:] == (0, 0)


def test_memory_that_torch_keeps_but_nobody_holds_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fusing a model's projections leaves as much again behind as the projections take."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (10 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device=None: 30 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device=None: 18 * GIB)
    assert cuda.find("cuda").free_bytes() == 22 * GIB
