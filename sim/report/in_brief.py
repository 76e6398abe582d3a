"""What an answer rests on in at most four lines: errors of the costs, overlap of streams, nearest evidence, first note.

All of it stands in the JSON of every answer. Not here: the answers, and all lines of them (tables, answers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sim.compare.side_by_side import Comparison
from sim.studies.evidence import shortened

PASSES = ("prefill", "decode", "draft", "verify")
"""Kinds of a profile's errors that are whole passes."""
HOW_TO = "--verbose has all that this rests on"


def comparison_in_brief(result: Comparison) -> list[str]:
    """Of a comparison."""
    lines = [costs_line(result.profile.errors)]
    given = result.scenario["devices"]["overlap"]
    if given is not None:
        lines.append(f"overlap of streams: {given}, as asked for")
    elif any(row.by_overlap for row in result.policies):
        lines.append("overlap of streams: assumed, not measured; an order that it can turn says so")
    return in_brief(lines, result.evidence, result.notes)


def in_brief(lines: Sequence[str], evidence: Sequence[str], notes: Sequence[str]) -> list[str]:
    """`lines`, the first of the others in short, and where all of them are."""
    found = list(lines)
    if evidence:
        found.append(shortened(evidence))
    return [*found, f"{notes[0]}; {HOW_TO}" if notes else HOW_TO]


def costs_line(errors: Mapping[str, float | None]) -> str:
    """Held-out errors of whole passes."""
    known = [f"{kind} {_percent(errors[kind])}" for kind in PASSES if kind in errors]
    return f"costs: held-out error {', '.join(known)}" if known else "costs: no error stated"


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f} %"
