"""A store's rows summed up: means with intervals over the replications of a point, and differences taken draw by draw.

Frames of sim.report.store_frame in, frames out; imports pandas inside functions. Not here: pictures and pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.devices.contention import BRACKET, Regime
from sim.metrics.stats import interval_95
from sim.report.store_frame import store_frame
from sim.studies.store import Store

if TYPE_CHECKING:
    import pandas as pd

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


def read_points(path: Path) -> Points:
    """The points of a store. Raises ValueError where there is none, or none that ran."""
    points = Points(frame=store_frame(path), path=path)
    if len(points.frame) == 0 or points.rows.empty:
        raise ValueError(f"store {str(path)!r} has no point that ran; see the column `error` of lanesim.load")
    return points


@dataclass(frozen=True, kw_only=True)
class Points:
    """The rows of a store that ran, and the keys that tell them apart."""

    frame: Any
    """As `lanesim.load` gives it; rows that failed are left out of everything but `failed`."""
    path: Path | None = None
    """Of the store."""

    @cached_property
    def failed(self) -> pd.DataFrame:
        return self.frame[self.frame["error"].notna()]

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The rows that ran."""
        return self.frame[self.frame["error"].isna()]

    @cached_property
    def keys(self) -> list[str]:
        """Keys that vary among the rows that ran, the policy among them, the load first."""
        names = [name for name in self.rows.columns if "." in name or name in ("profile", "policy")]
        scenario = [name for name in names if _is_key(name) and self.rows[name].nunique(dropna=False) > 1]
        return sorted(scenario, key=lambda name: name not in LOADS)

    @property
    def load(self) -> str | None:
        """The key of the load that varies, if one does."""
        return next((key for key in LOADS if key in self.keys), None)

    def values(self, key: str) -> list[Any]:
        """What a key takes on, sorted; policies and profiles as they come."""
        found = list(dict.fromkeys(self.rows[key].tolist()))
        return sorted(found) if self.rows[key].dtype.kind in "ifb" else found

    def scenario(self, key: str) -> dict[str, str]:
        """The resolved scenario of a row, its values as JSON by their dotted keys."""
        assert self.path is not None
        return Store(self.path).scenario(key)

    def where(self, fixed: Mapping[str, Any]) -> Points:
        """Only the rows with these values. Raises ValueError naming a value that is not there."""
        frame = self.frame
        for key, value in fixed.items():
            if key not in frame:
                raise ValueError(f"{key}: not a key that this store varies ({', '.join(self.keys) or 'none does'})")
            matching = frame[frame[key] == value]
            if matching.empty:
                values = ", ".join(map(str, dict.fromkeys(frame[key].tolist())))
                raise ValueError(f"{key}={value}: the store has {values}")
            frame = matching
        return Points(frame=frame, path=self.path)

    def means(self, metrics: Sequence[str]) -> pd.DataFrame:
        """One row per point: its keys, for each metric `M`, `M.low` and `M.high` of the 95 % interval of the mean,
        which only steady loads with two or more replications have, `is_overloaded`, `is_steady`, `replications`."""
        import pandas as pd

        rows = []
        for _, own in self.rows.groupby("scenario_hash", sort=False):
            row: dict[str, Any] = {key: own[key].iloc[0] for key in dict.fromkeys([*self.keys, "policy", "profile"])}
            row["is_steady"] = bool(own["is_steady"].all())
            row["is_overloaded"] = bool(own["unstable"].any())
            row["replications"] = len(own)
            for metric in metrics:
                samples = [float(value) for value in own[metric]] if metric in own else [float("nan")]
                known = [value for value in samples if value == value]
                mean = sum(known) / len(known) if known else float("nan")
                interval = interval_95(known) if row["is_steady"] and len(known) == len(samples) else None
                row[metric] = mean
                row[f"{metric}.low"], row[f"{metric}.high"] = interval or (mean, mean)
            rows.append(row)
        found = pd.DataFrame(rows)
        order = [key for key in self.keys if key in found]
        return found.sort_values(order, kind="stable").reset_index(drop=True) if order else found

    def paired(self, key: str, metric: str) -> pd.DataFrame:
        """How `metric` differs between values of `key`, draw by draw, all else equal: a row per other keys and value.

        `change_pct` against the first value, with `low` and `high`; `is_clear` where the interval leaves out zero,
        `is_open` where regimes of overlap disagree about that, `is_overloaded` where no steady means exist.
        """
        import pandas as pd

        first, *others = self.values(key)
        rest = [name for name in self.keys if name != key]
        rows = []
        groups = self.rows.groupby(rest, sort=True, dropna=False) if rest else [((), self.rows)]
        for place, own in groups:
            fixed = dict(zip(rest, place if isinstance(place, tuple) else (place,), strict=True))
            base = own[own[key] == first].set_index("seed")
            for value in others:
                theirs = own[own[key] == value].set_index("seed")
                both = base.index.intersection(theirs.index)
                if len(both):
                    rows.append(fixed | {key: value} | _change(base.loc[both], theirs.loc[both], metric))
        return pd.DataFrame(rows)


def _change(base: Any, theirs: Any, metric: str) -> dict[str, Any]:
    """Of `metric`, percent of the first's mean, with what each regime of overlap says of its sign."""
    orders = set()
    found: dict[str, Any] = {}
    for regime in BRACKET:
        ours, others = (_under(rows, metric, regime) for rows in (base, theirs))
        mean = sum(ours) / len(ours)
        changes = [100.0 * (other - our) / mean for our, other in zip(ours, others, strict=True)]
        interval = interval_95(changes)
        order = 0 if interval is None or interval[0] <= 0.0 <= interval[1] else (1 if interval[0] > 0.0 else -1)
        orders.add(order)
        if regime is Regime.SHARED:
            average = sum(changes) / len(changes)
            low, high = interval or (average, average)
            found = {"change_pct": average, "low": low, "high": high, "is_clear": order != 0}
    is_steady = bool(base["is_steady"].all() and theirs["is_steady"].all())
    return found | {"is_open": len(orders) > 1, "is_overloaded": not is_steady}


def _under(rows: Any, metric: str, regime: Regime) -> list[float]:
    """Samples of a metric under a regime of overlap; as reported where it makes no difference."""
    own = [float(value) for value in rows[metric]]
    column = f"{metric}_if_{regime.value}"
    if regime is Regime.SHARED or column not in rows:
        return own
    return [value if other != other else float(other) for value, other in zip(own, rows[column], strict=True)]


def _is_key(name: str) -> bool:
    """A key of the scenario, rather than a part of a metric."""
    block = name.partition(".")[0]
    return name in ("profile", "policy") or block in (
        "policy_options", "engine", "workload", "speculation", "devices", "window", "goodput",
    )  # fmt: skip


def spoken(key: str) -> str:
    """What an axis calls a key."""
    return LOADS.get(key) or WORDS.get(key) or key.rpartition(".")[2].replace("_", " ")
