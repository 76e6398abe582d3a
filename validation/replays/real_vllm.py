"""docs/validation/real-vllm: a real vLLM on this CPU, predicted from outside and then sent what was predicted.

`make real-vllm` runs this with vLLM's Python. Stage `predict` starts every server once, looks at it and has `lanesim
validate --predict-only` write what each load will come to: commit that. Stage `run` starts the servers again and sends
the loads, every one so many times by turns; stage `page` reads what `lanesim validate` wrote. The server has the first
core, the client another. Not here: fitting and judging (calibrate.server), models (realrun.installed).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal
from urllib.error import URLError
from urllib.request import urlopen

from calibrate.server.open_loop import Sent
from calibrate.server.probe import WORDS
from calibrate.server.served_run import ServedRun, read_run
from realrun.installed.real_engine import ALONE, make_served_models
from sim.cli.main import run as lanesim
from validation.tables import page

URL, PORT = "http://127.0.0.1:8123", "8123"
DRAFT_MODEL = {"method": "draft_model", "num_speculative_tokens": 3}
NGRAM = {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1, "num_speculative_tokens": 3}
SERVERS: dict[str, dict[str, Any] | None] = {
    "off": None,
    "good-3": DRAFT_MODEL | {"model": "good"},
    "good-1": DRAFT_MODEL | {"model": "good", "num_speculative_tokens": 1},
    "fair-3": DRAFT_MODEL | {"model": "fair"},
    "poor-3": DRAFT_MODEL | {"model": "poor"},
    "ngram-3": NGRAM,
}
"""Name -> vLLM's --speculative-config."""
LOADS = {"1": 30, "2.5": 60, "4": 80}
"""Requests per second -> requests."""
LIGHTEST = next(iter(LOADS))
TOGETHER_S = 2e-3
"""Tokens that come within so much of each other are of one step."""
START_S = 300.0
ENVIRONMENT = ALONE | {"VLLM_CPU_KVCACHE_SPACE": "2", "OMP_NUM_THREADS": "1"}
SCENARIO = (
    *("--input-len", "100", "--output-len", "28", "--set", "workload.random_range_ratio=0.6"),
    *("--set", "engine.max_num_seqs=32", "--set", "engine.max_num_batched_tokens=2048"),
    *("--levels", "1,2,4,8", "--rounds", "2", "--max-requests", "5000", "--overwrite"),
)
SHOWN = {"mean_tpot_ms": "TPOT", "mean_ttft_ms": "TTFT", "mean_e2el_ms": "E2EL", "p95_e2el_ms": "p95 E2EL"}
BARS = {
    "mean_tpot_ms": ("mean TPOT", 5.0),
    "mean_e2el_ms": ("mean E2EL", 5.0),
    "p95_e2el_ms": ("p95 E2EL", 10.0),
    "p99_e2el_ms": ("p99 E2EL", 10.0),
    "mean_ttft_ms": ("mean TTFT", 15.0),
    "output_throughput": ("throughput", 3.0),
}
"""Metric -> its name and the percent that a prediction may be off, set before anything was sent."""


def main(
    results: Path = Path("results/real-vllm"),
    report: Path = Path("docs/validation/real-vllm"),
    stage: Literal["predict", "run", "page"] = "predict",
    rounds: int = 2,
    only: str = ",".join(SERVERS),
) -> None:
    """`results` keeps models and looks, `report` what is committed; `only` names servers."""
    chosen = only.split(",")
    if stage == "page":
        write_page(report)
        return
    models = results / "models"
    if not (models / "target").exists():
        make_served_models(models, WORDS)
    report.mkdir(parents=True, exist_ok=True)
    for name in chosen:
        with serving(models, SERVERS[name]):
            if stage == "predict":
                for rate in LOADS:
                    _validate(name, rate, results, results / f"{name}-at-{rate}.json", "--predict-only")
                    shutil.copy(results / f"{name}-at-{rate}.json", report / f"{name}-at-{rate}-predicted.json")
            else:
                for number in range(1, rounds + 1):
                    for rate in LOADS:
                        _validate(name, rate, results, report / f"{name}-at-{rate}-round-{number}.json")


def _validate(name: str, rate: str, results: Path, out: Path, *more: str) -> None:
    """One command of `lanesim`, with the looks at this server where there are some."""
    looks, held = results / f"{name}.looks.json", out.with_suffix(".measured.json")
    if looks.exists():
        shutil.copy(looks, held)
    method = ("--set", "speculation.method=ngram") if name.startswith("ngram") else ()
    load = ("--request-rate", rate, "--num-prompts", str(LOADS[rate]))
    code = lanesim(["validate", URL, *SCENARIO, *load, *method, "--out", str(out), *more])
    if code:
        raise ValueError(f"{name} at {rate}/s: lanesim validate ended with {code}")
    held.replace(looks)


@contextmanager
def serving(models: Path, drafting: dict[str, Any] | None) -> Iterator[None]:
    """A server of `models` on the first core while this process has the others."""
    cores = sorted(os.sched_getaffinity(0))
    flags = [] if drafting is None else ["--speculative-config", json.dumps(drafting)]
    words = (
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", "target", "--port", PORT),
        *("--max-num-seqs", "32", "--max-num-batched-tokens", "2048", "--max-model-len", "2048", "--enforce-eager"),
        *("--no-enable-prefix-caching", *flags),
    )
    os.sched_setaffinity(0, cores[:1])
    with (models.parent / "server.log").open("w") as log:
        server = subprocess.Popen(words, cwd=models, env=os.environ | ENVIRONMENT, stdout=log, stderr=log)
    os.sched_setaffinity(0, cores[1:] or cores)
    try:
        began_s = time.monotonic()
        while not _answers():
            if server.poll() is not None or time.monotonic() - began_s > START_S:
                raise ValueError(f"the server did not start: see {log.name}")
            time.sleep(1.0)
        yield
    finally:
        server.terminate()
        server.wait()
        os.sched_setaffinity(0, cores)


def _answers() -> bool:
    try:
        with urlopen(f"{URL}/v1/models", timeout=2.0) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def runs_of(report: Path) -> dict[tuple[str, str], list[ServedRun]]:
    """(server, load) -> its rounds."""
    found: dict[tuple[str, str], list[ServedRun]] = {}
    for name in SERVERS:
        for rate in LOADS:
            paths = sorted(report.glob(f"{name}-at-{rate}-round-*.json"))
            if paths:
                found[name, rate] = [read_run(path) for path in paths]
    return found


def real(run: ServedRun, key: str) -> float:
    """What was measured, under the name that the prediction has."""
    told = run.errors["predicted"]
    if key == "output_throughput":
        return float(told[key]["real"])
    statistic, name, _ = key.split("_")
    return float(told[name][statistic]["real"])


def off_pct(rounds: Sequence[ServedRun], key: str) -> float:
    """Percent that the prediction is off the mean of the rounds."""
    return 100.0 * ((rounds[0].predicted[key] or 0.0) / fmean(real(each, key) for each in rounds) - 1.0)


def speedups(runs: Mapping[tuple[str, str], Sequence[ServedRun]]) -> dict[tuple[str, str], tuple[float, float]]:
    """Mean E2EL of the plain server over that of each drafting one at its load: measured, predicted."""
    found = {}
    for (name, rate), rounds in runs.items():
        plain = runs.get(("off", rate))
        if name != "off" and plain:
            means = [fmean(real(each, "mean_e2el_ms") for each in of) for of in (plain, rounds)]
            said = [of[0].predicted["mean_e2el_ms"] or 0.0 for of in (plain, rounds)]
            found[name, rate] = means[0] / means[1], said[0] / said[1]
    return found


def write_page(report: Path) -> None:
    """docs/validation/real-vllm.md, from the files beside it."""
    runs = runs_of(report)
    gains, rows = speedups(runs), []
    for (name, rate), rounds in runs.items():
        cells = []
        for key in SHOWN:
            measured = [real(each, key) for each in rounds]
            mean = fmean(measured)
            spread = f" ± {50.0 * (max(measured) - min(measured)) / mean:.0f} %" if len(rounds) > 1 else ""
            cells.append(f"{mean:,.4g}{spread} | {off_pct(rounds, key):+.1f} %")
        gain = "{:.2f} | {:.2f}".format(*gains[name, rate]) if (name, rate) in gains else "- | -"
        rows.append(f"| {name} | {rate} | " + " | ".join(cells) + f" | {gain} |")
    bars = []
    for key, (title, bar_pct) in BARS.items():
        off = [abs(off_pct(rounds, key)) for rounds in runs.values()]
        plain = [abs(off_pct(rounds, key)) for (name, _), rounds in runs.items() if name == "off"]
        within = sum(each <= bar_pct for each in off)
        bars.append(
            f"| {title} | {bar_pct:g} | {within} of {len(off)} | {fmean(off):.1f} | {max(off):.1f} | {max(plain):.1f} |"
        )
    steps = []
    for (name, rate), rounds in runs.items():
        if rate == LIGHTEST:
            looked, ran = step_alone_s(rounds[0].intake), fmean(step_alone_s(each.sent) for each in rounds)
            change, error = 100.0 * (ran / looked - 1.0), off_pct(rounds, "mean_e2el_ms")
            steps.append(f"| {name} | {1e3 * looked:.1f} | {1e3 * ran:.1f} | {change:+.0f} % | {error:+.1f} % |")
    off = [off_pct(rounds, "mean_e2el_ms") for rounds in runs.values()]
    drafted = [each for (name, _), rounds in runs.items() if name != "off" for each in rounds]
    page(
        report.with_suffix(".md"),
        "real_vllm",
        count=str(len(rows)),
        rounds=str(max(map(len, runs.values()))),
        e2el=f"{fmean(map(abs, off)):.1f}",
        low=f"{min(off):+.1f}",
        high=f"{max(off):+.1f}",
        speedup=f"{fmean(abs(100.0 * (said / seen - 1.0)) for seen, said in gains.values()):.1f}",
        right=str(sum((seen > 1.0) == (said > 1.0) for seen, said in gains.values())),
        drafting=str(len(gains)),
        losing=str(sum(seen < 1.0 for seen, _ in gains.values())),
        accepted=f"{fmean(abs(e2el_pct(each, 'as accepted')) for each in drafted):.1f}",
        predicted=f"{fmean(abs(e2el_pct(each, 'predicted')) for each in drafted):.1f}",
        bars="\n".join(bars),
        lightest=LIGHTEST,
        steps="\n".join(steps),
        rows="\n".join(rows),
    )


def step_alone_s(sent: Sequence[Sent]) -> float:
    """Median time from one step's tokens to the next's of requests that were alone: what tells a machine that changed
    from a prediction that is wrong."""
    alone = [each for each in sent if all(o is each or o.last_s < each.sent_s or each.last_s < o.sent_s for o in sent)]
    return median(gap_s for each in alone for gap_s in each.gaps_s if gap_s > TOGETHER_S)


def e2el_pct(run: ServedRun, part: str) -> float:
    """Error of the mean E2EL of one round, as predicted or with what was counted meanwhile."""
    return float(run.errors[part]["e2el"]["mean"]["error_pct"])
