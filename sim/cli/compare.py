"""`lanesim compare`: the command line of sim.compare.side_by_side."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from msgspec import Meta

from sim.cli.console import claim, note_trace, progress, show
from sim.cli.flags import Draws, JsonFile, Overwrite, Verbose, Workers, command
from sim.cli.options import SHARED, CompareScenario, gather, inputs_of, parse_goodput, with_assumptions

if TYPE_CHECKING:
    from sim.compare.side_by_side import Comparison
    from sim.costs.profile import Profile
    from sim.files.json_values import Json
    from sim.metrics.records import RunRecord
    from sim.run.resolve import Resolved
    from sim.run.scenario import Scenario

EXAMPLE = (
    "lanesim compare --policy baseline --policy pd --policy pdv \\\n"
    "    --profile h100-sxm/llama-2-7b+tinyllama-1.1b --request-rate 4"
)


class CompareFlags(CompareScenario, frozen=True, kw_only=True):
    """Flags of `lanesim compare`; those that take a number take several with commas between, a small grid."""

    vary: Annotated[
        tuple[str, ...],
        Meta(title="KEY=A,B"),
        "Values to compare: speculation=off,ngram,eagle3, prefix_cache=on,off, context=1.5k,3k, gpu=h100,h200, or any "
        "scenario key.",
    ] = ()
    json: JsonFile = None
    out: Annotated[Path | None, "Results directory."] = None
    plots: Annotated[bool, "Also write a picture of the GPU's work over the first 100 requests to --out."] = False
    workers: Workers = None
    draws: Annotated[
        Draws | None,
        "How often to vary costs and acceptance within their errors before a winner is named. 0: never. [default: 10]",
    ] = None
    in_: Annotated[
        Literal["simpy", "python", "core"] | None,
        "Form of the simulator: SimPy explains, Python extends, the C core is fast. [default: core where it can, else "
        "python]",
    ] = None
    verbose: Verbose = False
    overwrite: Overwrite = False

    listed: ClassVar[tuple[str, ...]] = SHARED


@command("compare", CompareFlags, example=EXAMPLE)
def compare_command(flags: CompareFlags) -> None:
    """Compare schedulers, or with --vary values of any key, on the same requests: which is fastest, and by how much.

    Add --policy for each scheduler, or --vary for each key."""
    from sim.costs.profile_files import load
    from sim.files.arrow_tables import check_parquet
    from sim.report.results import OWN_FILES
    from sim.run.scenario import parse_scenario
    from sim.studies.comparison.variants import replicated

    grid: dict[str, list[Json]] = {}
    raw = gather(flags, grid)
    if not any(text.startswith("speculation") for text in flags.vary):
        with_assumptions(raw)
    grid |= _varied_keys(flags, grid)
    if grid and "policy" in grid:
        raw["policy"] = grid["policy"]
    _check(flags, is_grid=bool(grid))
    if grid:
        _compare_values(raw, grid, flags)
        return
    scenario = parse_scenario(replicated(raw))
    claim(
        files={"--json": flags.json},
        folders={"--out": flags.out},
        inputs=inputs_of(flags.scenario, scenario),
        own_names=OWN_FILES,
    )
    if flags.out is not None:
        check_parquet()
    profile = load(scenario.profile)
    result = _compared(scenario, profile, flags)
    note_trace(scenario.workload)
    show(flags.json, result, is_verbose=flags.verbose, out=flags.out)


def _varied_keys(flags: CompareFlags, lists: Collection[str]) -> dict[str, list[Json]]:
    """Values by key of --vary. Raises ValueError."""
    from sim.run.scenario_file import FLAT_NAMES, parse_override
    from sim.run.vllm_config import speculation_of
    from sim.studies.comparison.variants import check_given, parse_vary

    varied = [parse_vary(text) for text in flags.vary]
    named = [name for name in FLAT_NAMES if name != "profile" and getattr(flags, name, None) not in (None, ())]
    keys = {parse_override(text)[0] for text in flags.set} | {FLAT_NAMES[name] for name in named} | set(lists)
    keys |= {f"goodput.{name}_ms" for name in parse_goodput(flags.goodput)}
    if flags.speculative_config is not None:
        keys |= {f"speculation.{name}" for name in speculation_of(flags.speculative_config)}
    check_given([key for key, _ in varied], [*keys, *(["policy"] if flags.policy else [])])
    return dict(varied)


def _compare_values(raw: dict[str, Json], grid: dict[str, list[Json]], flags: CompareFlags) -> None:
    """Values of keys side by side."""
    from sim.studies.comparison.variants import Variants
    from sim.studies.comparison.varied import varied

    variants = Variants(raw, grid)
    scenarios = [one.scenario for _, settings in variants.by_load for one in settings]
    claim(files={"--json": flags.json}, inputs=[each for one in scenarios for each in inputs_of(flags.scenario, one)])
    result = varied(variants, lambda settings: _run(settings, flags), **flags.repositories)
    note_trace(scenarios[0].workload)
    show(flags.json, result, is_verbose=flags.verbose)


def _check(flags: CompareFlags, *, is_grid: bool) -> None:
    """Raise ValueError for flags that do not go together; several values per flag, a grid, go with few."""
    for name in ("out", "plots"):
        if is_grid and getattr(flags, name):
            raise ValueError(f"--{name} goes with one value per flag. For a grid, see `lanesim sweep --help`")
    if flags.plots and flags.out is None:
        raise ValueError("--plots needs a results directory. Add --out DIR")


def _compared(scenario: Scenario, profile: Profile, flags: CompareFlags) -> Comparison:
    """Compare, and write the results directory where there is one. Requests go to disk run by run; records stay for
    figures and works."""
    from sim.run.resolve import resolve_all

    policies = resolve_all(scenario, profile)
    if flags.out is None:
        return _run(policies, flags)
    from sim.report.results import rows_of, write_results, writing

    records: list[RunRecord] = []
    with writing(flags.out) as scratch:
        with rows_of(scratch) as rows_in:
            on_run = records.append if flags.plots else None
            result = _run(policies, flags, on_run=on_run, rows_in=rows_in)
        if flags.plots:
            from sim.report.pictures.comparison_pictures import draw_comparison

            draw_comparison(scratch, result, records)
        write_results(scratch, scenario, result.plain, records)
    return result


def _run(
    policies: Sequence[Resolved],
    flags: CompareFlags,
    *,
    on_run: Callable[[RunRecord], None] | None = None,
    rows_in: Path | None = None,
) -> Comparison:
    """Compare with a progress bar, with all that the comparison rests on."""
    from sim.studies.comparison.in_draws import compared

    with progress() as on_step:
        return compared(
            policies,
            form=flags.in_,
            draws=flags.draws,
            workers=flags.workers,
            on_done=on_step,
            on_run=on_run,
            record_works=flags.plots,
            is_detailed=flags.verbose,
            rows_in=rows_in,
        )
