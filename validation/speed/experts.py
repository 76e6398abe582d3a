"""What a profile with experts costs the simulator beside a dense one: `python -m validation moe_speed [--most 1.3]`.

CPU seconds of whole processes that simulate NUM_PROMPTS requests in closed loops of CONCURRENCY, so that all take about
as many steps; the profiles in turns. Fails where the median of the rounds' ratios is above --most.
"""

from __future__ import annotations

import argparse
import json
from statistics import median

from validation.speed.processes import LANESIM, child

DENSE, SPARSE = "h200-sxm/qwen3-8b", ("h200-sxm/qwen3-30b-a3b", "h200-sxm/gpt-oss-120b")
NUM_PROMPTS, CONCURRENCY, ROUNDS = 10_000, 64, 5


def cpu_s(profile: str) -> tuple[float, int]:
    """CPU seconds of one process, and the works that it simulated."""
    arguments = (
        "compare", "--policy", "autoregressive", "--profile", profile, "--dataset-name", "azure-conv", "--num-prompts",
        str(NUM_PROMPTS), "--request-rate", "inf", "--max-concurrency", str(CONCURRENCY), "--num-speculative-tokens",
        "0", "--seed", "0", "--json", "-",
    )  # fmt: skip
    (code, used_s, _), stdout = child(LANESIM, *arguments)
    if code:
        raise SystemExit(f"{profile}: exit code {code}")
    return used_s, int(sum(json.loads(stdout)["runs"][0]["num_works"].values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=float, default=1.3)
    options = parser.parse_args()
    ratios: dict[str, list[float]] = {name: [] for name in SPARSE}
    for _ in range(ROUNDS):
        dense_s, steps = cpu_s(DENSE)
        print(f"{DENSE} {dense_s:.2f} s CPU, {steps} steps", flush=True)
        for name in SPARSE:
            used_s, steps = cpu_s(name)
            ratios[name].append(used_s / dense_s)
            print(f"{name} {used_s:.2f} s CPU, {steps} steps: {used_s / dense_s:.2f} of dense", flush=True)
    medians = {name: median(values) for name, values in ratios.items()}
    print(f"medians of {ROUNDS} rounds: {', '.join(f'{name} {value:.2f}' for name, value in medians.items())}")
    if max(medians.values()) > options.most:
        raise SystemExit(1)
