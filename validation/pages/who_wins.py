"""Policies with the lowest mean E2EL at equal caps, over load, acceptance and GPU, at each phi of the bracket.

    .venv/bin/python -m validation who_wins [--out docs/who-wins.md] [--num-prompts 1000] [--replications 4]

Loads are shares of the measured capacity of `continuous` with each acceptance. Lanes are shown on plain streams at
every phi of the bracket. A winner
is stated where its paired difference to each other policy has an interval below 0; otherwise the policies that do not
differ stand together. A setting has a winner where these are the same at every phi; elsewhere phi* says where the mean
difference of the first at either end changes its sign, straight lines between the three.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from operator import itemgetter
from pathlib import Path

import msgspec

from sim.compare.capacity import Saturation
from sim.compare.side_by_side import Comparison, break_even, compare
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.devices.contention import ASSUMED_PHI, BRACKET, PhiLevel, phi_at
from sim.metrics.stats import interval_95
from sim.metrics.summary import number
from sim.names import span
from sim.run.resolve import resolve, resolve_all
from sim.run.scenario import Scenario
from validation.tables import MISSING, grouped, page

PAIRS = ("a100-sxm/llama-2-7b+tinyllama-1.1b", "h100-sxm/llama-3.1-8b+llama-3.2-1b")
ACCEPTANCES = ("iid:0.5", "iid:0.7", "iid:0.9")
SHARES = (0.3, 0.6, 0.85)
POLICIES = ("autoregressive", "continuous", "baseline", "pd", "pdv", "unified")
LANES = ("pd", "pdv", "unified")
METRIC = "mean_e2el_ms"

Samples = Mapping[str, Sequence[float]]
"""Mean E2EL in ms of each replication, by policy; only of steady policies."""


def samples(result: Comparison) -> dict[str, list[float]]:
    steady = {row.policy for row in result.policies if row.load.is_steady}
    by_policy: dict[str, list[float]] = {}
    for run in result.runs:
        value = number(run, METRIC)
        if run["policy"] in steady and value is not None:
            by_policy.setdefault(str(run["policy"]), []).append(value)
    return by_policy


def winners(measured: Samples) -> list[str]:
    """Policies that no other is below on the same draws, lowest mean first."""
    order = sorted(measured, key=lambda policy: sum(measured[policy]))
    if not order:
        return []
    best = measured[order[0]]
    kept = [order[0]]
    for policy in order[1:]:
        interval = interval_95([value - least for value, least in zip(measured[policy], best, strict=True)])
        if interval is None or interval[0] <= 0.0:
            kept.append(policy)
    return kept


def setting(pair: str, acceptance: str, share: float, num_prompts: int, replications: int) -> tuple[Scenario, Profile]:
    """`share` of what `continuous` can serve there."""
    profile = load(pair)
    given = Scenario.of(
        profile=pair,
        policy=POLICIES,
        dataset_name="azure-conv",
        num_prompts=num_prompts,
        acceptance=acceptance,
        replications=replications,
    )
    rate, _ = Saturation(resolve(given, profile, "continuous"), given.seed).capacity
    workload = msgspec.structs.replace(given.workload, request_rate=round(share * rate, 2))
    return msgspec.structs.replace(given, workload=workload), profile


def row(scenario: Scenario, profile: Profile, workers: int) -> dict[str, Samples]:
    """Samples of every steady policy, by phi."""

    def of(policies: Sequence[str], level: PhiLevel) -> dict[str, list[float]]:
        devices = msgspec.structs.replace(scenario.devices, phi=phi_at(profile.overlap, level))
        changed = msgspec.structs.replace(scenario, policy=tuple(policies), devices=devices)
        return samples(compare(resolve_all(changed, profile), workers=workers))

    alone = of([policy for policy in POLICIES if policy not in LANES], PhiLevel.MIDDLE)
    return {level.value: {**alone, **of(LANES, level)} for level in BRACKET}


def cell(measured: Samples) -> str:
    """The winners with their mean, and by how much they lead."""
    names = winners(measured)
    if not names:
        return "none is stable"
    mean_s = {policy: sum(values) / len(values) / 1e3 for policy, values in measured.items()}
    others = [policy for policy in sorted(mean_s, key=mean_s.__getitem__) if policy not in names]
    lead = f"; {others[0]} {mean_s[others[0]] / mean_s[names[0]] - 1.0:+.0%}" if others else ""
    return f"{' = '.join(names)} {mean_s[names[0]]:.2f} s{lead}"


def winner(by_level: Sequence[Samples]) -> list[str]:
    """The policies that none is below at each phi, where they are the same at all; else none."""
    first, *others = (winners(measured) for measured in by_level)
    return first if all(set(names) == set(first) for names in others) else []


def phi_star(phis: Sequence[float], by_level: Sequence[Samples]) -> str:
    """Phi at which the policy with the lowest mean changes from that of the lowest phi to that of the highest."""
    ends = [winners(by_level[0])[:1], winners(by_level[-1])[:1]]
    if not all(ends) or ends[0] == ends[1]:
        return "–"
    (low,), (high,) = ends
    differences = [
        sum(measured[high]) - sum(measured[low]) if high in measured and low in measured else None
        for measured in by_level
    ]
    crossing = break_even(phis, differences)
    return f"{high} from {crossing:.2f}" if crossing is not None else "not checked"


def answer(won: Mapping[str, int], stars: Sequence[str]) -> str:
    """Summary of the table: settings by winner, and phi* of those without one.

    >>> answer({"autoregressive": 6}, ["pd from 0.05", "pd from 0.15", "not checked"])
    'In 6 of 9 settings the fastest policy is the same however well two streams overlap: autoregressive in 6. In the \
other 3 it depends on overlap: pd becomes the fastest in 2, once phi is 0.05 to 0.15; 1 was not checked.'
    """
    listed = ", ".join(f"{names} in {count}" for names, count in won.items()) or "none"
    num_won = sum(won.values())
    text = (
        f"In {num_won} of {num_won + len(stars)} settings the fastest policy is the same however well two streams "
        f"overlap: {listed}."
    )
    if not stars:
        return text
    starred = grouped([star.partition(" from ") for star in stars], itemgetter(0))
    by_policy = {policy: [phi for _, _, phi in cells] for policy, cells in starred.items()}
    parts = [
        f"{policy} becomes the fastest in {len(phis)}, once phi is {span([min(phis), max(phis)])}"
        if min(phis)
        else f"in {len(phis)} nobody takes over"
        if policy == MISSING
        else f"{len(phis)} was {policy}"
        for policy, phis in by_policy.items()
    ]
    return f"{text} In the other {len(stars)} it depends on overlap: {'; '.join(parts)}."


def main(
    out: Path = Path("docs/who-wins.md"), num_prompts: int = 1000, replications: int = 4, workers: int = 1
) -> None:
    import pandas as pd

    warnings.simplefilter("ignore")
    bracket = (ASSUMED_PHI.low, ASSUMED_PHI.value, ASSUMED_PHI.high)
    shown = {level.value: f"phi {phi:g}" for level, phi in zip(BRACKET, bracket, strict=True)}
    won: Counter[str] = Counter()
    stars: list[str] = []
    rows: list[dict[str, str]] = []
    for pair, acceptance, share in product(PAIRS, ACCEPTANCES, SHARES):
        scenario, profile = setting(pair, acceptance, share, num_prompts, replications)
        by_level = row(scenario, profile, workers)
        measured = [by_level[level.value] for level in BRACKET]
        names, star = winner(measured), phi_star(bracket, measured)
        if names:
            won[" = ".join(names)] += 1
        else:
            stars.append(star)
        where = {"GPU and pair": pair, "acceptance": acceptance, "load": f"{share:.0%}"}
        where["req/s"] = f"{scenario.workload.request_rate:g}"
        cells = {title: cell(by_level[name]) for name, title in shown.items()}
        rows.append({**where, **cells, "winner": " = ".join(names) or "depends on overlap", "phi*": star})
        print(*rows[-1].values(), sep=" | ", flush=True)
    page(
        out,
        "who_wins",
        answer=answer(won, stars),
        policies=", ".join(POLICIES),
        num_prompts=str(num_prompts),
        replications=str(replications),
        phis=", ".join(f"{phi:g}" for phi in bracket),
        table=pd.DataFrame(rows),
    )
