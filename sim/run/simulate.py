"""One simulated run: a resolved scenario and a seed become a record.

Not here: what a scenario resolves to (sim.run.resolve), what a run is made of (sim.run.experiment),
comparing runs (sim.compare.side_by_side).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from heapq import nlargest
from time import process_time_ns
from typing import TYPE_CHECKING

from sim.costs.in_service import is_slowed
from sim.devices.ticket import SimTicket
from sim.engine.fleet import Fleet
from sim.engine.serving import Serving
from sim.hosts.simulated import SimHost, Usage
from sim.interface.request import Request
from sim.interface.request_columns import Requests
from sim.interface.work import Kind
from sim.metrics.energy import PowerMeter
from sim.metrics.records import RunRecord, StreamUsage, WorkRecord, work_record
from sim.policies.options import EngineLimits
from sim.run import compiled
from sim.run.experiment import Accounts, Experiment
from sim.run.resolve import Resolved
from sim.workload.served import ServedRequests

if TYPE_CHECKING:
    from sim import reference

OnWork = Callable[[SimTicket], None]


def simulate(
    resolved: Resolved,
    seed: int,
    *,
    record_works: bool = False,
    stop_s: float | None = None,
    requests: Sequence[Request] | None = None,
) -> RunRecord:
    """Run one policy to the end of the scenario's window, or until everything has drained.

    `requests` are served instead of the workload's, which otherwise come from its generators: fresh ones in order of
    arrival, index 0 first. What is recorded may be cut at `stop_s`.

    Raises ValueError for requests that no KV memory of this profile can hold, PolicyStalled for a stuck policy.
    """
    experiment, begun_ns = Experiment(resolved, seed), process_time_ns()
    served = experiment.served() if requests is None else ServedRequests(Requests.of(requests))
    requests = served.requests
    draws = experiment.draws()
    meter = _meter(resolved) if resolved.scenario.energy else None
    build = partial(
        SimHost,
        resolved.host_costs,
        draws,
        draws_by_drafter=experiment.draws_by_drafter(),
        contention=resolved.contention,
        only_together=resolved.options.only_together,
        links=resolved.links,
        costs_elsewhere=resolved.costs_elsewhere,
    )
    if record_works:
        who = "works that are recorded"
        listeners = [] if meter is None else [meter.hear]

        def build_heard(record: OnWork) -> SimHost:
            return build(on_work=lambda ticket: [each(ticket) for each in (record, *listeners)])

        record = run_recorded(experiment, requests, build_heard, stop_s=stop_s)
    else:
        host = build(on_work=None if meter is None else meter.hear)
        serving = experiment.start(host, requests)
        if resolved.form == compiled.SIMPY:
            who = _serve_in_simpy(experiment, serving, host)
        elif who := compiled.serve(resolved, serving, host, draws):
            host.run_until(resolved.scenario.window.stop_s)
        experiment.check_served(serving)
        record = experiment.record(serving, accounts_of(host, []))
    who = who or compiled.CORE
    compiled.told[who] += 1
    compiled.told_ns[who] += process_time_ns() - begun_ns
    form = who if who in (compiled.CORE, compiled.SIMPY) else compiled.PYTHON
    return replace(record, form=form, num_rejected=served.num_rejected, power=None if meter is None else meter.trace)


def _serve_in_simpy(experiment: Experiment, serving: Serving | Fleet, host: SimHost) -> str:
    """All requests of `serving` by sim.reference, which leaves accounts there and on the host."""
    requests, engine = serving.requests, experiment.resolved.engine
    try:
        server = _in_simpy(experiment.resolved, experiment.seed, requests)
    finally:
        host.close()
    assert isinstance(serving, Serving)
    serving.account(len(requests))
    for index, gap_s in server.gaps:
        if index in serving.measured:
            serving.gaps.add(gap_s)
    waits = [(r.arrival_s + engine.frontend_s + engine.frontend_token_s * r.prompt_tokens, 1) for r in requests]
    for at_s, change in sorted([*waits, *((request.scheduled_s, -1) for request in requests)]):
        serving.queue.add(change, at_s)
    used = {id(stream) for _, stream, _ in server.gpu.works}
    streams = [each for each in (server.draft, server.verify, server.prefill) if id(each) in used]
    names = dict(zip(map(id, streams), host.streams.values(), strict=False))
    usage: dict[tuple[str, Kind], Usage] = {}
    for work, on, one in server.gpu.works:
        stream = names[id(on)]
        usage.setdefault((stream.name, work.kind), Usage(stream.device)).add(work, one.over_s - one.begun_s)
    host.conclude(server.env.now, server.gpu.busy_s, usage)
    return compiled.SIMPY


def _in_simpy(resolved: Resolved, seed: int, served: Sequence[Request]) -> reference.Server:
    """The server of sim.reference, after it has served. Raises ValueError for what it does not know."""
    from sim import reference

    scenario, limits, controller = resolved.scenario, resolved.limits, resolved.lengths
    policy, host, engine = resolved.policy.name, getattr(resolved.host_costs, "host", None), resolved.engine
    experiment, pool = Experiment(resolved, seed), resolved.new_pool()
    has_steps, most = resolved.policy.is_continuous, min(limits.max_num_seqs, len(served))
    unknown = {
        f"policy {policy!r}": policy not in reference.POLICIES,
        "draft length that changes": controller.constant is None,
        "draft length of 0 in lanes": not controller.constant and not has_steps,
        "energy": scenario.energy,
        "window that closes (window.stop_s)": scenario.window.stop_s is not None,
        "priorities (slo_classes)": any(request.priority for request in served),
        "closed loop": scenario.workload.max_concurrency is not None,
        "several replicas": scenario.devices.count > 1,
        "lanes that plan ahead (engine.async_scheduling)": limits.async_scheduling and not has_steps,
        "lanes that do not poll": resolved.options.poll_s == 0.0,
        "work that polling or service slows down (profile's host.look_s, served)": host is not None and is_slowed(host),
        "third lane beside prompts that are launched kernel by kernel (profile's host.captures_chunks)": policy == "pdv"
        and host is not None
        and not host.captures_chunks,
        "n-grams": has_steps and limits.method.looks_up and controller.given > 0,
        "steps that wait (engine.name, engine.rules)": has_steps and not _plain_steps(limits),
        "prefixes in common": has_steps and any(request.content for request in served),
        "short memory (engine.num_gpu_blocks)": has_steps
        and sum(nlargest(most, map(pool.blocks_for, served))) > pool.num_blocks,
        "answers that reach the context's end": has_steps
        and any(
            r.prompt_tokens + r.output_tokens + 3 * controller.given >= resolved.profile.target.max_context
            for r in served
        ),
    }
    if any(unknown.values()):
        unknown_here = ", no ".join(name for name, is_so in unknown.items() if is_so)
        raise ValueError(f"sim.reference, which is --in simpy, has no {unknown_here}. Use --in python")
    setup = reference.Setup(
        costs=resolved.host_costs,
        run_length=experiment.draws().run_length,
        draft_tokens=controller.given,
        phi=resolved.contention.phi,
        limits=limits,
        options=resolved.options,
        num_blocks=pool.num_blocks,
        blocks_for=pool.blocks_for,
        frontend_s=lambda request: engine.frontend_s + engine.frontend_token_s * request.prompt_tokens,
    )
    return reference.simulate(policy, served, setup)


def _plain_steps(limits: EngineLimits) -> bool:
    """Every step takes what its budget has room for."""
    waits = (
        limits.prefill_schedule_interval > 1,
        limits.receive_interval > 1,
        limits.batch_wait_steps,
        limits.balance[0],
    )
    cuts = limits.long_prefill_token_threshold, limits.whole_prompts, limits.no_evict, limits.drafts_before_verify
    return limits.mixes_prompts and limits.scheduler is None and not any(waits) and not any(cuts)


def _meter(resolved: Resolved) -> PowerMeter:
    """A meter of the power of all GPUs."""
    elsewhere, devices = resolved.costs_elsewhere, range(resolved.scenario.devices.count * resolved.num_gpus)
    return PowerMeter(
        [elsewhere.get(index, resolved.host_costs) for index in devices],
        [elsewhere[index].profile if index in elsewhere else resolved.profile for index in devices],
    )


def run_recorded(
    experiment: Experiment,
    requests: Sequence[Request],
    build: Callable[[OnWork], SimHost],
    *,
    stop_s: float | None = None,
) -> RunRecord:
    """The experiment on the host that `build` makes of what hears each finished work; its record has all works.

    Until `stop_s` if that is given, else to the end of the scenario's window.
    """
    works: list[WorkRecord] = []
    host = build(lambda ticket: works.append(work_record(ticket)))
    serving = experiment.start(host, requests)
    host.run_until(experiment.scenario.window.stop_s if stop_s is None else stop_s)
    if stop_s is None:
        experiment.check_served(serving)
    return experiment.record(serving, accounts_of(host, works))


def accounts_of(host: SimHost, works: list[WorkRecord]) -> Accounts:
    """Records of the simulated host, with the `works` that somebody noted."""
    streams = list(host.streams)
    return Accounts(
        now_s=host.now_s,
        usage=[
            StreamUsage(
                stream=stream,
                device=str(usage.device),
                kind=kind.value,
                num_works=usage.num_works,
                device_s=usage.device_s,
                tokens=usage.tokens,
            )
            for (stream, kind), usage in sorted(host.usage.items(), key=lambda item: streams.index(item[0][0]))
        ],
        device_busy_s=host.device_busy_s,
        num_polls=host.num_polls,
        works=works,
    )
