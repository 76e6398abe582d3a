"""What serving adds to the passes: threads handing over, and several issuers at once, measured on the threaded host.

`calibrate measure` times passes one after the other in a loop. A policy's works take longer: they wait for threads to
wake up, and share interpreter and cores with whatever else the host does. A few requests served by lanes (one request
end to end on a stream of its own, one to three of them at once) say how much, with nothing of a policy in it.
Not here: a profile's other constants (calibrate), replaying a scenario (realrun.replay).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import expm1, log, log1p
from statistics import median
from typing import Any

import msgspec

from realrun.gpuhost import GpuHost
from realrun.kernels import PairKernels
from realrun.measured import MeasuredWork, measured_work
from realrun.pair import PairExecutor
from sim.acceptance_models import IidAcceptance
from sim.controllers import build_controller
from sim.costs import Profile, build_costs
from sim.costs.profile import IdleRamp
from sim.devices.contention import contention_of
from sim.host import Stream
from sim.kv import KvPool
from sim.luck import Luck
from sim.policies import rounds
from sim.policies.options import PolicyOptions
from sim.request import Request
from sim.serving import Serving
from sim.simhost import SimHost
from sim.work import Kind, Work

LANES = (1, 2, 3)
Setting = tuple[tuple[int, ...], int, float]
"""Coroutines of each lane, draft length, seconds between two arrivals."""
ALONE = (1,)
"""One coroutine on one stream."""
SHARED = 3
"""Coroutines that share a stream."""
REQUESTS_PER_LANE = 8
PROMPT_TOKENS, OUTPUT_TOKENS = 48, 24
DRAFT_TOKENS, ACCEPTANCE = 4, 0.6
SEED = 1009
"""Of arrivals' luck and prompts: of no use to any judged run."""
REPEATS = 4
PAUSES_S = (0.02, 0.1)
"""Of the device between two requests, to see what the first works after one lose."""
PAUSE_SCALES_S = tuple(1e-3 * 1.2**step for step in range(36))
"""1 ms to 0.6 s."""
LEAST_PAUSE_S = 1e-3
LEAST_SHARE = 0.05
"""Of what is lost in all that the prompt is taken to lose, at least; and at most all but this."""
TAUS_S = tuple(1e-6 * 1.25**step for step in range(30))
"""1 us to 0.6 ms per kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Lanes that served their requests."""

    is_paused: bool
    works: list[MeasuredWork]
    submitted: list[Work]
    """The works of `works`, in the same order."""
    span_s: float
    """From the first submission to the last result."""
    ttft_s: float
    e2el_s: float
    """Medians over the requests, from admission."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """Seconds that serving adds."""

    prepare_s: float
    """From the moment when nothing but the threads kept a work from being issued to its issue."""
    result_s: float
    """From the end of a work to the act of the coroutine that awaited it."""
    pass_s: float
    """Per work, what the same pass lasts longer than the profile says."""
    switch_s: float
    """More of that where the pass before was one of the other model."""
    tau_s: float | None
    """Per kernel while another work runs; None where the device has its own streams, or one lane is all there is."""
    idle_ramp: IdleRamp | None


def with_handover(profile: Profile, kernels: PairKernels, *, repeats: int = REPEATS) -> Profile:
    """`profile` with what serving adds measured on `kernels`, the pair that it was measured on.

    On a CPU, where issuing a pass is executing it, also the delay of concurrent passes, which have no priorities there,
    and what the first works after a pause lose. Raises ValueError where slots are too short for the requests served.
    """
    is_cpu = kernels.device.type == "cpu"
    executor = PairExecutor(kernels, seed=SEED)
    drafted = DRAFT_TOKENS if kernels.draft_model is not None else 0
    lanes = [number for number in LANES if number <= kernels.options.slots] if is_cpu else [1]
    settings: list[Setting] = [((1,) * number, drafted, 0.0) for number in lanes]
    shared = (min(SHARED, kernels.options.slots),)
    settings += [(shared, drafted, 0.0), *([(ALONE, 0, 0.0)] if drafted else [])]
    service_s = _serve(executor, ALONE, drafted).span_s / REQUESTS_PER_LANE
    if is_cpu:
        settings += [(ALONE, drafted, service_s + pause_s) for pause_s in PAUSES_S]
    # Round after round, so that a drift of the machine hits all alike.
    rounds_ = [{setting: _serve(executor, *setting) for setting in settings} for _ in range(repeats)]
    middle = {setting: sorted((each[setting] for each in rounds_), key=_length_s)[repeats // 2] for setting in settings}
    spread = max(_length_s(each[setting]) / _length_s(middle[setting]) for each in rounds_ for setting in settings)
    alone, several = middle[ALONE, drafted, 0.0], {n: middle[(1,) * n, drafted, 0.0] for n in lanes[1:]}
    paused = {period_s: run for (_, _, period_s), run in middle.items() if period_s > 0.0}
    plain = middle[ALONE, 0, 0.0]
    start = _synchronous(profile) if is_cpu else _eager_chunks(profile)
    found = _hand_over(
        start, plain, [alone, middle[shared, drafted, 0.0]], several, idle_ramp(alone, paused) if paused else None
    )
    return _completed(start, found, f"middle of {repeats} runs each, the slowest took {spread:.2f} times as long")


def _synchronous(profile: Profile) -> Profile:
    return msgspec.structs.replace(
        profile,
        host=msgspec.structs.replace(profile.host, is_synchronous=True),
        overlap=msgspec.structs.replace(profile.overlap, has_priorities=False),
    )


def _eager_chunks(profile: Profile) -> Profile:
    """Real passes with prompt chunks are never captured (realrun.rows)."""
    return msgspec.structs.replace(profile, host=msgspec.structs.replace(profile.host, captures_chunks=False))


def _length_s(run: Served) -> float:
    """What a run is chosen by: its requests' own time where pauses lie between them, the whole of it elsewhere."""
    return run.e2el_s if run.is_paused else run.span_s


def _completed(profile: Profile, found: HandOver, how: str = "") -> Profile:
    added_s = found.prepare_s + found.pass_s
    host = msgspec.structs.replace(
        profile.host,
        step_s=_rounded(profile.host.step_s + added_s),
        result_s=_rounded(found.result_s),
        idle_ramp=found.idle_ramp,
        switch_s=_rounded(found.switch_s),
        source=f"{profile.host.source}; step_s and result_s: works of the threaded host, {added_s * 1e6:.0f} us per "
        f"work beside its pass and {found.result_s * 1e6:.0f} us from its end to the next act; {how}",
    )
    overlap = profile.overlap
    if found.tau_s is not None:
        overlap = msgspec.structs.replace(
            overlap,
            tau_s=_rounded(found.tau_s),
            source=f"{overlap.source}; tau_s: {LANES[1]} and more lanes of the threaded host at once",
        )
    return msgspec.structs.replace(profile, host=host, overlap=overlap)


def _hand_over(
    profile: Profile,
    plain: Served,
    drafting: Sequence[Served],
    several: Mapping[int, Served],
    ramp: IdleRamp | None,
) -> HandOver:
    """From runs of one lane, without drafts and with, and of `several` lanes by their number.

    Every pass of a lane that drafts is of the other model than the one before it.
    """
    works = [work for run in drafting for work in run.works]
    pass_s = max(0.0, _longer_s(profile, plain))
    found = HandOver(
        prepare_s=median(work.record.issue_start_s - work.eligible_s for work in works),
        result_s=median(reaction for work in works if (reaction := work.reacted_s - work.record.end_s) == reaction),
        pass_s=pass_s if profile.host.is_synchronous else 0.0,
        switch_s=max(0.0, median(_longer_s(profile, run) for run in drafting) - pass_s)
        if profile.host.is_synchronous
        else 0.0,
        tau_s=None,
        idle_ramp=ramp,
    )
    if not several:
        return found
    spans_s = {number: run.span_s for number, run in several.items()}
    return replace(found, tau_s=_best_tau(_completed(profile, found), spans_s))


def _longer_s(profile: Profile, run: Served) -> float:
    """What works last longer than the profile says, mean seconds; the most extreme fifth left out."""
    costs = build_costs(profile, cuda_graph=False)
    longer_s = sorted(
        work.record.end_s - work.record.start_s - costs.cost(submitted).device_s
        for work, submitted in zip(run.works, run.submitted, strict=True)
    )
    cut = len(longer_s) // 10
    kept = longer_s[cut : len(longer_s) - cut]
    return sum(kept) / len(kept)


def idle_ramp(busy: Served, paused: Mapping[float, Served]) -> IdleRamp | None:
    """What works lose after a pause: requests of one lane with pauses before each, beside those without any.

    `paused` by period of arrival, shorter first. None if nothing is lost that could be told apart.
    """
    pauses_s, lost_s, lost_at_once_s = [], [], []
    for period_s, run in paused.items():
        pauses_s.append(max(LEAST_PAUSE_S, period_s - run.e2el_s))
        lost_s.append(run.e2el_s - busy.e2el_s)
        lost_at_once_s.append(run.ttft_s - busy.ttft_s)
    if min(lost_s) <= 0.0:
        return None
    pause_s = min(
        PAUSE_SCALES_S,
        key=lambda scale_s: abs(
            lost_s[0] / lost_s[-1] - expm1(-pauses_s[0] / scale_s) / expm1(-pauses_s[-1] / scale_s)
        ),
    )
    share = min(max(lost_at_once_s[-1] / lost_s[-1], LEAST_SHARE), 1.0 - LEAST_SHARE)
    return IdleRamp(
        lost_s=_rounded(lost_s[-1] / -expm1(-pauses_s[-1] / pause_s)),
        pause_s=_rounded(pause_s),
        work_s=_rounded(-busy.ttft_s / log1p(-share)),
    )


def _best_tau(profile: Profile, spans_s: dict[int, float]) -> float:
    """The delay per kernel with which the simulated lanes take as long as the real ones."""

    def loss(tau_s: float) -> float:
        overlap = msgspec.structs.replace(profile.overlap, tau_s=tau_s)
        candidate = msgspec.structs.replace(profile, overlap=overlap)
        return sum(log(simulated_span_s(candidate, number) / span_s) ** 2 for number, span_s in spans_s.items())

    return min(TAUS_S, key=loss)


def simulated_span_s(profile: Profile, num_lanes: int) -> float:
    """What `num_lanes` lanes take in simulation."""
    host = SimHost(build_costs(profile, cuda_graph=False), _luck(), contention=contention_of(profile.overlap))
    serving = _start(host, (1,) * num_lanes, DRAFT_TOKENS if profile.draft is not None else 0)
    host.run_until()
    return max(request.last_token_s for request in serving.requests)


def _serve(executor: PairExecutor, lanes: tuple[int, ...], draft_tokens: int, period_s: float = 0.0) -> Served:
    with GpuHost(executor, _luck()) as host:
        serving = _start(host, lanes, draft_tokens, period_s)
        host.run_until()
        works = [ticket for ticket in host.works if ticket.work.kind is not Kind.HOST]
    executor.reset()
    return Served(
        is_paused=period_s > 0.0,
        works=[measured_work(ticket) for ticket in works],
        submitted=[ticket.work for ticket in works],
        span_s=max(request.last_token_s for request in serving.requests),
        ttft_s=median(request.first_token_s - request.scheduled_s for request in serving.requests),
        e2el_s=median(request.last_token_s - request.scheduled_s for request in serving.requests),
    )


def _start(host: Any, lanes: tuple[int, ...], draft_tokens: int, period_s: float = 0.0) -> Serving:
    requests = [
        Request(index=i, id=str(i), arrival_s=i * period_s, prompt_tokens=PROMPT_TOKENS, output_tokens=OUTPUT_TOKENS)
        for i in range(REQUESTS_PER_LANE * len(lanes))
    ]
    ahead = draft_tokens + 1 if draft_tokens else 0
    pool = KvPool(len(requests) * (PROMPT_TOKENS + OUTPUT_TOKENS + ahead), 1, ahead)
    serving = Serving(host, requests, pool, build_controller("fixed", draft_tokens), max_concurrency=None)
    streams = [host.stream(f"lane {number}") for number in range(len(lanes))]
    for stream, num_coroutines in zip(streams, lanes, strict=True):
        for _ in range(num_coroutines):
            host.spawn(_lane(serving, stream))
    host.spawn(serving.arrivals())
    return serving


async def _lane(serving: Serving, stream: Stream) -> None:
    """One request after the other, end to end."""
    options = PolicyOptions()
    while True:
        request = await serving.admit()
        await rounds.submit_prefill(serving, request, stream)
        serving.commit_prefill(request)
        while not request.is_finished:
            await rounds.run_round(serving, (request,), options, stream, stream)


def _luck() -> Luck:
    return Luck(IidAcceptance(ACCEPTANCE), SEED)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
