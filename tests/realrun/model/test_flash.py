# ruff: noqa: E402
"""What the flash kernels are told: a plain one that obeys the same arguments gives what the reference gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from realrun.kernels.pair_kernels import PairKernels
from realrun.model.attention import (
    GPU_TILES,
    MAX_SPLITS,
    Attention,
    Flash3Attention,
    FlashAttention,
    Rectangle,
    make_attention,
    num_splits,
)
from realrun.model.decoder import Decoder
from realrun.model.weights import tied_pair
from tests.realrun.flash import flash_operations
from tests.realrun.support import prefill_in_chunks, prompts, speculate, tiny_model, tiny_options

KERNELS = [FlashAttention, Flash3Attention]


@pytest.fixture(autouse=True)
def operations() -> Iterator[None]:
    with flash_operations(), torch.no_grad():
        yield


def with_kernel(decoder: Decoder, kernel: Any) -> Decoder:
    """Made past the checks: the plain kernels take any precision."""
    decoder.attention = kernel(decoder.heads, decoder.kv)
    return decoder


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_ragged_rows_and_chunks_in_one_pass_see_their_own_keys(kernel: Any, kv_heads: int) -> None:
    """Rows of three slots, one of them absent, behind chunks of another width; slots full to the last token."""
    model, hidden = tiny_model(kv_heads=kv_heads), []
    for decoder in (
        Decoder(model, slots=4, max_tokens=21, attention=Attention.MATH),
        Decoder(model, slots=4, max_tokens=21, attention=Attention.MATH),
    ):
        if hidden:
            with_kernel(decoder, kernel)
        parts = []
        for rectangles in (
            (rows([2, 0], [0, 0], [16, 16], 16), rows([3], [0], [9], 9)),
            (rows([4, 2, 3], [0, 16, 9], [0, 5, 2], 5), rows([1], [0], [6], 6), rows([0], [16], [4], 4)),
        ):
            tokens = torch.arange(sum(rectangle.num_tokens for rectangle in rectangles)) * 7 % 61
            parts.append(decoder.forward(tokens, rectangles))
        # What absent rows and padding give is nobody's.
        hidden.append(torch.cat((parts[0], parts[1][5:12], parts[1][15:])))
    torch.testing.assert_close(hidden[1], hidden[0], rtol=0, atol=1e-9)


def rows(slots: list[int], starts: list[int], counts: list[int], width: int) -> Rectangle:
    return Rectangle(torch.tensor(slots), torch.tensor(starts), torch.tensor(counts), width)


@pytest.mark.parametrize("kernel", KERNELS)
def test_speculation_gives_the_references_text(kernel: Any) -> None:
    texts = []
    for is_flash in (False, True):
        kernels = PairKernels(*tied_pair(tiny_model(), 2, 0.3), tiny_options(batch_buckets=(2, 4)))
        for decoder in (kernels.target, kernels.draft_model):
            if is_flash and decoder is not None:
                with_kernel(decoder, kernel)
        issuer = kernels.issuer("all")
        slots = [kernels.admit(prompt, number) for number, prompt in enumerate(prompts([5, 9, 7]))]
        prefill_in_chunks(kernels, slots, 4, issuer)
        speculate(kernels, slots, 16, (3, 0, 5, 1), issuer)
        texts.append([slot.output for slot in slots])
    assert texts[0] == texts[1]


def test_every_call_says_how_many_splits_there_are() -> None:
    """0 would let the kernel choose, by how long the slots are."""
    given: list[dict[str, Any]] = []
    decoder = with_kernel(Decoder(tiny_model(), slots=2, max_tokens=64, attention=Attention.MATH), Flash3Attention)
    attend = decoder.attention._attend
    decoder.attention._attend = lambda *args, **kwargs: given.append(kwargs) or attend(*args, **kwargs)
    decoder.forward(torch.zeros(2, dtype=torch.int64), (rows([0, 1], [3, 9], [1, 1], 1),))
    assert {each["num_splits"] for each in given} == {num_splits(2 * 2)}


def test_splits_fill_the_gpu_and_no_more() -> None:
    assert [num_splits(tiles) for tiles in (1, 16, 64, GPU_TILES, 4000)] == [MAX_SPLITS, 8, 2, 1, 1]


def test_a_torch_that_splits_by_its_own_rule_is_not_told_how(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.11: the operation has no such argument."""
    decoder = with_kernel(Decoder(tiny_model(), slots=2, max_tokens=64, attention=Attention.MATH), FlashAttention)
    monkeypatch.setattr(decoder.attention, "_takes_splits", False)
    given: list[dict[str, Any]] = []
    attend = decoder.attention._attend
    decoder.attention._attend = lambda *args, **kwargs: given.append(kwargs) or attend(*args, **kwargs)
    decoder.forward(torch.zeros(2, dtype=torch.int64), (rows([0, 1], [3, 9], [1, 1], 1),))
    assert set().union(*given) == {"scale", "seqused_k"}


@pytest.mark.parametrize("attention", [Attention.FLASH, Attention.FLASH_3])
def test_a_precision_that_a_kernel_does_not_have_is_refused(
    attention: Attention, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = Decoder(tiny_model(), slots=2, max_tokens=16, attention=Attention.MATH)

    class OnCuda:
        device, dtype = torch.device("cuda"), torch.float64

    monkeypatch.setattr(decoder.kv, "keys", OnCuda)
    with pytest.raises(ValueError, match=r"takes bfloat16.*, not torch.float64; use 'math'"):
        make_attention(attention, heads=4, kv=decoder.kv)


def test_a_missing_flash_3_is_one_line_that_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from realrun.model.attention import flash_3

    monkeypatch.setitem(__import__("sys").modules, "fa3_fwd_interface", None)
    with pytest.raises(
        ValueError, match=r"needs the package fa3-fwd .*pip install 'lanesim\[gpu-fa3\]', or use 'flash'"
    ):
        flash_3()
