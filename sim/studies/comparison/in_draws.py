"""A comparison with all that it rests on: draws of costs and acceptance, the nearest measured cells, levels.

Not here: the runs (sim.compare.side_by_side), values of keys side by side (varied).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from sim.compare.pool import OnDone
from sim.compare.side_by_side import Comparison, compare
from sim.run.resolve import Resolved
from sim.studies.cost_draws import over_draws
from sim.studies.evidence import as_replayed, asked_of_comparison, evidence, levels


def compared(
    policies: Sequence[Resolved],
    *,
    form: str | None = None,
    draws: int | None = None,
    workers: int | None = None,
    on_done: OnDone = lambda stage, done, total: None,
    **how: Any,
) -> Comparison:
    """`policies` side by side, in that form of the simulator (None: the fastest) and in `draws` (None: ten where
    policies are ordered; 0: none), further arguments as `side_by_side.compare` has them. Raises ValueError for input
    that cannot run."""
    policies = [replace(one, form=form) for one in policies]
    result = compare(policies, workers=workers, on_done=on_done, **how)
    if draws != 0:
        result = over_draws(result, policies, draws, workers=workers, on_done=on_done)
    result = as_replayed(result, policies)
    near, distances = [], []
    for alike in _by_costs(policies):
        rows = [row for row, one in zip(result.policies, policies, strict=True) if one in alike]
        part = msgspec.structs.replace(result, policies=rows)
        near += evidence(alike[0].profile, asked_of_comparison(part, alike))
        distances += levels(part, alike)
    return msgspec.structs.replace(result, evidence=list(dict.fromkeys(near)), levels=distances)


def _by_costs(policies: Sequence[Resolved]) -> list[list[Resolved]]:
    """Those on one profile and engine, each, in order of appearance."""
    groups: dict[tuple[str, str], list[Resolved]] = {}
    for one in policies:
        groups.setdefault((one.profile.name, one.engine.name), []).append(one)
    return list(groups.values())
