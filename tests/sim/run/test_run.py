"""Whole runs on shipped profiles: what more hardware and less draws may and may not do."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from sim.costs.profile_files import load
from sim.metrics.summary import summarise
from sim.policies.registry import POLICIES
from sim.run.resolve import resolve, resolve_all
from sim.run.scenario import parse_scenario
from sim.run.simulate import simulate

PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"


def scenario(policy: str, **workload: object) -> object:
    return parse_scenario(
        {"profile": PAIR, "policy": policy, "workload": {"input_len": 700, "output_len": 60, **workload}}
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_more_bandwidth_never_slows_a_lone_request(policy: str) -> None:
    profile = load(PAIR)
    times = []
    for factor in (1.0, 1.1, 1.5, 2.0, 4.0):
        gpu = msgspec.structs.replace(profile.gpu, bandwidth_bytes_per_s=profile.gpu.bandwidth_bytes_per_s * factor)
        faster = msgspec.structs.replace(profile, gpu=gpu)
        times.append(simulate(resolve(scenario(policy, num_prompts=1), faster, policy), 0).requests[0].last_token_s)
    assert times == sorted(times, reverse=True)
    assert times[-1] < times[0]


def test_a_request_beyond_the_models_context_is_noted() -> None:
    raw = {"workload": {"num_prompts": 1, "input_len": 5000}, "engine": {"max_model_len": 6000}}
    resolved = resolve(parse_scenario({"profile": PAIR, "policy": "pd"} | raw), load(PAIR), "pd")
    with pytest.warns(UserWarning, match=r"requests longer than llama-2-7b's context of 4096 tokens"):
        simulate(resolved, 0)


def test_a_window_counts_what_it_cuts() -> None:
    cut = msgspec.structs.replace(
        parse_scenario({"profile": PAIR, "policy": "pd", "window": {"stop_s": 3.0, "arrivals_end_s": 2.0}, "seed": 1}),
    )
    record = simulate(resolve(cut, load(PAIR), "pd"), 1)
    assert record.end_s == 3.0
    assert all(request.arrival_s <= 2.0 for request in record.requests)
    assert any(not request.is_finished for request in record.requests)


def test_closed_loop_throughput_keeps_within_its_asymptotic_bounds() -> None:
    """X(C) <= min(C / E2EL of one alone, 1 / busy time per request), and grows with C (Denning and Buzen 1978)."""
    throughputs, demands_s, lone_s = [], [], 0.0
    for concurrency in (1, 2, 4, 8):
        load_ = {"num_prompts": 40, "request_rate": "inf", "max_concurrency": concurrency}
        record = simulate(resolve(scenario("baseline", **load_), load(PAIR), "baseline"), 0)
        throughputs.append(len(record.requests) / record.end_s)
        demands_s.append(record.device_busy_s / len(record.requests))
        if concurrency == 1:
            lone_s = sum(r.last_token_s - r.arrival_s for r in record.requests) / len(record.requests)
        assert throughputs[-1] <= min(concurrency / lone_s, 1.0 / demands_s[-1]) * 1.02
    assert throughputs == sorted(throughputs)


def acceptance_length(**speculation: object) -> float:
    raw = {
        "profile": PAIR,
        "policy": "continuous",
        "speculation": speculation,
        "workload": {"input_len": 50, "output_len": 400},
    }
    record = simulate(resolve(parse_scenario(raw), load(PAIR), "continuous"), 0)
    drafts = sum(request.num_rounds for request in record.requests)
    return 1.0 + sum(request.accepted_tokens for request in record.requests) / drafts


@pytest.mark.parametrize(("acceptance", "length"), [("synthetic:2.6", 2.6), ("synthetic:.8,.5,.1", 2.4)])
def test_vllms_synthetic_acceptance_is_what_it_says(acceptance: str, length: float) -> None:
    """Of 200 requests of 400 tokens: within 1 %."""
    assert acceptance_length(acceptance=acceptance, num_speculative_tokens=3) == pytest.approx(length, rel=0.01)


def test_the_tiny_profile_has_its_own_default_lengths() -> None:
    def lengths(**workload: object) -> tuple[object, ...]:
        spec = parse_scenario({"profile": "cpu/tiny", "policy": "pd", "workload": workload}).workload
        return spec.dataset_name, spec.input_len, spec.output_len

    assert lengths() == ("fixed", 64, 32)
    assert lengths(output_len=9) == ("fixed", 64, 9)
    assert lengths(dataset_name="azure-conv") == ("azure-conv", None, None)


BUSY = {
    "profile": "h100-sxm/llama-3.1-8b+llama-3.2-1b",
    "policy": "continuous",
    "workload": {"num_prompts": 60, "request_rate": 20},
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"engine": {"async_scheduling": True}},
        {"engine": {"num_gpu_blocks": 400}},
        {"window": {"stop_s": 2.0}},
        {"engine": {"rules": {"long_prefill_token_threshold": 64}}},
    ],
)
def test_looking_at_the_works_changes_no_figure(changes: dict) -> None:
    """Nor where lazy accounting steps aside: scarce memory, a cut window, prompts that overtake each other."""
    scenario = parse_scenario(BUSY | changes)
    profile = load(scenario.profile)
    unseen, seen = (
        summarise(simulate(resolve(scenario, profile, "continuous"), 0, record_works=is_seen))
        for is_seen in (False, True)
    )
    assert unseen.pop("phases_ms") != seen.pop("phases_ms")
    assert unseen == seen


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("draft_tokens", [0, 4])
def test_lazy_accounting_records_the_works_and_the_memory_of_the_plain_loop(draft_tokens: int, is_async: bool) -> None:
    records = []
    for longest_chunk in (0, 2048):
        engine = {"async_scheduling": is_async, "rules": {"long_prefill_token_threshold": longest_chunk}}
        speculation = {"num_speculative_tokens": draft_tokens}
        scenario = parse_scenario(
            BUSY | {"engine": engine | {"max_num_batched_tokens": 2048}, "speculation": speculation}
        )
        records.append(simulate(resolve(scenario, load(scenario.profile), "continuous"), 0, record_works=True))
    lazy, plain = records
    assert lazy.works == plain.works
    changes = [
        [point for before, point in pairwise([(0.0, -1), *record.kv_series]) if point[1] != before[1]]
        for record in records
    ]
    assert changes[0] == changes[1]


def test_without_drafts_an_acceptance_length_says_nothing() -> None:
    scenario = parse_scenario(BUSY | {"speculation": {"num_speculative_tokens": 0, "acceptance": "length:2.5"}})
    resolve_all(scenario, load(scenario.profile))


@pytest.mark.parametrize(
    ("speculation", "num_models"),
    [({}, 2), ({"num_speculative_tokens": 0}, 1), ({"method": "ngram", "acceptance": "iid:0.3"}, 1)],
)
def test_only_a_draft_model_that_is_used_takes_memory(speculation: dict[str, object], num_models: int) -> None:
    raw = {"profile": PAIR, "policy": "continuous", "workload": {"num_prompts": 1}, "speculation": speculation}
    profile = load(PAIR)
    record = simulate(resolve(parse_scenario(raw), profile, "continuous"), 0)
    assert record.weight_bytes == sum(shape.weight_bytes for shape in profile.models[:num_models])
    assert record.kv_bytes_per_token == sum(shape.kv_bytes_per_token for shape in profile.models[:num_models])
