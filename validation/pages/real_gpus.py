"""docs/real-gpus.md, what real GPUs said: `python -m validation real_gpus`.

It makes the measured profiles anew of their committed points. Then it simulates the committed replays
(docs/validation/*-sxm) and keeps the errors in sim/evidence, which answers quote and take their range from. It writes
the error of a table's verify pass beside a measured one into the profiles of dense models on those GPUs. It needs
committed files alone. Not here: errors of servers (validation.judge.evidence).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import pandas as pd

from calibrate.fit import points_file
from calibrate.fit.fit_errors import compare_points, kind_error
from calibrate.measure.fits.measured_profile import refit
from sim.compare.point_runs import Point, run_point
from sim.costs.profile import MeasuredPoint
from sim.costs.profile_files import load, ship_profile, shipped
from sim.metrics.compared import EQUAL_PCT
from sim.metrics.summary import number
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.studies.evidence import EvidenceCell, asked_of
from sim.studies.served_errors import ERRORS, SetUp, served_errors
from validation.judge.evidence import REPLAYS, log_time, text_of_errors, write_cells
from validation.tables import csv_rows, grouped, page

DOCS = Path(__file__).parents[2] / "docs"
PAGE, FOLDER = DOCS / "real-gpus.md", DOCS / "validation"
TARGET, PAIR = "llama-3.1-8b", "llama-3.1-8b+llama-3.2-1b"
PROMPTS = {1: 6, 16: 48, 64: 128}
"""Requests in flight of a replay -> its requests (the campaign at f4bb89cd)."""
BESIDE = "continuous"
UNJUDGED, OVER_DECODE = "not validated", "over decode"
"""Beginnings of what profiles say of the error of verify: without one, and with this program's."""


def runs() -> Iterator[tuple[str, int, dict[str, Any]]]:
    """GPU, requests in flight and record of every replay."""
    for path in sorted(FOLDER.glob("*-sxm/c*.json"), key=lambda path: (path.parent.name, int(path.stem[1:]))):
        for run in msgspec.json.decode(path.read_bytes())["runs"]:
            yield path.parent.name, int(path.stem[1:]), run


def replays() -> Iterator[EvidenceCell]:
    """What two GPUs ran after it had been predicted, beside what is simulated of it now."""
    for gpu, in_flight, run in runs():
        scenario = Scenario.of(
            profile=f"{gpu}/{PAIR}-measured", policy=run["policy"], input_len=512, output_len=128, max_num_seqs=64,
            request_rate="inf", max_concurrency=in_flight, num_prompts=PROMPTS[in_flight],
        )  # fmt: skip
        resolved = resolve(scenario, load(scenario.profile), run["policy"])
        asked, real_ms = asked_of(resolved, (in_flight, in_flight)), run["metrics"]["e2el"]["mean"]["real"]
        simulated_ms = number(run_point(Point(resolved=resolved, seed=run["seed"])).run, "mean_e2el_ms") or 0.0
        yield EvidenceCell(
            gpu=gpu, engine=asked.engine, model=TARGET, method=asked.method, k=asked.ks[0], in_flight=in_flight,
            workload=asked.workload, metric="E2EL", error_pct=round(100.0 * (simulated_ms / real_ms - 1.0), 1),
            speedup_error_pct=None, source=f"docs/validation/{gpu}, predicted before it ran", policy=run["policy"],
            measured_ms=round(real_ms, 1),
        )  # fmt: skip


def predicted_ms() -> dict[tuple[str, int, str], float]:
    """Mean E2EL that was committed before a replay ran, by GPU, requests in flight and policy. The H100's stand on its
    page, as its own records were simulated after it had been measured."""
    stated = {(gpu, load, run["policy"]): run["metrics"]["e2el"]["mean"]["simulated"] for gpu, load, run in runs()}
    table = re.findall(
        r"^\| (\d+) \| (\w+) \| [\d,]+ \| ([\d,]+) \|", (FOLDER / "h100-sxm/README.md").read_text(), re.M
    )
    return stated | {("h100-sxm", int(load), policy): float(ms.replace(",", "")) for load, policy, ms in table}


def replay_rows(cells: Iterable[EvidenceCell]) -> Iterator[dict[str, Any]]:
    """A line per replay: measured, predicted before, simulated now, and its sign beside `continuous`."""
    of = {(cell.gpu, cell.in_flight, cell.policy): cell for cell in cells}
    for (gpu, in_flight, policy), before_ms in predicted_ms().items():
        if (cell := of.get((gpu, in_flight, policy))) is None:
            continue
        beside = of[gpu, in_flight, BESIDE]
        now_ms, beside_ms = (each.measured_ms * (1.0 + each.error_pct / 100.0) for each in (cell, beside))
        signs = 100.0 * (cell.measured_ms / beside.measured_ms - 1.0), 100.0 * (now_ms / beside_ms - 1.0)
        words = ["equal" if abs(each) < EQUAL_PCT else "faster" if each < 0.0 else "slower" for each in signs]
        yield {
            "GPU": gpu.partition("-")[0].upper(), "in flight": in_flight, "policy": policy,
            "measured ms": f"{cell.measured_ms:,.0f}", "predicted ms": f"{before_ms:,.0f}",
            "error": f"{100.0 * (before_ms / cell.measured_ms - 1.0):+.1f} %", "error now": f"{cell.error_pct:+.1f} %",
            "beside continuous": "–" if cell is beside else f"{signs[0]:+.1f} %",
            "simulated now": "–" if cell is beside else f"{signs[1]:+.1f} %",
            "sign": "–" if cell is beside else "right" if words[0] == words[1] else "wrong",
        }  # fmt: skip


def target_points(path: Path) -> list[MeasuredPoint]:
    """Captured decode and verify passes of the target alone, timed by themselves or before a second stream joined."""
    lines = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    points = [msgspec.convert(line["point"], MeasuredPoint) for line in lines if "point" in line]
    for ran in (line["rates"] for line in lines if "rates" in line):
        for timed, side in zip(ran["corun"][0], ran["sides"], strict=False):
            if side["share"] == 1.0:
                fields = dict(zip(("kind", "model", "rows", "tokens", "context_tokens", "launch"), timed, strict=True))
                points.append(msgspec.structs.replace(points[0], **fields, device_s=side["alone_s"]))
    return [
        point for point in points
        if point.model == "target" and point.kind in ("decode", "verify") and point.launch == "graphed"
    ]  # fmt: skip


def verify_errors() -> pd.DataFrame:
    """Relative error of a table-made verify pass by GPU and drafted tokens, as it is and over decode: our kernels are
    not the table's, and decode of the same rows and context is as far off."""
    rows = [
        (path.parent.name, point.rows, point.context_tokens, point.tokens - 1, 1.0 + error.relative_error)
        for path in sorted(FOLDER.glob("*-sxm/*.points.jsonl"))
        for points in (target_points(path),)
        for point, error in zip(points, compare_points(load(f"{path.parent.name}/{TARGET}"), points), strict=True)
    ]
    shape = ["gpu", "rows", "context"]
    frame = pd.DataFrame(rows, columns=[*shape, "K", "verify"]).groupby([*shape, "K"], as_index=False).mean()
    decode = frame[frame["K"] == 0].drop(columns="K").rename(columns={"verify": "decode"})
    both = frame[frame["K"] > 0].merge(decode, on=shape)
    return both.assign(over_decode=both["verify"] / both["decode"] - 1.0, verify=both["verify"] - 1.0)


def state_verify(errors: pd.DataFrame) -> None:
    """Writes the error over decode into profiles of dense models on the measured GPUs, which state none."""
    sizes = 100.0 * errors["over_decode"].abs().groupby(errors["K"]).mean()
    by_k = ", ".join(f"{size:.1f} % at K = {k}" for k, size in sizes.items())
    how = f"{OVER_DECODE}, {by_k}: tables of {TARGET} beside passes measured on an H100 and an H200"
    stated = {"verify": kind_error(errors["over_decode"].to_numpy(), how)}
    for profile in map(load, shipped()):
        known = profile.errors.get("verify")
        is_like = profile.gpu.name in set(errors["gpu"]) and not profile.target.experts
        if is_like and known is not None and known.held_out.startswith((UNJUDGED, OVER_DECODE)):
            ship_profile(msgspec.structs.replace(profile, errors=profile.errors | stated))


def verify_rows(errors: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for (gpu, k), of in errors.groupby(["gpu", "K"]):
        verify, beyond = (100.0 * of[name] for name in ("verify", "over_decode"))
        yield {
            "GPU": gpu.partition("-")[0].upper(), "K": k, "shapes": len(of), "verify": f"{verify.mean():+.1f} %",
            "over decode": f"{beyond.mean():+.1f} %", "largest": f"{beyond.abs().max():.1f} %",
        }  # fmt: skip


def main(out: Path = PAGE) -> None:
    warnings.simplefilter("ignore")  # 8,192 prompt tokens are beyond the measured ones, as they were before the replays
    for points in FOLDER.glob("*-sxm/*.points.jsonl"):
        ship_profile(refit(points_file.read(points), load(f"{points.parent.name}/{PAIR}-measured")))
    ran = list(replays())
    write_cells(ran, lambda cell: bool(cell.policy))
    errors, logs = served_errors(), grouped(ran, lambda cell: (REPLAYS, cell.gpu, cell.model, cell.policy))
    ours = [SetUp(*of[:3], round(fmean(map(log_time, cells)), 4), len(cells)) for of, cells in logs.items()]
    others = [each for each in errors.set_ups if each.engine != REPLAYS]
    ERRORS.write_text(text_of_errors(msgspec.structs.replace(errors, set_ups=(*others, *ours))))
    verify = verify_errors()
    state_verify(verify)
    rows = list(replay_rows(ran))
    signs = [row["sign"] for row in rows if row["sign"] != "–"]
    sizes = [abs(cell.error_pct) for cell in ran]
    page(
        out,
        "real_gpus",
        count=str(len(ran)),
        size=f"{fmean(sizes):.1f} %",
        low=f"{-min(cell.error_pct for cell in ran):.1f} %",
        high=f"{max(cell.error_pct for cell in ran):.1f} %",
        right=str(signs.count("right")),
        signs=str(len(signs)),
        replays=pd.DataFrame(rows),
        verify=pd.DataFrame(verify_rows(verify)),
        levels=pd.DataFrame(csv_rows(FOLDER / "levels.csv")),
    )
    print(f"{len(ran)} replays: {fmean(sizes):.1f} % off; {signs.count('right')} of {len(signs)} signs right")
