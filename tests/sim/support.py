"""Shared ground of the simulator's tests: constant costs, scripted draws, and one way to run a policy on a host."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from math import inf
from typing import Any

from sim.costs.cost import Demands, Link
from sim.devices.ticket import SimTicket
from sim.engine.controllers import build_controller
from sim.engine.draft_length import Controller
from sim.engine.intake import Intake
from sim.engine.kv import KvPool, SpreadPool
from sim.engine.paged import PagedPool
from sim.engine.radix import RadixPool
from sim.engine.serving import EVERYONE, AdmissionCaps, Serving
from sim.hosts.scripted import ScriptHost
from sim.hosts.simulated import SimHost
from sim.interface.host import Stream
from sim.interface.request import Request
from sim.interface.request_queue import RequestQueue
from sim.interface.work import Kind, Result, Work
from sim.policies import rounds
from sim.policies.continuous.loop import continuous
from sim.policies.disaggregated import LINK
from sim.policies.options import EngineLimits, rows_per_work
from sim.policies.registry import POLICIES, Policy, PolicyOptions, find_policy, register
from sim.run.limits import draft_slots
from tests.sim.constant_costs import ConstantCosts

SECONDS = {Kind.PREFILL: 10.0, Kind.DRAFT: 2.0, Kind.VERIFY: 5.0, Kind.STEP: 5.0, Kind.COPY: 1.0}
UNCONTENDED = ConstantCosts(device_s=SECONDS, demand=Demands(0.0, 0.0))
"""Works that ask nothing of the device never slow each other, as on ScriptHost."""
ONE_SECOND = Link(latency_s=1.0, bytes_per_s=inf)
"""A link on which every copy takes a second."""
ON_ONE_GPU = [
    name for name, policy in POLICIES.items() if policy.num_gpus(PolicyOptions()) == 1 and not policy.drafts_ahead
]
"""Policies that can be replayed."""


def early_tokens() -> str:
    """Name of a policy as `pd`, but for first tokens: they leave, and rows join the decode lane, when the target is
    through with a prompt and the draft model is not."""

    async def prefill(serving: Serving, lane: RequestQueue, stream: Stream, prompts: rounds.DraftPrompts) -> None:
        while True:
            request = await serving.admit()
            target, through = rounds.submit_prompts(serving, request, stream)
            prompts.add(request, through)
            await target
            serving.commit_prefill(request)
            if not request.is_finished:
                await lane.put(serving.host, request)

    async def decode(
        serving: Serving,
        options: PolicyOptions,
        at_most: int,
        lane: RequestQueue,
        stream: Stream,
        prompts: rounds.DraftPrompts,
    ) -> None:
        while True:
            batch = await rounds.take_batch(serving, lane, options, at_most, num_lanes=1)
            after = prompts.take(batch)
            await lane.put_all(
                serving.host, await rounds.run_round(serving, batch, options, stream, stream, after=after)
            )

    def build(serving: Serving, options: PolicyOptions, limits: EngineLimits) -> list[Any]:
        lane, host = RequestQueue("decode"), serving.host
        stream, decode_stream = host.stream("prefill"), host.stream("decode")
        prompts = rounds.DraftPrompts(lambda _: stream)
        at_most = rows_per_work(options, limits, options.decode_batch, serving.controller.draft_tokens_max)
        return [
            decode(serving, options, at_most, lane, decode_stream, prompts),
            prefill(serving, lane, stream, prompts),
        ]

    return register(Policy(name=EARLY, summary="", source="test", build=build)).name


EARLY = "early-tokens"
HOOKED = register(
    continuous(
        name="hooked",
        admit=lambda waiting: min(waiting, key=lambda request: (request.prompt_tokens, request.index)),
        split=lambda request, tokens, step: tokens if step.num_rows % 2 else -(-tokens // 2),
        draft_length=lambda request, tokens, step: (request.index + request.emitted_tokens) % (tokens + 1),
    )
).name
"""`continuous` with hooks that all change something."""
EVERY = [*POLICIES, HOOKED]
Log = list[tuple[float, str, str, str, tuple[int, ...]]]
WorkLog = list[tuple[float, float, str, str, tuple[int, ...]]]


def calls_of(function: Callable[[Work], object], work: Work) -> int:
    """Calls that `function` makes of `work` the second time, itself and the end of counting among them."""
    function(work)
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    function(work)
    sys.setprofile(None)
    return calls


class PeriodicDraws:
    """Accepts a number of drafted tokens that depends on index and position alone."""

    def run_length(self, index: int, position: int, most: int) -> int:
        return min(most, (7 * index + 3 * position) % 5)


class AlwaysAccept:
    def run_length(self, index: int, position: int, most: int) -> int:
        return most


class NeverAccept:
    def run_length(self, index: int, position: int, most: int) -> int:
        return 0


class NotedController(Controller):
    """A draft length that only its owner changes, and a note of all that it is told."""

    draft_tokens_min = 0
    constant_length = None

    def __init__(self, draft_tokens: int, draft_tokens_max: int) -> None:
        self.draft_tokens = draft_tokens
        self.draft_tokens_max = draft_tokens_max
        self.asked: list[int] = []
        """Requests of each batch."""
        self.rounds: list[tuple[int, int]] = []
        """(drafted, accepted)."""
        self.drafts: list[tuple[float, int]] = []
        """(latency, verify queue)."""

    def length_for(self, num_requests: int) -> int:
        self.asked.append(num_requests)
        return self.draft_tokens

    def saw_round(self, drafted: int, accepted: int) -> None:
        self.rounds.append((drafted, accepted))

    def saw_draft(self, latency_s: float, verify_queue: int) -> None:
        self.drafts.append((latency_s, verify_queue))


def request(index: int, *, arrival_s: float = 0.0, prompt: int = 10, output: int = 6) -> Request:
    return Request(index=index, id=f"r{index}", arrival_s=arrival_s, prompt_tokens=prompt, output_tokens=output)


def most_in_flight(requests: Iterable[Request], since: str = "scheduled_s") -> int:
    """Requests at once between `since` and their last token, to the nanosecond. One that ends frees its seat for one
    that begins then."""
    asked = [*requests]
    events = [(round(getattr(each, since), 9), 1) for each in asked]
    events += [(round(each.last_token_s, 9), -1) for each in asked]
    return max(accumulate(change for _, change in sorted(events)))


def log_order(log: Log) -> Log:
    """Events of one instant in a fixed order: ends before starts, then by stream."""
    return sorted(log, key=lambda event: (event[0], event[1] != "end", event[2]))


def log_of(tickets: Iterable[Any]) -> Log:
    """What ScriptHost writes of those works: starts and ends."""
    events = []
    for ticket in tickets:
        indices = tuple(request.index for request in ticket.work.requests)
        for event, time_s in (("start", ticket.start_s), ("end", ticket.end_s)):
            events.append((time_s, event, ticket.stream.name, ticket.work.kind.value, indices))
    return events


class SimRun:
    """A policy on SimHost with constant costs; `log` as ScriptHost writes it."""

    def __init__(
        self,
        policy: str,
        requests: Sequence[Request],
        *,
        draws: Any = None,
        costs: Any = None,
        options: PolicyOptions | None = None,
        limits: EngineLimits | None = None,
        draft_tokens: int = 4,
        kv_blocks: int = 10_000,
        max_concurrency: int | None = None,
        stop_s: float | None = None,
        is_caching: bool = True,
        num_warmups: int = 0,
        block_size: int = 16,
        controller: Controller | None = None,
        on_work: Callable[[SimTicket], None] | None = None,
        **host_options: Any,
    ) -> None:
        self.tickets: list[SimTicket] = []
        self.draws = draws or PeriodicDraws()
        self.host = SimHost(
            costs or ConstantCosts(device_s=SECONDS),
            self.draws,
            on_work=self.tickets.append,
            **{"links": {LINK: ONE_SECOND}, **host_options},
        )
        limits = limits or EngineLimits()
        self.serving = serve(
            self.host,
            policy,
            requests,
            draft_tokens,
            kv_blocks,
            max_concurrency,
            is_caching,
            limits=limits,
            block_size=block_size,
            controller=controller,
            options=options,
            measured=range(num_warmups, sys.maxsize),
        )
        tasks = find_policy(policy).build(self.serving, options or PolicyOptions(poll_s=0.0), limits)
        for task in [*tasks, self.serving.arrivals()]:
            self.host.spawn(task)
        self.host.run_until(stop_s)

    @property
    def log(self) -> Log:
        return log_of(self.tickets)

    @property
    def works(self) -> WorkLog:
        """(start, end, stream, kind, arrival indices) of every work, in the order in which they ended."""
        return [
            (t.start_s, t.end_s, t.stream.name, t.work.kind.value, tuple(r.index for r in t.work.requests))
            for t in self.tickets
        ]


def serve(
    host: Any,
    policy: str,
    requests: Sequence[Request],
    draft_tokens: int = 4,
    kv_blocks: int = 10_000,
    max_concurrency: int | None = None,
    is_caching: bool = True,
    limits: EngineLimits | None = None,
    block_size: int = 16,
    controller: Controller | None = None,
    options: PolicyOptions | None = None,
    measured: range = EVERYONE,
) -> Serving:
    limits = limits or EngineLimits()
    num_engines = find_policy(policy).num_engines(options or PolicyOptions())
    controller = controller or build_controller("fixed", draft_tokens if find_policy(policy).is_speculative else 0)
    slots = draft_slots(find_policy(policy), controller.draft_tokens_max, is_async=limits.async_scheduling)
    pool: KvPool
    if find_policy(policy).is_continuous:
        paged = RadixPool if limits.retracts else PagedPool
        pool = paged(kv_blocks, block_size, slots, is_caching=is_caching)
    elif num_engines > 1:
        pool = SpreadPool(kv_blocks, block_size, slots, num_gpus=num_engines)
    else:
        pool = KvPool(kv_blocks, block_size, slots)
    return Serving(
        host,
        requests,
        pool,
        controller,
        AdmissionCaps(max_concurrency, limits.max_num_seqs * num_engines, limits.max_num_batched_tokens),
        intake=Intake(
            host, receive_interval=limits.receive_interval, batch_wait=limits.batch_wait, balance=limits.balance
        ),
        measured=measured,
        plans_ahead=limits.async_scheduling,
    )


def run_on_script(
    policy: str,
    requests: Sequence[Request],
    draws: Any,
    options: PolicyOptions,
    draft_tokens: int = 4,
    limits: EngineLimits | None = None,
    works: list[Work] | None = None,
) -> tuple[ScriptHost, Serving]:
    """The same policy on ScriptHost, answers from the same draws; `works` takes note of all that are submitted."""

    def answer(work: Work) -> Result:
        if works is not None:
            works.append(work)
        rows = work.requests if work.kind is Kind.VERIFY else work.requests[: work.rows]
        if work.kind not in (Kind.VERIFY, Kind.STEP):
            return Result(())
        asked = zip(rows, work.checked(), strict=False)
        return Result([draws.run_length(r.index, r.emitted_tokens, most) if most else 0 for r, most in asked])

    host = ScriptHost(lambda work: SECONDS[work.kind], answer)
    return host, played(host, policy, requests, options, limits, draft_tokens=draft_tokens)


def played(
    host: Any,
    policy: str,
    requests: Sequence[Request],
    options: PolicyOptions,
    limits: EngineLimits | None = None,
    *,
    stop_s: float | None = None,
    **more: Any,
) -> Serving:
    """The requests after the policy has served them on `host`, or until `stop_s`."""
    limits = limits or EngineLimits()
    serving = serve(host, policy, requests, options=options, limits=limits, **more)
    for task in [*find_policy(policy).build(serving, options, limits), serving.arrivals()]:
        host.spawn(task)
    host.run_until(stop_s)
    return serving
