# ruff: noqa: E402
"""The lossless check itself: it finds nothing where nothing is, and what differs it tells with its place and gap."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from realrun.kernels.lossless import compare_texts, differences
from realrun.kernels.pair_kernels import PairKernels
from realrun.model.weights import tied_pair
from tests.realrun.support import greedy_text, prompts, tiny_model, tiny_options


def test_a_tied_pair_in_float64_changes_no_token() -> None:
    target, draft = tied_pair(tiny_model(), 2, 0.2)
    found = compare_texts(
        PairKernels(target, draft, tiny_options()), target, prompts((7, 12, 5)), num_tokens=16, draft_tokens=3
    )
    assert found["differing"] == []
    assert (found["requests"], found["tokens"]) == (3, 48)
    assert 0.0 < found["acceptance_rate"] < 1.0


def test_texts_that_differ_are_told_with_place_and_gap() -> None:
    target, texts = tiny_model(), prompts((7, 12))
    plain = [greedy_text(target, prompt, 12) for prompt in texts]
    drafted = [list(plain[0]), list(plain[1])]
    drafted[1][5] += 1
    (entry,) = differences(target, texts, plain, drafted)
    logits = target(torch.tensor([[*texts[1], *plain[1][:5]]])).logits[0, -1].topk(2).values.tolist()
    assert (entry["request"], entry["place"]) == (1, 5)
    assert entry["logit_gap"] == pytest.approx(logits[0] - logits[1], rel=1e-5)
