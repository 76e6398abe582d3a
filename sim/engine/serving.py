"""The server side of a policy: the queue of arrivals, KV admission, and the account of every emitted token.

A policy asks `admit` for requests, `commit_*` tells what a finished work brought. Not here: the order of anything; that
is the policy's business.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf, isnan
from typing import NamedTuple, Protocol

from sim.engine.draft_length import Controller
from sim.engine.intake import Intake
from sim.engine.kv import KvPool
from sim.engine.paged import ANY_CHUNK, FirstChunk, PagedPool
from sim.engine.radix import RadixPool
from sim.engine.time_series import GapSamples, Gauge
from sim.interface.host import Host, Stream, Ticket
from sim.interface.request import Request
from sim.interface.wait import Signal
from sim.interface.work import Chunk

Choose = Callable[[Sequence[Request]], Request]
"""Picks one of several requests that wait."""


class Door(Protocol):
    """The entry of requests: one engine's, or that of several behind a router."""

    host: Host
    requests: Sequence[Request]
    max_concurrency: int | None
    finished: Signal

    @property
    def num_finished(self) -> int: ...


EVERYONE = range(sys.maxsize)
"""Arrival indices."""


async def bring_in(door: Door, arrive: Callable[[Request], None]) -> None:
    """Let each request `arrive` at its time; with `max_concurrency`, not before a place is free.

    As in `vllm bench serve` a request held back by the limit arrives when it is let in.
    """
    host = door.host
    limit = door.max_concurrency if door.max_concurrency is not None else inf
    for num_arrived, request in enumerate(door.requests):
        if request.arrival_s > host.now_s:
            await host.sleep_until(request.arrival_s)
        while num_arrived - door.num_finished >= limit:
            await host.wait(door.finished)
        if limit < inf:
            request.arrival_s = max(request.arrival_s, host.now_s)
        arrive(request)


class AdmissionCaps(NamedTuple):
    """Limits of what is served at once."""

    max_concurrency: int | None = None
    """Requests in flight of a closed loop; None = all are sent when they come."""
    max_num_seqs: int | None = None
    """Requests admitted and unfinished at most; None = as memory allows."""
    max_num_batched_tokens: int | None = None
    """Tokens of one prefill pass at most; None = whole prompts."""


UNCAPPED = AdmissionCaps()


class Serving:
    """Requests between arrival and last token. `requests` in order of arrival. Indices need not start at 0.

    What a policy sees of it (output of one token, so that prefill is all):

    >>> import lanesim
    >>> async def fill(serving, stream):
    ...     while True:
    ...         request = await serving.admit()
    ...         assert request not in serving.inbox and serving.num_active == 1
    ...         await lanesim.rounds.submit_prefill(serving, request, stream)
    ...         serving.commit_prefill(request)
    ...         assert serving.num_active == 0
    >>> def build(serving, options, limits):
    ...     return [fill(serving, serving.host.stream("gpu"))]
    >>> mine = lanesim.register(lanesim.Policy(name="fill", summary="prefills", source="example", build=build))
    >>> one = lanesim.simulate(profile="cpu/tiny", policy="fill", num_prompts=5, request_rate=10, output_len=1)
    >>> one.metrics["completed"]
    5
    """

    def __init__(
        self,
        host: Host,
        requests: Sequence[Request],
        kv: KvPool,
        controller: Controller,
        caps: AdmissionCaps = UNCAPPED,
        *,
        intake: Intake | None = None,
        measured: range = EVERYONE,
        kv_bytes_per_token: int = 0,
        plans_ahead: bool = False,
        on_finished: Callable[[], None] | None = None,
    ) -> None:
        self.host = host
        self.requests = requests
        self.kv = kv
        self.controller = controller
        self.max_concurrency, self.max_num_seqs, self.max_num_batched_tokens = caps
        self.intake = Intake(host) if intake is None else intake
        self.inbox = self.intake.inbox
        """Arrived, not admitted."""
        self.finished = Signal()
        self.measured = measured
        """Arrival indices of the requests whose gaps count."""
        self.plans_ahead = plans_ahead
        """Works of lanes are prepared while those before them run (`ahead_s`)."""
        self._submitted_s: dict[str, float] = {}
        """When the newest work was submitted, by name of its stream."""
        self.last_round: Ticket | None = None
        """The newest verify of lanes."""
        self.round_ended_s = -1.0
        """Likewise: when the newest one was seen that had ended."""
        self._on_finished = [] if on_finished is None else [on_finished]
        """Called in this order when a request has its last token."""
        self.kv_bytes_per_token = kv_bytes_per_token
        """KV bytes of a token in all models that serve: what a copy to another GPU moves."""
        self.num_finished = 0
        self.num_admitted = 0
        self.gaps = GapSamples()
        self._num_shared = 0
        """Shared blocks of the pool, as the gauge of tokens held knows them."""
        if isinstance(kv, PagedPool):
            kv.expect(requests)

    @property
    def paged(self) -> PagedPool:
        """The memory of an engine that takes blocks as tokens come."""
        assert isinstance(self.kv, PagedPool)
        return self.kv

    @property
    def radix(self) -> RadixPool:
        """The memory of an engine that retracts."""
        assert isinstance(self.kv, RadixPool)
        return self.kv

    @property
    def num_arrived(self) -> int:
        return self.intake.num_arrived

    @property
    def queue(self) -> Gauge:
        """Requests waiting for admission."""
        return self.intake.queue

    @property
    def num_active(self) -> int:
        """Admitted and unfinished requests."""
        return self.num_admitted - self.num_finished

    @property
    def is_all_finished(self) -> bool:
        return self.num_finished == len(self.requests)

    def divide(self, route: Callable[[Request], None], on_finished: Callable[[], None]) -> None:
        """Requests are served in parts from now on: `route` takes what arrives in place of the inbox, and `on_finished`
        is called when a request of any part has its last token."""
        self.intake.route = route
        self._on_finished.append(on_finished)

    def account(self, num_requests: int, gaps: GapSamples | None = None) -> None:
        """All of so many requests were served elsewhere, with these gaps."""
        self.num_finished = self.num_admitted = self.intake.num_arrived = num_requests
        self.gaps = gaps or self.gaps

    # -- arrivals

    async def arrivals(self) -> None:
        """Bring each request in at its time (`bring_in`)."""
        await bring_in(self, self.intake.arrive)

    def admit_now(self, choose: Choose | None = None) -> Request | None:
        """The request that `choose` picks of those that wait, or the oldest, if the engine's limit and KV have room for
        it. Else None, and none overtakes it."""
        if self.max_num_seqs is not None and self.num_active >= self.max_num_seqs:
            return None
        if not self.inbox:
            return None
        request = self.inbox[0] if choose is None else choose(self.inbox)
        if not self.kv.reserve(request):
            return None
        self._take(request)
        return request

    def _take(self, request: Request) -> None:
        """`request` waits no longer."""
        self.num_admitted += 1
        if request.scheduled_s != request.scheduled_s:
            request.scheduled_s = self.host.now_s
        self.intake.remove(request)

    async def admit(self, choose: Choose | None = None, *, poll_s: float | None = None) -> Request:
        """The request that `admit_now` lets in, once there is one. `choose` is called anew whenever a request comes or
        leaves.

        The shortest prompt first:

        >>> import lanesim
        >>> def shortest(waiting):
        ...     return min(waiting, key=lambda request: request.prompt_tokens)
        >>> async def serve(serving, stream):
        ...     while True:
        ...         request = await serving.admit(shortest)
        ...         await lanesim.rounds.submit_prefill(serving, request, stream)
        ...         serving.commit_prefill(request)
        >>> def build(serving, options, limits):
        ...     return [serve(serving, serving.host.stream("gpu"))]
        >>> mine = lanesim.register(lanesim.Policy(name="short", summary="shortest", source="example", build=build))
        >>> one = lanesim.simulate(profile="cpu/tiny", policy="short", num_prompts=5, request_rate=10, output_len=1)
        >>> one.metrics["completed"]
        5
        """
        while (request := self.admit_now(choose)) is None:
            await self.came(poll_s=poll_s)
        return request

    async def came(self, *, poll_s: float | None = None) -> None:
        """Wait until a request comes or leaves. Nothing was prepared for the first of those that wait."""
        await self.host.wait(self.intake.changed, poll_s=poll_s)
        if self.inbox:
            self.inbox[0].known_s = self.host.now_s

    # -- what the host of a lane prepares while its last work runs

    def ahead_s(self, requests: Sequence[Request], stream: Stream) -> float:
        """Seconds for which the next work of `requests` on `stream` could be prepared (docs/adr/008): since all of them
        were sure to come, but not before the last work there was submitted. 0 where nothing is planned ahead."""
        if not self.plans_ahead:
            return 0.0
        known_s = max([request.known_s for request in requests])
        return self.host.now_s - max(known_s, self._submitted_s.get(stream.name, 0.0))

    def planned(self, requests: Sequence[Request], stream: Stream) -> None:
        """A work of `requests` was submitted to `stream`: what follows it can be prepared from now on."""
        if self.plans_ahead:
            self._submitted_s[stream.name] = now_s = self.host.now_s
            for request in requests:
                request.known_s = now_s

    # -- blocks taken as tokens come

    def seat_now(
        self, max_tokens: int, lookahead: int = 0, first: FirstChunk = ANY_CHUNK, request: Request | None = None
    ) -> tuple[Request, Chunk] | None:
        """The oldest waiting request, or the given one, and its first chunk of at most `max_tokens`. All its tokens
        must fit, and `lookahead` behind the chunk.

        No other request goes first. What is still intact of its prefix is not computed again.
        """
        if not self.inbox:
            return None
        request = request or self.inbox[0]
        chunk = self.paged.seat(request, max_tokens, lookahead, first)
        if chunk is None:
            return None
        self.seat(request, chunk)
        return request, chunk

    def seat(self, request: Request, chunk: Chunk) -> None:
        """`request` waits no longer: its first chunk is `chunk`, behind tokens that are in memory."""
        history = chunk.history_tokens
        goal = request.prompt_tokens + request.emitted_tokens
        self._take(request)
        if not request.is_preempted:
            request.cached_tokens = history
        request.is_preempted = False
        request.prefill_goal, request.prefilled_tokens = goal, history
        self._hold(request, history)
        self._share()

    def preempt(self, request: Request, *, by_priority: bool = False) -> None:
        """Take the memory of `request`. It waits ahead of all others, or of those that came after it and whose priority
        is not above its (`by_priority`). A step under way still brings its tokens."""
        place = 0
        if by_priority:
            key = (-request.priority, request.index)
            while place < len(self.inbox) and (-self.inbox[place].priority, self.inbox[place].index) < key:
                place += 1
        self._send_back(request, place)

    def retract(self, request: Request) -> None:
        """Take the memory of `request`. It waits behind all that the engine has seen. What a step under way brings it
        counts for nothing."""
        place = len(self.inbox)
        while place and isnan(self.inbox[place - 1].queued_s):
            place -= 1
        self._send_back(request, place, min(request.prefilled_tokens, request.prefill_goal))

    def _send_back(self, request: Request, place: int, num_tokens: int | None = None) -> None:
        """`request` gives its memory back and waits; blocks of its first `num_tokens` can be found."""
        self.paged.preempt(request, num_tokens)
        self._hold(request, -request.kv_tokens)
        self._share()
        request.is_preempted = True
        request.num_preemptions += 1
        if not request.in_flight:
            request.drafted = 0
        self.num_admitted -= 1
        self.intake.insert(place, request)

    # -- what works brought

    def _hold(self, request: Request, num_tokens: int) -> None:
        request.kv_tokens += num_tokens
        self.kv.held.add(num_tokens, self.host.now_s)

    def _share(self) -> None:
        """Count blocks once that several requests hold."""
        change = self.kv.num_shared - self._num_shared
        if change:
            self._num_shared += change
            self.kv.held.add(-change * self.kv.block_size, self.host.now_s)

    def commit_prefill(self, request: Request) -> None:
        """The whole prompt is in KV and the first token is out."""
        self.commit_chunk(request, request.prompt_tokens)

    def commit_chunk(self, request: Request, new_tokens: int) -> None:
        """`new_tokens` more of the prompt are in KV, padding left out. The last of them bring the next output token."""
        new_tokens = min(new_tokens, request.prefill_goal - request.prefilled_tokens)
        request.prefilled_tokens += new_tokens
        if not request.is_preempted:
            self._hold(request, new_tokens)
        if request.prefilled_tokens == request.prefill_goal:
            request.known_s = self.host.now_s
            self.emit(request, 1)

    def trim_draft(self, request: Request, draft_tokens: int) -> None:
        """Verify only the first `draft_tokens` of the draft in flight: a step's budget has no room for more."""
        self._hold(request, draft_tokens - request.drafted)
        request.drafted = draft_tokens

    def open_round(self, request: Request, draft_tokens: int) -> None:
        """A draft of `draft_tokens` sets off. Its slots are kept until the round is committed."""
        request.drafted = draft_tokens
        self._hold(request, draft_tokens + 1)

    def open_rounds(self, requests: Sequence[Request], lengths: Mapping[int, int]) -> None:
        """Drafts of a batch set off, as long as `lengths` has it by arrival index."""
        held = 0
        for request in requests:
            draft_tokens = lengths[request.index]
            request.drafted = draft_tokens
            request.kv_tokens += draft_tokens + 1
            held += draft_tokens + 1
        if requests:
            self.kv.held.add(held, self.host.now_s)

    def commit_rounds(self, requests: Sequence[Request], accepted: Iterable[int]) -> list[Request]:
        """Verify accepted `accepted` [requests] tokens of the drafts: roll the rest back, emit these and the target's
        token. Returns the requests that go on."""
        now_s, measured, saw_round = self.host.now_s, self.measured, self.controller.saw_round
        going_on: list[Request] = []
        finished: list[Request] = []
        held = num_held = num_gaps = 0
        since_s = now_s
        for request, num_accepted in zip(requests, accepted, strict=True):
            drafted = request.drafted
            if not request.is_preempted:
                request.kv_tokens += num_accepted - drafted
                held += num_accepted - drafted
                num_held += 1
            if drafted:
                request.num_rounds += 1
                request.drafted_tokens += drafted
                request.accepted_tokens += num_accepted
                saw_round(drafted, num_accepted)
            request.needs_catch_up = 0 < drafted == num_accepted
            request.drafted = 0
            emitted = request.emitted_tokens
            if emitted == 0:
                request.first_token_s = now_s
            elif request.index in measured:
                # Rows of a batch were mostly emitted together before, too.
                if num_gaps and request.last_token_s != since_s:
                    self.gaps.add(now_s - since_s, num_gaps)
                    num_gaps = 0
                since_s = request.last_token_s
                num_gaps += 1
            request.last_token_s = now_s
            emitted += num_accepted + 1
            if emitted < request.output_tokens:
                request.emitted_tokens = emitted
                going_on.append(request)
            else:
                request.emitted_tokens = request.output_tokens
                finished.append(request)
        if num_gaps:
            self.gaps.add(now_s - since_s, num_gaps)
        if num_held:
            self.kv.held.add(held, now_s)
        for request in finished:
            self.release(request)
        return going_on

    def emit(self, request: Request, num_tokens: int) -> None:
        """`num_tokens` more are on the host now, cut at the requested output."""
        now_s = self.host.now_s
        emitted = min(request.output_tokens, request.emitted_tokens + num_tokens)
        if request.emitted_tokens == 0:
            request.first_token_s = now_s
        elif request.index in self.measured:
            self.gaps.add(now_s - request.last_token_s)
        request.last_token_s = now_s
        request.emitted_tokens = emitted
        if emitted == request.output_tokens:
            self.release(request)

    def release(self, request: Request) -> None:
        """`request` has its last token: give its memory back."""
        self._hold(request, -request.kv_tokens)
        if request.is_preempted:  # Its last token was under way when it was preempted.
            self.intake.remove(request)
            self.num_admitted += 1
            request.is_preempted = False
        self.kv.release(request)
        self._share()
        self.num_finished += 1
        self.host.notify(self.finished)
        for heard in self._on_finished:
            heard()
        if self.inbox:
            self.host.notify(self.intake.changed)
