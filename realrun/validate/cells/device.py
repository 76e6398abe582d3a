"""What a GPU makes of its layers under load, and what stands before the engine, fitted on marked cells.

Kernel tables time single kernels at boost clocks. Where no curve of steps by tokens is at hand (calibrate.fit.steps),
closed-loop cells tell as much in the mean: the ratio of the layers' time to the tables' at a few counts of tokens, and
the time that requests spend before the engine's queue. Not here: one host constant on one metric
(realrun.validate.cells.fit), what a cell's simulation is (realrun.validate.cells.compare).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from realrun.validate.cells.compare import Setup, simulate_cell
from realrun.validate.cells.table import MEASURED, Cell
from sim.costs.engine import engine_of, with_engine
from sim.costs.kernels import CompactKernels
from sim.costs.points import TableKernels, is_rising
from sim.costs.profile import SERVED, Profile
from sim.costs.profile_files import round_constant

RATIO_BOUNDS = (0.3, 3.0)
MOST_FRONTEND_S = 0.2
FIRST_FRONTEND_S = 0.005
STEP = 0.02
"""Relative step of the derivatives: a simulated loop jumps a little where a prompt moves to another step."""
FRONTEND_STEP = 0.2
TOLERANCE = 1e-4
NORMAL_95 = 1.96

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFit:
    """Fitted ratios by tokens and seconds before the engine, each with half of its 95 % interval."""

    ratios: tuple[tuple[int, float, float], ...]
    """(tokens, ratio, half width)."""
    frontend_s: float
    frontend_half_width_s: float
    num_values: int
    """Measured values that were fitted."""
    error_pct: float
    """Mean size of the relative errors that are left."""


def parse_tokens(text: str) -> list[int]:
    """`8,64,2048`. Raises ValueError for what is no rising list of counts."""
    parts = [part.strip() for part in text.split(",")]
    counts = [int(part) for part in parts if part.isdecimal()]
    if len(counts) < len(parts) or not is_rising(counts) or counts[0] < 1:
        raise ValueError(f"--fit-ratios {text!r}: want rising counts of tokens, such as 8,64,2048")
    return counts


def fit_device(
    cells: Sequence[Cell], profile: Profile, setup: Setup, tokens: Sequence[int], metrics: Sequence[str], source: str
) -> tuple[Profile, DeviceFit]:
    """`profile` with a ratio of the layers at each of `tokens`, and the frontend's time, that fit `metrics` of `cells`
    best in relative least squares.

    It carries the other constants of the engine in use from then on, and says `conditions: served`. Raises ValueError
    where fewer values are there than constants.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise ValueError("fitting needs the analysis extra: pip install 'lanesim[analysis]'") from None
    start = with_engine(profile, engine_of(setup.engine.get("name"), profile))
    real = np.array([cell.measured[name] for cell in cells for name in metrics if name in cell.measured])
    if len(real) <= len(tokens) + 1:
        raise ValueError(f"{len(real)} measured values are too few to fit {len(tokens)} ratios and the frontend")

    def residuals(values: Floats) -> Floats:
        candidate = _with(start, tokens, values.tolist())
        found = []
        for cell in cells:
            metrics_found = simulate_cell(cell, candidate, setup)
            found += [metrics_found[MEASURED[name]] for name in metrics if name in cell.measured]
        return np.asarray(np.log(np.array(found) / real))

    fitted = least_squares(
        residuals,
        [1.0] * len(tokens) + [FIRST_FRONTEND_S],
        bounds=([RATIO_BOUNDS[0]] * len(tokens) + [0.0], [RATIO_BOUNDS[1]] * len(tokens) + [MOST_FRONTEND_S]),
        x_scale=[1.0] * len(tokens) + [FIRST_FRONTEND_S],
        diff_step=[STEP] * len(tokens) + [FRONTEND_STEP],
        xtol=TOLERANCE,
        ftol=TOLERANCE,
    )
    variance = float(np.sum(fitted.fun**2)) / (len(real) - len(fitted.x))
    widths = NORMAL_95 * np.sqrt(variance * np.diag(np.linalg.pinv(fitted.jac.T @ fitted.jac)))
    best = _with(start, tokens, fitted.x.tolist())
    ratios = best.kernels.body_ratios if isinstance(best.kernels, CompactKernels | TableKernels) else ()
    host = msgspec.structs.replace(best.host, source=f"{best.host.source}; frontend_s fitted by lanesim on {source}")
    best = msgspec.structs.replace(
        best, host=host, conditions=SERVED, source=f"layers served, by ratios fitted by lanesim on {source}; "
        f"the rest: {profile.source}"
    )  # fmt: skip
    return best, DeviceFit(
        ratios=tuple((count, ratio, float(width)) for (count, ratio), width in zip(ratios, widths[:-1], strict=True)),
        frontend_s=best.host.frontend_s,
        frontend_half_width_s=float(widths[-1]),
        num_values=len(real),
        error_pct=100.0 * float(np.mean(np.abs(np.expm1(fitted.fun)))),
    )


def _with(profile: Profile, tokens: Sequence[int], values: Sequence[float]) -> Profile:
    """`values` are the ratios, then the frontend's seconds."""
    *found, frontend_s = values
    kernels = profile.kernels
    if not isinstance(kernels, CompactKernels | TableKernels):
        raise ValueError(f"profile {profile.name!r} has no layers of its own to correct (kernels.form=linear)")
    ratios = tuple((count, value) for count, value in zip(tokens, found, strict=True))
    host = msgspec.structs.replace(profile.host, frontend_s=round_constant(frontend_s))
    return msgspec.structs.replace(profile, kernels=msgspec.structs.replace(kernels, body_ratios=ratios), host=host)
