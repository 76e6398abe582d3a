"""A cost model from a server's steps, judged on what came after: fitted on minutes of traffic, it predicts the next.

    OMP_NUM_THREADS=1 .venv-vllm/bin/python -m validation step_records results/steps
    python -m validation step_records results/law --law

The first serves with a real vLLM on this CPU, the second with a law: a shipped GPU whose layers take longer than its
profile says. Either writes the prediction of the second part, its requests drawn beforehand, before that is served.
Not here: the fit (calibrate.server.step_records).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from calibrate.judge.fit_cells import with_constants
from calibrate.server.as_sent import simulated
from calibrate.server.step_records import fit_steps_of, read_steps
from sim.costs.profile import Profile
from sim.costs.profile_files import load, save_profile
from sim.interface.request import Request
from sim.metrics.summary import latencies_s
from sim.run.resolve import resolve_all
from sim.run.scenario import Scenario
from sim.run.simulate import simulate
from validation.replays.real_engine import make_models, open_engine, serve_traffic

SEATS, BUDGET = 8, 256
PROMPTS, OUTPUTS = (20, 100, 200), (5, 60)
LAW = {"step_s": 2e-3, "ratio@16": 1.4}
"""Constants of the law that its profile has otherwise."""
LAW_NAME, REAL_NAME = "h100-sxm/llama-3.1-8b", "cpu/tiny"
LAW_LOAD = 10.0
"""Requests of the law for one of the CPU's."""
BAR_PCT = 5.0
Traffic = tuple[list[Any], list[Request]]
"""Records of steps, and the requests that they served."""
Serve = Callable[[Sequence[Request]], Traffic]


def main(results: Path, seconds: float = 300.0, rate: float = 1.0, seed: int = 0, law: bool = False) -> int:
    """Two parts of `seconds` at `rate` requests per second; 1 where the time per token is missed."""
    results.mkdir(parents=True, exist_ok=True)
    name = LAW_NAME if law else REAL_NAME
    profile = load(name)
    serve = _law(profile) if law else _real(results)
    traffic = [_drawn(seconds, rate * (LAW_LOAD if law else 1.0), seed + part) for part in (0, 1)]
    steps, first = serve(traffic[0])
    log = results / "steps.jsonl"
    log.write_text("".join(f"{json.dumps(each)}\n" for each in steps))
    fit = fit_steps_of(profile, read_steps(log), log.name)
    save_profile(fit.profile, results / "fitted.json")
    said_ms = {
        which: _tpot_ms(_as_simulated(each, traffic[1])) for which, each in ((name, profile), (fit.form, fit.profile))
    }
    (results / "predicted.json").write_text(json.dumps({"mean_tpot_ms": said_ms, "blocks_pct": fit.blocks_pct}))
    print(f"predicted, before anything of the second part was served: {said_ms} ms; blocks left out {fit.blocks_pct} %")
    _, second = serve(traffic[1])
    real_ms = _tpot_ms(second)
    errors_pct = {which: 100.0 * (ms / real_ms - 1.0) for which, ms in said_ms.items()}
    told = {"mean_tpot_ms": real_ms, "first_part_ms": _tpot_ms(first), "steps": fit.steps, "errors_pct": errors_pct}
    (results / "measured.json").write_text(json.dumps(told))
    off = ", ".join(f"{which} {error:+.1f} %" for which, error in errors_pct.items())
    print(f"time per token {real_ms:.2f} ms ({_tpot_ms(first):.2f} in the first part, {fit.steps} steps): {off}")
    return int(abs(errors_pct[fit.form]) > BAR_PCT)


def _drawn(seconds: float, rate: float, seed: int) -> list[Request]:
    draw, at_s, requests = random.Random(seed), 0.0, list[Request]()
    while (at_s := at_s + draw.expovariate(rate)) < seconds:
        index = len(requests)
        requests.append(Request(index, str(index), at_s, draw.choice(PROMPTS), draw.randint(*OUTPUTS)))
    return requests


def _scenario(profile: Profile) -> Scenario:
    engine = {"max_num_seqs": SEATS, "max_num_batched_tokens": BUDGET, "async_scheduling": False}
    return Scenario.of(profile=profile.name, policy="autoregressive", engine=engine)


def _as_simulated(profile: Profile, requests: Sequence[Request]) -> list[Request]:
    return simulated(resolve_all(_scenario(profile), profile)[0], 0, requests)[0]


def _tpot_ms(requests: Sequence[Request]) -> float:
    return 1e3 * fmean(latencies_s(requests)["tpot"])


def _real(results: Path) -> Serve:
    models = results / "models"
    if not models.exists():
        make_models(models)
    engine = open_engine(models, seats=SEATS, budget=BUDGET)
    serve_traffic(engine, [(0.0, each, 20) for each in (*PROMPTS, *PROMPTS)])

    def serve(requests: Sequence[Request]) -> Traffic:
        steps, times = serve_traffic(
            engine, [(each.arrival_s, each.prompt_tokens, each.output_tokens) for each in requests]
        )
        for each, at in zip(requests, times, strict=True):
            each.first_token_s, each.last_token_s = at["first_s"], at["last_s"]
        return steps, list(requests)

    return serve


def _law(profile: Profile) -> Serve:
    changed = with_constants(profile, LAW)
    changed = msgspec.structs.replace(changed, host=msgspec.structs.replace(changed.host, engine="measured here"))
    resolved = resolve_all(_scenario(changed), changed)[0]

    def serve(requests: Sequence[Request]) -> Traffic:
        record = simulate(resolved, 0, record_works=True, requests=list(requests))
        steps = []
        for work in record.works:
            prompts = len(work.requests) - work.rows
            sums = (prompts, work.chunk_tokens, 0, work.rows, work.context_tokens + work.rows)
            names = ("num_prefill_requests", "sum_prefill_tokens", "sum_prefill_kv_tokens", "num_decode_requests")
            steps.append(
                {
                    "wall_time": work.ready_s - work.submitted_s,
                    "scheduled_requests": dict(zip((*names, "sum_decode_kv_tokens"), sums, strict=True)),
                }
            )
        return steps, record.requests

    return serve
