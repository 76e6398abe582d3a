"""The writer of docs/accuracy.md, with lanesim's errors beside other simulators': `python -m validation accuracy_page`.

Nothing is simulated here. The figures are means over tables in docs/validation, which other programs wrote: accuracy,
silicon_tables, constants, drafted. Errors that others published are quoted from peers.csv, with source and date. A
measurement judges if no constant was fitted on it and its conditions are clear. The prose is templates/accuracy.md.
Not here: single measurements (those tables).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from calibrate.served.load import JUDGED
from sim.metrics.compared import THROUGHPUT
from validation.constants import givers
from validation.judge.evidence import LOADS
from validation.judge.sections import BARS, CELLS, FOLDER, PEER_METRICS, SPEEDUP
from validation.judge.served_judge import REFUSED, SERVED, classes_of
from validation.tables import MISSING, off_pct, page

DOCS = FOLDER.parent
PAGE = DOCS / "accuracy.md"
PEER, AICONFIGURATOR = "AISimulate 0.13", "aiconfigurator 0.12"
"""Who predicts served GPUs, and, before it, closed loops on an H100."""
SHARED_RUN = "codegen"
"""The open loop that other simulators predict, too."""
SERVED_METRICS, RUN_METRICS = ("tpot", "ttft"), ("tpot", "ttft", "e2el")
PRINTED = 0.05
"""Points between two means that are the same in print."""
IN_IDS = str.maketrans("-.", "__")
"""As names of models are in ids of measurements."""
ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
NEAR_ONE = 0.05
"""A measured speed-up this close to 1 has no sign: jobs differ by as much."""
SET_UP = ("gpu", "engine", "target", "method", "k")
DECISIONS = [
    "GPU", "model", "workload", "method", "k", "signs right", "crosses 1 at, real", "lanesim", "error",
    "regret of the best k, %: mean (most)",
]  # fmt: skip
COLUMNS = {
    "tok/s": (THROUGHPUT,),
    "TPOT": ("tpot_ms", "itl_ms"),
    "TTFT": ("ttft_ms",),
    "speed-up": (SPEEDUP,),
    "acceptance length": ("acceptance_length",),
}
"""Column -> metrics of a measurement, the first that it has."""
CLASSES = {
    "class": "{}", "cells": "{}", "refused": "{}", "predicted": "{:.1f} %", "TPOT": "{:.1f}",
    "signed": "{:+.1f}", "on shared cells": "{:.1f}", "peer there": "{:.1f}", "TTFT": "{:.1f}", "TTFT cells": "{}",
}  # fmt: skip
EXPRESSED_PCT = 95.0
"""Least share of the loads of a class that should be predicted."""
TITLES = {
    "cells": "loads",
    "on shared cells": "where both predict",
    "peer there": PEER,
    "TTFT cells": "TTFT loads",
}


def main(out: Path = PAGE, folder: Path = FOLDER) -> None:
    served, every, pairs, refused = (
        pd.read_csv(folder / name) for name in (SERVED.name, CELLS, "mtp-pairs.csv", REFUSED.name)
    )
    peers, bars = (pd.read_csv(folder / name, dtype=str) for name in ("peers.csv", BARS))
    judged, apart = served[served["role"] == JUDGED], served[served["role"] != JUDGED]
    unseen = left_out(judged)
    runs = pd.DataFrame(run_lines(every, peers))
    lost = behind(judged, runs)
    page(
        out,
        "accuracy",
        summary=summary(unseen, every),
        tpot=beside(unseen, "tpot")[0],
        lost=str(len(lost)),
        behind=lost,
        all_tpot=" and ".join(beside(judged, "tpot")),
        all_ttft=" and ".join(beside(judged, "ttft")),
        loads_of_all=f"{judged['peer_tpot_error_pct'].count():,}",
        met=str((bars["met"] == "yes").sum()),
        bars=str(len(bars)),
        missed=[
            f"{run}: {metric} {error}, bar {bar}" for run, metric, error, bar, met in bars.to_numpy() if met == "no"
        ],
        left=served_table("engine", unseen, unseen["class"].str.split().str[0].map(ENGINES)),
        engines=served_table("engine", judged, family(judged)),
        loads=served_table(
            "requests in flight on a rank", judged, pd.cut(judged["concurrency"], [0, *LOADS], labels=[*LOADS.values()])
        ),
        degrees=served_table("GPUs of a replica", judged, degree(judged)),
        classes=(classes := class_lines(served, refused)),
        short=", ".join(
            f"{name} with {share}"
            for name, share in classes[["class", "predicted"]].to_numpy()
            if float(share.removesuffix(" %")) < EXPRESSED_PCT
        ),
        apart=served_table("role", apart, apart["role"]),
        runs=runs,
        speedups=groups(every.dropna(subset=SPEEDUP), SET_UP[:2] + SET_UP[3:4], {"speed-up": (SPEEDUP,)}).drop(
            columns="peer"
        ),
        small=by_lengths(every, "llama-3.1-8b-instruct"),
        large=by_lengths(every, "llama-3.3-70b-instruct-tp4"),
        decisions=decisions(every),
        mtp=size(pairs["error_pct"]),
        mtp_pairs=str(len(pairs)),
        groups=groups(every, SET_UP, COLUMNS),
    )


# -- the answer


def summary(unseen: pd.DataFrame, every: pd.DataFrame) -> pd.DataFrame:
    """README has the same lines. What was measured here stands on the pages of these measurements."""
    shared = unseen.dropna(subset="peer_tpot_error_pct")
    (tpot, their_tpot), (ttft, their_ttft) = (beside(unseen, metric) for metric in SERVED_METRICS)
    drafted = every[(every["part"] == "specbundle") & (every["role"] == JUDGED)]
    loads, e2el = _figures("validation/real-vllm.md", r"predicted (\d+) loads .*? E2EL is ([\d.]+) % off")
    replays, replayed = _figures("real-gpus.md", r"predicted (\d+) replays .*? ([\d.]+) % off in mean")
    lines = [
        ("time per token under vLLM, SGLang and TensorRT-LLM", "others", f"{len(shared):,} loads", tpot, their_tpot),
        ("time to the first token, loads without a wait for admission", "others",
         f"{(shared['is_starved'] == 0).sum():,} loads", ttft, their_ttft),
        ("speed-up of EAGLE-3 under SGLang on an H200, dense models and experts", "others", f"{len(drafted)} loads",
         size(error_pct(drafted, SPEEDUP)), MISSING),
        ("mean latency of a real vLLM on a CPU, predicted before it was sent the load", "us", f"{loads} loads", e2el,
         MISSING),
        ("mean latency of five schedulers on an H200 and an H100", "us", f"{replays} replays", replayed, MISSING),
    ]  # fmt: skip
    texts = [[*line[:3], *(each if each == MISSING else f"{each} %" for each in line[3:])] for line in lines]
    return pd.DataFrame(texts, columns=["what", "measured by", "number", "lanesim's error", PEER])


def _figures(name: str, pattern: str) -> tuple[str, str]:
    (found,) = re.findall(pattern, " ".join((DOCS / name).read_text().split()))
    return found[0], found[1]


def behind(judged: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Classes of served loads and single runs on which another simulator's error is smaller, the largest first."""
    lines = [
        (f"served loads, {name}", metric.upper(), PEER, *beside(of, metric))
        for name, of in judged.dropna(subset="peer_tpot_error_pct").groupby("class")
        for metric in SERVED_METRICS
    ]
    for run in runs.to_dict("records"):
        for metric in ("TPOT", "TTFT", "E2EL"):
            ours, _, theirs = run[metric].partition(" / ")
            lines.append((run["run"], metric, run["other simulator"], ours, theirs or MISSING))
    lost = [line for line in lines if MISSING not in line and float(line[3]) > float(line[4]) + PRINTED]
    lost.sort(key=lambda line: -float(line[3]))
    return pd.DataFrame(lost, columns=["what", "metric", "other simulator", "lanesim's error, %", "the other's, %"])


# -- errors


def size(errors: pd.Series) -> str:
    """Mean size of errors, to a decimal; nothing of none."""
    sizes = errors.dropna().abs()
    return f"{fmean(sizes):.1f}" if len(sizes) else MISSING


def spread(errors: pd.Series) -> str:
    """Mean size and the largest; nothing of none."""
    sizes = errors.dropna().abs()
    return f"{fmean(sizes):.1f} ({sizes.max():.1f})" if len(sizes) else ""


def error_pct(cells: pd.DataFrame, metric: str, peer: str = "") -> pd.Series:
    """Errors in percent, lanesim's, or of `peer_` the other's; missing where a side is not known."""
    real, simulated = (f"{peer}{metric}_real", f"{peer}{metric}") if peer else (metric, f"{metric}_simulated")
    return off_pct(cells[simulated], cells[real])


# -- served GPUs


def beside(cells: pd.DataFrame, metric: str) -> tuple[str, str]:
    """lanesim's error and the peer's on loads that both predict; first tokens that wait for admission are left out."""
    both = cells.dropna(subset=["peer_tpot_error_pct", f"peer_{metric}_error_pct"])
    if metric == "ttft":
        both = both[both["is_starved"] == 0]
    return size(both[f"{metric}_error_pct"]), size(both[f"peer_{metric}_error_pct"])


def served_table(first: str, cells: pd.DataFrame, groups: pd.Series) -> pd.DataFrame:
    """A line per group, in the order of their names, or of a categorical."""
    lines = []
    for name, of in cells.groupby(groups, observed=True):
        errors = {f"{each.upper()}, lanesim / AISimulate": " / ".join(beside(of, each)) for each in SERVED_METRICS}
        lines.append({first: name, "loads": len(of), "both predict": of["peer_tpot_error_pct"].count(), **errors})
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


def class_lines(served: pd.DataFrame, refused: pd.DataFrame) -> pd.DataFrame:
    """Judged loads by class; `predicted` is the share of all that are not refused."""
    lines = classes_of(served[served["role"] == JUDGED], refused["class"])
    counts = lines["class"].map(served["class"].value_counts())
    lines["predicted"] = 100.0 * counts / (counts + lines["refused"])
    return pd.DataFrame({
        TITLES.get(name, name): lines[name].map(form.format, "ignore") for name, form in CLASSES.items()
    })  # fmt: skip


# -- single runs


def run_lines(every: pd.DataFrame, peers: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """A line for each run that others simulated: lanesim's error and theirs by metric."""
    judged = every[every["role"] == JUDGED]

    def line(run: str, simulator: str, cells: pd.DataFrame) -> dict[str, Any]:
        texts = {}
        for metric in RUN_METRICS:
            ours, theirs = (size(error_pct(cells, f"{metric}_ms", peer)) for peer in ("", "peer_"))
            texts[metric.upper()] = MISSING if ours == theirs == MISSING else f"{ours} / {theirs}"
        return {"run": run, "other simulator": simulator, "loads": len(cells), **texts}

    for title, cells in judged[judged["part"] == "runs"].groupby("run", sort=False):
        yield line(title, "LLMServingSim", cells)
    loops = judged[judged["part"] == "h100"]
    yield line(loops["run"].iloc[0], AICONFIGURATOR, loops)
    stages = every[(every["part"] == "open-loops") & every["workload"].str.startswith(SHARED_RUN)]
    for simulator, of in peers[peers["what"] == SHARED_RUN].groupby("simulator"):
        theirs = dict(zip(of["metric"], of["error_pct"], strict=True))
        texts = {
            metric.upper(): f"{size(whole_run(stages, f'{metric}_ms'))} / {theirs[metric.upper()]}"
            if metric.upper() in theirs
            else MISSING
            for metric in RUN_METRICS
        }
        yield {"run": stages["run"].iloc[0], "other simulator": simulator, "loads": 1, **texts}


def whole_run(stages: pd.DataFrame, metric: str) -> pd.Series:
    """Error of a mean over all requests of a run's stages, percent."""
    sums = stages[[metric, f"{metric}_simulated"]].mul(stages["num_prompts"], axis=0).sum()
    return error_pct(sums.to_frame().T, metric)


# -- speculation


def by_lengths(every: pd.DataFrame, target: str) -> str:
    """Errors of a model's speed-ups, by draft length: `1.2 and 1.0`."""
    cells = every[every["target"] == target]
    return " and ".join(size(error_pct(of, SPEEDUP)) for _, of in cells.groupby("num_speculative_tokens"))


def decisions(cells: pd.DataFrame) -> pd.DataFrame:
    """A line per workload, method and draft length: signs that are right, crossings of 1, and the regret."""
    lines = []
    cells = cells.assign(in_flight=pd.to_numeric(cells["load"], errors="coerce"))
    workloads = cells[cells["decides"] == 1].groupby(["gpu", "engine", "target", "workload"], sort=False)
    for (gpu, _, model, name), members in workloads:
        for method, drafting in members.dropna(subset=SPEEDUP).groupby("method", sort=False):
            regrets = _regrets_pct(members[members["method"].isin(["none", method])])
            regret = f"{fmean(regrets):.2f} ({max(regrets):.2f})" if regrets else ""
            for k, of in drafting.groupby("num_speculative_tokens"):
                real, simulated = of[SPEEDUP], of[f"{SPEEDUP}_simulated"]
                signed = (real - 1.0).abs() > NEAR_ONE
                right = ((real - 1.0) * (simulated - 1.0) > 0.0) & signed
                at = [crossing(list(zip(of["in_flight"], side, strict=True))) for side in (real, simulated)]
                error = "" if at[0] is None or at[1] is None else f"{off_pct(at[1], at[0]):+.1f} %"
                crossings = ["none" if each is None else f"{each:.0f}" for each in at]
                signs = f"{right.sum()} of {signed.sum()}"
                lines.append((gpu, model, name, method, str(k), signs, *crossings, error, regret))
                regret = ""
    return pd.DataFrame(lines, columns=DECISIONS)


def crossing(points: Sequence[tuple[float, float]]) -> float | None:
    """The requests in flight at which the speed-up falls through 1, between two loads on their logs; None where it does
    not.

    >>> crossing([(1, 1.5), (8, 1.2), (32, 0.8)])
    16.0
    """
    for (low, before), (high, after) in pairwise(sorted(points)):
        if before >= 1.0 > after:
            share = (before - 1.0) / (before - after)
            return round(exp(log(low) + share * log(high / low)), 6)
    return None


def _regrets_pct(cells: pd.DataFrame) -> list[float]:
    """Measured throughput, percent, that the draft length loses that is best in the simulation, at each load with
    several lengths."""
    regrets = []
    for _, same_load in cells.dropna(subset=THROUGHPUT).groupby("in_flight", sort=False):
        means = same_load.groupby("num_speculative_tokens", sort=False)[[THROUGHPUT, f"{THROUGHPUT}_simulated"]].mean()
        if len(means) > 1:
            chosen = means[f"{THROUGHPUT}_simulated"].idxmax()
            regrets.append(100.0 * (1.0 - means.loc[chosen, THROUGHPUT] / means[THROUGHPUT].max()))
    return regrets


# -- by GPU, engine and model


def groups(cells: pd.DataFrame, by: Sequence[str], columns: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Errors of judged measurements by some of their fields: mean size and the largest, those of peers on the same
    measurements behind the slash. A column has the first of its metrics that a measurement has."""
    cells = cells.assign(gpu=pd.Categorical(cells["gpu"].fillna(""), cells["gpu"].fillna("").unique()))
    lines = []
    ordered = cells.sort_values(["gpu", "num_speculative_tokens"], kind="stable")
    for names, of in ordered.groupby(list(by), sort=False, observed=True):
        judged = of[of["role"] == JUDGED]
        line = dict(zip(by, names, strict=True)) | {"judged": f"{len(judged)} of {len(of)}"}
        for title, metrics in columns.items():
            ours = _first(judged, metrics)
            theirs = _first(judged, [name for name in metrics if name in PEER_METRICS], "peer_")[ours.notna()]
            line[title] = " / ".join(filter(None, (spread(ours), spread(theirs)))) or MISSING
        lines.append(line | {"peer": next(iter(of["peer"].dropna()), "")})
    return pd.DataFrame(lines).rename(columns={"gpu": "GPU", "target": "model"})


def _first(cells: pd.DataFrame, metrics: Sequence[str], peer: str = "") -> pd.Series:
    """Error of the first metric that has one, line by line."""
    errors = pd.DataFrame({name: error_pct(cells, name, peer) for name in metrics}, index=cells.index, dtype=float)
    return errors.assign(none=float("nan")).bfill(axis=1).iloc[:, 0]
