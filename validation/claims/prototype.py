"""The engine behind report 002's headline, as its code has it: one request at a time, and a window that counts what is
finished.

Its two engines differ in nothing but who is admitted when. PD admits while fewer than C requests are active and gives
all of them a round in turn; PDV (`unified`, sequential) takes in one prompt per pass over its decode queue. Every
engine call holds a lock, ends in a synchronise and handles one request, so the profile has one time per call and no
two calls overlap. Not here: which figures are judged (validation.claims.headline).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.interface.request import Request
from sim.metrics.records import RunRecord
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate

PROFILE = "a100-pdverify/codellama-34b+tinyllama-1.1b"
"""One service-time profile for both engines and all labels."""
POLICIES = {"pd": "pd", "pdv": "unified"}
"""The report's engines and the policies here that are they."""
LABELS = (1, 2, 4, 6, 8, 10, 12, 16, 32, 64, 72, 84, 96, 128)
"""The harness's concurrency levels C: batch size C, 0.05 C requests per second."""
RATE_PER_LABEL = 0.05
DRAFT_TOKENS = 4
OUTPUT_TOKENS = 21
"""20 of its rounds, and the first one, which prefill brings here."""
ARRIVALS_END_S, STOP_S = 30.0, 60.0
ARRIVAL_SEED = 42


def arrivals(label: int, seed: int = ARRIVAL_SEED) -> list[float]:
    """Seconds, as the harness draws them: numpy's legacy generator, gaps added up until 30 s.

    >>> [len(arrivals(label)) for label in (1, 16, 64, 128)]
    [1, 28, 105, 203]
    """
    random = np.random.RandomState(seed)
    at_s: list[float] = []
    now_s = 0.0
    while (now_s := now_s + float(random.exponential(1.0 / (RATE_PER_LABEL * label)))) <= ARRIVALS_END_S:
        at_s.append(now_s)
    return at_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What one run of the harness reports, and what it leaves out."""

    completed: int
    elapsed_s: float
    """Seconds to the last completion where all complete, else to the hard stop."""
    completed_tokens: int
    """Tokens of completed requests: all that its throughput counts."""
    emitted_tokens: int
    rounds: int
    """Rounds of all requests, finished or not."""
    acceptance: float | None
    """Acceptance as the harness counts it: accepted tokens and the correction over drafted ones, of completed
    requests."""
    latency_s: float | None
    """Mean over completed requests."""
    active_mean: float
    """Requests being served, mean over the run."""
    utilization: float
    admitted: int
    kv_tokens_peak: int

    @property
    def tokens_per_s(self) -> float:
        return self.completed_tokens / self.elapsed_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """The benchmark of one engine at one label C."""

    engine: str
    label: int
    acceptance: str
    prompt_tokens: int
    arrival_seed: int = ARRIVAL_SEED
    drains: bool = False
    """Served to the last request, with no hard stop."""

    def run(self, draws_seed: int) -> Served:
        return served(self.record(draws_seed), None if self.drains else STOP_S)

    def record(self, draws_seed: int) -> RunRecord:
        """One draw of draws on the harness's own arrivals."""
        requests = [
            Request(index, f"req_{index:04}", at_s, self.prompt_tokens, OUTPUT_TOKENS)
            for index, at_s in enumerate(arrivals(self.label, self.arrival_seed))
        ]
        scenario = self.scenario()
        return simulate(resolve(scenario, _profile(), scenario.policy[0]), draws_seed, requests=requests)

    def scenario(self) -> Scenario:
        changes = {
            "policy_options.decode_batch": self.label,
            "policy_options.batching": "per_request",
            "policy_options.kv": "reforward",
            "policy_options.pipelined": False,
            "engine.max_num_seqs": self.label,
            "speculation.num_speculative_tokens": DRAFT_TOKENS,
            "speculation.acceptance": self.acceptance,
            "devices.overlap": "serial",
        }
        if not self.drains:
            changes |= {"window.stop_s": STOP_S}
        return Scenario.of(profile=PROFILE, policy=POLICIES[self.engine], input_len=self.prompt_tokens, **changes)


@lru_cache(maxsize=1)
def _profile() -> Profile:
    return load(PROFILE)


def served(record: RunRecord, stop_s: float | None) -> Served:
    """The figures of a run that is over; an unfinished request counts for nothing but rounds and tokens."""
    requests = record.requests
    done = [request for request in requests if request.is_finished]
    is_whole = len(done) == len(requests)
    elapsed_s = record.end_s if stop_s is None or is_whole else stop_s
    done_rounds = sum(request.num_rounds for request in done)
    done_tokens = sum(map(_tokens, done))
    return Served(
        completed=len(done),
        elapsed_s=elapsed_s,
        completed_tokens=done_tokens,
        emitted_tokens=sum(map(_tokens, requests)),
        rounds=sum(request.num_rounds for request in requests),
        acceptance=done_tokens / (DRAFT_TOKENS * done_rounds) if done_rounds else None,
        latency_s=sum(request.last_token_s - request.arrival_s for request in done) / len(done) if done else None,
        active_mean=_active_s(requests, elapsed_s) / elapsed_s,
        utilization=record.device_busy_s / elapsed_s,
        admitted=sum(request.scheduled_s == request.scheduled_s for request in requests),
        kv_tokens_peak=record.kv_tokens_peak,
    )


def _tokens(request: Request) -> int:
    """Tokens of its rounds, corrections among them, uncut."""
    return request.num_rounds + request.accepted_tokens


def _active_s(requests: Sequence[Request], end_s: float) -> float:
    """Seconds that requests were being served, added up."""
    total_s = 0.0
    for request in requests:
        if request.scheduled_s == request.scheduled_s:
            total_s += (request.last_token_s if request.is_finished else end_s) - request.scheduled_s
    return total_s
