"""GH200: Apertus 8B, plain, with EAGLE-3 and DSpark in vLLM 0.23, constants of the GPU from its own steps alone.

Not here: other cells (validation.accuracy.closed_loops), the matrix (validation.accuracy.matrix).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from calibrate.cli.engine_flags import engine_block
from calibrate.fit.step_times import fit_steps, read_curve
from calibrate.judge.cell import JudgedCell
from calibrate.judge.cell_table import CellTable, cells_of, read_request_list
from calibrate.judge.cells import Setup, judge_cells, simulate_cell, speedups
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from validation.accuracy.closed_loops import cells_table, error_lines, judged_errors, pairs_table
from validation.accuracy.matrix import rows_of_cells
from validation.accuracy.sections import Line, Section, profile_text
from validation.tables import csv_rows

STUDY = "unlicensed_local_only/apertus_gh200"
SOURCE = (
    "swiss-ai/apertus-speculative-decoding, commits 869be8c, e1c97f5 and c266682 (no licence; figures quoted): vLLM "
    "0.23.1rc1, bf16, one GH200 of 95 GiB, greedy, natural ends, closed loops over the same 128 prompts in whole "
    "passes, prefix caching off; two plain jobs, every other arm one; jobs differ by up to 6 %"
)
PROFILE = "gh200/apertus-8b+eagle3"
DSPARK_PROFILE = "gh200/apertus-8b+dspark"
TTFT_TEXT = (
    "TTFT at concurrency 1 is 22 to 28 % too short on chat, and no constant of the engine mends it: without drafts "
    "the median is 24.5 ms and the 95th percentile 47.9, 18.5 and 45.8 here, and the medians of the study's "
    "workloads of short prompts are all 22 to 25 ms. So prompts that fit a captured size, up to 512 tokens, wait "
    "for a floor of about 20 ms of host time whatever their length, which the step curve does not have (7 ms at 128"
    " tokens): presumably attention launched between captured pieces, as beyond 512 tokens, where the curve's own "
    "floor is 27 ms. Time before the engine, such as the 7.6 ms of the A100, would be right in the mean (+2 %), but"
    " not at the 95th percentile (+11 %) and at concurrency 8 (+11 %, -3 % without). Nothing is fitted on it"
)
WORKLOADS = ("chat", "summarization")
PLAIN, EAGLE, DSPARK = "none", "eagle31", "dspark"
"""Methods as the study names them."""
SPREAD_K = 3
"""Draft length of the cells that the spread of requests is fitted on: their p95 TPOT, chat."""
MAX_SPREAD = 4.0
BLOCK_SIZE = 16
PLAIN_BARS, SPEEDUP_BARS, DSPARK_BARS, P95_BAR = (3.0, 8.0), (3.0,), (6.0,), 15.0
MEASURED_COLUMNS = {
    "output_throughput": "output_tok_per_s",
    "ttft_ms": "ttft_mean_ms",
    "tpot_ms": "tpot_mean_ms",
    "tpot_p95_ms": "tpot_p95_ms",
    "itl_p50_ms": "itl_chunk_p50_ms",
}


def setup(data: Path, workload: str, method: str = "eagle3") -> Setup:
    return Setup(
        engine=engine_block(
            {
                "engine_name": "vllm-0.23",
                "max_num_seqs": 256,
                "max_num_batched_tokens": 16384,
                "enable_prefix_caching": False,
            }
        ),
        requests=read_request_list(data / STUDY / f"lengths_{workload}.csv"),
        method=method,
    )


def gh200_section(data: Path) -> Section:
    folder = data / STUDY
    profile = load(PROFILE)
    again = fit_steps(profile, read_curve(folder / "step_time.csv"), "its steps").profile
    judged: list[JudgedCell] = []
    for workload in WORKLOADS:
        table = gh200_table(folder, workload)
        judged += judge_cells(table, [False] * len(table.cells), profile, setup(data, workload))
    table = gh200_table(folder, "chat", (DSPARK,))
    dspark = judge_cells(table, [False] * len(table.cells), load(DSPARK_PROFILE), setup(data, "chat", DSPARK))
    spread, tails = _tails(data, profile)
    plain = [each for each in judged if each.cell.num_speculative_tokens == 0]
    drafting = [each for each in judged if each.cell.num_speculative_tokens]
    pairs = speedups(judged)
    lines: list[Line] = []
    for workload in WORKLOADS:
        errors = judged_errors([each for each in plain if each.cell.label == workload], "output_throughput")
        lines += error_lines(f"tok/s, plain, {workload}, {len(errors)} cells", errors, *PLAIN_BARS)
    errors = judged_errors(drafting, "output_throughput")
    lines += error_lines(f"tok/s, EAGLE-3, chat, {len(errors)} cells", errors)
    lines += error_lines(
        f"speed-up, EAGLE-3, chat, {len(pairs)} pairs", [pair["error_pct"] for pair in pairs], *SPEEDUP_BARS
    )
    dspark_pairs = speedups([*plain, *dspark])
    gains = [pair["error_pct"] for pair in dspark_pairs]
    errors = judged_errors(dspark, "output_throughput")
    lines += error_lines(f"tok/s, DSpark, chat, {len(errors)} cells", errors)
    lines += error_lines(f"speed-up, DSpark, chat, {len(gains)} pairs", gains, *DSPARK_BARS)
    sizes = [each for each in tails if each.cell.num_speculative_tokens != SPREAD_K]
    p95 = judged_errors(sizes, "tpot_p95_ms")
    lines += error_lines(
        f"p95 TPOT with a spread of requests, k other than {SPREAD_K}, {len(p95)} cells", p95, None, P95_BAR
    )
    with_spread = judged_errors(tails, "output_throughput")
    lines += error_lines(f"tok/s with that spread, {len(with_spread)} cells", with_spread)
    titles = {
        "output_throughput": "tok/s",
        "tpot_ms": "TPOT (ms)",
        "ttft_ms": "TTFT (ms)",
        "itl_p50_ms": "ITL p50 (ms)",
    }
    about = [
        SOURCE,
        profile_text(profile),
        "fitted: nothing on these cells. The layers' constants come from 25 step times of the plain model "
        f"(`calibrate.fit.step_times`; fitted anew here: compute share {again.compact.gemm.compute_share:.4f}, "
        f"{profile.compact.gemm.compute_share:.4f} in the profile), acceptance rates by place from each cell",
        f"fitted: spread of requests, {spread:.2f} on the logit scale, on the p95 TPOT of chat at k = {SPREAD_K}; used "
        "for p95 TPOT and for the line that says so, every other figure is without",
        "EAGLE-3 and DSpark on summarization are not judged here",
        TTFT_TEXT,
    ]
    tail = "\n".join(
        [
            cells_table([*judged, *dspark], titles),
            pairs_table([*pairs, *dspark_pairs]),
            f"With the spread of requests ({spread:.2f}):\n",
            cells_table(tails, {"tpot_p95_ms": "TPOT p95 (ms)", "output_throughput": "tok/s"}),
        ]
    )
    here = partial(rows_of_cells, gpu="GH200", engine="vllm-0.23", model="apertus-8b")
    rows = here(judged, method="eagle3")
    rows += [row for row in here([*plain, *dspark], method=DSPARK) if row.k]
    return Section(
        title="GH200, Apertus 8B, vLLM 0.23, EAGLE-3 and DSpark", about=about, lines=lines, tail=tail, rows=rows
    )


def _tails(data: Path, profile: Profile) -> tuple[float, list[JudgedCell]]:
    """The spread for which the p95 TPOT of the chat cells at SPREAD_K is right in the mean, and all drafting chat cells
    with it."""
    from scipy.optimize import brentq

    table = gh200_table(data / STUDY, "chat")
    cells = [cell for cell in table.cells if cell.num_speculative_tokens]
    plain = setup(data, "chat")

    def mean_error(spread: float) -> float:
        chosen = replace(plain, acceptance_spread=spread)
        return fmean(
            simulate_cell(cell, profile, chosen)["p95_tpot_ms"] / cell.measured["tpot_p95_ms"] - 1.0
            for cell in cells
            if cell.num_speculative_tokens == SPREAD_K
        )

    spread = round(float(brentq(mean_error, 0.0, MAX_SPREAD, xtol=0.01)), 2)
    is_fit = [cell.num_speculative_tokens == SPREAD_K for cell in cells]
    drafting = CellTable(path=table.path, cells=cells, unused=[])
    return spread, judge_cells(drafting, is_fit, profile, replace(plain, acceptance_spread=spread))


def gh200_table(folder: Path, workload: str, methods: Sequence[str] = (PLAIN, EAGLE)) -> CellTable:
    """The cells of `workload` in the study's folder that draft by one of `methods`."""
    cells, rates = csv_rows(folder / "cells.csv"), csv_rows(folder / "per_position.csv")
    rows = [_row(cell, rates) for cell in cells if cell["workload"] == workload and cell["method"] in methods]
    return cells_of(f"gh200-{workload}-{methods[-1]}.csv", rows, has_requests=True)


def _row(cell: dict[str, str], rates: Sequence[dict[str, str]]) -> dict[str, Any]:
    """A cell of the study as one of ours; its acceptance is the one that was measured in it."""
    own = sorted(
        (int(rate["position"]), rate["accept_rate_at_position"])
        for rate in rates
        if all(rate[name] == cell[name] for name in ("sweep", "arm", "workload", "concurrency"))
    )
    pool = cell["kv_pool_tokens"]
    return {
        "label": cell["workload"],
        "arm": cell["arm"],
        "concurrency": cell["concurrency"],
        "num_prompts": cell["requests"],
        "num_speculative_tokens": cell["k"],
        "acceptance": "vllm:" + ",".join(rate for _, rate in own) if own else "",
        "num_gpu_blocks": int(pool) // BLOCK_SIZE if pool else "",
        **{ours: cell[theirs] for ours, theirs in MEASURED_COLUMNS.items()},
    }
