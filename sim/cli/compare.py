"""`lanesim compare`: the command line of sim.compare.side_by_side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sim.cli.console import claim, progress, say_trace, write_json
from sim.cli.options import (
    DRAWS,
    OVERWRITE,
    SECONDS,
    SHARE,
    VERBOSE,
    WORKERS,
    ListOptions,
    gather,
    inputs_of,
    listed,
    scenario_options,
)
from sim.names import unknown

if TYPE_CHECKING:
    from sim.compare.side_by_side import Comparison
    from sim.costs.profile import Profile
    from sim.files.json_values import Json
    from sim.metrics.records import RunRecord
    from sim.run.scenario import Scenario

METRICS = ("ttft", "tpot", "itl", "e2el")
EXAMPLE = (
    "\b\nExample:\n  lanesim compare --policy baseline --policy pd --policy pdv \\\n"
    "    --profile h100-sxm/llama-2-7b+tinyllama-1.1b --request-rate 4 --replications 3"
)


class CompareFlags(NamedTuple):
    """Flags of this command alone, by parameter."""

    percentile_metrics: str | None
    metric_percentiles: str | None
    json_path: str | None
    save_detailed: bool
    result_dir: Path | None
    out: Path | None
    with_works: bool | None
    plots: bool
    workers: int | None
    max_cpu_s: float
    draws: int | None
    until_ci: float | None
    energy: bool
    verbose: bool
    emit_vllm: bool
    target_model: str | None
    draft_model: str | None


@click.command("compare", cls=ListOptions, epilog=EXAMPLE)
@scenario_options
@click.option("--percentile-metrics", default=None, help="Accepted for vLLM's sake; all metrics are reported.")
@click.option("--metric-percentiles", default=None, help="Further percentiles, such as 50,99.9.")
@click.option("--json", "json_path", default=None, metavar="FILE", help="Write the result as JSON; - = stdout.")
@click.option("--save-detailed", is_flag=True, help="Add per-request lists to every run of the JSON.")
@click.option(
    "--result-dir",
    type=click.Path(path_type=Path),
    default=None,
    help="Write each run as `vllm bench serve --save-result` does, a file each.",
)
@click.option("--out", type=click.Path(path_type=Path), default=None, help="Results directory.")
@click.option(
    "--works/--no-works",
    "with_works",
    default=None,
    help="Record every work of the first replication (work.parquet, trace.json); slower. [default: with --plots]",
)
@click.option("--plots", is_flag=True, help="Draw latency CDFs and a lane timeline into --out.")
@click.option("--workers", type=WORKERS, default=None, help="Processes. [default: one per core]")
@click.option(
    "--max-cpu-s",
    type=SECONDS,
    default=60.0,
    show_default=True,
    help="CPU budget of `num_prompts: auto`.",
)
@click.option(
    "--draws",
    type=DRAWS,
    default=None,
    help="Draws within the errors of costs and acceptance, which orders must hold in; 0 = none. [default: 10 where "
    "policies are ordered, so short that they take no longer than the runs]",
)
@click.option(
    "--until-ci", type=SHARE, default=None, metavar="SHARE", help="Replications until intervals are 0.05 of the means."
)
@click.option("--energy", is_flag=True, help="Watts of a GPU and joules per output token, too.")
@VERBOSE
@OVERWRITE
@click.option("--emit-vllm", is_flag=True, help="Run nothing: print the vLLM command lines that would check it.")
@click.option("--target-model", default=None, help="Model to load with --emit-vllm. [default: as the profile is named]")
@click.option("--draft-model", default=None, help="Draft to load with --emit-vllm. [default: likewise]")
def compare_command(**flags: Any) -> None:
    """Run policies side by side on the same draws: means with intervals, and paired differences."""
    from sim.costs.profile_files import load
    from sim.report.results import OWN_FILES, check_parquet

    path = flags["scenario"]
    lists: dict[str, list[Json]] = {}
    raw = gather(flags, lists)
    own = CompareFlags(**flags)
    if own.energy:
        raw["energy"] = True
    percentiles = _percentiles(own.metric_percentiles)
    _check(own, is_grid=bool(lists))
    scenarios = _scenarios(raw, lists)
    if own.emit_vllm:
        _print_lines(scenarios[0][1], own.target_model, own.draft_model)
        return
    claim(
        files={"--json": own.json_path},
        folders={"--out": own.out},
        added_to={"--result-dir": own.result_dir},
        adds={"--result-dir": _bench_files(own.result_dir, scenarios[0][1])},
        inputs=[each for _, scenario in scenarios for each in inputs_of(path, scenario)],
        own_names=OWN_FILES,
    )
    if own.out is not None:
        check_parquet()
    profiles = {scenario.profile: load(scenario.profile) for _, scenario in scenarios}
    points, sentences = [], []
    for keys, scenario in scenarios:
        if not lists:
            say_trace(scenario.workload, is_quiet=own.json_path == "-")
        result = _compared(scenario, profiles[scenario.profile], percentiles, own)
        if lists:
            points.append({"keys": {key: _spelt(value) for key, value in keys.items()}} | result.plain)
        else:
            write_json(own.json_path, result.plain)
        if own.result_dir is not None:
            from sim.report.bench import write_bench_results

            write_bench_results(own.result_dir, result)
        if own.json_path != "-":
            from rich.console import Console

            from sim.report.tables import comparison_tables

            if lists:
                values = ", ".join(f"{key}={value}" for key, value in keys.items())
                sentences.append(f"{values}: {result.verdict}")
                print(values)
            if own.out is not None:
                print(f"results in {own.out}")
            asked = percentiles if own.metric_percentiles else []
            comparison_tables(Console(), result, asked, is_verbose=own.verbose)
    for sentence in sentences:
        print(sentence)
    if lists:
        grid = {key: [_spelt(value) for value in values] for key, values in lists.items()}
        write_json(own.json_path, {"grid": grid, "points": points})


def _check(flags: CompareFlags, *, is_grid: bool) -> None:
    """Raise ValueError for flags that do not go together; several values per flag, a grid, go with few."""
    for name in ("target_model", "draft_model"):
        if getattr(flags, name) is not None and not flags.emit_vllm:
            raise ValueError(f"--{name.replace('_', '-')} goes with --emit-vllm; a simulation loads nothing")
    for name in ("out", "plots", "result_dir", "with_works", "save_detailed", "until_ci", "emit_vllm"):
        if is_grid and getattr(flags, name):
            flag = "works" if name == "with_works" else name.replace("_", "-")
            raise ValueError(f"--{flag} goes with one value per flag; for a grid, see `lanesim sweep --help`")
    for name in (flags.percentile_metrics or METRICS[0]).split(","):
        if name.strip() not in METRICS:
            raise ValueError(unknown("--percentile-metrics metric", name.strip(), METRICS))
    if flags.plots and flags.out is None:
        raise ValueError("--plots draws into a results directory: add --out DIR")
    if flags.with_works and flags.out is None:
        raise ValueError("--works records into a results directory: add --out DIR")
    if flags.save_detailed and flags.json_path is None and flags.result_dir is None:
        raise ValueError("--save-detailed adds to the JSON: say where with --json FILE or --result-dir DIR")


def _bench_files(folder: Path | None, scenario: Scenario) -> list[Path]:
    """Files of the runs in --result-dir."""
    from sim.draws import child_seed
    from sim.report.bench import bench_path

    if folder is None:
        return []
    rate, seeds = scenario.workload.request_rate, [child_seed(scenario.seed, r) for r in range(scenario.replications)]
    return [bench_path(folder, policy, rate, seed) for policy in scenario.policy for seed in seeds]


def _scenarios(raw: dict[str, Json], lists: dict[str, list[Json]]) -> list[tuple[dict[str, Json], Scenario]]:
    """Every combination of the values of flags that have several, by dotted key, and its scenario."""
    from copy import deepcopy
    from itertools import product

    from sim.run.scenario import parse_scenario
    from sim.run.scenario_file import set_dotted

    scenarios = []
    for values in product(*lists.values()):
        own, keys = deepcopy(raw), dict(zip(lists, values, strict=True))
        for key, value in keys.items():
            set_dotted(own, key, value)
        scenarios.append((keys, parse_scenario(own)))
    return scenarios


def _spelt(value: Json) -> Json:
    """The value that JSON has: an infinite rate is a text."""
    return "inf" if value == float("inf") else value


def _print_lines(scenario: Scenario, target_model: str | None, draft_model: str | None) -> None:
    """Prints what can be typed, what it lacks as comments."""
    from sim.costs.profile_files import load
    from sim.run.resolve import resolve_all
    from sim.studies.serve_commands import checking_lines

    profile = load(scenario.profile)
    resolve_all(scenario, profile)
    serve, bench, notes = checking_lines(scenario, profile, target_model=target_model, draft_model=draft_model)
    print("\n".join([serve, bench, *(f"# {note}" for note in notes)]))


def _percentiles(text: str | None) -> list[float]:
    """Comma-separated percentiles, each above 0 and below 100."""
    from sim.metrics.summary import PERCENTILES

    values = listed("--metric-percentiles", text, float, "numbers with commas, such as 50,99")
    if not all(0.0 < value < 100.0 for value in values or ()):
        raise ValueError(f"--metric-percentiles {text!r}: each must be above 0 and below 100")
    return list(PERCENTILES) if values is None else values


def _compared(scenario: Scenario, profile: Profile, percentiles: list[float], flags: CompareFlags) -> Comparison:
    """Compare, and write the results directory where there is one. Requests go to disk run by run; records stay for
    figures and works."""
    workers, with_plots = flags.workers, flags.plots
    if flags.until_ci is not None:
        from sim.studies.precision import sized

        with progress() as on_step:
            scenario = sized(scenario, profile, flags.until_ci, workers=workers, on_done=on_step)
    with_works = with_plots if flags.with_works is None else flags.with_works
    if flags.out is None:
        return _run(scenario, profile, flags, percentiles, record_works=with_works)
    from sim.report.results import rows_of, write_results, writing

    records: list[RunRecord] = []
    with writing(flags.out) as scratch:
        with rows_of(scratch) as rows_in:
            on_run = records.append if with_plots or with_works else None
            result = _run(
                scenario, profile, flags, percentiles, record_works=with_works, on_run=on_run, rows_in=rows_in
            )
        if with_plots:
            from sim.report.pictures.figures import draw_comparison

            draw_comparison(scratch, result, records)
        write_results(scratch, scenario, result.plain, records)
    return result


def _run(
    scenario: Scenario,
    profile: Profile,
    flags: CompareFlags,
    percentiles: list[float],
    *,
    record_works: bool,
    on_run: Callable[[RunRecord], None] | None = None,
    rows_in: Path | None = None,
) -> Comparison:
    """Compare with a progress bar; with what survives the draws, and the nearest measured cells."""
    import msgspec

    from sim.compare.side_by_side import compare
    from sim.studies.evidence import asked_of_comparison, evidence, levels
    from sim.studies.precision import over_draws, wider_than

    with progress() as on_step:
        result = compare(
            scenario,
            profile,
            percentiles=percentiles,
            on_run=on_run,
            on_done=on_step,
            record_works=record_works,
            is_detailed=flags.save_detailed,
            workers=flags.workers,
            max_cpu_s=flags.max_cpu_s,
            rows_in=rows_in,
        )
    if flags.until_ci is not None:
        result = msgspec.structs.replace(result, notes=[*result.notes, *wider_than(result, flags.until_ci)])
    if flags.draws != 0:
        with progress() as on_step:
            result = over_draws(result, profile, flags.draws, workers=flags.workers, on_done=on_step)
    near = evidence(profile, asked_of_comparison(result, profile))
    return msgspec.structs.replace(result, evidence=near, levels=levels(result, profile))
