"""docs/leaderboard.md: every figure of lanesim beside whoever else predicts the same cells: `python -m validation
leaderboard`.

Nothing is simulated here: figures are means over cells that other commands wrote (in docs/validation: served-cells.csv
by silicon_page, accuracy-cells.csv by accuracy, constants.csv by constants, mtp-pairs.csv by drafted), and errors that
are reported of other simulators (peers.csv beside this file: quoted, each with its source and date). A cell is judged
where no constant was fitted on it and its labels hold. The page's prose is templates/leaderboard.md. Not here: single
cells, classes of served cells (docs/silicon.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from calibrate.served.load import FITTED, JUDGED
from validation.constants import givers
from validation.judge.accuracy_page import error_pct, spread
from validation.judge.evidence import LOADS
from validation.judge.specs import specs
from validation.tables import MISSING, page

DOCS = Path(__file__).parents[2] / "docs"
PAGE, FOLDER, PEERS = DOCS / "leaderboard.md", DOCS / "validation", Path(__file__).parent / "peers.csv"
PEER, AICONFIGURATOR = "AISimulate 0.13", "aiconfigurator 0.12"
"""Who predicts served cells, and, before it, closed loops on an H100."""
SHARED_RUN = "codegen"
"""The open loop that other simulators predict, too."""
METRICS, RUN_METRICS = ("tpot", "ttft"), ("tpot", "ttft", "e2el")
LEVEL = 0.05
"""Points between two means that are the same in print."""
IN_IDS = str.maketrans("-.", "__")
"""As names of models are in ids of cells."""
ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}


def size(errors: pd.Series) -> str:
    """Mean size of errors, to a decimal; nothing of none."""
    known = errors.dropna().abs()
    return f"{fmean(known):.1f}" if len(known) else MISSING


def beside(cells: pd.DataFrame, metric: str) -> tuple[str, str]:
    """lanesim's error and the peer's on cells that both predict; first tokens that wait for admission are left out."""
    both = cells.dropna(subset=f"peer_{metric}_error_pct")
    if metric == "ttft":
        both = both[both["is_starved"] == 0]
    return size(both[f"{metric}_error_pct"]), size(both[f"peer_{metric}_error_pct"])


def served_table(first: str, cells: pd.DataFrame, groups: pd.Series) -> pd.DataFrame:
    """A line per group, in the order of their names, or of a categorical."""
    lines = []
    for name, of in cells.groupby(groups, observed=True):
        shared = of.dropna(subset="peer_tpot_error_pct")
        pairs = {f"{each.upper()}, lanesim / AISimulate": " / ".join(beside(shared, each)) for each in METRICS}
        lines.append({first: name, "cells": len(of), "shared": len(shared), **pairs})
    return pd.DataFrame(lines)


def left_out(cells: pd.DataFrame) -> pd.DataFrame:
    """Those of models that had no part in a constant of their engine."""

    def has_part(cell: pd.Series) -> bool:
        return any(model.translate(IN_IDS) in cell["id"] for model in givers(cell["class"].split()[0]))

    return cells[~cells.apply(has_part, axis=1)]


def family(cells: pd.DataFrame) -> pd.Series:
    parts = cells["class"].str.split(" ", n=2, expand=True)
    return parts[0].map(ENGINES) + parts[1].map({"moe": ", mixtures of experts", "dense": ", dense"})


def degree(cells: pd.DataFrame) -> pd.Series:
    tensor = "TP " + cells["tensor_parallel"].astype(str)
    return tensor.where(cells["data_parallel"] == 1, "data-parallel attention")


def is_behind(cells: pd.DataFrame, metric: str) -> bool:
    ours, theirs = beside(cells, metric)
    return MISSING not in (ours, theirs) and float(ours) > float(theirs) + LEVEL


def answer(judged: pd.DataFrame, runs: pd.DataFrame) -> str:
    """The page's first sentence; `runs` as run_lines has them."""
    shared = judged.dropna(subset="peer_tpot_error_pct")
    unseen = left_out(shared)
    (tpot, their_tpot), (ttft, their_ttft) = (beside(unseen, metric) for metric in METRICS)
    all_of = [" / ".join(beside(shared, metric)) for metric in METRICS]
    losses = []
    for metric in METRICS:
        if lost := [name for name, of in shared.groupby("class") if is_behind(of, metric)]:
            losses.append(f"{metric.upper()} in {len(lost)} of {shared['class'].nunique()} classes ({', '.join(lost)})")
    pairs = [
        (float(ours), float(theirs), run["run"], metric.upper())
        for run in runs.to_dict("records")
        for metric in RUN_METRICS
        for ours, _, theirs in [run[metric.upper()].partition(" / ")]
        if MISSING not in run[metric.upper()]
    ]
    lost_runs = sum(ours > theirs + LEVEL for ours, theirs, *_ in pairs)
    worst, _, run, metric = max((pair for pair in pairs if pair[0] > pair[1]), default=(0.0, 0.0, "", ""))
    return (
        f"**lanesim's TPOT is {tpot} % off, {PEER}'s {their_tpot} %, on {len(unseen):,} measured loads of models that "
        f"no constant was fitted on.** TTFT is {ttft} and {their_ttft} % off. On all {len(shared):,} loads TPOT is "
        f"{all_of[0]} % off. Their TTFT is {all_of[1]} % off. lanesim is behind in "
        f"{' and in '.join(losses) or 'no class'}. "
        f"On single runs it is behind in {lost_runs} of {len(pairs)} comparisons. "
        f"The worst is its {metric}, {worst} % off: {run}."
    )


def run_lines(every: pd.DataFrame, peers: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """A line for each run that others simulated: lanesim's error and theirs by metric."""
    titles = pd.DataFrame([(spec.part, spec.title) for spec in specs()], columns=["part", "title"])
    titles_of = titles.groupby("part")["title"].apply(list)
    judged = every[every["role"] == JUDGED]

    def line(run: str, simulator: str, cells: pd.DataFrame) -> dict[str, Any]:
        texts = {}
        for metric in RUN_METRICS:
            ours, theirs = (size(error_pct(cells, f"{metric}_ms", peer)) for peer in ("", "peer_"))
            texts[metric.upper()] = MISSING if ours == theirs == MISSING else f"{ours} / {theirs}"
        return {"run": run, "other simulator": simulator, "cells": len(cells), **texts}

    runs = judged[judged["part"] == "runs"]
    for index, title in enumerate(titles_of["runs"]):
        yield line(title, "LLMServingSim", runs.iloc[[index]])
    yield line(titles_of["h100"][0], AICONFIGURATOR, judged[judged["part"] == "h100"])
    stages = every[(every["part"] == "open-loops") & every["workload"].str.startswith(SHARED_RUN)]
    for simulator, of in peers[peers["what"] == SHARED_RUN].groupby("simulator"):
        theirs = dict(zip(of["metric"], of["error_pct"], strict=True))
        texts = {
            metric.upper(): f"{size(whole_run(stages, f'{metric}_ms'))} / {theirs[metric.upper()]}"
            if metric.upper() in theirs
            else MISSING
            for metric in RUN_METRICS
        }
        yield {"run": titles_of["open-loops"][0], "other simulator": simulator, "cells": 1, **texts}


def whole_run(stages: pd.DataFrame, metric: str) -> pd.Series:
    """Error of a mean over all requests of a run's stages, percent."""
    sums = stages[[metric, f"{metric}_simulated"]].mul(stages["num_prompts"], axis=0).sum()
    return error_pct(sums.to_frame().T, metric)


def mtp_lines(pairs: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """A line per format, lengths and degrees: pairs, loads, the length that was fitted, the error and its drift."""
    spread = (", EP " + pairs["expert_parallel"].astype(str)).where(pairs["expert_parallel"] != 1, "")
    deployments = pairs["group"] + ", TP " + pairs["tensor_parallel"].astype(str) + spread
    for name, of in pairs.sort_values("concurrency", kind="stable").groupby(deployments):
        errors = of["error_pct"].tolist()
        yield {
            "GPU, format, lengths, degrees": name,
            "pairs": len(of),
            "in flight": ", ".join(map(str, of["concurrency"])),
            "length fitted": of["acceptance_length"].iloc[0],
            "error": size(of["error_pct"]),
            "drift": f"{errors[-1] - errors[0]:+.1f}" if len(of) > 1 else MISSING,
        }


def speculation_lines(every: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """A line per GPU, engine and method: speed-ups, those that constants were fitted on apart."""
    pairs = every.assign(error=error_pct(every, "speedup")).dropna(subset="error")
    for name, of in pairs.groupby(["gpu", "engine", "method"]):
        fitted, judged = (of["error"][(of["role"] == FITTED) == is_fit] for is_fit in (True, False))
        yield {
            "GPU, engine, method": ", ".join(name),
            "judged pairs": len(judged),
            "error": spread(judged) or MISSING,
            "fitted on": len(fitted),
            "error there": size(fitted),
        }


def by_lengths(every: pd.DataFrame, target: str) -> str:
    """Errors of a model's speed-ups, by draft length: `1.2 and 1.0`."""
    cells = every[(every["target"] == target) & (every["num_speculative_tokens"] != "0")]
    return " and ".join(size(error_pct(of, "speedup")) for _, of in cells.groupby("num_speculative_tokens"))


def published(peers: pd.DataFrame) -> pd.DataFrame:
    """Errors that are published of others on their cells: a line per simulator and set of runs."""
    others = peers[peers["what"] != SHARED_RUN]
    keys = ["simulator", "what"]
    ttft = others[others["metric"] == "TTFT"].set_index(keys)["error_pct"].rename("TTFT")
    e2el = others[others["metric"] == "E2EL"].rename(columns={"error_pct": "E2EL"})
    return e2el.join(ttft, on=keys)[[*keys, "E2EL", "TTFT", "runs", "source", "date"]]


def main(out: Path = PAGE, folder: Path = FOLDER) -> None:
    served, every, pairs = (
        pd.read_csv(folder / f"{name}.csv") for name in ("served-cells", "accuracy-cells", "mtp-pairs")
    )
    peers = pd.read_csv(PEERS, dtype=str)
    judged, apart = served[served["role"] == JUDGED], served[served["role"] != JUDGED]
    runs = pd.DataFrame(run_lines(every, peers))
    page(
        out,
        "leaderboard",
        answer=answer(judged, runs),
        left=served_table("engine", left_out(judged), left_out(judged)["class"].str.split().str[0].map(ENGINES)),
        engines=served_table("engine", judged, family(judged)),
        loads=served_table(
            "load of one rank", judged, pd.cut(judged["concurrency"], [0, *LOADS], labels=[*LOADS.values()])
        ),
        degrees=served_table("GPUs of a replica", judged, degree(judged)),
        apart=served_table("role", apart, apart["role"]),
        runs=runs,
        speedups=pd.DataFrame(speculation_lines(every)),
        small=by_lengths(every, "llama-3.1-8b-instruct"),
        large=by_lengths(every, "llama-3.3-70b-instruct-tp4"),
        mtp=pd.DataFrame(mtp_lines(pairs)),
        published=published(peers),
        constants=pd.read_csv(folder / "constants.csv", dtype=str).drop(columns=["digest"]),
    )
