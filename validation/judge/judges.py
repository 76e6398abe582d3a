"""Cells of the accuracy page beside what lanesim makes of them: one function per kind, by name in sections.yaml.

Not here: reading cells (validation.judge.sources), fits and bars (validation.judge.sections).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import exp, log
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from calibrate.served.as_sent import judge_run, scenario_of
from calibrate.served.judge import LoadSetup, judge_loads
from calibrate.served.load import JudgedLoad, ServedLoad
from calibrate.served.load_table import LoadTable, read_request_list
from sim.acceptance.forms import parse_quoted
from sim.costs.compact_kernels import LinearPass
from sim.costs.datasheets import DATASHEETS, POWER
from sim.costs.engine_costs import engine_of
from sim.costs.forms.build import build_costs
from sim.costs.passes import pass_use
from sim.costs.profile import ASSUMED_PHI, Profile
from sim.costs.profile_files import load
from sim.costs.shapes import MODELS, ModelShape
from sim.devices.partition import MEASURED, Portion, rates_on_shares
from sim.interface.work import Chunk
from sim.metrics.compared import STATISTICS, THROUGHPUT, compared
from sim.metrics.energy import power_w, utilisation_of
from sim.policies.options import EngineLimits
from sim.run.forecast import StepForecast
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate
from validation.judge.sources import POWER_GPU, real_run
from validation.judge.specs import RunSpec, path_of
from validation.tables import grouped

PEARL_FITTED = ("AIME", "CNNDM")
"""Data sets that the window and the slowdown of each pair and batch are fitted on."""
PEARL_LIKE = "a100-pdverify/codellama-34b+tinyllama-1.1b"
"""Whose models and GPU stand in: only the two pass times matter here."""
WINDOWS = range(2, 25)
OUTPUT_TOKENS = 2000
"""Long, since PEARL runs a fixed number of steps with its batch full."""
POWER_SHAPES = {
    "llama2-70b": msgspec.structs.replace(
        MODELS["codellama-34b"], name="llama-2-70b", layers=80, intermediate=28672, max_context=4096
    ),
    "bloom-176b": ModelShape(
        name="bloom-176b", layers=70, hidden=14336, intermediate=57344, heads=112, kv_heads=112, head_dim=128,
        vocab=250880, tied_embeddings=True, max_context=2048, is_gated=False,
    ),
}  # fmt: skip


def loops(cells: Sequence[ServedLoad], profile: Profile, run: RunSpec, data: Path) -> list[JudgedLoad]:
    """Closed and open loops."""
    setup = LoadSetup(
        engine=run.engine,
        workload=run.workload,
        devices=run.devices,
        waves=run.waves,
        speculation={} if run.method == "none" else {"method": run.method},
        requests=() if run.requests is None else read_request_list(path_of(run.requests, data)),
        acceptance_spread=run.acceptance_spread,
        seed=run.seed,
    )
    return judge_loads(LoadTable(run.file or run.reader, list(cells), []), profile, setup)


def timestamps(cells: Sequence[ServedLoad], profile: Profile, run: RunSpec, data: Path) -> list[JudgedLoad]:
    """A run of LLMServingSim's from its requests' timestamps, with what that simulator committed beside it."""
    (cell,) = cells
    folder = Path(cell.texts["folder"])
    real = real_run(folder)
    scenario = scenario_of(
        folder / "requests.jsonl", profile.name, {"engine": run.engine, "speculation": {"num_speculative_tokens": 0}}
    )
    result = judge_run(real, scenario, profile)["metrics"]
    metrics = {
        f"{name}_ms" if statistic == "mean" else f"{name}_{statistic}_ms": result[name][statistic]
        for name in ("ttft", "tpot", "e2el")
        for statistic in STATISTICS
    }
    metrics[THROUGHPUT] = result[THROUGHPUT]
    peer = peer_figures((folder / "validation/summary.txt").read_text())
    known = {name: compared(*sides) for name, sides in peer.items()}
    return [JudgedLoad(cell=msgspec.structs.replace(cell, peer="LLMServingSim"), metrics=metrics, peer=known)]


def peer_figures(text: str) -> dict[str, tuple[float, float]]:
    """Metric -> the real and the simulated milliseconds of LLMServingSim's summary.txt, which are rounded.

    Raises ValueError where it has none.
    """
    metrics = {"TTFT": "ttft", "TPOT": "tpot", "Latency": "e2el"}
    statistics = {"Mean": "_ms", "Median": "_p50_ms", "P95": "_p95_ms", "P99": "_p99_ms"}
    lines = re.findall(r"^(\w+) (\w+)\s+([\d.]+)\s+([\d.]+)\s+[+-][\d.]+%\s*$", text, re.MULTILINE)
    figures = {
        f"{metrics[metric]}{statistics[statistic]}": (float(real), float(simulated))
        for metric, statistic, real, simulated in lines
        if metric in metrics and statistic in statistics
    }
    if not figures:
        raise ValueError("summary.txt of LLMServingSim has no figure. Give lines such as 'TTFT Mean 1.0 1.1 +10.0%'")
    return figures


def step_figures(cell: ServedLoad, profile: Profile, run: RunSpec) -> dict[str, float]:
    """A step of the target alone, over rows of input_len tokens."""
    costs = build_costs(profile, engine_of(run.engine["name"], profile))
    forecast = StepForecast(costs, EngineLimits(), cell.input_len or 0, has_draft=False)
    step_s = forecast.step_s(round(cell.concurrency), cell.num_speculative_tokens, drafted_anew=0)
    return {"tpot_ms": 1e3 * step_s}


def length_figures(cell: ServedLoad, profile: Profile | None, run: RunSpec) -> dict[str, float]:
    """Acceptance length by what is quoted, at the cell's draft length."""
    k = cell.num_speculative_tokens
    return {"acceptance_length": parse_quoted(str(cell.acceptance)).model(k).expected_length(k)}


def pearl(cells: Sequence[ServedLoad], profile: Profile | None, run: RunSpec, data: Path) -> list[JudgedLoad]:
    """`pipelined` with a draft GPU of its own. The window and how much longer a step with PEARL takes than one without
    are not published: they are fitted for each pair and batch on PEARL_FITTED; the other data sets are judged."""
    judged = []
    for group in grouped(cells, lambda cell: (cell.gpu, cell.draft, cell.target, cell.concurrency)).values():
        fitted = [cell for cell in group if cell.arm in PEARL_FITTED]
        window, slowdown = _window(fitted)
        for cell in group:
            if cell not in fitted:
                with_window = msgspec.structs.replace(cell, num_speculative_tokens=window)
                judged.append(JudgedLoad.beside(with_window, {"speedup": _pearl_speedup(cell, window, slowdown)}))
    return judged


def _window(cells: Sequence[ServedLoad]) -> tuple[int, float]:
    """The window, and the slowdown of a step, that miss the cells least, in logarithms."""

    def misses(window: int) -> tuple[float, int, float]:
        ratios = [log(tokens_per_step(_rate(cell), window) / cell.measured["speedup"]) for cell in cells]
        mean = sum(ratios) / len(ratios)
        return sum(abs(ratio - mean) for ratio in ratios), window, exp(mean)

    return min(map(misses, WINDOWS), key=lambda tried: tried[0])[1:]


def _rate(cell: ServedLoad) -> float:
    """Probability that a drafted token is accepted: m / (m + 1), m the mean accepted run."""
    accepted = float(cell.texts["pearl_mean_accepted_tokens_MAT"])
    return accepted / (1.0 + accepted)


def tokens_per_step(rate: float, window: int) -> float:
    """Tokens that a row gets per step of the policy: with a window 1 + rate + ... + rate^(window - 1), without one
    1."""
    share = rate / (1.0 + rate - rate**window)
    return (1.0 - share) + share * (1.0 - rate**window) / (1.0 - rate)


def _pearl_speedup(cell: ServedLoad, window: int, slowdown: float) -> float:
    """Tokens per second of `pipelined` over those of plain decoding at the measured step."""
    plain = float(cell.texts["ar_tok_per_s"])
    like, verify_s = load(PEARL_LIKE), slowdown * cell.concurrency / plain
    kernels = msgspec.structs.replace(
        like.linear, target=LinearPass(pass_s=verify_s), draft=LinearPass(pass_s=verify_s / window)
    )
    scenario = Scenario.of(
        profile=PEARL_LIKE,
        policy="pipelined",
        num_speculative_tokens=window,
        acceptance=cell.acceptance,
        input_len=1,
        output_len=OUTPUT_TOKENS,
        num_prompts=max(8, cell.concurrency),
        request_rate="inf",
        max_concurrency=cell.concurrency,
        **{"policy_options.pools.draft": 1, "policy_options.poll_s": 0.0},
    )
    profile = msgspec.structs.replace(like, kernels=kernels)
    record = simulate(resolve(scenario, profile, "pipelined"), 0, record_works=True)
    checks = [work for work in record.works if work.kind == "verify"]
    tokens_per_row = float((record.requests.column("emitted_tokens") - 1).sum()) / sum(work.rows for work in checks)
    mean_step_s = (checks[-1].end_s - checks[0].start_s) / len(checks)
    return cell.concurrency * tokens_per_row / mean_step_s / plain


def power_figures(cell: ServedLoad, profile: Profile | None, run: RunSpec) -> dict[str, float]:
    """Average power by the use of the roofs over the measured times of the prompt and of the tokens after the first."""
    gpu, law, shape = DATASHEETS[POWER_GPU].gpu, POWER[POWER_GPU], POWER_SHAPES[cell.target]
    batch, prompt, tokens = map(round, (cell.concurrency, cell.input_len or 0, cell.output_len or 0))
    prompt_s, token_s = (float(cell.texts[name]) / 1e3 for name in ("prompt_time", "token_time"))
    prefill = pass_use(shape, cell.tp, 0, 0, 0.0, [Chunk(prompt, 0)] * batch, batch)
    decode = pass_use(shape, cell.tp, batch, batch, batch * (prompt + tokens / 2.0), (), batch)
    times_s = np.array([prompt_s, (tokens - 1) * token_s])
    used = np.array([utilisation_of(prefill, prompt_s, gpu), utilisation_of(decode, token_s, gpu)])
    return {"power_w": float(np.sum(times_s * power_w(law, used)) / np.sum(times_s))}


def overlap_figures(cell: ServedLoad, profile: Profile | None, run: RunSpec) -> dict[str, float]:
    """Prefill beside decode in closed form, from the published times of one stream. Nothing is simulated.

    A prefill takes P alone and a decode step d, with as many kernels each. With s = P / (P + d) prefill goes at the
    rate r = s + phi (1 - s) beside decode, and decode at q = 1 - s + phi s. On shares of the multiprocessors prefill
    is all compute and decode all bandwidth. Decode loses L = (1 - q) / r of P while a prefill lasts P / r.
    """
    return {name: _beside_prefill(cell, name) for name in cell.measured}


def _beside_prefill(cell: ServedLoad, metric: str) -> float:
    one, decode, prefill = (float(cell.texts[name]) for name in (metric, "alone", "prefill"))
    if prefill == 0.0:
        return one
    share, phi = prefill / (prefill + decode), ASSUMED_PHI.value
    prefill_rate, decode_rate = share + phi * (1.0 - share), 1.0 - share + phi * share
    if cell.arm == "green-ctx":
        part = int(re.findall(r"(\d+)%", cell.label)[0]) / 100.0
        portions = [Portion(1.0 - part, True), Portion(part, True)]
        prefill_rate, decode_rate = rates_on_shares(portions, (1.0, 1.0), [(1.0, 0.0), (0.0, 1.0)], MEASURED)
    lost = (1.0 - decode_rate) / prefill_rate
    if metric == "tpot_ms":
        return one - (1.0 - lost) * (one - decode)
    if metric.startswith("ttft"):
        return one * prefill / prefill_rate / (prefill + decode)
    ends_first = decode / decode_rate < prefill / prefill_rate
    return one * (decode / decode_rate if ends_first else decode + lost * prefill) / (decode + prefill)


def each(figures: Callable[[ServedLoad, Any, RunSpec], dict[str, float]]) -> Callable[..., list[JudgedLoad]]:
    """A judge of cells one by one."""
    return lambda cells, profile, run, data: [JudgedLoad.beside(cell, figures(cell, profile, run)) for cell in cells]


JUDGES: dict[str, Callable[..., list[JudgedLoad]]] = {
    "table": loops, "study": loops, "timestamps": timestamps, "pearl": pearl, "steps": each(step_figures),
    **dict.fromkeys(("tapes", "rounds"), each(length_figures)), "power": each(power_figures),
    "overlap": each(overlap_figures),
}  # fmt: skip
"""By the reader of the cells."""
