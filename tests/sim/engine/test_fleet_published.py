"""Four replicas against four measured GPUs: Apertus 8B on GH200, DP4. Skipped where the measurements are absent."""

from __future__ import annotations

import csv
from itertools import cycle, islice

import pytest

from sim.costs.profile_files import load
from sim.experiment.run import simulate
from sim.experiment.scenario import Scenario
from sim.seam.request import Request
from tests.calibrate.support import published

PROFILE = "gh200/apertus-8b"
ENGINE = {
    "engine.max_num_seqs": 256,
    "engine.max_num_batched_tokens": 16384,
    "engine.num_gpu_blocks": 29365,
    "engine.enable_prefix_caching": False,
}
"""As the study states them."""


def tokens_per_s(lengths: list[tuple[int, int]], concurrency: int, num_requests: int, count: int) -> float:
    requests = [
        Request(index, f"r{index}", arrival_s=0.0, prompt_tokens=prompt, output_tokens=output)
        for index, (prompt, output) in enumerate(islice(cycle(lengths), num_requests))
    ]
    given = Scenario.of(
        profile=PROFILE,
        policy="autoregressive",
        engine="vllm-0.23",
        num_speculative_tokens=0,
        num_prompts=num_requests,
        request_rate="inf",
        max_concurrency=concurrency,
        **ENGINE,
        **{"devices.count": count, "devices.routing": "least-outstanding"},
    )
    record = simulate(given, "autoregressive", 0, load(PROFILE), requests=requests)
    return sum(request.emitted_tokens for request in record.requests) / record.end_s


@pytest.mark.parametrize("concurrency", [4, 128])
def test_four_replicas_are_within_eight_percent_of_four_measured_gpus(concurrency: int) -> None:
    folder = published("unlicensed_local_only/apertus_gh200")
    with (folder / "lengths_summarization.csv").open() as lines:
        lengths = [(int(row["prompt_tokens"]), int(row["output_tokens"])) for row in csv.DictReader(lines)]
    with (folder / "multigpu.csv").open() as lines:
        row = next(
            row
            for row in csv.DictReader(lines)
            if row["layout"] == "DP4" and int(row["concurrency_total"]) == concurrency
        )
    measured, num_requests = float(row["output_tok_per_s"]), int(row["requests"])
    four = tokens_per_s(lengths, concurrency, num_requests, 4)
    assert four == pytest.approx(measured, rel=0.08)
    one = tokens_per_s(lengths, concurrency // 4, min(128, num_requests), 1)
    assert four / one == pytest.approx(3.95, rel=0.08)
