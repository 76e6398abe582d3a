"""Runs behind claims: metrics of a scenario by draw, at an assumed overlap.

Input that a profile has not measured is extrapolated without a word: claims are about such
input at times. Profiles that claims alone are simulated with are made here. Not here: what is made of the metrics
(validation.claims.formulas).
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
from sim.metrics.records import RunRecord
from sim.metrics.summary import Run, number, summarise
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate
from validation.claims.ledger import Spec, claim
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


@cache
def profile_of(name: str) -> Profile:
    """A shipped profile, or one that claims are made with."""
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
