"""Constants of the engine from levels of load that a server was seen at, and how well they tell levels left out.

Of time per output token where that is known, else of tokens per second. Only constants that the levels can tell are
fitted: step and row times need several numbers of requests in flight, time per draft pass needs drafts beside none.
Not here: what the server said (calibrate.production.served), least squares (realrun.validate.cells.fit).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from calibrate.production.served import Accepted, Served, cell_of, pooled
from realrun.validate.cells.compare import Setup, simulate_cell
from realrun.validate.cells.fit import Fitted, check_constant, fit_constants
from realrun.validate.cells.table import MEASURED, Cell
from sim.costs.engine import engine_of, with_engine
from sim.costs.profile import Profile

FAR_APART = 2.0
"""Requests in flight of two levels that tell a constant per row from one per step."""
FITTED = ("tpot_ms", "output_throughput")
"""What is fitted on: the first that a level has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A level of load: what was seen, and what the fitted profile gives there."""

    served: Served
    errors_pct: dict[str, float]
    """By metric: simulated over measured, less 1."""
    predicted_pct: float | None
    """The error of the fitted metric where the constants are of all other levels; None where they cannot be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Production:
    """What a server told."""

    fit: Fitted
    levels: list[Level]
    accepted: Accepted | None


def fit_served(
    profile: Profile, served: Sequence[Served], setup: Setup, constants: Sequence[str] | None = None
) -> Production:
    """The profile with the engine's constants of the server, and what is left of each level's error.

    `constants` are by default those that the levels can tell. Raises ValueError.
    """
    if not served:
        raise ValueError("nothing was seen of the server")
    profile = with_engine(profile, engine_of(setup.engine.get("name"), profile))
    names = tuple(constants or tellable(served))
    for name in names:
        check_constant(name)
    cells = [cell_of(each, line) for line, each in enumerate(served, start=1)]
    fit = _fit(profile, cells, setup, names)
    source = f"{fit.profile.host.source}; {fit} fitted by lanesim on {len(cells)} levels of a running server"
    fitted = msgspec.structs.replace(fit.profile, host=msgspec.structs.replace(fit.profile.host, source=source))
    levels = [
        Level(
            served=each,
            errors_pct=_errors_pct(fitted, cell, setup),
            predicted_pct=_left_out(profile, cells, place, setup, names),
        )
        for place, (each, cell) in enumerate(zip(served, cells, strict=True))
    ]
    accepted = pooled([each.accepted for each in served if each.accepted is not None])
    return Production(
        fit=replace(fit, profile=fitted),
        levels=levels,
        accepted=accepted,
    )


def tellable(served: Sequence[Served]) -> list[str]:
    """The constants that levels of these loads can tell: of a step always, of a row where loads differ, of a draft pass
    where some drafted and others did not."""
    loads = [each.concurrency for each in served]
    names = ["step_s"]
    if max(loads) >= FAR_APART * min(loads):
        names.append("row_s")
    if len({each.accepted is None for each in served}) > 1 and len(served) > len(names):
        names.append("draft_pass_s")
    return names


def _fit(profile: Profile, cells: Sequence[Cell], setup: Setup, names: Sequence[str]) -> Fitted:
    def ratios(candidate: Profile) -> list[float]:
        found = []
        for cell in cells:
            metric = _metric(cell)
            ratio = _simulated(cell, candidate, setup)[MEASURED[metric]] / cell.measured[metric]
            found.append(ratio if metric == "tpot_ms" else 1.0 / ratio)
        return found

    try:
        return fit_constants(profile, names, ratios)
    except ValueError as error:
        sources = ", ".join(dict.fromkeys(cell.label for cell in cells))
        raise ValueError(str(error) if sources in str(error) else f"{sources}: {error}") from None


def predicted(found: Production, held_back: Served, setup: Setup) -> dict[str, float]:
    """Errors, percent by metric, at a level that no constant is of."""
    return _errors_pct(found.fit.profile, cell_of(held_back, 1), setup)


def _left_out(profile: Profile, cells: Sequence[Cell], place: int, setup: Setup, names: Sequence[str]) -> float | None:
    """Error at one level of constants that are of the others."""
    others = [cell for other, cell in enumerate(cells) if other != place]
    try:
        fit = _fit(profile, others, setup, names)
    except ValueError:
        return None
    metric = _metric(cells[place])
    return _errors_pct(fit.profile, cells[place], setup)[metric]


def _errors_pct(profile: Profile, cell: Cell, setup: Setup) -> dict[str, float]:
    found = _simulated(cell, profile, setup)
    return {metric: 100.0 * (found[MEASURED[metric]] / real - 1.0) for metric, real in cell.measured.items()}


def _simulated(cell: Cell, profile: Profile, setup: Setup) -> dict[str, Any]:
    """As `simulate_cell`; what cannot be is told of the level's source."""
    try:
        return simulate_cell(cell, profile, setup)
    except ValueError as error:
        raise ValueError(f"{cell.label}: {error}") from None


def _metric(cell: Cell) -> str:
    return next(metric for metric in FITTED if metric in cell.measured)
