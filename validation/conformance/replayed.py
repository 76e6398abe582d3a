"""Steps of `continuous` beside those of real schedulers. The exit code is the number of logs that differ.

    .venv/bin/python -m validation conformance LOG...              real engines' logs, and drawn ones (.jsonl.gz)
    .venv/bin/python -m validation conformance --vllm PATH         schedules drawn now, by the vLLM in that folder

A step is equal where requests, tokens of each, drafts among them, preempted requests and tokens found in the cache are.
PATH is an installed vLLM's site-packages, or a wheel unpacked (its Python is enough; what it imports must be
installed).
The loop is that of `EngineCore.step`, or with asynchronous scheduling of `step_with_batch_queue`: a step is scheduled,
the one before it brings its results, the next one is scheduled. Not here: time, which decides nothing in a log (the
simulator's loop, sim.policies.continuous.loop, is held to these plans by its tests).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import msgspec

from realrun.installed.serving import vllm as installed_engine
from realrun.installed.vllm_scheduler import SchedulerSettings, installed_version
from sim.costs.engine_costs import NO_SPECULATION, engine_names, load_engine
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.drafters.registry import DRAFTERS, SPELLINGS, drafter_of
from sim.engine.controllers import build_controller
from sim.engine.draft_length import Controller
from sim.engine.paged import PagedPool
from sim.engine.serving import Serving
from sim.hosts.scripted import ScriptHost
from sim.interface.request import Request
from sim.names import unknown
from sim.policies.continuous.plan import Step, begin_step, commit_step, plan_step
from sim.policies.options import EngineLimits
from sim.run.limits import limits_of, name_in_rules, pool_rules
from sim.run.scenario import Scenario
from validation.conformance import sglang_scheduler
from validation.conformance.drawn import UNEQUAL, drawn_logs
from validation.conformance.logs import Decision, Log, read_logs, tape_of, write_logs
from validation.conformance.sglang import PlannedStep, SglangLog, simulated

WITH_DRAFT_MODEL = "h100-sxm/llama-2-7b+tinyllama-1.1b"
WITH_HEAD = "h100-sxm/llama-3.1-8b+eagle3"

AnyStep = Decision | PlannedStep | None
MAX_SHOWN = 5
"""Logs of which the first step that differs is printed."""
MAX_CODE = 100
"""Exit codes end at 255, and some above 125 mean other things."""


class Difference(NamedTuple):
    """A step that differs; None where one side has no such step."""

    step: int
    simulated: AnyStep
    real: AnyStep

    @property
    def finds_other_tokens(self) -> bool:
        """A step of SGLang's that has a prompt with other cached tokens: it loses others where memory is short."""
        ours, theirs = self.simulated, self.real
        if not (isinstance(ours, PlannedStep) and isinstance(theirs, PlannedStep) and ours.at_s == theirs.at_s):
            return False
        pairs = zip(ours.chunks, theirs.chunks, strict=False)
        chunks = next((pair for pair in pairs if pair[0] != pair[1]), None)
        return chunks is not None and chunks[0][0] == chunks[1][0] and chunks[0][2] != chunks[1][2]


def differences(log: Log | SglangLog, engine: str | None = None) -> list[Difference]:
    """Steps in which `continuous`, under `engine` or the log's own, decides otherwise; all where it lacks a setting."""
    mine: Sequence[Decision | PlannedStep] = ()
    with suppress(ValueError):
        if isinstance(log, SglangLog):
            mine = simulated(msgspec.structs.replace(log.case, engine=engine or log.engine))
        else:
            mine = replayed(log, engine)
    pairs: Iterable[tuple[int, tuple[AnyStep, AnyStep]]] = enumerate(zip_longest(mine, log.steps))
    return [Difference(number, ours, real) for number, (ours, real) in pairs if not _equal(ours, real)]


def _equal(ours: AnyStep, real: AnyStep) -> bool:
    """Tokens from the cache count where they were noted."""
    if isinstance(ours, Decision) and isinstance(real, Decision) and real.cached is None:
        ours = msgspec.structs.replace(ours, cached=None)
    return ours == real


def replayed(log: Log, engine: str | None = None) -> list[Decision]:
    """[steps with tokens] what `continuous` decides where requests arrive and drafts are accepted as in `log`."""
    return _Replay(log, engine or log.engine).decisions()


class _Replay:
    """`continuous` without a clock."""

    def __init__(self, log: Log, engine: str) -> None:
        settings = log.settings
        self.log, self.tape = log, tape_of(log)
        self.limits, pool, self.controller = _parts(settings, engine)
        self.requests = [
            Request(
                index=index,
                id=str(index),
                arrival_s=0.0,
                prompt_tokens=each.prompt_tokens,
                output_tokens=each.stop_tokens or min(each.output_tokens, settings.max_model_len - each.prompt_tokens),
                unforeseen_tokens=each.output_tokens - each.stop_tokens if each.stop_tokens else 0,
                priority=-each.priority,
                content=each.content,
            )
            for index, each in enumerate(log.requests)
        ]
        host = ScriptHost(lambda work: 0.0)
        self.serving = Serving(host, self.requests, pool, self.controller)
        self.running: list[Request] = []
        self.steps: list[Decision] = []
        self.num_arrived = 0
        self.num_preemptions = [0] * len(self.requests)
        """[requests] by the last step with tokens: one that gave way in an empty plan counts with the next step."""

    def decisions(self) -> list[Decision]:
        serving, limits, requests = self.serving, self.limits, self.requests
        flight: Step | None = None
        planned: Step | None = None
        lengths: dict[int, int] = {}
        while not serving.is_all_finished and len(self.steps) <= 2 * len(self.log.steps):
            if flight is None:
                if planned is None or planned.is_empty:
                    planned = self._plan(None)
                if planned.is_empty:
                    if self.num_arrived == len(requests):
                        break
                    self._arrive()
                    continue
                flight, planned = self._without_aborted(begin_step(serving, planned)), None
                if flight.is_empty:
                    flight = None
                    continue
                members = (*flight.rows, *flight.prompts)
                chosen = self.controller.lengths_planned(members, flight.num_planned)
                lengths = dict(zip([request.index for request in members], chosen, strict=True))
            if limits.async_scheduling:
                planned = self._plan(lengths)
            self._commit(self._without_aborted(flight), lengths)
            flight = None
        return self.steps

    def _arrive(self) -> None:
        self.serving.intake.queue_up(self.requests[self.num_arrived])
        self.num_arrived += 1

    def _plan(self, drafting: Mapping[int, int] | None) -> Step:
        arrivals = self.log.requests
        while self.num_arrived < len(arrivals) and arrivals[self.num_arrived].step <= len(self.steps):
            self._arrive()
        for request, each in zip(self.requests[: self.num_arrived], arrivals, strict=False):
            if 0 <= each.abort_step <= len(self.steps) and not request.is_finished:
                self._abort(request)
        seated = {request.index for request in self.running}
        before = self.num_preemptions
        step = plan_step(self.serving, self.running, self.limits, drafting)
        if not step.is_empty:
            preempted = [
                request.index
                for request, count in zip(self.requests, before, strict=True)
                if request.num_preemptions > count
            ]
            rows = list(zip(step.rows, step.row_tokens, strict=True))
            prompts = list(zip(step.prompts, step.chunks, strict=True))
            tokens = {request.index: count for request, count in rows}
            tokens |= {request.index: chunk.new_tokens for request, chunk in prompts}
            drafts = {request.index: count - 1 for request, count in rows if count > 1}
            for request, chunk in prompts:
                padding = chunk.history_tokens + chunk.new_tokens - request.prefill_goal
                if padding > 0:
                    drafts[request.index] = padding
            cached = {
                request.index: chunk.history_tokens
                for request, chunk in prompts
                if request.index not in seated or request.index in preempted
            }
            self.steps.append(Decision(tokens, drafts, tuple(preempted), cached, not step.uses_drafts))
            self.num_preemptions = [request.num_preemptions for request in self.requests]
        return step

    def _abort(self, request: Request) -> None:
        """It is gone, from a step under way as well."""
        request.output_tokens, request.unforeseen_tokens = request.emitted_tokens, 0
        if request in self.running:
            self.running.remove(request)
        elif not request.is_preempted:
            self.serving.intake.remove(request)
        self.serving.release(request)

    def _without_aborted(self, step: Step) -> Step:
        prompts = [each for each in zip(step.prompts, step.chunks, strict=True) if not each[0].is_finished]
        rows = [each for each in zip(step.rows, step.row_tokens, strict=True) if not each[0].is_finished]
        return step._replace(
            rows=[row for row, _ in rows],
            row_tokens=[tokens for _, tokens in rows],
            prompts=[prompt for prompt, _ in prompts],
            chunks=tuple(chunk for _, chunk in prompts),
        )

    def _commit(self, step: Step, lengths: dict[int, int]) -> None:
        """`step` brings what the log's tape says, and the drafts for the next one where their lengths vary."""
        accepted = [
            min(request.drafted, self.tape.accepted.get((request.index, request.emitted_tokens), 0))
            for request in step.rows
        ]
        going_on = commit_step(self.serving, step, accepted)
        if self.limits.method.looks_up:
            lengths |= {each.index: self.tape.drafted.get((each.index, each.emitted_tokens), 0) for each in going_on}
        self.serving.open_rounds(going_on, lengths)
        self.running = [request for request in self.running if not request.is_finished]


def _parts(settings: SchedulerSettings, engine: str) -> tuple[EngineLimits, PagedPool, Controller]:
    """Limits, memory and draft lengths under an engine's rules."""
    method = SPELLINGS[settings.method or "draft_model"]
    is_head = method is drafter_of(_profile(WITH_HEAD))
    profile = _profile(WITH_HEAD if is_head else WITH_DRAFT_MODEL)
    if settings.parallel_drafting and not method.in_one_pass:
        method = DRAFTERS["parallel"]
    table = settings.num_speculative_tokens_per_batch_size
    draft_tokens = settings.num_speculative_tokens
    scenario = Scenario.of(
        None,
        **{
            "profile": profile.name,
            "policy": ["continuous"],
            "speculation.method": method.name,
            "num_speculative_tokens": draft_tokens,
            "speculation.controller": "by_batch" if table else "fixed",
            "speculation.num_speculative_tokens_per_batch_size": table,
            "engine.name": engine,
            "engine.max_num_seqs": settings.max_num_seqs,
            "engine.max_num_batched_tokens": settings.max_num_batched_tokens,
            "engine.max_model_len": settings.max_model_len,
            "engine.rules.long_prefill_token_threshold": settings.long_prefill_token_threshold,
            "engine.rules.enable_chunked_prefill": settings.enable_chunked_prefill,
            "engine.async_scheduling": settings.async_scheduling,
        },
    )
    costs = load_engine(engine, profile.gpu.name)
    # The scheduler alone obeys an interval on one rank, too; its engine does not.
    interval = settings.prefill_schedule_interval if costs.rules.has_prefill_interval else 1
    limits = limits_of(scenario, profile, costs)
    limits = msgspec.structs.replace(
        limits,
        prefill_schedule_interval=interval,
        counts_prompt_steps=limits.counts_prompt_steps and settings.data_parallel_size == 1,
        skips_unused_drafts=limits.skips_unused_drafts and settings.use_v2_model_runner,
    )
    drafter = name_in_rules(method, profile) if draft_tokens else NO_SPECULATION
    pool = PagedPool(
        settings.num_gpu_blocks - costs.rules.null_blocks,
        settings.block_size,
        0,
        is_caching=settings.enable_prefix_caching,
        ends_differ=True,
        **pool_rules(costs.rules, drafter, is_async=settings.async_scheduling),
        max_tokens=settings.max_model_len if costs.rules.trims_at_max_model_len else None,
    )
    controller = build_controller("by_batch" if table else "fixed", draft_tokens, table=table)
    return limits, pool, controller


@lru_cache(maxsize=4)
def _profile(name: str) -> Profile:
    return load(name)


# -- the command


def main(
    logs: list[Path],
    engine: str | None = None,
    vllm: Path | None = None,
    draws: int = 20,
    first_seed: int = 0,
    keep: int = 0,
    out: Path | None = None,
    sglang: Path | None = None,
) -> int:
    """Raises ValueError for files and engines that are not there."""
    if engine is not None and not engine.endswith(".json") and engine not in engine_names():
        raise ValueError(unknown("engine", engine, engine_names()))
    if not logs and vllm is None and sglang is None:
        raise ValueError("give a log, or --vllm or --sglang with the folder of an installed or unpacked wheel")
    seeds, num_differ = range(first_seed, first_seed + draws), 0
    for path in logs:
        num_differ += _judged(path.name, read_logs(path), engine)
    if vllm is not None:
        version = _version(vllm)
        if engine is None and version not in engine_names():
            engine = installed_engine().like
            print(f"there is no engine file {version}: under {engine}, the newest")
        num_differ += _drawn(drawn_logs(seeds, version), engine, keep, out)
    if sglang is not None:
        newest = engine or max(name for name in engine_names() if name.startswith("sglang"))
        num_differ += _drawn(sglang_scheduler.drawn_logs(sglang, seeds, newest), newest, keep, out)
    return min(num_differ, MAX_CODE)


def _judged(name: str, logs: Sequence[Log | SglangLog], engine: str | None) -> int:
    """Number of `logs` that differ, printed with the first of them; SGLang's with other cached tokens are apart."""
    compared = [(log, steps) for log in logs if (steps := differences(log, engine))]
    bad = [(log, steps) for log, steps in compared if not steps[0].finds_other_tokens]
    num_steps, others = sum(len(log.steps) for log in logs), len(compared) - len(bad)
    under = engine or ", ".join(sorted({log.engine for log in logs}))
    print(f"{name}: {num_steps} steps under {under}; {len(logs)} logs, {len(bad)} differ")
    print(f"  other cached tokens: {others}\n" * bool(others), end="")
    for log, steps in bad[:MAX_SHOWN]:
        print(f"  {log.name}: {len(steps)} of {len(log.steps)} steps, first {steps[0].step}")
        print(f"    simulated {steps[0].simulated}\n    real      {steps[0].real}")
    return len(bad)


def _version(folder: Path) -> str:
    sys.path.insert(0, str(folder.resolve()))
    try:
        return f"vllm-{'.'.join(installed_version().split('.')[:2])}"
    except ImportError as error:
        raise ValueError(f"--vllm {str(folder)!r}: no vLLM that can be imported ({error})") from None


def _drawn(
    drawn: Iterable[tuple[str, Sequence[Log | SglangLog]]], engine: str | None, keep: int, out: Path | None
) -> int:
    """Number of drawn logs that differ; writes the first `keep` of each feature to `out`."""
    num_differ, kept = 0, list[Log | SglangLog]()
    for feature, logs in drawn:
        num_differ += _judged(feature, logs, engine) * (feature not in UNEQUAL)
        kept += logs[:keep]
    if out is not None:
        write_logs(out, kept)
    return num_differ
