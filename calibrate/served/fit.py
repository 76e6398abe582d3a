"""Constants of the engine, fitted to the loads of a server, with the error on loads left out.

First a step's constants are fitted to time per output token, or to tokens per second where that is unknown. Then the
time before the queue is fitted to time to the first token. If that shifts the first fit, both are repeated. An engine
that plans ahead hides its steps' time on the host. Where loads hardly depend on it, the time between steps (`gap_s`) is
fitted instead. With three loads or more, both schedulings are fitted without the largest load, each with and without a
time per row. The largest load chooses among them.
Not here: what the server said (calibrate.served.load), least squares (calibrate.fit.constants).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import NamedTuple

import msgspec
import numpy as np

from calibrate.fit.constants import (
    NORMAL_95,
    Fitted,
    Undetermined,
    fit_constants,
    with_constants,
)
from calibrate.served.judge import LoadSetup, scenario_of, simulate_load
from calibrate.served.load import MEASURED, Accepted, ServedLoad, middling, pooled
from sim.compare.pool import OnDone
from sim.costs.engine_costs import engine_of, with_engine
from sim.costs.profile import Profile
from sim.metrics.compared import THROUGHPUT
from sim.run.limits import limits_of

FAR_APART = 2.0
"""Requests in flight of two levels that tell a constant per row from one per step."""
FITTED = ("tpot_ms", "tpot_p50_ms", THROUGHPUT)
"""Metrics that a step's constants are fitted on: the first that a level has."""
STEP, ROW, GAP = "step_s", "row_s", "gap_s"
"""The constants of every step: on the host, on the host per row, on the device."""
HIDDEN_SHARE, SMALL_S = 0.5, 5e-5
"""STEP is hidden where so much of it moves every level by less than this share of what as much of GAP does."""
FRONTEND, FIRST_TOKEN = "frontend_s", "ttft_ms"
"""The constant before the engine, and what tells it."""
LONGEST_FRONTEND_S = 1.0
"""More than that is a queue's wait: prompts that wait for seats or memory, which levels of means do not show."""
SETTLED = 0.005
"""Relative change of what the first stage was fitted on that the second may make before both are done again: as far
as levels repeat."""
MAX_TURNS = 3
MAX_LEFT_PCT = 10.0
"""Error of a level beyond which the constants do not describe the server."""
MOST_RUNS = 100
"""Simulations of each load that a fit takes at most, or about so."""
ONE_LOAD = "One load fits almost any profile, so small errors prove nothing"
MORE_LOADS = "Give loads at three numbers in flight, so that one is predicted from the others."
TIED_PCT = 1.0
"""Points by which a form must predict the largest load better than a simpler one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedLoad:
    """A level of load: what was seen, and what the fitted profile gives there."""

    served: ServedLoad
    errors_pct: dict[str, float]
    """Errors by metric: simulated over measured, less 1."""
    predicted_pct: dict[str, float]
    """The same with constants of all other levels; empty where those tell none."""

    @property
    def fitted_metric(self) -> str:
        """Metric of this level that the constants of a step are fitted on."""
        return _metric(self.served.measured)


class Form(NamedTuple):
    """A law of a step: whether the host's part is hidden while the device runs, and whether it grows with the rows."""

    is_async: bool
    has_rows: bool

    def __str__(self) -> str:
        return f"{'a' if self.is_async else ''}synchronous {'with' if self.has_rows else 'without'} {ROW}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A form fitted without the largest load, and the error that it has there, percent."""

    form: Form
    error_pct: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Production:
    """Constants that a server's levels tell, and the errors that are left."""

    profile: Profile
    """The profile with all its constants."""
    fits: list[Fitted]
    """Fits of what a step takes; then, where levels tell it, of the time before the engine, a step's constants being as
    they are."""
    levels: list[FittedLoad]
    accepted: Accepted | None
    unfitted: Mapping[str, str]
    """Constants that the levels might have determined and do not, and why."""
    tried: Sequence[Tried]
    """Forms of a step, the chosen one first; none where the loads are too few to choose."""
    faster_pct: float
    """By how much the profile's time per token was above the server's, in the mean over loads."""

    @property
    def held_back(self) -> FittedLoad | None:
        """The largest load, where all others predict it."""
        largest = max(self.levels, key=lambda level: level.served.concurrency)
        return largest if largest.predicted_pct else None

    @property
    def doubt(self) -> str:
        """A warning where the constants do not describe the server; else empty."""
        error_pct, where = self.left
        if abs(error_pct) <= MAX_LEFT_PCT:
            return ""
        return f"The simulator does not fit this server: {error_pct:+.0f} % error at {where}. Do not use this profile."

    @property
    def caution(self) -> str:
        """A warning where errors cannot show whether the profile is the server's; else empty."""
        loads = [each.served.concurrency for each in self.levels]
        return "" if max(loads) >= FAR_APART * min(loads) else f"{ONE_LOAD}. Add a load of twice as many in flight."

    @property
    def verdict(self) -> str:
        """What came of it, in a sentence or two."""
        if self.doubt:
            return self.doubt
        side = "faster" if self.faster_pct > 0.0 else "slower"
        told = f"This server is {abs(self.faster_pct):.0f} % {side} than the profile"
        if self.held_back is None or self.caution:
            return f"{told}. {self.caution or MORE_LOADS}"
        off_pct = self.held_back.predicted_pct[self.held_back.fitted_metric]
        return f"{told}. Predicted from the other loads, the largest is {abs(off_pct):.0f} % off."

    @property
    def left(self) -> tuple[float, str]:
        """The largest error, percent, of what the steps were fitted on, and of which level; that of the form on the
        largest load without it counts, too."""
        errors = [(level.errors_pct[level.fitted_metric], level.served.source) for level in self.levels]
        errors += [(each.error_pct, "the largest load, predicted from the others") for each in self.tried[:1]]
        return max(errors, key=lambda error: abs(error[0]))


class Seen(NamedTuple):
    """Levels as closed loops, how they are simulated, and the noise of what each stage is fitted on."""

    loads: Sequence[ServedLoad]
    setup: LoadSetup
    noises: tuple[float, float]
    on_step: OnDone
    """Hears each simulation before it is made."""
    runs: dict[tuple[int, bytes], Mapping[str, float]]
    """Metrics of a load by the host's constants: fits that leave a load out begin where the others did."""

    @property
    def sources(self) -> str:
        return ", ".join(dict.fromkeys(cell.source for cell in self.loads))

    def ratios(self, profile: Profile, metric: str | None = None) -> list[float]:
        """Simulated over measured `metric` of each cell, by default time per token."""
        ratios = []
        for cell in self.loads:
            name = metric or _metric(cell.measured)
            ratio = self.simulated(cell, profile)[MEASURED[name]] / cell.measured[name]
            ratios.append(1.0 / ratio if name == THROUGHPUT else ratio)
        return ratios

    def errors_pct(self, cell: ServedLoad, profile: Profile) -> dict[str, float]:
        simulated = self.simulated(cell, profile)
        return {metric: 100.0 * (simulated[MEASURED[metric]] / real - 1.0) for metric, real in cell.measured.items()}

    def simulated(self, cell: ServedLoad, profile: Profile) -> Mapping[str, float]:
        """Metrics of a level. Raises ValueError that names its source where it cannot be simulated."""
        try:
            key = id(cell), msgspec.json.encode(profile.host)
            if key not in self.runs:
                self.on_step("simulations of the fit", len(self.runs), MOST_RUNS * len(self.loads))
                self.runs[key] = simulate_load(cell, profile, self.setup)
            return self.runs[key]
        except ValueError as error:
            raise ValueError(f"{cell.source}: {error}") from None

    def is_async(self, profile: Profile) -> bool:
        """Scheduling of the largest load by the engine itself."""
        largest = max(self.loads, key=lambda cell: cell.concurrency)
        return limits_of(scenario_of(largest, profile, self.setup), profile).async_scheduling


def fit_served(
    profile: Profile,
    served: Sequence[ServedLoad],
    setup: LoadSetup,
    on_step: OnDone = lambda stage, done, total: None,
) -> Production:
    """The profile with those of the engine's constants that the loads of the server can tell, and what is left of each
    load's error. Rounds of one load are one. Loads may be of two servers that differ in drafting alone: what they have
    in common is fitted to both. Raises ValueError."""
    if not served:
        raise ValueError("no load was sent to the server")
    for each in served:
        if each.concurrency < 1.0 or not set(FITTED) & set(each.measured):
            raise ValueError(
                f"{each.source}: a fit needs requests in flight and a time per output token or tokens per second. "
                "`lanesim validate FILE` compares loads without these"
            )
    served = _of_rounds(served)
    profile = with_engine(profile, engine_of(setup.engine_name, profile))
    seen = Seen(served, setup, (_noise(served, FITTED), _noise(served, (FIRST_TOKEN,))), on_step, {})
    names = tellable(served)
    faster_pct = 100.0 * float(np.expm1(np.log(seen.ratios(profile)).mean()))
    tried = _tried(profile, seen, names)
    form = tried[0].form if tried else None
    if form is not None:
        profile = _of_form(profile, form, seen)
    fits, unfitted = _tellable_fits(profile, seen, names, form)
    told = ", ".join(map(str, fits))
    best = fits[-1].profile
    source = f"{best.host.source}; {told} fitted by lanesim on {len(served)} levels of a running server"
    if tried:
        source += f", {tried[0].form}"
    fitted = msgspec.structs.replace(best, host=msgspec.structs.replace(best.host, source=source))
    levels = [
        FittedLoad(
            served=each,
            errors_pct=seen.errors_pct(each, fitted),
            predicted_pct=_left_out(profile, seen, each, fits),
        )
        for each in served
    ]
    return Production(
        profile=fitted,
        fits=fits,
        levels=levels,
        accepted=pooled([each.accepted for each in served if each.accepted is not None], seen.sources),
        unfitted=unfitted,
        tried=tried,
        faster_pct=faster_pct,
    )


def _of_rounds(served: Sequence[ServedLoad]) -> list[ServedLoad]:
    """One of the rounds of each load that was sent; all others as they are."""
    by_load: dict[tuple[float, bool, int], list[ServedLoad]] = {}
    for place, each in enumerate(served):
        by_load.setdefault((each.concurrency, each.accepted is None, 0 if each.requests else 1 + place), []).append(
            each
        )
    return [middling(rounds) for rounds in by_load.values()]


def _tried(profile: Profile, seen: Seen, names: Sequence[str]) -> list[Tried]:
    """The forms that the levels without the largest load tell, that with the least error there first; of tied ones the
    simplest, and the engine's default scheduling. Empty where the other loads tell no time per row."""
    most = max(cell.concurrency for cell in seen.loads)
    others, held_back = (
        seen._replace(loads=[cell for cell in seen.loads if (cell.concurrency == most) is is_most])
        for is_most in (False, True)
    )
    loads = [cell.concurrency for cell in others.loads]
    if ROW not in names or not loads or max(loads) < FAR_APART * min(loads):
        return []
    is_async = held_back.is_async(profile)
    tie_pct = max(TIED_PCT, 100.0 * NORMAL_95 * seen.noises[0])
    of_steps = [name for name in names if name != FRONTEND]
    tried: list[Tried] = []
    for has_rows, plans_ahead in product((False, True), (is_async, not is_async)):
        form = Form(plans_ahead, has_rows)
        try:
            (fit,), unfitted = _tellable_fits(_of_form(profile, form, held_back), others, of_steps, form)
        except ValueError:
            continue
        if has_rows and ROW in unfitted:
            continue
        furthest = max(held_back.ratios(fit.profile), key=lambda ratio: abs(np.log(ratio)))
        tried.append(Tried(form=form, error_pct=100.0 * (furthest - 1.0)))
        if abs(tried[-1].error_pct) <= tie_pct:
            break  # No other could be better by more than ties are.
    if not tried:
        return []
    least_pct = min(abs(each.error_pct) for each in tried)
    chosen = next(each for each in tried if abs(each.error_pct) <= least_pct + tie_pct)
    return [chosen, *(each for each in tried if each is not chosen)]


def _of_form(profile: Profile, form: Form, seen: Seen) -> Profile:
    """`profile` with the scheduling of `form`, said where the engine itself would not serve the largest load so; and
    with no time per row where the form has none and what a step takes on the host shows."""
    host = profile.host
    if seen.is_async(profile) is not form.is_async:
        host = msgspec.structs.replace(host, is_async=form.is_async)
    if not form.is_async and not form.has_rows:
        host = msgspec.structs.replace(host, row_s=0.0)
    return msgspec.structs.replace(profile, host=host)


def tellable(served: Sequence[ServedLoad]) -> list[str]:
    """The constants that levels of these loads can tell: of a step always, of a row where loads differ, of a draft pass
    where some drafted and others did not, of what stands before the engine where first tokens were timed."""
    loads = [each.concurrency for each in served]
    names = ["step_s"]
    if max(loads) >= FAR_APART * min(loads):
        names.append("row_s")
    if len({each.accepted is None for each in served}) > 1 and len(served) > len(names):
        names.append("draft_pass_s")
    if any(FIRST_TOKEN in each.measured for each in served):
        names.append(FRONTEND)
    return names


def _tellable_fits(
    profile: Profile, seen: Seen, names: Sequence[str], form: Form | None
) -> tuple[list[Fitted], dict[str, str]]:
    """Both stages with those of `names` that the levels tell and the `form` has, GAP in the place of a hidden STEP; and
    why each of the others is left out. Raises ValueError where they tell no constant of a step."""
    unfitted: dict[str, str] = {}
    near: dict[str, float] = {}
    if _is_hidden(profile, seen):
        has_rows = form is not None and form.has_rows
        why = f"loads hardly depend on it, and more on {GAP}, because the engine prepares steps while the GPU works"
        unfitted = {name: why for name in names if name in (STEP, ROW) and not (name == ROW and has_rows)}
        names = [GAP, *(name for name in names if name not in unfitted)]
        if has_rows:
            # Hidden up to some load: begin where the host alone explains the level that it could explain.
            near[ROW] = min(_token_s(cell) / cell.concurrency for cell in seen.loads)
    elif form is not None and not form.has_rows and ROW in names:
        unfitted[ROW] = "is 0: without it the largest load is predicted as well"
        names = [name for name in names if name != ROW]
    while set(names) - {FRONTEND}:
        try:
            return _fits(profile, seen, names, near), unfitted
        except Undetermined as error:
            unfitted[error.constant] = error.why
            names = [name for name in names if name != error.constant]
    why = ". ".join(f"{name} {reason}" for name, reason in unfitted.items())
    raise ValueError(f"{seen.sources}: no constant of a step can be fitted to these loads. {why}")


def _is_hidden(profile: Profile, seen: Seen) -> bool:
    """True where these levels show little of a step's time on the host, as where it is prepared while another runs."""
    bare, with_step, with_gap = (
        np.log(seen.ratios(with_constants(profile, {STEP: 0.0, ROW: 0.0, GAP: 0.0, **added})))
        for added in ({}, {STEP: SMALL_S}, {GAP: SMALL_S})
    )
    return bool(np.abs(with_step - bare).max() < HIDDEN_SHARE * np.abs(with_gap - bare).max())


def _fits(profile: Profile, seen: Seen, names: Sequence[str], near: Mapping[str, float]) -> list[Fitted]:
    """Both stages; the last one's profile has all constants. They begin at those of `near`."""
    of_steps = [name for name in names if name != FRONTEND]
    known = dict(near)
    if FRONTEND in known:
        profile = with_constants(profile, {FRONTEND: known[FRONTEND]})
    steps = fit_constants(profile, of_steps, seen.ratios, known, seen.noises[0])
    if FRONTEND not in names:
        return [steps]
    timed = seen._replace(loads=[cell for cell in seen.loads if FIRST_TOKEN in cell.measured])
    if not timed.loads:
        raise Undetermined(FRONTEND, "cannot be determined: no level has a time to the first token")
    for turn in range(MAX_TURNS):
        frontend = _frontend(steps.profile, timed, known)
        before, after = (np.array(seen.ratios(fit.profile)) for fit in (steps, frontend))
        if turn == MAX_TURNS - 1 or float(np.abs(np.log(after / before)).max()) < SETTLED:
            break
        known = {**steps.values_s, **frontend.values_s}
        steps = fit_constants(frontend.profile, of_steps, seen.ratios, known, seen.noises[0])
    return [steps, frontend]


def _noise(served: Sequence[ServedLoad], metrics: Sequence[str]) -> float:
    """Relative standard error of levels in the first of `metrics` that each has repeats of; 0 where none has."""
    noises = [
        next((each.repeats_pct[name] / 100.0 for name in metrics if name in each.repeats_pct), 0.0) for each in served
    ]
    return float(np.sqrt(np.mean(np.square(noises))))


def _frontend(profile: Profile, timed: Seen, near: Mapping[str, float]) -> Fitted:
    """Fit of the time before the engine. Raises Undetermined."""
    try:
        fit = fit_constants(profile, [FRONTEND], partial(timed.ratios, metric=FIRST_TOKEN), near, timed.noises[1])
    except Undetermined:
        raise
    except ValueError as error:
        raise Undetermined(FRONTEND, f"cannot be fitted: {error}") from None
    value_s = fit.values_s[FRONTEND]
    if value_s > LONGEST_FRONTEND_S:
        raise Undetermined(
            FRONTEND,
            f"cannot be determined: first tokens came {value_s:.1f} s later than the engine explains, because "
            "requests waited for a place in the batch. Measure with fewer requests in flight than max_num_seqs",
        )
    return fit


def _left_out(profile: Profile, seen: Seen, cell: ServedLoad, near: Sequence[Fitted]) -> dict[str, float]:
    """Errors at one level of constants, those of `near`, that are of the others; none where those cannot tell them."""
    others = seen._replace(loads=[other for other in seen.loads if other is not cell])
    known = {name: value_s for fit in near for name, value_s in fit.values_s.items()}
    try:
        fits = _fits(profile, others, list(known), known)
    except ValueError:
        return {}
    return seen.errors_pct(cell, fits[-1].profile)


def _token_s(cell: ServedLoad) -> float:
    """Time per output token, that of a loop that does nothing else where only tokens per second are known."""
    metric = _metric(cell.measured)
    value = cell.measured[metric]
    return cell.concurrency / value if metric == THROUGHPUT else value / 1e3


def _metric(measured: Mapping[str, float]) -> str:
    return next(metric for metric in FITTED if metric in measured)
