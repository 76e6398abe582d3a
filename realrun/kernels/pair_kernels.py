"""Real prefill, draft, verify, decode and mixed passes of a model pair: the host half.

`PairKernels` keeps the host's account of every slot, picks the shape of each pass and hands it to an issuer. It has no
policy, no thread and no clock: who calls it decides what runs when.
Not here: what the device computes (realrun.kernels.device_passes), streams and graphs (realrun.kernels.issuer).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from realrun.host import cuda
from realrun.host.device import DeviceStream, RealDevice
from realrun.kernels import host_slots
from realrun.kernels.device_passes import Passes, PassShape, Sequences
from realrun.kernels.host_slots import PairOptions, PromptChunk, RowResult, Slot
from realrun.kernels.issuer import Issuer, Pending
from realrun.model.decoder import Decoder
from sim.interface.work import Kind, Model

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Submitted:
    """A pass on its way. `result` settles the host's account of its rows, once; call it for every target pass."""

    def __init__(
        self, pending: Pending, plan: host_slots.PassPlan, slots: Sequence[Slot], chunks: Sequence[PromptChunk]
    ) -> None:
        self.pending = pending
        self.plan = plan
        self._slots, self._chunks = tuple(slots), tuple(chunks)
        self._result: list[RowResult] | None = None

    def result(self) -> list[RowResult]:
        """A RowResult per row, then per chunk, once the device is done. Draft passes give none."""
        if self._result is None:
            values = self.pending.values()
            is_target = self.plan.shape.model is Model.TARGET
            self._result = host_slots.record_results(self.plan, self._slots, self._chunks, values) if is_target else []
        return self._result


class PairKernels:
    """A target and, unless only it decodes, a draft model on one device, with slots for `options.slots` requests."""

    def __init__(
        self,
        target: PreTrainedModel,
        draft: PreTrainedModel | None,
        options: PairOptions,
        runs_on: RealDevice | None = None,
    ) -> None:
        """Raises ValueError for models these passes cannot run, or that do not share a vocabulary and a device."""
        self.options = options
        models = [target] if draft is None else [target, draft]
        target_decoder, *drafts = [
            Decoder(model, slots=options.slots, max_tokens=options.max_tokens, seed=options.seed) for model in models
        ]
        draft_decoder = drafts[0] if drafts else None
        for decoder in drafts:
            ours, theirs = _common(decoder), _common(target_decoder)
            if ours != theirs:
                raise ValueError(f"draft and target must share vocabulary, dtype and device, got {ours} and {theirs}")
        self.device: torch.device = target_decoder.device
        self.target, self.draft_model = target_decoder, draft_decoder
        self.runs_on = runs_on or cuda.find(self.device)
        self.sequences = Sequences(options.slots, options.max_tokens, self.device)
        self.passes = Passes(target_decoder, draft_decoder, self.sequences)
        self._free = list(range(options.slots))[::-1]
        self._issuers: dict[tuple[str, int], Issuer] = {}
        self.runs_on.synchronize()

    def issuer(self, name: str, *, priority: int = 0) -> Issuer:
        """The stream called `name`, made once. Lanes of one name share it, as CUDA has few."""
        cached = self._issuers.get((name, priority))
        if cached is None:
            cached = self._issuers[name, priority] = self.new_issuer(name, self.runs_on.stream(priority))
        return cached

    def new_issuer(self, name: str, stream: DeviceStream) -> Issuer:
        """One that nobody else has, and that is gone with its last user."""
        sizes = {"rows_max": self.options.max_rows, "width_max": self.options.draft_tokens_max + 1}
        return Issuer(name, self.passes.run, self.device, self.runs_on, stream, **sizes)

    def admit(self, prompt: Sequence[int]) -> Slot:
        """A slot for a request, of which one must be free and hold the prompt."""
        assert self._free, "no slot is free"
        assert 0 < len(prompt) < self.options.max_tokens, len(prompt)
        index, (stream, prompts) = self._free.pop(), self._door
        staging = prompts[index][: len(prompt)]
        staging.copy_(torch.tensor(prompt, dtype=torch.int64))

        def admit() -> None:
            self.sequences.admit(index, staging)
            for decoder in (self.target, self.draft_model):
                if decoder is not None:
                    decoder.kv.lengths[index].zero_()

        stream.run(admit)
        return Slot(index, len(prompt), known_tokens=len(prompt), draft_lag=len(prompt), admission=stream.record())

    @cached_property
    def _door(self) -> tuple[DeviceStream, list[torch.Tensor]]:
        """A stream on which prompts reach the device while others run, and where each slot's waits for it."""
        prompts = [self.runs_on.pinned(self.options.max_tokens) for _ in range(self.options.slots)]
        return self.runs_on.stream(), prompts

    def release(self, slot: Slot) -> None:
        assert slot.index not in self._free, f"slot {slot.index} released twice"
        if slot.admission is not None:
            # Its prompt is out of the staging buffer, also where no pass ever read it.
            slot.admission.synchronize()
        self._free.append(slot.index)

    def prefill(self, chunks: Sequence[PromptChunk], issuer: Issuer, *, model: Model = Model.TARGET) -> Submitted:
        """The next piece of each chunk's prompt; the target emits the first token of prompts that end with it."""
        if model is Model.DRAFT:
            return self._submit(issuer, host_slots.plan_draft((), chunks, 0, self.options), (), chunks)
        return self._submit(issuer, host_slots.plan_target((), chunks, None, self.options), (), chunks)

    def draft(
        self, slots: Sequence[Slot], draft_tokens: int, issuer: Issuer, *, chunks: Sequence[PromptChunk] = ()
    ) -> Submitted:
        """Draft for every row, catching up first, in place of an unverified draft. `chunks` go first."""
        assert 1 <= draft_tokens <= self.options.draft_tokens_max, draft_tokens
        return self._submit(issuer, host_slots.plan_draft(slots, chunks, draft_tokens, self.options), slots, chunks)

    def verify(
        self,
        slots: Sequence[Slot],
        issuer: Issuer,
        *,
        chunks: Sequence[PromptChunk] = (),
        forced: Sequence[int] | None = None,
    ) -> Submitted:
        """Verify each row's draft; a row without one decodes one token. With `chunks` prompts are prefilled in the same
        pass. `forced` [rows] dictates how many drafted tokens are accepted, as a tape does."""
        return self._submit(issuer, host_slots.plan_target(slots, chunks, forced, self.options), slots, chunks)

    def warm(self, issuer: Issuer, shapes: Sequence[PassShape], *, again: bool = False) -> None:
        """Run every shape on the issuer's stream, captured where graphs are on; `again`: also what has run before."""
        for shape in shapes:
            is_graphed = shape.kind in (Kind.DRAFT, Kind.VERIFY) and not shape.chunks
            is_captured = self.options.cuda_graphs and is_graphed
            issuer.warm(shape, self.sequences.scratch, capture=is_captured, again=again and not is_captured)

    def _submit(
        self, issuer: Issuer, plan: host_slots.PassPlan, slots: Sequence[Slot], chunks: Sequence[PromptChunk]
    ) -> Submitted:
        present = [row[0] for row in plan.inputs if row[0] != self.sequences.scratch]
        assert present, "a pass without rows"
        assert len(set(present)) == len(present), f"rows of one pass must be distinct slots, got {present}"
        for slot in (*slots, *(chunk.slot for chunk in chunks)):
            if slot.admission is not None and issuer not in slot.streams:
                issuer.stream.wait(slot.admission)
                slot.streams.add(issuer)
        return Submitted(issuer.issue(plan.shape, plan.inputs), plan, slots, chunks)


def _common(decoder: Decoder) -> tuple[int, str, str]:
    return decoder.vocab, str(decoder.dtype).removeprefix("torch."), str(decoder.device)
