"""The simulated host: coroutines on a virtual clock, works on simulated devices.

Not here: the wake order (sim.hosts.clock), the devices (sim.devices), and what happens to requests
(sim.engine.serving).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from sim.costs.cost import CostModel, Link
from sim.costs.in_service import in_service
from sim.devices.contention import Contention
from sim.devices.partition import check_shares, partition_of
from sim.devices.shared import SharedDevice
from sim.devices.ticket import SimTicket
from sim.hosts.clock import SteppedHost
from sim.interface.host import Stream
from sim.interface.work import HOST, STEP, VERIFY, Kind, Result, Work


class RunLength(Protocol):
    """Acceptance draws as a host needs them."""

    def run_length(self, index: int, position: int, most: int) -> int: ...


class Usage:
    """Totals over the works of one kind on one stream."""

    def __init__(self, device: int | str) -> None:
        self.device = device
        """The stream's."""
        self.num_works = 0
        self.device_s = 0.0
        self.tokens = 0
        """Token positions computed: rows' query tokens, drafted tokens, chunk tokens."""

    def add(self, work: Work, device_s: float) -> None:
        """One more, which had the device for so long."""
        self.num_works += 1
        if work.kind is not HOST:
            self.device_s += device_s
            tokens = work.row_tokens
            if work.draft_tokens:
                tokens += work.rows * (work.draft_tokens - 1)
            for chunk in work.chunks:
                tokens += chunk.new_tokens
            self.tokens += tokens


class SimHost(SteppedHost):
    """A host in virtual time. `costs` prices works on every GPU but those in `costs_elsewhere`, by their index; `links`
    are devices by name; works have their shares of the multiprocessors `only_together` with others or always;
    `draws_by_drafter` [draft models], where there are several, say which of whose drafts are accepted."""

    def __init__(
        self,
        costs: CostModel,
        draws: RunLength,
        *,
        contention: Contention | None = None,
        only_together: bool = False,
        links: Mapping[str, Link] | None = None,
        costs_elsewhere: Mapping[int, CostModel] | None = None,
        on_work: Callable[[SimTicket], object] | None = None,
        draws_by_drafter: Sequence[RunLength] = (),
    ) -> None:
        super().__init__()
        self._costs = in_service(costs, self)
        self._draws = draws
        self._draws_by_drafter = draws_by_drafter
        self._contention = contention or Contention()
        self._only_together = only_together
        self._links = dict(links or {})
        self._costs_elsewhere = {gpu: in_service(each, self) for gpu, each in (costs_elsewhere or {}).items()}
        self.on_work = on_work
        """Hears of each work that ends."""
        self._concluded_s: float | None = None
        """Seconds with at least one work, where everything happened elsewhere."""
        self._devices: dict[int | str, SharedDevice] = {}
        self.usage: dict[tuple[str, Kind], Usage] = {}
        """Totals by (stream name, kind)."""

    # -- the clock

    def run_until(self, stop_s: float | None = None) -> None:
        try:
            super().run_until(stop_s)
        except BaseException:
            self.close()
            raise
        for device in self._devices.values():
            device.count_busy(self.now_s)

    def close(self) -> None:
        """Coroutines that are ready never run: Python would complain of each that was never awaited."""
        for _, task in self._ready:
            task.close()
        self._ready.clear()

    def conclude(self, now_s: float, busy_s: float, usage: dict[tuple[str, Kind], Usage]) -> None:
        """Everything happened elsewhere, up to `now_s`: no coroutine runs any more."""
        self.close()
        self._events.clear()
        self._now_s, self._concluded_s, self.usage = now_s, busy_s, usage

    # -- the seam

    def stream(self, name: str, *, device: int | str = 0, priority: int = 0, sm_share: float | None = None) -> Stream:
        self._check_new(name, has_begun=bool(self._devices))
        if isinstance(device, str) and device not in self._links:
            raise ValueError(f"stream {name!r}: no link named {device!r}. Links: {sorted(self._links)}")
        if sm_share is not None:
            if isinstance(device, str):
                raise ValueError(f"stream {name!r}: sm_share={sm_share!r} on link {device!r}, which is no GPU")
            others = [other for other in self.streams.values() if other.device == device]
            check_shares(
                {other.name: other.sm_share for other in others if other.sm_share is not None} | {name: sm_share}
            )
        stream = Stream(name=name, device=device, priority=priority, sm_share=sm_share)
        self.streams[name] = stream
        return stream

    def run(self, work: Work, stream: Stream, *, after: Sequence[Any] = ()) -> SimTicket:
        if not self._devices:
            self._build_devices()
        ticket = self._devices[stream.device].submit(work, stream, after)
        if work.requests:
            if work.kind is VERIFY:
                ticket.result = self._accepted(work, len(work.requests))
            elif work.kind is STEP and work.rows:
                ticket.result = self._accepted(work, work.rows)
        return ticket

    def _accepted(self, work: Work, num_rows: int) -> Result:
        requests, run_length = work.requests[:num_rows], self._draws.run_length
        if not (work.drafted or work.drafters):
            return Result([run_length(r.index, r.emitted_tokens, r.drafted) if r.drafted else 0 for r in requests])
        run_lengths = [self._draws_by_drafter[each].run_length for each in work.drafters] or [run_length] * num_rows
        rows = zip(run_lengths, requests, work.checked(), strict=True)
        return Result([run_length(r.index, r.emitted_tokens, most) if most else 0 for run_length, r, most in rows])

    def _build_devices(self) -> None:
        by_device: dict[int | str, list[Stream]] = {}
        for stream in self.streams.values():
            by_device.setdefault(stream.device, []).append(stream)
        for name, streams in by_device.items():
            partition = partition_of(streams, self._contention.curve, only_together=self._only_together)
            if isinstance(name, str):
                self._devices[name] = SharedDevice(self, self._links[name], streams, Contention(), is_one_queue=True)
                continue
            costs = self._costs_elsewhere.get(name, self._costs)
            self._devices[name] = SharedDevice(self, costs, streams, self._contention, partition=partition)

    # -- accounts

    @property
    def device_busy_s(self) -> float:
        """Seconds with at least one work on the GPUs, averaged over them."""
        if self._concluded_s is not None:
            return self._concluded_s
        busy = [device.busy_s for name, device in self._devices.items() if not isinstance(name, str)]
        return sum(busy) / len(busy) if busy else 0.0

    def ended(self, ticket: SimTicket) -> None:
        key = ticket.stream.name, ticket.work.kind
        if key not in self.usage:
            self.usage[key] = Usage(ticket.stream.device)
        self.usage[key].add(ticket.work, ticket.end_s - ticket.start_s)
        if self.on_work is not None:
            self.on_work(ticket)
