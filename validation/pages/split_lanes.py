"""Prefill and decode as two processes on one H200, beside one process: a page of sglang-omni, predicted and judged.

    python -m validation split_lanes DATA --out PREDICTED.json      # reads the loads, and TPOT of one process
    python -m validation split_lanes DATA --predicted-file PREDICTED.json   # reads the rest, and judges

DATA has serving_facts/lanes_tiers_amd_measured.csv. Host time of a step is fitted to the TPOT of one process at three
prompt lengths; all else is predicted. The page does not say how long outputs are (about 32 tokens, by Little's law) nor
how they vary: uniform from half to one and a half times that, since equal ones keep all requests in step. Two GPUs
(1P1D) are `disaggregated`. Not here: the rates of two processes (sim.devices.contention).
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import numpy as np
import pandas as pd
from scipy.optimize import minimize_scalar

from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.metrics.summary import number, summarise
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate
from validation.tables import markdown, off_pct

PROFILE = "h200-sxm/qwen3-30b-a3b"
ENGINE = "sglang-0.5"
TABLE = Path("serving_facts") / "lanes_tiers_amd_measured.csv"
MODEL = "Qwen3-Omni thinker (30B-A3B)"
ONE = "colocated"
SEATS, OUTPUT_TOKENS, VARIATION, NUM_PROMPTS = 4, 32, 0.5, 400
LANES = {lane: {"max_num_seqs": SEATS} for lane in ("prefill", "decode")}
PROCESSES = {"devices.overlap": "processes", "policy_options.lanes": LANES}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "slices of time": ("pd", PROCESSES),
    "MPS at phi 0.1": ("pd", PROCESSES | {"devices.phi": 0.1}),
    "streams of one process": ("pd", {"policy_options.lanes": LANES}),
}
"""What two lanes on one GPU may be: policy and keys."""
METRICS = {"request_throughput": "req_s", "median_ttft_ms": "ttft_p50_s", "median_tpot_ms": "tpot_s"}
BARS_PCT = {"TPOT": 10.0, "requests/s ratio": 5.0, "TTFT ratio": 25.0}


def rows_of(data: Path, columns: list[str]) -> pd.DataFrame:
    """The model's rows: loads, and `columns` of what was measured."""
    table = pd.read_csv(data / TABLE)
    return table[table["model"] == MODEL][["gpu", "arm", "prompt", "concurrency", *columns]].reset_index(drop=True)


def profile_with(step_s: float) -> Profile:
    """The profile, its engine with so much host time of a step, which is not hidden behind the GPU."""
    profile = load(PROFILE)
    host = msgspec.structs.replace(profile.host, engine=ENGINE, step_s=step_s, is_async=False)
    return msgspec.structs.replace(profile, host=host)


def served(profile: Profile, policy: str, prompt: int, concurrency: int, keys: dict[str, Any]) -> dict[str, float]:
    scenario = Scenario.of(
        profile=PROFILE,
        policy=policy,
        input_len=prompt,
        output_len=OUTPUT_TOKENS,
        max_concurrency=concurrency,
        num_prompts=NUM_PROMPTS,
        num_speculative_tokens=0,
        **{"engine.max_num_seqs": SEATS, "workload.random_range_ratio": VARIATION, **keys},
    )
    run = summarise(simulate(resolve(scenario, profile, policy), 0), num_warmups=NUM_PROMPTS // 10)
    return {name: round(number(run, name) or 0.0, 4) for name in METRICS}


def fitted_step_s(rows: pd.DataFrame) -> tuple[float, list[float]]:
    """Host seconds of a step with the least squares of log TPOT of one process, and what is left [rows], percent."""
    tpot_ms = 1e3 * rows["tpot_s"]

    def off(step_s: float) -> pd.Series:
        profile = profile_with(step_s)
        loads = zip(rows["prompt"], rows["concurrency"], strict=True)
        runs = [served(profile, "continuous", int(prompt), int(count), {}) for prompt, count in loads]
        return off_pct(pd.Series([run["median_tpot_ms"] for run in runs], rows.index), tpot_ms)

    best = minimize_scalar(
        lambda step_s: float((np.log1p(off(step_s) / 100.0) ** 2).sum()),
        bounds=(0.0, 0.02),
        method="bounded",
        options={"xatol": 5e-5},
    )
    return round(float(best.x), 5), [round(each, 1) for each in off(best.x)]


def predicted(data: Path) -> dict[str, Any]:
    """The fit, and what every row comes to, by form of two lanes on one GPU."""
    known = rows_of(data, ["tpot_s"])
    rows = rows_of(data, [])
    is_fitted = (known["arm"] == ONE) & (known["concurrency"] == 2 * SEATS)
    step_s, left_pct = fitted_step_s(known[is_fitted])
    run = partial(served, profile_with(step_s))
    cells = []
    for row in rows.to_dict("records"):
        load_of = (int(row["prompt"]), int(row["concurrency"]))
        if row["arm"] == ONE:
            runs = {ONE: run("continuous", *load_of, {})}
        elif row["gpu"].startswith("2x"):
            runs = {"two GPUs": run("disaggregated", *load_of, {})}
        else:
            runs = {form: run(policy, *load_of, keys) for form, (policy, keys) in FORMS.items()}
        cells.append({**row, "runs": runs})
    return {"step_s": step_s, "fit_left_pct": left_pct, "cells": cells}


def judged(data: Path, prediction: dict[str, Any]) -> pd.DataFrame:
    """Errors in percent of TPOT, and of requests/s and TTFT relative to one process, of the rows on one GPU by form."""
    measured = rows_of(data, list(METRICS.values()))
    rows = []
    for (_, seen), cell in zip(measured.iterrows(), prediction["cells"], strict=True):
        if cell["arm"] == ONE or cell["gpu"].startswith("2x"):
            continue
        like = (measured["arm"] == ONE) & (measured["prompt"] == cell["prompt"])
        (one,) = measured[like].to_dict("records")
        (alone,) = [
            each["runs"][ONE]
            for each in prediction["cells"]
            if ONE in each["runs"] and each["prompt"] == cell["prompt"]
        ]
        for form, run in cell["runs"].items():
            said = {name: run[name] / alone[name] for name in METRICS}
            real = {name: seen[column] / one[column] for name, column in METRICS.items()}
            off = {
                "TPOT": off_pct(run["median_tpot_ms"], 1e3 * seen["tpot_s"]),
                "requests/s ratio": off_pct(said["request_throughput"], real["request_throughput"]),
                "TTFT ratio": off_pct(said["median_ttft_ms"], real["median_ttft_ms"]),
            }
            rows.append({"lanes": form, "prompt": cell["prompt"], **off})
    return pd.DataFrame(rows)


def main(data: Path, predicted_file: Path | None = None, out: Path | None = None) -> None:
    if predicted_file is None:
        made = predicted(data)
        print(f"host time of a step {1e3 * made['step_s']:.2f} ms; TPOT of one process off by {made['fit_left_pct']} %")
        if out is not None:
            out.write_text(json.dumps(made, indent=1) + "\n")
        return
    errors = judged(data, json.loads(predicted_file.read_text()))
    shown = errors.assign(**{name: errors[name].map("{:+.1f}".format) for name in BARS_PCT})
    print(markdown(shown))
    for form, of in errors.groupby("lanes", sort=False):
        sizes = {name: fmean(of[name].abs()) for name in BARS_PCT}
        print(f"{form}: " + ", ".join(f"{name} {size:.1f} % (bar {BARS_PCT[name]:g})" for name, size in sizes.items()))
