"""Speed beside NVIDIA Dynamo: CPU seconds and memory of whole processes that serve the same requests.

    python -m validation speed [--rounds 5] [--only TEXT]

Each case runs with lanesim's compiled core and without it. The first cases run with the offline replay of Dynamo
(Apache-2.0), too, which has no equal of the others. Programs take turns, and the first round does not count. Figures
are medians over rounds, and ratios are medians of the rounds' own ratios. Dynamo needs the wheels ai-dynamo and
ai-dynamo-runtime 1.6 or later, and is left out without them. Its drafts cost nothing, so lanesim drafts with n-grams
beside it. Compare ratios, not the seconds of two machines. Not here: the figures of a release
(docs/validation/speed.md).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from sim.run.compiled import LANE_POLICIES, SWITCH, is_on
from sim.workload.generate import Workload, build_requests
from validation.tables import markdown

PAIR = "h100-sxm/llama-3.1-8b+llama-3.2-1b"
ACCEPTED = 0.7
PURE, COMPILED, DYNAMO = "pure", "compiled", "Dynamo"

LANESIM = """
from sim.cli.main import main
try:
    main()
except SystemExit as exit:
    result = exit.code
"""
REPLAY = """
from dynamo.replay import run_trace_replay
draft_tokens = int(sys.argv[2])
engine = {"block_size": 16, "num_gpu_blocks": 30_000, "max_num_seqs": 256, "max_num_batched_tokens": 2048,
          "enable_prefix_caching": False}
if draft_tokens:
    engine |= {"aic_nextn": draft_tokens, "aic_nextn_accept_rates": ",".join([sys.argv[3]] * draft_tokens)}
report = run_trace_replay(
    sys.argv[1], extra_engine_args={"engine": engine}, trace_block_size=512, capture_per_request=False
)
result = [report.summary["completed_requests"], report.summary["total_output_tokens"]]
"""
PROCESS = """
import json, re, resource, sys
{program}
used = resource.getrusage(resource.RUSAGE_SELF)
with open("/proc/self/status") as file:
    peak_mb = int(re.search("VmHWM:\\\\s+(\\\\d+)", file.read())[1]) / 1024
print(json.dumps([result, used.ru_utime + used.ru_stime, peak_mb]), file=sys.stderr)
"""
"""A program, then its result, CPU seconds and peak MB. The peak of `getrusage` includes what the parent held."""


class SpeedCase(NamedTuple):
    """Requests that every program serves; rates keep about 35 requests in the batch."""

    num_prompts: int
    draft_tokens: int
    rate: float
    title: str = "continuous"
    keys: tuple[str, ...] = ()
    """Keys of the scenario that Dynamo has no equal of."""
    policy: str = "continuous"

    @property
    def name(self) -> str:
        method = "draft model" if self.policy in LANE_POLICIES else "n-grams"
        drafts = f"k={self.draft_tokens}, {method}" if self.draft_tokens else "k=0"
        return f"{self.title}, {self.num_prompts:,} requests, {drafts}"


LANES = ("speculation.method=draft_model",)
CASES = (
    *(SpeedCase(count, k, rate) for count in (10_000, 100_000) for k, rate in ((0, 12.4), (4, 18.0))),
    SpeedCase(1_000, 4, 18.0, "short memory", ("engine.num_gpu_blocks=2000",)),
    SpeedCase(1_000, 4, 18.0, "SGLang", ("engine.name=sglang-0.5", "engine.num_gpu_blocks=4000")),
    SpeedCase(1_000, 0, 12.4, "context window", ("engine.max_model_len=1500",)),
    *(SpeedCase(1_000, 4, 2.0, f"lanes, {policy}", LANES, policy) for policy in LANE_POLICIES),
)


class Used(NamedTuple):
    """What one process returned and used."""

    result: Any
    cpu_s: float
    memory_mb: float


def child(program: str, *arguments: str, core: str = "on") -> tuple[Used, str]:
    """A fresh interpreter's use and its standard output; byte code is kept, as after an installation."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", PROCESS.format(program=program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**environment, SWITCH: core})
    return Used(*json.loads(done.stderr.splitlines()[-1])), done.stdout


def simulated(case: SpeedCase, core: str) -> Used:
    """`lanesim compare`; its result is the seed and the output tokens."""
    used, stdout = child(
        LANESIM,
        *("compare", "--policy", case.policy, "--profile", PAIR, "--seed", "0"),
        *("--set", "workload.dataset_name=azure-conv"),
        *("--num-prompts", str(case.num_prompts), "--request-rate", str(case.rate), "--acceptance", f"iid:{ACCEPTED}"),
        *("--num-speculative-tokens", str(case.draft_tokens), "--set", "speculation.method=ngram"),
        *("--set", "engine.max_num_seqs=256", "--set", "engine.max_num_batched_tokens=2048"),
        *("--set", "engine.async_scheduling=false", "--json", "-"),
        *(word for key in case.keys for word in ("--set", key)),
        core=core,
    )
    assert used.result == 0, case
    (run,) = json.loads(stdout)["runs"]
    return used._replace(result=(run["seed"], run["total_output_tokens"]))


def replayed(case: SpeedCase, seed: int, tokens: int, folder: Path) -> Used:
    """Dynamo's replay of the same arrivals and lengths, which must emit as many `tokens`."""
    trace = folder / f"{case.num_prompts}-{case.draft_tokens}.jsonl"
    if not trace.exists():
        write_trace(case, seed, trace)
    used, _ = child(REPLAY, str(trace), str(case.draft_tokens), str(ACCEPTED))
    assert used.result == [case.num_prompts, tokens], used
    return used


def write_trace(case: SpeedCase, seed: int, path: Path) -> None:
    """The case's requests as Dynamo reads them, with no prefix in common."""
    workload = Workload(dataset_name="azure-conv", num_prompts=case.num_prompts, request_rate=case.rate)
    blocks = 0
    with path.open("w") as file:
        for request in build_requests(workload, seed):
            first, blocks = blocks, blocks - -request.prompt_tokens // 512
            row = {
                "timestamp": 1e3 * request.arrival_s,
                "input_length": request.prompt_tokens,
                "output_length": request.output_tokens,
                "hash_ids": list(range(first, blocks)),
            }
            file.write(json.dumps(row) + "\n")


def measured(case: SpeedCase, rounds: int, folder: Path) -> dict[str, list[Used]]:
    """[rounds] of each program that is installed."""
    by_program: dict[str, list[Used]] = {}
    for _ in range(1 + rounds):
        for name, core in ((PURE, "off"), (COMPILED, "on")):
            if name == PURE or is_on():
                by_program.setdefault(name, []).append(simulated(case, core))
        if not case.keys and find_spec("dynamo") is not None:
            seed, tokens = by_program[PURE][-1].result
            by_program.setdefault(DYNAMO, []).append(replayed(case, seed, tokens, folder))
    return {name: used[1:] for name, used in by_program.items()}


def row_of(case: SpeedCase, by_program: Mapping[str, Sequence[Used]]) -> dict[str, str]:
    """Medians of each program, and medians of the rounds' ratios; empty where a program did not run."""

    import pandas as pd

    used = {name: pd.DataFrame(rounds, columns=Used._fields) for name, rounds in by_program.items()}

    def of(name: str, field: str, digits: int = 2, beside: str = "") -> str:
        if not {name, beside or name} <= used.keys():
            return ""
        values = used[name][field] / used[beside][field] if beside else used[name][field]
        return f"{values.median():.{digits}f}"

    return {
        "case": case.name,
        **{f"{name}, CPU s": of(name, "cpu_s") for name in (PURE, COMPILED)},
        **{f"{name}, MB": of(name, "memory_mb", 0) for name in (PURE, COMPILED)},
        **{f"{name} / Dynamo": of(name, "cpu_s", beside=DYNAMO) for name in (PURE, COMPILED)},
        "memory / Dynamo": of(COMPILED if COMPILED in used else PURE, "memory_mb", beside=DYNAMO),
    }


def main(rounds: int = 5, only: str = "") -> None:
    """--only: cases whose name has the text."""
    from pandas import DataFrame

    with tempfile.TemporaryDirectory() as folder:
        rows = [row_of(case, measured(case, rounds, Path(folder))) for case in CASES if only in case.name]
    print(markdown(DataFrame(rows)))
