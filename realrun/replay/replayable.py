"""Needs of a real run beside what it shares with a simulated one: which scenarios can be replayed, how many requests
need slots at once, and the totals of its works.

Not here: the run's ingredients (sim.run.experiment), the host. No torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from sim.acceptance.tape import TapeAcceptance
from sim.metrics.records import StreamUsage, WorkRecord
from sim.policies.options import KvMode
from sim.run.experiment import Experiment


def check_replayable(experiment: Experiment) -> None:
    """Raise ValueError for a scenario that simulates but cannot be replayed."""
    resolved, scenario, engine = experiment.resolved, experiment.scenario, experiment.scenario.engine
    policy, num_gpus = resolved.policy, scenario.devices.count * resolved.num_gpus
    given = resolved.lengths.given
    if not experiment.requests():
        raise ValueError(
            f"window.arrivals_end_s={scenario.window.arrivals_end_s!r}: no request arrives by then "
            f"(seed {experiment.seed})"
        )
    simulated_only = (
        (engine.async_scheduling, "engine.async_scheduling=true", "a replay plans each work with all results"),
        (
            not resolved.limits.method.is_model and given,
            f"{scenario.profile!r} drafting by {resolved.limits.method}",
            "a replay drafts with a model of its own (a profile target+draft, speculation.method=draft_model)",
        ),
        (
            scenario.policy_options.kv is not KvMode.ROLLBACK and not policy.is_continuous,
            f"policy_options.kv={scenario.policy_options.kv}",
            "a replay rolls KV back: use rollback",
        ),
        (policy.drafts_ahead, f"policy {policy.name!r}", "a replay's kernels draft from verified tokens"),
        (num_gpus > 1, f"policy {policy.name!r} on {num_gpus} GPUs", "a replay has one"),
        (isinstance(engine.cuda_graph, str), f"engine.cuda_graph={engine.cuda_graph}", "a replay captures all or none"),
        (
            resolved.options.partition is not None,
            "policy_options.partition",
            "a replay's streams share all multiprocessors. Leave it out",
        ),
    )
    for applies, what, why in simulated_only:
        if applies:
            raise ValueError(f"{what} can be simulated only: {why}")
    acceptance = resolved.acceptance_at(given) if experiment.is_dictated and given else None
    if not isinstance(acceptance, TapeAcceptance):
        return
    requests = experiment.requests()
    if len(acceptance.tapes) < len(requests):
        raise ValueError(
            f"acceptance tape holds {len(acceptance.tapes)} requests and the run has {len(requests)}. "
            f"Record more, or --set workload.num_prompts={len(acceptance.tapes)}"
        )
    for request in requests:
        positions = len(acceptance.tapes[request.index])
        if positions < request.output_tokens:
            raise ValueError(
                f"acceptance tape of request {request.index} has {positions} positions and its output "
                f"{request.output_tokens} tokens. Give as many, or a smaller --output-len"
            )


def max_at_once(experiment: Experiment) -> int:
    """Requests that the policy can ever have in KV together."""
    max_in_flight = experiment.scenario.workload.max_concurrency or inf
    return int(min(len(experiment.requests()), max_in_flight, experiment.resolved.limits.max_num_seqs))


def usage_of(works: Sequence[WorkRecord]) -> list[StreamUsage]:
    """Totals by stream and kind, in order of first appearance."""
    totals: dict[tuple[str, str, str], list[float]] = {}
    for work in works:
        total = totals.setdefault((work.stream, work.device, work.kind), [0, 0.0, 0])
        if work.kind == "host":
            continue
        total[0] += 1
        total[1] += work.end_s - work.start_s
        total[2] += work.row_tokens + work.rows * max(0, work.draft_tokens - 1) + work.chunk_tokens
    return [
        StreamUsage(
            stream=stream, device=device, kind=kind, num_works=int(count), device_s=device_s, tokens=int(tokens)
        )
        for (stream, device, kind), (count, device_s, tokens) in totals.items()
    ]


def busy_seconds(works: Sequence[WorkRecord]) -> float:
    """Seconds in which at least one work was on the device."""
    busy_s, until_s = 0.0, -inf
    for start_s, end_s in sorted((work.start_s, work.end_s) for work in works if work.kind != "host"):
        busy_s += max(0.0, end_s - max(start_s, until_s))
        until_s = max(until_s, end_s)
    return busy_s
