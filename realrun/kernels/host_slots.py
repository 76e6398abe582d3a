"""Sizes of a pair, the host's account of its slots, and what it makes of a pass: shape, inputs, results.

Passes may be issued before the results of earlier ones are back, so until then the account holds bounds: enough to
choose a shape. Pure but for the account itself; no tensors. Not here: issuing (realrun.kernels.pair_kernels).

`known` tokens are prompt and emitted ones. Between rounds the target's KV lacks the newest, the draft's often more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from realrun.host.device import Event
from realrun.kernels.device_passes import NOT_FORCED, ChunkShape, PassShape
from sim.interface.work import Kind, Model


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOptions:
    """Sizes, and how passes are padded and captured."""

    slots: int
    """Requests in KV at once."""
    max_tokens: int
    """Tokens per slot, prompt, output and drafts in flight."""
    draft_tokens_max: int = 8
    seed: int = 0
    """Seed of the noise in unwritten KV."""
    batch_buckets: tuple[int, ...] = ()
    """Numbers of decoding rows that passes are padded to; empty pads none."""
    cuda_graphs: bool = False
    """Capture draft and verify passes at warm-up; needs buckets, or every number of rows would be its own."""

    @property
    def max_rows(self) -> int:
        """Rows of the largest pass: decoding ones padded to the largest bucket, and prompts of all other slots."""
        return self.slots + max(self.batch_buckets, default=0)

    def padded_rows(self, num_rows: int) -> int:
        if not self.batch_buckets or not num_rows:
            return num_rows
        return next(bucket for bucket in self.batch_buckets if bucket >= num_rows)


def doubling(most: int) -> tuple[int, ...]:
    """Buckets 1, 2, 4, ... and `most`."""
    return tuple(sorted({*(1 << power for power in range(most.bit_length()) if 1 << power < most), most}))


def decoding_shapes(options: PairOptions, draft_lengths: Sequence[int], *, has_draft: bool) -> list[PassShape]:
    """Every draft and verify shape for these draft lengths, largest first, so that the allocator's blocks serve the
    smaller ones too. Rows may have shorter drafts, and drafts a catch-up token."""
    longest = max(draft_lengths, default=0) if has_draft else 0
    shapes = []
    for rows in reversed(options.batch_buckets):
        for draft_tokens in sorted({length for length in draft_lengths if has_draft and length}, reverse=True):
            for width in (2, 1):
                shapes.append(PassShape(Kind.DRAFT, Model.DRAFT, rows, width, draft_tokens))
        for width in range(longest + 1, 0, -1):
            shapes.append(PassShape(Kind.VERIFY, Model.TARGET, rows, width))
    return shapes


@dataclass(slots=True, eq=False)
class Slot:
    index: int
    prompt_tokens: int
    known_tokens: int
    """Prompt and emitted tokens, as far as results have come back."""
    draft_lag: int
    """Most known tokens that the draft model lacks in KV, the newest included; below 1 while its KV is a draft ahead.

    After full acceptance it is 2: the draft model emitted the last drafted token but never read it."""
    prefilled_target: int = 0
    """Prompt tokens in the target's KV once the passes issued so far are over."""
    prefilled_draft: int = 0
    max_new_tokens: int = 0
    """Most tokens that passes in flight may still emit."""
    drafted: int = 0
    """Length of the draft that the next verify takes along. The caller may shorten it, or forget the draft with 0."""
    output: list[int] = field(default_factory=list)
    """Emitted tokens, as far as results have come back."""
    admission: Event | None = None
    """Event after which the device has the prompt."""
    streams: set[object] = field(default_factory=set)
    """Issuers whose streams come after `admission`."""

    @property
    def known_tokens_bound(self) -> int:
        return self.known_tokens + self.max_new_tokens

    @property
    def is_prefilled(self) -> bool:
        return self.prefilled_target == self.prompt_tokens


class PromptChunk(NamedTuple):
    """The next `new_tokens` of a slot's prompt."""

    slot: Slot
    new_tokens: int


class RowResult(NamedTuple):
    accepted: int
    """Drafted tokens accepted; 0 for a chunk."""
    tokens: list[int]
    """Tokens emitted: the accepted ones and one more; of a chunk the first token, or none before the prompt's end."""


class PassPlan(NamedTuple):
    shape: PassShape
    inputs: list[tuple[int, int, int]]
    """One per row of the shape, as realrun.kernels.device_passes.InputColumn."""
    chunk_rows: list[int]
    """Row of the shape of each chunk."""
    draft_lags: list[int]
    """Lags of the decoding rows, before the pass."""


def plan_draft(
    slots: Sequence[Slot], chunks: Sequence[PromptChunk], draft_tokens: int, options: PairOptions
) -> PassPlan:
    """A draft of `draft_tokens` for each of `slots`, or with no slots the draft model's prefill alone."""
    rows = [(slot.index, 0, NOT_FORCED) for slot in slots]
    width = max((slot.draft_lag for slot in slots if slot.draft_lag > 0), default=1)
    _check_room(slots, max(draft_tokens, width - 1), options)
    kind = Kind.DRAFT if slots else Kind.PREFILL
    shape = PassShape(kind, Model.DRAFT, options.padded_rows(len(slots)), width, draft_tokens)
    plan = _with_chunks(shape, rows, chunks, options)
    for slot in slots:
        slot.drafted, slot.draft_lag = draft_tokens, 1 - draft_tokens
    for slot, new_tokens in chunks:
        slot.prefilled_draft += new_tokens
        slot.draft_lag -= new_tokens
    return plan


def plan_target(
    slots: Sequence[Slot], chunks: Sequence[PromptChunk], forced: Sequence[int] | None, options: PairOptions
) -> PassPlan:
    """Verify the drafts of `slots` (decode where there is none) and prefill `chunks`."""
    for slot in slots:
        assert slot.is_prefilled, f"slot {slot.index} decodes before its prompt is in KV"
    dictated = forced if forced is not None else [NOT_FORCED] * len(slots)
    rows = [(slot.index, slot.drafted + 1, wanted) for slot, wanted in zip(slots, dictated, strict=True)]
    kind = Kind.PREFILL if not slots else Kind.STEP if chunks else Kind.VERIFY
    width = max((slot.drafted + 1 for slot in slots), default=1)
    _check_room(slots, width - 1, options)
    shape = PassShape(kind, Model.TARGET, options.padded_rows(len(slots)), width)
    plan = _with_chunks(shape, rows, chunks, options)
    plan.draft_lags.extend(slot.draft_lag for slot in slots)
    for slot in slots:
        slot.max_new_tokens += slot.drafted + 1
        slot.draft_lag = _lag_after(slot.draft_lag, slot.drafted)
        slot.drafted = 0
    for slot, new_tokens in chunks:
        slot.prefilled_target += new_tokens
        if slot.is_prefilled:
            slot.max_new_tokens += 1
            slot.draft_lag += 1
    return plan


def record_results(
    plan: PassPlan, slots: Sequence[Slot], chunks: Sequence[PromptChunk], values: Sequence[Sequence[int]]
) -> list[RowResult]:
    """Enter a target pass's results [rows][1 + width] into the account; passes of one slot in the order of issue."""
    results = []
    for slot, (_, count, _), row, lag in zip(slots, plan.inputs, values, plan.draft_lags, strict=False):
        accepted = row[0]
        tokens = list(row[1 : 2 + accepted])
        # In this order: another thread may plan meanwhile, and too large a bound does no harm.
        slot.known_tokens += len(tokens)
        slot.max_new_tokens -= count
        slot.output += tokens
        # Exact once nothing else is on its way: no later verify, and no draft, which would have left a lag below 1.
        if slot.max_new_tokens == 0 and slot.draft_lag == _lag_after(lag, count - 1):
            slot.draft_lag = _lag_after(lag, accepted)
        results.append(RowResult(accepted, tokens))
    for (slot, _), row_index in zip(chunks, plan.chunk_rows, strict=True):
        tokens = [token for token in values[row_index][1:2] if token >= 0]
        slot.known_tokens += len(tokens)
        slot.max_new_tokens -= len(tokens)
        slot.output += tokens
        results.append(RowResult(0, tokens))
    return results


def _with_chunks(
    shape: PassShape,
    rows: list[tuple[int, int, int]],
    chunks: Sequence[PromptChunk],
    options: PairOptions,
) -> PassPlan:
    """Add absent rows up to the bucket, then the chunks, equal lengths together, in order of first appearance."""
    inputs = rows + [(options.slots, 0, NOT_FORCED)] * (shape.rows - len(rows))
    alike: dict[tuple[int, bool], list[int]] = {}
    for number, (slot, new_tokens) in enumerate(chunks):
        is_end = _end_of_chunk(slot, new_tokens, shape.model) == slot.prompt_tokens
        is_sampled = shape.model is Model.TARGET and is_end
        alike.setdefault((new_tokens, is_sampled), []).append(number)
    chunk_shapes, chunk_rows = [], [0] * len(chunks)
    for (new_tokens, is_sampled), members in alike.items():
        chunk_shapes.append(ChunkShape(len(members), new_tokens, is_sampled))
        for number in members:
            chunk_rows[number] = len(inputs)
            inputs.append((chunks[number].slot.index, new_tokens, NOT_FORCED))
    return PassPlan(shape._replace(chunks=tuple(chunk_shapes)), inputs, chunk_rows, [])


def _lag_after(lag: int, accepted: int) -> int:
    """Tokens the draft model lacks when `accepted` and one more have become known; what was rejected it forgets."""
    return max(1, lag + accepted + 1)


def _end_of_chunk(slot: Slot, new_tokens: int, model: Model) -> int:
    done = slot.prefilled_target if model is Model.TARGET else slot.prefilled_draft
    assert 0 < new_tokens <= slot.prompt_tokens - done, (new_tokens, done, slot.prompt_tokens)
    return done + new_tokens


def _check_room(slots: Sequence[Slot], more_tokens: int, options: PairOptions) -> None:
    """Every slot has room for `more_tokens` behind its known ones: rows are padded to the longest draft of the pass."""
    most = max((slot.known_tokens_bound for slot in slots), default=0)
    assert not slots or most + more_tokens <= options.max_tokens, (most, more_tokens)
