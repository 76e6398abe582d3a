# ruff: noqa: E402
"""Shapes, buckets, warm-up and the host's account, on the CPU; a bucketed pass runs here as it would be captured."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from realrun.kernels.device_passes import ChunkShape, PassShape
from realrun.kernels.host_slots import Slot, decoding_shapes
from realrun.kernels.issuer import Issuer
from realrun.kernels.pair_kernels import PairKernels, PromptChunk
from sim.interface.work import Kind, Model
from tests.realrun.support import prefill_in_chunks, prefilled, prompts, speculate, tied_pair, tiny_model, tiny_options


def tiny_kernels(**options: Any) -> PairKernels:
    return PairKernels(*tied_pair(tiny_model(), 2, 0.3), tiny_options(**options))


def decoding(lengths: tuple[int, ...], **options: Any) -> tuple[PairKernels, list[Slot], Issuer]:
    return prefilled(tied_pair(tiny_model(), 2, 0.3), lengths, 16, **options)


def admitted(kernels: PairKernels, lengths: tuple[int, ...]) -> list[Slot]:
    return [kernels.admit(prompt) for prompt in prompts(lengths)]


def spy_on(issuer: Issuer) -> list[PassShape]:
    """The shapes that the issuer is asked for from now on."""
    shapes: list[PassShape] = []
    issue = issuer.issue

    def noted(shape: PassShape, rows: Any) -> Any:
        shapes.append(shape)
        return issue(shape, rows)

    issuer.issue = noted  # type: ignore[method-assign]
    return shapes


def test_chunks_of_equal_length_share_a_rectangle_and_none_is_padded() -> None:
    kernels = tiny_kernels()
    issuer = kernels.issuer("all")
    a, b, c, d = admitted(kernels, (5, 9, 5, 20))
    submitted = kernels.prefill([PromptChunk(a, 5), PromptChunk(b, 4), PromptChunk(c, 5), PromptChunk(d, 5)], issuer)
    assert submitted.plan.shape == PassShape(
        Kind.PREFILL, Model.TARGET, chunks=(ChunkShape(2, 5, True), ChunkShape(1, 4, False), ChunkShape(1, 5, False))
    )
    assert submitted.plan.shape.num_tokens == 5 + 4 + 5 + 5
    assert [len(row.tokens) for row in submitted.result()] == [1, 0, 1, 0]


def test_decoding_rows_are_padded_to_the_longest_draft_and_to_a_bucket() -> None:
    kernels, slots, issuer = decoding((6, 9, 4), batch_buckets=(2, 4))
    kernels.draft(slots[:1], 4, issuer)
    verify = kernels.verify(slots, issuer)
    assert verify.plan.shape == PassShape(Kind.VERIFY, Model.TARGET, rows=4, width=5)
    assert [row[1] for row in verify.plan.inputs] == [5, 1, 1, 0]
    assert len(verify.result()) == 3


def test_a_mixed_step_has_room_for_padded_rows_and_the_prompts_of_all_other_slots() -> None:
    """4 slots: 3 rows padded to 4, and a chunk."""
    kernels = tiny_kernels(slots=4, batch_buckets=(4,))
    issuer = kernels.issuer("all")
    *decoding, joining = admitted(kernels, (6, 9, 4, 5))
    prefill_in_chunks(kernels, decoding, 16, issuer)
    step = kernels.verify(decoding, issuer, chunks=[PromptChunk(joining, 5)])
    assert step.plan.shape.num_rows == 5
    assert [len(row.tokens) for row in step.result()] == [1, 1, 1, 1]


def test_lanes_of_one_name_and_priority_share_a_stream() -> None:
    kernels = tiny_kernels()
    verify = kernels.issuer("verify", priority=1)
    assert kernels.issuer("verify", priority=1) is verify
    assert len({id(each) for each in (verify, kernels.issuer("verify"), kernels.issuer("draft", priority=1))}) == 3


def test_listed_shapes_are_all_that_a_bucketed_loop_ever_issues() -> None:
    kernels, slots, issuer = decoding((6, 9, 4, 12, 3), batch_buckets=(1, 2, 6))
    shapes = spy_on(issuer)
    speculate(kernels, slots, 24, (4, 2, 4, 1, 2, 4, 2), issuer)
    listed = decoding_shapes(kernels.options, (1, 2, 4), has_draft=True)
    assert set(shapes) <= set(listed)
    assert len(listed) == len(set(listed)) == 3 * (3 * 2 + 5)


def test_warming_up_touches_no_request() -> None:
    kernels, _, issuer = decoding((6, 9, 4), batch_buckets=(2, 6))
    assert kernels.draft_model is not None

    def state() -> list[Any]:
        tensors = [kernels.sequences.tokens, kernels.sequences.lengths]
        for decoder in (kernels.target, kernels.draft_model):
            tensors += [decoder.kv.lengths, decoder.kv.keys.transpose(0, 1), decoder.kv.values.transpose(0, 1)]
        return [tensor[: kernels.sequences.scratch].clone() for tensor in tensors]

    before = state()
    shapes = decoding_shapes(kernels.options, (1, 3), has_draft=True)
    prompts_end, prompts_go_on = ChunkShape(2, 8, True), ChunkShape(1, 5, False)
    shapes.append(PassShape(Kind.STEP, Model.TARGET, 2, 3, chunks=(prompts_end, prompts_go_on)))
    shapes.append(PassShape(Kind.PREFILL, Model.DRAFT, chunks=(prompts_go_on,)))
    kernels.warm(issuer, shapes)
    assert issuer.warmed >= set(shapes)
    assert all(torch.equal(old, new) for old, new in zip(before, state(), strict=True))
    for decoder in (kernels.target, kernels.draft_model):
        assert bool(decoder.kv.keys.isfinite().all())
        assert int(decoder.kv.lengths[-1]) == 0
    assert int(kernels.sequences.lengths[-1]) == 1


def test_static_buffers_stay_where_they_are() -> None:
    kernels = tiny_kernels()
    issuer = kernels.issuer("all")
    slots = admitted(kernels, (6, 9, 4))
    tensors = [kernels.target.kv.keys, kernels.target.kv.values, kernels.sequences.tokens]
    before = [tensor.data_ptr() for tensor in tensors]
    prefill_in_chunks(kernels, slots, 16, issuer)
    speculate(kernels, slots, 10, (4, 2), issuer)
    after = [kernels.target.kv.keys, kernels.target.kv.values, kernels.sequences.tokens]
    assert [tensor.data_ptr() for tensor in after] == before


def test_a_pair_without_a_common_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="must share vocabulary, dtype and device"):
        PairKernels(tiny_model(), tiny_model(vocab=60), tiny_options())
