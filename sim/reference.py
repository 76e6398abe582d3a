"""The simulator in SimPy's idiom: schedulers of speculative decoding on one GPU, a process per worker, lane or engine.

A *request*'s prompt goes through the target and then the draft model: its first token is out. Then it goes through
*rounds*: draft K tokens, verify them in a pass of the target, keep those accepted and one more. A *stream* is a FIFO of
works on the GPU. A *lane* is a process that polls a Store and serves batches of it. Continuous batching has no lanes:
each *step* is one pass over the sequences that decode and chunks of prompts. Tests prove that what `sim.hosts` runs is
equal to this: open arrivals, one draft length, memory enough. Not here: what a pass computes and costs
(sim.policies.works, sim.costs).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from math import inf
from typing import Any, NamedTuple

import simpy

from sim.costs.cost import CostModel, prompt_result_s
from sim.interface.request import Request
from sim.interface.work import Chunk, Model, Work
from sim.policies import works
from sim.policies.options import EngineLimits

POLICIES = ("baseline", "pd", "pdv", "unified", "continuous", "autoregressive")
Steps = Generator[simpy.Event, Any, Any]
Stream = tuple[simpy.Resource, simpy.Resource]  # the turn to be launched by its thread, and to be on the GPU


class Setup(NamedTuple):
    """A server with one GPU; while kernels of other streams hold the GPU a work goes on at the rate `phi`."""

    costs: CostModel
    run_length: Callable[[int, int, int], int]  # (request index, output tokens so far, drafted) -> accepted
    draft_tokens: int
    phi: float
    limits: EngineLimits
    options: Any  # PolicyOptions
    num_blocks: int
    blocks_for: Callable[[Request], int]
    frontend_s: Callable[[Request], float]  # between its arrival and the queue


class StepInSimpy(NamedTuple):
    """One pass of continuous batching: rows with the tokens that there is room for, and chunks of prompts."""

    rows: list[tuple[Request, int]]
    prompts: list[tuple[Request, Chunk]]
    uses: list[bool]  # whether drafts behind it may be verified, of each request


class Pass:
    """A work in flight: the seconds that are left of each part, and events for the end of each."""

    def __init__(self, env: simpy.Environment, work: Work, costs: CostModel) -> None:
        self.prepare_s, self.launch_s, self.device_s, num_kernels, self.tail_s = costs.cost(work)
        self.begun_s = self.over_s = 0.0  # from its start on the GPU to its end
        self.kernel_s = self.device_s / num_kernels
        self.result_s = prompt_result_s(costs) if work.chunks else costs.result_s
        self.prepared, self.launched, self.ended = env.event(), env.event(), env.event()


class SharedGpu:
    """Works that share a GPU, and one interpreter while they are launched."""

    def __init__(self, env: simpy.Environment, costs: CostModel, phi: float) -> None:
        self.env, self.costs, self.phi = env, costs, phi
        self.launching: list[Pass] = []
        self.running: list[Pass] = []
        self.works: list[tuple[Work, Stream, Pass]] = []
        self.busy_s = 0.0
        self.sharing = env.process(self.share())

    def submit(self, work: Work, stream: Stream, after: Sequence[simpy.Event] = ()) -> tuple[simpy.Event, simpy.Event]:
        """Queue `work`, to run `after` others have ended. Two events: its result is on the host, and it has ended."""
        new, (thread, order) = Pass(self.env, work, self.costs), stream
        self.works.append((work, stream, new))
        self.env.process(self.turn(new, thread, self.launching, (), new.launched, 0.0))
        after = (new.prepared, *after)
        return self.env.process(self.turn(new, order, self.running, after, new.ended, new.result_s)), new.ended

    def turn(self, new: Pass, one: simpy.Resource, joined: list[Pass], after: Any, over: Any, then_s: float) -> Steps:
        with one.request() as turn:
            yield self.env.all_of([turn, *after])
            joined.append(new)
            self.sharing.interrupt()
            new.begun_s = self.env.now
            yield over
            new.over_s = self.env.now
        yield self.env.timeout(then_s)

    def share(self) -> Steps:
        """Let all go on at their rates until one is through with a part, or another joins."""
        while True:
            slowdown = self.costs.host_inflation(max(1, len(self.launching)))
            parts = [(each, "prepare_s" if each.prepare_s else "launch_s", 1.0 / slowdown) for each in self.launching]
            parts += [(each, "device_s", rate) for each, rate in self.rates(slowdown).items()]
            due_s = [getattr(each, part) / rate if rate else inf for each, part, rate in parts]
            passed_s, since_s = min((each_s for each_s in due_s if each_s), default=inf), self.env.now
            try:
                yield self.env.timeout(passed_s) if passed_s < inf else self.env.event()
            except simpy.Interrupt:
                passed_s = self.env.now - since_s
            self.busy_s += passed_s if self.running else 0.0
            for (each, part, rate), left_s in zip(parts, due_s, strict=True):
                setattr(each, part, 0.0 if left_s <= passed_s else getattr(each, part) - passed_s * rate)
            for each in [each for each in self.launching if not each.prepare_s]:
                if not each.prepared.triggered:
                    each.prepared.succeed()
                if not each.launch_s:
                    self.launching.remove(each)
                    each.launched.succeed()
            for each in [each for each in self.running if not each.device_s and each.launched.triggered]:
                self.running.remove(each)
                each.ended.succeed()

    def rates(self, slowdown: float) -> dict[Pass, float]:
        """Device seconds per second of works side by side. The GPU runs a kernel of each in turn, so a work's share of
        its time goes by the length of its kernels, but none ends before its launch does; phi of the rest is added."""
        before_s = {job: max(0.0, job.device_s - job.tail_s) for job in self.running}  # that its launch is over
        caps = {job: min(1.0, s / job.launch_s / slowdown) if job.launch_s else 1.0 for job, s in before_s.items()}
        shares, left, sharing = dict(caps), 1.0, [*caps] if len(caps) > 1 else []
        while sharing:
            unit = left / (sum(each.kernel_s for each in sharing) or 1.0)
            capped = [each for each in sharing if each.kernel_s * unit >= caps[each]]
            if not capped:
                shares |= {each: each.kernel_s * unit for each in sharing}
            left = max(0.0, left - sum(caps[each] for each in capped))
            sharing = [each for each in sharing if each not in capped] if capped else []
        return {each: min(caps[each], share + self.phi * (1.0 - share)) for each, share in shares.items()}


class Server:
    """Requests in the queue, on seats and in lanes; each scheduler is one process or several."""

    def __init__(self, env: simpy.Environment, setup: Setup) -> None:
        self.env, self.setup, self.options = env, setup, setup.options
        batches = (setup.options.decode_batch, setup.options.verify_batch)
        self.decode_batch, self.verify_batch = (setup.limits.lane_batch(b, setup.draft_tokens) for b in batches)
        self.gpu = SharedGpu(env, setup.costs, setup.phi)
        self.draft, self.verify, self.prefill = ((simpy.Resource(env), simpy.Resource(env)) for _ in range(3))
        self.waiting, self.decoding, self.verifying = simpy.Store(env), simpy.Store(env), simpy.Store(env)
        self.seats = simpy.Container(env, setup.limits.max_num_seqs, init=setup.limits.max_num_seqs)
        self.blocks = simpy.Container(env, setup.num_blocks, init=setup.num_blocks)
        self.verify_took = env.event()  # the verify lane takes a batch
        self.came = env.event()  # a request comes into the queue
        self.gaps: list[tuple[int, float]] = []  # (request index, seconds since its last tokens)
        self.running: list[Request] = []  # with continuous batching: on seats, oldest first

    def arrivals(self, requests: Sequence[Request]) -> Steps:
        for request in requests:
            yield self.env.timeout(max(0.0, request.arrival_s + self.setup.frontend_s(request) - self.env.now))
            request.drafted = self.setup.draft_tokens
            self.waiting.put(request)
            self.came, _ = self.env.event(), self.came.succeed()

    def worker(self) -> Steps:
        """Baseline: one of several on one stream, each with a different request, end to end."""
        while True:
            request = yield self.waiting.get()
            yield self.seats.get(1) & self.blocks.get(self.setup.blocks_for(request))
            request.scheduled_s = self.env.now
            yield self.prompt(request, self.draft, None)[1]
            while not request.is_finished:
                yield from self.round([request], self.draft, self.draft, None)

    def prefill_lane(self) -> Steps:
        """PD and PDV: one prompt after the other; the next queues up behind the last one's part in the draft model."""
        drafting: simpy.Event | None = None
        while True:
            if request := self.admit():
                in_target, in_both = self.prompt(request, self.prefill, self.decoding)
            if drafting or not request:
                yield drafting or self.env.timeout(self.options.looks_every_s())
            if request:
                yield in_target
            drafting = in_both if request else None

    def decode_lane(self, verify: Stream, hybrid_requests: float) -> Steps:
        """Drafts, and verifies as well while so few have seats: in PD always. Lets a long verify queue go first."""
        while True:
            batch = yield from self.take(self.decoding, self.decode_batch)
            if self.seats.capacity - self.seats.level <= hybrid_requests:
                yield from self.round(batch, self.draft, verify, self.decoding)
                continue
            while len(self.verifying.items) > len(self.decoding.items) + len(batch) + 2:
                yield self.verify_took
            yield self.gpu.submit(works.draft(batch, self.setup.draft_tokens), self.draft)[0]
            for request in batch:
                self.verifying.put(request)

    def verify_lane(self) -> Steps:
        """PDV: verifies, and sends back to be drafted for."""
        while True:
            batch = yield from self.take(self.verifying, self.verify_batch)
            self.verify_took, _ = self.env.event(), self.verify_took.succeed()
            yield from self.round(batch, None, self.verify, self.decoding)

    def one_worker(self) -> Steps:
        """Unified: keeps a prompt and a round in flight, and follows up whichever ends first."""
        batch: list[Request] = []
        round_ = in_target = drafting = None
        while True:
            num_decoding = len(self.decoding.items) + len(batch) + bool(drafting)
            has_room = num_decoding < 1.2 * self.decode_batch
            if not in_target and has_room and (request := self.admit()):
                in_target, in_both = self.prompt(request, self.prefill, self.decoding)
            if not batch and self.decoding.items:
                batch = self.taken(self.decoding, self.decode_batch)
                round_ = self.env.process(self.round(batch, self.draft, self.verify, self.decoding))
            flying = [each for each in (round_, drafting or in_target) if each]
            yield self.env.any_of(flying) if flying else self.env.timeout(self.options.looks_every_s(10e-6))
            if round_ and round_.triggered:
                batch, round_ = [], None
            if in_target and in_target.triggered and not drafting:
                in_target, drafting = None, in_both
            drafting = None if drafting and drafting.triggered else drafting

    def admit(self) -> Request | None:
        """The oldest request that waits, if there are a seat and blocks for it."""
        oldest: Request | None = next(iter(self.waiting.items), None)
        if oldest is None or not self.seats.level or self.blocks.level < self.setup.blocks_for(oldest):
            return None
        self.seats.get(1), self.blocks.get(self.setup.blocks_for(oldest)), self.waiting.get()
        oldest.scheduled_s = self.env.now
        return oldest

    def engine(self) -> Steps:
        """Continuous: step after step, the next one planned while one is under way where the engine plans ahead."""
        step, is_ahead = StepInSimpy([], [], []), self.setup.limits.async_scheduling
        while True:
            if not step.rows and not step.prompts:
                step, planned_at_s = self.plan(is_ahead=False), self.env.now
                if not step.rows and not step.prompts:
                    yield self.came
                    continue
            rows = [(request, tokens) for request, tokens in step.rows if not request.is_finished]
            if not rows and not step.prompts:  # All that was planned ahead has ended meanwhile.
                step = StepInSimpy([], [], [])
                continue
            for request, tokens in rows:
                request.drafted = min(request.drafted, tokens - 1)
                request.in_flight = request.drafted + 1
            for request, chunk in step.prompts:
                request.in_flight = chunk.new_tokens
            draft_tokens = self.setup.draft_tokens if any(step.uses) else 0
            result = self.submit_step([each for each, _ in rows], step.prompts, planned_at_s, draft_tokens)
            prompts = step.prompts
            step, planned_at_s = self.plan(is_ahead=True) if is_ahead else StepInSimpy([], [], []), self.env.now
            yield result
            self.commit_step([request for request, _ in rows], prompts)

    def plan(self, *, is_ahead: bool) -> StepInSimpy:
        """A token budget goes to who is on a seat, then to who waits. While a step is under way its rows may bring one
        token or all; whoever needs one alone is through with it."""
        limits, step = self.setup.limits, StepInSimpy([], [], [not self.setup.limits.skips_unused_drafts])
        slots, budget = limits.slots_per_request, limits.max_num_scheduled_tokens
        for request in self.running:
            if budget <= slots:
                break
            begun = request.prefilled_tokens + request.in_flight
            if begun < request.prompt_tokens:
                tokens = min(request.prompt_tokens - begun, budget - slots)
                step.prompts.append((request, Chunk(tokens, begun)))
                step.uses.append(begun + tokens == request.prompt_tokens and request.output_tokens > 1)
            elif request.in_flight and request.emitted_tokens + 1 >= request.output_tokens:
                continue
            else:
                drafted = self.setup.draft_tokens if is_ahead and request.in_flight else request.drafted
                tokens = min(1 + drafted, budget - slots)
                step.rows.append((request, tokens))
                step.uses.append(request.emitted_tokens + 1 + bool(request.in_flight) < request.output_tokens)
            budget -= tokens + slots
        # vLLM pads a prompt of one token beside rows to their length.
        least = limits.padded_tokens if step.rows and not step.prompts else 0
        while budget > slots and self.waiting.items:
            tokens = min(self.waiting.items[0].prompt_tokens, budget - slots)
            tokens = max(tokens, least) if self.waiting.items[0].prompt_tokens == 1 else tokens
            if tokens > budget - slots or not (seated := self.admit()):
                break
            self.running.append(seated)
            step.prompts.append((seated, Chunk(tokens, 0)))
            step.uses.append(tokens >= seated.prompt_tokens and seated.output_tokens > 1)
            budget -= tokens + slots
        return step

    def submit_step(
        self, rows: list[Request], prompts: list[tuple[Request, Chunk]], planned_at_s: float, draft_tokens: int
    ) -> simpy.Event:
        """The target's pass, then the drafts of all who have a token then; the result of the last."""
        through, chunks = (
            [each for each, chunk in prompts if is_last(each, chunk)],
            tuple(chunk for _, chunk in prompts),
        )
        row_tokens, context = (sum(each.in_flight for each in rows), sum(each.context_tokens for each in rows))
        load = works.StepLoad(len(rows), row_tokens, context, chunks, [each for each, _ in prompts], through, rows)
        result, _ = self.gpu.submit(works.step_work(load, self.env.now - planned_at_s), self.draft)
        if self.setup.draft_tokens:
            draft = works.draft_work(load, draft_tokens, self.setup.limits.method)
            result, _ = self.gpu.submit(draft, self.draft)
        return result

    def commit_step(self, rows: list[Request], prompts: list[tuple[Request, Chunk]]) -> None:
        through = [request for request, chunk in prompts if is_last(request, chunk)]
        for request in rows:
            self.emit(request, self.accepted(request) + 1, None)
        for request, chunk in prompts:
            request.prefilled_tokens = min(request.prompt_tokens, request.prefilled_tokens + chunk.new_tokens)
        for request in through:
            request.first_token_s = self.env.now
            self.emit(request, 1, None)
        for request in self.running:
            request.in_flight, request.drafted = 0, self.setup.draft_tokens
        self.running = [request for request in self.running if not request.is_finished]

    def take(self, lane: simpy.Store, at_most: int) -> Steps:
        while not lane.items:
            yield self.env.timeout(self.options.looks_every_s())
        return self.taken(lane, at_most)

    def taken(self, lane: simpy.Store, at_most: int) -> list[Request]:
        """The oldest of a lane; who is there comes at once."""
        return [lane.get().value for _ in range(min(at_most, len(lane.items)))]  # type: ignore[misc]

    def prompt(self, request: Request, stream: Stream, lane: Any) -> tuple[simpy.Event, simpy.Event]:
        """The prompt through both models, in pieces that a pass has room for; it is in the target, and in both."""
        at_most = self.setup.limits.max_num_batched_tokens
        target, draft = (works.prefill(request, model, at_most) for model in (Model.TARGET, Model.DRAFT))
        results = [self.gpu.submit(work, stream)[0] for work in [*target, *draft]]
        return results[len(target) - 1], self.env.process(self.join(request, results[-1], lane))

    def join(self, request: Request, prefilled: simpy.Event, lane: Any) -> Steps:
        yield prefilled
        request.prefilled_tokens, request.first_token_s = request.prompt_tokens, self.env.now
        self.emit(request, 1, lane)

    def round(self, batch: list[Request], draft: Stream | None, verify: Stream, lane: Any) -> Steps:
        """Draft, unless that is done, and verify."""
        drafts = [self.gpu.submit(works.draft(batch, self.setup.draft_tokens), draft)[1]] if draft else []
        yield self.gpu.submit(works.verify(batch), verify, after=drafts)[0]
        for request in batch:
            accepted = self.accepted(request)
            request.needs_catch_up = accepted == request.drafted
            self.emit(request, accepted + 1, lane)

    def accepted(self, request: Request) -> int:
        """Tokens of its draft that the target accepts."""
        drafted = request.drafted
        accepted = self.setup.run_length(request.index, request.emitted_tokens, drafted) if drafted else 0
        request.num_rounds += drafted > 0
        request.drafted_tokens += drafted
        request.accepted_tokens += accepted
        return accepted

    def emit(self, request: Request, num_tokens: int, lane: Any) -> None:
        if request.emitted_tokens:
            self.gaps.append((request.index, self.env.now - request.last_token_s))
        request.emitted_tokens = min(request.output_tokens, request.emitted_tokens + num_tokens)
        request.last_token_s = self.env.now
        if request.is_finished:
            self.seats.put(1), self.blocks.put(self.setup.blocks_for(request))
        elif lane is not None:
            lane.put(request)


def is_last(request: Request, chunk: Chunk) -> bool:
    """The prompt is through with this chunk."""
    return chunk.history_tokens + chunk.new_tokens >= request.prompt_tokens


def simulate(policy: str | Callable[[Server], Sequence[Steps]], requests: Sequence[Request], setup: Setup) -> Server:
    """Serve fresh `requests`, in order of arrival; they have the times of their tokens then, seconds. `policy` is
    one of POLICIES, or makes processes of your own. The server has its works and the gaps between tokens."""
    server, hybrid = Server(env := simpy.Environment(), setup), setup.options.hybrid_requests
    processes = {
        "baseline": [server.worker() for _ in range(setup.options.workers)],
        "pd": [server.decode_lane(server.draft, inf), server.prefill_lane()],
        "pdv": [server.decode_lane(server.verify, hybrid), server.verify_lane(), server.prefill_lane()],
        "unified": [server.one_worker()],
        "continuous": [server.engine()],
        "autoregressive": [server.engine()],
    }
    for process in [*(processes[policy] if isinstance(policy, str) else policy(server)), server.arrivals(requests)]:
        env.process(process)
    while any(not request.is_finished for request in requests):
        env.step()
    return server
