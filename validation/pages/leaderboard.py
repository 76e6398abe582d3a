"""docs/leaderboard.md: every figure of lanesim beside whoever else predicts the same cells: `python -m validation
leaderboard`.

Nothing is simulated here: figures are means over cells that other commands wrote (in docs/validation: served-cells.csv
by silicon_page, accuracy-cells.csv by accuracy, left-out.csv by left_out, mtp-pairs.csv by drafted), and errors
reported of other simulators (peers.csv beside this file: quoted, each with its source and date). A cell is judged where
no constant was fitted on it and its labels hold. Not here: single cells, classes of served cells (docs/silicon.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path

from validation.accuracy.specs import specs
from validation.tables import csv_rows, grouped, markdown_table, mean_size, off_pct

DOCS = Path(__file__).parents[2] / "docs"
PAGE, FOLDER, PEERS = DOCS / "leaderboard.md", DOCS / "validation", Path(__file__).parent / "peers.csv"
SERVED, ACCURACY, LEFT_OUT, MTP = "served-cells.csv", "accuracy-cells.csv", "left-out.csv", "mtp-pairs.csv"
AICONFIGURATOR = "aiconfigurator 0.12"
SHARED_RUN = "codegen"
"""The open loop that other simulators predict, too."""
JUDGED, FITTED, DOUBTFUL = "judged", "fitted", "doubtful"
METRICS, RUN_METRICS = ("tpot", "ttft"), ("TPOT", "TTFT", "E2EL")
LEVEL = 0.05
"""Points between two means that are the same in print."""
LOADS = ((1, 8), (9, 32), (33, 128), (129, None))
"""Requests in flight of one rank, first and last."""
ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
Cells = Sequence[Mapping[str, str]]
SERVED_HEADINGS = ["cells", "shared", "TPOT, lanesim / aiconfigurator", "TTFT, lanesim / aiconfigurator"]
HEAD = """
Written by `python -m validation leaderboard` from what other commands computed. Mean size of the error in percent,
lanesim's before the slash and the other simulator's behind it, on the same cells. No constant was fitted on a judged
cell, but all are visible ones, on which structure was looked for.

## Served cells, judged

Closed loops of three engines ([by class](silicon.md), [every cell](validation/served-cells.csv)); TTFT without cells
whose requests wait for admission.
"""
APART = """Apart: cells that constants were fitted on, and those whose labels cannot be.
"""
RUNS = """## Runs, judged

Means of single runs, and closed loops ([every cell](validation/accuracy-cells.csv)); a dash where a constant was fitted
on the figure or nobody has one. The open loop is of BLIS's authors, whose repository has the errors of five simulators
on it (no licence: figures quoted, sizes without a sign; to BLIS (evolved) its set is `trainval`; the server was traced,
which takes host time). No other cell here is known to have been predicted by them.
"""
SPECULATION = """## Speculation

Errors of measured speed-ups, the largest in brackets ([the decisions that follow](accuracy.md)). No figure of another
simulator for these pairs is known.
"""
MTP_TEXT = """DeepSeek-R1 with three MTP tokens under TensorRT-LLM, beside plain runs of the week before; rows do not
say that they draft ([every pair](validation/mtp-pairs.csv), `python -m validation drafted CELLS.csv`). Acceptance is
not recorded: one length is fitted per format and pair of lengths, so that these pairs judge how a speed-up goes with
load. Drift: the error at the highest load less that at the lowest.
"""
PUBLISHED = """## What is published of others, on cells of their own

Other runs and other engines, so not to be compared with the above. Quoted as published.
"""
CONSTANTS = """## Constants of engines without each of their sources

A pooled constant in milliseconds, what it would be without one source, and that source as the judge of both: mean size
of the error on its cells, its own engine with this one constant replaced (`python -m validation left_out DATA`).
"""
SINGLE = """Of one source each, so that nothing can be left out: `row_s` (vLLM 0.12, Qwen3-32B; a second source, for
half of it, is in [engines](validation/engines.md)); `step_s` of trtllm-1.0 on H100 (nine cells of Llama-3.1-8B);
`step_s` and `draft_phase_s` of vllm-0.9 (vllm#20780); `step_s`, `draft_pass_s` and `gap_s` of sglang-0.5 on H200
(SpecBundle's 8B; its file has what one data set less makes of them); `frontend_s` and `draft_pass_s` of vllm-0.24 on
A100; `gap_s` and `prompt_launch_s` of vllm-0.12, by GPU and degree. Not refitted: `frontend_s` and `frontend_token_s`
of vllm-0.12 and 0.19, which come from marked cells of several models, because nothing here fits the two together.
"""


def size(errors: Iterable[str]) -> str:
    """Mean size of errors as they stand in a table; nothing of none."""
    mean = mean_size(float(error.rstrip(" %")) for error in errors if error.rstrip(" %") not in ("", "–"))
    return "–" if mean is None else f"{mean:.1f}"


def beside(cells: Cells, metric: str) -> tuple[str, str]:
    """lanesim's error and the peer's on cells that both predict; first tokens that wait for admission are left out."""
    both = [cell for cell in cells if cell[f"peer_{metric}_error_pct"]]
    if metric == "ttft":
        both = [cell for cell in both if cell["is_starved"] == "0"]
    return size(cell[f"{metric}_error_pct"] for cell in both), size(cell[f"peer_{metric}_error_pct"] for cell in both)


def served_line(title: str, cells: Cells) -> list[str]:
    shared = [cell for cell in cells if cell["peer_tpot_error_pct"]]
    return [title, str(len(cells)), str(len(shared)), *(" / ".join(beside(shared, metric)) for metric in METRICS)]


def served_table(first: str, groups: Mapping[str, Cells]) -> str:
    return markdown_table([first, *SERVED_HEADINGS], [served_line(*group) for group in groups.items() if group[1]])


def ordered(cells: Cells, key: Callable[[Mapping[str, str]], str]) -> dict[str, Cells]:
    """Groups in the order of their keys."""
    return dict(sorted(grouped(cells, key).items()))


def family(cell: Mapping[str, str]) -> str:
    engine, kind, _ = cell["class"].split(" ", 2)
    return f"{ENGINES[engine]}, {'mixtures of experts' if kind == 'moe' else 'dense'}"


def load_of(cell: Mapping[str, str]) -> str:
    in_flight = int(cell["concurrency"])
    first, last = next(load for load in LOADS if load[1] is None or in_flight <= load[1])
    return f"{first} and more in flight" if last is None else f"{first} to {last} in flight"


def degree_of(cell: Mapping[str, str]) -> str:
    return "data-parallel attention" if int(cell["data_parallel"]) > 1 else f"TP {cell['tensor_parallel']}"


def by_load(cells: Cells) -> Mapping[str, Cells]:
    return grouped(sorted(cells, key=lambda cell: int(cell["concurrency"])), load_of)


def behind(cells: Cells) -> dict[str, list[str]]:
    """Classes in which the peer is nearer, by metric."""
    return {
        metric: [name for name, of in ordered(cells, itemgetter("class")).items() if _is_behind(of, metric)]
        for metric in METRICS
    }


def _is_behind(cells: Cells, metric: str) -> bool:
    ours, theirs = beside(cells, metric)
    return "–" not in (ours, theirs) and float(ours) > float(theirs) + LEVEL


def answer(served: Cells, compared: Cells) -> str:
    """The page's first sentence; `compared` as run_lines has them."""
    judged = [cell for cell in served if cell["role"] == JUDGED and cell["peer_tpot_error_pct"]]
    (tpot, their_tpot), (ttft, their_ttft) = (beside(judged, metric) for metric in METRICS)
    num_classes = len({cell["class"] for cell in judged})
    losses = [f"{metric.upper()} in {_named(lost, num_classes)}" for metric, lost in behind(judged).items() if lost]
    pairs = [
        (float(ours), float(theirs), line["run"], metric)
        for line in compared
        for metric in RUN_METRICS
        for ours, _, theirs in [line[metric].partition(" / ")]
        if "–" not in line[metric]
    ]
    lost = sum(ours > theirs + LEVEL for ours, theirs, _, _ in pairs)
    worst, _, run, metric = max((pair for pair in pairs if pair[0] > pair[1]), default=(0.0, 0.0, "", ""))
    return (
        f"**On {len(judged):,} measured serving cells that nobody fitted on, lanesim's TPOT is off by {tpot} %, "
        f"{AICONFIGURATOR}'s by {their_tpot} %; TTFT by {ttft} and {their_ttft} %. lanesim is behind in "
        f"{'; '.join(losses) or 'no class'}; and in {lost} of {len(pairs)} comparisons on single runs, worst where its "
        f"{metric} is {worst} % off ({run}).**"
    )


def _named(classes: Sequence[str], of: int) -> str:
    return f"{len(classes)} of {of} classes ({', '.join(classes)})"


def error_of(row: Mapping[str, str], metric: str, peer: bool = False) -> str:
    """Error in percent of a row of accuracy-cells.csv, lanesim's or the peer's; empty where one side is not known."""
    real, simulated = (f"peer_{metric}_real", f"peer_{metric}") if peer else (metric, f"{metric}_simulated")
    return f"{off_pct(float(row[simulated]), float(row[real])):+.6f}" if row[real] and row[simulated] else ""


def run_lines(every: Cells, peers: Cells) -> Iterator[dict[str, str]]:
    """A line for each run that others simulated: RUN_METRICS, lanesim's error and theirs."""
    titles = grouped(specs(), lambda spec: spec.part)
    by_part = grouped(every, itemgetter("part"))
    columns = {metric: f"{metric.lower()}_ms" for metric in RUN_METRICS}
    for spec, row in zip(titles["runs"], by_part["runs"], strict=True):
        pairs = {
            metric: f"{size([error_of(row, column)])} / {size([error_of(row, column, peer=True)])}"
            for metric, column in columns.items()
        }
        yield {"run": spec.title, "other simulator": "LLMServingSim", "cells": "1", **pairs}
    cells = [row for row in by_part["h100"] if row["role"] == JUDGED]
    pairs = {
        metric: f"{size(error_of(row, columns[metric]) for row in cells)} / "
        f"{size(error_of(row, columns[metric], peer=True) for row in cells)}"
        for metric in ("TPOT", "TTFT")
    }
    yield {
        "run": titles["h100"][0].title, "other simulator": AICONFIGURATOR, "cells": str(len(cells)), **pairs,
        "E2EL": "–",
    }  # fmt: skip
    stages = [row for row in by_part["open-loops"] if row["workload"].startswith(SHARED_RUN)]
    shared = [peer for peer in peers if peer["what"] == SHARED_RUN]
    for simulator, of_simulator in ordered(shared, itemgetter("simulator")).items():
        pairs = {
            peer["metric"]: f"{size([whole_run(stages, columns[peer['metric']])])} / {peer['error_pct']}"
            for peer in of_simulator
        }
        in_order = {metric: pairs.get(metric, "–") for metric in RUN_METRICS}
        yield {"run": titles["open-loops"][0].title, "other simulator": simulator, "cells": "1", **in_order}


def whole_run(stages: Cells, metric: str) -> str:
    """Error of a mean over all requests of a run's stages."""
    weights = [int(stage["num_prompts"]) for stage in stages]
    real, simulated = (
        sum(weight * float(stage[f"{metric}{side}"]) for weight, stage in zip(weights, stages, strict=True))
        for side in ("", "_simulated")
    )
    return f"{off_pct(simulated, real):+.6f}"


def mtp_lines(pairs: Cells) -> Iterator[list[str]]:
    """A line per format, lengths and degrees: pairs, loads, the length that was fitted, the error and its drift."""

    def deployment(pair: Mapping[str, str]) -> str:
        spread = f", EP {pair['expert_parallel']}" if pair["expert_parallel"] != "1" else ""
        return f"{pair['group']}, TP {pair['tensor_parallel']}{spread}"

    for name, rows in ordered(pairs, deployment).items():
        in_load = sorted(rows, key=lambda row: int(row["concurrency"]))
        errors = [float(row["error_pct"]) for row in in_load]
        drift = f"{errors[-1] - errors[0]:+.1f}" if len(errors) > 1 else "–"
        loads = ", ".join(row["concurrency"] for row in in_load)
        yield [name, str(len(rows)), loads, rows[0]["acceptance_length"], size(row["error_pct"] for row in rows), drift]


def published_lines(peers: Cells) -> Iterator[list[str]]:
    """A line per simulator and set of runs."""
    for peer in peers:
        if peer["what"] != SHARED_RUN and peer["metric"] == "E2EL":
            same = [
                other for other in peers if (other["simulator"], other["what"]) == (peer["simulator"], peer["what"])
            ]
            ttft = next((other["error_pct"] for other in same if other["metric"] == "TTFT"), "–")
            about = [peer[name] for name in ("runs", "source", "date")]
            yield [peer["simulator"], peer["what"], peer["error_pct"], ttft, *about]


def speculation_lines(every: Cells) -> Iterator[list[str]]:
    """A line per GPU, engine and method: speed-ups, those that constants were fitted on apart."""
    pairs = [row for row in every if row["speedup"]]
    for name, rows in ordered(pairs, lambda row: f"{row['gpu']}, {row['engine']}, {row['method']}").items():
        judged, fitted = (
            [error_of(row, "speedup") for row in rows if (row["role"] == FITTED) == is_fit] for is_fit in (False, True)
        )
        largest = max((abs(float(error)) for error in judged), default=0.0)
        yield [
            name,
            str(len(judged)),
            f"{size(judged)} ({largest:.1f})" if judged else "–",
            str(len(fitted)),
            size(fitted),
        ]


def page(folder: Path = FOLDER, peers_path: Path = PEERS) -> str:
    served, left_out, drafted = (csv_rows(folder / name) for name in (SERVED, LEFT_OUT, MTP))
    peers = csv_rows(peers_path)
    every = csv_rows(folder / ACCURACY)
    by_role = grouped(served, itemgetter("role"))
    judged = by_role[JUDGED]
    compared = list(run_lines(every, peers))
    roles = {role: by_role.get(role, []) for role in (FITTED, DOUBTFUL)}
    pair_headings = ["GPU, engine, method", "judged pairs", "error", "fitted on", "error there"]
    mtp_headings = ["GPU, format, lengths, degrees", "pairs", "in flight", "length fitted", "error", "drift"]
    left_headings = ["constant", "engine", "left out", "its own", "pooled", "without", "judged by", "cells"]
    return "\n".join(
        [
            "# Leaderboard of simulators\n",
            answer(served, compared),
            HEAD,
            served_table("engine", ordered(judged, family)),
            served_table("load of one rank", by_load(judged)),
            served_table("GPUs of a replica", ordered(judged, degree_of)),
            APART,
            served_table("role", roles),
            RUNS,
            markdown_table(list(compared[0]), [list(line.values()) for line in compared], left=2),
            SPECULATION,
            markdown_table(pair_headings, list(speculation_lines(every))),
            MTP_TEXT,
            markdown_table(mtp_headings, list(mtp_lines(drafted))),
            PUBLISHED,
            markdown_table(
                ["simulator", "what", "E2EL", "TTFT", "runs", "source", "date"], list(published_lines(peers)), left=2
            ),
            CONSTANTS,
            markdown_table(
                [*left_headings, "error, pooled", "without"], [list(row.values()) for row in left_out], left=3
            ),
            SINGLE,
        ]
    )


def main(out: Path = PAGE) -> None:
    out.write_text(page())
