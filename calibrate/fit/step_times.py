"""Constants of a GPU under load, from the times of an engine's steps by batch tokens.

A step is one forward pass over so many tokens with short contexts, without LM head and drafts, as engines time it when
they profile themselves. The pass is the simulator's: layers padded to captured sizes, attention's fixed time, and
beyond the largest captured size at least the host's time to launch it. Five constants of the layers and the launch are
fitted; what the law then misses is kept as a ratio by tokens. Kernel tables say what single kernels take at boost
clocks; power, clocks and memory of a loaded GPU are other (docs/adr/018).
Not here: the law itself (sim.costs.compact_kernels).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import log
from pathlib import Path
from statistics import median
from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from calibrate.fit.fit_errors import Array
from sim.costs.forms.compact import CompactCosts, CompactPasses
from sim.costs.profile import SERVED, KindError, Profile
from sim.costs.profile_files import round_constant
from sim.costs.work_costs import PIECE_KERNELS
from sim.interface.work import Model
from sim.workload.trace_files import csv_objects

BOUNDS = {
    "compute_share": (0.1, 1.4),
    "bandwidth_share": (0.1, 1.2),
    "sharpness": (1.0, 14.0),
    "tile_share": (0.0, 0.8),
    "wave_share": (0.0, 0.2),
}
"""Constants of sim.costs.compact_kernels.Gemm that are fitted, and the bounds of each."""
LAUNCH_BOUNDS_S = (1e-6, 1.0)
OUTLIER = 0.03
"""Log error at which the loss turns from square to linear."""
MIN_POINTS = 8
BINDING = 1.03
"""A step less than so many times its launch is no measure of the device: it keeps no ratio."""
UNIDENTIFIED = 1.0
"""Relative half width from which on the curve does not determine a constant."""
NEGLIGIBLE = 1e-6
"""A share that a search left so close to its bound of zero is zero."""
NORMAL_95 = 1.96


class TimedStep(NamedTuple):
    """One point of the curve."""

    tokens: int
    seconds: float


class _Step(msgspec.Struct):
    """A row of its file; more than the bounds is of other units."""

    batch_tokens: Annotated[int, msgspec.Meta(ge=1, le=10**8)]
    step_ms: Annotated[float, msgspec.Meta(gt=0.0, le=1e6)]


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedConstant:
    """A fitted constant and half of its 95 % interval, from the curve's scatter around the law."""

    value: float
    half_width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedStep:
    """A point beside the law; `is_launch` where the host's launch is what it shows."""

    tokens: int
    seconds: float
    law_s: float
    is_launch: bool
    predicted_s: float
    """Seconds with the ratios kept."""
    left_out_s: float | None
    """Seconds with its ratio left out; None at the ends and where it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFit:
    profile: Profile
    constants: dict[str, FittedConstant]
    """Constants by name; `eager_launch_s` is all kernels of a pass, absent where no step shows it."""
    piecewise_launch_s: float
    """Seconds of the fitted launch for a captured pass beside prompt chunks: two kernels a layer."""
    steps: tuple[FittedStep, ...]
    notes: tuple[str, ...]


def read_curve(path: Path) -> list[TimedStep]:
    """The steps of a CSV with columns batch_tokens and step_ms, rising in tokens; repeats count as their median.

    Raises ValueError naming file, line and column.
    """
    by_tokens: dict[int, list[float]] = {}
    for where, row in csv_objects(str(path), _Step.__struct_fields__, "curve"):
        try:
            step = msgspec.convert(row, _Step, strict=False)
        except msgspec.ValidationError as error:
            raise ValueError(f"{where}: {error}") from None
        by_tokens.setdefault(step.batch_tokens, []).append(1e-3 * step.step_ms)
    return [TimedStep(tokens, median(by_tokens[tokens])) for tokens in sorted(by_tokens)]


def fit_steps(profile: Profile, curve: Sequence[TimedStep], source: str) -> StepFit:
    """`profile` with the constants that `curve` gives, its ratios, and the error of points left out of them.

    Raises ValueError where the curve has too few points, or the profile is a table.
    """
    if len(curve) < MIN_POINTS:
        raise ValueError(f"{len(curve)} steps are too few to fit {len(BOUNDS) + 1} constants: want {MIN_POINTS}")
    start = _unloaded(profile)
    fitted, constants = _fit_law(start, curve)
    notes = []
    launch = constants.get("eager_launch_s")
    if launch is None:
        notes.append(f"no step shows the launch of an eager pass: it stays {1e3 * _launch_s(start):.3g} ms")
    for name, estimate in constants.items():
        if estimate.half_width > UNIDENTIFIED * estimate.value:
            notes.append(
                f"{name} cannot be determined from this curve: {estimate.value:.3g} ± {estimate.half_width:.2g}"
            )
    law = _devices_s(fitted, [step.tokens for step in curve])
    ratios = _ratios(fitted, curve)
    kernels = msgspec.structs.replace(fitted.compact, body_ratios=ratios)
    served = msgspec.structs.replace(fitted, kernels=kernels)
    left_out = _left_out_s(fitted, ratios)
    steps = tuple(
        FittedStep(
            tokens=tokens,
            seconds=seconds,
            law_s=law_s,
            is_launch=_is_launch(fitted, tokens, law_s),
            predicted_s=step_s(served, tokens),
            left_out_s=left_out.get(tokens),
        )
        for (tokens, seconds), law_s in zip(curve, law, strict=True)
    )
    errors = dict(profile.errors) | _errors(steps, source)
    host = msgspec.structs.replace(fitted.host, source=_host_source(profile, launch, source))
    served = msgspec.structs.replace(
        served,
        host=host,
        errors=errors,
        conditions=SERVED,
        source=f"layers served: {', '.join(BOUNDS)} and a ratio by tokens fitted by lanesim on {source}; the rest: "
        f"{profile.source}",
    )
    pieces = PIECE_KERNELS * profile.target.layers * fitted.host.eager_kernel_s
    return StepFit(
        profile=served,
        constants=constants,
        piecewise_launch_s=fitted.host.graph_launch_s + pieces,
        steps=steps,
        notes=tuple(notes),
    )


def step_s(profile: Profile, tokens: int) -> float:
    """Seconds of one step of `tokens` tokens by `profile`: the device's, or the launch of an eager pass if longer."""
    return steps_s(profile, [tokens])[0]


def steps_s(profile: Profile, tokens: Sequence[int]) -> list[float]:
    """`step_s` of every count in `tokens`."""
    launch_s, most = _launch_s(profile), profile.host.max_graph_tokens
    times = zip(tokens, _devices_s(profile, tokens), strict=True)
    return [max(device_s, launch_s) if count > most else device_s for count, device_s in times]


def _unloaded(profile: Profile) -> Profile:
    """`profile` as the fit starts from it: no ratios, and no fall of the clocks in long kernels, since a loaded GPU's
    are down at any length."""
    gemm = msgspec.structs.replace(profile.compact.gemm, long_kernel_change=0.0)
    return msgspec.structs.replace(profile, kernels=msgspec.structs.replace(profile.compact, gemm=gemm, body_ratios=()))


def _passes(profile: Profile) -> CompactPasses:
    return CompactCosts(profile).passes(Model.TARGET)


def _devices_s(profile: Profile, tokens: Sequence[int]) -> list[float]:
    passes, attention_s = _passes(profile), _attention_s(profile)
    return [passes.body_s(passes.padded_tokens(count)) + attention_s for count in tokens]


def _attention_s(profile: Profile) -> float:
    """Attention of short contexts: what it takes whatever it reads, in every layer."""
    target, kernels = profile.target, profile.compact
    is_multi_head = target.heads == target.kv_heads
    decode = kernels.multi_head_decode_attention if is_multi_head else kernels.decode_attention
    return target.layers * decode.fixed_s


def _launch_s(profile: Profile) -> float:
    """Host time to launch all kernels of an eager pass."""
    return _passes(profile).num_kernels * profile.host.eager_kernel_s


def _is_launch(profile: Profile, tokens: int, device_s: float) -> bool:
    return tokens > profile.host.max_graph_tokens and device_s < BINDING * _launch_s(profile)


def _with(profile: Profile, shares: Sequence[float], launch_s: float | None) -> Profile:
    gemm = msgspec.structs.replace(profile.compact.gemm, **dict(zip(BOUNDS, map(float, shares), strict=True)))
    host = profile.host
    if launch_s is not None:
        host = msgspec.structs.replace(host, eager_kernel_s=round_constant(launch_s / _passes(profile).num_kernels))
    return msgspec.structs.replace(profile, kernels=msgspec.structs.replace(profile.compact, gemm=gemm), host=host)


def _fit_law(start: Profile, curve: Sequence[TimedStep]) -> tuple[Profile, dict[str, FittedConstant]]:
    """The law fitted on all points, with the launch where some point shows it."""
    from scipy.optimize import least_squares

    eager = [seconds for tokens, seconds in curve if tokens > start.host.max_graph_tokens]
    low, high = (np.array(side) for side in zip(*BOUNDS.values(), LAUNCH_BOUNDS_S, strict=True))
    gemm = start.compact.gemm
    first = np.array([*(getattr(gemm, name) for name in BOUNDS), min(eager, default=0.01)])
    low[-1], high[-1] = (float(np.log(bound)) for bound in LAUNCH_BOUNDS_S)
    first[-1] = log(first[-1])

    tokens, seconds = [step.tokens for step in curve], np.array([step.seconds for step in curve])

    def residuals(values: Array) -> Array:
        *shares, log_launch_s = values.tolist()
        law_s = steps_s(_with(start, shares, float(np.exp(log_launch_s))), tokens)
        return np.asarray(np.log(np.asarray(law_s) / seconds))

    solution = least_squares(
        residuals, np.clip(first, low, high), bounds=(low, high), loss="soft_l1", f_scale=OUTLIER, x_scale="jac"
    )
    shares = [0.0 if value < NEGLIGIBLE else round_constant(value) for value in solution.x[:-1]]
    launch_s = round_constant(float(np.exp(solution.x[-1])))
    law = _with(start, shares, launch_s)
    shows_launch = any(map(partial(_is_launch, law), tokens, _devices_s(law, tokens)))
    jacobian = solution.jac if shows_launch else solution.jac[:, :-1]
    variance = 2.0 * solution.cost / max(1, len(curve) - jacobian.shape[1])
    widths = NORMAL_95 * np.sqrt(np.diag(np.linalg.pinv(jacobian.T @ jacobian)) * variance)
    constants = {
        name: FittedConstant(value=value, half_width=float(width))
        for name, value, width in zip(BOUNDS, shares, widths, strict=False)
    }
    if shows_launch:
        constants["eager_launch_s"] = FittedConstant(value=launch_s, half_width=float(widths[-1]) * launch_s)
    return _with(start, shares, launch_s if shows_launch else None), constants


def _ratios(law: Profile, curve: Sequence[TimedStep]) -> tuple[tuple[int, float], ...]:
    """Ratios of what the layers took to what the law says, by tokens; a fall of the curve is pooled, so that more
    tokens are never faster, and steps that show the launch have none."""
    from scipy.optimize import isotonic_regression

    passes, attention_s = _passes(law), _attention_s(law)
    devices_s = _devices_s(law, [step.tokens for step in curve])
    kept = [step for step, device_s in zip(curve, devices_s, strict=True) if not _is_launch(law, step.tokens, device_s)]
    rising = isotonic_regression([seconds for _, seconds in kept]).x
    return tuple(
        (tokens, round(max(0.0, float(seconds) - attention_s) / passes.body_s(passes.padded_tokens(tokens)), 5))
        for (tokens, _), seconds in zip(kept, rising, strict=True)
    )


def _left_out_s(law: Profile, ratios: tuple[tuple[int, float], ...]) -> dict[int, float]:
    """Tokens -> seconds of the step with its ratio left out, its neighbours' instead; not at the ends."""
    left_out_s = {}
    for index in range(1, len(ratios) - 1):
        others = ratios[:index] + ratios[index + 1 :]
        kernels = msgspec.structs.replace(law.compact, body_ratios=others)
        left_out_s[ratios[index][0]] = step_s(msgspec.structs.replace(law, kernels=kernels), ratios[index][0])
    return left_out_s


def _errors(steps: Sequence[FittedStep], source: str) -> dict[str, KindError]:
    sizes = [
        100.0 * abs(step.left_out_s / step.seconds - 1.0) for step in steps if step.left_out_s is not None
    ]  # fmt: skip
    error = KindError(
        mean_error_pct=round(float(np.mean(sizes)), 2),
        max_error_pct=round(max(sizes), 2),
        points=len(sizes),
        held_out=f"{source}: each step left out of the ratios in turn, not of the law's {len(BOUNDS)} constants",
    )
    return {"body": error}


def _host_source(profile: Profile, launch: FittedConstant | None, source: str) -> str:
    if launch is None:
        return profile.host.source
    return f"{profile.host.source}; but the launch of a kernel: {1e3 * launch.value:.4g} ms a pass, fitted on {source}"
