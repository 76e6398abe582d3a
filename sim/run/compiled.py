"""Whole runs in the compiled core: which ones it takes, and what it leaves in the serving and on the host.

The core does what `continuous.loop.by_totals` does, to the last bit; whatever it does not take is served by Python,
with the same result. LANESIM_CORE=off leaves everything to Python. Not here: the loop itself (sim/run/core.c), numbers
of costs (sim.costs.forms.slots).
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.acceptance.draws import AcceptanceDraws
from sim.costs.cost import prompt_result_s
from sim.costs.forms.compact import CompactCosts
from sim.costs.forms.slots import CHUNKS, slots_of
from sim.costs.forms.table import TableCosts
from sim.engine.fleet import Fleet, Routing
from sim.engine.paged import PagedPool
from sim.engine.radix import RadixPool
from sim.engine.serving import Serving
from sim.engine.time_series import GapSamples, Gauge
from sim.hosts.simulated import SimHost, Usage
from sim.interface.host import Stream
from sim.interface.request import Request
from sim.interface.work import Kind
from sim.policies.continuous.loop import can_be_totals
from sim.run.resolve import Resolved

try:
    from sim.run import core
except ImportError:  # No compiler was there at installation.
    core = None  # type: ignore[assignment]

SWITCH = "LANESIM_CORE"
IN_SERVICE = ("prefill", "decode", "verify", "draft", "draft_prefill")
"""Kinds of passes, as the core numbers them."""
STEPS = np.dtype([("end_s", "f8"), ("measured", "i8"), ("held", "i8")])
"""A step, as the core notes it: when it ended, rows whose gap counts, tokens held behind it."""
TIMES = ("arrival_s", "entered_s", "queued_s", "scheduled_s", "first_s", "last_s", "delay_s")
COUNTS = ("prompt", "output", "blocks", "is_measured", "first_round", "num_rounds", "num_accepted", "next_leaving")
REQUESTS = np.dtype([(name, "f8") for name in TIMES] + [(name, "i8") for name in COUNTS])
"""A request, as the core has it; its rounds are those of `accepted` from the first one on."""
SETTINGS = struct.Struct("=12q 11d")
"""What the core goes by, in the order of its struct."""
STEP_COUNTS = 7
"""Numbers of a step of the core's ring."""
TOTALS = struct.Struct("=2d 2qd 2qd")
"""What the core sums up: now_s, busy_s, and works, tokens and device seconds of target and draft."""
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
    members = serving.servings if isinstance(serving, Fleet) else [serving]
    reason = _reason(resolved, serving, members[0], host) if is_on() else "no core"
    if not reason:
        try:
            reason = "" if _serve(resolved, serving, members, host, draws) else "memory is short"
        except BaseException:
            host.close()
            raise
    told[reason or "core"] += 1
    return not reason


def _reason(resolved: Resolved, whole: Serving | Fleet, serving: Serving, host: SimHost) -> str:
    """Why the core does not take the run, one of whose replicas is `serving`; empty where it does."""
    if isinstance(whole, Fleet) and (whole.routing is not Routing.ROUND_ROBIN or whole.max_concurrency is not None):
        return "replicas that depend on each other"
    limits, costs, controller = resolved.limits, resolved.host_costs, serving.controller
    if not resolved.policy.is_built_in or not resolved.policy.is_continuous or limits.scheduler is not None:
        return f"policy {resolved.policy.name}"
    if not isinstance(costs, CompactCosts | TableCosts) or costs.host.is_synchronous:
        return "costs of another form"
    if costs.host.idle_ramp is not None or type(serving.kv) not in (PagedPool, RadixPool):
        return "costs or memory that remember"
    if serving.draws is None or serving.names_requests or host.is_heard:
        return "somebody looks"
    if not limits.mixes_prompts or limits.receive_interval > 1 or limits.batch_wait_steps or limits.balance[0]:
        return "an engine that does not mix prompts"
    if not can_be_totals(serving, limits) or serving.paged.is_sharing:
        return "rows are not totals"
    length = controller.constant_length
    if length != controller.draft_tokens_max or (length and limits.method.in_one_pass):
        return f"drafts of {limits.method}"
    if any(passes.projects_context for passes in (costs._target, costs._draft) if passes is not None):
        return "drafts of dspark"
    if any(request.priority for request in serving.requests) or not serving.requests:
        return "priorities"
    return ""


def _serve(
    resolved: Resolved, whole: Serving | Fleet, members: Sequence[Serving], host: SimHost, draws: AcceptanceDraws
) -> bool:
    """Replicas to which requests go in turn are runs of their own, whose accounts are added up in order of time."""
    requests, first, count = whole.requests, members[0], len(members)
    draft_tokens = first.controller.draft_tokens_max
    table, accepted = _table(requests, first, draws)
    buffers, functions = _buffers(resolved, first)
    runs: list[_Run] = []
    for index in range(min(count, len(requests))):
        part = table if count == 1 else table[index::count].copy()
        ring = np.zeros((1 << int(part["num_rounds"].max() + 2).bit_length(), STEP_COUNTS), dtype=np.int64)
        given = core.serve(*functions, (buffers[0], part, accepted, ring, *buffers[1:]))
        if given is None:
            return False
        table[index::count] = part
        now_s, busy_s, *used = TOTALS.unpack(given[1])
        steps = np.frombuffer(given[0], dtype=STEPS)
        runs.append(_Run(steps, now_s, busy_s, (used[:3], used[3:])))
    for index, serving in enumerate(members):
        num_requests = len(requests[index::count])
        serving.num_finished = serving.num_admitted = serving.intake.num_arrived = num_requests
    if isinstance(whole, Fleet):
        whole.num_arrived = len(requests)
    _write_gaps(whole.gaps, runs)
    _set(whole.queue, np.concatenate((table["entered_s"], table["scheduled_s"])), np.repeat((1, -1), len(requests)))
    changes = [np.diff(run.steps["held"], prepend=0) for run in runs]
    _set(whole.kv.held, np.concatenate([run.steps["end_s"] for run in runs]), np.concatenate(changes))
    kinds = (Kind.STEP, Kind.HOST if resolved.limits.method.looks_up else Kind.DRAFT)[: 1 + (draft_tokens > 0)]
    usage = {
        (stream.name, kind): _usage(each, stream)
        for run, stream in zip(runs, host.streams.values(), strict=False)
        for kind, each in zip(kinds, run.usage, strict=False)
    }
    host.conclude(max([run.now_s for run in runs]), sum([run.busy_s for run in runs]) / count, usage)
    del runs, given, steps  # They are as large as all requests.
    _write(requests, table)
    if draft_tokens:
        drafts = table["num_rounds"].tolist(), table["num_accepted"].tolist()
        for request, num_rounds, num_accepted in zip(requests, *drafts, strict=True):
            request.num_rounds, request.accepted_tokens = num_rounds, num_accepted
            request.drafted_tokens = num_rounds * draft_tokens
    return True


class _Run(NamedTuple):
    """The run of one replica."""

    steps: NDArray[np.void]
    """[steps] of STEPS."""
    now_s: float
    busy_s: float
    usage: tuple[list[Any], list[Any]]
    """Works, tokens and device seconds of target and draft."""


def _table(
    requests: Sequence[Request], serving: Serving, draws: AcceptanceDraws
) -> tuple[NDArray[np.void], NDArray[np.int8]]:
    """[requests] of REQUESTS, and [rounds] accepted tokens; no loop of the core goes beyond them, or on for ever."""
    table, draft_tokens = np.zeros(len(requests), dtype=REQUESTS), serving.controller.draft_tokens_max
    for name in TIMES:
        table[name] = np.nan
    table["arrival_s"] = [request.arrival_s for request in requests]
    table["prompt"] = prompts = np.array([request.prompt_tokens for request in requests], dtype=np.int64)
    table["output"] = outputs = np.array([request.output_tokens for request in requests], dtype=np.int64)
    table["delay_s"] = serving.intake.frontend_s + serving.intake.frontend_token_s * prompts
    table["blocks"] = -(-(prompts + outputs + serving.kv.draft_slots) // serving.kv.block_size) + serving.kv.kept_blocks
    table["is_measured"] = [request.index in serving.measured for request in requests]
    accepted, table["num_rounds"] = np.zeros(1, dtype=np.int8), outputs - 1
    if draft_tokens:
        indexes = np.array([request.index for request in requests], dtype=np.int64)
        _, _, accepted, table["num_rounds"] = draws.all_rounds(indexes, outputs, draft_tokens)
        table["first_round"] = np.cumsum(table["num_rounds"]) - table["num_rounds"]
        assert table["num_rounds"].sum() == len(accepted)
    assert not np.isnan(table["arrival_s"] + table["delay_s"]).any()
    assert min(prompts.min(), outputs.min()) > 0 == min(accepted.min(initial=0), table["blocks"].min(initial=0))
    return table, accepted


def _buffers(resolved: Resolved, serving: Serving) -> tuple[tuple[Any, ...], tuple[Any, Any]]:
    """Buffers of the core but for those of requests and steps, which come after the first, and what it calls."""
    limits, costs = resolved.limits, resolved.host_costs
    assert isinstance(costs, CompactCosts | TableCosts)
    host = costs.host
    draft_tokens, reads_features = serving.controller.draft_tokens_max, limits.method.reads_features
    slots = slots_of(costs, (draft_tokens + 1, draft_tokens + 1 if reads_features else 2))
    settings = SETTINGS.pack(
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
        limits.method.looks_up and draft_tokens > 0,
        host.step_s,
        host.row_s,
        0.0 if host.eager_step_s is None else host.eager_step_s - host.step_s,
        costs.result_s,
        prompt_result_s(costs),
        host.ngram_row_s,
        *[host.served.get(kind, 1.0) for kind in IN_SERVICE],
    )
    chunks = np.zeros(2 * (limits.max_num_seqs + 2), dtype=CHUNKS)
    return (bytearray(settings), chunks, *slots.models[0], *slots.models[1]), (slots.ask, slots.check)


def _write(requests: Sequence[Request], table: NDArray[np.void]) -> None:
    times = [table[name].tolist() for name in TIMES[:6]]
    for request, arrival_s, entered_s, queued_s, scheduled_s, first_s, last_s in zip(requests, *times, strict=True):
        request.arrival_s, request.known_s = arrival_s, entered_s
        request.queued_s, request.scheduled_s = queued_s, scheduled_s
        request.first_token_s, request.last_token_s = first_s, last_s
        request.prefilled_tokens, request.emitted_tokens = request.prompt_tokens, request.output_tokens


def _write_gaps(gaps: GapSamples, runs: Sequence[_Run]) -> None:
    """Gaps of all runs in order of time; equal neighbours are one, with their number."""
    gaps_s = np.concatenate([np.diff(run.steps["end_s"], prepend=0.0) for run in runs])
    counts = np.concatenate([run.steps["measured"] for run in runs])
    if len(runs) > 1:
        order = np.argsort(np.concatenate([run.steps["end_s"] for run in runs]), kind="stable")
        gaps_s, counts = gaps_s[order], counts[order]
    gaps_s, counts = gaps_s[counts > 0], counts[counts > 0]
    starts = np.flatnonzero(np.diff(gaps_s, prepend=-1.0))
    gaps.gaps_s.frombytes(gaps_s[starts].tobytes())
    if len(starts):
        gaps.counts.extend(np.add.reduceat(counts, starts).tolist())


def _set(gauge: Gauge, times: NDArray[np.float64], changes: NDArray[np.int64]) -> None:
    """`gauge` after all `changes`, those of an instant together."""
    order = np.argsort(times, kind="stable")
    times, values = times[order], np.cumsum(changes[order])
    lasting = np.flatnonzero(np.diff(times, append=np.inf))
    spans = np.diff(times[lasting], prepend=0.0)
    values = np.concatenate(([0], values[lasting]))
    gauge.value, gauge.peak = int(values[-1]), int(values[:-1].max())
    # Summed one after the other, as the gauge does.
    gauge._integral, gauge._since_s = float(np.cumsum(values[:-1] * spans)[-1]), float(times[-1])


def _usage(used: Sequence[Any], stream: Stream) -> Usage:
    usage = Usage(stream.device)
    usage.num_works, usage.tokens, usage.device_s = used
    return usage
