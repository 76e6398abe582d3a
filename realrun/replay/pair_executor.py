"""Real passes for the threaded host: each work of a policy becomes passes of a model pair
(realrun.kernels.pair_kernels).

Requests get a slot with their first work, as soon as one is free; it is taken back once they are finished and nothing
of them is in flight.
The time of a pass is that of events right before and after it on its stream (realrun.host.device).
Not here: threads and order (realrun.host.gpuhost), which models (realrun.replay.testbed).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from math import inf

import numpy as np
import torch

from realrun.host.clocks import HostClock
from realrun.host.device import DeviceClock
from realrun.host.executor import ExecutorLane, Handle, SubmittedWork, check_whole
from realrun.kernels.host_slots import PromptChunk, Slot
from realrun.kernels.issuer import Issuer
from realrun.kernels.pair_kernels import PairKernels, Submitted
from sim.interface.host import Stream
from sim.interface.request import Request
from sim.interface.work import Kind, Model

SLOT_PATIENCE_S = 60.0
"""Longest wait for a slot: its former request is finished and has only a draft prefill left in flight."""


class PairExecutor:
    """Executes works on `kernels`. `prompts` [requests] are the prompts' tokens; without them `seed` draws some."""

    def __init__(self, kernels: PairKernels, *, seed: int = 0, prompts: Sequence[Sequence[int]] = ()) -> None:
        self.kernels, self.seed, self.prompts = kernels, seed, prompts
        self._issuers: dict[tuple[str, int], Issuer] = {}
        """Issuers by name and priority of the stream: policies give one name different priorities."""
        self._clock: DeviceClock | None = None
        self._of: HostClock | None = None
        """The host's clock that `_clock` is set by."""
        self._lock = threading.Condition()
        self._slots: dict[int, tuple[Request, Slot]] = {}
        self._num_in_flight: dict[int, int] = {}
        self.outputs: dict[int, list[int]] = {}
        """Emitted tokens of requests that have given their slot back, by arrival index; may run past what was asked."""

    def check(self, stream: Stream) -> None:
        check_whole(stream)

    def lane(self, stream: Stream, clock: HostClock) -> ExecutorLane:
        key = stream.name, stream.priority
        issuer = self._issuers.get(key)
        if issuer is None:
            issuer = self._issuers[key] = self.kernels.issuer(stream.name, priority=stream.priority)
        if clock is not self._of:
            self._clock, self._of = DeviceClock(self.kernels.runs_on, lambda: clock.now_s), clock
        assert self._clock is not None
        return PairLane(self, issuer, clock, self._clock)

    @property
    def issuers(self) -> tuple[Issuer, ...]:
        return tuple(self._issuers.values())

    def submitted(self, job: SubmittedWork) -> None:
        with self._lock:
            for request in dict.fromkeys(job.work.requests):
                self._num_in_flight[request.index] = self._num_in_flight.get(request.index, 0) + 1
                # Here, as an engine's scheduler would: what an issuer does is counted as the pass's launch.
                if job.work.kind not in (Kind.HOST, Kind.COPY):
                    self._admit(request)

    def ended(self, job: SubmittedWork) -> None:
        with self._lock:
            for index in {request.index for request in job.work.requests}:
                self._num_in_flight[index] -= 1
            self._lock.notify_all()

    def ran(self) -> None:
        if self._clock is not None:
            self._clock.look()

    def reset(self) -> None:
        """Take every slot back; nothing may be in flight."""
        with self._lock:
            self.kernels.runs_on.synchronize()
            for index in list(self._slots):
                self._release(index)
            self._num_in_flight.clear()

    # -- on the issuer threads

    def issue(self, job: SubmittedWork, issuer: Issuer) -> list[Submitted]:
        """Issue the passes of a job, one after the other. Raises ValueError for works these passes cannot do."""
        work, kernels = job.work, self.kernels
        requests = work.requests
        if work.kind is Kind.PREFILL and not work.rows:
            return [kernels.prefill(self._chunks(job), issuer, model=work.model)]
        if work.kind is Kind.DRAFT and (work.rows or work.draft_tokens):
            return self._draft(job, issuer)
        if work.kind is Kind.DRAFT and not work.head_rows:
            return [kernels.prefill(self._chunks(job), issuer, model=Model.DRAFT)]
        if work.kind in (Kind.VERIFY, Kind.STEP) and (work.rows or work.kind is Kind.STEP):
            slots = self._slots_of(requests[: work.rows])
            for slot, drafted in zip(slots, job.drafted, strict=False):
                slot.drafted = drafted
            return [kernels.verify(slots, issuer, chunks=self._chunks(job), forced=job.forced)]
        raise ValueError(
            f"a {work.kind.value} work that computes tokens again (kv: reforward, none) or copies has no real passes. "
            "Use kv: rollback"
        )

    def _draft(self, job: SubmittedWork, issuer: Issuer) -> list[Submitted]:
        """Chunks of prompts that draft already in this work go first, in a separate pass."""
        work = job.work
        rows = self._slots_of(work.requests[: work.rows])
        chunks = self._chunks(job)
        drafting = {slot.index for slot in rows}
        first = [chunk for chunk in chunks if chunk.slot.index in drafting]
        rest = [chunk for chunk in chunks if chunk.slot.index not in drafting]
        submitted = [self.kernels.prefill(first, issuer, model=Model.DRAFT)] if first else []
        # The kernels draft at least one token. A draft of none is for its KV, and its token is never verified.
        return [*submitted, self.kernels.draft(rows, max(1, work.draft_tokens), issuer, chunks=rest)]

    def _chunks(self, job: SubmittedWork) -> list[PromptChunk]:
        work = job.work
        slots = self._slots_of(work.requests[work.rows :])
        return [PromptChunk(slot, chunk.new_tokens) for slot, chunk in zip(slots, work.chunks, strict=True)]

    def _slots_of(self, requests: Sequence[Request]) -> list[Slot]:
        with self._lock:
            return [self._slot_of(request) for request in requests]

    def _slot_of(self, request: Request) -> Slot:
        give_up_s = time.monotonic() + SLOT_PATIENCE_S
        while (slot := self._admit(request)) is None:
            if not self._lock.wait(give_up_s - time.monotonic()):
                raise ValueError(f"all {self.kernels.options.slots} slots are taken. Lower max_concurrency")
        return slot

    def _admit(self, request: Request) -> Slot | None:
        """The request's slot; None while all are taken."""
        held = self._slots.get(request.index)
        if held is not None:
            return held[1]
        self._take_back()
        if len(self._slots) == self.kernels.options.slots:
            return None
        slot = self.kernels.admit(self.prompt(request))
        self._slots[request.index] = request, slot
        return slot

    def prompt(self, request: Request) -> list[int]:
        if self.prompts:
            return list(self.prompts[request.index])
        generator = np.random.default_rng((self.seed, request.index))
        tokens: list[int] = generator.integers(self.kernels.target.vocab, size=request.prompt_tokens).tolist()
        return tokens

    def _take_back(self) -> None:
        for index, (request, _) in list(self._slots.items()):
            if request.is_finished and not self._num_in_flight.get(index):
                self._release(index)

    def _release(self, index: int) -> None:
        _, slot = self._slots.pop(index)
        self.outputs[index] = slot.output
        self.kernels.release(slot)

    def record_results(self, job: SubmittedWork, passes: Sequence[Submitted]) -> tuple[int, ...]:
        """Accepted drafted tokens [rows]; blocks until the passes are over."""
        results = [submitted.result() for submitted in passes]
        if job.work.kind not in (Kind.VERIFY, Kind.STEP):
            return ()
        return tuple(row.accepted for row in results[-1][: job.work.rows])


class PairLane:
    def __init__(self, executor: PairExecutor, issuer: Issuer, clock: HostClock, device_clock: DeviceClock) -> None:
        self.executor, self.issuer, self.clock, self.device_clock = executor, issuer, clock, device_clock
        self.is_async = issuer.runs_on.is_async

    def enter(self) -> None:
        """One intra-op thread per issuer: streams share the cores as they share a device."""
        torch.set_num_threads(1)

    def issue(self, job: SubmittedWork, after: Sequence[Handle]) -> Handle:
        if job.work.kind in (Kind.HOST, Kind.COPY):
            return _HostHandle(self.clock, job.work.host_s)
        for handle in after:
            if isinstance(handle, PairHandle):
                self.issuer.wait_for(handle.passes[-1].pending)
        began_s = self.clock.now_s
        passes = self.executor.issue(job, self.issuer)
        return PairHandle(self, job, passes, began_s, self.clock.now_s)


class PairHandle:
    """Passes of one job that were issued from `began_s` to `issued_s`."""

    def __init__(
        self, lane: PairLane, job: SubmittedWork, passes: list[Submitted], began_s: float, issued_s: float
    ) -> None:
        self.lane, self.job, self.passes, self._began_s = lane, job, passes, began_s
        self._seen_s = inf if lane.is_async else issued_s
        """When it was known to be over."""

    def finish(self) -> tuple[int, ...]:
        accepted = self.lane.executor.record_results(self.job, self.passes)
        if self.lane.is_async:
            self._seen_s = self.lane.clock.now_s
            self.lane.device_clock.look_if_due()
        return accepted

    def times_s(self) -> tuple[float, float]:
        """No work begins before it is issued or ends after it is known to: looks at two clocks are not exact."""
        if not self.lane.is_async:
            return self._began_s, self._seen_s
        start, end = self.passes[0].pending.start, self.passes[-1].pending.end
        end_s = min(self.lane.device_clock.host_s(end), self._seen_s)
        return min(max(self.lane.device_clock.host_s(start), self._began_s), end_s), end_s


class _HostHandle:
    """A policy's CPU time: the issuer computes for that long, holding the interpreter as Python does."""

    def __init__(self, clock: HostClock, host_s: float) -> None:
        self._start_s = self._end_s = clock.now_s
        while self._end_s < self._start_s + host_s:
            self._end_s = clock.now_s

    def finish(self) -> tuple[int, ...]:
        return ()

    def times_s(self) -> tuple[float, float]:
        return self._start_s, self._end_s
