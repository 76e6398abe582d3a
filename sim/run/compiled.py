"""Whole runs in the compiled core: which ones it takes, and what it leaves in the serving and on the host.

The core serves `continuous` and the policies with lanes as Python does, to the last bit. Whatever it does not take is
served by Python, with the same result. LANESIM_CORE=off leaves everything to Python. Not here: the core itself
(sim/run/core.c), numbers of costs (sim.costs.forms.slots).
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.acceptance.draws import AcceptanceDraws
from sim.costs.cost import prompt_result_s
from sim.costs.forms.slots import slots_of
from sim.costs.work_costs import WorkCosts
from sim.devices.contention import Regime
from sim.drafters.drafter import reads_all, reads_two
from sim.engine.draft_length import ByBatch
from sim.engine.fleet import Fleet, Routing
from sim.engine.kv import KvPool
from sim.engine.paged import PagedPool
from sim.engine.radix import RadixPool
from sim.engine.serving import Serving
from sim.engine.time_series import GapSamples
from sim.hosts.simulated import SimHost, Usage
from sim.interface.request_columns import Requests
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
CHANGES = np.dtype([("at_s", "f8"), ("change", "i8")])
"""Changes of a gauge, which the core keeps where those of several replicas are added up."""
GAPS = np.dtype([("gap_s", "f8"), ("count", "i8")])
"""Gaps of requests whose tokens came together."""
TIMES = ("arrival_s", "known_s", "queued_s", "scheduled_s", "first_token_s", "last_token_s")
SERVED = ("prefilled_tokens", "prefill_goal", "num_preemptions", "num_rounds", "accepted_tokens", "drafted_tokens")
REQUESTS = np.dtype(
    [(name, "f8") for name in TIMES]
    + [("first_round", "i8")]
    + [(name, "i4") for name in ("prompt_tokens", "output_tokens", "blocks", *SERVED)]
    + [(name, "?") for name in ("needs_catch_up", "is_measured")],
    align=True,
)
"""A request, as the core has it; its rounds are those of `accepted` from the first one on."""
SETTINGS = struct.Struct("=42q 20d")
"""What the core goes by, in the order of its struct."""
GAUGE = struct.Struct("=2d 2q")
"""Integral, time of the last change, value and peak."""
TOTALS = struct.Struct("=2d q")
"""What the core sums up: now_s, busy_s and polls; then USAGE of three streams by kind."""
LANE_POLICIES = ("pd", "pdv", "unified", "baseline")
"""As the core numbers them."""
LANE_KINDS = (Kind.PREFILL, Kind.DRAFT, Kind.VERIFY)
"""Kinds of works of lanes, likewise."""
LANE_SETTINGS = struct.Struct("=12q 8d 14d")
"""What the core goes by with lanes, in the order of its struct."""
USAGE = np.dtype([("num_works", "i8"), ("tokens", "i8"), ("device_s", "f8")])
MOST_STREAMS, MOST_WORKERS = 3, 64
FORMS = SIMPY, PYTHON, CORE = "simpy", "python", "core"
"""Forms of the simulator that a run can be in."""
IN_PYTHON = "Python ran"
"""A note on policies that are not built in begins so."""
Table = NDArray[np.void]
told: Counter[str] = Counter()
"""Runs of this command by who served them: "core", "simpy", or the reason why Python did."""
told_ns: Counter[str] = Counter()
"""CPU time of these runs, likewise."""


def said() -> str:
    """The build, runs of this command and their CPU seconds, those in Python by reason."""
    names = {CORE: "in the compiled core", SIMPY: "in SimPy"}
    runs = [
        f"{told[who]} runs {names.get(who, f'in Python ({who})')} took {told_ns[who] / 1e9:.2f} s of CPU time"
        for who in sorted(told, key=lambda who: (who not in names, -told_ns[who]))
    ]
    return f"build: {build()}. {'. '.join(runs) or 'No run: a store had them'}"


def build() -> str:
    """The build of this installation, in words."""
    return "compiled core" if is_on() else "pure Python, 3 to 6 times slower than with the compiled core"


def is_on() -> bool:
    """True where the core is there, and nobody switched it off."""
    return core is not None and os.environ.get(SWITCH) != "off"


def serve(resolved: Resolved, serving: Serving | Fleet, host: SimHost, draws: AcceptanceDraws) -> str:
    """Serve all requests in the core; the reason, and nothing has changed, where Python must. Raises ValueError where
    only the core may."""
    members = serving.servings if isinstance(serving, Fleet) else [serving]
    has_lanes = resolved.policy.is_built_in and resolved.policy.name in LANE_POLICIES
    reason = f"--in {PYTHON}" if resolved.form == PYTHON else "" if is_on() else "no compiled core"
    reason = reason or _reason(resolved, serving, members[0], host, has_lanes=has_lanes)
    if not reason:
        try:
            if not _serve(resolved, serving, members, host, draws, has_lanes=has_lanes):
                reason = "nothing can go on" if has_lanes else "memory is short"
        except BaseException:
            host.close()
            raise
    if reason and resolved.form == CORE:
        host.close()
        raise ValueError(f"--in {CORE}: the compiled core does not serve this run ({reason}). Use --in {PYTHON}")
    return reason


def _reason(resolved: Resolved, whole: Serving | Fleet, serving: Serving, host: SimHost, *, has_lanes: bool) -> str:
    """Why the core does not take the run, one of whose replicas is `serving`; empty where it does."""
    limits, costs, controller = resolved.limits, resolved.host_costs, serving.controller
    if not has_lanes and not (resolved.policy.is_built_in and resolved.policy.is_continuous and not limits.scheduler):
        return f"policy {resolved.policy.name}"
    if not isinstance(costs, WorkCosts) or not costs.has_row_parts or costs.host.is_synchronous:
        return "costs of another form"
    if resolved.scenario.window.stop_s is not None or host.on_work is not None:
        return "works that are recorded, or a window that closes"
    reason = _lane_reason(resolved, whole, serving) if has_lanes else _continuous_reason(resolved, whole, serving)
    if reason:
        return reason
    length = controller.draft_tokens_max
    if controller.constant_length != length and (has_lanes or type(controller) is not ByBatch):
        return "draft lengths that change"
    method = limits.method
    priced = reads_all if method.reads_features else reads_two
    if length and not method.looks_up and method.passes is not priced:
        return f"drafts of {method}"
    if any(passes.projects_context for passes in (costs._target, costs._draft) if passes is not None):
        return "drafts of dspark"
    if not serving.requests or Requests.of(serving.requests).column("priority").any():
        return "priorities"
    return ""


def _continuous_reason(resolved: Resolved, whole: Serving | Fleet, serving: Serving) -> str:
    pool = RadixPool if resolved.limits.retracts else PagedPool
    depends = isinstance(whole, Fleet) and (whole.routing is not Routing.ROUND_ROBIN or whole.max_concurrency)
    return _first(
        {
            "replicas that depend on each other": depends,
            "prompts in common": type(serving.kv) is not pool or serving.paged.is_sharing,
            "steps of another kind": serving.intake.group,
        }
    )


def _lane_reason(resolved: Resolved, whole: Serving | Fleet, serving: Serving) -> str:
    options, limits, name = resolved.options, resolved.limits, resolved.policy.name
    has_rule = options.batch_by is not BatchBy.MOST or options.stream_priorities or options.partition is not None
    looks_up = limits.method.looks_up and resolved.lengths.given
    return _first(
        {
            "replicas of lanes": isinstance(whole, Fleet),
            "costs or memory that remember": type(serving.kv) is not KvPool,
            "works share the device in another way": resolved.contention.regime not in (Regime.SERIAL, Regime.LEFTOVER),
            "rounds of another kind": options.kv is not KvMode.ROLLBACK or looks_up,
            "more workers than the core has": name == "baseline" and options.workers > MOST_WORKERS,
            "lanes with shares, priorities or a rule for their batches": name != "baseline" and has_rule,
            "a sequential worker": name == "unified" and not options.pipelined,
            "lanes with seats or chunks": name in ("pd", "pdv")
            and (options.lanes or limits.long_prefill_token_threshold),
        }
    )


def _first(reasons: dict[str, object]) -> str:
    """The first reason that is so; empty where none is."""
    return next((reason for reason, is_so in reasons.items() if is_so), "")


def _serve(
    resolved: Resolved,
    whole: Serving | Fleet,
    members: Sequence[Serving],
    host: SimHost,
    draws: AcceptanceDraws,
    *,
    has_lanes: bool,
) -> bool:
    """Replicas to which requests go in turn are runs of their own, whose accounts are added up in order of time."""
    requests, first, count = Requests.of(whole.requests), members[0], len(members)
    draft_tokens, indexes = first.controller.draft_tokens_max, requests.column("index")
    table, accepted, lengths = _table(requests, first, draws)
    drafting = Kind.HOST if resolved.limits.method.looks_up else Kind.DRAFT
    kinds = LANE_KINDS if has_lanes else (Kind.STEP, drafting)
    run = core.serve_in_lanes if has_lanes else core.serve
    settings = _lane_settings(resolved, first) if has_lanes else _settings(resolved, first, is_part=count > 1)
    models, functions = _models(resolved)
    runs = list[_Run]()
    for place in range(min(count, len(requests))):
        part = table if count == 1 else table[place::count].copy()
        samples = GapSamples()

        def redraw(at: int, emitted_tokens: int, place: int = place, part: Table = part) -> bytes:
            index, output_tokens = int(indexes[place + at * count]), int(part["output_tokens"][at])
            return draws.rounds(index, emitted_tokens, output_tokens, draft_tokens).tobytes()

        given = run(*functions, _hear(samples), redraw, (settings, part, accepted, lengths, *models))
        if given is None:
            return False
        table[place::count] = part
        now_s, busy_s, num_polls = TOTALS.unpack_from(given[0])
        host.num_polls += num_polls
        used = np.frombuffer(given[0], USAGE, offset=TOTALS.size).reshape(MOST_STREAMS, len(LANE_KINDS)).tolist()
        runs.append(_Run(given[1:3], given[3:], samples, now_s, busy_s, used))
    for place, serving in enumerate(members):
        serving.account(len(range(place, len(requests), count)), runs[place].gaps if place < len(runs) else None)
    if isinstance(whole, Fleet):
        whole.num_arrived = len(requests)
        _add_up(whole, runs)
    else:
        for gauge, values in zip((whole.queue, whole.kv.held), runs[0].gauges, strict=True):
            gauge.restore(*GAUGE.unpack(values))
    streams = runs[0].used if has_lanes else [each.used[0] for each in runs]
    usage = _usage(host, kinds, streams)
    host.conclude(max([each.now_s for each in runs]), sum([each.busy_s for each in runs]) / count, usage)
    served = {name: table[name] for name in (*TIMES, *SERVED, "needs_catch_up")}
    requests.change({**served, "emitted_tokens": table["output_tokens"]})
    return True


def _lane_settings(resolved: Resolved, serving: Serving) -> bytearray:
    """What the core goes by."""
    options, limits, costs, name = resolved.options, resolved.limits, _costs(resolved), resolved.policy.name
    draft_tokens = serving.controller.draft_tokens_max
    is_baseline = name == "baseline"
    poll_s = 0.0 if is_baseline else options.looks_every_s(*[SPIN_S] * (name == "unified"))
    decode_rows = options.decode_rows if name == "pd" else options.decode_batch
    draft = Model.TARGET if costs.profile.draft is None else Model.DRAFT
    return bytearray(
        LANE_SETTINGS.pack(
            *(LANE_POLICIES.index(name), draft_tokens, serving.max_num_seqs, serving.max_num_batched_tokens),
            *(serving.max_concurrency or 0, serving.kv.num_blocks, serving.plans_ahead),
            *(options.workers, options.hybrid_requests),
            1 if is_baseline else rows_per_work(options, limits, decode_rows, draft_tokens),
            1 if is_baseline else rows_per_work(options, limits, options.verify_batch, draft_tokens),
            1 if is_baseline else limits.lane_batch(options.decode_batch, draft_tokens),
            *(resolved.contention.phi, poll_s, costs.host.look_s),
            *[costs.host_inflation(count) for count in range(1, MOST_STREAMS + 1)],
            *(costs.passes(Model.TARGET).num_kernels, costs.passes(draft).num_kernels),
            *_host(serving, costs),
        )
    )


class _Run(NamedTuple):
    """The run of one replica."""

    gauges: Sequence[bytes]
    """Of the queue and of the tokens held."""
    changes: Sequence[bytes]
    """[changes] of both, as CHANGES, where there are several replicas."""
    gaps: GapSamples
    now_s: float
    busy_s: float
    used: list[list[Any]]
    """[streams, kinds] works, tokens and device seconds."""


def _table(
    requests: Requests, serving: Serving, draws: AcceptanceDraws
) -> tuple[Table, NDArray[np.int8], NDArray[np.int8]]:
    """[requests] of REQUESTS, [rounds] accepted tokens, and draft lengths by the requests of a step, one if they are
    all the same. No loop of the core goes beyond them, or on for ever."""
    controller, table = serving.controller, np.zeros(len(requests), dtype=REQUESTS)
    draft_tokens = controller.draft_tokens_max
    is_constant = controller.constant_length == draft_tokens
    most = 1 if is_constant else 2 * (serving.max_num_seqs or len(requests)) + 2
    lengths = [controller.length_for(num_requests) for num_requests in range(most)]
    for name in TIMES[1:]:
        table[name] = np.nan
    sent = ("arrival_s", "prompt_tokens", "output_tokens")
    for name in sent:
        table[name] = requests.column(name)
    if requests.is_table and serving.max_concurrency is None:
        # The core changes none of these then, and they are there once.
        requests.change({name: table[name] for name in sent})
    prompts, outputs = table["prompt_tokens"], table["output_tokens"]
    table["blocks"] = -(-(prompts + outputs + serving.kv.draft_slots) // serving.kv.block_size) + serving.kv.kept_blocks
    indexes, measured = requests.column("index"), serving.measured
    table["is_measured"] = (indexes >= measured.start) & (indexes < measured.stop)
    accepted = np.zeros(1, dtype=np.int8)
    if not is_constant:
        accepted, table["first_round"] = draws.by_position(indexes, outputs.astype(np.int64), draft_tokens)
    elif draft_tokens:
        _, _, accepted, rounds = draws.all_rounds(indexes, outputs.astype(np.int64), draft_tokens)
        table["first_round"] = np.cumsum(rounds) - rounds
        assert rounds.sum() == len(accepted)
    assert not np.isnan(table["arrival_s"]).any()
    assert min(prompts.min(), outputs.min()) > 0 == min(accepted.min(initial=0), table["blocks"].min(initial=0))
    return table, accepted, np.array(lengths, dtype=np.int8)


def _costs(resolved: Resolved) -> WorkCosts:
    """Costs of a run that the core takes."""
    assert isinstance(resolved.host_costs, WorkCosts)
    return resolved.host_costs


def _models(resolved: Resolved) -> tuple[tuple[Any, ...], tuple[Any, Any]]:
    """Buffers of the costs of both models, and what the core calls where it lacks one."""
    slots = slots_of(_costs(resolved))
    return (*slots.models[0], *slots.models[1]), (slots.ask, slots.check)


def _host(serving: Serving, costs: WorkCosts) -> tuple[float, ...]:
    """Times of the host, as the core has them."""
    host, intake = costs.host, serving.intake
    eager_s = 0.0 if host.eager_step_s is None else host.eager_step_s - host.step_s
    return (
        *(intake.frontend_s, intake.frontend_token_s),
        *(host.step_s, host.row_s, eager_s, costs.result_s, prompt_result_s(costs), host.ngram_row_s),
        costs.drafts_apart,
        *[host.served.get(kind, 1.0) for kind in IN_SERVICE],
    )


def _settings(resolved: Resolved, serving: Serving, *, is_part: bool) -> bytearray:
    """What the core goes by; the accounts of `is_part` are added to those of others."""
    limits, costs, draft_tokens = resolved.limits, _costs(resolved), serving.controller.draft_tokens_max
    pool, lookahead, ratio = serving.paged, limits.lookahead(draft_tokens), limits.token_ratio
    ratios = (0.0,) * 4 if ratio is None else (ratio.initial, ratio.min_ratio, ratio.decay_steps, ratio.retract_steps)
    return bytearray(
        SETTINGS.pack(
            *(draft_tokens, limits.max_num_seqs, limits.max_num_scheduled_tokens, serving.max_concurrency or 0),
            *(limits.slots_per_request, limits.padded_tokens, serving.kv.num_blocks, limits.async_scheduling),
            *(limits.no_evict, limits.whole_prompts, limits.method.reads_features),
            limits.method.looks_up and draft_tokens > 0,
            limits.long_prefill_token_threshold or limits.max_num_scheduled_tokens,
            *(limits.spares_lone_prompt, lookahead, lookahead if limits.seats_lookahead else 0),
            *(pool.max_tokens, pool.block_size, pool.kept_blocks, pool.is_caching, pool.drops_cached_block),
            *(pool.seats_first_chunk, pool.caches_results, pool.reuses_blank_first),
            *(limits.receive_interval, limits.batch_wait_steps, limits.balance[0], limits.retracts),
            limits.drafts_before_verify and limits.method.runs_per_token,
            *(limits.max_num_batched_tokens, 0 if ratio is None else ratio.max_answer_tokens),
            *((0, 0, 0) if ratio is None else ratio.kept(draft_tokens, pool.block_size)),
            *(limits.prefill_decode_interval, limits.min_free_seats, is_part),
            *(pool.hashed_ahead, limits.skips_unused_drafts and lookahead > 0, limits.prefill_schedule_interval),
            *(limits.counts_prompt_steps, limits.defers_last_token),
            *(limits.batch_wait[1], limits.balance[1]),
            *ratios,
            *_host(serving, costs),
        )
    )


def _hear(samples: GapSamples) -> Callable[[bytes], None]:
    """Adds GAPS to the samples."""
    return lambda part: samples.extend(np.frombuffer(part, GAPS))


def _add_up(fleet: Fleet, runs: Sequence[_Run]) -> None:
    """Gauges of all replicas, in order of time."""
    for place, gauge in enumerate((fleet.queue, fleet.kv.held)):
        changes = np.frombuffer(b"".join([run.changes[place] for run in runs]), CHANGES)
        for at_s, change in changes[np.argsort(changes["at_s"], kind="stable")].tolist():
            gauge.add(change, at_s)


def _usage(host: SimHost, kinds: Sequence[Kind], used: Sequence[Sequence[Any]]) -> dict[tuple[str, Kind], Usage]:
    """Totals of each stream's works by kind, of which there are any."""
    usage = {}
    for stream, by_kind in zip(host.streams.values(), used, strict=False):
        for kind, (num_works, tokens, device_s) in zip(kinds, by_kind, strict=False):
            if num_works:
                usage[stream.name, kind] = each = Usage(stream.device)
                each.num_works, each.tokens, each.device_s = num_works, tokens, device_s
    return usage
