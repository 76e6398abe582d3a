"""A store's rows summed up: means with intervals over the replications of a point, and differences taken draw by draw.

Frames of sim.report.store_frame in, frames out; imports pandas inside functions. Not here: pictures and pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.compare.side_by_side import MIN_FOR_P99
from sim.compare.verdict import sign_of
from sim.devices.contention import BRACKET, PhiLevel
from sim.metrics.stats import interval_95
from sim.report.store_frame import store_frame
from sim.studies.sweeps.grid import CONDITIONS
from sim.studies.sweeps.store import Store
from sim.studies.sweeps.store_rows import if_overlap

if TYPE_CHECKING:
    import pandas as pd

THROUGHOUT = "is_steady_throughout"
"""Column of rows: the load is steady at every phi of the bracket; older stores have none."""
EFFECTIVE = "effective_requests"
"""Column of rows: requests that count as independent; older stores have none."""
RATE, CONCURRENCY = "workload.request_rate", "workload.max_concurrency"
K, ACCEPTANCE = "speculation.num_speculative_tokens", "speculation.acceptance"
LOADS = {RATE: "requests/s", CONCURRENCY: "requests in flight, at most"}
"""Keys that say how heavy the load is, and how an axis calls them."""
WORDS = {
    K: "draft length (tokens)",
    ACCEPTANCE: "acceptance",
    "profile": "profile",
    "policy": "policy",
    "engine.name": "engine",
}


def read_points(path: Path) -> StorePoints:
    """The points of a store. Raises ValueError where there is none, or none that ran."""
    points = StorePoints(frame=store_frame(path), path=path)
    if len(points.frame) == 0 or points.rows.empty:
        raise ValueError(f"store {str(path)!r} has no point that ran. See the column `error` of lanesim.load")
    return points


Draw = dict[str, Any]
"""A row, as a mapping."""
Setting = str | float | None
"""Value of a key of a scenario."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """The best setting under one condition, and the next one."""

    condition: Draw
    num_settings: int
    num_steady: int
    """Settings that keep up with the load."""
    best: Draw | None = None
    mean: float = float("nan")
    interval: tuple[float, float] | None = None
    second: Draw | None = None
    change: Draw | None = None
    """Change from the best to the second: `change_pct`, `low`, `high`, `is_clear`, `is_open`."""


@dataclass(frozen=True, kw_only=True)
class StorePoints:
    """The rows of a store that ran, and the keys that tell them apart."""

    frame: pd.DataFrame
    """The frame that `lanesim.load` gives; rows that failed are left out of everything but `failed`."""
    path: Path | None = None
    """The store's folder."""

    @cached_property
    def failed(self) -> pd.DataFrame:
        return self.frame[self.frame["error"].notna()]

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The rows that ran."""
        return self.frame[self.frame["error"].isna()]

    @cached_property
    def keys(self) -> list[str]:
        """Keys that vary among the rows that ran, the policy among them, the load first; none that follows from others,
        as lengths do from a profile that has them, or the second key of a zipped pair from the first."""
        names = [name for name in self.rows.columns if "." in name or name in ("profile", "policy")]
        varied = [name for name in names if _is_key(name) and self.rows[name].nunique(dropna=False) > 1]
        kept: list[str] = []
        num_combinations = 1
        for name in sorted(varied, key=lambda name: (name not in LOADS, name != "policy", name not in WORDS)):
            count = len(self.rows[[*kept, name]].drop_duplicates())
            if count > num_combinations:
                kept, num_combinations = [*kept, name], count
        return kept

    @property
    def load(self) -> str | None:
        """The key of the load that varies, if one does."""
        return next((key for key in LOADS if key in self.keys), None)

    def values(self, key: str) -> list[Any]:
        """Values of a key, sorted; policies and profiles as they come."""
        distinct = list(dict.fromkeys(self.rows[key].tolist()))
        return sorted(distinct) if self.rows[key].dtype.kind in "ifb" else distinct

    def scenario(self, key: str) -> dict[str, str]:
        """The resolved scenario of a row, its values as JSON by their dotted keys."""
        assert self.path is not None
        return Store(self.path).scenario(key)

    def with_rows(self, rows: pd.DataFrame) -> StorePoints:
        """The same store with other rows."""
        return replace(self, frame=rows)

    def where(self, key: str, value: Setting) -> StorePoints:
        """Only the rows with this value of a key."""
        column = self.frame[key]
        return self.with_rows(self.frame[column.isna() if value is None or value != value else column == value])

    def means(self, metrics: Sequence[str]) -> pd.DataFrame:
        """One row per point: its keys, for each metric `M`, `M.low` and `M.high` of the 95 % interval of the mean,
        which only steady loads with two or more replications have, and of a 99th percentile only those of as many
        requests as `lanesim compare` wants for it; `is_overloaded`, `is_steady`, `replications`."""
        import pandas as pd

        # A panel's rows may all have one load, say, and its picture asks for it all the same.
        keys = [key for key in dict.fromkeys([*self.keys, *WORDS, *LOADS]) if key in self.rows]
        rows = []
        for _, of_point in self.rows.groupby("scenario_hash", sort=False):
            row: Draw = {key: of_point[key].iloc[0] for key in [*keys, "scenario_hash"]}
            row["is_steady"] = bool(of_point["is_steady"].all())
            row["is_overloaded"] = bool(of_point["unstable"].any())
            row["replications"] = len(of_point)
            num_effective = of_point[EFFECTIVE].sum() if EFFECTIVE in of_point else 0.0
            for metric in metrics:
                known = of_point[metric].dropna().astype(float).tolist() if metric in of_point else []
                mean = sum(known) / len(known) if known else float("nan")
                is_told = row["is_steady"] and len(known) == len(of_point)
                is_tail = metric.startswith("p99") and num_effective < MIN_FOR_P99
                interval = interval_95(known) if is_told and not is_tail else None
                row[metric] = mean
                row[f"{metric}.low"], row[f"{metric}.high"] = interval or (mean, mean)
            rows.append(row)
        frame = pd.DataFrame(rows)
        order = [key for key in self.keys if key in frame]
        return frame.sort_values(order, kind="stable").reset_index(drop=True) if order else frame

    @cached_property
    def conditions(self) -> list[str]:
        """Keys that vary and that nobody chooses: load, lengths, acceptance. All others are settings."""
        return [key for key in self.keys if key in LOADS or key.startswith(CONDITIONS)]

    def ranked(self, metric: str) -> list[Rank]:
        """The setting under each condition with the lowest mean of `metric` among those with steady means, and how
        clearly."""
        table = self.means([metric])
        settings = [key for key in self.keys if key not in self.conditions]
        groups = table.groupby(self.conditions, sort=True, dropna=False) if self.conditions else [((), table)]
        return [
            self._rank(dict(zip(self.conditions, condition, strict=True)), group, settings, metric)
            for condition, group in groups
        ]

    def _rank(self, condition: Draw, table: pd.DataFrame, settings: Sequence[str], metric: str) -> Rank:
        steady = table[table["is_steady"] & table[metric].notna()].sort_values(metric, kind="stable")
        rank = Rank(condition=condition, num_settings=len(table), num_steady=len(steady))
        if steady.empty:
            return rank
        best = steady.iloc[0]
        rank = replace(
            rank,
            best={key: best[key] for key in settings},
            mean=float(best[metric]),
            interval=(float(best[f"{metric}.low"]), float(best[f"{metric}.high"])),
        )
        # Settings that are the same run, as draft lengths are to a policy that drafts nothing, tell nothing apart.
        others = steady[steady[metric] != best[metric]]
        if others.empty:
            return rank
        second = others.iloc[0]
        ours, theirs = (
            _by_seed(self.rows[self.rows["scenario_hash"] == row["scenario_hash"]]) for row in (best, second)
        )
        both = [seed for seed in ours if seed in theirs]
        if both:
            change = _change([ours[seed] for seed in both], [theirs[seed] for seed in both], metric)
            rank = replace(rank, second={key: second[key] for key in settings}, change=change)
        return rank

    def paired(self, metric: str) -> pd.DataFrame:
        """Differences of `metric` between policies, draw by draw, all else equal; a row per rest of the keys.

        `change_pct` against the first policy, with `low` and `high`; `is_clear` where the
        interval leaves out zero, `is_open` where the ends of phi's bracket disagree about that or have no steady means,
        `is_overloaded` where none exist.
        """
        import pandas as pd

        first, *others = self.values("policy")
        rest = [name for name in self.keys if name != "policy"]
        needed = {*rest, "policy", metric, "seed", "is_steady", THROUGHOUT, *(if_overlap(metric, at) for at in BRACKET)}
        table, rows = self.rows[[name for name in self.rows if name in needed]], []
        for _, alike in table.groupby(rest, sort=False, dropna=False) if rest else [((), table)]:
            draws = {policy: _by_seed(of) for policy, of in alike.groupby("policy", sort=False)}
            for policy in others:
                both = [seed for seed in draws.get(first, {}) if seed in draws.get(policy, {})]
                if both:
                    ours, theirs = ([draws[which][seed] for seed in both] for which in (first, policy))
                    change = _change(ours, theirs, metric)
                    rows.append({name: ours[0][name] for name in rest} | {"policy": policy} | change)
        return pd.DataFrame(rows)


def _by_seed(rows: pd.DataFrame) -> dict[int, Draw]:
    return {draw["seed"]: draw for draw in rows.to_dict("records")}


def _change(base: Sequence[Draw], theirs: Sequence[Draw], metric: str) -> Draw:
    """Change of `metric`, percent of the first's mean, with what each value of phi says of its sign."""
    orders = set()
    change: Draw = {}
    for level in BRACKET:
        ours, others = ([_under(draw, metric, level) for draw in draws] for draws in (base, theirs))
        mean = sum(ours) / len(ours)
        changes = [100.0 * (other - our) / mean for our, other in zip(ours, others, strict=True)]
        interval = interval_95(changes)
        order = None if interval is None else sign_of(interval)
        orders.add(order)
        if level is PhiLevel.MIDDLE:
            average = sum(changes) / len(changes)
            low, high = interval or (average, average)
            change = {"change_pct": average, "low": low, "high": high, "is_clear": order is not None}
    is_steady = all(draw["is_steady"] for draw in (*base, *theirs))
    is_steady_throughout = all(draw.get(THROUGHOUT, True) for draw in (*base, *theirs))
    is_open = len(orders) > 1 or (is_steady and not is_steady_throughout)
    return change | {"is_open": is_open, "is_overloaded": not is_steady}


def _under(draw: Draw, metric: str, level: PhiLevel) -> float:
    """A metric at a value of phi; as reported where it makes no difference."""
    reported = float(draw[metric])
    other = draw.get(if_overlap(metric, level))
    return reported if level is PhiLevel.MIDDLE or other is None or other != other else float(other)


def _is_key(name: str) -> bool:
    """A key of the scenario, rather than a part of a metric."""
    block = name.partition(".")[0]
    return name in ("profile", "policy") or block in (
        "policy_options", "engine", "workload", "speculation", "devices", "window", "goodput",
    )  # fmt: skip


def spoken(key: str) -> str:
    """A key's name on an axis."""
    return LOADS.get(key) or WORDS.get(key) or key.rpartition(".")[2].replace("_", " ")
