"""Runs behind claims: metrics of a scenario by draw, at an assumed overlap, and one run's over another's.

A run is simulated once. Input that a profile has not measured is extrapolated without a word: claims are about such
input at times. Profiles that claims alone are simulated with are made here. Not here: what is made of the metrics
(validation.claims.measures).
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from functools import cache, partial
from statistics import mean
from typing import Any, NamedTuple

import msgspec

from sim.costs.compact_kernels import LinearPass
from sim.costs.extrapolation import collecting
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.costs.shapes import ModelShape, model
from sim.devices.contention import BRACKET, PhiLevel, phi_at
from sim.draws import child_seed
from sim.metrics.stats import interval_95
from sim.metrics.summary import Run, number, summarise
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate
from validation.claims.ledger import Interval, Spec, claim
from validation.claims.prototype import harness_runs

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


class Ratio(NamedTuple):
    """Mean of one run's metric over another's, draw by draw, and its 95 % interval."""

    value: float
    low: float
    high: float


@cache
def profile_of(name: str) -> Profile:
    """A shipped profile, or one that claims are made with."""
    return MADE[name]() if name in MADE else load(name)


def simulated(spec: Spec, draws: int) -> tuple[Any, ...]:
    """A summary per draw: a dict of metrics, or the harness's `HarnessRun` where the spec names a label of it."""
    return _simulated(json.dumps(spec, sort_keys=True), min(spec.get("draws", draws), max(2, draws)))


@cache
def _simulated(text: str, draws: int) -> tuple[Any, ...]:
    spec: dict[str, Any] = json.loads(text)
    spec.pop("draws", None)
    if "label" in spec:
        return harness_runs(**spec, draws=draws)
    return served(profile_of(spec.pop("profile")), draws, spec)


def served(profile: Profile, draws: int, spec: Mapping[str, Any]) -> tuple[Run, ...]:
    """Metrics of so many draws, under vLLM's keys."""
    scenario = Scenario.of(profile=profile.name, **spec)
    with warnings.catch_warnings(), collecting():
        warnings.simplefilter("ignore")
        resolved = resolve(scenario, profile, spec["policy"])
        records = [simulate(resolved, child_seed(SEED, draw)) for draw in range(draws)]
    return tuple(summarise(record, percentiles=(50.0, 95.0, 99.0)) for record in records)


def values(spec: Spec, metric: str, draws: int) -> list[float]:
    """A metric of every run that has it."""
    figures = (number(run, metric) if isinstance(run, dict) else getattr(run, metric) for run in simulated(spec, draws))
    return [float(value) for value in figures if value is not None]


def mean_of(spec: Spec, metric: str, draws: int) -> float:
    return mean(values(spec, metric, draws))


def ratio(ours: Spec, theirs: Spec, metric: str, draws: int) -> Ratio:
    """Ratio of a metric, paired on the same draws."""
    pairs = zip(values(ours, metric, draws), values(theirs, metric, draws), strict=True)
    ratios = [one / other for one, other in pairs]
    low, high = interval_95(ratios) or (ratios[0], ratios[0])
    return Ratio(mean(ratios), low, high)


def at(spec: Spec, level: PhiLevel) -> Spec:
    """The run at an end or the middle of the bracket of phi; the same run for a policy with a single stream."""
    if spec["policy"] not in OVERLAPPING:
        return spec
    return {**spec, "devices.phi": phi_at(profile_of(spec["profile"]).overlap, level)}


def bracketed(ours: Spec, theirs: Spec, metric: str, draws: int) -> dict[PhiLevel, Ratio]:
    """The ratio at every phi of the bracket, least overlap first."""
    return {level: ratio(at(ours, level), at(theirs, level), metric, draws) for level in BRACKET}


def span(ratios: Mapping[PhiLevel, Ratio]) -> Interval:
    """Lowest and highest end of their intervals: what overlap and draws leave open together."""
    return min(each.low for each in ratios.values()), max(each.high for each in ratios.values())


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
    spec = {key: value for key, value in claim("C.mean.pd.1").runs[0].items() if key not in ("profile", "draws")}
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
