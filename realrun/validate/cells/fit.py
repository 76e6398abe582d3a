"""One host constant fitted on marked cells, so that the others can be judged with it.

A constant is found by a scalar search on the mean signed error of one metric. Not here: what a cell's error is
(realrun.validate.cells.compare).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from realrun.validate.cells.table import Cell
from sim.costs.profile import Profile
from sim.names import unknown

HOST_CONSTANTS = ("gap_s", "draft_pass_s", "draft_phase_s", "step_s", "row_s", "frontend_s")
"""Times of profile.host that can be fitted; sim.costs.profile says what each is."""
FIRST_TRY_S, LONGEST_S = 1e-4, 0.4
TOLERANCE_S = 1e-8

Mark = Mapping[str, Sequence[str]]
"""Column -> values; a cell is marked that has one of them in every column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A constant of profile.host, and the mean signed error that is left."""

    constant: str
    value_s: float
    error_pct: float
    is_at_bound: bool
    """True where 0 already is too slow: no constant helps."""


def parse_mark(text: str) -> Mark:
    """`label=gsm8k,concurrency=1,8`: conditions that all hold, each a column with its values."""
    conditions: dict[str, list[str]] = {}
    column = ""
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if equals:
            column = name
            if column in conditions:
                raise ValueError(f"--fit {text!r}: column {column!r} twice; repeat --fit for further cells")
            conditions[column] = []
        else:
            value = name
        if not column or not value:
            raise ValueError(f"--fit {text!r}: want COLUMN=VALUE[,VALUE][,COLUMN=VALUE...], such as concurrency=1,8")
        conditions[column].append(value)
    return conditions


def marked(cells: Sequence[Cell], marks: Sequence[Mark]) -> list[bool]:
    """[cells] whether any mark holds. Raises ValueError for a mark that names no column, or holds nowhere."""
    for mark in marks:
        for column in mark:
            if column not in cells[0].texts:
                raise ValueError(f"--fit: {unknown('column', column, cells[0].texts)}")
        if not any(_holds(mark, cell) for cell in cells):
            wanted = ",".join(f"{column}={','.join(values)}" for column, values in mark.items())
            raise ValueError(f"--fit {wanted!r}: no cell of the table is like that")
    return [any(_holds(mark, cell) for mark in marks) for cell in cells]


def _holds(mark: Mark, cell: Cell) -> bool:
    return all(any(_same(value, cell.texts[column]) for value in values) for column, values in mark.items())


def _same(a: str, b: str) -> bool:
    """8 is 8.0."""
    try:
        return float(a) == float(b)
    except ValueError:
        return a == b


def with_constant(profile: Profile, constant: str, value_s: float, source: str | None = None) -> Profile:
    """`profile` with another value of a host constant; `source` is added to what the profile says of its own."""
    if constant not in HOST_CONSTANTS:
        raise ValueError(unknown("host constant", constant, HOST_CONSTANTS))
    changes: dict[str, float | str] = {constant: value_s}
    if source is not None:
        changes["source"] = f"{profile.host.source}; {source}"
    return msgspec.structs.replace(profile, host=msgspec.structs.replace(profile.host, **changes))


def fit_constant(profile: Profile, constant: str, slowness_pct: Callable[[Profile], float]) -> tuple[Profile, Fitted]:
    """The profile with the constant, 0 or above, for which `slowness_pct` is 0.

    That is a mean signed error, positive where the simulation is too slow; it rises with the constant. The profile's
    own value of the constant is dropped. Raises ValueError where no constant up to LONGEST_S is enough.
    """
    try:
        from scipy.optimize import brentq
    except ImportError:
        raise ValueError("fitting needs the analysis extra: pip install 'lanesim[analysis]'") from None

    def slowness(value_s: float) -> float:
        return slowness_pct(with_constant(profile, constant, value_s))

    at_zero = slowness(0.0)
    value_s, is_at_bound = 0.0, at_zero >= 0.0
    if not is_at_bound:
        low_s, high_s = 0.0, FIRST_TRY_S
        while slowness(high_s) < 0.0:
            low_s, high_s = high_s, 2.0 * high_s
            if high_s > LONGEST_S:
                raise ValueError(
                    f"--fit: with {constant} = {low_s * 1e3:.0f} ms the simulation is still too fast; does this "
                    "constant act on what is marked?"
                )
        value_s = float(brentq(slowness, low_s, high_s, xtol=TOLERANCE_S))
    left_pct = slowness(value_s)
    fitted = Fitted(constant=constant, value_s=value_s, error_pct=left_pct, is_at_bound=is_at_bound)
    return with_constant(profile, constant, value_s), fitted
