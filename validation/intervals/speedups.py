"""How often the 90 % interval of a speed-up that `tune` states holds the measured one, on cells that no fit saw, and
what deploying its answer would have lost.

    python -m validation accuracy_intervals DATA [--draws 20] [--workers 2]

The acceptance is told as an operator has it: once, at the longest draft that was logged, over all concurrencies; for
shorter ones it is carried. Everything else is the shipped profile and engine. DATA as in `make accuracy-public`.
Not here: speed-ups with the acceptance of each cell (validation.accuracy.gh200, validation.accuracy.closed_loops).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory

from sim.costs.profile_files import load
from sim.run.scenario import Scenario
from sim.studies.tune import Tuning, tune
from validation.accuracy.closed_loops import STUDY, study_cells
from validation.accuracy.gh200 import DSPARK, DSPARK_PROFILE, EAGLE, PLAIN, PROFILE
from validation.accuracy.gh200 import STUDY as GH200_STUDY
from validation.tables import csv_rows, grouped, markdown_table, write_csv

A100_PROFILE, A100_WORKLOAD = "a100-sxm/llama-3.1-8b+eagle3", "gsm8k"
FITTED_CONCURRENCY = 1
"""Concurrency of the A100's EAGLE-3 cells: constants of engines were fitted there."""
PASSES = 8
"""Times that the study's list of prompts is gone through, so that no closed loop runs out of them."""

Measured = Mapping[tuple[int, int], float]
"""Tokens per second by concurrency and draft length, 0 = without a drafter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A drafter whose speed-ups were measured."""

    title: str
    scenario: Scenario
    measured: Measured


def gh200_case(folder: Path, method: str, profile: str, scratch: Path) -> Case:
    """Chat on the GH200."""
    cells = csv_rows(folder / "cells.csv")
    cells = [row for row in cells if row["workload"] == "chat" and row["method"] in (PLAIN, method)]
    settings = grouped(cells, lambda row: (int(row["concurrency"]), int(row["k"])))
    measured = {key: fmean(float(row["output_tok_per_s"]) for row in rows) for key, rows in settings.items()}
    longest = max(k for _, k in measured)
    path = scratch / "chat.csv"
    lengths = enumerate(csv_rows(folder / "lengths_chat.csv") * PASSES)
    requests = ([index, row["prompt_tokens"], row["output_tokens"]] for index, row in lengths)
    write_csv(path, ["arrival_time", "input_len", "output_len"], requests)
    scenario = Scenario.of(
        profile=profile,
        policy="continuous",
        engine="vllm-0.23",
        acceptance=quoted(folder / "per_position.csv", method, longest),
        num_speculative_tokens=longest,
        max_num_seqs=256,
        max_num_batched_tokens=16384,
        dataset_name="csv",
        dataset_path=str(path),
        **{"engine.gpu_memory_utilization": 0.8, "speculation.method": "eagle3" if method == EAGLE else method},
    )
    return Case(title=f"GH200, Apertus 8B, chat, {method}", scenario=scenario, measured=measured)


def quoted(path: Path, method: str, k: int) -> str:
    """Acceptance by position as logged with drafts of `k` tokens, all concurrencies together, weighted by drafts."""
    own = [row for row in csv_rows(path) if (row["method"], row["workload"], int(row["k"])) == (method, "chat", k)]
    rates = []
    for position in range(k):
        here = [row for row in own if int(row["position"]) == position]
        drafts = sum(float(row["drafts"]) for row in here)
        rates.append(sum(float(row["accept_rate_at_position"]) * float(row["drafts"]) for row in here) / drafts)
    return "vllm:" + ",".join(f"{rate:.4f}" for rate in rates)


def a100_case(path: Path) -> Case:
    """EAGLE-3 of vLLM 0.24 on the A100; one draft length, so its acceptance is that length's."""
    cells = [cell for cell in study_cells(csv_rows(path)) if cell["label"] == A100_WORKLOAD]
    drafting = [cell for cell in cells if cell["num_speculative_tokens"]]
    kept = {cell["concurrency"] for cell in drafting} - {FITTED_CONCURRENCY}
    k = drafting[0]["num_speculative_tokens"]
    scenario = Scenario.of(
        profile=A100_PROFILE,
        policy="continuous",
        engine="vllm-0.24",
        acceptance=f"length:{fmean(cell['acceptance_length'] for cell in drafting):.3f}@{k}",
        num_speculative_tokens=k,
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        input_len=cells[0]["input_len"],
        output_len=cells[0]["output_len"],
    )
    measured = {
        (cell["concurrency"], cell["num_speculative_tokens"]): cell["output_throughput"]
        for cell in cells
        if cell["concurrency"] in kept
    }
    return Case(title=f"A100, Llama-3.1-8B, {A100_WORKLOAD}, EAGLE-3", scenario=scenario, measured=measured)


def judged(case: Case, found: Tuning) -> Iterator[tuple[int, int, float, float, tuple[float, float]]]:
    """(concurrency, K, measured speed-up, stated one, its interval) of every drafting cell."""
    for point in found.points:
        for length in point.lengths:
            value = case.measured.get((point.concurrency, length.k))
            if length.k and value is not None and length.speedup is not None and length.interval is not None:
                real = value / case.measured[point.concurrency, 0]
                yield point.concurrency, length.k, real, length.speedup, length.interval


def regrets(case: Case, found: Tuning) -> list[float]:
    """What the answer's length loses against the best measured one, share, at each concurrency."""
    lost = []
    for point in found.points:
        own = {k: value for (concurrency, k), value in case.measured.items() if concurrency == point.concurrency}
        lost.append(1.0 - own[point.k] / max(own.values()))
    return lost


def main(data: Path, draws: int = 20, workers: int = 2) -> None:
    warnings.simplefilter("ignore")
    held = total = 0
    widths: list[float] = []
    with TemporaryDirectory() as scratch:
        cases = [
            gh200_case(data / GH200_STUDY, EAGLE, PROFILE, Path(scratch)),
            gh200_case(data / GH200_STUDY, DSPARK, DSPARK_PROFILE, Path(scratch)),
            a100_case(data / STUDY),
        ]
        for case in cases:
            found = tune(
                case.scenario,
                load(case.scenario.profile),
                lengths=sorted({k for _, k in case.measured}),
                concurrencies=sorted({concurrency for concurrency, _ in case.measured}),
                draws=draws,
                workers=workers,
            )
            rows = []
            for concurrency, k, real, stated, (low, high) in judged(case, found):
                total += 1
                held += low <= real <= high
                widths.append((high - low) / stated)
                rows.append([f"{concurrency}", f"{k}", f"{real:.3f}", f"{stated:.3f}", f"{low:.3f} to {high:.3f}"])
            lost = regrets(case, found)
            print(f"\n{case.title}; {case.scenario.speculation.acceptance}; {found.verdict}")
            print(f"regret against the best measured length: mean {fmean(lost):.2%}, worst {max(lost):.2%}\n")
            print(markdown_table(["c", "K", "measured", "stated", "90 % interval"], rows, left=0))
    print(f"{held} of {total} measured speed-ups within the 90 % interval; median width {median(widths):.1%} of it")
