"""Shared ground of the real passes' tests: tiny models, a reference that knows no cache, and a ragged loop."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import torch

from realrun.kernels.host_slots import PairOptions, Slot
from realrun.kernels.issuer import Issuer
from realrun.kernels.pair_kernels import PairKernels, PromptChunk
from realrun.model.attention import Rectangle
from realrun.model.decoder import Decoder
from realrun.model.weights import Family, random_model
from realrun.replay.pair_executor import PairExecutor
from sim.costs.shapes import ModelShape
from sim.interface.host import Stream
from sim.interface.request import Request
from sim.interface.work import Model

torch.set_num_threads(1)


class StandsForAll(PairExecutor):
    """The one device stands for all GPUs and links that a policy asks for, and copies are free: what is computed is
    real, how long it takes is not."""

    def check(self, stream: Stream) -> None: ...


VOCAB = 61


def tiny_shape(**changes: Any) -> ModelShape:
    base: dict[str, Any] = {
        "name": "tiny",
        "layers": 3,
        "hidden": 32,
        "intermediate": 48,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "vocab": VOCAB,
        "tied_embeddings": False,
        "max_context": 512,
    }
    return ModelShape(**{**base, **changes})


def tiny_model(seed: int = 0, family: Family = Family.LLAMA, **changes: Any) -> Any:
    return random_model(tiny_shape(**changes), dtype=torch.float64, seed=seed, family=family)


def tied_pair(target: Any, draft_layers: int, epsilon: float) -> tuple[Any, Any]:
    """A target and a draft that agree the more, the smaller `epsilon`: the draft is the target's first layers, copied,
    and what the later ones add is scaled down to `epsilon` times what these do. Greedy acceptance is about .65 for
    epsilon .2. Changes `target`."""
    config = target.config
    changes = {"num_hidden_layers": draft_layers, "layer_types": None}
    draft = type(target)(type(config).from_dict({**config.to_dict(), **changes}))
    draft = draft.to(dtype=target.lm_head.weight.dtype, device=target.lm_head.weight.device)
    draft.eval().requires_grad_(False)
    for mine, theirs in zip(draft.model.layers, target.model.layers, strict=False):
        mine.load_state_dict(theirs.state_dict())
    draft.model.embed_tokens, draft.model.norm = target.model.embed_tokens, target.model.norm
    draft.lm_head = target.lm_head
    factor = epsilon * (draft_layers / (config.num_hidden_layers - draft_layers)) ** 0.5
    for layer in target.model.layers[draft_layers:]:
        for projection in (layer.self_attn.o_proj, layer.mlp.down_proj):
            projection.weight.mul_(factor)
            if projection.bias is not None:
                projection.bias.mul_(factor)
    return target, draft


def tiny_options(**changes: Any) -> PairOptions:
    base: dict[str, Any] = {"slots": 6, "max_tokens": 64, "draft_tokens_max": 6}
    return PairOptions(**{**base, **changes})


def prompts(lengths: Sequence[int], seed: int = 0, vocab: int = VOCAB) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(vocab, (length,), generator=generator).tolist() for length in lengths]


def greedy_text(model: Any, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """Autoregressive output by the library's own forward pass over the whole sequence, once per token."""
    tokens = torch.tensor([prompt], device=model.device)
    for _ in range(num_tokens):
        logits = model(tokens, use_cache=False).logits[:, -1]
        tokens = torch.cat((tokens, logits.argmax(-1, keepdim=True)), dim=1)
    return tokens[0, len(prompt) :].tolist()


def prefill_in_chunks(kernels: PairKernels, slots: Sequence[Slot], chunk_tokens: int, issuer: Issuer) -> None:
    """Prefill both models, every unfinished prompt's next chunk in each pass."""
    for model in (Model.TARGET, Model.DRAFT) if kernels.draft_model is not None else (Model.TARGET,):
        while chunks := next_chunks(slots, chunk_tokens, model):
            kernels.prefill(chunks, issuer, model=model).result()


def prefilled(
    pair: tuple[Any, Any], lengths: Sequence[int], chunk_tokens: int = 8, **options: Any
) -> tuple[PairKernels, list[Slot], Issuer]:
    """A pair's passes with prompts of these lengths in slots, ready to decode."""
    kernels = PairKernels(*pair, tiny_options(**options))
    issuer = kernels.issuer("all")
    slots = [kernels.admit(prompt) for prompt in prompts(lengths)]
    prefill_in_chunks(kernels, slots, chunk_tokens, issuer)
    return kernels, slots, issuer


def assert_greedy(executor: PairExecutor, target: Any, requests: Sequence[Request]) -> None:
    """Every request's text is the target's own."""
    for each in requests:
        expected = greedy_text(target, executor.prompt(each), each.output_tokens)
        assert executor.outputs[each.index][: each.output_tokens] == expected


def next_chunks(slots: Sequence[Slot], chunk_tokens: int, model: Model) -> list[PromptChunk]:
    chunks = []
    for slot in slots:
        done = slot.prefilled_target if model is Model.TARGET else slot.prefilled_draft
        if done < slot.prompt_tokens:
            chunks.append(PromptChunk(slot, min(chunk_tokens, slot.prompt_tokens - done)))
    return chunks


def speculate(
    kernels: PairKernels, slots: Sequence[Slot], num_tokens: int, draft_lengths: Sequence[int], issuer: Issuer
) -> None:
    """Rounds until every slot has `num_tokens` tokens; slot after slot takes the next of `draft_lengths` (0: none).

    Rows of one verify pass thus have drafts of different lengths, and a row's length changes from round to round.
    """
    lengths = cycle(draft_lengths)
    while live := [slot for slot in slots if len(slot.output) < num_tokens]:
        by_length: dict[int, list[Slot]] = {}
        for slot in live:
            by_length.setdefault(next(lengths), []).append(slot)
        for draft_tokens, rows in by_length.items():
            if draft_tokens:
                kernels.draft(rows, draft_tokens, issuer)
        kernels.verify(live, issuer).result()


def rows(slots: list[int], starts: list[int], counts: list[int], width: int) -> Rectangle:
    return Rectangle(torch.tensor(slots), torch.tensor(starts), torch.tensor(counts), width)


def ragged_hidden(decoder: Decoder) -> torch.Tensor:
    """What two passes give: prompts, then rows of three slots, one of them absent, behind chunks of another width. What
    absent rows and padding give is nobody's, and left out."""
    parts = []
    for rectangles in (
        (rows([2, 0], [0, 0], [16, 16], 16), rows([3], [0], [9], 9)),
        (rows([4, 2, 3], [0, 16, 9], [0, 5, 2], 5), rows([1], [0], [6], 6), rows([0], [16], [4], 4)),
    ):
        tokens = torch.arange(sum(rectangle.num_tokens for rectangle in rectangles)) * 7 % VOCAB
        parts.append(decoder.forward(tokens, rectangles))
    return torch.cat((parts[0], parts[1][5:12], parts[1][15:]))
