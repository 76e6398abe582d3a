"""Several constants fitted at once on marked cells, with how well the cells tell each of them: the host's, and with
them `ratio@N`, of the GPU's layers under load to the tables' at N tokens and more.

Least squares on the logarithm of simulated over measured, host constants at least 0. The derivatives say which
constants the cells can tell apart: one that moves no metric, or moves all of them as another does, is refused by name,
because its value would be an accident. Not here: one constant by a search (realrun.validate.cells.fit), ratios alone
and the time before the engine (realrun.validate.cells.device), what a cell's error is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from realrun.validate.cells.fit import HOST_CONSTANTS, with_constant
from sim.costs.kernels import CompactKernels
from sim.costs.points import TableKernels
from sim.costs.profile import Profile
from sim.metrics.stats import t_975
from sim.names import unknown

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ratios = Callable[[Profile], Sequence[float]]
"""Simulated over measured, one per cell and metric, with a profile's constants."""

UNIT_S = {
    "gap_s": 1e-3,
    "draft_pass_s": 1e-3,
    "draft_phase_s": 1e-3,
    "step_s": 1e-3,
    "row_s": 1e-5,
    "frontend_s": 1e-2,
}
"""What each constant is counted in, so that all have values about 1."""
RATIO = "ratio@"
UNTOUCHED = 16
"""The first ratio holds from its tokens on; the tables' times hold up to this part of them."""
LEAST_RATIO = 0.3
STEP = 0.05
"""Of a derivative, in those units: large beside the jitter of a simulation, small beside a constant."""
LEAST_NOISE = 0.005
"""Cells repeat within about 0.5 %, however well a fit meets them (costs.md: goodput of an A100 varies by 0.4 %)."""
WEAK = 1e-3
"""A constant that moves no metric by so much per unit is not seen by the cells."""
ALIKE = 0.995
"""Two constants whose derivatives are as parallel as that are told by their sum alone."""
MOST_ROUNDS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class JointFit:
    """Constants (seconds; ratios as such), half of each one's 95 % interval, and what the fit leaves."""

    profile: Profile
    """With the constants."""
    values_s: Mapping[str, float]
    half_widths_s: Mapping[str, float]
    """0 or less than the value is what the cells really tell; see `told`."""
    error_pct: float
    """Mean size of the errors left on the cells."""
    correlation: Floats
    """[constants, constants]"""

    @property
    def told(self) -> dict[str, bool]:
        """Whether each constant differs from 0, a ratio from 1, by more than its interval."""
        return {name: abs(value - _plain(name)) > self.half_widths_s[name] for name, value in self.values_s.items()}


def fit_constants(
    profile: Profile, names: Sequence[str], ratios: Ratios, near: Mapping[str, float] | None = None
) -> JointFit:
    """The constants `names` with which the squares of log(`ratios`) are least; the profile's own values are dropped.

    `near` are values to begin at, where a like fit has found some: fewer rounds, the same least squares.

    Raises ValueError for a name that is no host constant, for fewer ratios than constants, and for constants that the
    cells cannot tell, or cannot tell apart.
    """
    for name in names:
        check_constant(name)
    if len(set(names)) != len(names):
        raise ValueError(f"--fit {','.join(names)}: each constant once")
    units = np.array([UNIT_S.get(name, 1.0) for name in names])
    least = np.array([LEAST_RATIO if name.startswith(RATIO) else 0.0 for name in names])

    def errors(counts: Floats) -> Floats:
        found: Floats = np.log(np.asarray(ratios(_with(profile, names, counts * units)), dtype=float))
        return found

    counts = np.array([(near or {}).get(name, _plain(name)) for name in names]) / units
    now = errors(counts)
    if len(now) < len(names):
        raise ValueError(f"--fit {','.join(names)}: {len(now)} measured values cannot tell {len(names)} constants")
    slopes = _slopes(errors, counts, now)
    _refuse_what_is_not_told(names, slopes)
    for _ in range(MOST_ROUNDS):
        better, there = _step(errors, counts, now, slopes, least)
        has_moved = float(np.abs(better - counts).max()) > STEP / 50.0
        counts, now = better, there
        slopes = _slopes(errors, counts, now)
        if not has_moved:
            break
    _refuse_what_is_not_told(names, slopes)
    covariance, free = _covariance(slopes, now)
    spread = np.sqrt(np.diag(covariance))
    return JointFit(
        profile=_with(profile, names, counts * units),
        values_s=dict(zip(names, (counts * units).tolist(), strict=True)),
        half_widths_s=dict(zip(names, (t_975(free) * spread * units).tolist(), strict=True)),
        error_pct=100.0 * float(np.abs(np.expm1(now)).mean()),
        correlation=covariance / np.outer(spread, spread),
    )


def check_constant(name: str) -> None:
    """Raise ValueError for what is neither a host constant nor `ratio@N`."""
    if name.startswith(RATIO):
        tokens_of(name)
    elif name not in HOST_CONSTANTS:
        raise ValueError(unknown("constant", name, (*HOST_CONSTANTS, f"{RATIO}2048")))


def tokens_of(name: str) -> int:
    """N of `ratio@N`."""
    digits = name.removeprefix(RATIO)
    if not digits.isdecimal() or int(digits) < UNTOUCHED:
        raise ValueError(f"{name!r}: want {RATIO} and a count of at least {UNTOUCHED} tokens, such as {RATIO}2048")
    return int(digits)


def _plain(name: str) -> float:
    """Its value where nothing is added to the tables."""
    return 1.0 if name.startswith(RATIO) else 0.0


def _with(profile: Profile, names: Sequence[str], values_s: Floats) -> Profile:
    ratios: dict[int, float] = {}
    for name, value in zip(names, values_s.tolist(), strict=True):
        if name.startswith(RATIO):
            ratios[tokens_of(name)] = value
        else:
            profile = with_constant(profile, name, value)
    if not ratios:
        return profile
    kernels = profile.kernels
    if not isinstance(kernels, CompactKernels | TableKernels):
        raise ValueError(f"profile {profile.name!r} has no layers of its own to correct (kernels.form=linear)")
    points = ((min(ratios) // UNTOUCHED, 1.0), *sorted(ratios.items()))
    return msgspec.structs.replace(profile, kernels=msgspec.structs.replace(kernels, body_ratios=points))


def _slopes(errors: Callable[[Floats], Floats], counts: Floats, now: Floats) -> Floats:
    """[values, constants] change of each error per unit of each constant."""
    columns = []
    for place in range(len(counts)):
        there = counts.copy()
        there[place] += STEP
        columns.append((errors(there) - now) / STEP)
    return np.column_stack(columns)


def _step(
    errors: Callable[[Floats], Floats], counts: Floats, now: Floats, slopes: Floats, least: Floats
) -> tuple[Floats, Floats]:
    """Counts and errors after one Gauss-Newton step within the bounds, halved until it helps; the old ones if none."""
    from scipy.optimize import lsq_linear

    wanted = lsq_linear(slopes, slopes @ counts - now, bounds=(least, np.inf)).x
    share = 1.0
    while share > 0.05:
        there = counts + share * (wanted - counts)
        found = errors(there)
        if float(found @ found) < float(now @ now):
            return there, found
        share /= 2.0
    return counts, now


def _refuse_what_is_not_told(names: Sequence[str], slopes: Floats) -> None:
    sizes = np.abs(slopes).max(axis=0)
    for name, size in zip(names, sizes.tolist(), strict=True):
        if size < WEAK:
            raise ValueError(f"--fit: {name} moves none of the marked cells; leave it out, or mark cells where it acts")
    lengths = np.linalg.norm(slopes, axis=0)
    alike = (slopes.T @ slopes) / np.outer(lengths, lengths)
    for place, name in enumerate(names):
        for other in range(place):
            if alike[place, other] > ALIKE:
                raise ValueError(
                    f"--fit: the marked cells cannot tell {names[other]} from {name}: both move them alike; mark cells "
                    "of other concurrencies or draft lengths, or leave one out"
                )


def _covariance(slopes: Floats, left: Floats) -> tuple[Floats, int]:
    """[constants, constants] in units squared, and the degrees of freedom behind it."""
    free = max(1, len(left) - slopes.shape[1])
    noise = max(LEAST_NOISE**2, float(left @ left) / free)
    found: Floats = noise * np.linalg.inv(slopes.T @ slopes)
    return found, free
