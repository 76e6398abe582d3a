"""Speed of the simulator: whole-process CPU seconds and memory, beside a bare loop of the same decisions.

    .venv/bin/python -m validation speed

Every row is a fresh process that does what the installed `lanesim` command does, byte code at hand, and the median of
REPEATS after one that nobody counts. Compare ratios of one run, not seconds of two machines. The bare loop
(validation.speed.bare_loop) takes the same steps, which is asserted; nothing else is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from statistics import median
from typing import Any

PAIR = "h100-sxm/llama-3.1-8b+llama-3.2-1b"
RATE = {0: 12.4, 4: 14.0}
"""Requests per second by draft length that keep about 35 requests in the batch."""
LANE_RATE = 1.0
REPEATS = 5
ASYNC = ("--set", "engine.async_scheduling=true")
ONE_PHI = ("--set", "devices.phi=0.07")
"""Lanes are simulated once, not over the bracket of phi."""

LANESIM = """
import json, resource, sys
from sim.cli.main import main
try:
    main()
except SystemExit as exit:
    code = exit.code
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([code, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]), file=sys.stderr)
"""

REFERENCE = """
import json, resource, sys
from validation.speed.bare_loop import run_reference
from sim.acceptance.forms import parse_acceptance
from sim.costs.engine import engine_of
from sim.costs.forms.build import build_costs
from sim.costs.memory import kv_capacity_tokens
from sim.costs.profile_files import load
from sim.acceptance.draws import AcceptanceDraws
from sim.workload.generate import Workload, build_requests
profile, num_prompts, rate, draft_tokens = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
profile, seed = load(profile), int(sys.argv[5])
requests = build_requests(Workload(dataset_name="azure-conv", num_prompts=num_prompts, request_rate=rate), seed)
draws = AcceptanceDraws(parse_acceptance("iid:0.7", max(1, draft_tokens)), seed)
if draft_tokens:
    draws.prepare([r.index for r in requests], [r.output_tokens for r in requests], draft_tokens)
num_blocks = kv_capacity_tokens(profile, 0.9, with_draft=draft_tokens > 0) // 16
costs = build_costs(profile, engine_of(None, profile))
steps, end_s = run_reference(requests, costs, draws, draft_tokens, 256, 2048, num_blocks)
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([steps, end_s, used.ru_utime + used.ru_stime]), file=sys.stderr)
"""


def child(code: str, *arguments: str) -> tuple[Any, str]:
    """What a fresh interpreter prints last on stderr, as JSON, and its stdout; byte code is kept, as once installed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stderr.splitlines()[-1]), done.stdout


def compare(policy: str, num_prompts: int, rate: float, draft_tokens: int, *more: str) -> dict[str, Any]:
    """One `lanesim compare` that writes per-request metrics as JSON: CPU seconds, memory in MB, and its run."""
    arguments = [
        "compare", "--policy", policy, "--profile", PAIR, "--dataset-name", "azure-conv",
        "--num-prompts", str(num_prompts), "--request-rate", str(rate), "--acceptance", "iid:0.7",
        "--num-speculative-tokens", str(draft_tokens), "--seed", "0", "--save-detailed", "--json", "-",
        "--max-num-seqs", "256", "--max-num-batched-tokens", "2048", "--set", "engine.async_scheduling=false", *more,
    ]  # fmt: skip
    runs = [child(LANESIM, *arguments) for _ in range(1 + REPEATS)][1:]
    assert all(code == 0 for (code, _, _), _ in runs)
    return {
        "cpu_s": median(cpu_s for (_, cpu_s, _), _ in runs),
        "memory_mb": median(memory_mb for (_, _, memory_mb), _ in runs),
        **json.loads(runs[0][1])["runs"][0],
    }


def reference(num_prompts: int, rate: float, draft_tokens: int, seed: int) -> tuple[int, float, float]:
    """(steps, last token's time, CPU seconds) of the bare loop, its process included."""
    arguments = PAIR, str(num_prompts), str(rate), str(draft_tokens), str(seed)
    runs = [child(REFERENCE, *arguments)[0] for _ in range(1 + REPEATS)][1:]
    steps, end_s, _ = runs[0]
    return steps, end_s, median(cpu_s for *_, cpu_s in runs)


def works(run: dict[str, Any]) -> int:
    return int(sum(run["num_works"].values()))


def main() -> None:
    idle_s = compare("continuous", 10, 1.0, 4)["cpu_s"]
    print(f"ten requests (start-up)                      {idle_s:6.2f} s CPU")
    per_work_us = {}
    for draft_tokens, rate in RATE.items():
        run = compare("continuous", 10_000, rate, draft_tokens)
        steps, end_s, bare_s = reference(10_000, rate, draft_tokens, run["seed"])
        assert works(run) == steps * (2 if draft_tokens else 1), (works(run), steps)
        assert abs(run["duration"] - end_s) < 1e-6 * end_s
        batch = run["mean_e2el_ms"] / 1e3 * run["request_throughput"]
        per_work_us[draft_tokens] = (run["cpu_s"] - idle_s) / works(run) * 1e6
        print(
            f"continuous, 10,000 requests, k={draft_tokens}, batch {batch:4.1f}    {run['cpu_s']:6.2f} s CPU"
            f"  {run['memory_mb']:4.0f} MB  {per_work_us[draft_tokens]:5.1f} us per work"
            f"  bare loop {bare_s:5.2f} s, ratio {run['cpu_s'] / bare_s:.2f}"
        )
        ahead = compare("continuous", 10_000, rate, draft_tokens, *ASYNC)
        print(
            f"  with asynchronous scheduling               {ahead['cpu_s']:6.2f} s CPU"
            f"  {ahead['memory_mb']:4.0f} MB  {ahead['cpu_s'] / run['cpu_s']:5.2f} x synchronous"
        )
        large = compare("continuous", 100_000, rate, draft_tokens)
        print(
            f"continuous, 100,000 requests, k={draft_tokens}             {large['cpu_s']:6.2f} s CPU"
            f"  {large['memory_mb']:4.0f} MB  {large['cpu_s'] / run['cpu_s']:5.2f} x 10,000"
        )
    for policy in ("baseline", "pd", "pdv", "unified"):
        run = compare(policy, 1_000, LANE_RATE, 4, *ONE_PHI)
        us = (run["cpu_s"] - idle_s) / works(run) * 1e6
        print(
            f"{policy:<10} 1,000 requests, k=4                {run['cpu_s']:6.2f} s CPU"
            f"  {us:5.1f} us per work, {us / per_work_us[4]:.1f} x continuous"
        )
    per_token = []
    for concurrency in (8, 128):
        limits = ("--max-concurrency", str(concurrency))
        few, run = (compare("continuous", count, float("inf"), 0, *limits) for count in (10, 4_000))
        per_token.append((run["cpu_s"] - few["cpu_s"]) / run["total_output_tokens"] * 1e9)
    print(f"CPU per output token at batch 8 and 128       {per_token[0]:.0f} and {per_token[1]:.0f} ns")
