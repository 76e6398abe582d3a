"""Published comparisons of one plain stream with two, beside what `leftover`, `serial` and full overlap make of them.

    python -m validation overlap DATA

DATA has corun.csv and pegainfer/. No profile has those models on those GPUs, so the cells are ratios in closed form,
from published times alone. A pass of prefill takes P alone and a decode step d, with as many kernels each, so that the
prefill's share is s = P / (P + d), its rate beside decode r = s + phi (1 - s), and decode's q = 1 - s + phi s:
- TPOT: a prefill lasts P / r, of which decode loses 1 - q: L = s (1 - phi) / r of P, all of it at phi = 0 (serial).
- TTFT: P / r instead of P + d, and the queue in front of it likewise.
- A gap of decode: d / q, or d + L P where the prefill ends first.
Full overlap, the bound of roofs, is phi = 1. With one request in flight nothing overlaps. What the constant was chosen
on stands apart from what judges it. Cells without a published time of decode alone have no prediction. Shares of the
multiprocessors that hold while several lanes have work are simulated, too. Not here: the rates
(sim.devices.contention).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import linear_regression
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pandas as pd

from calibrate.catalogue.derived_profiles import with_models
from sim.costs.datasheets import DATASHEETS
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.costs.shapes import MODELS
from sim.devices.contention import ASSUMED_PHI
from sim.devices.partition import MEASURED, Portion, rates_on_shares
from sim.metrics.summary import Run, number, summarise
from sim.policies.options import DEFERRED, ONLY_TOGETHER
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate
from validation.tables import markdown, off_pct

CHOSEN = "phi was chosen on it"
LEFTOVER = "leftover"
FORMS = {LEFTOVER: ASSUMED_PHI.value, "serial": 0.0, "full overlap (bound of roofs)": 1.0}
"""Phi of each form that is shown beside the measurement."""
SIMULATED_ON = "rtx-4090/qwen3-8b"
"""Whose constants stand in for those of an RTX 5090, with its roofs: no kernel of one is public."""
QWEN3_4B = msgspec.structs.replace(
    MODELS["qwen3-32b"], name="qwen3-4b", layers=36, hidden=2560, intermediate=9728, heads=32, tied_embeddings=True
)
SHARED_SMS = 32
"""Multiprocessors that decode has in pegainfer's partition, which its flag rounds to 20 %."""
NUM_PROMPTS = 1000
BAR_POINTS = 3.0
"""Mean size of the error of TPOT changes that the judging cells may have."""
SHARED_METRICS = {"TPOT mean": "tpot_mean_ms", "TTFT mean": "ttft_mean_ms", "ITL p99": "itl_p99_ms"}
LOAD = ["gpu", "table", "isl", "osl", "qps", "concurrency"]
COLUMNS = ["name", "metric", "one", "two", "is_judge", "alone", "prefill", "prefill_rate", "decode_rate"]
"""A cell: a metric of one plain stream and of two; the time of decode steps beside which nothing is prefilled and that
of a chunk's pass alone (0 = none beside decode), missing where they were not published; rates of prefill and decode
beside each other on shares of the multiprocessors, missing on plain streams."""


def frame(cells: list[dict[str, Any]]) -> pd.DataFrame:
    kinds = dict.fromkeys([name for name in COLUMNS[2:] if name != "is_judge"], float) | {"is_judge": bool}
    return pd.DataFrame(cells, columns=COLUMNS).astype(kinds)


def predicted_pct(cells: pd.DataFrame, phi: float) -> pd.Series:
    """The change that two plain streams at `phi` make, or shares where a cell has them, percent; missing where
    unknown."""
    decode, prefill = cells["alone"], cells["prefill"]
    prefill_share, decode_share = prefill / (prefill + decode), decode / (decode + prefill)
    prefill_rate = cells["prefill_rate"].fillna(prefill_share + phi * (1.0 - prefill_share))
    decode_rate = cells["decode_rate"].fillna(decode_share + phi * (1.0 - decode_share))
    lost = (1.0 - decode_rate) / prefill_rate
    ends_first = decode / decode_rate < prefill / prefill_rate
    gap = (decode / decode_rate).where(ends_first, decode + lost * prefill)
    change = 100.0 * (lost - 1.0) * (cells["one"] - decode) / cells["one"]
    change = change.mask(cells["metric"].str.contains("p99"), off_pct(gap, decode + prefill))
    change = change.mask(cells["metric"].str.startswith("TTFT"), off_pct(prefill / prefill_rate, prefill + decode))
    return change.mask(prefill == 0.0, 0.0)


def published(rows: pd.DataFrame) -> pd.DataFrame:
    """Cells of corun.csv as it has them."""
    names = rows["gpu"] + ", " + rows["what"]
    sides = {"one": rows["one_stream"], "two": rows["two_plain_streams"], "is_judge": rows["use"] != CHOSEN}
    cells = pd.DataFrame({"name": names, "metric": rows["metric"], **sides})
    return cells.reindex(columns=COLUMNS)


def gaps_of_chunks(rows: pd.DataFrame) -> pd.DataFrame:
    """Gaps of decode beside one chunk of several lengths: the intercept over lengths stands for a decode alone."""
    cells = published(rows[rows["what"].str.startswith("decode beside a chunk of ")])
    if len(cells) < 2:
        return cells[:0]
    alone = linear_regression(cells["name"].str.rsplit(n=1).str[1].astype(float), cells["one"]).intercept
    return cells.assign(alone=alone, prefill=cells["one"] - alone)


def served(runs: pd.DataFrame) -> pd.DataFrame:
    """Mean TPOT and median TTFT of modes `off` and `stream` of one table and load; the median gap stands for a decode
    alone, the 99th percentile less it for a prefill."""
    timed = runs.dropna(subset=["tpot_mean_ms", "itl_p50_ms"])
    off, stream = (timed[timed["mode"] == mode] for mode in ("off", "stream"))
    cells = [
        {
            "name": f"{row['gpu']}, {row['table']}, {load_of(row)}",
            "metric": metric,
            "one": row[key],
            "two": row[f"{key}_two"],
            "is_judge": True,
            "alone": row["itl_p50_ms"],
            "prefill": 0.0 if row["concurrency"] == 1.0 else row["itl_p99_ms"] - row["itl_p50_ms"],
        }
        for row in off.merge(stream, on=LOAD, suffixes=("", "_two")).to_dict("records")
        for metric, key in (("TPOT mean", "tpot_mean_ms"), ("TTFT median", "ttft_p50_ms"))
    ]
    return frame(cells).dropna(subset=["one", "two"])


def load_of(row: Mapping[str, Any]) -> str:
    """Lengths, and rate or concurrency."""
    load = f"c={row['concurrency']:g}" if pd.isna(row["qps"]) else f"{row['qps']:g} req/s"
    return f"{row['isl']:g}->{row['osl']:g}, {load}"


def injected(rows: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Gaps of decode beside injected prompts: the second file has the time of decode alone."""
    off = runs[runs["mode"] == "off"].dropna(subset="decode_only_itl_p50_ms")
    alone = dict(zip(off["itl_p99_ms"].round(1), off["decode_only_itl_p50_ms"], strict=True))
    cells = published(rows[rows["metric"] == "decode gap p99"])
    cells = cells.assign(alone=cells["one"].map(alone))
    return cells.assign(prefill=cells["one"] - cells["alone"]).dropna(subset="alone")


def partitioned(runs: pd.DataFrame) -> pd.DataFrame:
    """A share of the multiprocessors for decode while a prefill runs, against one stream; the median TPOT at the lowest
    rate of the same model and lengths stands for a decode alone. Prefill is taken to be all compute, decode to be all
    bandwidth, each on its curve (sim.devices.partition)."""
    cells = []
    percents = runs["mode"].str.extract(r"^green-ctx (\d+)%")[0]
    for (_, row), percent in zip(runs[percents.notna()].iterrows(), percents.dropna(), strict=True):
        like = runs[(runs[["gpu", "isl", "osl"]] == row[["gpu", "isl", "osl"]]).all(axis=1)]
        (off,) = like[(like["mode"] == "off") & (like["table"] == row["table"])].to_dict("records")
        lone = like[(like["model"] == row["model"]) & (like["engine"] == row["engine"])].dropna(subset="tpot_p50_ms")
        alone = lone.sort_values(["qps", "tpot_p50_ms"])["tpot_p50_ms"].iloc[0]
        part = int(percent) / 100.0
        portions = [Portion(1.0 - part, True), Portion(part, True)]
        rates = rates_on_shares(portions, (1.0, 1.0), [(1.0, 0.0), (0.0, 1.0)], MEASURED)
        name = f"{row['gpu']}, {row['model']}, {row['mode']}, {row['qps']:g} req/s"
        common = {"name": name, "is_judge": True, "alone": alone, "prefill": off["itl_p99_ms"] - alone}
        common |= {"prefill_rate": rates[0], "decode_rate": rates[1]}
        cells += [
            {**common, "metric": metric, "one": off[key], "two": row[key]} for metric, key in SHARED_METRICS.items()
        ]
    return frame(cells)


class Dynamic(NamedTuple):
    """Percent that `pd` on shares that give way differs by from one stream, in simulations on `profile`."""

    profile: Profile
    at_once: Mapping[str, float]
    """Change of each metric, with prompts that begin when they come."""
    deferred: Mapping[str, float]
    """Change of each metric, with prompts that begin and end where a decode step does."""


def simulated(output_len: int, request_rate: float, prompt_tokens: int) -> Dynamic:
    """The partition on QWEN3_4B. The mean prompt that the engine saw stands for the one that was requested."""
    sheet, base = DATASHEETS["rtx-5090"], with_models(load(SIMULATED_ON), QWEN3_4B, None)
    gemm = msgspec.structs.replace(base.compact.gemm, multiprocessors=sheet.multiprocessors)
    kernels = msgspec.structs.replace(base.compact, gemm=gemm)
    profile = msgspec.structs.replace(base, name="rtx-5090/qwen3-4b", gpu=sheet.gpu, kernels=kernels)

    def run(policy: str, partition: dict[str, float | bool] | None) -> Run:
        scenario = Scenario.of(
            profile=SIMULATED_ON,
            policy=policy,
            input_len=prompt_tokens,
            output_len=output_len,
            request_rate=request_rate,
            num_prompts=NUM_PROMPTS,
            num_speculative_tokens=0,
            **{"engine.name": "ideal", "policy_options.partition": partition},
        )
        return summarise(simulate(resolve(scenario, profile, policy), 0), num_warmups=NUM_PROMPTS // 10)

    share = SHARED_SMS / sheet.multiprocessors
    lanes: dict[str, float | bool] = {"prefill": 1.0 - share, "decode": share, ONLY_TOGETHER: True}
    one = run("autoregressive", None)

    def changes(partition: dict[str, float | bool]) -> dict[str, float]:
        two = run("pd", partition)
        keys = (("TPOT mean", "mean_tpot_ms"), ("TTFT mean", "mean_ttft_ms"), ("ITL p99", "p99_itl_ms"))
        return {metric: off_pct(number(two, key) or 0.0, number(one, key) or 1.0) for metric, key in keys}

    return Dynamic(profile, changes(lanes), changes(lanes | {DEFERRED: True}))


def simulated_of(runs: pd.DataFrame) -> Dynamic:
    """The simulation of the rows with a partition, which are at one load."""
    row = runs[runs["mode"].str.startswith("green-ctx")].iloc[0]
    like = runs[(runs[["isl", "osl", "qps"]] == row[["isl", "osl", "qps"]]).all(axis=1)]
    seen = like["mean_prompt_tokens"].mean()
    return simulated(int(row["osl"]), float(row["qps"]), round(row["isl"] if np.isnan(seen) else seen))


def cells_of(rows: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Cells of both files; a cell of the first that the second has with its times is left to the second."""
    known = [served(runs), gaps_of_chunks(rows), injected(rows, runs), published(rows)]
    every = pd.concat([each.astype({"alone": float, "prefill": float}) for each in known], ignore_index=True)
    return every.drop_duplicates(["metric", "one", "two"])


def error_points(cells: pd.DataFrame, phi: float = ASSUMED_PHI.value) -> float:
    """Mean size of the error of the judging TPOT changes; nan where there is none."""
    judging = cells[cells["is_judge"] & (cells["metric"] == "TPOT mean")]
    return float((predicted_pct(judging, phi) - off_pct(judging["two"], judging["one"])).abs().mean())


def table(cells: pd.DataFrame, made: Mapping[str, pd.Series]) -> str:
    """Table of what was measured of each cell, and of what is made of it, percent."""
    columns = {"measured": off_pct(cells["two"], cells["one"]), **made}
    shown = {title: values.map(lambda value: f"{value:+.1f}", na_action="ignore") for title, values in columns.items()}
    return markdown(cells[["name", "metric"]].rename(columns={"name": "cell"}).assign(**shown))


def report(cells: pd.DataFrame, shares: pd.DataFrame, dynamic: Dynamic) -> str:
    lines = ["Change from one plain stream to two, percent; closed form from published times, not simulated."]
    for is_judge, title in ((True, "Cells that judge phi"), (False, "Cells that phi was chosen on")):
        of = cells[cells["is_judge"] == is_judge]
        lines += ["", f"{title}:", "", table(of, {form: predicted_pct(of, phi) for form, phi in FORMS.items()})]
    errors = {form: error_points(cells, phi) for form, phi in FORMS.items()}
    error = errors.pop(LEFTOVER)
    others = ", ".join(f"{form} {value:.1f}" for form, value in errors.items())
    verdict = "met" if error <= BAR_POINTS else "not met"
    made = {
        "closed form": predicted_pct(shares, 0.0),
        "simulated": shares["metric"].map(dynamic.at_once),
        "prompts deferred": shares["metric"].map(dynamic.deferred),
    }
    right = (off_pct(shares["two"], shares["one"]) * made["prompts deferred"] > 0.0).sum()
    lines += [
        "",
        f"Judging TPOT changes: mean error {error:.1f} points ({others}), bar {BAR_POINTS:g}: {verdict}.",
        "Gaps are in no bar: one constant does not predict them. – : no published time of decode alone.",
        "",
        "Shares of the multiprocessors while both lanes have work, against one stream:",
        "",
        table(shares, made),
        "",
        f"Signs right where prompts are deferred, as that engine does it: {right} of {len(shares)}.",
        f"Simulated: {dynamic.profile.source.partition(';')[0]}; roofs of the {dynamic.profile.gpu.name}.",
    ]
    return "\n".join(lines)


def main(data: Path) -> None:
    runs = pd.read_csv(data / "pegainfer" / "pegainfer_overlap_speculation_rtx5090.csv")
    print(report(cells_of(pd.read_csv(data / "corun.csv"), runs), partitioned(runs), simulated_of(runs)))
