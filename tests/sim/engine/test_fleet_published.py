"""Four measured GPUs, Apertus 8B on GH200: as four replicas (DP4) and as one group (TP4). Skipped where the
measurements are absent."""

from __future__ import annotations

import csv
from itertools import cycle, islice

import pytest

from calibrate.catalogue.derived_profiles import split
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.interface.request import Request
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate
from tests.calibrate.support import published

PROFILE = "gh200/apertus-8b"
ENGINE = {
    "engine.max_num_seqs": 256,
    "engine.max_num_batched_tokens": 16384,
    "engine.rules.enable_prefix_caching": False,
}
"""As the study states them."""


def tokens_per_s(
    lengths: list[tuple[int, int]],
    concurrency: int,
    num_requests: int,
    count: int = 1,
    profile: Profile | None = None,
    num_gpu_blocks: int = 29365,
) -> float:
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
        **{"engine.num_gpu_blocks": num_gpu_blocks},
        **{"devices.count": count, "devices.routing": "least-outstanding"},
    )
    record = simulate(resolve(given, profile or load(PROFILE), "autoregressive"), 0, requests=requests)
    return sum(request.emitted_tokens for request in record.requests) / record.end_s


def measured(layout: str, concurrency: int) -> tuple[list[tuple[int, int]], float, int, int]:
    """Lengths in order, tokens per second of the node, requests, tokens of one engine's KV."""
    folder = published("unlicensed_local_only/apertus_gh200")
    with (folder / "lengths_summarization.csv").open() as lines:
        lengths = [(int(row["prompt_tokens"]), int(row["output_tokens"])) for row in csv.DictReader(lines)]
    with (folder / "multigpu.csv").open() as lines:
        row = next(
            row
            for row in csv.DictReader(lines)
            if row["layout"] == layout and int(row["concurrency_total"]) == concurrency
        )
    pool_tokens = int(row["kv_pool_tokens_one_engine"])
    return lengths, float(row["output_tok_per_s"]), int(row["requests"]), pool_tokens


@pytest.mark.parametrize("concurrency", [4, 128])
def test_four_replicas_are_within_eight_percent_of_four_measured_gpus(concurrency: int) -> None:
    lengths, node, num_requests, _ = measured("DP4", concurrency)
    four = tokens_per_s(lengths, concurrency, num_requests, 4)
    assert four == pytest.approx(node, rel=0.08)
    one = tokens_per_s(lengths, concurrency // 4, min(128, num_requests), 1)
    assert four / one == pytest.approx(3.95, rel=0.08)


@pytest.mark.parametrize(("concurrency", "within"), [(4, 0.005), (32, 0.08), (128, 0.08)])
def test_one_group_of_four_is_within_eight_percent_of_the_measured_one(concurrency: int, within: float) -> None:
    """The fixed time of its all-reduces is fitted on 4 in flight, which is met therefore; nothing on the others."""
    lengths, node, num_requests, pool_tokens = measured("TP4", concurrency)
    group = split(load(PROFILE), 4)
    found = tokens_per_s(lengths, concurrency, num_requests, 1, group, pool_tokens // 16)
    assert found == pytest.approx(node, rel=within)
