"""One run's ingredients, the same for a simulated and for a real host: requests, memory, luck, policy, and its record.

Not here: either host. No torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

from sim.acceptance.luck import Luck
from sim.acceptance.tape import TapeAcceptance
from sim.costs.profile import Profile
from sim.engine.draft_length import build_controller
from sim.engine.paged import PagedPool
from sim.engine.serving import Serving
from sim.experiment.run import build_acceptance, draft_slots, loaded_models, num_kv_blocks
from sim.experiment.scenario import Scenario
from sim.metrics.records import RunRecord, StreamUsage, WorkRecord
from sim.policies.options import KvMode, Method
from sim.policies.registry import Policy, find_policy
from sim.seam.request import Request
from sim.workload.generate import build_requests


class SpawningHost(Protocol):
    """A host as this module needs it, besides the seam."""

    num_polls: int

    @property
    def now_s(self) -> float: ...
    def spawn(self, task: Any) -> None: ...


class SlottedPool(PagedPool):
    """KV memory by blocks, and by slots: at most `most_requests` at once. A slot holds a whole sequence, so a request
    cannot lose its memory and come back."""

    __slots__ = ("_most_requests",)

    def __init__(self, num_blocks: int, block_size: int, draft_slots: int, most_requests: int) -> None:
        super().__init__(num_blocks, block_size, draft_slots)
        self._most_requests = most_requests

    def reserve(self, request: Request) -> bool:
        return len(self._reserved) < self._most_requests and super().reserve(request)

    def seat(self, request: Request, found: list[int], num_tokens: int, whole_tokens: int) -> bool:
        has_slot = len(self._tables) < self._most_requests
        return has_slot and super().seat(request, found, num_tokens, whole_tokens)

    def preempt(self, request: Request, num_tokens: int) -> None:
        raise ValueError(
            f"KV memory ran out: request {request.id} would be preempted, which a replay cannot do; raise "
            "engine.num_gpu_blocks, or lower --max-concurrency"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A scenario with one policy and one seed."""

    scenario: Scenario
    policy_name: str
    seed: int
    profile: Profile
    most_requests: int
    """Slots for requests at once."""
    is_dictated: bool = True
    """Acceptance comes from the tape of this seed; False: the models decide."""

    @property
    def policy(self) -> Policy:
        return find_policy(self.policy_name)

    @property
    def draft_tokens(self) -> int:
        return self.scenario.speculation.num_speculative_tokens if self.policy.is_speculative else 0

    @property
    def draft_tokens_max(self) -> int:
        return build_controller(self.scenario.speculation.controller, self.draft_tokens).draft_tokens_max

    def requests(self) -> list[Request]:
        """New requests, in order of arrival. Raises ValueError if none arrives in the window."""
        cut_s = self.scenario.window.arrivals_end_s
        requests = build_requests(self.scenario.workload, self.seed)
        kept = [request for request in requests if cut_s is None or request.arrival_s <= cut_s]
        if not kept:
            raise ValueError(f"window.arrivals_end_s={cut_s!r}: no request arrives by then (seed {self.seed})")
        return kept

    def dictated_luck(self) -> Luck | None:
        """What dictates acceptance to a real host: the tape, or nothing."""
        return self.luck() if self.is_dictated else None

    def luck(self) -> Luck:
        """Whose drafts are accepted: the tape of this seed."""
        return Luck(build_acceptance(self.scenario.speculation, self.draft_tokens), self.seed)

    def start(self, host: Any, requests: Sequence[Request]) -> Serving:
        """Start the policy and the arrivals of `requests` on `host`. Raises ValueError for one that never fits."""
        scenario, most = self.scenario, self.draft_tokens_max
        num_blocks = num_kv_blocks(scenario, self.profile, most)
        slots = draft_slots(scenario, self.policy, most)
        pool = SlottedPool(num_blocks, scenario.engine.block_size, slots, self.most_requests)
        for request in requests:
            if pool.blocks_for(request) > pool.num_blocks:
                raise ValueError(
                    f"request {request.id}: prompt {request.prompt_tokens} + output {request.output_tokens} tokens "
                    f"need {pool.blocks_for(request)} KV blocks, and there are {pool.num_blocks}"
                )
        controller = build_controller(scenario.speculation.controller, self.draft_tokens)
        serving = Serving(host, requests, pool, controller, max_concurrency=scenario.workload.max_concurrency)
        serving.first_measured = scenario.workload.num_warmups
        for task in self.policy.build(serving, scenario.policy_options, scenario.limits):
            host.spawn(task)
        host.spawn(serving.arrivals())
        return serving

    def record(
        self, host: SpawningHost, serving: Serving, works: list[WorkRecord], busy_s: float, *, end_s: float
    ) -> RunRecord:
        """What the run left behind. `end_s` is when it was cut, if it was."""
        is_whole = serving.is_all_finished
        models = loaded_models(self.scenario, self.profile, self.draft_tokens_max)
        return RunRecord(
            policy=self.policy_name,
            seed=self.seed,
            requests=list(serving.requests),
            gaps=serving.gaps,
            end_s=max(request.last_token_s for request in serving.requests) if is_whole else end_s,
            window_s=self.scenario.window.stop_s,
            usage=usage_of(works),
            device_busy_s=busy_s,
            num_polls=host.num_polls,
            queue_mean=serving.queue.mean(host.now_s),
            queue_peak=serving.queue.peak,
            kv_tokens_mean=serving.kv.held.mean(host.now_s),
            kv_tokens_peak=serving.kv.held.peak,
            kv_capacity_tokens=serving.kv.num_blocks * serving.kv.block_size,
            is_open_loop=self.scenario.workload.max_concurrency is None,
            works=works,
            kv_series=serving.kv.held.series or [],
            weight_bytes=sum(shape.weight_bytes for shape in models),
            kv_bytes_per_token=sum(shape.kv_bytes_per_token for shape in models),
        )


def check_replayable(experiment: Experiment) -> None:
    """Raise ValueError for a scenario that simulates but cannot be replayed: no KV at all, or too short a tape."""
    scenario = experiment.scenario
    if scenario.engine.async_scheduling and experiment.policy.is_continuous:
        raise ValueError(
            "engine.async_scheduling=true can be simulated only: a replay plans each step with all results"
        )
    if scenario.speculation.method is not Method.DRAFT_MODEL and experiment.draft_tokens:
        raise ValueError(
            f"speculation.method={scenario.speculation.method} can be simulated only; a replay drafts with a model"
        )
    if scenario.policy_options.kv is KvMode.NONE and not experiment.policy.is_continuous:
        raise ValueError("policy_options.kv=none can be simulated only; a replay keeps KV: use rollback or reforward")
    if not experiment.is_dictated or not experiment.draft_tokens:
        return
    acceptance = build_acceptance(scenario.speculation, experiment.draft_tokens)
    if not isinstance(acceptance, TapeAcceptance):
        return
    requests = experiment.requests()
    if len(acceptance.tapes) < len(requests):
        raise ValueError(
            f"acceptance tape holds {len(acceptance.tapes)} requests and the run has {len(requests)}; "
            f"record more, or --num-prompts {len(acceptance.tapes)}"
        )
    for request in requests:
        positions = len(acceptance.tapes[request.index])
        if positions < request.output_tokens:
            raise ValueError(
                f"acceptance tape of request {request.index} has {positions} positions and its output "
                f"{request.output_tokens} tokens; want as many, or a smaller --output-len"
            )


def most_at_once(experiment: Experiment) -> int:
    """Requests that the policy can ever have in KV together."""
    scenario = experiment.scenario
    limits: list[float] = [len(experiment.requests()), scenario.workload.max_concurrency or inf]
    if experiment.policy.is_continuous:
        limits.append(scenario.engine.max_num_seqs)
    return int(min(limits))


def usage_of(works: Sequence[WorkRecord]) -> list[StreamUsage]:
    """Totals by stream and kind, in order of first appearance."""
    totals: dict[tuple[str, str], list[float]] = {}
    for work in works:
        total = totals.setdefault((work.stream, work.kind), [0, 0.0, 0])
        if work.kind == "host":
            continue
        total[0] += 1
        total[1] += work.end_s - work.start_s
        total[2] += useful_tokens(work)
    return [
        StreamUsage(stream=stream, kind=kind, num_works=int(count), device_s=device_s, tokens=int(tokens))
        for (stream, kind), (count, device_s, tokens) in totals.items()
    ]


def useful_tokens(work: WorkRecord) -> int:
    """Token positions that a work has to compute, padding left out."""
    return work.row_tokens + work.rows * max(0, work.draft_tokens - 1) + work.chunk_tokens


def busy_seconds(works: Sequence[WorkRecord]) -> float:
    """Seconds in which at least one work was on the device."""
    busy_s, until_s = 0.0, -inf
    for start_s, end_s in sorted((work.start_s, work.end_s) for work in works if work.kind != "host"):
        busy_s += max(0.0, end_s - max(start_s, until_s))
        until_s = max(until_s, end_s)
    return busy_s
