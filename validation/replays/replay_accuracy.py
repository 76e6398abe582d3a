"""Errors of the simulator on this very CPU, with a profile measured just before.

Each draw measures the tiny pair, writes down what the simulator predicts, replays every policy open and closed loop
and compares. All draws go into the report, none is chosen. Timings are reported here, never asserted in tests.
Not here: the report (validation.replays.replays_page), measuring (calibrate), replaying and comparing (realrun).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec

from calibrate.measure.pair import pair_spec
from calibrate.measure.session import measure_pair
from realrun.host.machine import fingerprint
from realrun.replay.pair_executor import PairExecutor
from realrun.replay.replays import Replay, about, replay, result_of, write_replays
from realrun.replay.testbed import SPARE_SLOTS, build_kernels, one_thread_cpu, sizes_for
from realrun.validate.error_parts import judge, predict
from realrun.validate.readback import read_replay, read_summary
from sim.costs.profile import Profile
from sim.costs.profile_files import encode
from sim.metrics.summary import number, summarise
from sim.report.results import writing
from sim.run.experiment import Experiment
from sim.run.resolve import resolve
from sim.run.scenario import Scenario, parse_scenario
from validation.replays.replays_page import write_report

POLICIES = ("autoregressive", "baseline", "pd", "pdv", "unified", "continuous")
NUM_PROMPTS, INPUT_TOKENS, OUTPUT_TOKENS = 32, 64, 32
CONCURRENCY = 4
UTILISATION = 0.5
"""Share of the slowest policy's predicted closed-loop throughput: the open loop's arrival rate."""
REPLAYS = 3
"""Runs of everything, round after round: a shared machine drifts by several percent from minute to minute."""
FIRST_SEED = 81
"""Seed of the first draw."""
KEPT = ("mean_ttft_ms", "mean_e2el_ms", "p95_e2el_ms", "output_throughput")


def main(
    results: Path = Path("results/replay-accuracy"),
    report: Path = Path("docs/validation/cpu"),
    draws: int = 3,
    budget: float = 120.0,
) -> None:
    """`results` keeps draws that are done; `budget` is of calibrate measure, seconds. Raises ValueError where a draw in
    `results` is of other seeds."""
    held = []
    for place in range(1, draws + 1):
        folder, seed = results / f"draw-{place}", FIRST_SEED + place - 1
        kept = folder / "draw.json"
        if not kept.exists():
            folder.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(run_draw(folder, budget, seed), indent=1))
        held.append(json.loads(kept.read_text()))
        if held[-1].get("seed") != seed:
            raise ValueError(f"{folder} is of other seeds; remove it or choose another --results")
    write_report(report, held)
    for place in range(1, draws + 1):
        predictions = (results / f"draw-{place}" / "predictions.json").read_text()
        (report / f"predictions-{place}.json").write_text(predictions)
    print(f"report in {report}")


def run_draw(draw: Path, budget_s: float, seed: int) -> dict[str, Any]:
    """Measure, predict, replay, judge. Seeds differ from draw to draw."""
    one_thread_cpu()
    spec = pair_spec("cpu", "tiny-target", "tiny-draft", None, None, None, None, 0)
    profile = measure_pair(spec, draw / "tiny.points.jsonl", budget_s, say=print)
    (draw / "tiny.json").write_bytes(encode(profile))
    loads = {"closed": _scenario(seed, "inf", CONCURRENCY)}
    closed = {policy: _predicted(loads["closed"], policy, profile) for policy in POLICIES}
    rate = UTILISATION * min(run["output_throughput"] for run in closed.values()) / OUTPUT_TOKENS
    loads["open"] = _scenario(seed, round(rate, 2), None)
    predictions = {"closed": closed, "open": {p: _predicted(loads["open"], p, profile) for p in POLICIES}}
    # Written down before anything is replayed.
    (draw / "predictions.json").write_text(json.dumps({"rate": round(rate, 2), **predictions}, indent=1))
    prepared = [_Load(draw, load, loads[load], profile) for load in ("open", "closed")]
    rows = [row for number in range(1, REPLAYS + 1) for load in prepared for row in load.replay(number)]
    for row in rows:
        row["predicted"] = predictions[row["load"]][row["policy"]]
    return {
        "seed": seed,
        "rate": round(rate, 2),
        "rows": rows,
        "profile": {
            "source": profile.source,
            "host": msgspec.to_builtins(profile.host),
            "overlap": msgspec.to_builtins(profile.overlap),
            "errors": {kind: error.mean_error_pct for kind, error in profile.errors.items()},
        },
        "machine": _machine_class(),
    }


def _scenario(seed: int, rate: float | str, concurrency: int | None) -> Scenario:
    workload = {
        "num_prompts": NUM_PROMPTS,
        "request_rate": rate,
        "max_concurrency": concurrency,
        "input_len": INPUT_TOKENS,
        "output_len": OUTPUT_TOKENS,
    }
    return parse_scenario({"profile": "cpu/tiny", "policy": list(POLICIES), "workload": workload, "seed": seed})


def _experiment(scenario: Scenario, policy: str, profile: Profile, slots: int) -> Experiment:
    return Experiment(resolve(scenario, profile, policy, num_slots=slots), scenario.seed)


def _predicted(scenario: Scenario, policy: str, profile: Profile) -> dict[str, float]:
    run = summarise(predict(_experiment(scenario, policy, profile, NUM_PROMPTS)))
    return {name: number(run, name) or 0.0 for name in KEPT}


class _Load:
    """One load on separate kernels, to be replayed again and again."""

    def __init__(self, out: Path, load: str, scenario: Scenario, profile: Profile) -> None:
        self.out, self.load, self.scenario, self.profile = out, load, scenario, profile
        device = one_thread_cpu()
        sizes = sizes_for([_experiment(scenario, policy, profile, NUM_PROMPTS) for policy in POLICIES], device)
        self._slots = sizes.slots - SPARE_SLOTS
        self._kernels = build_kernels(profile, sizes, device, seed=scenario.seed)
        self._executor = PairExecutor(self._kernels, seed=scenario.seed)

    def replay(self, number: int) -> list[dict[str, Any]]:
        """Every policy once."""
        replays: list[Replay] = []
        around = []
        for policy in POLICIES:
            before = _Business()
            replays.append(replay(_experiment(self.scenario, policy, self.profile, self._slots), self._executor))
            around.append({"others_cores": before.others_cores(), "load_average": os.getloadavg()[0]})
        out = self.out / f"{self.load}-{number}"
        with writing(out) as scratch:
            write_replays(
                scratch, self.scenario, result_of(self.scenario, replays, about(self._kernels, "cpu")), replays
            )
        _, summary = read_summary(out)
        rows = []
        for observed, of_run in zip(read_replay(out, self.scenario, summary, self.profile), around, strict=True):
            verdict = judge(observed).verdict
            kept = {
                name: verdict[name] for name in ("policy", "decomposition", "lookups", "works", "machine", "divergence")
            }
            rows.append({"load": self.load, "repeat": number, **kept, **of_run})
        return rows


class _Business:
    """Share of this machine's cores that other processes keep busy."""

    def __init__(self) -> None:
        self._started = self._now()

    def others_cores(self) -> float | None:
        """Cores in use by others on average since the start; None where the system does not tell."""
        busy_s, own_s, wall_s = (b - a for a, b in zip(self._started, self._now(), strict=True))
        return round(max(0.0, busy_s - own_s) / wall_s, 2) if busy_s == busy_s else None

    @staticmethod
    def _now() -> tuple[float, float, float]:
        times = os.times()
        try:
            with open("/proc/stat") as lines:
                user, nice, system, _, _, irq, softirq, steal = map(int, lines.readline().split()[1:9])
            busy_s = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        except OSError:
            busy_s = float("nan")
        return busy_s, times.user + times.system, times.elapsed


def _machine_class() -> str:
    """The fingerprint's class, without anything that names a host."""
    machine = fingerprint("cpu")
    return f"{machine['cores']}-core CPU ({machine['processor']}), torch {machine['torch']}, Python {machine['python']}"
