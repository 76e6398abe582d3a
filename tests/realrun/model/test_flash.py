# ruff: noqa: E402
"""What the flash kernels are told: a plain one that obeys the same arguments gives what the reference gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from realrun.kernels.pair_kernels import PairKernels
from realrun.model.attention import (
    GPU_TILES,
    MAX_SPLITS,
    PAGE_TOKENS,
    FlashAttention,
    make_attention,
    num_splits,
    slot_tokens,
)
from realrun.model.decoder import Decoder
from tests.realrun.flash import flash_operations
from tests.realrun.support import (
    prefill_in_chunks,
    prompts,
    ragged_hidden,
    rows,
    speculate,
    tied_pair,
    tiny_model,
    tiny_options,
)


@pytest.fixture(autouse=True)
def operations() -> Iterator[None]:
    with flash_operations(), torch.no_grad():
        yield


def with_flash(decoder: Decoder) -> Decoder:
    """Made past the checks: the plain kernels take any precision."""
    decoder.attention = FlashAttention(decoder.heads, decoder.kv)
    return decoder


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_ragged_rows_and_chunks_in_one_pass_see_their_own_keys(kv_heads: int) -> None:
    """Rows of three slots, one of them absent, behind chunks of another width; slots full to the last token."""
    model, sizes = tiny_model(kv_heads=kv_heads), {"slots": 4, "max_tokens": 21}
    reference, ours = Decoder(model, **sizes), with_flash(Decoder(model, **sizes))
    torch.testing.assert_close(ragged_hidden(ours), ragged_hidden(reference), rtol=0, atol=1e-9)


def test_speculation_gives_the_references_text() -> None:
    texts = []
    for is_flash in (False, True):
        kernels = PairKernels(*tied_pair(tiny_model(), 2, 0.3), tiny_options(batch_buckets=(2, 4)))
        for decoder in (kernels.target, kernels.draft_model):
            if is_flash and decoder is not None:
                with_flash(decoder)
        issuer = kernels.issuer("all")
        slots = [kernels.admit(prompt) for prompt in prompts([5, 9, 7])]
        prefill_in_chunks(kernels, slots, 4, issuer)
        speculate(kernels, slots, 16, (3, 0, 5, 1), issuer)
        texts.append([slot.output for slot in slots])
    assert texts[0] == texts[1]


def test_rows_of_several_queries_read_pages_so_that_their_keys_are_split() -> None:
    """FlashAttention-2 splits the keys of such rows only with a table of pages; so the text is the reference's still,
    and slots that hold no whole pages are one long sequence."""
    model, calls = tiny_model(), []
    for max_tokens, has_pages in ((2 * PAGE_TOKENS, True), (300, False)):
        hidden = []
        for is_flash in (False, True):
            decoder = Decoder(model, slots=3, max_tokens=max_tokens)
            if is_flash:
                attend = with_flash(decoder).attention._attend
                decoder.attention._attend = lambda *args, attend=attend, **more: (
                    calls.append(more) or attend(*args, **more)
                )
            # Behind the first page, and a row in another order of slots.
            decoder.forward(torch.arange(540) * 7 % 61, (rows([2, 0], [0, 0], [270, 270], 270),))
            verify = (rows([0, 2], [270, 265], [5, 5], 5),)
            hidden.append(decoder.forward(torch.arange(10) * 3 % 61, verify))
        torch.testing.assert_close(hidden[1], hidden[0], rtol=0, atol=1e-9)
        assert all(("block_table" in call) is has_pages and call["num_splits"] > 1 for call in calls[-1:])
    assert slot_tokens("cuda", 655) == 3 * PAGE_TOKENS
    assert slot_tokens("cpu", 655) == 655


def test_splits_fill_the_gpu_and_no_more() -> None:
    assert [num_splits(tiles) for tiles in (1, 16, 64, GPU_TILES, 4000)] == [MAX_SPLITS, 8, 2, 1, 1]


@pytest.mark.parametrize("takes_splits", [True, False])
def test_every_call_says_how_many_splits_there_are_where_torch_can_be_told(
    takes_splits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0 would let the kernel choose, by how long the slots are; the operation of torch 2.11 has no such argument."""
    decoder = with_flash(Decoder(tiny_model(), slots=2, max_tokens=64))
    monkeypatch.setattr(decoder.attention, "_takes_splits", takes_splits)
    given: list[dict[str, Any]] = []
    attend = decoder.attention._attend
    decoder.attention._attend = lambda *args, **kwargs: given.append(kwargs) or attend(*args, **kwargs)
    decoder.forward(torch.zeros(2, dtype=torch.int64), (rows([0, 1], [3, 9], [1, 1], 1),))
    assert set().union(*given) == {"scale", "seqused_k"} | ({"num_splits"} if takes_splits else set())
    assert {each.get("num_splits") for each in given} == {num_splits(2 * 2) if takes_splits else None}


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_a_precision_that_a_kernel_does_not_have_is_refused(
    precision: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = Decoder(tiny_model(), slots=2, max_tokens=16)

    class OnCuda:
        device, dtype = torch.device("cuda"), precision

    monkeypatch.setattr(decoder.kv, "keys", OnCuda)
    with pytest.raises(ValueError, match=rf"takes bfloat16 or float16, not {precision}"):
        make_attention(4, decoder.kv)
