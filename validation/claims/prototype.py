"""The engine behind report 002's headline, as its code has it: one request at a time, and a window that counts what is
finished.

Its two engines differ in nothing but who is admitted when. PD admits while fewer than C requests are active and gives
all of them a round in turn; PDV (`unified`, sequential) takes in one prompt per pass over its decode queue. Every
engine call holds a lock, ends in a synchronise and handles one request, so the profile has one time per call and no
two calls overlap. Not here: which figures are judged (validation/claims/claims.yaml).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.draws import child_seed
from sim.files.json_values import Json
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
SEED = 2002
CUT_LABELS = (32, 64, 72, 84, 96, 128)
"""Labels at which the window cuts requests of at least one engine."""


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


def harness_runs(
    *, label: int, draws: int, drains: bool = False, elsewhere: bool = False, **run: Any
) -> tuple[dict[str, float | None], ...]:
    """`harness_run` on further draws, and on arrivals that the harness did not draw where it is `elsewhere`. There are
    fewer runs where nothing is cut or all drain."""
    share = 10 if drains else 2 if elsewhere else 1 if label in CUT_LABELS else 4
    seeds = [(draw, draw if elsewhere else ARRIVAL_SEED) for draw in range(max(2, draws // share))]
    return tuple(harness_run(label=label, draw=draw, arrival_seed=seed, drains=drains, **run) for draw, seed in seeds)


def harness_run(
    *,
    engine: str,
    label: int,
    acceptance: str,
    prompt_tokens: int,
    draw: int,
    arrival_seed: int = ARRIVAL_SEED,
    drains: bool = False,
) -> dict[str, float | None]:
    """The benchmark of one engine at one label C; served to the last request, with no hard stop, where it `drains`."""
    changes: dict[str, Json] = {
        "policy_options.decode_batch": label,
        "policy_options.batching": "per_request",
        "policy_options.kv": "reforward",
        "policy_options.pipelined": False,
        "engine.max_num_seqs": label,
        "speculation.num_speculative_tokens": DRAFT_TOKENS,
        "speculation.acceptance": acceptance,
        "devices.overlap": "serial",
    }
    if not drains:
        changes["window.stop_s"] = STOP_S
    scenario = Scenario.of(profile=PROFILE, policy=POLICIES[engine], input_len=prompt_tokens, **changes)
    requests = [
        Request(index, f"req_{index:04}", at_s, prompt_tokens, OUTPUT_TOKENS)
        for index, at_s in enumerate(arrivals(label, arrival_seed))
    ]
    resolved = resolve(scenario, _profile(), POLICIES[engine])
    return served(simulate(resolved, child_seed(SEED, draw), requests=requests), None if drains else STOP_S)


@cache
def _profile() -> Profile:
    return load(PROFILE)


def served(record: RunRecord, stop_s: float | None) -> dict[str, float | None]:
    """The figures of a run that is over; an unfinished request counts for nothing but rounds and tokens."""
    requests = record.requests
    done = [request for request in requests if request.is_finished]
    # To the last completion where all complete, else to the hard stop.
    elapsed_s = record.end_s if stop_s is None or len(done) == len(requests) else stop_s
    done_rounds, done_tokens = sum(request.num_rounds for request in done), sum(map(_tokens, done))
    waited_s = sum(request.last_token_s - request.arrival_s for request in done)
    return {
        "requests": len(requests),
        "admitted": sum(request.scheduled_s == request.scheduled_s for request in requests),
        "completed": len(done),
        "elapsed_s": elapsed_s,
        "completed_tokens": done_tokens,
        "tokens_per_s": done_tokens / elapsed_s,
        "emitted_per_s": sum(map(_tokens, requests)) / elapsed_s,
        "rounds": sum(request.num_rounds for request in requests),
        # As the harness counts it: accepted tokens and the correction over drafted ones.
        "acceptance": done_tokens / (DRAFT_TOKENS * done_rounds) if done_rounds else None,
        "latency_ms": 1e3 * (waited_s / len(done)) if done else None,
        "active_mean": _active_s(requests, elapsed_s) / elapsed_s,
        "utilization": record.device_busy_s / elapsed_s,
        "kv_tokens_peak": record.kv_tokens_peak,
    }


def _tokens(request: Request) -> int:
    """Tokens of its rounds, corrections among them, uncut."""
    return request.num_rounds + request.accepted_tokens


def _active_s(requests: Sequence[Request], end_s: float) -> float:
    total_s = 0.0
    for request in requests:
        if request.scheduled_s == request.scheduled_s:
            total_s += (request.last_token_s if request.is_finished else end_s) - request.scheduled_s
    return total_s
