# ruff: noqa: E402
"""Greedy speculative output equals autoregressive output token for token, on the CPU in float64.

The reference is the library's own forward pass over the whole sequence, without a cache.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from realrun.kernels.pair_kernels import PairKernels, PromptChunk
from sim.interface.work import Model
from tests.realrun.support import (
    greedy_text,
    prefill_in_chunks,
    prefilled,
    prompts,
    speculate,
    tied_pair,
    tiny_model,
    tiny_options,
)

NUM_TOKENS = 14
PROMPT_LENGTHS = (7, 12, 3, 9, 16, 5)


@cache
def pair(draft: str) -> tuple[Any, Any]:
    if draft == "unrelated":
        return tiny_model(0), tiny_model(1, layers=1, hidden=16, heads=2, kv_heads=1)
    return tied_pair(tiny_model(0), 2, float(draft))


@cache
def reference(draft: str) -> list[list[int]]:
    with torch.no_grad():
        return [greedy_text(pair(draft)[0], prompt, NUM_TOKENS) for prompt in prompts(PROMPT_LENGTHS)]


def outputs(
    draft: str, batch: int, draft_lengths: tuple[int, ...], chunk_tokens: int, **options: Any
) -> list[list[int]]:
    kernels = PairKernels(*pair(draft), tiny_options(**options))
    issuer = kernels.issuer("all")
    texts = []
    for first in range(0, len(PROMPT_LENGTHS), batch):
        group = prompts(PROMPT_LENGTHS)[first : first + batch]
        slots = [kernels.admit(prompt) for prompt in group]
        prefill_in_chunks(kernels, slots, chunk_tokens, issuer)
        speculate(kernels, slots, NUM_TOKENS, draft_lengths, issuer)
        for slot in slots:
            texts.append(slot.output[:NUM_TOKENS])
            kernels.release(slot)
    return texts


@pytest.mark.parametrize("draft", ["0.0", "0.2", "1.0", "unrelated"])
@pytest.mark.parametrize("batch", [1, 2, 6])
@pytest.mark.parametrize("draft_lengths", [(1,), (4,), (3, 0, 5, 1), (6, 2)], ids=str)
def test_speculation_changes_no_token(draft: str, batch: int, draft_lengths: tuple[int, ...]) -> None:
    assert outputs(draft, batch, draft_lengths, chunk_tokens=5) == reference(draft)


def test_plain_decode_is_verify_without_drafts_and_needs_no_draft_model() -> None:
    kernels, slots, issuer = prefilled((pair("0.2")[0], None), PROMPT_LENGTHS)
    speculate(kernels, slots, NUM_TOKENS, (0,), issuer)
    assert [slot.output[:NUM_TOKENS] for slot in slots] == reference("0.2")


def test_a_round_may_be_issued_before_the_result_of_the_last_is_back() -> None:
    """Starts and lengths live on the device; the host only bounds them."""
    kernels = PairKernels(*pair("0.2"), tiny_options())
    issuer = kernels.issuer("all")
    slots = [kernels.admit(prompt) for prompt in prompts(PROMPT_LENGTHS[:3])]
    flight = [kernels.prefill([PromptChunk(slot, slot.prompt_tokens) for slot in slots], issuer)]
    kernels.prefill([PromptChunk(slot, slot.prompt_tokens) for slot in slots], issuer, model=Model.DRAFT)
    while min(len(slot.output) for slot in slots) < NUM_TOKENS:
        kernels.draft(slots, 2, issuer)
        flight.append(kernels.verify(slots, issuer))
        if len(flight) == 3:
            flight.pop(0).result()
    for late in flight:
        late.result()
    assert [slot.output[:NUM_TOKENS] for slot in slots] == reference("0.2")[:3]
    assert {slot.max_new_tokens for slot in slots} == {0}


def test_a_draft_of_the_same_model_is_always_accepted_in_full() -> None:
    """The proof that catch-up works: one token missing from the draft's KV would spoil every later draft."""
    kernels, slots, issuer = prefilled(pair("0.0"), PROMPT_LENGTHS)
    for draft_tokens in (4, 1, 5, 2):
        kernels.draft(slots, draft_tokens, issuer)
        accepted = [row.accepted for row in kernels.verify(slots, issuer).result()]
        assert accepted == [draft_tokens] * len(slots)
        assert {slot.draft_lag for slot in slots} == {2}
