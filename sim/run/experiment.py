"""One run, simulated or real: a resolved scenario with one seed becomes requests, acceptance draws and coroutines on a
host, and what they leave behind becomes a record.

Whoever simulates, replays or validates goes through here, so that all mean the same run. Not here: hosts, what a
scenario resolves to (sim.run.resolve), the loop over policies and seeds (sim.compare.side_by_side).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

import msgspec

from sim.acceptance.draws import AcceptanceDraws
from sim.costs.shapes import kv_bytes_per_token
from sim.engine.fleet import Account, Fleet
from sim.engine.intake import Intake, Lockstep
from sim.engine.kv import KvPool
from sim.engine.paged import PagedPool
from sim.engine.serving import AdmissionCaps, Serving
from sim.engine.time_series import GaugePart
from sim.hosts.view import HostView
from sim.interface.host import Host
from sim.interface.request import Request
from sim.interface.request_columns import Requests
from sim.interface.wait import Task
from sim.metrics.records import RunRecord, StreamUsage, WorkRecord
from sim.run.resolve import Resolved
from sim.run.scenario import Scenario
from sim.workload.classes import assign_classes
from sim.workload.generate import is_trace, num_requests
from sim.workload.served import ServedRequests


class PolicyStalled(RuntimeError):
    """A policy stopped with requests unserved: a defect of the policy, not of the input."""


class BeyondContextWarning(UserWarning):
    """Requests are longer than the target's context."""


class _CountedWarning(UserWarning):
    """So many of how many requests, and what became of them."""

    @staticmethod
    def merged(texts: Iterable[str]) -> str:
        """The run with the largest share, of each thing that became of requests.

        >>> _CountedWarning.merged(["1 of 200 answers end there", "3 of 480 answers end there"])
        'up to 3 of 480 answers end there'
        """
        runs: dict[str, list[tuple[int, int]]] = {}
        for text in texts:
            num_cut, _, num_requests, consequence = text.split(" ", 3)
            runs.setdefault(consequence, []).append((int(num_cut), int(num_requests)))
        worst = {consequence: max(cut, key=lambda counts: counts[0] / counts[1]) for consequence, cut in runs.items()}
        return ", and ".join(
            f"{'up to ' * (len(runs[consequence]) > 1)}{num_cut} of {num_requests} {consequence}"
            for consequence, (num_cut, num_requests) in worst.items()
        )


class CutAnswerWarning(_CountedWarning):
    """The engine ends answers before they are as long as the workload has them."""


class RejectedWarning(_CountedWarning):
    """The engine has no room for an answer to a prompt."""


class WindowWarning(UserWarning):
    """The requests do not fill the window of arrivals."""


class SpawningHost(Host, Protocol):
    """A host that runs coroutines."""

    def spawn(self, task: Task) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """Records that a host has of a run that is over."""

    now_s: float
    """When it was over, or cut."""
    usage: list[StreamUsage]
    device_busy_s: float
    num_polls: int
    works: list[WorkRecord] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Experiment:
    """A resolved scenario with one seed."""

    resolved: Resolved
    seed: int
    is_dictated: bool = True
    """Acceptance comes from the tape of this seed; False: the models of a real run decide."""

    @property
    def scenario(self) -> Scenario:
        return self.resolved.scenario

    def requests(self) -> Requests:
        """The requests of `served`."""
        return self.served().requests

    def served(self) -> ServedRequests:
        """New requests that arrive within the window and are served, in order of arrival; at a low rate that may be
        none. Warns of answers that end early, and of rejected requests."""
        workload, cut_s = self.scenario.workload, self.scenario.window.arrivals_end_s
        requests = self.resolved.served.requests(
            self.seed, self.scenario.engine.block_size, inf if cut_s is None else cut_s
        )
        assign_classes(requests.requests, self.scenario.slo_classes, self.seed)
        num_sent, engine = len(requests.requests) + requests.num_rejected, self.resolved.engine.name
        tokens = self.resolved.served.max_model_len
        if requests.num_cut:
            text = f"{requests.num_cut} of {num_sent} answers end where prompt and answer are {tokens} tokens"
            warnings.warn(f"{text}, the limit of {engine}", CutAnswerWarning, stacklevel=2)
        if requests.num_rejected:
            why = f"prompts of {tokens} tokens or more leave no room for an answer"
            if not self.resolved.served.ends_answers:
                why = f"prompt and answer have more than {tokens} tokens"
            text = f"{requests.num_rejected} of {num_sent} requests are rejected: {why} in {engine}"
            warnings.warn(text, RejectedWarning, stacklevel=2)
        is_open = workload.request_rate < inf and not is_trace(workload)
        if cut_s is not None and is_open and num_sent == num_requests(workload):
            text = (
                f"{num_sent} requests end before window.arrivals_end_s={cut_s:g}. Raise workload.num_prompts to fill it"
            )
            warnings.warn(text, WindowWarning, stacklevel=2)
        return requests

    def _named(self, request: Request) -> str:
        path = self.scenario.workload.dataset_path
        return f"request {request.id}" + (f" of {path!r}" if path else "")

    def _check_they_fit(self, requests: Sequence[Request], kv: KvPool) -> None:
        """Raise ValueError for a request that memory cannot hold; warn of those that the model was not made for."""
        profile = self.resolved.profile
        asked = Requests.of(requests)
        longest = int((asked.column("prompt_tokens") + asked.column("output_tokens")).max(initial=0))
        if requests and kv.blocks_of(longest) > kv.max_blocks:
            request = next(each for each in requests if kv.blocks_for(each) > kv.max_blocks)
            raise ValueError(
                f"{self._named(request)}: prompt {request.prompt_tokens} + output {request.output_tokens} tokens "
                f"need {kv.blocks_for(request)} KV blocks of {kv.block_size}, and there are {kv.max_blocks} "
                f"on {profile.name!r}"
            )
        context = profile.target.max_context
        if longest > context:
            warnings.warn(
                f"requests longer than {profile.target.name}'s context of {context} tokens are served all the same",
                BeyondContextWarning,
                stacklevel=3,
            )

    def draws(self) -> AcceptanceDraws:
        """Whose drafts are accepted: the tape of this seed."""
        return AcceptanceDraws(self.resolved.acceptances[0], self.seed)

    def draws_by_drafter(self) -> list[AcceptanceDraws]:
        """[draft models] where there are several, on the same draws: what one has accepted, a better one has, too."""
        acceptances = self.resolved.acceptances
        return [AcceptanceDraws(acceptance, self.seed) for acceptance in acceptances] if len(acceptances) > 1 else []

    def start(self, host: SpawningHost, requests: Sequence[Request]) -> Serving | Fleet:
        """Start the policy and the arrivals of `requests` on `host`, in every replica. Raises ValueError for a request
        that never fits."""
        resolved, devices = self.resolved, self.scenario.devices
        pool = resolved.new_pool()
        self._check_they_fit(requests, pool)
        served: Serving | Fleet
        if devices.count == 1:
            served = self._serving(host, requests, pool)
            self._start_policy(host, served)
        else:
            group = Lockstep(host) if resolved.is_lockstep else None

            def build(index: int, account: Account) -> Serving:
                view = HostView(host, str(index), first_gpu=index * resolved.num_gpus)
                return self._serving(view, requests, resolved.new_pool(), account, group)

            served = Fleet(
                host,
                requests,
                build,
                count=devices.count,
                routing=devices.routing,
                max_concurrency=self.scenario.workload.max_concurrency,
            )
            for member in served.servings:
                self._start_policy(host, member)
        host.spawn(served.arrivals())
        return served

    def _serving(
        self,
        host: Host,
        requests: Sequence[Request],
        pool: KvPool,
        account: Account | None = None,
        group: Lockstep | None = None,
    ) -> Serving:
        """Requests that one replica serves on its GPUs, added to `account` where there are several."""
        resolved = self.resolved
        if account is not None:
            pool.held = GaugePart(account.held)
        return Serving(
            host,
            requests,
            pool,
            resolved.new_controller(),
            AdmissionCaps(
                self.scenario.workload.max_concurrency,
                resolved.limits.max_num_seqs * resolved.num_engines,
                resolved.limits.max_num_batched_tokens,
            ),
            intake=Intake(
                host,
                frontend_s=resolved.engine.frontend_s,
                frontend_token_s=resolved.engine.frontend_token_s,
                receive_interval=resolved.limits.receive_interval,
                batch_wait=resolved.limits.batch_wait,
                balance=resolved.limits.balance,
                queue=account and GaugePart(account.queue),
                group=group,
            ),
            measured=self.scenario.workload.measured(len(requests)),
            kv_bytes_per_token=resolved.kv_bytes_per_token,
            plans_ahead=resolved.limits.async_scheduling,
            on_finished=account and account.on_finished,
        )

    def _start_policy(self, host: SpawningHost, serving: Serving) -> None:
        if serving.intake.frontend_s or serving.intake.frontend_token_s:
            host.spawn(serving.intake.frontend())
        for task in self.resolved.policy.coroutines(serving, self.resolved.options, self.resolved.limits):
            host.spawn(task)

    def record(self, serving: Serving | Fleet, accounts: Accounts) -> RunRecord:
        """Record of the run; it ends with the last token, or where it was cut."""
        resolved, devices = self.resolved, self.scenario.devices
        requests = Requests.of(serving.requests)
        if serving.num_arrived < len(requests):
            requests = requests[: serving.num_arrived]
        is_drained = serving.is_all_finished and requests
        end_s = float(requests.column("last_token_s").max()) if is_drained else accounts.now_s
        kv = serving.kv
        return RunRecord(
            policy=resolved.label,
            seed=self.seed,
            requests=requests,
            slo_classes=self.scenario.slo_classes,
            gaps=serving.gaps,
            end_s=end_s,
            window_s=None if is_drained else self.scenario.window.stop_s,
            usage=accounts.usage,
            num_gpus=devices.count * resolved.group_gpus,
            device_busy_s=accounts.device_busy_s,
            num_polls=accounts.num_polls,
            queue_mean=serving.queue.mean(end_s),
            queue_peak=serving.queue.peak,
            kv_tokens_mean=kv.held.mean(end_s),
            kv_tokens_peak=kv.held.peak,
            kv_capacity_tokens=kv.num_blocks * kv.block_size,
            cache_block_tokens=kv.block_size if isinstance(kv, PagedPool) and kv.is_caching else None,
            is_open_loop=self.scenario.workload.max_concurrency is None,
            engine=resolved.engine.name,
            is_async=resolved.limits.async_scheduling or (False if resolved.policy.is_continuous else None),
            caps=msgspec.structs.asdict(resolved.caps),
            partition=resolved.options.partition,
            works=accounts.works,
            weight_bytes=devices.count * resolved.weight_bytes,
            kv_bytes_per_token=sum(
                kv_bytes_per_token(shape, resolved.profile.tensor_parallel) for shape in resolved.models
            ),
        )

    def check_served(self, serving: Serving | Fleet) -> None:
        """Raise PolicyStalled where a run that nothing cut stopped with requests unserved."""
        if self.scenario.window.stop_s is None and not serving.is_all_finished:
            total = len(serving.requests)
            raise PolicyStalled(
                f"policy {self.resolved.policy.name!r} stopped with {total - serving.num_finished} of {total} "
                "requests unfinished"
            )
