"""`lanesim validate cells`: the command line of calibrate.judge.cells. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import click

from calibrate.cli.engine_flags import EngineFlags, engine_block, engine_options
from calibrate.judge.validation_output import OutputFlags, check_outputs, output_options, print_compared, write_result
from sim.cli.console import progress
from sim.cli.flags import Number
from sim.cli.options import COUNT, UP_TO_BILLION

if TYPE_CHECKING:
    from calibrate.judge.cell import JudgedCell
    from calibrate.judge.fit_cells import Fitted
    from sim.metrics.compared import Compared

EXAMPLE = (
    "\b\nExample:\n  lanesim validate cells silicon.csv --profile h100-sxm/llama-3.1-8b --fit concurrency=8 \\\n"
    "    --columns isl=input_len,osl=output_len,batch_size=concurrency,silicon_tpot_ms=tpot_ms"
)


class CellsFlags(EngineFlags, OutputFlags):
    """Flags that are passed on, by parameter."""

    waves: int
    warmup_waves: int
    seed: int


@click.command("cells", epilog=EXAMPLE)
@click.argument("path", metavar="TABLE.csv", type=click.Path(path_type=Path))
@click.option("--profile", "profile_name", required=True, help="Cost profile: gpu/target[+draft], or a path.")
@click.option("--columns", default=None, metavar="THEIRS=OURS,...", help="Read a foreign table's columns as ours.")
@click.option(
    "--fit",
    "fits",
    multiple=True,
    metavar="COLUMN=VALUE[,VALUE]",
    help="Cells to fit host constants on; conditions joined by commas all hold; repeat for more cells.",
)
@click.option(
    "--fit-metric",
    default="tpot_ms",
    show_default=True,
    help="One metric, whose mean signed error the fit makes 0; with several constants or ratios some, by commas.",
)
@click.option(
    "--fit-ratios",
    default=None,
    metavar="TOKENS,...",
    help="Fit, in place of one host constant, what the GPU makes of the profile's layers under load: a ratio at each "
    "of these token counts, and the time that requests spend before the engine. Such as 8,64,2048.",
)
@click.option(
    "--fit-constant",
    default="gap_s",
    show_default=True,
    help="gap_s, per target pass; draft_pass_s, per token drafted; draft_phase_s, once for all of a step's drafts; "
    "step_s, per work; row_s, per sequence of it; frontend_s, per request; "
    "ratio@N, of the GPU's layers under load to the tables' at N tokens and more. Several, by commas, are fitted at "
    "once by least squares, with intervals; what the cells cannot tell apart is refused.",
)
@click.option(
    "--fitted-profile",
    type=click.Path(path_type=Path),
    default=None,
    metavar="OUT.json",
    help="Write the profile with the fitted constant.",
)
@click.option(
    "--requests",
    "requests_path",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE.csv",
    help="The requests of every cell, in order: prompt_tokens, output_tokens. The loop goes through them in whole "
    "passes; input_len and output_len are not needed then.",
)
@click.option(
    "--acceptance-spread",
    type=Number(0.0, 1e6),
    default=None,
    metavar="S",
    help="Requests differ in draws by a standard deviation of S on the logit scale; the cells' rates stay their mean.",
)
@click.option(
    "--max-num-seqs",
    type=click.IntRange(max=COUNT),
    default=None,
    help="Where the table has no such column [the engine's].",
)
@click.option("--max-num-batched-tokens", type=UP_TO_BILLION, default=None, help="Likewise [2048].")
@engine_options
@click.option(
    "--waves",
    type=click.IntRange(1, COUNT),
    default=10,
    show_default=True,
    help="num_prompts = waves x concurrency where the table does not say; 10 keep the filling and draining of "
    "the loop small beside its steady state.",
)
@click.option(
    "--warmup-waves",
    type=click.IntRange(0, COUNT),
    default=0,
    show_default=True,
    help="Leave the first of them out of the metrics.",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Seed of the acceptance draws."
)
@output_options
def cells_command(
    path: Path,
    profile_name: str,
    columns: str | None,
    fits: Sequence[str],
    fit_metric: str,
    fit_constant: str,
    fit_ratios: str | None,
    requests_path: Path | None,
    acceptance_spread: float | None,
    **flags: Unpack[CellsFlags],
) -> None:
    """Simulate the closed-loop cells of TABLE.csv and say how far off the simulator was at each.

    Columns: concurrency, input_len, output_len; optional num_prompts, num_speculative_tokens, acceptance_length (bonus
    included) or acceptance, output_len_std and output_len_max (outputs vary), max_num_seqs, max_num_batched_tokens,
    num_gpu_blocks, label, arm; and what was measured: means ttft_ms, tpot_ms, itl_ms, e2el_ms, output_throughput
    (tokens/s), percentiles ttft_p95_ms, tpot_p50_ms, tpot_p95_ms, itl_p50_ms. Cells without speculation run
    `autoregressive`, others `continuous`.

    With --fit constants are fitted on the marked cells and the others are judged. Where cells with and without
    speculation pair up (same label, or the same up to its last "/" without an arm; same concurrency and lengths), the
    speed-up in output_throughput is compared, too.
    """
    from calibrate.judge.cell import MEASURED
    from calibrate.judge.cell_table import parse_columns, read_cells, read_request_list
    from calibrate.judge.cells import FIGURE, Setup, draw_cells, fit_on_cells, judge_cells, result_of
    from calibrate.judge.fit_cells import RATIO, check_constant, marked, parse_mark, parse_ratios
    from sim.costs.profile_files import load
    from sim.names import unknown

    check_outputs(flags, [path, requests_path, profile_name, flags["engine_name"]], [FIGURE])
    _check_fit(fits, fit_ratios, flags["fitted_profile"])
    metrics = fit_metric.split(",")
    constants = fit_constant.split(",") if fit_ratios is None else parse_ratios(fit_ratios)
    for constant in constants:
        check_constant(constant)
    for metric in metrics:
        if metric not in MEASURED:
            raise ValueError(unknown("--fit-metric", metric, MEASURED))
    if len(metrics) > 1 and len(constants) == 1 and not constants[0].startswith(RATIO):
        raise ValueError(f"--fit-metric {fit_metric}: one constant is fitted on one metric; several on several")
    setup = Setup(
        engine=engine_block(flags),
        waves=flags["waves"],
        warmup_waves=flags["warmup_waves"],
        method=flags["method"],
        requests=read_request_list(requests_path) if requests_path is not None else (),
        acceptance_spread=acceptance_spread,
        seed=flags["seed"],
    )
    marks = [parse_mark(text) for text in fits]
    profile = load(profile_name)
    table = read_cells(path, parse_columns(columns), has_requests=requests_path is not None)
    is_fit = marked(table.cells, marks)
    fitted = fit_on_cells(table, is_fit, profile, setup, constants, metrics) if marks else None
    profile = profile if fitted is None else fitted.profile
    with progress() as on_step:
        judged = judge_cells(table, is_fit, profile, setup, partial(on_step, "simulating"))
    result = result_of(table, judged, profile, setup, fitted, metrics)
    if flags["plots"] and flags["out"] is not None:
        draw_cells(flags["out"], judged, f"{profile.name}: error of {len(judged)} closed-loop cells")
    if flags["fitted_profile"] is not None:
        from sim.costs.profile_files import encode
        from sim.files.write import write_text

        write_text(flags["fitted_profile"], encode(profile).decode())
    write_result(result, flags)
    if flags["json_path"] != "-":
        _tell(result, judged, fitted)


def _check_fit(fits: Sequence[str], ratios: str | None, out: Path | None) -> None:
    if ratios is not None and not fits:
        raise ValueError("--fit-ratios fits marked cells: mark some with --fit COLUMN=VALUE")
    if out is None:
        return
    if not fits:
        raise ValueError("--fitted-profile writes what --fit found: mark cells with --fit COLUMN=VALUE")
    if out.suffix != ".json":
        raise ValueError(f"--fitted-profile {str(out)!r} must end with .json: profiles are found by it")


def _tell(result: dict[str, Any], judged: Sequence[JudgedCell], fitted: Fitted | None) -> None:
    """A row per cell and metric, the errors over all of them, and what was fitted."""
    rows: list[tuple[Sequence[str], Compared]] = []
    for each in judged:
        name = each.cell.name, "fit" if each.is_fit else "judged"
        for place, (metric, values) in enumerate(each.metrics.items()):
            rows.append(((*(name if place == 0 else ("", "")), metric), values))
    rows += [((pair["name"], pair["role"], "speed-up"), pair) for pair in result["speedups"]]
    lines = [
        f"{metric}: mean absolute error {errors['mean_absolute_error_pct']:.2f} %, mean "
        f"{errors['mean_error_pct']:+.2f} %, largest {errors['max_absolute_error_pct']:.2f} % over "
        f"{errors['cells']} judged"
        for metric, errors in [*result["judged"].items(), ("speed-up", result["speedup"])]
        if errors["cells"]
    ]
    if fitted is not None:
        fit = result["fit"]
        left = f"{fit['error_pct']:.2f} % mean size of error" if fitted.half_widths_s else f"{fit['error_pct']:+.3f} %"
        bound = "; at its bound, 0 is too slow already" if fitted.is_at_bound else ""
        of_lines = ", ".join(map(str, fit["lines"]))
        lines.append(f"{fitted}, fitted on {fit['metric']} of lines {of_lines} ({left} left){bound}")
    title = f"{result['profile']['name']}: closed-loop cells"
    print_compared(title, ("cell", "", "metric"), rows, [*lines, *result["notes"]])
