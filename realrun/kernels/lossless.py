"""Speculation changes no token: greedy text of a tied pair, drafted and verified, beside the target's own decoding.

In low precision the two may differ where the target's two best logits all but agree: passes of other shapes round
otherwise. Such places are counted with their gap, never hidden.
Not here: the pair (realrun.model.weights), policies (tests/realrun/replay/test_policies.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from realrun.kernels.issuer import Issuer
from realrun.kernels.pair_kernels import PairKernels
from realrun.kernels.rows import PromptChunk, Slot
from sim.seam.work import Model


def compare_texts(
    kernels: PairKernels, target: Any, prompts: Sequence[Sequence[int]], *, num_tokens: int, draft_tokens: int
) -> dict[str, Any]:
    """What speculating and decoding emit for `prompts`, all of them at once; `target` is the model of `kernels`.

    Returns counts, the acceptance rate, and per differing text the first place with the two best logits' gap.
    """
    issuer = kernels.issuer("lossless")
    plain, _ = _texts(kernels, prompts, num_tokens, 0, issuer)
    drafted, rate = _texts(kernels, prompts, num_tokens, draft_tokens, issuer)
    return {
        "requests": len(prompts),
        "tokens": num_tokens * len(prompts),
        "draft_tokens": draft_tokens,
        "acceptance_rate": rate,
        "differing": differences(target, prompts, plain, drafted),
    }


def differences(
    target: Any, prompts: Sequence[Sequence[int]], plain: Sequence[Sequence[int]], drafted: Sequence[Sequence[int]]
) -> list[dict[str, Any]]:
    """Of every text that differs its first place, and how far the two best logits lie apart there."""
    found = []
    for number, (one, other) in enumerate(zip(plain, drafted, strict=True)):
        place = next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), None)
        if place is not None:
            gap = _gap(target, [*prompts[number], *one[:place]])
            found.append({"request": number, "place": place, "logit_gap": gap})
    return found


def _texts(
    kernels: PairKernels, prompts: Sequence[Sequence[int]], num_tokens: int, draft_tokens: int, issuer: Issuer
) -> tuple[list[list[int]], float | None]:
    """Emitted tokens [requests][num_tokens], and accepted over drafted tokens."""
    slots = [kernels.admit(prompt, number) for number, prompt in enumerate(prompts)]
    chunks = [PromptChunk(slot, slot.prompt_tokens) for slot in slots]
    kernels.prefill(chunks, issuer).result()
    if draft_tokens:
        kernels.prefill(chunks, issuer, model=Model.DRAFT).result()
    num_drafted = num_accepted = 0
    while live := [slot for slot in slots if len(slot.output) < num_tokens]:
        if draft_tokens:
            kernels.draft(live, draft_tokens, issuer)
        rows = kernels.verify(live, issuer).result()
        num_drafted += draft_tokens * len(live)
        num_accepted += sum(row.accepted for row in rows)
    texts = [_ended(kernels, slot)[:num_tokens] for slot in slots]
    return texts, num_accepted / num_drafted if num_drafted else None


def _ended(kernels: PairKernels, slot: Slot) -> list[int]:
    kernels.release(slot)
    return slot.output


def _gap(target: Any, tokens: Sequence[int]) -> float:
    """Between the target's two best logits after `tokens`, by the library's own forward pass."""
    with torch.inference_mode():
        logits = target(torch.tensor([list(tokens)], device=target.device), use_cache=False).logits[0, -1].float()
    best = logits.topk(2).values.tolist()
    return float(best[0] - best[1])
