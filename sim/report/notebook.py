"""Results as a notebook wants them: a comparison that shows itself, and tidy pandas frames with units in column names.

Imports pandas and rich inside functions. Not here: what the numbers mean (sim.metrics), figures (sim.report.pictures).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sim.acceptance.models import MAX_DRAFT_TOKENS
from sim.compare import side_by_side as experiment
from sim.compare.point_runs import Point, run_point
from sim.compare.pool import default_workers, started
from sim.costs.profile import Profile
from sim.costs.profile_files import load as load_profile
from sim.interface.request import Request
from sim.metrics.records import RunRecord, request_columns
from sim.metrics.summary import PERCENTILES, Run
from sim.names import unknown
from sim.plugins import checked_count, checked_counts, checked_list, checked_reals, shown
from sim.report.bench import read_bench_rows
from sim.report.results import read_columns, read_summary
from sim.report.store_frame import UNITS, frame_of, store_frame
from sim.report.store_points import Setting, read_points
from sim.run.resolve import resolve, resolve_all
from sim.run.scenario import Scenario, parse_scenario, raw_scenario, to_plain
from sim.run.simulate import simulate_in_simpy as in_simpy
from sim.studies.cost_draws import DEFAULT_DRAWS, over_draws
from sim.studies.grid import Grid
from sim.studies.store import Store, is_store
from sim.studies.sweep import SweepPlan, rows_of
from sim.studies.sweep import sweep as run_sweep
from sim.studies.tune import Tuning
from sim.studies.tune import tune as run_tuning

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

MEANS = ("mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms")


class ShownComparison(experiment.Comparison, frozen=True, kw_only=True):
    """Policies side by side (what `lanesim compare --json` holds); in a notebook it shows its tables.

    `runs` is a row of metrics per policy and seed, `policies` their means with 95 % intervals, `paired` the differences
    seed by seed.

    >>> import lanesim
    >>> result = lanesim.compare(profile="cpu/tiny", policy=("baseline", "pd"), num_prompts=20, request_rate=5)
    >>> result.paired_frame().loc[0, ["a", "b", "metric"]].tolist()
    ['pd', 'baseline', 'mean_ttft_ms']
    """

    def frame(self) -> pd.DataFrame:
        """One row per policy and seed, a column per metric, units in the names; per-stream blocks left out."""
        return runs_frame(self.runs)

    def paired_frame(self) -> pd.DataFrame:
        """One row per pair of policies and metric: `a`, `b`, `metric`, `difference`, `ci95_low`, `ci95_high`."""
        import pandas as pd

        names = ["a", "b", "metric", "difference", "ci95_low", "ci95_high"]
        rows = [
            (pair.a, pair.b, UNITS.get(pair.metric, pair.metric), pair.difference, *(pair.ci95 or (None, None)))
            for pair in self.paired
        ]
        return pd.DataFrame(rows, columns=names)

    def _repr_html_(self) -> str:
        return self._shown().export_html(inline_styles=True, code_format='<pre style="line-height:1.2">{code}</pre>')

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def __str__(self) -> str:
        return self._shown().export_text()

    def _shown(self) -> Console:
        from rich.console import Console

        from sim.report.tables import comparison_tables

        # In a notebook rich would show every line by itself, beside what it is asked for.
        console = Console(record=True, file=StringIO(), width=120, force_jupyter=False)
        comparison_tables(console, self)
        return console


Source = Scenario | Mapping[str, Any] | str | Path | None


def compare(
    source: Source = None,
    /,
    *,
    percentiles: Sequence[float] = PERCENTILES,
    draws: int | None = None,
    **changes: Any,
) -> ShownComparison:
    """Run every policy of a scenario with every seed, on the same draws.

    `source` is a Scenario, a scenario file or a raw mapping; `changes` as in `Scenario.of`, where `profile` may be a
    loaded one, too. Orders must hold in `draws` of costs and acceptance: ten unless given, 0 for none. Raises
    ValueError for input that cannot run.

    >>> import lanesim
    >>> result = lanesim.compare(profile="cpu/tiny", policy=("continuous", "pd"), num_prompts=20, request_rate=10)
    >>> [run["policy"] for run in result.runs]
    ['continuous', 'pd']
    """
    percents = checked_reals("percentiles", percentiles, 0.0, 100.0)
    scenario, profile = _scenario(source, changes)
    resolved = resolve_all(scenario, profile)
    result = experiment.compare(resolved, percentiles=percents)
    if draws != 0:
        result = over_draws(result, resolved, None if draws is None else checked_count("draws", draws, 2))
    return ShownComparison(**msgspec.structs.asdict(result))


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """One policy with one seed: `metrics` under vLLM's keys, and the record behind them.

    >>> import lanesim
    >>> one = lanesim.simulate(profile="cpu/tiny", policy="continuous", num_prompts=5, request_rate=10)
    >>> one.requests_frame()["output_tokens"].tolist() == [32] * 5
    True
    """

    metrics: Run
    record: RunRecord

    def requests_frame(self) -> pd.DataFrame:
        """One row per request: lengths in tokens, times in seconds."""
        import pandas as pd

        return pd.DataFrame(request_columns(self.record))


def simulate(source: Source = None, /, **changes: Any) -> Simulation:
    """Run the only or first policy of a scenario once, with its first seed; arguments as `compare`.

    >>> import lanesim
    >>> one = lanesim.simulate(profile="cpu/tiny", policy="pd", num_prompts=5, request_rate=10)
    >>> one.metrics["completed"]
    5
    """
    scenario, profile = _scenario(source, changes)
    resolved, *_ = resolve_all(scenario, profile)
    point = Point(resolved=resolved, seed=scenario.seed, is_detailed=True, keeps_record=True)
    outcome = run_point(point)
    assert outcome.record is not None
    return Simulation(metrics=outcome.run, record=outcome.record)


def simulate_in_simpy(source: Source = None, /, **changes: Any) -> list[Request]:
    """The requests that `simulate` serves, as the simulator in SimPy's idiom (`reference`) serves them: open arrivals,
    one draft length, lanes of one GPU that poll, an engine without a frontend that plans no step ahead.

    >>> import lanesim
    >>> keys = {"engine.name": "ideal", "engine.async_scheduling": False}
    >>> scenario = lanesim.Scenario.of(profile="cpu/tiny", policy="pd", num_prompts=5, request_rate=10, **keys)
    >>> one, *_ = lanesim.simulate_in_simpy(scenario)
    >>> abs(one.last_token_s - lanesim.simulate(scenario).record.requests[0].last_token_s) < 1e-9
    True
    """
    scenario, profile = _scenario(source, changes)
    return in_simpy(resolve(scenario, profile, scenario.policy[0]), scenario.seed)


def _scenario(source: Source, changes: dict[str, Any]) -> tuple[Scenario, Profile]:
    """The scenario and its profile, which `changes` may hold ready made."""
    profile = changes.get("profile")
    if isinstance(source, Scenario):
        source = to_plain(source)
    if isinstance(profile, Profile):
        changes = changes | {"profile": profile.name}
        return parse_scenario(raw_scenario(source, changes), profile), profile
    scenario = Scenario.of(source, **changes)
    return scenario, load_profile(scenario.profile)


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """A results directory as tidy frames: `runs`, a row per policy and seed, and `requests`, a row per request.

    `load` makes it of a directory; of a comparison in memory there is the first frame alone:

    >>> import lanesim
    >>> result = lanesim.compare(profile="cpu/tiny", policy="pd", num_prompts=5, request_rate=10)
    >>> lanesim.Results(comparison=result, runs=result.frame(), requests=None).runs["completed"].tolist()
    [5]
    """

    comparison: ShownComparison
    runs: pd.DataFrame
    requests: pd.DataFrame | None


def load(path: str | Path, *, version: str | None = None) -> Results | pd.DataFrame:
    """Contents of `path`: Results of a directory that `lanesim compare --out` wrote, a frame of a store, or of a result
    of `vllm bench serve` (a file that ends with .json), one row with the same columns.

    Of a store, one row per point: `scenario_hash`, `policy`, `seed`, the keys that were gone through and the metrics,
    units in their names; rows that another `version` of the model made than the last one are left out, with a note.
    Raises ValueError naming what is wrong with it.

    >>> import lanesim, tempfile
    >>> grid = {"scenario": {"profile": "cpu/tiny", "policy": "pd", "workload": {"num_prompts": 5}}}
    >>> grid["grid"] = {"workload.request_rate": [2, 8]}
    >>> with tempfile.TemporaryDirectory() as store:
    ...     frame = lanesim.sweep(grid, out=store)
    ...     lanesim.load(store)[["policy", "workload.request_rate", "completed"]].values.tolist()
    [['pd', 2.0, 5], ['pd', 8.0, 5]]
    """
    import pandas as pd

    if not isinstance(path, str | Path):
        raise ValueError(f"load: {shown(path)}: want the path of a results directory, a store or a benchmark result")
    directory = Path(path)
    if is_store(directory):
        return store_frame(directory, version=version)
    if directory.suffix in (".json", ".jsonl") and directory.is_file():
        return runs_frame(read_bench_rows(directory))
    held = read_summary(directory)
    requests = pd.DataFrame(read_columns(directory / "requests.parquet"))
    return Results(
        comparison=ShownComparison(**msgspec.structs.asdict(held)), runs=runs_frame(held.runs), requests=requests
    )


def paired(
    store: str | Path, key: str = "policy", *, base: Setting = None, metrics: Sequence[str] = MEANS
) -> pd.DataFrame:
    """Differences of metrics of a store between values of a key, draw by draw, all else equal.

    One row per metric, other value and combination of the keys that vary beside: `change_pct` from `base` (by default
    the first value) with `ci95_low_pct` and `ci95_high_pct`, which two or more `replications` have; `is_clear` where
    the interval leaves out zero, `is_open` where that depends on how streams overlap, `is_overloaded` where there are
    no steady means. Raises ValueError for a store, key, value or metric that is not there.

    >>> import lanesim, tempfile
    >>> scenario = {"profile": "cpu/tiny", "policy": ["continuous", "pd"], "workload": {"num_prompts": 8}}
    >>> with tempfile.TemporaryDirectory() as store:
    ...     _ = lanesim.sweep({"scenario": scenario, "replications": 3}, out=store, workers=1)
    ...     lanesim.paired(store)[["base", "policy", "metric", "replications"]].values.tolist()[0]
    ['continuous', 'pd', 'mean_ttft_ms', 3]
    """
    import pandas as pd

    points = read_points(Path(store))
    name = points.key(key)
    values = points.values(name)
    first = values[0] if base is None else base
    if first not in values or len(values) < 2:
        raise ValueError(f"paired: {name}={shown(first)}: want one of two or more values, the store has {values}")
    for metric in checked_list("metrics", metrics):
        if metric not in points.rows or points.rows[metric].dtype.kind not in "if":
            raise ValueError(unknown("metric", str(metric), points.rows.columns))
    frame = pd.concat(
        [points.paired(name, metric, first).assign(base=first, metric=metric) for metric in metrics], ignore_index=True
    ).rename(columns={"low": "ci95_low_pct", "high": "ci95_high_pct"})
    has_interval = frame["replications"] > 1
    for bound in ("ci95_low_pct", "ci95_high_pct"):
        frame[bound] = frame[bound].where(has_interval)
    last = ["change_pct", "ci95_low_pct", "ci95_high_pct", "replications", "is_clear", "is_open", "is_overloaded"]
    keys = [column for column in frame if column not in ("base", "metric", name, *last)]
    return frame[[*keys, "base", name, "metric", *last]]


def sweep(
    grid: Mapping[str, Any] | str | Path, *, out: str | Path | None = None, workers: int | None = None
) -> pd.DataFrame:
    """Run a grid, and what the store at `out` has of it not again; a row per point of the grid, as `load` gives them.

    `grid` is a grid file or the same as a mapping: `scenario`, and `grid` with a list of values per dotted key.
    All points are on the same draws, replication by replication. Raises ValueError for input that cannot run; a point
    that fails has its `error` in the frame.

    >>> import lanesim
    >>> scenario = {"profile": "cpu/tiny", "policy": ["continuous", "pd"], "workload": {"num_prompts": 5}}
    >>> frame = lanesim.sweep({"scenario": scenario, "grid": {"request_rate": [2, 8]}, "replications": 2}, workers=1)
    >>> len(frame), frame["error"].isna().all()
    (8, np.True_)
    """
    workers = None if workers is None else checked_count("workers", workers, 1)
    plan = SweepPlan.of(Grid.of(grid))
    if out is not None:
        store = Store.open(Path(out))
        run_sweep(plan, store, workers=workers)
        keys = plan.keys()
        frame = store_frame(Path(out))
        return frame[frame["key"].isin(keys)].reset_index(drop=True)
    with started(workers or default_workers(), uses=plan.uses) as pool:
        rows = [row for job_rows in rows_of(plan, plan.jobs(frozenset()), pool) for row in job_rows]
    return frame_of(rows, plan.grid.keys)


def tune(
    source: Source = None,
    /,
    *,
    concurrencies: Sequence[int] | None = None,
    lengths: Sequence[int] | None = None,
    draws: int = DEFAULT_DRAWS,
    workers: int | None = None,
    **changes: Any,
) -> Tuning:
    """The best draft length by batch size: `lanesim tune`; `source` and `changes` as in `compare`. The policy is
    `continuous` unless given.

    `lengths` are tried at `concurrencies`, in so many `draws`. Raises ValueError for what cannot be tuned.

    >>> import lanesim
    >>> scenario = lanesim.Scenario.of(profile="cpu/tiny", policy="continuous", num_prompts=8)
    >>> answer = lanesim.tune(scenario, concurrencies=(1, 4), lengths=(0, 2), draws=2, workers=1)
    >>> [point.concurrency for point in answer.points]
    [1, 4]
    """
    if lengths is not None:
        lengths = checked_counts("lengths", lengths, 0, MAX_DRAFT_TOKENS)
        changes = changes | {"num_speculative_tokens": max(lengths, default=0)}
    raw = raw_scenario(to_plain(source) if isinstance(source, Scenario) else source, {})
    scenario, profile = _scenario({"policy": "continuous"} | raw, changes)
    return run_tuning(
        scenario,
        profile,
        concurrencies=None if concurrencies is None else checked_counts("concurrencies", concurrencies, 1),
        lengths=lengths,
        draws=checked_count("draws", draws, 1),
        workers=None if workers is None else checked_count("workers", workers, 1),
    )


def runs_frame(runs: Sequence[Run]) -> pd.DataFrame:
    """`runs` as rows: every metric that is one number or label, under a name with its unit."""
    import pandas as pd

    rows = [
        {UNITS.get(key, key): value for key, value in run.items() if not isinstance(value, dict | list)} for run in runs
    ]
    return pd.DataFrame(rows)
