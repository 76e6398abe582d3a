"""Whole runs in the compiled core: which ones it takes, and what it leaves in the serving and on the host.

The core serves `continuous` and the policies with lanes as Python does, to the last bit. Whatever it does not take is
served by Python, with the same result. LANESIM_CORE=off leaves everything to Python. Not here: the core itself
(sim/run/core.c), numbers of costs (sim.costs.forms.slots).
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
from sim.costs.forms.slots import slots_of
from sim.costs.forms.table import TableCosts
from sim.devices.contention import Regime
from sim.drafters.drafter import reads_all, reads_two
from sim.engine.fleet import Fleet, Routing
from sim.engine.kv import KvPool
from sim.engine.paged import PagedPool
from sim.engine.radix import RadixPool
from sim.engine.serving import Serving
from sim.engine.time_series import GapSamples, Gauge
from sim.hosts.simulated import SimHost, Usage
from sim.interface.request import Request
from sim.interface.work import Kind, Model
from sim.policies.options import BatchBy, KvMode, rows_per_work
from sim.policies.unified import SPIN_S
from sim.run.resolve import Resolved

try:
    from sim.run import core
except ImportError:  # No compiler was there at installation.
    core = None  # type: ignore[assignment]

SWITCH = "LANESIM_CORE"
IN_SERVICE = ("prefill", "decode", "verify", "draft", "draft_prefill")
"""Kinds of passes, as the core numbers them."""
MARKS = np.dtype([("at_s", "f8"), ("held", "i8")])
"""Tokens held from a time on."""
GAPS = np.dtype([("at_s", "f8"), ("gap_s", "f8"), ("count", "i8")])
"""Gaps of requests whose tokens came together."""
WAITS = np.dtype([("at_s", "f8"), ("change", "i8")])
"""Changes of the queue beside arrivals and first seats: who is preempted waits once more."""
TIMES = ("arrival_s", "entered_s", "known_s", "queued_s", "scheduled_s", "first_s", "last_s", "delay_s")
LENGTHS = ("prompt", "output", "blocks", "is_measured", "first_round")
SERVED = ("num_rounds", "num_accepted", "num_drafted", "num_preemptions", "prefilled", "goal", "needs_catch_up")
COUNTS = LENGTHS + SERVED
REQUESTS = np.dtype([(name, "f8") for name in TIMES] + [(name, "i8") for name in COUNTS])
"""A request, as the core has it; its rounds are those of `accepted` from the first one on."""
SETTINGS = struct.Struct("=31q 18d")
"""What the core goes by, in the order of its struct."""
TOTALS = struct.Struct("=2d 2qd 2qd")
"""What the core sums up: now_s, busy_s, and works, tokens and device seconds of target and draft."""
LANE_POLICIES = ("pd", "pdv", "unified", "baseline")
"""As the core numbers them."""
LANE_KINDS = (Kind.PREFILL, Kind.DRAFT, Kind.VERIFY)
"""Kinds of works of lanes, likewise."""
LANE_SETTINGS = struct.Struct("=12q 8d 12d")
"""What the core goes by with lanes, in the order of its struct."""
LANE_TOTALS = struct.Struct("=2d q")
"""now_s, busy_s and polls; then works, tokens and device seconds of 3 streams by kind."""
USAGE = np.dtype([("num_works", "i8"), ("tokens", "i8"), ("device_s", "f8")])
MOST_STREAMS, MOST_WORKERS = 3, 64
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
    has_lanes = resolved.policy.is_built_in and resolved.policy.name in LANE_POLICIES
    reason = _reason(resolved, serving, members[0], host, has_lanes=has_lanes) if is_on() else "no core"
    if not reason:
        try:
            if has_lanes:
                reason = "" if _serve_in_lanes(resolved, members[0], host, draws) else "nothing can go on"
            else:
                reason = "" if _serve(resolved, serving, members, host, draws) else "memory is short"
        except BaseException:
            host.close()
            raise
    told[reason or "core"] += 1
    return not reason


def _reason(resolved: Resolved, whole: Serving | Fleet, serving: Serving, host: SimHost, *, has_lanes: bool) -> str:
    """Why the core does not take the run, one of whose replicas is `serving`; empty where it does."""
    limits, costs, controller = resolved.limits, resolved.host_costs, serving.controller
    if not has_lanes and not (resolved.policy.is_built_in and resolved.policy.is_continuous and not limits.scheduler):
        return f"policy {resolved.policy.name}"
    if not isinstance(costs, CompactCosts | TableCosts) or costs.host.is_synchronous:
        return "costs of another form"
    if resolved.scenario.window.stop_s is not None or host.is_heard:
        return "somebody looks"
    reason = _lane_reason(resolved, whole, serving) if has_lanes else _continuous_reason(resolved, whole, serving)
    if reason:
        return reason
    length = controller.constant_length
    if length != controller.draft_tokens_max:
        return "draft lengths that change"
    method = limits.method
    priced = reads_all if method.reads_features else reads_two
    if length and not method.looks_up and method.passes is not priced:
        return f"drafts of {method}"
    if any(passes.projects_context for passes in (costs._target, costs._draft) if passes is not None):
        return "drafts of dspark"
    if any(request.priority for request in serving.requests) or not serving.requests:
        return "priorities"
    return ""


def _continuous_reason(resolved: Resolved, whole: Serving | Fleet, serving: Serving) -> str:
    limits = resolved.limits
    if isinstance(whole, Fleet) and (whole.routing is not Routing.ROUND_ROBIN or whole.max_concurrency is not None):
        return "replicas that depend on each other"
    if not limits.mixes_prompts and not limits.retracts:
        return "an engine that does not mix prompts"
    if type(serving.kv) is not (RadixPool if limits.retracts else PagedPool) or serving.paged.is_sharing:
        return "prompts in common"
    if limits.prefill_schedule_interval > 1 or serving.intake.group is not None:
        return "steps of another kind"
    return ""


def _lane_reason(resolved: Resolved, whole: Serving | Fleet, serving: Serving) -> str:
    options, limits, name = resolved.options, resolved.limits, resolved.policy.name
    if isinstance(whole, Fleet):
        return "replicas of lanes"
    if type(serving.kv) is not KvPool:
        return "costs or memory that remember"
    if resolved.contention.regime not in (Regime.SERIAL, Regime.LEFTOVER):
        return "works share the device in another way"
    if options.kv is not KvMode.ROLLBACK or (limits.method.looks_up and resolved.lengths.given):
        return "rounds of another kind"
    if name == "baseline":
        return "more workers than the core has" if options.workers > MOST_WORKERS else ""
    if options.batch_by is not BatchBy.MOST or options.stream_priorities or options.partition is not None:
        return "lanes with shares, priorities or a rule for their batches"
    if name == "unified":
        return "" if options.pipelined else "a sequential worker"
    return "lanes with seats or chunks" if options.lanes or limits.long_prefill_token_threshold else ""


def _serve(
    resolved: Resolved, whole: Serving | Fleet, members: Sequence[Serving], host: SimHost, draws: AcceptanceDraws
) -> bool:
    """Replicas to which requests go in turn are runs of their own, whose accounts are added up in order of time."""
    requests, first, count = whole.requests, members[0], len(members)
    draft_tokens = first.controller.draft_tokens_max
    table, accepted = _table(requests, first, draws)
    settings, (models, functions) = _settings(resolved, first), _models(resolved)
    runs: list[_Run] = []
    for index in range(min(count, len(requests))):
        part, served = table if count == 1 else table[index::count].copy(), requests[index::count]

        def redraw(place: int, emitted_tokens: int, served: Sequence[Request] = served) -> bytes:
            request = served[place]
            return draws.rounds(request.index, emitted_tokens, request.output_tokens, draft_tokens).tobytes()

        given = core.serve(*functions, redraw, (settings, part, accepted, *models))
        if given is None:
            return False
        table[index::count] = part
        marks, gaps, waits = (
            np.frombuffer(each, kind) for each, kind in zip(given, (MARKS, GAPS, WAITS), strict=False)
        )
        now_s, busy_s, *used = TOTALS.unpack(given[3])
        runs.append(_Run(marks, gaps, waits, now_s, busy_s, (used[:3], used[3:])))
    for index, serving in enumerate(members):
        num_requests = len(requests[index::count])
        serving.num_finished = serving.num_admitted = serving.intake.num_arrived = num_requests
    if isinstance(whole, Fleet):
        whole.num_arrived = len(requests)
    _write_gaps(whole.gaps, [run.gaps for run in runs])
    _write_queue(whole.queue, table, np.concatenate([run.waits for run in runs]))
    changes = [np.diff(run.marks["held"], prepend=0) for run in runs]
    _set(whole.kv.held, np.concatenate([run.marks["at_s"] for run in runs]), np.concatenate(changes))
    kinds = (Kind.STEP, Kind.HOST if resolved.limits.method.looks_up else Kind.DRAFT)[: 1 + (draft_tokens > 0)]
    usage = _usage(host, kinds, [run.usage[: len(kinds)] for run in runs])
    host.conclude(max([run.now_s for run in runs]), sum([run.busy_s for run in runs]) / count, usage)
    del runs, given, marks, gaps  # They are as large as all requests.
    _write(requests, table, draft_tokens)
    return True


def _serve_in_lanes(resolved: Resolved, serving: Serving, host: SimHost, draws: AcceptanceDraws) -> bool:
    """Requests of one replica, by a policy with lanes."""
    requests, draft_tokens = serving.requests, serving.controller.draft_tokens_max
    table, accepted = _table(requests, serving, draws)
    models, functions = _models(resolved)
    given = core.serve_in_lanes(*functions, None, (_lane_settings(resolved, serving), table, accepted, *models))
    if given is None:
        return False
    marks, gaps = (np.frombuffer(each, kind) for each, kind in zip(given, (MARKS, GAPS), strict=False))
    now_s, busy_s, host.num_polls = LANE_TOTALS.unpack(given[2][: LANE_TOTALS.size])
    used = np.frombuffer(given[2], USAGE, offset=LANE_TOTALS.size).reshape(MOST_STREAMS, len(LANE_KINDS))
    usage = _usage(host, LANE_KINDS, used.tolist())
    serving.num_finished = serving.num_admitted = serving.intake.num_arrived = len(requests)
    _write_gaps(serving.gaps, [gaps])
    _write_queue(serving.queue, table, np.empty(0, WAITS))
    _set(serving.kv.held, marks["at_s"], np.diff(marks["held"], prepend=0))
    host.conclude(now_s, busy_s, usage)
    _write(requests, table, draft_tokens)
    return True


def _lane_settings(resolved: Resolved, serving: Serving) -> bytearray:
    """What the core goes by."""
    options, limits, costs, name = resolved.options, resolved.limits, _costs(resolved), resolved.policy.name
    draft_tokens = serving.controller.draft_tokens_max
    is_baseline, num_streams = name == "baseline", len(serving.host.streams)
    poll_s = 0.0 if is_baseline else options.looks_every_s(*[SPIN_S] * (name == "unified"))
    decode_rows = options.decode_rows if name == "pd" else options.decode_batch
    draft = Model.TARGET if costs.profile.draft is None else Model.DRAFT
    return bytearray(
        LANE_SETTINGS.pack(
            LANE_POLICIES.index(name),
            draft_tokens,
            serving.max_num_seqs,
            serving.max_num_batched_tokens,
            serving.max_concurrency or 0,
            serving.kv.num_blocks,
            serving.plans_ahead,
            options.workers,
            options.hybrid_requests,
            1 if is_baseline else rows_per_work(options, limits, decode_rows, draft_tokens),
            1 if is_baseline else rows_per_work(options, limits, options.verify_batch, draft_tokens),
            1 if is_baseline else limits.lane_batch(options.decode_batch, draft_tokens),
            resolved.contention.phi,
            poll_s,
            costs.host.look_s,
            # A stream that is alone on its device is never slowed by others.
            *[1.0 if num_streams == 1 else costs.host_inflation(count) for count in range(1, MOST_STREAMS + 1)],
            costs.passes(Model.TARGET).num_kernels,
            costs.passes(draft).num_kernels,
            *_host(costs),
        )
    )


class _Run(NamedTuple):
    """The run of one replica."""

    marks: NDArray[np.void]
    """[steps, about] of MARKS."""
    gaps: NDArray[np.void]
    """[steps, about] of GAPS."""
    waits: NDArray[np.void]
    """Of WAITS."""
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
    accepted = np.zeros(1, dtype=np.int8)
    if draft_tokens:
        indexes = np.array([request.index for request in requests], dtype=np.int64)
        _, _, accepted, rounds = draws.all_rounds(indexes, outputs, draft_tokens)
        table["first_round"] = np.cumsum(rounds) - rounds
        assert rounds.sum() == len(accepted)
    assert not np.isnan(table["arrival_s"] + table["delay_s"]).any()
    assert min(prompts.min(), outputs.min()) > 0 == min(accepted.min(initial=0), table["blocks"].min(initial=0))
    return table, accepted


def _costs(resolved: Resolved) -> CompactCosts | TableCosts:
    """Costs of a run that the core takes."""
    assert isinstance(resolved.host_costs, CompactCosts | TableCosts)
    return resolved.host_costs


def _models(resolved: Resolved) -> tuple[tuple[Any, ...], tuple[Any, Any]]:
    """Buffers of the costs of both models, and what the core calls where it lacks one."""
    slots = slots_of(_costs(resolved))
    return (*slots.models[0], *slots.models[1]), (slots.ask, slots.check)


def _host(costs: CompactCosts | TableCosts) -> tuple[float, ...]:
    """Times of the host, as the core has them."""
    host = costs.host
    return (
        host.step_s,
        host.row_s,
        0.0 if host.eager_step_s is None else host.eager_step_s - host.step_s,
        costs.result_s,
        prompt_result_s(costs),
        host.ngram_row_s,
        costs.drafts_apart,
        *[host.served.get(kind, 1.0) for kind in IN_SERVICE],
    )


def _settings(resolved: Resolved, serving: Serving) -> bytearray:
    """What the core goes by."""
    limits, costs, draft_tokens = resolved.limits, _costs(resolved), serving.controller.draft_tokens_max
    pool, lookahead, ratio = serving.paged, limits.lookahead(draft_tokens), limits.token_ratio
    ratios = (0.0,) * 4 if ratio is None else (ratio.initial, ratio.min_ratio, ratio.decay_steps, ratio.retract_steps)
    return bytearray(
        SETTINGS.pack(
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
            limits.method.reads_features,
            limits.method.looks_up and draft_tokens > 0,
            limits.long_prefill_token_threshold or limits.max_num_scheduled_tokens,
            limits.spares_lone_prompt,
            lookahead,
            lookahead if limits.seats_lookahead else 0,
            pool.max_tokens,
            pool.block_size,
            pool.kept_blocks,
            pool.is_caching,
            pool.drops_cached_block,
            pool.seats_first_chunk,
            pool.caches_results,
            pool.reuses_blank_first,
            limits.receive_interval,
            limits.batch_wait_steps,
            limits.balance[0],
            limits.retracts,
            limits.drafts_before_verify and limits.method.runs_per_token,
            limits.max_num_batched_tokens,
            0 if ratio is None else ratio.max_answer_tokens,
            limits.batch_wait[1],
            limits.balance[1],
            *ratios,
            *_host(costs),
        )
    )


def _write(requests: Sequence[Request], table: NDArray[np.void], draft_tokens: int) -> None:
    times = [table[name].tolist() for name in TIMES[:-1]]
    for request, arrival_s, _, known_s, queued_s, scheduled_s, first_s, last_s in zip(requests, *times, strict=True):
        request.arrival_s, request.known_s = arrival_s, known_s
        request.queued_s, request.scheduled_s = queued_s, scheduled_s
        request.first_token_s, request.last_token_s = first_s, last_s
        request.emitted_tokens = request.output_tokens
    counts = [table[name].tolist() for name in ("prefilled", "goal", "num_preemptions")]
    for request, prefilled, goal, num_preemptions in zip(requests, *counts, strict=True):
        request.prefilled_tokens, request.prefill_goal, request.num_preemptions = prefilled, goal, num_preemptions
    if draft_tokens:
        counts = [table[name].tolist() for name in ("num_rounds", "num_accepted", "num_drafted", "needs_catch_up")]
        for request, num_rounds, accepted, drafted, needs_catch_up in zip(requests, *counts, strict=True):
            request.num_rounds, request.accepted_tokens, request.drafted_tokens = num_rounds, accepted, drafted
            request.needs_catch_up = bool(needs_catch_up)


def _write_gaps(gaps: GapSamples, parts: Sequence[NDArray[np.void]]) -> None:
    """Gaps of all parts in order of time; equal neighbours are one, with their number."""
    gaps_s, counts = (np.concatenate([part[name] for part in parts]) for name in ("gap_s", "count"))
    if len(parts) > 1:
        order = np.argsort(np.concatenate([part["at_s"] for part in parts]), kind="stable")
        gaps_s, counts = gaps_s[order], counts[order]
    starts = np.flatnonzero(np.diff(gaps_s, prepend=-1.0))
    gaps.gaps_s.frombytes(gaps_s[starts].tobytes())
    if len(starts):
        gaps.counts.extend(np.add.reduceat(counts, starts).tolist())


def _write_queue(queue: Gauge, table: NDArray[np.void], waits: NDArray[np.void]) -> None:
    times = np.concatenate((table["entered_s"], table["scheduled_s"], waits["at_s"]))
    _set(queue, times, np.concatenate((np.repeat((1, -1), len(table)), waits["change"])))


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


def _usage(host: SimHost, kinds: Sequence[Kind], used: Sequence[Sequence[Any]]) -> dict[tuple[str, Kind], Usage]:
    """Totals of each stream's works by kind, of which there are any."""
    usage = {}
    for stream, by_kind in zip(host.streams.values(), used, strict=False):
        for kind, (num_works, tokens, device_s) in zip(kinds, by_kind, strict=True):
            if num_works:
                usage[stream.name, kind] = each = Usage(stream.device)
                each.num_works, each.tokens, each.device_s = num_works, tokens, device_s
    return usage
