"""Continuous batching as in vLLM v1: every step one target pass of verify rows and prefill chunks under a token budget.

Drafting follows the target pass on the same stream and the step is over when both are: then tokens are emitted. N-grams
are looked up on the host once the sampled tokens are there, as vLLM proposes after sampling, so that nothing hides
them, asynchronous scheduling neither. Without speculation this is `autoregressive`. With asynchronous scheduling the
next step is planned while the last one is under way, without its results: what arrives meanwhile waits one step longer,
and the host's preparation is hidden behind the device.

A property test holds the compiled core to this loop (sim.run.compiled). Not here: what a step carries (plan).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import inf
from typing import NamedTuple

from sim.costs.engine_costs import installed_engine
from sim.engine.serving import Serving
from sim.interface.host import Stream, Ticket
from sim.interface.request import Request
from sim.interface.wait import Task
from sim.interface.work import Work
from sim.plugins import PluginError, shown
from sim.policies.continuous.apart import Apart
from sim.policies.continuous.hooks import Admit, Hooks, Share
from sim.policies.continuous.plan import (
    Step,
    begin_step,
    commit_step,
    load_of,
    plan_step,
)
from sim.policies.options import EngineLimits
from sim.policies.policy import Policy
from sim.policies.works import draft_work, later_drafts, step_work


def coroutines(serving: Serving, _: object, limits: EngineLimits) -> list[Task]:
    stream = serving.host.stream("gpu")
    if limits.scheduler is not None:
        return [installed_engine(limits.scheduler).serve(serving, limits, stream)]
    return [by_rows(serving, limits, stream)]


def continuous(
    *,
    name: str,
    admit: Admit | None = None,
    split: Share | None = None,
    draft_length: Share | None = None,
    summary: str = "continuous with hooks",
    source: str = "hooks",
) -> Policy:
    """The policy `continuous` with your choices. `lanesim.register` adds it under its name.

    - `admit(waiting)` gives the request of `waiting` that is admitted next, or None to admit no other one in this step.
    - `split(request, tokens, step)` gives the tokens of `request` in a step. A running request with 0 tokens waits for
      the next step. After 0 tokens for a waiting one no request is admitted in this step.
    - `draft_length(request, tokens, step)` gives the length of its next draft.

    `tokens` is what `continuous` would choose, and the most that a hook may give. Engines that do not mix prompts with
    decoding (SGLang) split only the tokens of prompts.

    >>> import lanesim
    >>> def shortest(waiting):
    ...     return min(waiting, key=lambda request: (request.prompt_tokens, request.index))
    >>> mine = lanesim.register(lanesim.continuous(name="shortest", admit=shortest))
    >>> lanesim.simulate(profile="cpu/tiny", policy="shortest", num_prompts=5, request_rate=10).metrics["completed"]
    5
    """
    for hook, function in {"admit": admit, "split": split, "draft_length": draft_length}.items():
        if not (function is None or callable(function)):
            raise PluginError(f"policy {shown(name)}: {hook}={shown(function)} must be a function")

    def build(serving: Serving, _: object, limits: EngineLimits) -> list[Task]:
        if limits.scheduler is not None:
            raise PluginError(
                f"policy {name!r} has hooks, and {limits.scheduler!r} plans its own steps. Use continuous"
            )
        hooks = Hooks(name, serving, limits.max_num_scheduled_tokens, admit, split, draft_length)
        return [by_rows(serving, limits, serving.host.stream("gpu"), hooks)]

    return Policy(name=name, summary=summary, source=source, build=build, is_continuous=True, takes=())


class Flight(NamedTuple):
    """A step under way."""

    step: Step
    target: Ticket
    last: Ticket
    """Ticket of its last work: the draft where one follows the target pass."""
    lengths: Mapping[int, int]
    """Draft lengths by arrival index."""
    started_s: float
    lookup: Work | None = None
    """The search for n-grams that goes on from the tokens which the step samples."""


async def by_rows(serving: Serving, limits: EngineLimits, stream: Stream, hooks: Hooks | None = None) -> None:
    """Serve for ever."""
    running: list[Request] = []
    """Seated requests, oldest first."""
    flight: Flight | None = None
    after_rows = False
    """The step before carried rows alone."""
    host, group = serving.host, serving.intake.group
    apart = Apart(serving, limits, hooks) if limits.retracts else None
    plan = partial(plan_step, serving, limits=limits, hooks=hooks) if apart is None else apart.plan
    planned: Step | None = None
    planned_at_s = 0.0
    while True:
        if flight is None:
            if planned is None or planned.is_empty:
                if group is not None:
                    await group.between()
                planned = plan(running, drafting=None, after_rows=after_rows and bool(running))
                planned_at_s = host.now_s
                if planned.is_empty:
                    await host.wait(serving.intake.changed)
                    continue
            step, planned = begin_step(serving, planned), None
            if step.is_empty:
                continue
            group_tokens = 0 if group is None else await group.begin(step.tokens)
            flight = start_step(serving, step, stream, limits, host.now_s - planned_at_s, group_tokens, hooks)
        after_rows = not flight.step.prompts
        if limits.async_scheduling:
            planned = plan(running, drafting=flight.lengths, after_rows=after_rows)
            planned_at_s = host.now_s
        await flight.last
        if flight.lookup is not None:
            await host.run(flight.lookup, stream)
        if group is not None:
            await group.end()
        step, lengths = flight.step, flight.lengths
        if any(lengths.values()) and (step.rows or step.completed):
            serving.controller.saw_draft(host.now_s - flight.started_s, 0)
        accepted = (await flight.target).accepted
        if apart is not None:
            step, accepted = apart.kept(step, accepted)
        serving.open_rounds(commit_step(serving, step, accepted), lengths)
        running = [request for request in running if request.emitted_tokens < request.output_tokens]
        flight = None


def start_step(
    serving: Serving,
    step: Step,
    stream: Stream,
    limits: EngineLimits,
    ahead_s: float,
    group_tokens: int = 0,
    hooks: Hooks | None = None,
) -> Flight:
    """The works of `step`, planned `ahead_s` before now, among `group_tokens` of all ranks, are submitted; the draft is
    as long as the longest that the controller, or a hook, chooses, where somebody can use it."""
    requests = (*step.rows, *step.prompts)
    lengths = serving.controller.lengths_planned(requests, step.num_planned)
    load = load_of(step)
    if hooks is not None:
        lengths = hooks.lengths(load, lengths)
    draft_tokens = longest = max(lengths) if step.uses_drafts else 0
    run, method = serving.host.run, limits.method
    if limits.drafts_before_verify and method.runs_per_token:
        draft_tokens = min(1, longest)
        if load.max_drafted > 1:
            run(later_drafts(load, ahead_s), stream)
            ahead_s = inf
    target = last = run(step_work(load, ahead_s, group_tokens), stream)
    if serving.controller.draft_tokens_max and not method.looks_up:
        last = run(draft_work(load, draft_tokens, method), stream)
    looks_up = method.looks_up and longest and (load.num_rows or load.completed)
    lookup = draft_work(load, longest, method) if looks_up else None
    by_index = dict(zip([request.index for request in requests], lengths, strict=True))
    return Flight(step, target, last, by_index, serving.host.now_s, lookup)


CONTINUOUS = Policy(
    name="continuous",
    summary="verify rows and prefill chunks in one pass under a token budget, then drafting",
    is_built_in=True,
    source="vLLM v1",
    build=coroutines,
    is_continuous=True,
    takes=(),
)
AUTOREGRESSIVE = replace(
    CONTINUOUS,
    name="autoregressive",
    summary="continuous batching without speculation",
    source="vLLM",
    is_speculative=False,
)
