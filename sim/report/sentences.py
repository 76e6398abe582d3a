"""What `tune`, `capacity` and `sweep` come to, a sentence each. Pure.

Not here: tables of them (answers), the sentence of `compare` (sim.compare.verdict).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sim.compare.side_by_side import Interval
from sim.report.store_figures import named
from sim.report.store_points import Points
from sim.report.tables import number
from sim.studies.attainment import Attainment, Fleet, Highest
from sim.studies.load_search import Limit
from sim.studies.tune import Tuning


def tuning_sentence(result: Tuning) -> str:
    """Which length to draft, what it gains and up to which load."""
    loads = _span([str(point.concurrency) for point in result.points])
    middle = result.break_even_concurrency
    if result.deployment.speculative_config is None:
        if middle == 0.0:
            return f"no speculation: no draft length pays at {loads} requests in flight"
        from_load, to_load = (_at_load(value, result) for value in result.break_even_interval)
        return (
            f"no speculation: over {loads} requests in flight every draft length loses more than it gains; drafting "
            f"pays up to {_at_load(middle, result)} in flight ({from_load} to {to_load} in 90 % of draws)"
        )
    if len(result.table) == 1:
        text = f"draft {result.table[0][2]} tokens at every load"
    else:
        text = "draft by batch size, " + ", ".join(f"{k} tokens at {start} to {end}" for start, end, k in result.table)
    known = [(p.speedup, p.interval) for p in result.points if p.speedup is not None and p.interval is not None]
    if known:
        low, high = min(interval[0] for _, interval in known), max(interval[1] for _, interval in known)
        gains = _span([f"{speedup:.2f}" for speedup, _ in sorted(known)])
        text += (
            f": {gains} times the {result.objective} of no speculation at {loads} requests in flight "
            f"({low:.2f} to {high:.2f} in 90 % of draws)"
        )
    if result.gain.is_sure and len(result.table) > 1:
        text += f", {100.0 * result.gain.mean:.1f} % more than {result.gain.over} at every load"
    if middle is None:
        return f"{text}; drafting pays at every load tried"
    from_load, to_load = (_at_load(value, result) for value in result.break_even_interval)
    return f"{text}; drafting pays up to {middle:.0f} in flight ({from_load} to {to_load})"


def _at_load(value: float | None, result: Tuning) -> str:
    return f"more than {result.points[-1].concurrency}" if value is None else f"{value:.0f}"


def _span(values: Sequence[str]) -> str:
    return values[0] if values[0] == values[-1] else f"{values[0]} to {values[-1]}"


def attainment_sentence(result: Attainment) -> str:
    """The policy that holds most load within the SLOs, and the fewest replicas for the target rate."""
    unit = "requests in flight" if result.of == "concurrency" else "requests/s"
    ranked = sorted(result.highest, key=_held, reverse=True)
    parts = [_holds(ranked[0], result, unit)]
    parts += [f"{found.policy} {_load(found)}" for found in ranked[1:]]
    enough = [fleet for fleet in result.fleets if fleet.replicas is not None]
    if enough:
        parts.append(_replicas(min(enough, key=_num_replicas), result))
    elif result.target_rate is not None:
        parts.append(f"no number of replicas holds {result.target_rate:g} requests/s within them")
    return "; ".join(parts)


def _holds(found: Highest, result: Attainment, unit: str) -> str:
    share = f"{100 * result.share:g} % of requests within the SLOs"
    if found.limit is Limit.NEVER:
        return f"{found.policy} holds no load with {share}: a request that is alone misses them"
    if found.limit is Limit.UNBOUNDED or found.load is None:
        return f"{found.policy} holds every load with {share}: none of them bounds the waiting"
    ranges = []
    if found.ci95 is not None:
        ranges.append(f"{_interval(found.ci95)} over runs")
    if found.draws_interval is not None:
        ranges.append(f"{_interval(found.draws_interval)} in 90 % of draws")
    text = f"{found.policy} holds {number(found.load)} {unit} with {share}"
    if ranges:
        text += f" ({', '.join(ranges)})"
    if found.limit is Limit.THROUGHPUT:
        return f"{text}: all that it can serve"
    missed = {name: value for name, value in found.attainment.items() if name != "all" and value is not None}
    first = min(missed, key=lambda name: missed[name]).removesuffix("_ms").upper() if missed else "an SLO"
    text += f"; {first} is missed first"
    if found.usd_per_million_tokens is not None:
        text += f"; ${number(found.usd_per_million_tokens)} per million output tokens there"
    return text


def _replicas(fleet: Fleet, result: Attainment) -> str:
    count = fleet.replicas
    text = (
        f"{result.target_rate:g} requests/s take {count} replica{'s' * (count != 1)} of {fleet.policy} ({fleet.routing}"
    )
    if fleet.confidence is not None:
        text += f", enough with {100 * fleet.confidence:.0f} % confidence"
    text += ")"
    if fleet.usd_per_million_tokens is not None:
        text += f", ${number(fleet.usd_per_million_tokens)} per million output tokens"
    return text


def _held(found: Highest) -> float:
    if found.limit is Limit.UNBOUNDED:
        return float("inf")
    return found.load or 0.0


def _load(found: Highest) -> str:
    return found.limit.value if found.load is None else number(found.load)


def _num_replicas(fleet: Fleet) -> int:
    assert fleet.replicas is not None
    return fleet.replicas


def _interval(interval: Interval) -> str:
    return f"{number(interval[0])} to {number(interval[1])}"


def sweep_sentence(points: Points) -> str:
    """Which setting has the lowest mean E2EL, under how many of the conditions, and how often that is clear."""
    settings = [key for key in points.keys if key not in points.conditions]
    ranks = points.ranked("mean_e2el_ms")
    bests = Counter(named(rank.best, settings) for rank in ranks if rank.best is not None)
    num_clear = sum(rank.change is not None and rank.change["is_clear"] for rank in ranks)
    if not bests:
        return "no setting keeps up with any load"
    if not settings:
        return f"one setting under {len(ranks)} loads: `lanesim report` compares nothing"
    many = len(ranks) > 1
    shown = "; ".join(f"{name}{f' at {count} of {len(ranks)} loads' * many}" for name, count in bests.most_common())
    clear = f"clear at {num_clear or 'none'}" if many else "clear" if num_clear else "not clear"
    return f"lowest mean E2EL: {shown} ({clear}); `lanesim report` has all"
