"""The ledger: what was claimed, where, what is simulated from its conditions, and what becomes of it.

claims.yaml holds, by section, the scenario that its runs share, and a claim per figure: the runs, the formulas of the
simulated figure, the tolerance and the sentences that explain it. `each` makes several claims of one entry: the rows of
its tables, every row of one with every row of the next; `$name` is a row's value. A claim is met where the simulated
figure lies within its tolerance of the claimed one, or where its formula `met` says so. Not here: simulating
(validation.claims.runs), formulas (validation.claims.formulas), printing (validation.claims.claims_command).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cache
from itertools import product
from pathlib import Path
from string import Template
from typing import Any, Literal, NamedTuple

import msgspec
import yaml

from sim.names import unknown

LEDGER = Path(__file__).with_name("claims.yaml")
Interval = tuple[float, float]
Detail = float | str
Spec = dict[str, Any]
"""A run: a scenario's keys, its policy and profile among them; `draws`, the most that it takes."""


class ClaimVerdict(StrEnum):
    """Outcome of a claim."""

    REPRODUCED = "reproduced"
    """The simulator gets it from the stated conditions."""
    FITTED = "fitted"
    """It gets it because a constant that it is simulated with was fitted on this very figure."""
    EXPLAINED = "explained"
    """It gets it, and shows what caused it."""
    REFUTED = "refuted"
    """The stated conditions give something else."""
    NOT_TESTABLE = "not testable"
    """Conditions are missing; the row says which."""


class Finding(NamedTuple):
    simulated: float | str | None
    interval: Interval | None = None
    is_met: bool | None = None
    """None: the claim's bounds decide."""
    details: Mapping[str, Detail] = {}
    """Further figures by the names that the claim's sentences have for them."""


class ClaimRow(msgspec.Struct, frozen=True, kw_only=True):
    """A claim and what became of it: one of `claims --json`'s `rows`."""

    id: str
    section: str
    claimed: float | str
    simulated: float | str | None
    interval: Interval | None
    """95 %: of single runs where one run was claimed, else of the mean; None where nothing is drawn."""
    verdict: ClaimVerdict
    why: str
    unit: str
    source: str
    details: Mapping[str, Detail]
    """Other simulated figures, by name."""


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    claimed: float | str
    """The figure, or the claim in words."""
    unit: str = ""
    low: float | None = None
    """Bounds of what was measured, where the claim is a range; else `claimed` is both."""
    high: float | None = None
    within_pct: float = 0.0
    """Tolerance around the bounds, percent of each."""
    within: float = 0.0
    """The same in the claim's unit."""
    is_one_run: bool = False
    """True where the figure is of one run: then it is also met where the interval of single runs reaches it."""
    if_met: ClaimVerdict = ClaimVerdict.REPRODUCED
    if_not: ClaimVerdict = ClaimVerdict.REFUTED
    runs: list[Spec] = []
    """Called a, b, c and so on by formulas, and `runs` together; `a.mean_tpot_ms` has a figure per draw."""
    of: str = ""
    """Formula of figures per draw, whose mean is the simulated one. Without it and `figure`, conditions are missing."""
    figure: str = ""
    """Formula of the simulated figure itself."""
    interval: str = "mean"
    """95 % of the mean of `of`, of its single `runs`, `none`, or a formula of both ends."""
    form: Literal["ratio", "more", "less", "seconds"] = "ratio"
    """How the mean of `of` is stated: as it is, percent more or less than 1, milliseconds as seconds."""
    bracket: bool = False
    """Evaluates `of` at every phi; the middle one counts."""
    met: str = ""
    """Formula that decides where bounds do not."""
    let: dict[str, str] = {}
    """Formulas by name; `why` has those that are figures or words."""
    why: str
    """The explaining sentence, with `{simulated}` and details in it."""
    why_not: str = ""
    """The same where the claim is not met; empty: `why`."""
    source: str

    def bounds(self) -> Interval:
        """Lowest and highest figure that meets the claim. Raises ValueError for a claim in words without bounds."""
        low, high = (self.claimed if bound is None else bound for bound in (self.low, self.high))
        if isinstance(low, str) or isinstance(high, str):
            raise ValueError(f"claim {self.id}: {self.claimed!r} is no figure. Give it low and high")
        by_pct = self.within_pct / 100.0
        return low - abs(low) * by_pct - self.within, high + abs(high) * by_pct + self.within

    def row(self, measured: Finding | None) -> ClaimRow:
        """The verdict; None where its conditions are missing."""
        simulated, interval, is_met, details = measured or Finding(None)
        verdict, why = ClaimVerdict.NOT_TESTABLE, self.why
        if measured is not None:
            if is_met is None:
                low, high = self.bounds()
                is_met = isinstance(simulated, int | float) and low <= simulated <= high
                if self.is_one_run and interval is not None:
                    is_met = is_met or (interval[0] <= high and low <= interval[1])
            verdict = self.if_met if is_met else self.if_not
            why = (self.why if is_met or not self.why_not else self.why_not).format(simulated=simulated, **details)
        return ClaimRow(
            id=self.id,
            section=self.id[0],
            claimed=self.claimed,
            simulated=simulated,
            interval=interval,
            verdict=verdict,
            why=why,
            unit=self.unit,
            source=self.source,
            details=details,
        )


class ClaimSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    title: str
    source: str
    parts: list[str] = []
    """Beginnings of ids that are judged in separate processes, in a long section."""
    claims: list[Claim]


@cache
def sections() -> dict[str, ClaimSection]:
    """Sections by letter. Raises ValueError for what is wrong in the file."""
    return {name: _section(raw) for name, raw in yaml.safe_load(LEDGER.read_text()).items()}


def section(name: str) -> ClaimSection:
    if name not in sections():
        raise ValueError(unknown("section", name, list(sections())))
    return sections()[name]


def claim(claim_id: str) -> Claim:
    """Raises ValueError naming the nearest one."""
    claims = {each.id: each for each in section(claim_id[:1]).claims}
    if claim_id not in claims:
        raise ValueError(unknown("claim", claim_id, list(claims)))
    return claims[claim_id]


def _section(raw: dict[str, Any]) -> ClaimSection:
    shared, runs = raw.pop("scenario", {}), raw.pop("runs", {})
    claims = []
    for entry in raw.pop("claims"):
        for one in _expanded({"source": raw["source"], **entry}):
            one["runs"] = [
                shared | runs.get(run.get("like"), {}) | {key: value for key, value in run.items() if key != "like"}
                for several in one.get("runs", [])
                for run in _each_run(several)
            ]
            claims.append(one)
    try:
        return msgspec.convert({**raw, "claims": claims}, ClaimSection)
    except msgspec.ValidationError as error:
        raise ValueError(f"{LEDGER.name}: {raw['title']}: {error}") from None


def _expanded(entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
    tables = entry.pop("each", [])
    tables = tables if isinstance(tables, list) else [tables]
    by_table = [[dict(zip(each, row, strict=True)) for row in zip(*each.values(), strict=True)] for each in tables]
    for rows in product(*by_table):
        names = {name: value for row in rows for name, value in row.items()}
        fields = {name: value for name, value in names.items() if name in Claim.__struct_fields__}
        yield _filled(entry | fields, names)


def _each_run(several: Spec) -> Iterator[Spec]:
    """A run per value of a list, the first key's outermost."""
    lists = [value if isinstance(value, list) else [value] for value in several.values()]
    return (dict(zip(several, values, strict=True)) for values in product(*lists))


def _filled(value: Any, names: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, names) for each in value]
    if not isinstance(value, str):
        return value
    is_name = value.startswith("$") and value[1:] in names
    return names[value[1:]] if is_name else Template(value).safe_substitute(names)
