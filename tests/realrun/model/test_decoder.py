# ruff: noqa: E402
"""Our forward pass over slotted KV gives the library's own logits, however the tokens are batched and chunked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from realrun.model.attention import Rectangle
from realrun.model.decoder import Decoder
from realrun.model.weights import Family
from tests.realrun.support import prompts, tiny_model


@pytest.fixture
def exact_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's norms in the model's own precision: they round to float32, which hides what is below 1e-7."""

    def forward(self: Any, hidden: Any) -> Any:
        scale = torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * hidden * scale

    for norm in (LlamaRMSNorm, Qwen2RMSNorm, Qwen3RMSNorm):
        monkeypatch.setattr(norm, "forward", forward)


def chunked_logits(decoder: Decoder, texts: list[list[int]], sizes: list[list[int]]) -> list[Any]:
    """Logits [tokens, vocab] of each text, fed as chunks of `sizes` [passes][rows], slots in reverse order."""
    slots = torch.arange(len(texts)).flip(0)
    done, logits = [0] * len(texts), [[] for _ in texts]
    for counts in sizes:
        width = max(counts)
        tokens = torch.zeros(len(texts), width, dtype=torch.int64)
        for row, (text, count) in enumerate(zip(texts, counts, strict=True)):
            tokens[row, :count] = torch.tensor(text[done[row] : done[row] + count])
        starts = torch.tensor(done)
        rectangle = Rectangle(slots, starts, torch.tensor(counts), width)
        hidden = decoder.forward(tokens.flatten(), (rectangle,)).view(len(texts), width, -1)
        for row, count in enumerate(counts):
            logits[row].append(decoder.head(hidden[row, :count]))
            done[row] += count
    return [torch.cat(parts) for parts in logits]


def decoder_of(model: Any, **changes: Any) -> Decoder:
    base: dict[str, Any] = {"slots": 3, "max_tokens": 48}
    return Decoder(model, **{**base, **changes})


@pytest.mark.usefixtures("exact_norms")
@pytest.mark.parametrize(
    "dimensions",
    [
        pytest.param({}, id="grouped"),
        pytest.param({"kv_heads": 4}, id="one-to-one"),
        pytest.param({"kv_heads": 1, "head_dim": 16}, id="one-kv-head"),
        pytest.param({"family": Family.QWEN2}, id="qwen2"),
        pytest.param({"family": Family.QWEN3}, id="qwen3"),
        pytest.param({"tied_embeddings": True}, id="tied"),
    ],
)
def test_ragged_chunks_give_the_librarys_logits(dimensions: dict[str, Any]) -> None:
    model = tiny_model(**dimensions)
    texts = prompts([14, 9, 20])
    expected = [model(torch.tensor([text]), use_cache=False).logits[0] for text in texts]
    decoder = decoder_of(model)
    got = chunked_logits(decoder, texts, [[5, 1, 8], [7, 7, 1], [2, 1, 11]])
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


def test_without_touching_the_librarys_norms_logits_agree_to_float32_rounding() -> None:
    model = tiny_model()
    (text,) = prompts([24])
    expected = model(torch.tensor([text]), use_cache=False).logits[0]
    (got,) = chunked_logits(decoder_of(model, slots=1), [text], [[7], [17]])
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def test_the_library_still_gives_the_same_logits_after_its_projections_were_fused() -> None:
    model = tiny_model(family=Family.QWEN2)
    tokens = torch.tensor(prompts([12]))
    before = model(tokens, use_cache=False).logits
    decoder_of(model)
    assert torch.equal(model(tokens, use_cache=False).logits, before)


def test_padding_leaves_no_trace_in_any_slot() -> None:
    decoder = decoder_of(tiny_model())
    keys, values = decoder.kv.keys.clone(), decoder.kv.values.clone()
    chunked_logits(decoder, prompts([6, 6, 6]), [[6, 2, 1]])
    for slot, written in ((2, 6), (1, 2), (0, 1)):
        assert torch.equal(decoder.kv.keys[:, slot, written:], keys[:, slot, written:])
        assert torch.equal(decoder.kv.values[:, slot, written:], values[:, slot, written:])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type='gpt2'"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "rope_type='dynamic'"),
        ({"use_sliding_window": True, "sliding_window": 8}, "sliding-window"),
    ],
)
def test_a_model_with_another_forward_pass_is_refused(changes: dict[str, Any], message: str) -> None:
    from types import SimpleNamespace

    known = {"model_type": "llama", "hidden_act": "silu", "rope_parameters": {"rope_type": "default"}}
    with pytest.raises(ValueError, match=message):
        Decoder(
            SimpleNamespace(config=SimpleNamespace(**{**known, **changes})),
            slots=1,
            max_tokens=16,
        )


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield
