# ruff: noqa: E402
"""Commit and roll-back per row: KV after a rejected draft is KV that never saw it."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from realrun.kernels.host_slots import Slot
from realrun.kernels.pair_kernels import PairKernels
from realrun.model.kv import SlottedKv
from tests.properties import some
from tests.realrun.support import prefilled, tied_pair, tiny_model


def rolling() -> tuple[PairKernels, list[Slot], Any]:
    return prefilled(tied_pair(tiny_model(), 2, 0.4), [6, 11, 4])


def held(kv: SlottedKv, slot: Slot) -> tuple[Any, Any]:
    """Copies of what a row holds, [layers, tokens, kv_heads, head_dim] each."""
    length = int(kv.lengths[slot.index])
    keys, values = kv.keys[:, slot.index], kv.values[:, slot.index]
    return keys[:, :length].clone(), values[:, :length].clone()


def test_kv_after_rejections_is_kv_that_never_drafted() -> None:
    """One side drafts and verifies, rejections among it; the other decodes the same number of tokens one by one."""
    speculating, ours, issuer = rolling()
    rejected = 0
    for draft_tokens in (4, 3, 5):
        speculating.draft(ours, draft_tokens, issuer)
        rejected += sum(draft_tokens - row.accepted for row in speculating.verify(ours, issuer).result())
    assert rejected > 0
    plain, theirs, plain_issuer = rolling()
    while lagging := [b for a, b in zip(ours, theirs, strict=True) if len(b.output) < len(a.output)]:
        plain.verify(lagging, plain_issuer).result()
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.output == other.output
        for got, wanted in zip(held(speculating.target.kv, mine), held(plain.target.kv, other), strict=True):
            torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


def test_a_discarded_draft_leaves_both_caches_bit_for_bit() -> None:
    kernels, slots, issuer = rolling()
    caches = (kernels.target.kv, some(kernels.draft_model).kv)
    before = [held(kv, slot) for kv in caches for slot in slots]
    kernels.draft(slots, 5, issuer)
    for slot in slots:
        slot.drafted = 0
    after = [held(kv, slot) for kv in caches for slot in slots]
    for (keys, values), (kept_keys, kept_values) in zip(before, after, strict=True):
        assert torch.equal(keys, kept_keys[:, : keys.shape[1]])
        assert torch.equal(values, kept_values[:, : values.shape[1]])
    kernels.verify(slots, issuer).result()
    once_more, others, other_issuer = rolling()
    once_more.verify(others, other_issuer).result()
    for slot, other in zip(slots, others, strict=True):
        assert slot.output == other.output
        for got, wanted in zip(held(kernels.target.kv, slot), held(once_more.target.kv, other), strict=True):
            assert torch.equal(got, wanted)


def test_rows_advance_by_different_amounts_and_lengths_say_so() -> None:
    kernels, slots, issuer = rolling()
    before = kernels.target.kv.lengths.tolist()
    assert [before[slot.index] for slot in slots] == [6, 11, 4]
    kernels.draft(slots, 4, issuer)
    results = kernels.verify(slots, issuer, forced=[0, 4, 2]).result()
    assert [result.accepted for result in results] == [0, 4, 2]
    target, draft = kernels.target.kv.lengths.tolist(), some(kernels.draft_model).kv.lengths.tolist()
    assert [target[slot.index] for slot in slots] == [7, 16, 7]
    # The draft model read three of its four tokens: fully accepted, it lacks the fourth and the bonus.
    assert [draft[slot.index] for slot in slots] == [7, 15, 7]
    assert [slot.draft_lag for slot in slots] == [1, 2, 1]
    assert [slot.known_tokens for slot in slots] == [8, 17, 8]


def test_a_shortened_draft_is_verified_at_the_length_it_was_cut_to() -> None:
    kernels, slots, issuer = rolling()
    kernels.draft(slots, 5, issuer)
    slots[1].drafted = 2
    results = kernels.verify(slots, issuer, forced=[5, 5, 5]).result()
    assert [result.accepted for result in results] == [5, 2, 5]


def test_a_draft_after_plain_decodes_catches_up_on_all_of_them() -> None:
    """Speculation switched off and on again: the draft model lacks every token decoded meanwhile."""
    kernels, slots, issuer = rolling()
    for _ in range(3):
        kernels.verify(slots[:2], issuer).result()
    assert [slot.draft_lag for slot in slots] == [4, 4, 1]
    draft = kernels.draft(slots, 2, issuer)
    assert draft.plan.shape.width == 4
    verify = kernels.verify(slots, issuer, forced=[2, 0, 2])
    assert [slot.draft_lag for slot in slots] == [2, 2, 2]
    verify.result()
    assert [slot.draft_lag for slot in slots] == [2, 1, 2]
    lengths = some(kernels.draft_model).kv.lengths.tolist()
    assert [lengths[slot.index] for slot in slots] == [slot.known_tokens - slot.draft_lag for slot in slots]
