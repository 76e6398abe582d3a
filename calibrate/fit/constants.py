"""Constants fitted on measured values, so that others can be judged with them.

A constant is a time of the host, or `ratio@N`: what the GPU's layers take under load, as a multiple of the tables', at
N tokens and more (kernel tables time single kernels at boost clocks). One time alone is searched for, until the mean
signed error of one metric is 0. Several are found by least squares on the logarithm of simulated over measured. The
derivatives then say which constants the cells can tell apart. One that moves no metric, or all of them as another does,
is refused by name. Not here: what a cell's error is (calibrate.served.judge).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from sim.costs.compact_kernels import CompactKernels
from sim.costs.profile import Profile
from sim.costs.table_kernels import TableKernels
from sim.metrics.stats import Floats, t_975
from sim.names import install_line, unknown

UNITS_S = {
    "gap_s": 1e-3,
    "draft_pass_s": 1e-3,
    "draft_phase_s": 1e-3,
    "step_s": 1e-3,
    "row_s": 1e-5,
    "frontend_s": 1e-2,
}
"""Times of profile.host that can be fitted, and what each is counted in, so that all have values about 1."""
RATIO = "ratio@"
UNTOUCHED = 16
"""The first ratio holds from its tokens on; the tables' times hold up to this part of them."""
MIN_RATIO = 0.3
FIRST_TRY_S, LONGEST_S = 1e-4, 0.4
TOLERANCE_S = 1e-8
STEP = 0.05
"""Step of a derivative, in units: large beside the jitter of a simulation, small beside a constant."""
TOLERANCE = 1e-4
"""Relative change of constants, and of what is left, at which least squares end."""
MAX_ROUNDS = 20
MIN_NOISE = 0.005
"""Cells repeat within about 0.5 %, however well a fit meets them (costs.md: goodput of an A100 varies by 0.4 %)."""
NORMAL_95 = 1.96
WEAK = 1e-3
"""A constant that moves no metric by so much per unit is not seen by the cells."""
ALIKE = 0.995
"""Cosine of the derivatives by two constants beyond which only their sum is determined."""


class Undetermined(ValueError):
    """Measured values that do not determine a constant. Which one, and why: one clause in the words of no command."""

    def __init__(self, constant: str, why: str) -> None:
        super().__init__(constant, why)
        self.constant, self.why = constant, why

    def __str__(self) -> str:
        return f"{self.constant} {self.why}"


Ratios = Callable[[Profile], Sequence[float]]
"""Simulated over measured, one per cell and metric, with a profile's constants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Constants (seconds; ratios as such) and what the fit leaves."""

    profile: Profile
    """The profile with the constants."""
    values_s: Mapping[str, float]
    half_widths_s: Mapping[str, float]
    """Half of each one's 95 % interval; empty after a search, which gives none."""
    error_pct: float
    """Mean size of the errors left on the cells; after a search the mean signed error."""

    @property
    def told(self) -> dict[str, bool]:
        """True where each constant differs from 0, a ratio from 1, by more than its interval."""
        widths_s = self.half_widths_s
        return {name: abs(self.values_s[name] - _plain(name)) > width_s for name, width_s in widths_s.items()}

    def __str__(self) -> str:
        told = []
        for name, value in self.values_s.items():
            scale, unit = (1.0, "") if name.startswith(RATIO) else (1e3, " ms")
            width = f" ± {self.half_widths_s[name] * scale:.2g}" if self.half_widths_s else ""
            doubt = "" if self.told.get(name, True) else f" (may be {_plain(name):g})"
            told.append(f"{name} = {value * scale:.4g}{width}{unit}{doubt}")
        return ", ".join(told)


def check_constant(name: str) -> None:
    """Raise ValueError for what is neither a time of the host nor `ratio@N`."""
    if name.startswith(RATIO):
        digits = name.removeprefix(RATIO)
        if not digits.isdecimal() or int(digits) < 1:
            raise ValueError(f"{name!r} must be {RATIO} and a count of tokens, such as {RATIO}2048")
    elif name not in UNITS_S:
        raise ValueError(unknown("constant", name, (*UNITS_S, f"{RATIO}2048")))


def with_constants(profile: Profile, values_s: Mapping[str, float]) -> Profile:
    """`profile` with other values of constants. Raises ValueError for ratios where it has no layers of its own."""
    times_s = {name: value_s for name, value_s in values_s.items() if not name.startswith(RATIO)}
    ratios = sorted((int(name.removeprefix(RATIO)), values_s[name]) for name in values_s.keys() - times_s.keys())
    profile = msgspec.structs.replace(profile, host=msgspec.structs.replace(profile.host, **times_s))
    if not ratios:
        return profile
    kernels = profile.kernels
    if not isinstance(kernels, CompactKernels | TableKernels):
        raise ValueError(f"profile {profile.name!r} has no layers of its own to correct (kernels.form=linear)")
    first = ratios[0][0] // UNTOUCHED
    points = ((first, 1.0), *ratios) if first else tuple(ratios)
    return msgspec.structs.replace(profile, kernels=msgspec.structs.replace(kernels, body_ratios=points))


def fit_constant(profile: Profile, name: str, slowness_pct: Callable[[Profile], float]) -> Fitted:
    """The time of the host, 0 or above, with which `slowness_pct` is 0: a mean signed error that rises with the
    constant. Raises ValueError where no constant up to LONGEST_S is enough."""
    try:
        from scipy.optimize import brentq
    except ImportError:
        raise ValueError(f"fitting needs scipy: {install_line('analysis')}") from None

    def slowness(value_s: float) -> float:
        return slowness_pct(with_constants(profile, {name: value_s}))

    value_s = 0.0
    if slowness(0.0) < 0.0:
        low_s, high_s = 0.0, FIRST_TRY_S
        while slowness(high_s) < 0.0:
            low_s, high_s = high_s, 2.0 * high_s
            if high_s > LONGEST_S:
                raise ValueError(
                    f"--fit: with {name} = {low_s * 1e3:.0f} ms the simulation is still too fast. Does this "
                    "constant act on what is marked?"
                )
        value_s = float(brentq(slowness, low_s, high_s, xtol=TOLERANCE_S))
    fitted = with_constants(profile, {name: value_s})
    left_pct = slowness_pct(fitted)
    return Fitted(profile=fitted, values_s={name: value_s}, half_widths_s={}, error_pct=left_pct)


def fit_constants(
    profile: Profile,
    names: Sequence[str],
    ratios: Ratios,
    near: Mapping[str, float] | None = None,
    noise: float = 0.0,
) -> Fitted:
    """The constants `names` with which the squares of log(`ratios`) are least; the profile's values are dropped.

    `near` are values to begin at, where a like fit has found some: fewer rounds, the same least squares. `noise` is the
    relative standard error of the ratios where it is known apart from how well few of them happen to be met: intervals
    are no narrower than that.

    Raises ValueError for a name that is no constant or is there twice, and Undetermined for the first constant that
    the ratios do not determine: too few of them, none moved by it, or all moved as by one before it.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise ValueError(f"fitting needs scipy: {install_line('analysis')}") from None
    for name in names:
        check_constant(name)
    if len(set(names)) != len(names):
        raise ValueError(f"{','.join(names)} must name each constant once")
    units = [UNITS_S.get(name, 1.0) for name in names]
    least = [MIN_RATIO if name.startswith(RATIO) else 0.0 for name in names]

    def values_s(counts: Floats) -> dict[str, float]:
        return dict(zip(names, (counts * units).tolist(), strict=True))

    simulated: dict[bytes, Floats] = {}

    def errors(counts: Floats) -> Floats:
        key = counts.tobytes()
        if key not in simulated:
            simulated[key] = np.asarray(np.log(ratios(with_constants(profile, values_s(counts)))), dtype=float)
        return simulated[key]

    def slopes(counts: Floats) -> Floats:
        """[values, constants] change of each error per unit of each constant."""
        now = errors(counts)
        return np.column_stack([(errors(counts + step) - now) / STEP for step in STEP * np.eye(len(counts))])

    start = np.array([(near or {}).get(name, _plain(name)) for name in names]) / units
    num_values = len(errors(start))
    if num_values < len(names):
        raise Undetermined(
            names[-1], f"is one too many: {num_values} measured values cannot tell {len(names)} constants"
        )
    _refuse_undetermined(names, slopes(start))
    solution = least_squares(
        errors,
        start,
        slopes,
        bounds=(least, np.inf),
        method="dogbox",
        xtol=TOLERANCE,
        ftol=TOLERANCE,
        max_nfev=MAX_ROUNDS,
    )
    _refuse_undetermined(names, solution.jac)
    free = max(1, num_values - len(names))
    left = max(MIN_NOISE, float(np.sqrt(solution.fun @ solution.fun / free)))
    spread = max(t_975(free) * left, NORMAL_95 * noise) * np.sqrt(np.diag(np.linalg.inv(solution.jac.T @ solution.jac)))
    return Fitted(
        profile=with_constants(profile, values_s(solution.x)),
        values_s=values_s(solution.x),
        half_widths_s=values_s(spread),
        error_pct=100.0 * float(np.abs(np.expm1(solution.fun)).mean()),
    )


def _plain(name: str) -> float:
    """Its value where nothing is added to the tables."""
    return 1.0 if name.startswith(RATIO) else 0.0


def _refuse_undetermined(names: Sequence[str], slopes: Floats) -> None:
    sizes = np.abs(slopes).max(axis=0)
    for name, size in zip(names, sizes.tolist(), strict=True):
        if size < WEAK:
            raise Undetermined(name, "moves none of the measured values")
    lengths = np.linalg.norm(slopes, axis=0)
    alike = (slopes.T @ slopes) / np.outer(lengths, lengths)
    for index, name in enumerate(names):
        for other in range(index):
            if alike[index, other] > ALIKE:
                raise Undetermined(
                    name,
                    f"moves the measured values as {names[other]} does: they cannot tell {names[other]} from {name}",
                )
