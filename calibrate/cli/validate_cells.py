"""`lanesim validate cells`: the command line of calibrate.served.judge. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from calibrate.cli.engine_flags import (
    Budget,
    JudgingFlags,
    Requests,
    Seats,
    cells_of,
    check_outputs,
    set_up,
    write_result,
)
from calibrate.cli.profile_output import print_compared
from sim.cli.console import progress
from sim.cli.flags import ARGUMENT, command

if TYPE_CHECKING:
    from calibrate.served.load import JudgedLoad
    from sim.metrics.compared import Compared

EXAMPLE = (
    "lanesim validate cells silicon.csv --profile h100-sxm/llama-3.1-8b \\\n"
    "    --columns isl=input_len,osl=output_len,batch_size=concurrency,silicon_tpot_ms=tpot_ms"
)


class CellsFlags(JudgingFlags, frozen=True, kw_only=True):
    """Flags of cells."""

    path: Annotated[Path, ARGUMENT, Meta(title="TABLE.csv")]
    columns: Annotated[str | None, Meta(title="THEIRS=OURS,..."), "Read a foreign table's columns as ours."] = None
    requests: Requests | None = None
    max_num_seqs: Seats | None = None
    max_num_batched_tokens: Budget | None = None


@command("cells", CellsFlags, example=EXAMPLE)
def cells_command(flags: CellsFlags) -> None:
    """Simulate the closed-loop cells of TABLE.csv and say how far off the simulator was at each.

    Columns: concurrency, input_len, output_len; optional num_prompts, num_speculative_tokens, acceptance_length (bonus
    included) or acceptance, output_len_std and output_len_max (outputs vary) or random_range_ratio (both lengths vary,
    as in a scenario), max_num_seqs, max_num_batched_tokens, num_gpu_blocks,
    label, arm, role; and what was measured: means ttft_ms, tpot_ms, itl_ms, e2el_ms, output_throughput
    (tokens/s), percentiles such as ttft_p95_ms and tpot_p50_ms. Cells without speculation run `autoregressive`, others
    `continuous`; those whose role is `fitted` judge nothing.

    Where cells with and without speculation pair up (same label, or the same up to its last "/" without an arm; same
    concurrency and lengths), the speed-up in output_throughput is compared, too.
    """
    from calibrate.served.judge import FIGURE, draw_cells, judge_cells, result_of
    from calibrate.served.load_table import parse_columns, read_cells, read_request_list
    from sim.costs.profile_files import load

    check_outputs(flags, [flags.path, flags.requests, flags.profile, flags.engine], [FIGURE])
    limits = {"max_num_seqs": flags.max_num_seqs, "max_num_batched_tokens": flags.max_num_batched_tokens}
    raw = set_up(flags.engine, flags.set, **limits)
    setup = cells_of(raw, read_request_list(flags.requests) if flags.requests is not None else ())
    profile = load(flags.profile)
    table = read_cells(flags.path, parse_columns(flags.columns), has_requests=flags.requests is not None)
    with progress() as on_step:
        judged = judge_cells(table, profile, setup, partial(on_step, "simulating"))
    result = result_of(table, judged, profile, setup)
    if flags.plots and flags.out is not None:
        draw_cells(flags.out, judged, f"{profile.name}: error of {len(judged)} closed-loop cells")
    write_result(result, flags)
    if flags.json != "-":
        _tell(result, judged)


def _tell(result: dict[str, Any], judged: Sequence[JudgedLoad]) -> None:
    """A row per cell and metric, and the errors over all of them."""
    rows: list[tuple[Sequence[str], Compared]] = []
    for each in judged:
        name = each.cell.name, "fit" if each.is_fit else "judged"
        for index, (metric, values) in enumerate(each.metrics.items()):
            rows.append(((*(name if index == 0 else ("", "")), metric), values))
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
