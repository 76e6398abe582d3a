"""The ledger: what was claimed, where, and what a simulated figure makes of it.

A section's file (validation/claims/ledger/A.yaml ...) holds claimed figures, their sources, the sentences that explain
them, and the constants of the section with what they were fitted on. A claim is met where the simulated figure lies
within its stated tolerance of the claimed one; the verdict follows from that and from nothing else. Not here:
simulating (one module per section), printing (validation.claims.claims_command).
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import msgspec
import yaml

from sim.names import unknown

SECTIONS = ("A", "B", "C", "D", "E", "F", "G", "H")
FOLDER = Path(__file__).parent / "ledger"
Interval = tuple[float, float]
Detail = float | str


class Verdict(StrEnum):
    """What becomes of a claim."""

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


class Constant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number that a section is simulated with, beside its profile."""

    value: float
    unit: str = ""
    source: str
    """Fitted on which rows, stated where, or assumed."""


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One claimed figure."""

    id: str
    claimed: float | str
    """The figure, or the claim in words."""
    unit: str = ""
    low: float | None = None
    """Bounds of what was measured, where the claim is a range; else `claimed` is both."""
    high: float | None = None
    within_pct: float | None = None
    """Tolerance around the bounds, percent of each."""
    within: float | None = None
    """Tolerance around the bounds in units of the figure."""
    is_one_run: bool = False
    """It is what one run gave: met where it lies among 95 % of single simulated runs, too."""
    if_met: Verdict = Verdict.REPRODUCED
    if_not: Verdict = Verdict.REFUTED
    why: str
    """What explains the figure, with {names} of what was simulated."""
    why_not: str = ""
    """What is said where it was not met; empty = `why`."""
    source: str

    def bounds(self) -> Interval:
        """Bounds between which a simulated figure meets the claim. Raises ValueError for a claim in words."""
        low = self.claimed if self.low is None else self.low
        high = self.claimed if self.high is None else self.high
        if isinstance(low, str) or isinstance(high, str):
            raise ValueError(f"claim {self.id}: {self.claimed!r} is no figure; give it low and high")
        by_pct, by = (self.within_pct or 0.0) / 100.0, self.within or 0.0
        return low - abs(low) * by_pct - by, high + abs(high) * by_pct + by


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A claim and what became of it: one of `claims --json`'s `rows`."""

    id: str
    section: str
    claimed: float | str
    simulated: float | str | None
    interval: Interval | None
    """95 %: of single runs where one run was claimed, else of the mean; None where nothing is drawn."""
    verdict: Verdict
    why: str
    unit: str
    source: str
    details: dict[str, Detail]
    """What else was simulated, by name."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of the ledger.

    >>> section = read_section("A")
    >>> section.constant("acceptance_length")
    1.6
    >>> [section.row("A.rounds.pd", float(found), rounds=found, admitted=129).verdict.value for found in (471, 540)]
    ['reproduced', 'refuted']
    """

    section: str
    title: str
    source: str
    constants: dict[str, Constant] = {}
    claims: list[Claim]

    def constant(self, name: str) -> float:
        return self.constants[name].value

    def claimed(self, claim_id: str) -> float:
        """The figure of a claim that is none in words."""
        claimed = self.claim(claim_id).claimed
        assert not isinstance(claimed, str)
        return claimed

    def claim(self, claim_id: str) -> Claim:
        """Raises ValueError naming the nearest one."""
        for claim in self.claims:
            if claim.id == claim_id:
                return claim
        raise ValueError(unknown("claim", claim_id, [claim.id for claim in self.claims]))

    def row(
        self,
        claim_id: str,
        simulated: float | str | None,
        interval: Interval | None = None,
        *,
        is_met: bool | None = None,
        **details: Detail,
    ) -> Row:
        """The verdict on one claim. `is_met` decides where the claim is in words; else the figure's bounds do."""
        claim = self.claim(claim_id)
        if is_met is None:
            low, high = claim.bounds()
            is_met = isinstance(simulated, int | float) and low <= simulated <= high
            if claim.is_one_run and interval is not None:
                is_met = is_met or (interval[0] <= high and low <= interval[1])
        sentence = claim.why if is_met or not claim.why_not else claim.why_not
        verdict = claim.if_met if is_met else claim.if_not
        return self._row(claim, simulated, interval, verdict, sentence.format(simulated=simulated, **details), details)

    def untested(self, claim_id: str) -> Row:
        """A row whose conditions are missing, as the ledger says."""
        claim = self.claim(claim_id)
        return self._row(claim, None, None, Verdict.NOT_TESTABLE, claim.why, {})

    def _row(
        self,
        claim: Claim,
        simulated: float | str | None,
        interval: Interval | None,
        verdict: Verdict,
        why: str,
        details: dict[str, Detail],
    ) -> Row:
        return Row(
            id=claim.id,
            section=self.section,
            claimed=claim.claimed,
            simulated=simulated,
            interval=interval,
            verdict=verdict,
            why=why,
            unit=claim.unit,
            source=claim.source or self.source,
            details=details,
        )


def read_section(name: str) -> Section:
    """The section called `name`, "A" to "H". Raises ValueError for another, and for what is wrong in its file."""
    if name not in SECTIONS:
        raise ValueError(unknown("section", name, SECTIONS))
    path = FOLDER / f"{name}.yaml"
    try:
        found = msgspec.convert(yaml.safe_load(path.read_text()), Section)
    except msgspec.ValidationError as error:
        raise ValueError(f"{path.name}: {error}") from None
    return found
