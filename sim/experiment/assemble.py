"""One assembly of a run, simulated or real: a scenario's policy with one seed on a profile becomes requests, luck,
memory and coroutines on a host, and what they leave behind becomes a record.

Whoever simulates, replays or validates goes through here, so that all mean the same run. Not here: hosts, and the loop
over policies and seeds (sim.experiment.compare).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

import msgspec

from sim.acceptance.forms import parse_quoted
from sim.acceptance.luck import Luck
from sim.acceptance.models import Acceptance
from sim.costs.cost import CostModel
from sim.costs.drafters import DrafterCosts, draft_shape, pair_with
from sim.costs.engine import EngineCosts
from sim.costs.forms.build import ShippedCosts, build_costs
from sim.costs.memory import kv_capacity_blocks, loaded_models
from sim.costs.profile import Profile
from sim.costs.shapes import ModelShape, kv_bytes_per_token
from sim.devices.contention import Contention, Regime, contention_of
from sim.engine.adaptive_length import RoundSeconds
from sim.engine.controllers import VERIFYING, build_controller
from sim.engine.draft_choice import DraftChoice
from sim.engine.draft_length import Controller
from sim.engine.fleet import Fleet, FleetGauges
from sim.engine.gauge import GapSamples, GaugePart
from sim.engine.kv import KvPool, SpreadPool
from sim.engine.paged import PagedPool, SlottedPool
from sim.engine.serving import Serving
from sim.experiment.forecast import MeanLoad, StepForecast
from sim.experiment.limits import build_acceptance, draft_slots, engine_for, limits_of
from sim.experiment.partition import Shares, best_shares
from sim.experiment.scenario import Scenario
from sim.hosts.view import HostView
from sim.metrics.records import RunRecord, StreamUsage, WorkRecord
from sim.policies import continuous_lazy
from sim.policies.adaptive import seed_table
from sim.policies.options import PREEMPTIVE, EngineLimits, Method, rows_per_work
from sim.policies.registry import Policy, find_policy
from sim.seam.host import Host
from sim.seam.request import Request
from sim.seam.work import Kind
from sim.workload.classes import assign_classes
from sim.workload.generate import Workload, build_requests, is_trace, trace_length


class PolicyStalled(RuntimeError):
    """A policy stopped with requests unserved: a defect of the policy, not of the input."""


class BeyondContextWarning(UserWarning):
    """Requests are longer than the target's context."""


class WindowWarning(UserWarning):
    """The requests do not fill the window of arrivals."""


class Caps(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that a policy serves under, all resolved; None where it has no such thing."""

    max_num_seqs: int
    max_num_batched_tokens: int
    decode_batch: int | None
    """Most requests of one draft, or of one round where draft and verify are atomic."""
    verify_batch: int | None
    workers: int | None


HEAVY_BYTES = 60e9
"""Weights of a target that seed 002's table calls heavy: 34B and more, in bf16."""
LOAD_SAMPLE = 200
"""Requests whose means tell of a workload."""
_known_shares: dict[tuple[str, str, int], tuple[Profile, Shares]] = {}
"""Chosen ones by scenario, policy and profile, which is kept as well: another one must not get its identity."""


class SpawningHost(Host, Protocol):
    """A host that runs coroutines."""

    def spawn(self, task: Any) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """What a host can tell of a run that is over."""

    now_s: float
    """When it was over, or cut."""
    usage: list[StreamUsage]
    device_busy_s: float
    num_polls: int
    works: list[WorkRecord] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A scenario with one policy and one seed."""

    scenario: Scenario
    policy_name: str
    seed: int
    profile: Profile
    num_slots: int | None = None
    """Requests that a real host can hold at once; None = as many as memory does, on no real host."""
    is_dictated: bool = True
    """Acceptance comes from the tape of this seed; False: the models of a real run decide."""

    @property
    def policy(self) -> Policy:
        return find_policy(self.policy_name)

    @property
    def draft_tokens(self) -> int:
        """Draft length of the scenario; 0 for a policy that never drafts."""
        return self.scenario.speculation.num_speculative_tokens if self.policy.is_speculative else 0

    @property
    def draft_tokens_max(self) -> int:
        return self.controller().draft_tokens_max

    @property
    def engine(self) -> EngineCosts:
        """What is added to the GPU's time. Raises ValueError for an engine that is not known."""
        return engine_for(self.scenario, self.profile, is_real=self.num_slots is not None)

    @property
    def limits(self) -> EngineLimits:
        return limits_of(
            self.scenario,
            self.profile,
            is_speculative=self.policy.is_speculative,
            is_real=self.num_slots is not None,
        )

    @property
    def most_seated(self) -> int:
        """Requests that one replica of the policy admits at once, memory apart."""
        most = self.limits.max_num_seqs * self.num_engines
        return min(most, self.scenario.policy_options.workers) if self.policy.has_workers else most

    @property
    def models(self) -> tuple[ModelShape, ...]:
        """Whose weights and KV are in memory."""
        has_draft = self.draft_tokens_max > 0 and self.scenario.speculation.method is not Method.NGRAM
        return (*loaded_models(self.profile, with_draft=has_draft), *map(draft_shape, self.further_pairs))

    @property
    def further_pairs(self) -> list[Profile]:
        """The target with each further draft model. Raises ValueError for one that cannot draft for it."""
        if not self.draft_tokens:
            return []
        return [pair_with(self.profile, drafter.draft) for drafter in self.scenario.speculation.drafts]

    def controller(self) -> Controller:
        """A new one. Raises ValueError for one that a real host cannot follow."""
        speculation = self.scenario.speculation
        if speculation.drafts and self.draft_tokens:
            return self._draft_choice()
        controller = build_controller(
            speculation.controller,
            self.draft_tokens,
            table=speculation.num_speculative_tokens_per_batch_size,
            bands=speculation.speculative_adaptive_config,
            round_s=self._round_seconds(),
        )
        if self.num_slots is not None and speculation.controller == VERIFYING and self.draft_tokens:
            raise ValueError(
                f"speculation.controller={VERIFYING} is simulated only: a replay verifies all that was drafted"
            )
        if self.num_slots is not None and controller.draft_tokens_min == 0 < controller.draft_tokens_max:
            raise ValueError(
                f"speculation.controller={speculation.controller} may choose not to draft, which a replay cannot: its "
                "kernels draft at least one token; simulate it, or let its lengths begin at 1"
            )
        return controller

    def _draft_choice(self) -> DraftChoice:
        """Among the draft models, by what is expected of each; costs are built when somebody asks."""
        if self.num_slots is not None:
            raise ValueError("speculation.drafts are simulated only: a replay has one draft model loaded")
        further = self.scenario.speculation.drafts
        lengths = (self.draft_tokens, *(drafter.num_speculative_tokens for drafter in further))
        known: list[StepForecast] = []

        def tokens_per_s(drafter: int, rows: int) -> float:
            if not known:
                known.append(self.steps())
            prompt, output = _mean_lengths(self.sample())
            num_rounds = max(0.0, output - 1.0) / self._acceptances()[drafter].expected_length(lengths[drafter])
            return output * known[0].lane_requests_per_s(
                rows, max(1, round(prompt)), num_rounds, lengths[drafter], drafter
            )

        return DraftChoice(lengths, tokens_per_s, hysteresis=self.scenario.speculation.draft_hysteresis)

    def _acceptances(self) -> list[Acceptance]:
        """[draft models] the profile's own first."""
        speculation = self.scenario.speculation
        further = [parse_quoted(each.acceptance).model(each.num_speculative_tokens) for each in speculation.drafts]
        return [build_acceptance(speculation, self.draft_tokens), *further]

    def _round_seconds(self) -> RoundSeconds:
        """What a round takes by the profile's costs; they are built when somebody asks."""
        known: list[StepForecast] = []

        def round_s(rows: int, draft_tokens: int) -> float:
            if not known:
                known.append(self.steps())
            if self.scenario.speculation.controller == VERIFYING:
                return known[0].step_s(rows, draft_tokens, (), drafted_anew=self.draft_tokens)
            return known[0].round_s(rows, draft_tokens)

        return round_s

    def steps(self) -> StepForecast:
        """Steps of continuous batching with the requests' mean context."""
        prompt, output = _mean_lengths(self.sample())
        return StepForecast(self.host_costs(), self.limits, prompt + output / 2.0, has_draft=self.draft_tokens > 0)

    def sample(self) -> list[Request]:
        """Requests whose means tell of the workload, the same for all seeds."""
        return build_requests(_sampled(self.scenario.workload), self.scenario.seed)

    @property
    def is_partitioned(self) -> bool:
        """Lanes of the policy run on shares of the multiprocessors."""
        return bool(self.scenario.policy_options.partition and self.policy.lanes)

    @property
    def regime(self) -> Regime | None:
        """What works of several plain streams do to each other; None where the profile's measurement says it, or where
        streams are not plain, but have shares of the multiprocessors."""
        if self.is_partitioned:
            return None
        return None if self.profile.overlap.measured else self.scenario.devices.overlap or Regime.SHARED

    @property
    def shares(self) -> Shares | None:
        """Of the multiprocessors, by lane; where the scenario leaves them open, those that suit its load. None where
        streams share all of them."""
        partition = self.scenario.policy_options.partition
        if partition is None or not self.policy.lanes:
            return None
        if isinstance(partition, dict):
            return {lane: partition[lane] for lane in self.policy.lane_names if lane in partition}
        key = self.scenario.digest, self.policy_name, id(self.profile)
        if key not in _known_shares:
            _known_shares[key] = self.profile, best_shares(self.policy.lanes, self.costs(), self.mean_load())
        return _known_shares[key][1]

    def mean_load(self) -> MeanLoad:
        """The scenario in means, the same for all its seeds."""
        scenario, draft_tokens = self.scenario, self.controller().draft_tokens_for(1, 0)
        sample = self.sample()
        count = len(sample)
        prompt, output = _mean_lengths(sample)
        per_round = 1.0
        if draft_tokens:
            per_round = build_acceptance(scenario.speculation, draft_tokens).expected_length(draft_tokens)
        pool, caps = self.pool(), caps_of(self)
        blocks = sum(pool.blocks_for(request) for request in sample) / count
        rate, span_s = scenario.workload.request_rate, sample[-1].arrival_s - sample[0].arrival_s
        if is_trace(scenario.workload):
            rate = (count - 1) / span_s if span_s else inf
        most_drafted = caps.decode_batch or self.most_seated
        return MeanLoad(
            prompt_tokens=max(1, round(prompt)),
            prompt_variation=sum(request.prompt_tokens**2 for request in sample) / count / prompt**2 - 1.0,
            context_tokens=prompt + output / 2.0,
            num_rounds=max(1.0, (output - 1.0) / per_round),
            draft_tokens=draft_tokens,
            most_at_once=max(1, min(self.most_seated, int(pool.num_blocks / blocks))),
            most_rows={Kind.DRAFT: most_drafted, Kind.VERIFY: caps.verify_batch or most_drafted},
            rate_per_s=rate,
            max_concurrency=scenario.workload.max_concurrency,
        )

    def contention(self) -> Contention:
        is_preemptive = self.scenario.policy_options.stream_priorities == PREEMPTIVE
        return contention_of(self.profile.overlap, self.regime, is_preemptive=is_preemptive)

    def costs(self) -> ShippedCosts:
        profile = self.profile
        if self.regime is Regime.ROOFS or self.is_partitioned:
            overlap = msgspec.structs.replace(profile.overlap, demand_floor=0.0)
            profile = msgspec.structs.replace(profile, overlap=overlap)
        most = self.draft_tokens_max if self.policy.is_continuous else 0
        return build_costs(
            profile,
            self.engine,
            cuda_graph=self.scenario.engine.cuda_graph,
            graphed_queries=most + 1 if most else None,
        )

    def host_costs(self) -> CostModel:
        """As `costs`; works of further draft models by their own."""
        engine, cuda_graph = self.engine, self.scenario.engine.cuda_graph
        further = [build_costs(pair, engine, cuda_graph=cuda_graph) for pair in self.further_pairs]
        return DrafterCosts([self.costs(), *further]) if further else self.costs()

    def requests(self) -> list[Request]:
        """New requests that arrive within the window, in order of arrival; at a low rate that may be none."""
        workload, cut_s = self.scenario.workload, self.scenario.window.arrivals_end_s
        requests = build_requests(workload, self.seed, self.scenario.engine.block_size)
        assign_classes(requests, self.scenario.slo_classes, self.seed)
        if cut_s is None:
            return requests
        if requests[-1].arrival_s <= cut_s and workload.request_rate < inf and not is_trace(workload):
            warnings.warn(
                f"{len(requests)} requests end before window.arrivals_end_s={cut_s:g}; raise workload.num_prompts to "
                "fill it",
                WindowWarning,
                stacklevel=2,
            )
        return [request for request in requests if request.arrival_s <= cut_s]

    def luck(self, requests: Sequence[Request] = ()) -> Luck:
        """Whose drafts are accepted: the tape of this seed, prepared for `requests` where they are known."""
        speculation = self.scenario.speculation
        if self.policy.drafts_ahead and speculation.stale_acceptance is not None:
            speculation = msgspec.structs.replace(speculation, acceptance=speculation.stale_acceptance)
        luck = Luck(build_acceptance(speculation, self.draft_tokens), self.seed)
        if self.draft_tokens and requests:
            luck.prepare([r.index for r in requests], [r.output_tokens for r in requests], self.draft_tokens)
        return luck

    def lucks(self) -> list[Luck]:
        """[draft models] where there are several, on the same draws: what one has accepted, a better one has, too."""
        if not self.further_pairs:
            return []
        return [Luck(acceptance, self.seed) for acceptance in self._acceptances()]

    def pool(self) -> KvPool:
        """The KV memory: blocks as given, or as many as fit beside the weights. Raises ValueError where none does."""
        engine, policy, most = self.scenario.engine, self.policy, self.draft_tokens_max
        num_blocks = engine.num_gpu_blocks
        if num_blocks is None:
            num_blocks = kv_capacity_blocks(
                self.profile,
                engine.block_size,
                engine.gpu_memory_utilization,
                with_draft=len(self.models) > 1,
                beside=list(map(draft_shape, self.further_pairs)),
                engine=self.engine,
            )
        slots = draft_slots(policy, most, is_async=self.limits.async_scheduling)
        if self.num_slots is not None:
            return SlottedPool(num_blocks, engine.block_size, slots, self.num_slots)
        if policy.is_continuous:
            return PagedPool(num_blocks, engine.block_size, slots, is_caching=engine.enable_prefix_caching)
        if self.num_engines > 1:
            return SpreadPool(num_blocks, engine.block_size, slots, num_gpus=self.num_engines)
        return KvPool(num_blocks, engine.block_size, slots)

    @property
    def num_engines(self) -> int:
        """GPUs of a replica that seat requests."""
        return self.policy.num_engines(self.scenario.policy_options)

    @property
    def num_gpus(self) -> int:
        """Of one replica."""
        return self.policy.num_gpus(self.scenario.policy_options)

    def start(
        self, host: SpawningHost, requests: Sequence[Request], *, luck: Luck | None = None, is_recorded: bool = False
    ) -> Serving | Fleet:
        """Start the policy and the arrivals of `requests` on `host`, in every replica.

        With `luck` the account may be lazy where that changes no result: nobody looks at a row's state then. Raises
        ValueError for a request that never fits. `is_recorded`: somebody notes the works, and the memory over time.
        """
        devices = self.scenario.devices
        _check_they_fit(requests, self.pool(), self.profile)
        served: Serving | Fleet
        if devices.count == 1:
            served = self._serving(host, requests)
            self._start_policy(host, served, luck, is_recorded)
        else:
            members: list[Serving] = []

            def build(index: int, gaps: GapSamples, gauges: FleetGauges) -> Serving:
                member = self._serving(HostView(host, str(index), first_gpu=index * self.num_gpus), requests)
                member.gaps = gaps
                member.queue, member.kv.held = GaugePart(gauges.queue), GaugePart(gauges.held)
                members.append(member)
                return member

            served = Fleet(
                host,
                requests,
                build,
                count=devices.count,
                routing=devices.routing,
                max_concurrency=self.scenario.workload.max_concurrency,
            )
            for member in members:
                self._start_policy(host, member, luck, is_recorded)
        if is_recorded:
            served.kv.held.series = []
        host.spawn(served.arrivals())
        return served

    def _serving(self, host: Host, requests: Sequence[Request]) -> Serving:
        """One replica's, on its own GPUs."""
        limits, options = self.limits, self.scenario.policy_options
        serving = Serving(
            host,
            requests,
            self.pool(),
            self.controller(),
            max_concurrency=self.scenario.workload.max_concurrency,
            max_num_seqs=limits.max_num_seqs * self.num_engines,
            max_num_batched_tokens=limits.max_num_batched_tokens,
        )
        serving.frontend_s = self.engine.frontend_s
        serving.first_measured = self.scenario.workload.num_warmups
        sent = self.models[:1] if options.draft_devices else self.models
        serving.kv_bytes_per_token = sum(kv_bytes_per_token(shape, self.profile.tensor_parallel) for shape in sent)
        return serving

    def _start_policy(self, host: SpawningHost, serving: Serving, luck: Luck | None, is_recorded: bool) -> None:
        if serving.frontend_s:
            host.spawn(serving.frontend())
        scenario, policy, limits, controller = self.scenario, self.policy, self.limits, serving.controller
        is_whole = scenario.window.stop_s is None
        is_simple = is_whole and controller.constant_length is not None
        if policy.is_continuous and luck and is_simple and continuous_lazy.can_be_lazy(serving, limits):
            tasks = continuous_lazy.coroutines(serving, limits, luck, names_requests=is_recorded)
        else:
            table = scenario.policy_options.adaptive_table
            if isinstance(table, str):
                table = seed_table(is_heavy=self.profile.target.weight_bytes >= HEAVY_BYTES)
            options = msgspec.structs.replace(scenario.policy_options, partition=self.shares, adaptive_table=table)
            tasks = policy.build(serving, options, limits)
        for task in tasks:
            host.spawn(task)

    def record(self, serving: Serving | Fleet, accounts: Accounts) -> RunRecord:
        """What the run left behind; it ends with the last token, or where it was cut."""
        requests = list(serving.requests[: serving.num_arrived])
        is_drained = serving.is_all_finished and requests
        kv, now_s = serving.kv, accounts.now_s
        return RunRecord(
            policy=self.policy_name,
            seed=self.seed,
            requests=requests,
            slo_classes=self.scenario.slo_classes,
            gaps=serving.gaps,
            end_s=max(request.last_token_s for request in requests) if is_drained else now_s,
            window_s=self.scenario.window.stop_s,
            usage=accounts.usage,
            num_gpus=self.scenario.devices.count * self.num_gpus * self.profile.tensor_parallel,
            device_busy_s=accounts.device_busy_s,
            num_polls=accounts.num_polls,
            queue_mean=serving.queue.mean(now_s),
            queue_peak=serving.queue.peak,
            kv_tokens_mean=kv.held.mean(now_s),
            kv_tokens_peak=kv.held.peak,
            kv_capacity_tokens=kv.num_blocks * kv.block_size,
            cache_block_tokens=kv.block_size if isinstance(kv, PagedPool) and kv.is_caching else None,
            is_open_loop=self.scenario.workload.max_concurrency is None,
            engine=self.engine.name,
            is_async=self.limits.async_scheduling if self.policy.is_continuous else None,
            caps=msgspec.structs.asdict(caps_of(self)),
            partition=self.shares,
            works=accounts.works,
            kv_series=kv.held.series or [],
            weight_bytes=self.scenario.devices.count * sum(shape.weight_bytes for shape in self.models),
            kv_bytes_per_token=sum(shape.kv_bytes_per_token for shape in self.models),
        )

    def check_served(self, serving: Serving | Fleet) -> None:
        """Raise PolicyStalled where a run that nothing cut stopped with requests unserved."""
        if self.scenario.window.stop_s is None and not serving.is_all_finished:
            total = len(serving.requests)
            raise PolicyStalled(
                f"policy {self.policy_name!r} stopped with {total - serving.num_finished} of {total} "
                "requests unfinished"
            )


def caps_of(experiment: Experiment) -> Caps:
    """The limits of one policy as they act: a lane never takes more than max_num_seqs, nor than a pass has room for."""
    limits, options, policy = experiment.limits, experiment.scenario.policy_options, experiment.policy

    def batch(key: str, told: int | None) -> int | None:
        return rows_per_work(options, limits, told, experiment.draft_tokens_max) if policy.takes_option(key) else None

    return Caps(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        decode_batch=batch("decode_batch", options.decode_batch),
        verify_batch=batch("verify_batch", options.verify_batch),
        workers=min(options.workers, limits.max_num_seqs) if policy.takes_option("workers") else None,
    )


def _mean_lengths(requests: Sequence[Request]) -> tuple[float, float]:
    """Tokens of a prompt and of an output."""
    prompts, outputs = (sum(r.prompt_tokens for r in requests), sum(r.output_tokens for r in requests))
    return prompts / len(requests), outputs / len(requests)


def _sampled(workload: Workload) -> Workload:
    """The first requests of a workload; of a trace no more than it has."""
    count = min(LOAD_SAMPLE, trace_length(workload)) if is_trace(workload) else LOAD_SAMPLE
    return msgspec.structs.replace(workload, num_prompts=count, num_warmups=0)


def _check_they_fit(requests: Sequence[Request], kv: KvPool, profile: Profile) -> None:
    """Raise ValueError for a request that memory cannot hold; warn of those that the model was not made for."""
    for request in requests:
        if kv.blocks_for(request) > kv.most_blocks:
            raise ValueError(
                f"request {request.id}: prompt {request.prompt_tokens} + output {request.output_tokens} tokens need "
                f"{kv.blocks_for(request)} KV blocks of {kv.block_size}, and there are {kv.most_blocks} "
                f"on {profile.name!r}"
            )
    context = profile.target.max_context
    if any(request.prompt_tokens + request.output_tokens > context for request in requests):
        warnings.warn(
            f"requests longer than {profile.target.name}'s context of {context} tokens are served all the same",
            BeyondContextWarning,
            stacklevel=3,
        )
