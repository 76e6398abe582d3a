"""Values of a scenario's keys side by side: `--vary KEY=A,B`, on the same draws, with the line that starts the fastest.

Not here: keys and values (variants), one comparison (in_draws), tables (sim.report.comparisons).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from sim.compare.side_by_side import Comparison
from sim.compare.verdict import METRIC, OPEN
from sim.files.json_values import Json
from sim.run.resolve import Resolved
from sim.studies.comparison.variants import Keys, Variants, plain_value, spelt
from sim.studies.serve_commands import VLLM_POLICIES, deployment

VARIED_SCHEMA = 1
MAX_STARTS = 2


class UnderLoad(msgspec.Struct, frozen=True, kw_only=True):
    keys: Keys
    """Values of the keys that say what is served; empty where none was varied."""
    comparison: Comparison

    @property
    def name(self) -> str:
        return spelt(self.keys)


class Varied(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `compare --vary --json`."""

    schema: int = VARIED_SCHEMA
    grid: dict[str, list[Json]]
    loads: list[UnderLoad]
    verdict: str
    start: dict[str, str]
    """Lines that start the settings of lowest mean E2EL, by setting; without those that no server runs."""
    notes: list[str]

    @property
    def plain(self) -> dict[str, Json]:
        values: dict[str, Json] = msgspec.to_builtins(self)
        return values


def varied(variants: Variants, compare: Callable[[Sequence[Resolved]], Comparison], **repositories: Any) -> Varied:
    """The variants compared, load by load; `repositories` are those of serve_commands.deployment."""
    loads = [
        UnderLoad(keys={key: plain_value(value) for key, value in keys.items()}, comparison=compare(settings))
        for keys, settings in variants.by_load
    ]
    bests = [_best_of(each.comparison) for each in loads]
    start: dict[str, str] = {}
    for best, (_, settings) in zip(bests, variants.by_load, strict=True):
        resolved = next((one for one in settings if one.label == best), None)
        if resolved is None or resolved.policy.name not in VLLM_POLICIES:
            continue
        if resolved.label in start or len(start) == MAX_STARTS:
            continue
        table = [[1, resolved.limits.max_num_seqs, resolved.lengths.given]]
        lines = deployment(resolved.scenario, resolved.profile, table, {}, **repositories)
        if lines.start:
            start[resolved.label] = lines.start
            variants.notes |= dict.fromkeys(lines.notes)
    assumed = [note for _, settings in variants.by_load for one in settings for note in one.assumed]
    notes = list(dict.fromkeys([*assumed, *variants.notes]))
    grid = {key: [plain_value(value) for value in values] for key, values in variants.grid.items()}
    return Varied(grid=grid, loads=loads, verdict=_verdict(loads, bests), start=start, notes=notes)


def _best_of(comparison: Comparison) -> str | None:
    """The setting of lowest mean E2EL among those with steady means."""
    steady = {row.policy: row.mean[METRIC] for row in comparison.policies if row.load.is_steady}
    known = {label: mean for label, mean in steady.items() if mean is not None}
    return min(known, key=lambda label: known[label], default=None)


def _verdict(loads: Sequence[UnderLoad], bests: Sequence[str | None]) -> str:
    if len(loads) == 1:
        return loads[0].comparison.verdict
    if len(loads[0].comparison.policies) == 1:
        return "\n".join(f"{each.name}: {each.comparison.verdict}" for each in loads)
    if not any(bests):
        return f"No setting has a steady mean at any of {len(loads)} loads."
    words = Counter(_word(each.comparison, best) for each, best in zip(loads, bests, strict=True))
    parts = [f"{word} at {count} of {len(loads)} loads" for word, count in words.most_common()]
    return f"Lowest latency: {', '.join(parts)}."


def _word(comparison: Comparison, best: str | None) -> str:
    """The fastest setting, or the verdict where there is none."""
    word = next((row.verdict for row in comparison.policies if row.policy == best), None)
    return word.value if word in OPEN else best or "none with a steady mean"
