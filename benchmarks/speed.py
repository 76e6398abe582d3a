"""Speed of the simulator: whole-process CPU seconds and memory, against a bare loop in the same run.

    .venv/bin/python benchmarks/speed.py [--quick]

Prints a table; asserts only that the bare loop takes the same steps. Compare ratios of one run, not seconds of two
machines. Each row is a fresh process, the minimum of several.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

PAIR = "h100-sxm/llama-3.1-8b+llama-3.2-1b"
LOAD = ["--dataset-name", "azure-conv", "--request-rate", "18", "--acceptance", "iid:0.7", "--seed", "0"]
REPEATS = 3

CHILD = """
import json, resource, sys
from sim.cli import run
code = run(sys.argv[1:])
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([code, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024]), file=sys.stderr)
"""

REFERENCE = """
import resource, sys, time
sys.path.insert(0, sys.argv[1])
from benchmarks.reference_loop import run_reference
"""


def lanesim(*arguments: str) -> tuple[float, float]:
    """(CPU seconds, peak memory in MB) of one `lanesim` process, the least of REPEATS."""
    best = (float("inf"), float("inf"))
    for _ in range(REPEATS):
        done = subprocess.run([sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, check=True)
        code, cpu_s, memory_mb = json.loads(done.stderr.splitlines()[-1])
        assert code == 0, done.stderr
        best = min(best, (cpu_s, memory_mb))
    return best


def compare(policy: str, num_prompts: int, draft_tokens: int, *more: str, out: Path | None = None) -> tuple[float, float]:
    return lanesim(
        "compare", "--policy", policy, "--profile", PAIR, *LOAD, "--num-prompts", str(num_prompts),
        "--num-speculative-tokens", str(draft_tokens), *more, "--json", str(out or "/dev/null"),
    )  # fmt: skip
