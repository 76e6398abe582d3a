# ruff: noqa: E402
"""The ledger of a device's memory: every job on 80 and 141 GB, and what it rests on."""

from __future__ import annotations

import doctest

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from calibrate.campaign.plan import CAMPAIGNS
from calibrate.measure.pair import needs, pair_spec
from realrun.host import cuda
from realrun.model import memory
from realrun.model.attention import Attention
from realrun.model.memory import GIB, Ledger, Sizes, ledger
from sim.costs.shapes import model

USABLE = {"80 GB": 79.1 * GIB, "141 GB": 139.8 * GIB}
"""Of an H100 and an H200, by what torch says of them; 0.9 of it is what a replay takes unless told otherwise."""
UTILISATION = 0.9


def test_the_example_of_a_ledger_is_what_it_prints() -> None:
    done = doctest.testmod(memory)
    assert (done.attempted > 0, done.failed) == (True, 0)


def replayed(target: str, draft: str, slots: int) -> Ledger:
    """A replay of the campaign: 512 prompt tokens and 128 output tokens, 4 drafted, 8 streams, graphs."""
    sizes = Sizes(
        slots=slots, max_tokens=655, draft_tokens=4, prompt_tokens=8192, streams=8, has_graphs=True, is_sampled=False
    )
    return ledger([model(target), model(draft)], sizes)


@pytest.mark.parametrize("job", CAMPAIGNS["cuda"].jobs, ids=lambda job: job.name)
@pytest.mark.parametrize("gpu", USABLE)
def test_every_job_of_the_campaign_fits(job: object, gpu: str) -> None:
    """Llama-2-7B with 48 rows of 2,048 tokens and fifteen workspaces took 88 GiB of 80."""
    spec = pair_spec("cuda", job.target, job.draft, None, job.rows, job.context, Attention.FLASH_3.value, 0)  # type: ignore[attr-defined]
    assert needs(spec).total <= 0.95 * USABLE[gpu]


@pytest.mark.parametrize("pair", [("llama-2-7b", "tinyllama-1.1b"), ("llama-3.1-8b", "llama-3.2-1b")], ids="+".join)
def test_the_largest_replay_of_the_campaign_fits_80_gb_within_its_utilisation(pair: tuple[str, str]) -> None:
    assert replayed(*pair, slots=64 + 8).total <= UTILISATION * USABLE["80 GB"]


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
