"""Results as a notebook wants them: a comparison that shows itself, and tidy pandas frames with units in column names.

Imports pandas and rich inside functions. Not here: what the numbers mean (sim.metrics), figures (sim.report.pictures).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import msgspec

from sim.acceptance.models import MAX_DRAFT_TOKENS
from sim.compare.point_runs import Point, run_point
from sim.compare.pool import default_workers, started
from sim.costs.profile import Profile
from sim.costs.profile_files import load as load_profile
from sim.draws import child_seed
from sim.metrics.records import RunRecord, request_columns
from sim.metrics.summary import Run
from sim.names import unknown
from sim.plugins import checked_count, checked_counts, checked_list, checked_reals, plain_number, shown
from sim.report.shown import (
    ShownAttainment,
    ShownComparison,
    ShownContexts,
    ShownTuning,
    ShownVaried,
    runs_frame,
    shown_as,
)
from sim.report.store_frame import frame_of, store_frame
from sim.run.compiled import FORMS
from sim.run.resolve import resolve_all
from sim.run.scenario import Scenario, parse_scenario, raw_scenario, to_plain
from sim.studies.attainment import DEFAULT_SHARE, highest_load, usd_per_gpu_h
from sim.studies.comparison.in_draws import compared
from sim.studies.comparison.variants import Variants, check_given, replicated, tokens_of
from sim.studies.comparison.varied import varied
from sim.studies.sweeps.grid import Grid
from sim.studies.sweeps.store import Store
from sim.studies.sweeps.sweep import SweepPlan, rows_of
from sim.studies.sweeps.sweep import sweep as run_sweep
from sim.studies.tune import tune as run_tuning
from sim.studies.tune import tune_contexts
from sim.workload.bench import bench_rows

if TYPE_CHECKING:
    import pandas as pd

Source = Scenario | Mapping[str, Any] | str | Path | None


@overload
def compare(source: Source = None, /, *, vary: None = None, **more: Any) -> ShownComparison: ...


@overload
def compare(source: Source = None, /, *, vary: Mapping[str, Sequence[Any]], **more: Any) -> ShownVaried: ...


def compare(
    source: Source = None,
    /,
    *,
    vary: Mapping[str, Sequence[Any]] | None = None,
    draws: int | None = None,
    workers: int | None = None,
    form: str | None = None,
    **changes: Any,
) -> ShownComparison | ShownVaried:
    """Run every policy of a scenario with every seed, on the same random numbers: `lanesim compare`.

    `source` is a Scenario, a scenario file or a raw mapping. `changes` are as in `Scenario.of`, where `profile` may be
    a loaded one, too. Several policies run four times each unless `replications` are given. With `vary` the values of
    each of its keys take the place of the policies: short keys such as `speculation`, `prefix_cache`, `context` and
    `gpu`, flat names or dotted ones. Orders must come out the same in `draws` variations of costs and acceptance: ten
    unless given, 0 for none. `form` is simpy, python or core: `--in` of the command. Raises ValueError for input that
    cannot run.

    >>> import lanesim
    >>> result = lanesim.compare(profile="cpu/tiny", policy=("continuous", "pd"), num_prompts=20, request_rate=10)
    >>> [run["policy"] for run in result.runs]
    ['continuous', 'continuous', 'continuous', 'continuous', 'pd', 'pd', 'pd', 'pd']
    >>> both = lanesim.compare(profile="cpu/tiny", num_prompts=20, request_rate=10, vary={"max_num_seqs": [1, 8]})
    >>> both.frame()["policy"].unique().tolist()
    ['max_num_seqs=1', 'max_num_seqs=8']
    """
    asked: dict[str, Any] = {
        "draws": draws and checked_count("draws", draws, 2),
        "workers": None if workers is None else checked_count("workers", workers, 1),
        "form": _form(form),
    }
    if vary is not None:
        raw, profile = _raw(source, changes)
        if not isinstance(vary, Mapping):
            raise ValueError(f"vary={shown(vary)} must be a mapping of keys to lists of values")
        check_given(map(str, vary), changes)
        grid = {str(key): plain_number(checked_list(f"vary: {key}", values)) for key, values in vary.items()}
        told = varied(Variants(raw, grid, profile), lambda settings: compared(settings, **asked))
        return shown_as(ShownVaried, told)
    raw, profile = _raw(source, changes)
    scenario = parse_scenario(replicated(raw), profile)
    loaded = profile or load_profile(scenario.profile)
    settings = resolve_all(scenario, loaded)
    answer = compared(settings, **asked)
    if "acceptance" not in (raw.get("speculation") or {}) and any(one.lengths.given for one in settings):
        assumed = f"Acceptance of drafts is assumed: {scenario.speculation.acceptance}. Pass your own with acceptance=."
        answer = msgspec.structs.replace(answer, notes=[assumed, *answer.notes])
    return shown_as(ShownComparison, answer)


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
        """One line per request: lengths in tokens, times in seconds."""
        import pandas as pd

        return pd.DataFrame(request_columns(self.record))


def simulate(source: Source = None, /, *, form: str | None = None, **changes: Any) -> Simulation:
    """Run the only or first policy of a scenario once, as the first run of `compare`, whose arguments it takes.

    >>> import lanesim
    >>> given = {"profile": "cpu/tiny", "policy": "pd", "num_prompts": 5, "request_rate": 10}
    >>> keys = {"engine.name": "ideal", "engine.async_scheduling": False}
    >>> fast, in_simpy = (lanesim.simulate(**given, **keys, form=form).record for form in (None, "simpy"))
    >>> abs(fast.requests[0].last_token_s - in_simpy.requests[0].last_token_s) < 1e-9
    True
    """
    scenario, profile = _scenario(source, changes)
    resolved, *_ = resolve_all(scenario, profile)
    point = Point(
        resolved=replace(resolved, form=_form(form)),
        seed=child_seed(scenario.seed, 0),
        is_detailed=True,
        keeps_record=True,
    )
    outcome = run_point(point)
    assert outcome.record is not None
    return Simulation(metrics=outcome.run, record=outcome.record)


def _form(form: str | None) -> str | None:
    if form not in (None, *FORMS):
        raise ValueError(unknown("form of the simulator", str(form), FORMS))
    return form


def _raw(source: Source, changes: dict[str, Any]) -> tuple[dict[str, Any], Profile | None]:
    """Raw data of a scenario, and its profile where `changes` hold one ready made."""
    profile = changes.get("profile")
    if isinstance(source, Scenario):
        source = to_plain(source)
    if isinstance(profile, Profile):
        return raw_scenario(source, changes | {"profile": profile.name}), profile
    return raw_scenario(source, changes), None


def _scenario(source: Source, changes: dict[str, Any]) -> tuple[Scenario, Profile]:
    """The scenario and its profile, which `changes` may hold ready made."""
    raw, profile = _raw(source, changes)
    scenario = parse_scenario(raw, profile)
    return scenario, profile or load_profile(scenario.profile)


def load(path: str | Path, *, version: str | None = None) -> pd.DataFrame:
    """A frame of the store at `path`, or of a benchmark's result in a file that ends with .json or .jsonl. That is one
    line with the same columns.

    Of a store, one line per point. Columns are `scenario_hash`, `policy`, `seed`, the keys of the grid, and the metrics
    with units in their names. Lines of another `version` of the model than the last one are left out, with a note.
    Raises ValueError naming what is wrong with it.

    >>> import lanesim, tempfile
    >>> grid = {"scenario": {"profile": "cpu/tiny", "policy": "pd", "workload": {"num_prompts": 5}}}
    >>> grid["grid"] = {"workload.request_rate": [2, 8]}
    >>> with tempfile.TemporaryDirectory() as store:
    ...     frame = lanesim.sweep(grid, out=store)
    ...     lanesim.load(store)[["policy", "workload.request_rate", "completed"]].values.tolist()
    [['pd', 2.0, 5], ['pd', 8.0, 5]]
    """
    if not isinstance(path, str | Path):
        raise ValueError(f"load({shown(path)}) needs the path of a store or a benchmark result")
    place = Path(path)
    if place.suffix in (".json", ".jsonl") and place.is_file():
        return runs_frame(_bench_rows(place))
    return store_frame(place, version=version)


def _bench_rows(path: Path) -> list[dict[str, Any]]:
    """The metrics of each result in a file of vLLM or another tool, without its lists. Raises ValueError."""
    rows = [
        {key: value for key, value in row.items() if not isinstance(value, list | dict)} for row in bench_rows(path)
    ]
    return [row | ({"request_rate": inf} if row.get("request_rate") == "inf" else {}) for row in rows]


def sweep(
    grid: Mapping[str, Any] | str | Path, *, out: str | Path | None = None, workers: int | None = None
) -> pd.DataFrame:
    """Run a grid, and what the store at `out` has of it not again. The frame has a line per point of the grid, as
    `load` gives them.

    `grid` is a grid file or the same as a mapping: `scenario`, and `grid` with a list of values per dotted key. All
    points are on the same random numbers, replication by replication. Raises ValueError for input that cannot run. A
    point that fails has its `error` in the frame.

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
    contexts: Sequence[int | str] | None = None,
    draws: int | None = None,
    workers: int | None = None,
    **changes: Any,
) -> ShownTuning | ShownContexts:
    """The best draft length by batch size: `lanesim tune`. `source` and `changes` are as in `compare`. The policy is
    `continuous`.

    `lengths` are tried at `concurrencies`, with so many variations, `draws`. With prompts of each of `contexts` tokens
    there is a table for each. Raises ValueError for what cannot be tuned.

    >>> import lanesim
    >>> scenario = lanesim.Scenario.of(profile="cpu/tiny", policy="continuous", num_prompts=8)
    >>> answer = lanesim.tune(scenario, concurrencies=(1, 4), lengths=(0, 2), draws=2, workers=1)
    >>> [point.concurrency for point in answer.points]
    [1, 4]
    """
    if lengths is not None:
        lengths = checked_counts("lengths", lengths, 0, MAX_DRAFT_TOKENS)
        changes = changes | {"num_speculative_tokens": max(lengths, default=0)}
    raw, profile = _raw(source, changes)
    raw.setdefault("policy", "continuous")
    scenario = parse_scenario(raw, profile)
    profile = profile or load_profile(scenario.profile)
    asked: dict[str, Any] = {
        "concurrencies": None if concurrencies is None else checked_counts("concurrencies", concurrencies, 1),
        "workers": None if workers is None else checked_count("workers", workers, 1),
    }
    if draws is not None:
        asked["draws"] = checked_count("draws", draws, 1)
    if contexts is not None:
        prompts = [tokens_of(plain_number(each)) for each in checked_list("contexts", contexts)]
        return shown_as(ShownContexts, tune_contexts(scenario, profile, prompts, lengths=lengths, **asked))
    return shown_as(ShownTuning, run_tuning(scenario, profile, lengths=lengths, **asked))


def capacity(
    source: Source = None,
    /,
    *,
    attainment: float = DEFAULT_SHARE,
    target_rate: float | None = None,
    price: str | None = None,
    draws: int | None = None,
    workers: int | None = None,
    **changes: Any,
) -> ShownAttainment:
    """The highest request rate at which a share of the requests meets all SLOs, and with `target_rate` the replicas for
    it: `lanesim capacity`. `source` and `changes` are as in `compare`, SLOs as `goodput={"ttft_ms": 500}`.

    `price` is such as `3.5/gpu-h`. Raises ValueError for a scenario without SLOs.

    >>> import lanesim
    >>> slo, load = {"ttft_ms": 100}, {"num_prompts": 20, "num_speculative_tokens": 0}
    >>> answer = lanesim.capacity(profile="cpu/tiny", policy="continuous", goodput=slo, draws=0, workers=1, **load)
    >>> answer.frame()["policy"].tolist()
    ['continuous']
    """
    (share,) = checked_reals("attainment", [attainment], 0.0, 1.0)
    scenario, profile = _scenario(source, changes)
    answer = highest_load(
        scenario,
        profile,
        share=share,
        target_rate=None if target_rate is None else checked_reals("target_rate", [target_rate], 0.0, MAX_RATE)[0],
        price=usd_per_gpu_h(price),
        draws=None if draws is None else checked_count("draws", draws, 0),
        workers=None if workers is None else checked_count("workers", workers, 1),
    )
    return shown_as(ShownAttainment, answer)


MAX_RATE = 1e6
"""Requests per second, as the command has it."""
