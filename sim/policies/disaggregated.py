"""Disaggregated serving (report 003, DistServe): prefill GPUs and decode GPUs, with the KV of a prompt sent over a
link. The draft model runs beside the target on the decode GPUs, or on separate GPUs.

A request has its room on a decode GPU before it is prefilled, so nothing that is sent finds none. The first token comes
from the prefill GPU. Where the draft model has separate GPUs it prefills there, and only the target's KV is sent. The
memory of prefill GPUs is not accounted: a prompt leaves when it is sent. The scaling of a draft pool is report 003's
controller, whose thresholds its report does not state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from sim.bounds import Bounds, check_bounds
from sim.devices.link import link_of
from sim.engine.kv import SpreadPool
from sim.engine.serving import Serving
from sim.interface.host import Stream, Ticket
from sim.interface.request import Request
from sim.interface.request_queue import RequestQueue
from sim.interface.wait import Task
from sim.interface.work import Kind, Work
from sim.policies import rounds
from sim.policies.options import CHUNK, COUNT, EngineLimits, LaneOptions, keys, rows_per_work
from sim.policies.policy import Policy

COOLDOWN_S = 5.0
"""Between two changes of the number of draft GPUs."""
LINK = "link"
"""The device between the GPUs of a replica."""


class DevicePools(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs of a replica, and what joins them."""

    prefill: Annotated[int, Bounds(1, 10_000)] = 1
    """disaggregated: GPUs that prefill."""
    decode: Annotated[int, Bounds(1, 10_000)] = 1
    """disaggregated: GPUs that decode and verify; each within the engine's limits."""
    draft: Annotated[int, Bounds(0, 10_000)] = 0
    """disaggregated: GPUs that only draft; 0: the decode GPUs draft themselves. pipelined: 1 gives the draft model a
    GPU of its own."""
    draft_autoscale: Annotated[int, Bounds(0, COUNT)] = 0
    """disaggregated: the number of draft GPUs that take new requests follows the load, one for so many requests, with
    5 s between two changes; it is at least one. 0: all of them take new ones."""
    link: str | None = None
    """What joins two GPUs: tcp, cuda-ipc, nvlink, pcie or LATENCY_MS:GB_PER_S; null = cuda-ipc. GPUs of a
    tensor-parallel group send their parts at once."""
    prefill_profile: str | None = None
    """disaggregated: profile of the GPUs that prefill, with the same models; null = the scenario's."""

    def __post_init__(self) -> None:
        check_bounds("policy_options.pools", self)
        try:
            link_of(self.link)
        except ValueError as error:
            raise ValueError(f"policy_options.pools.link: {error}") from None


ONE_EACH = DevicePools()


@dataclass(frozen=True, kw_only=True)
class PooledOptions(LaneOptions):
    """Options of `disaggregated` and `pipelined`."""

    pools: DevicePools = ONE_EACH


class DraftPool:
    """Requests are pinned to a GPU, where their draft KV is, until they are through. Scaled, the number of GPUs that
    take new requests follows the load by one at a time, with a pause between two changes.

    Two requests per GPU, at most three, one second between changes:

    >>> pool = DraftPool(3, is_scaled=True, requests_per_gpu=2, cooldown_s=1.0)
    >>> requests = [Request(i, f"r{i}", arrival_s=0.0, prompt_tokens=1, output_tokens=1) for i in range(5)]
    >>> [pool.join(request, now_s=0.5 * i) for i, request in enumerate(requests)]
    [0, 0, 1, 1, 2]
    >>> [pool.leave(request, now_s=4.0 + i) for i, request in enumerate(requests)] and pool.changes
    [(0.0, 1), (1.0, 2), (2.0, 3), (4.0, 2), (6.0, 1)]
    """

    def __init__(self, num_gpus: int, *, is_scaled: bool, requests_per_gpu: int, cooldown_s: float) -> None:
        self.num_gpus = num_gpus
        self.num_active = 1 if is_scaled else num_gpus
        """GPUs that take new requests."""
        self.changes = [(0.0, self.num_active)]
        """(time, GPUs that take new requests)."""
        self._is_scaled = is_scaled
        self._requests_per_gpu = requests_per_gpu
        self._cooldown_s = cooldown_s
        self._homes: dict[int, int] = {}
        self._loads = [0] * num_gpus

    def join(self, request: Request, now_s: float) -> int:
        """The GPU that drafts for `request` from now on: of those that take new ones the one with the fewest."""
        self._scale(len(self._homes) + 1, now_s)
        gpu = min(range(self.num_active), key=lambda index: (self._loads[index], index))
        self._homes[request.index] = gpu
        self._loads[gpu] += 1
        return gpu

    def leave(self, request: Request, now_s: float) -> None:
        self._loads[self._homes.pop(request.index)] -= 1
        self._scale(len(self._homes), now_s)

    def home(self, request: Request) -> int:
        return self._homes[request.index]

    def by_gpu(self, requests: list[Request]) -> list[tuple[int, list[Request]]]:
        """`requests` by the GPU that drafts for them, in order of the GPUs."""
        groups: dict[int, list[Request]] = {}
        for request in requests:
            groups.setdefault(self._homes[request.index], []).append(request)
        return sorted(groups.items())

    def _scale(self, num_requests: int, now_s: float) -> None:
        """One GPU more or less, if the load wants it and the last change is long enough ago."""
        if not self._is_scaled:
            return
        wanted = min(self.num_gpus, max(1, -(-num_requests // self._requests_per_gpu)))
        is_first = len(self.changes) == 1
        if wanted == self.num_active or (not is_first and now_s - self.changes[-1][0] < self._cooldown_s):
            return
        self.num_active += 1 if wanted > self.num_active else -1
        self.changes.append((now_s, self.num_active))


def coroutines(serving: Serving, options: PooledOptions, limits: EngineLimits) -> list[Task]:
    host, controller, pools = serving.host, serving.controller, options.pools
    prefill_streams = [host.stream(f"prefill{i}", device=i) for i in range(pools.prefill)]
    decode_streams = [host.stream(f"decode{i}", device=pools.prefill + i) for i in range(pools.decode)]
    first = pools.prefill + pools.decode
    draft_streams = [host.stream(f"draft{i}", device=first + i) for i in range(pools.draft)]
    link = host.stream(LINK, device=LINK)
    lanes = [RequestQueue(f"decode{i}") for i in range(pools.decode)]
    sent = [RequestQueue(f"sent{i}") for i in range(pools.decode)]
    transfers: dict[int, Ticket] = {}
    """By arrival index."""
    drafts = DraftPool(
        pools.draft,
        is_scaled=pools.draft_autoscale > 0,
        requests_per_gpu=max(1, pools.draft_autoscale),
        cooldown_s=COOLDOWN_S,
    )
    has_pool = bool(draft_streams) and controller.draft_tokens_max > 0
    prompts = rounds.DraftPrompts(lambda request: draft_streams[drafts.join(request, host.now_s)])
    """Prompts of a draft model on separate GPUs, where it has any."""

    async def prefill_gpu(stream: Stream) -> None:
        """One prompt after the other; the KV of one sets off while the next one is computed."""
        async for request in rounds.prefilled(serving, options, limits, stream, prompts if has_pool else None):
            # One GPU's memory need not say where a request lies.
            gpu = serving.kv.gpu_of(request) if isinstance(serving.kv, SpreadPool) else 0
            serving.commit_prefill(request)
            if request.is_finished:
                leave([request])
                continue
            num_bytes = request.prompt_tokens * serving.kv_bytes_per_token
            transfers[request.index] = host.run(Work(kind=Kind.COPY, requests=(request,), num_bytes=num_bytes), link)
            await sent[gpu].put(host, request)

    async def arrivals(index: int) -> None:
        """Requests sent to a decode GPU, in the order in which they were sent."""
        while True:
            for request in await sent[index].take(host, at_most=1):
                await transfers.pop(request.index)
                request.known_s = host.now_s
                await lanes[index].put(host, request)

    async def decode_gpu(lane: RequestQueue, stream: Stream) -> None:
        """The oldest requests of its lane, one round each, back to its end."""
        at_most = rows_per_work(options, limits, options.decode_batch, controller.draft_tokens_max)
        while True:
            batch = await rounds.take_batch(serving, lane, options, at_most, num_lanes=1)
            if has_pool:
                going_on = await round_apart(batch, stream)
            else:
                going_on = await rounds.run_round(serving, batch, options, stream, stream)
            await lane.put_all(host, going_on)

    async def round_apart(batch: list[Request], stream: Stream) -> list[Request]:
        """Drafts on the GPUs of the requests' draft KV, side by side, then one verify on `stream`."""
        started_s, ahead_s = host.now_s, serving.ahead_s(batch, stream)
        lengths = {row.index: each for row, each in zip(batch, controller.lengths_for(batch), strict=True)}
        tickets = []
        for gpu, requests in drafts.by_gpu(batch):
            own = [lengths[request.index] for request in requests]
            after = prompts.take(requests)
            tickets.append(rounds.submit_draft(serving, requests, options, draft_streams[gpu], own, after))
        verify = rounds.submit_verify(serving, batch, options, stream, tickets, ahead_s)
        going_on = await rounds.finish_round(serving, batch, options, verify, stream)
        leave([request for request in batch if request.is_finished])
        controller.saw_draft(host.now_s - started_s, 0)
        return going_on

    def leave(requests: Sequence[Request]) -> None:
        """These are through: their draft GPUs have room again."""
        for request in requests if has_pool else ():
            drafts.leave(request, host.now_s)

    return [
        *(decode_gpu(lane, stream) for lane, stream in zip(lanes, decode_streams, strict=True)),
        *(arrivals(index) for index in range(pools.decode)),
        *(prefill_gpu(stream) for stream in prefill_streams),
    ]


POLICY = Policy(
    name="disaggregated",
    summary="prefill GPUs and decode GPUs, KV sent over a link, draft model on GPUs of its own if asked",
    is_built_in=True,
    source="report 003, DistServe",
    build=coroutines,
    num_gpus=lambda options: options.pools.prefill + options.pools.decode + options.pools.draft,
    num_engines=lambda options: options.pools.decode,
    takes=(*keys(PooledOptions, but=["stream_priorities", "partition"]), CHUNK),
)
