"""Whole runs in the compiled core: which ones it takes, and what it leaves in the serving and on the host.

The core does what `continuous.loop.by_totals` does, to the last bit; whatever it does not take is served by Python,
with the same result. LANESIM_CORE=off leaves everything to Python. Not here: the loop itself (sim/run/core.c), numbers
of costs (sim.costs.forms.slots).
"""

from __future__ import annotations

import os
from array import array
from collections import Counter
from typing import Any

import numpy as np

from sim.acceptance.draws import AcceptanceDraws
from sim.costs.cost import prompt_result_s
from sim.costs.forms.compact import CompactCosts
from sim.costs.forms.slots import slots_of
from sim.costs.forms.table import TableCosts
from sim.engine.fleet import Fleet
from sim.engine.paged import PagedPool
from sim.engine.radix import RadixPool
from sim.engine.serving import Serving
from sim.engine.time_series import Gauge
from sim.hosts.simulated import SimHost, Usage
from sim.interface.work import Kind
from sim.policies.continuous.loop import can_be_totals
from sim.policies.options import Method
from sim.run.resolve import Resolved

try:
    from sim.run import core
except ImportError:  # No compiler was there at installation.
    core = None  # type: ignore[assignment]

SWITCH = "LANESIM_CORE"
IN_SERVICE = ("prefill", "decode", "verify", "draft", "draft_prefill")
"""Kinds of passes, as the core numbers them."""
METHODS = (Method.DRAFT_MODEL, Method.EAGLE3, Method.MTP)
told: Counter[str] = Counter()
"""Runs of this process by who served them: "core", or the reason why Python did."""


def said() -> str:
    """Runs of this process, those that Python served with the reasons; empty where there were none."""
    in_python = [f"{count} in Python ({reason})" for reason, count in sorted(told.items()) if reason != "core"]
    runs = [f"{told['core']} runs in the compiled core"] if told["core"] else []
    return ", ".join(runs + in_python)


def is_on() -> bool:
    """True where the core is there, and nobody switched it off."""
    return core is not None and os.environ.get(SWITCH) != "off"


def serve(resolved: Resolved, serving: Serving | Fleet, host: SimHost, draws: AcceptanceDraws) -> bool:
    """Serve all requests in the core; False, and nothing has changed, where Python must."""
    reason = _reason(resolved, serving, host) if is_on() else "no core"
    if not reason:
        assert isinstance(serving, Serving)
        try:
            reason = "" if _serve(resolved, serving, host, draws) else "memory is short"
        except BaseException:
            host.close()
            raise
    told[reason or "core"] += 1
    return not reason


def _reason(resolved: Resolved, serving: Serving | Fleet, host: SimHost) -> str:
    """Why the core does not take the run; empty where it does."""
    if not isinstance(serving, Serving):
        return "several replicas"
    limits, costs, controller = resolved.limits, resolved.host_costs, serving.controller
    if not resolved.policy.is_built_in or not resolved.policy.is_continuous or limits.scheduler is not None:
        return f"policy {resolved.policy.name}"
    if not isinstance(costs, CompactCosts | TableCosts) or costs.host.is_synchronous:
        return "costs of another form"
    if costs.host.idle_ramp is not None or type(serving.kv) not in (PagedPool, RadixPool):
        return "costs or memory that remember"
    if serving.draws is None or serving.names_requests or host.is_heard:
        return "somebody looks"
    if not limits.mixes_prompts or limits.receive_interval > 1 or limits.batch_wait_steps:
        return "an engine that does not mix prompts"
    if not can_be_totals(serving, limits) or serving.paged.is_sharing:
        return "rows are not totals"
    length = controller.constant_length
    if length != controller.draft_tokens_max or (length and limits.method not in METHODS):
        return f"drafts of {limits.method.value}"
    if any(passes.projects_context for passes in (costs._target, costs._draft) if passes is not None):
        return "drafts of dspark"
    if any(request.priority for request in serving.requests) or not serving.requests:
        return "priorities"
    return ""


def _serve(resolved: Resolved, serving: Serving, host: SimHost, draws: AcceptanceDraws) -> bool:
    requests, limits, costs, intake = serving.requests, resolved.limits, resolved.host_costs, serving.intake
    assert isinstance(costs, CompactCosts | TableCosts)
    draft_tokens, num_requests = serving.controller.draft_tokens_max, len(requests)
    reads_features = limits.method.reads_features
    slots = slots_of(costs, (draft_tokens + 1, draft_tokens + 1 if reads_features else 2))
    arrivals = np.array([request.arrival_s for request in requests])
    prompts = np.array([request.prompt_tokens for request in requests], dtype=np.int64)
    outputs = np.array([request.output_tokens for request in requests], dtype=np.int64)
    blocks = -(-(prompts + outputs + serving.kv.draft_slots) // serving.kv.block_size)
    measured = np.array([request.index in serving.measured for request in requests], dtype=np.uint8)
    accepted, offsets = np.zeros(1, dtype=np.int8), np.zeros(num_requests + 1, dtype=np.int64)
    if draft_tokens:
        rounds = [draws.rounds(each.index, 1, each.output_tokens, draft_tokens) for each in requests]
        accepted = np.concatenate(rounds)
        np.cumsum([len(each) for each in rounds], out=offsets[1:])
    times = np.full((5, num_requests), np.nan)
    given = core.serve(
        (
            draft_tokens,
            limits.max_num_seqs,
            limits.max_num_scheduled_tokens,
            serving.max_concurrency or 0,
            limits.slots_per_request,
            limits.padded_tokens,
            serving.kv.num_blocks,
            limits.async_scheduling,
            limits.no_evict,
            limits.whole_prompts,
            reads_features,
        ),
        (
            costs.host.step_s,
            costs.host.row_s,
            0.0 if costs.host.eager_step_s is None else costs.host.eager_step_s - costs.host.step_s,
            costs.result_s,
            prompt_result_s(costs),
            tuple([costs.host.served.get(kind, 1.0) for kind in IN_SERVICE]),
        ),
        *slots.models,
        (
            arrivals,
            *times,
            intake.frontend_s + intake.frontend_token_s * prompts,
            prompts,
            outputs,
            blocks,
            measured,
            offsets,
            accepted,
        ),
        slots.ask,
        slots.check,
    )
    if given is None:
        return False
    gaps, counts, now_s, *usage, busy_s, queue, held = given
    serving.gaps.gaps_s = array("d", gaps)
    serving.gaps.counts.extend(np.frombuffer(counts, dtype=np.int64).tolist())
    _write(serving, arrivals, times)
    if draft_tokens:
        sums = np.concatenate(([0], np.cumsum(accepted, dtype=np.int64)))
        rows = zip(requests, np.diff(offsets).tolist(), np.diff(sums[offsets]).tolist(), strict=True)
        for request, num_rounds, num_accepted in rows:
            request.num_rounds, request.accepted_tokens = num_rounds, num_accepted
            request.drafted_tokens = num_rounds * draft_tokens
    serving.num_finished = serving.num_admitted = intake.num_arrived = num_requests
    _set(serving.queue, queue)
    _set(serving.kv.held, held)
    kinds = (Kind.STEP, Kind.DRAFT) if draft_tokens else (Kind.STEP,)
    host.conclude(now_s, busy_s, {("gpu", kind): _usage(*each) for kind, each in zip(kinds, usage, strict=False)})
    return True


def _write(serving: Serving, arrivals: Any, times: Any) -> None:
    columns = zip(serving.requests, arrivals.tolist(), *times.tolist(), strict=True)
    for request, arrival_s, entered_s, queued_s, scheduled_s, first_s, last_s in columns:
        request.arrival_s, request.known_s = arrival_s, entered_s
        request.queued_s, request.scheduled_s = queued_s, scheduled_s
        request.first_token_s, request.last_token_s = first_s, last_s
        request.prefilled_tokens, request.emitted_tokens = request.prompt_tokens, request.output_tokens


def _set(gauge: Gauge, state: tuple[int, int, float, float]) -> None:
    gauge.value, gauge.peak, gauge._integral, gauge._since_s = state


def _usage(num_works: int, tokens: int, device_s: float) -> Usage:
    usage = Usage(0)
    usage.num_works, usage.tokens, usage.device_s = num_works, tokens, device_s
    return usage
