"""docs/validation/real-vllm: a real vLLM on this CPU, predicted from outside and then sent what was predicted.

`make real-vllm` runs this with vLLM's Python. Stage `measure` starts every server once a round; while it runs, it is
looked at and each load is predicted, the prediction written to its file, and the load sent (`lanesim validate`). What
is there already is not measured again. Stage `page` computes everything that the page says from these files. The server
has the first core, the client another. Not here: fitting and judging (calibrate.server).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from calibrate.served.as_sent import GOODPUT
from calibrate.served.line import pace_of, steps_of
from calibrate.server.endpoint import WORDS
from calibrate.server.served_run import PARTS, ServedRun, as_predicted, read_run
from calibrate.server.server_process import started
from sim.cli.main import run as lanesim
from validation.replays.real_engine import ALONE, DRAFT_MODEL, NGRAM, make_models
from validation.tables import off_pct, page

if TYPE_CHECKING:
    import pandas as pd

URL, PORT = "http://127.0.0.1:8123", "8123"
THREE = {"num_speculative_tokens": 3}
LOADS = {"1": 24, "1.75": 36, "2.5": 50}
"""Requests per second -> requests."""


class ServerSetup(NamedTuple):
    drafting: dict[str, Any] | None = None
    """vLLM's --speculative-config."""
    flags: tuple[str, ...] = ()
    scenario: tuple[str, ...] = ()
    loads: tuple[str, ...] = tuple(LOADS)


PLAIN, SHARED, SMALL = "off", "shared", "small"
NO_CACHE = ("--no-enable-prefix-caching",)
SERVERS = {
    PLAIN: ServerSetup(flags=NO_CACHE),
    "good-3": ServerSetup(DRAFT_MODEL | THREE | {"model": "good"}, NO_CACHE),
    "good-1": ServerSetup(DRAFT_MODEL | {"model": "good", "num_speculative_tokens": 1}, NO_CACHE),
    "fair-3": ServerSetup(DRAFT_MODEL | THREE | {"model": "fair"}, NO_CACHE),
    "poor-3": ServerSetup(DRAFT_MODEL | THREE | {"model": "poor"}, NO_CACHE),
    "ngram-3": ServerSetup(NGRAM | THREE, NO_CACHE, ("--set", "speculation.method=ngram")),
    SHARED: ServerSetup(
        flags=("--enable-prefix-caching",),
        scenario=("--set", "workload.sharing.prefix_len=128", "--set", "workload.sharing.num_prefixes=2"),
        loads=("2.5",),
    ),
    # More at once would preempt each other in the looks.
    SMALL: ServerSetup(
        flags=(*NO_CACHE, "--num-gpu-blocks-override", "8", "--max-model-len", "512"),
        scenario=("--set", "server.levels=1,2,4", "--output-len", "60"),
        loads=("2.5",),
    ),
}
"""Servers by name: drafts of three qualities and two lengths, n-grams, prompts that begin alike, and little memory."""
SPECIAL = (SHARED, SMALL)
IDENTICAL, NUM_IDENTICAL = (PLAIN, "2.5"), 5
"""The load that is sent so many times before anything is judged: it tells the noise."""
START_S = 300.0
ENVIRONMENT = ALONE | {"VLLM_CPU_KVCACHE_SPACE": "2", "OMP_NUM_THREADS": "1"}
SCENARIO = (
    *("--input-len", "100", "--output-len", "28", "--set", "workload.random_range_ratio=0.6"),
    *("--set", "engine.max_num_seqs=32", "--set", "engine.max_num_batched_tokens=2048"),
    # vllm/platforms/cpu.py of vLLM 0.32: on a CPU no step is planned ahead.
    *("--set", "engine.async_scheduling=false"),
    *("--set", "goodput.ttft_ms=300", "--set", "goodput.tpot_ms=40"),
    *("--set", "server.levels=1,2,4,8", "--set", "server.rounds=2", "--overwrite"),
)
BARS = {
    "mean_tpot_ms": ("mean TPOT", 5.0),
    "mean_e2el_ms": ("mean E2EL", 5.0),
    "p95_e2el_ms": ("p95 E2EL", 10.0),
    "p99_e2el_ms": ("p99 E2EL", 10.0),
    "mean_ttft_ms": ("mean TTFT", 15.0),
    "output_throughput": ("throughput", 3.0),
}
"""Metric -> its name and the percent that a prediction may be off, set before anything was sent."""
DISTURBED = 0.1
"""Change of a server's pace from prediction to load beyond which the page names a run."""
SHOWN = ("mean_tpot_ms", "mean_ttft_ms", "mean_e2el_ms", "p95_e2el_ms", "p99_e2el_ms")


def main(
    results: Path = Path("results/real-vllm"),
    report: Path = Path("docs/validation/real-vllm"),
    stage: Literal["measure", "page"] = "measure",
    rounds: int = 2,
    only: str = ",".join(SERVERS),
) -> None:
    """`results` keeps models and looks, `report` what is committed; `only` names servers."""
    if stage == "page":
        write_page(report)
        return
    models = results / "models"
    make_models(models, WORDS)
    report.mkdir(parents=True, exist_ok=True)
    for number in range(1, rounds + 1):
        for name in only.split(","):
            runs = planned_runs(name, number, report)
            if not runs or (number > 1 and name in SPECIAL):
                continue
            looks = results / f"{name}.measured.json"
            looks.unlink(missing_ok=True)  # Of an earlier life of the server.
            with serving(models, SERVERS[name]):
                for rate, path in runs:
                    shutil.copy(_validated(name, rate, results / f"{name}.json"), path)


def planned_runs(name: str, number: int, report: Path) -> list[tuple[str, Path]]:
    """(load, file) of a server's round, those left out that are measured already."""
    runs = [(rate, report / f"{name}-at-{rate}-round-{number}.json") for rate in SERVERS[name].loads]
    if name == IDENTICAL[0] and number == 1:
        same = [report / f"{name}-at-{IDENTICAL[1]}-same-{index}.json" for index in range(1, NUM_IDENTICAL + 1)]
        runs = [*((IDENTICAL[1], path) for path in same), *runs]
    return [(rate, path) for rate, path in runs if not path.exists()]


def _validated(name: str, rate: str, out: Path) -> Path:
    """`out`, written by one command of `lanesim`, which finds its looks at this server beside it."""
    load = ("--request-rate", rate, "--num-prompts", str(LOADS[rate]))
    code = lanesim(["validate", URL, *SCENARIO, *load, *SERVERS[name].scenario, "--out", str(out)])
    if code:
        raise ValueError(f"{name} at {rate}/s: lanesim validate ended with {code}")
    return out


@contextmanager
def serving(models: Path, asked: ServerSetup) -> Iterator[None]:
    """A server of `models` on the first core while this process has the others."""
    cores = sorted(os.sched_getaffinity(0))
    drafting = () if asked.drafting is None else ("--speculative-config", json.dumps(asked.drafting))
    words = (
        *("taskset", "--cpu-list", str(cores[0])),
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", "target", "--port", PORT),
        *("--max-num-seqs", "32", "--max-num-batched-tokens", "2048", "--max-model-len", "2048", "--enforce-eager"),
        # Half precision takes ten times as long where a CPU has no instructions for it.
        *("--dtype", "float32"),
        *(*asked.flags, *drafting),
    )
    os.sched_setaffinity(0, cores[1:] or cores)
    try:
        log = models.parent / "server.log"
        with started(words, URL, log, timeout_s=START_S, cwd=models, env=os.environ | ENVIRONMENT):
            yield
    finally:
        os.sched_setaffinity(0, cores)


def runs_of(report: Path, kind: str = "round") -> dict[tuple[str, str], list[ServedRun]]:
    """(server, load) -> its rounds. Raises ValueError for one whose prediction is not what it was before the load."""
    found: dict[tuple[str, str], list[ServedRun]] = {}
    for name, server in SERVERS.items():
        for rate in server.loads:
            for path in sorted(report.glob(f"{name}-at-{rate}-{kind}-*.json")):
                run = read_run(path)
                if (
                    as_predicted(json.loads(path.read_text())) != run.predicted_sha256
                    or not run.predicted_at <= run.sent_at
                ):
                    raise ValueError(f"{path}: the prediction is not what it was before its load was sent")
                found.setdefault((name, rate), []).append(run)
    return found


def frame_of(runs: Mapping[tuple[str, str], Sequence[ServedRun]]) -> pd.DataFrame:
    """A row per run: measured and predicted values, percents that predictions are off, whether their intervals hold."""
    import pandas as pd

    rows = []
    for (server, load), rounds in runs.items():
        for number, run in enumerate(rounds, start=1):
            assert run.fitted is not None
            # Steps over those right before, and what is left once all that was seen of the load is known.
            pace = pace_of(run.fitted, steps_of(run.sent)) - 1.0
            paced = run.errors[PARTS[-1]]["e2el"]["mean"]["error_pct"]
            row = {"server": server, "load": load, "round": number, "run": run, "pace": 100.0 * pace, "paced": paced}
            for key in (*BARS, GOODPUT):
                measured, predicted = real(run, key), run.predicted[key] or 0.0
                low, high = run.intervals.get(key, (predicted, predicted))
                row |= {f"{key} real": measured, f"{key} predicted": predicted, f"{key} half": high - low}
                if key in BARS:
                    row |= {f"{key} off": off_pct(predicted, measured), f"{key} holds": low <= measured <= high}
            rows.append(row)
    return pd.DataFrame(rows)


def real(run: ServedRun, key: str) -> float:
    """A measured value, under the name that the prediction has."""
    told: Any = run.errors["predicted"]
    for part in [key] if key in told else key.split("_")[1::-1]:
        told = told[part]
    return float(told["real"])


def gains_of(judged: pd.DataFrame, noise: float) -> pd.DataFrame:
    """Mean E2EL of the plain server over a drafting one's; the relative `noise` of a round makes a deviation of it."""
    e2el = judged.rename(columns={f"mean_e2el_ms {of}": of for of in ("real", "predicted")})
    means = e2el.groupby(["server", "load"], sort=False).agg({"real": "mean", "predicted": "mean", "round": "size"})
    plain = means.loc[PLAIN].reindex(means.index.get_level_values("load")).set_axis(means.index)
    gains = (plain / means)[["real", "predicted"]].rename(columns={"real": "measured"})
    gains["noise"] = noise * gains["measured"] * (1.0 / plain["round"] + 1.0 / means["round"]) ** 0.5
    gains["off_pct"] = off_pct(gains["predicted"], gains["measured"])
    return gains.drop([PLAIN, *SPECIAL], level="server")


def sides(gains: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Speed-ups that are predicted on the measured side of 1, and those on the other side within noise."""
    is_same = (gains["measured"] > 1.0) == (gains["predicted"] > 1.0)
    return is_same, ~is_same & ((gains["measured"] - 1.0).abs() <= gains["noise"])


def run_row(row: Any) -> str:
    """Measured values of a run and how far its predictions are off, those beyond their interval with a star."""
    cells = [f"{row[f'{k} real']:,.4g} | {row[f'{k} off']:+.1f}{'*' * (not row[f'{k} holds'])}" for k in SHOWN]
    cells.append(f"{row[f'{GOODPUT} real']:.2f} | {row[f'{GOODPUT} predicted']:.2f}")
    cells.append(f"{row['pace']:+.0f} | {row['paced']:+.1f}")
    return f"| {row['server']} | {row['load']} | {row['round']} | {' | '.join(cells)} |"


def round_row(number: int, of: pd.DataFrame) -> str:
    e2el, ttft = (of[f"mean_{name}_ms off"].abs() for name in ("e2el", "ttft"))
    close, holds = (e2el <= BARS["mean_e2el_ms"][1]).sum(), of.filter(like=" holds").to_numpy().mean()
    half = (50.0 * of["mean_e2el_ms half"] / of["mean_e2el_ms predicted"]).median()
    return (
        f"| {number} | {len(of)} | {e2el.mean():.1f} | {close} | {ttft.mean():.1f} | {100.0 * holds:.0f} | "
        f"{half:.0f} | {of['pace'].abs().mean():.1f} | {of['paced'].abs().mean():.1f} |"
    )


def write_page(report: Path) -> None:
    """docs/validation/real-vllm.md, from the files beside it."""
    same, judged = runs_of(report, "same")[IDENTICAL], frame_of(runs_of(report))
    bounds, noises, bars = dict[str, float](), dict[str, float](), []
    for key, (title, bar_pct) in BARS.items():
        measured = [real(run, key) for run in same]
        noise_pct = noises[key] = 100.0 * stdev(measured) / fmean(measured)
        bounds[key] = bound = max(bar_pct, 2.0 * noise_pct)
        off, holds, count = judged[f"{key} off"].abs(), judged[f"{key} holds"].sum(), len(judged)
        bars.append(
            f"| {title} | {bar_pct:g} | {noise_pct:.1f} | {bound:.1f} | {(off <= bound).sum()} of {count} | "
            f"{(off <= bar_pct).sum()} | {off.mean():.1f} | {off.max():.1f} | {holds} of {count} |"
        )
    gains = gains_of(judged, noises["mean_e2el_ms"] / 100.0)
    speeds = [
        f"| {' | '.join(of)} | {gain.measured:.2f} ± {gain.noise:.2f} | {gain.predicted:.2f} | {gain.off_pct:+.1f} |"
        for of, gain in gains.iterrows()
    ]
    disturbed = judged[judged["pace"].abs() > 100.0 * DISTURBED]
    special = judged[judged["server"].isin(SPECIAL)]
    e2el = judged["mean_e2el_ms off"]
    speed_off = gains["off_pct"].abs()
    page(
        report.with_suffix(".md"),
        "real_vllm",
        count=str(len(judged)),
        e2el=f"{e2el.abs().mean():.1f}",
        turns="\n".join(round_row(*each) for each in judged.groupby("round")),
        met=str((e2el.abs() <= bounds["mean_e2el_ms"]).sum()),
        low=f"{e2el.min():+.1f}",
        high=f"{e2el.max():+.1f}",
        speedup=f"{speed_off.mean():.1f}",
        close=str((speed_off <= 5.0).sum()),
        same_side=str(sides(gains)[0].sum()),
        unsure=str(sides(gains)[1].sum()),
        drafting=str(len(gains)),
        losing=str((gains["measured"] < 1.0).sum()),
        paced=f"{judged['paced'].abs().mean():.1f}",
        coverage=f"{100.0 * judged.filter(like=' holds').to_numpy().mean():.0f}",
        identical=str(len(same)),
        noise_server=IDENTICAL[0],
        noise_load=IDENTICAL[1],
        bars="\n".join(bars),
        rows="\n".join(judged.apply(run_row, axis=1)),
        speeds="\n".join(speeds),
        specials=" and ".join(
            f"{run.preempted or 0.0:.0f} counted, {run.preemptions:.0f} predicted on `{name}`"
            for name, run in zip(special["server"], special["run"], strict=True)
        ),
        disturbed="\n- ".join(
            disturbed["server"] + " at " + disturbed["load"] + "/s in round " + disturbed["round"].astype(str)
        )
        or "none",
        paces=f"{judged['pace'].abs().mean():.1f}",
        began=min(run.predicted_at for run in judged["run"])[:16].replace("T", " "),
        ended=max(run.sent_at for run in judged["run"])[:16].replace("T", " "),
    )
