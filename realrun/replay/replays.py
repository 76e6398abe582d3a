"""A scenario on real hardware: every policy and seed in turn, and the results directory of what happened.

The directory is the simulator's (sim.report.results) with more columns in work.parquet, the profile, and a `replay`
block in summary.json that says where acceptance came from, on which machine it ran, and whether it ran to its end. Not
here: the command line (realrun.cli.replay), the comparison with the simulator (realrun.validate.error_parts).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from realrun.host.gpuhost import GpuHost
from realrun.host.machine import fingerprint, frozen_heap
from realrun.kernels.device_passes import ChunkShape, PassShape
from realrun.kernels.host_slots import PairOptions, decoding_shapes
from realrun.replay.machine_speed import probe
from realrun.replay.measured_costs import MeasuredWork, WakeLatency, mean, measured_work, real_columns
from realrun.replay.pair_executor import PairExecutor
from realrun.replay.replayable import busy_seconds, max_at_once, usage_of
from sim.compare.side_by_side import RESULT_SCHEMA, cost_source
from sim.costs.profile_files import encode
from sim.files.json_values import Json
from sim.interface.work import Kind, Model
from sim.metrics.records import RunRecord
from sim.metrics.summary import summarise
from sim.report.results import read_columns, write_parquet, write_results
from sim.run.experiment import Accounts, Experiment
from sim.run.scenario import Scenario, to_plain

SHORTER = 4
"""Times that each prompt of a rehearsal is shorter than the one before."""
REHEARSAL_REQUESTS = 4
"""Requests served before the measured run, at once: first passes pick algorithms, and show who runs what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    experiment: Experiment
    record: RunRecord
    works: list[MeasuredWork]
    wake: WakeLatency
    num_allocations: int
    """Times the device allocator went to the driver during the run: not 0 means that it disturbed the times."""
    probed_s: list[tuple[float, ...]] = field(default_factory=list)
    """Seconds that realrun.replay.machine_speed took before the run and after it."""


def rehearse(experiment: Experiment, executor: PairExecutor) -> None:
    """Serve a few requests untimed, then run the largest pass of each kind on the streams that ran such, so that the
    measured run meets nothing for the first time.

    Captures need what a first run tells, and empty the allocator, of what earlier policies left there too: so the
    largest passes come after them, those that have run before once more, and a few requests are served again.
    """
    _serve_a_few(experiment, executor)
    kernels = executor.kernels
    seen = {issuer: tuple(issuer.warmed) for issuer in executor.issuers}
    if kernels.options.cuda_graphs:
        is_fixed = experiment.scenario.speculation.controller == "fixed" and experiment.resolved.policy.is_built_in
        drafts = experiment.resolved.lengths
        lengths = [drafts.given] if is_fixed else list(range(1, drafts.max + 1))
        shapes = decoding_shapes(kernels.options, lengths, has_draft=drafts.max > 0)
        for issuer, passes in seen.items():
            # A stream that only prefills needs no graph, one that only verifies none of drafts.
            used = {(shape.kind, shape.model) for shape in passes}
            kernels.warm(issuer, [shape for shape in shapes if (shape.kind, shape.model) in used])
    for issuer, passes in seen.items():
        kernels.warm(issuer, largest_passes(passes, experiment, kernels.options), again=kernels.options.cuda_graphs)
    if kernels.options.cuda_graphs:
        _serve_a_few(experiment, executor)


def largest_passes(seen: Iterable[PassShape], experiment: Experiment, options: PairOptions) -> list[PassShape]:
    """One pass as large as any that the run can need, of each kind in `seen`, and of decoding rows with prompts where
    the stream has either. Then the same with shorter and shorter prompts."""
    limits, longest = experiment.resolved.limits, max(request.prompt_tokens for request in experiment.requests())
    max_rows = min(max_at_once(experiment), options.slots)
    largest, kinds = [], dict.fromkeys((shape.kind, shape.model, shape.rows > 0, bool(shape.chunks)) for shape in seen)
    for kind, model in ((Kind.STEP, Model.TARGET), (Kind.DRAFT, Model.DRAFT)):
        # A few requests that come at once may never meet in one pass.
        if {part for _, of, *both in list(kinds) if of is model for part in (0, 1) if both[part]} == {0, 1}:
            kinds[kind, model, True, True] = None
    for kind, model, has_rows, has_chunks in kinds:
        # Whoever prefills has a slot that nobody decodes in.
        rows = options.padded_rows(min(max_rows, options.slots - has_chunks)) if has_rows else 0
        # A draft catches up on two tokens at most.
        width = 1 if not has_rows else 2 if model is Model.DRAFT else experiment.resolved.lengths.max + 1
        # Buckets double, and rows that are padding leave their tokens to prompts.
        tokens = max(1, limits.max_num_batched_tokens - (rows + 1) // 2 * width)
        num_chunks = max(1, min(max_rows, options.max_rows - rows, tokens // longest))
        chunks = [ChunkShape(num_chunks, min(longest, tokens), model is Model.TARGET)]
        rest = tokens - num_chunks * longest
        if 0 < rest < longest and num_chunks < min(max_rows, options.max_rows - rows):
            chunks.append(ChunkShape(1, rest, is_sampled=False))
        drafted = experiment.resolved.lengths.max if kind is Kind.DRAFT and has_rows else 0
        shape = PassShape(kind, model, rows, width, drafted, tuple(chunks) if has_chunks else ())
        largest.append(shape)
        # An allocator keeps small tensors apart from large ones.
        lengths = [longest // SHORTER**step for step in range(1, 10) if longest // SHORTER**step] if has_chunks else []
        largest += [shape._replace(chunks=(ChunkShape(1, length, model is Model.TARGET),)) for length in lengths]
    return sorted(largest, key=lambda shape: -shape.num_tokens)


def _serve_a_few(experiment: Experiment, executor: PairExecutor) -> None:
    with GpuHost(executor, experiment.draws() if experiment.is_dictated else None) as host:
        requests = experiment.requests()[:REHEARSAL_REQUESTS]
        for request in requests:
            request.arrival_s = 0.0
        serving = experiment.start(host, requests)
        host.run_until()
    experiment.check_served(serving)
    executor.reset()


def replay(experiment: Experiment, executor: PairExecutor) -> Replay:
    """Rehearse one policy and run it, with fixed passes before and after. Raises PolicyStalled."""
    rehearse(experiment, executor)
    before_s = probe(executor.kernels, executor.issuers)
    done = run(experiment, executor)
    return replace(done, probed_s=[before_s, probe(executor.kernels, executor.issuers)])


def run(experiment: Experiment, executor: PairExecutor) -> Replay:
    """Run one policy in real time. Raises PolicyStalled if it stops with requests unserved."""
    runs_on = executor.kernels.runs_on
    allocations = runs_on.num_allocations()
    with frozen_heap(), GpuHost(executor, experiment.draws() if experiment.is_dictated else None) as host:
        serving = experiment.start(host, experiment.requests())
        host.run_until(experiment.scenario.window.stop_s)
        end_s = host.now_s
    experiment.check_served(serving)
    executor.reset()
    num_allocations = runs_on.num_allocations() - allocations
    works = [measured_work(ticket) for ticket in host.works]
    records = [work.record for work in works]
    return Replay(
        experiment=experiment,
        record=experiment.record(
            serving,
            Accounts(
                now_s=end_s,
                usage=usage_of(records),
                device_busy_s=busy_seconds(records),
                num_polls=host.num_polls,
                works=records,
            ),
        ),
        works=works,
        wake=WakeLatency(mean(host.reactions.wake_latencies_s[False]), mean(host.reactions.wake_latencies_s[True])),
        num_allocations=num_allocations,
    )


def replay_all(
    experiments: Sequence[Experiment], executor: PairExecutor, *, on_run: Callable[[Replay], None]
) -> list[Replay]:
    """Every experiment in turn. An interrupt (Ctrl-C) keeps the runs that are over, and is raised where none is."""
    done: list[Replay] = []
    for experiment in experiments:
        try:
            done.append(replay(experiment, executor))
        except KeyboardInterrupt:
            if not done:
                raise
            break
        on_run(done[-1])
    return done


def about(device: str, *, is_dictated: bool = True) -> dict[str, Json]:
    """The machine and the models, as summary.json has them. A tape dictates acceptance, or real weights decide it."""
    return {
        "acceptance": "tape" if is_dictated else "model",
        "device": device,
        "weights": "random" if is_dictated else "loaded",
        "fingerprint": fingerprint(device.partition(":")[0]),
    }


def result_of(scenario: Scenario, replays: Sequence[Replay], described: Mapping[str, Json]) -> dict[str, Any]:
    """Content of summary.json; `described` as `about` has it."""
    profile = replays[0].experiment.resolved.profile
    bounds_ms, workload = scenario.goodput.bounds_ms, scenario.workload
    first, last = workload.num_warmups, workload.num_cooldowns
    runs = [summarise(each.record, goodput_ms=bounds_ms, num_warmups=first, num_cooldowns=last) for each in replays]
    is_partial = len(runs) < len(scenario.policy) * scenario.replications
    num_allocations = sum(each.num_allocations for each in replays)
    return {
        "schema": RESULT_SCHEMA,
        "scenario": to_plain(scenario),
        "scenario_hash": scenario.digest,
        "profile": msgspec.to_builtins(cost_source(profile)),
        "replay": {
            **described,
            "partial": is_partial,
            "num_device_allocations": num_allocations,
            "is_disturbed_by_allocations": num_allocations > 0,
            "slots": replays[0].experiment.resolved.num_slots,
            "runs": [
                {
                    "policy": each.record.policy,
                    "seed": each.record.seed,
                    "num_device_allocations": each.num_allocations,
                    "plain_wake_s": each.wake.plain_s,
                    "polled_wake_s": each.wake.polled_s,
                    "probed_s": each.probed_s,
                }
                for each in replays
            ],
        },
        "runs": runs,
    }


def write_replays(directory: Path, scenario: Scenario, result: Mapping[str, Json], replays: Sequence[Replay]) -> None:
    """The results directory: sim.report.results, the further columns of work.parquet, and the profile."""
    write_results(directory, scenario, result, [each.record for each in replays])
    if any(each.works for each in replays):
        columns = read_columns(directory / "work.parquet")
        works = [work for each in replays for work in each.works]
        write_parquet(directory / "work.parquet", columns | real_columns(works))
    (directory / "profile.json").write_bytes(encode(replays[0].experiment.resolved.profile))
