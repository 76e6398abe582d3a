"""A cost model from a server's steps, judged on what came after: fitted on minutes of traffic, it predicts the next.

    OMP_NUM_THREADS=1 .venv-vllm/bin/python -m validation step_records results/vllm-steps --page FILE.md
    python -m validation step_records results/law-steps --law --page FILE.md --overwrite

The first serves with a real vLLM on this CPU, the second with a law: a shipped GPU whose layers take longer than its
profile says. `lanesim calibrate fit steps` fits the first part, and the prediction of the second, its requests
drawn beforehand, is in a file before that is served. The page has a row per file of the folder beside it.
Not here: the fit (calibrate.served.step_records).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from calibrate.fit.constants import with_constants
from calibrate.served.as_sent import simulated
from calibrate.served.step_records import StepRecord, blocks_of, error_pct, predicted_s
from sim.cli.main import run as lanesim
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.interface.request import Request
from sim.metrics.summary import latencies_s
from sim.run.resolve import resolve_all
from sim.run.scenario import Scenario
from sim.run.simulate import simulate
from validation.replays.real_engine import make_models, open_engine, serve_traffic
from validation.tables import off_pct
from validation.tables import page as write_page

SEATS, BUDGET = 8, 256
PROMPTS, OUTPUTS = (20, 100, 200), (5, 60)
LAW = {"step_s": 2e-3, "ratio@16": 1.4}
"""Constants of the law that its profile has otherwise."""
LAW_NAME, REAL_NAME = "h100-sxm/llama-3.1-8b", "cpu/tiny"
LAW_LOAD = 3.0
"""Requests of the law for one of the CPU's."""
BAR_PCT = 5.0
Traffic = tuple[list[StepRecord], list[Request]]
"""Records of steps, and the requests that they served."""
Serve = Callable[[Sequence[Request]], Traffic]


def main(
    results: Path,
    seconds: float = 300.0,
    rate: float = 3.0,
    seed: int = 0,
    law: bool = False,
    page: Path | None = None,
) -> int:
    """Two parts of `seconds` at `rate` requests per second; 1 where the time per token is missed."""
    results.mkdir(parents=True, exist_ok=True)
    name, server = (LAW_NAME, "law") if law else (REAL_NAME, "vllm")
    files = results if page is None else page.with_suffix("")
    files.mkdir(exist_ok=True)
    profile = load(name)
    serve = _law(profile) if law else _real(results)
    rate *= LAW_LOAD if law else 1.0
    traffic = [_drawn(seconds, rate, seed + part) for part in (0, 1)]
    steps, first = serve(traffic[0])
    (results / "steps.jsonl").write_text("".join(f"{json.dumps(line_of(each))}\n" for each in steps))
    words = ["calibrate", "fit", "steps", results / "steps.jsonl", "--profile", name]
    words += ["--out", results / "fitted.json", "--json", results / "fit.json", "--overwrite"]
    if lanesim(list(map(str, words))):
        return 2
    fit, fitted = json.loads((results / "fit.json").read_text()), load(results / "fitted.json")
    said_ms = {
        which: _tpot_ms(simulated(_scenario(each), each, traffic[1], 0)[0])
        for which, each in (("shipped", profile), ("fit", fitted))
    }
    told = {"seconds": seconds, "rate": rate, "fit": fit, "predicted_tpot_ms": said_ms, "date_predicted": _now()}
    (files / f"{server}.json").write_text(json.dumps(told, indent=1))
    print(f"predicted, before anything of the second part was served: {said_ms} ms", flush=True)
    steps, second = serve(traffic[1])
    real_ms = {"first": _tpot_ms(first), "second": _tpot_ms(second)}
    errors_pct = {which: off_pct(ms, real_ms["second"]) for which, ms in said_ms.items()}
    of_steps_pct = [error_pct(predicted_s(fitted, block), block) for block in blocks_of(steps)]
    told |= {"tpot_ms": real_ms, "errors_pct": errors_pct, "of_steps_pct": of_steps_pct, "date_served": _now()}
    (files / f"{server}.json").write_text(json.dumps(told, indent=1))
    print(f"time per token {real_ms} ms: off by {errors_pct} %, its steps by fifths {_signed(of_steps_pct)} %")
    if page is not None:
        _page(page)
    return int(abs(errors_pct["fit"]) > BAR_PCT)


def _page(path: Path) -> None:
    """The page of all files of the folder beside it that are complete."""
    from pandas import DataFrame

    told = {each.stem: json.loads(each.read_text()) for each in sorted(path.with_suffix("").glob("*.json"))}
    rows = [
        {
            "server": "a law" if server == "law" else server.replace("vllm", "vLLM 0.32 on a CPU").replace("-", " "),
            "requests/s": f"{each['rate']:g}",
            "seconds": f"2 × {each['seconds']:g}",
            "steps": each["fit"]["steps"],
            "form": each["fit"]["form"],
            "blocks left out, %": _signed(each["fit"]["block_errors_pct"][each["fit"]["form"]]),
            "TPOT before, ms": f"{each['tpot_ms']['first']:.2f}",
            "predicted": f"{each['predicted_tpot_ms']['fit']:.2f}",
            "measured": f"{each['tpot_ms']['second']:.2f}",
            "off, %": f"{each['errors_pct']['fit']:+.1f}",
            "its steps by fifths, %": _signed(each["of_steps_pct"]),
            "as shipped, %": f"{each['errors_pct']['shipped']:+.0f}",
        }
        for server, each in told.items()
        if "tpot_ms" in each
    ]
    write_page(path, "step_records", rows=DataFrame(rows))


def _signed(errors_pct: Sequence[float]) -> str:
    return ", ".join(f"{error:+.1f}" for error in errors_pct)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _drawn(seconds: float, rate: float, seed: int) -> list[Request]:
    draw, at_s, requests = random.Random(seed), 0.0, list[Request]()
    while (at_s := at_s + draw.expovariate(rate)) < seconds:
        index = len(requests)
        requests.append(Request(index, str(index), at_s, draw.choice(PROMPTS), draw.randint(*OUTPUTS)))
    return requests


def _scenario(profile: Profile) -> Scenario:
    engine = {"max_num_seqs": SEATS, "max_num_batched_tokens": BUDGET, "async_scheduling": False}
    return Scenario.of(profile=profile.name, policy="autoregressive", engine=engine)


def _tpot_ms(requests: Sequence[Request]) -> float:
    return 1e3 * fmean(latencies_s(requests)["tpot"])


def _real(results: Path) -> Serve:
    make_models(results / "models")
    engine = open_engine(results / "models", seats=SEATS, budget=BUDGET)
    serve_traffic(engine, [Request(index, str(index), 0.0, each, 20) for index, each in enumerate(2 * PROMPTS)])
    return lambda requests: (serve_traffic(engine, requests), list(requests))


def _law(profile: Profile) -> Serve:
    changed = with_constants(profile, LAW)
    changed = msgspec.structs.replace(changed, host=msgspec.structs.replace(changed.host, engine="measured here"))
    resolved = resolve_all(_scenario(changed), changed)[0]

    def serve(requests: Sequence[Request]) -> Traffic:
        record = simulate(resolved, 0, record_works=True, requests=list(requests))
        steps = [
            StepRecord(
                work.ready_s - work.submitted_s, len(work.requests) - work.rows, work.chunk_tokens, 0, work.rows,
                work.context_tokens + work.rows,
            )
            for work in record.works
        ]  # fmt: skip
        return steps, record.requests.objects()

    return serve


def line_of(record: StepRecord) -> dict[str, Any]:
    """The record as vLLM's forward-pass metrics have it."""
    prompts = ("num_prefill_requests", "sum_prefill_tokens", "sum_prefill_kv_tokens")
    names = (*prompts, "num_decode_requests", "sum_decode_kv_tokens")
    return {"wall_time": record.seconds, "scheduled_requests": dict(zip(names, record[1:6], strict=True))}
