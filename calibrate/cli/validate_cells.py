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
from sim.cli.options import COUNT, UP_TO_BILLION

if TYPE_CHECKING:
    from calibrate.judge.cell import JudgedCell
    from sim.metrics.compared import Compared

EXAMPLE = (
    "\b\nExample:\n  lanesim validate cells silicon.csv --profile h100-sxm/llama-3.1-8b \\\n"
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
    "--requests",
    "requests_path",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE.csv",
    help="The requests of every cell, in order: prompt_tokens, output_tokens. The loop goes through them in whole "
    "passes; input_len and output_len are not needed then.",
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
    path: Path, profile_name: str, columns: str | None, requests_path: Path | None, **flags: Unpack[CellsFlags]
) -> None:
    """Simulate the closed-loop cells of TABLE.csv and say how far off the simulator was at each.

    Columns: concurrency, input_len, output_len; optional num_prompts, num_speculative_tokens, acceptance_length (bonus
    included) or acceptance, output_len_std and output_len_max (outputs vary), max_num_seqs, max_num_batched_tokens,
    num_gpu_blocks, label, arm, role; and what was measured: means ttft_ms, tpot_ms, itl_ms, e2el_ms, output_throughput
    (tokens/s), percentiles such as ttft_p95_ms and tpot_p50_ms. Cells without speculation run `autoregressive`, others
    `continuous`; those whose role is `fitted` judge nothing.

    Where cells with and without speculation pair up (same label, or the same up to its last "/" without an arm; same
    concurrency and lengths), the speed-up in output_throughput is compared, too.
    """
    from calibrate.judge.cell_table import parse_columns, read_cells, read_request_list
    from calibrate.judge.cells import FIGURE, Setup, draw_cells, judge_cells, result_of
    from sim.costs.profile_files import load

    check_outputs(flags, [path, requests_path, profile_name, flags["engine_name"]], [FIGURE])
    setup = Setup(
        engine=engine_block(flags),
        waves=flags["waves"],
        warmup_waves=flags["warmup_waves"],
        method=flags["method"],
        requests=read_request_list(requests_path) if requests_path is not None else (),
        seed=flags["seed"],
    )
    profile = load(profile_name)
    table = read_cells(path, parse_columns(columns), has_requests=requests_path is not None)
    with progress() as on_step:
        judged = judge_cells(table, profile, setup, partial(on_step, "simulating"))
    result = result_of(table, judged, profile, setup)
    if flags["plots"] and flags["out"] is not None:
        draw_cells(flags["out"], judged, f"{profile.name}: error of {len(judged)} closed-loop cells")
    write_result(result, flags)
    if flags["json_path"] != "-":
        _tell(result, judged)


def _tell(result: dict[str, Any], judged: Sequence[JudgedCell]) -> None:
    """A row per cell and metric, and the errors over all of them."""
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
    title = f"{result['profile']['name']}: closed-loop cells"
    print_compared(title, ("cell", "", "metric"), rows, [*lines, *result["notes"]])
