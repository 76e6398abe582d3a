"""What a profile with experts costs the simulator beside a dense one: `python -m benchmarks.moe_speed [--most 1.3]`.

CPU seconds of whole processes that simulate NUM_PROMPTS requests, the two profiles in turns, at rates that keep about
as many requests in the batch. Fails where the median of the pairs' ratios is above --most.
"""

from __future__ import annotations

import argparse
import json
from statistics import median

from benchmarks.speed import LANESIM, child

PROFILES = {"dense": ("h200-sxm/llama-3.1-8b", 16.0), "moe": ("h200-sxm/gpt-oss-120b", 9.0)}
"""Profile and requests per second."""
NUM_PROMPTS, PAIRS = 10_000, 5


def cpu_s(kind: str) -> tuple[float, float]:
    """CPU seconds of one process, and requests in the batch."""
    profile, rate = PROFILES[kind]
    arguments = (
        "compare", "--policy", "autoregressive", "--profile", profile, "--dataset-name", "azure-conv", "--num-prompts",
        str(NUM_PROMPTS), "--request-rate", str(rate), "--num-speculative-tokens", "0", "--seed", "0", "--json", "-",
    )  # fmt: skip
    (code, used_s, _), stdout = child(LANESIM, *arguments)
    if code:
        raise SystemExit(f"{profile}: exit code {code}")
    run = json.loads(stdout)["runs"][0]
    return used_s, run["mean_e2el_ms"] / 1e3 * run["request_throughput"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=float, default=1.3)
    options = parser.parse_args()
    ratios = []
    for _ in range(PAIRS):
        dense, moe = cpu_s("dense"), cpu_s("moe")
        ratios.append(moe[0] / dense[0])
        print(
            f"dense {dense[0]:.2f} s CPU (batch {dense[1]:.0f})   MoE {moe[0]:.2f} s (batch {moe[1]:.0f})"
            f"   ratio {ratios[-1]:.2f}",
            flush=True,
        )
    print(f"median ratio {median(ratios):.2f}, at most {options.most:g} wanted")
    if median(ratios) > options.most:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
