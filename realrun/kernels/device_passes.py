"""The device half of every pass: a function of a shape and of a few integers per row, nothing read back on the way.

No operation here waits for the device, copies from ordinary host memory (a scalar in torch.where would) or has a shape
that depends on data: each may stand in a captured graph.

Starts and lengths come from the device's account of each slot's request, its tokens and how many are known, so a pass
may be issued, captured in a CUDA graph and replayed without knowing what the passes before it accepted. Drafted tokens
lie right behind the known ones until they are verified. Not here: KV (realrun.model.kv), choosing shapes and keeping
the host's account (realrun.kernels.pair_kernels), streams and graphs (realrun.kernels.issuer).

How tokens are packed: rows that decode or verify form one rectangle padded to the longest; prompt chunks of equal
length share a rectangle, so they carry no padding. Body and attention see all rectangles of a pass at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import torch
from torch.nn import functional

from realrun.model.attention import Rectangle
from realrun.model.decoder import Decoder
from sim.interface.work import Kind, Model


class InputColumn(IntEnum):
    """Columns of a pass's inputs, int64 [rows, 3]."""

    SLOT = 0
    COUNT = 1
    """Query tokens of the row; not read for drafting rows, which take what their KV lacks."""
    FORCED = 2
    """Verify rows: accepted drafted tokens dictated from outside (a tape), or NOT_FORCED."""


NOT_FORCED = -1
NO_TOKEN = -1


class Sequences:
    """Tokens and lengths of all slots on the device, scratch slot last."""

    def __init__(self, slots: int, max_tokens: int, device: torch.device) -> None:
        self.scratch = slots
        self.tokens = torch.zeros(slots + 1, max_tokens + 1, dtype=torch.int64, device=device)
        self.lengths = torch.ones(slots + 1, dtype=torch.int64, device=device)
        """Known tokens [slots + 1]; the scratch slot's stays 1."""
        self._last = max_tokens

    def admit(self, slot: int, prompt: torch.Tensor) -> None:
        """Put a prompt [tokens], pinned, into a slot. Not for slots with passes in flight."""
        self.tokens[slot, : len(prompt)].copy_(prompt, non_blocking=True)
        self.lengths[slot].fill_(len(prompt))

    def read(self, slots: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Tokens at positions [rows, width] of slots [rows]."""
        return self.tokens[slots.unsqueeze(1), positions.clamp(max=self._last)]

    def put(self, slots: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor) -> None:
        """Store one token per row; all [rows]."""
        self.tokens[slots, positions.clamp(max=self._last)] = tokens

    def grow(self, slots: torch.Tensor, lengths: torch.Tensor) -> None:
        """Rows now hold `lengths` [rows] known tokens."""
        self.lengths[slots] = lengths.masked_fill(slots == self.scratch, 1)


class ChunkShape(NamedTuple):
    """Prompt chunks of one length: one rectangle without padding."""

    rows: int
    width: int
    is_sampled: bool
    """These chunks end their prompts: the target emits the first token."""


class PassShape(NamedTuple):
    """All that a pass's kernels depend on, contexts aside; key of warm-up and of captured graphs."""

    kind: Kind
    model: Model
    rows: int = 0
    width: int = 1
    """Query tokens per decoding row, padding included (of the first pass, for a draft)."""
    draft_tokens: int = 0
    chunks: tuple[ChunkShape, ...] = ()

    @property
    def num_rows(self) -> int:
        return self.rows + sum(chunk.rows for chunk in self.chunks)

    @property
    def num_tokens(self) -> int:
        """Tokens through the body, padding included (of the first pass, for a draft)."""
        return self.rows * self.width + sum(chunk.rows * chunk.width for chunk in self.chunks)


class Passes:
    def __init__(self, target: Decoder, draft: Decoder | None, sequences: Sequences) -> None:
        self.target, self.draft, self.sequences = target, draft, sequences
        self._steps = torch.arange(target.kv.max_tokens, device=target.device)

    def run(self, shape: PassShape, inputs: torch.Tensor) -> torch.Tensor:
        """Results [rows, 1 + width]: accepted tokens, then the tokens emitted (NO_TOKEN beyond)."""
        if shape.model is Model.DRAFT:
            return self.run_draft(shape, inputs)
        return self.run_target(shape, inputs)

    def run_target(self, shape: PassShape, inputs: torch.Tensor) -> torch.Tensor:
        """Verify or decode the rows, prefill the chunks, commit both."""
        kv = self.target.kv
        slots = inputs[: shape.rows, InputColumn.SLOT]
        rectangles = []
        if shape.rows:
            counts = inputs[: shape.rows, InputColumn.COUNT]
            rectangles.append(Rectangle(slots, kv.lengths[slots], counts, shape.width))
        rectangles += self._chunk_rectangles(self.target, shape, inputs)
        hidden = self._forward(self.target, rectangles)
        for rectangle in rectangles[1 if shape.rows else 0 :]:
            kv.set_lengths(rectangle.slots, rectangle.starts + rectangle.counts)

        is_sampled = [chunk.is_sampled for chunk in shape.chunks]
        if shape.rows:
            is_sampled.insert(0, False)
        parts = hidden.split([rectangle.num_tokens for rectangle in rectangles])
        sampled = [_last(r, part) for r, part, yes in zip(rectangles, parts, is_sampled, strict=True) if yes]
        heads = [parts[0], *sampled] if shape.rows else sampled
        results = inputs.new_full((shape.num_rows, 1 + shape.width), NO_TOKEN)
        results[:, 0].zero_()
        if not heads:
            return results
        logits = self.target.head(torch.cat(heads) if len(heads) > 1 else heads[0])
        if shape.rows:
            by_row = logits[: len(parts[0])].view(shape.rows, shape.width, -1)
            results[: shape.rows] = self._commit_rows(inputs[: shape.rows], by_row)
        self._commit_first_tokens(shape, inputs, logits[shape.rows * shape.width :], results)
        return results

    def run_draft(self, shape: PassShape, inputs: torch.Tensor) -> torch.Tensor:
        """Prefill the chunks and draft `draft_tokens` per row; a row's first pass catches up on what its KV lacks."""
        decoder = self.draft
        assert decoder is not None, "draft pass without a draft model"
        kv, sequences = decoder.kv, self.sequences
        slots = inputs[: shape.rows, InputColumn.SLOT]
        is_present = (slots != kv.scratch).long()
        known = sequences.lengths[slots]
        rectangles = []
        if shape.rows:
            starts = torch.minimum(kv.lengths[slots], known - 1)
            counts = (known - starts) * is_present
            rectangles.append(Rectangle(slots, starts, counts, shape.width))
        rectangles += self._chunk_rectangles(decoder, shape, inputs)
        hidden = self._forward(decoder, rectangles)
        for rectangle in rectangles[1 if shape.rows else 0 :]:
            kv.set_lengths(rectangle.slots, rectangle.starts + rectangle.counts)
        if shape.rows:
            hidden = _last(rectangles[0], hidden[: shape.rows * shape.width])
            for depth in range(shape.draft_tokens):
                tokens = decoder.head(hidden).argmax(-1)
                sequences.put(slots, known + depth, tokens)
                if depth + 1 < shape.draft_tokens:
                    step = Rectangle(slots, known + depth, is_present, 1)
                    hidden = decoder.forward(tokens, (step,))
            kv.set_lengths(slots, known + (max(shape.draft_tokens, 1) - 1))
        return inputs.new_zeros((shape.num_rows, 0))

    def _chunk_rectangles(self, decoder: Decoder, shape: PassShape, inputs: torch.Tensor) -> list[Rectangle]:
        rectangles, first = [], shape.rows
        for chunk in shape.chunks:
            rows = inputs[first : first + chunk.rows]
            slots = rows[:, InputColumn.SLOT]
            rectangles.append(Rectangle(slots, decoder.kv.lengths[slots], rows[:, InputColumn.COUNT], chunk.width))
            first += chunk.rows
        return rectangles

    def _forward(self, decoder: Decoder, rectangles: Sequence[Rectangle]) -> torch.Tensor:
        read = [self.sequences.read(part.slots, decoder.positions(part)).flatten() for part in rectangles]
        return decoder.forward(torch.cat(read) if len(read) > 1 else read[0], rectangles)

    def _commit_first_tokens(
        self, shape: PassShape, inputs: torch.Tensor, logits: torch.Tensor, results: torch.Tensor
    ) -> None:
        """Emit the first token of every chunk that ends its prompt; logits [their rows, vocab]."""
        first_row, first_logits = shape.rows, 0
        for chunk in shape.chunks:
            rows = slice(first_row, first_row + chunk.rows)
            first_row += chunk.rows
            if not chunk.is_sampled:
                continue
            slots = inputs[rows, InputColumn.SLOT]
            known = self.sequences.lengths[slots]
            tokens = logits[first_logits : first_logits + chunk.rows].argmax(-1)
            first_logits += chunk.rows
            self.sequences.put(slots, known, tokens)
            self.sequences.grow(slots, known + 1)
            results[rows, 1] = tokens

    def _commit_rows(self, inputs: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Accept drafts as far as the target chooses them, emit one more, roll back; logits [rows, width, vocab]."""
        sequences, width = self.sequences, logits.shape[1]
        slots, forced = inputs[:, InputColumn.SLOT], inputs[:, InputColumn.FORCED]
        draft_lengths = (inputs[:, InputColumn.COUNT] - 1).clamp(min=0)
        known = sequences.lengths[slots]
        positions = known.unsqueeze(1) + self._steps[: width - 1]
        drafted = sequences.read(slots, positions)
        choices = logits.argmax(-1)
        in_draft = self._steps[: width - 1] < draft_lengths.unsqueeze(1)
        accepted = ((choices[:, :-1] == drafted) & in_draft).long().cumprod(1).sum(1)
        accepted = torch.where(forced >= 0, torch.minimum(forced, draft_lengths), accepted)
        newest = choices.gather(1, accepted.unsqueeze(1)).squeeze(1)
        sequences.put(slots, known + accepted, newest)
        sequences.grow(slots, known + accepted + 1)
        self.target.kv.set_lengths(slots, known + accepted)
        if self.draft is not None:
            draft_kv = self.draft.kv
            draft_kv.set_lengths(slots, torch.minimum(draft_kv.lengths[slots], known + accepted))
        steps = self._steps[:width]
        emitted = torch.where(steps == accepted.unsqueeze(1), newest.unsqueeze(1), functional.pad(drafted, (0, 1)))
        emitted = emitted.masked_fill(steps > accepted.unsqueeze(1), NO_TOKEN)
        return torch.cat((accepted.unsqueeze(1), emitted), dim=1)


def _last(rectangle: Rectangle, hidden: torch.Tensor) -> torch.Tensor:
    """Output [rows, hidden] at each row's last token, from [rows * width, hidden]."""
    by_row = hidden.view(len(rectangle.slots), rectangle.width, -1)
    last = (rectangle.counts - 1).clamp(min=0)
    return by_row[torch.arange(len(last), device=last.device), last]
