"""Runs behind claims: metrics of a scenario by draw, at an assumed overlap.

Input that a profile has not measured is extrapolated without a word, as claims are about such input at times. Profiles
of claims alone are made here. Not here: what is made of the metrics (validation.claims.formulas).
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from statistics import mean
from typing import Any

import msgspec
import numpy as np

from sim.costs.compact_kernels import LinearPass
from sim.costs.extrapolation import collecting
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.costs.shapes import ModelShape, model
from sim.devices.contention import PhiLevel, phi_at
from sim.draws import Floats, child_seed
from sim.files.json_values import Json
from sim.interface.request import Request
from sim.metrics.records import RunRecord
from sim.metrics.summary import Run, number, summarise
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate
from validation.claims.ledger import Spec, claim

SEED = 2002
OVERLAPPING = frozenset({"pd", "pdv", "unified", "pipelined", "adaptive"})
"""Policies with several streams, to which overlap matters."""
FIT_STEPS, FIT_DRAWS, MAX_LAYER_S = 20, 10, 5e-3
FP32_FLOPS = 19.5e12
"""FLOP/s of the A100's datasheet, outside tensor cores."""
TARGET_MS, TARGET_COMPUTE_MS = 31.9, 10.0
"""The laptop's 7B-int4, eager, decode of 1 token (verify of 5 tokens 32.0: launches bound both); the second is assumed,
3.8 GB of int4 weights at 448 GB/s, and hidden under the launches."""
DRAFT_EAGER_MS, DRAFT_COMPUTE_MS = 20.2, 3.0
"""Stated of the 0.5B: eager, and actual compute."""
IMPLIED_DRAFT_MS = DRAFT_EAGER_MS / 3.6
"""The 0.5B's pass under graphs, by the ratio that report 003 states."""


@cache
def profile_of(name: str) -> Profile:
    return MADE[name]() if name in MADE else load(name)


class RunMetrics:
    """A run of a claim: `run.mean_tpot_ms` has the metric of every draw that has it. The run is simulated once."""

    def __init__(self, spec: Spec, level: PhiLevel | None, draws: int) -> None:
        """`level` is where in the bracket of phi it is, for a policy with several streams."""
        if level is not None and spec["policy"] in OVERLAPPING:
            spec = {**spec, "devices.phi": phi_at(profile_of(spec["profile"]).phi, level)}
        self.spec, self._draws = spec, min(spec.get("draws", draws), max(2, draws))

    def __getattr__(self, metric: str) -> Floats:
        figures = [run[metric] for run in _simulated(json.dumps(self.spec, sort_keys=True), self._draws)]
        return np.array([figure for figure in figures if figure is not None], float)


@cache
def _simulated(text: str, draws: int) -> Sequence[Mapping[str, Any]]:
    spec: dict[str, Any] = json.loads(text)
    if "label" in spec:
        return harness_runs(**spec, draws=draws)
    return served(profile_of(spec["profile"]), draws, spec)


def served(profile: Profile, draws: int, spec: Spec) -> list[Run]:
    """Metrics of so many draws, under vLLM's keys."""
    return [summarise(each) for each in records(profile, draws, spec)]


def records(profile: Profile, draws: int, spec: Spec) -> list[RunRecord]:
    keys = {key: value for key, value in spec.items() if key not in ("profile", "draws")}
    with warnings.catch_warnings(), collecting():
        warnings.simplefilter("ignore")
        resolved = resolve(Scenario.of(profile=profile.name, **keys), profile, keys["policy"])
        return [simulate(resolved, child_seed(SEED, draw)) for draw in range(draws)]


# -- profiles that nothing ships: passes as a report states them, or a line fitted on it


def fp32(layer_s: float) -> Profile:
    """The pair with `layer_s` per layer and forward, and its arithmetic."""
    models, prototype = load("a100-sxm/llama-2-7b+tinyllama-1.1b"), load("a100-pdverify/codellama-34b+tinyllama-1.1b")
    assert models.draft is not None

    def line(shape: ModelShape) -> LinearPass:
        parameters = shape.weight_bytes / shape.dtype_bytes
        return LinearPass(pass_s=layer_s * shape.layers, token_s=parameters * 2.0 / FP32_FLOPS)

    kernels = msgspec.structs.replace(prototype.linear, target=line(models.target), draft=line(models.draft))
    return msgspec.structs.replace(
        prototype, name="a100-sxm/three-way", target=models.target, draft=models.draft, kernels=kernels
    )


def laptop(draft_compute_ms: float) -> Profile:
    """ClaimSection F's int4 7B with the 0.5B: launch-bound passes, of which the draft computes this much."""
    base = load("rtx-3070-laptop/qwen2.5-1.5b")
    launch_s = base.host.eager_kernel_s

    def line(eager_ms: float, compute_ms: float) -> LinearPass:
        return LinearPass(pass_s=compute_ms / 1e3, launches=round(eager_ms / 1e3 / launch_s))

    target, draft = line(TARGET_MS, TARGET_COMPUTE_MS), line(DRAFT_EAGER_MS, draft_compute_ms)
    return msgspec.structs.replace(
        base,
        name="rtx-3070-laptop/qwen2.5-7b-int4+qwen2.5-0.5b",
        target=model("qwen2.5-7b"),
        draft=model("qwen2.5-0.5b"),
        kernels=msgspec.structs.replace(base.linear, target=target, draft=draft),
    )


def fitted_fp32() -> Profile:
    """ClaimSection C's pair: the floor of a layer's forward at which one request takes what the three engines took."""
    wanted_s = mean(float(claim(f"C.mean.{engine}.1").claimed) for engine in ("baseline", "pd", "pdv"))
    spec = claim("C.mean.pd.1").runs[0]
    low_s, high_s = 0.0, MAX_LAYER_S
    for _ in range(FIT_STEPS):
        layer_s = (low_s + high_s) / 2.0
        runs = served(fp32(layer_s), FIT_DRAWS, spec)
        is_short = mean(number(run, "mean_e2el_ms") or 0.0 for run in runs) / 1e3 < wanted_s
        low_s, high_s = (layer_s, high_s) if is_short else (low_s, layer_s)
    return fp32((low_s + high_s) / 2.0)


MADE: dict[str, Callable[[], Profile]] = {
    "three-way": fitted_fp32,
    "laptop": partial(laptop, DRAFT_COMPUTE_MS),
    "laptop with a slower draft": partial(laptop, IMPLIED_DRAFT_MS),
}
"""Profiles made here, by the name that claims have for them."""


# -- the engine behind report 002's headline: one request at a time, and a window that counts what is finished. Its two
# engines differ in nothing but who is admitted when. PD admits while fewer than C requests are active and gives all a
# round in turn. PDV (`unified`, sequential) takes in one prompt per pass over its decode queue. Every engine call holds
# a lock, ends in a synchronise and handles one request, so the profile has one time per call and no two calls overlap.

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
    """`harness_run` on more draws, `elsewhere` on other arrivals; fewer where nothing is cut or all drain."""
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
    resolved = resolve(scenario, profile_of(PROFILE), POLICIES[engine])
    return _window(simulate(resolved, child_seed(SEED, draw), requests=requests), None if drains else STOP_S)


def _window(record: RunRecord, stop_s: float | None) -> dict[str, float | None]:
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
