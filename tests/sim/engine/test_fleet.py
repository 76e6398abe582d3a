"""Replicas: where requests go, that each replica is a run of its own, and that accounts add up."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sim.compare.capacity import Saturation
from sim.costs.profile_files import load
from sim.interface.request import Request
from sim.metrics.records import RunRecord
from sim.policies.registry import POLICIES
from sim.run.resolve import resolve
from sim.run.scenario import Scenario, to_plain
from sim.run.simulate import simulate
from sim.studies.cost_draws import with_times
from tests.sim.support import most_in_flight


def served(policy: str, requests: list[Request] | None = None, **changes: object) -> RunRecord:
    given = {"profile": "cpu/tiny", "policy": policy, "num_prompts": 24, "request_rate": 30} | changes
    return simulate(resolve(Scenario.of(**given), load("cpu/tiny"), policy), 0, requests=requests, record_works=True)


def replica_of(record: RunRecord) -> dict[int, int]:
    """By arrival index, from the streams that carried its works."""
    found: dict[int, set[int]] = {}
    for work in record.works:
        for index in work.requests:
            found.setdefault(index, set()).add(int(work.stream.rpartition(".")[2]))
    assert all(len(replicas) == 1 for replicas in found.values())
    return {index: min(replicas) for index, replicas in found.items()}


@pytest.mark.parametrize("policy", POLICIES)
def test_two_replicas_of_any_policy_serve_in_turn(policy: str) -> None:
    record = served(policy, **{"devices.count": 2})
    assert replica_of(record) == {index: index % 2 for index in range(24)}
    assert all(request.is_finished for request in record.requests)
    assert record.kv_capacity_tokens == 2 * served(policy).kv_capacity_tokens


def test_the_kv_of_a_fleet_is_that_of_its_replicas() -> None:
    """A replica serves its half exactly as a server alone would; token-seconds add up."""
    both = served("pd", **{"devices.count": 2})
    halves = [
        served(
            "pd",
            [
                Request(
                    r.index, r.id, arrival_s=r.arrival_s, prompt_tokens=r.prompt_tokens, output_tokens=r.output_tokens
                )
                for r in both.requests
                if r.index % 2 == replica
            ],
        )
        for replica in (0, 1)
    ]
    times = {r.index: (r.first_token_s, r.last_token_s, r.num_rounds) for r in both.requests}
    for half in halves:
        assert [(r.first_token_s, r.last_token_s, r.num_rounds) for r in half.requests] == [
            times[r.index] for r in half.requests
        ]
    assert both.kv_tokens_mean * both.end_s == pytest.approx(sum(half.kv_tokens_mean * half.end_s for half in halves))
    assert max(half.kv_tokens_peak for half in halves) < both.kv_tokens_peak
    assert both.kv_tokens_peak <= sum(half.kv_tokens_peak for half in halves)


def test_the_least_busy_replica_gets_what_comes_while_a_long_one_is_served() -> None:
    """One long request at first, then short ones that each end before the next comes."""
    requests = [Request(0, "r0", arrival_s=0.0, prompt_tokens=64, output_tokens=500)]
    requests += [Request(i, f"r{i}", arrival_s=0.1 * i, prompt_tokens=8, output_tokens=2) for i in range(1, 5)]
    record = served("pd", requests, **{"devices.count": 2, "devices.routing": "least-outstanding"})
    assert list(replica_of(record).values()) == [0, 1, 1, 1, 1]


def test_a_known_prefix_goes_where_it_was_sent_before() -> None:
    """Two families in turn, odd ones first on the second replica; round-robin over an odd number would mix them."""
    asked = [(1, 2), (7, 8), (7, 8, 9), (1, 2, 3), (7,), (1,)]
    requests = [
        Request(i, f"r{i}", arrival_s=0.02 * i, prompt_tokens=64, output_tokens=20, content=content)
        for i, content in enumerate(asked)
    ]
    record = served("continuous", requests, **{"devices.count": 2, "devices.routing": "prefix-affinity"})
    homes = replica_of(record)
    assert len({homes[0], homes[3], homes[5]}) == len({homes[1], homes[2], homes[4]}) == 1
    assert homes[0] != homes[1]


def test_a_closed_loop_holds_over_all_replicas() -> None:
    record = served("pd", request_rate="inf", max_concurrency=3, **{"devices.count": 2})
    assert most_in_flight(record.requests, since="arrival_s") == 3


def test_replicas_bear_as_many_times_the_load_of_one() -> None:
    given = Scenario.of(profile="cpu/tiny", policy="pd", request_rate=50)
    four = Scenario.of(to_plain(given), **{"devices.count": 4})
    one, of_four = (Saturation(resolve(each, load("cpu/tiny"), "pd")) for each in (given, four))
    rate, (low, high) = one.capacity
    assert of_four.capacity == (4 * rate, (4 * low, 4 * high))
    assert of_four.floor() == 4 * one.floor()


def test_replicas_with_pools_of_gpus_have_links_of_their_own() -> None:
    record = served("disaggregated", **{"devices.count": 2, "policy_options.pools.link": "tcp"})
    copies = [work for work in record.works if work.kind == "copy"]
    assert {work.stream for work in copies} == {"link.0", "link.1"}
    for name in ("link.0", "link.1"):
        own = sorted((work.start_s, work.end_s) for work in copies if work.stream == name)
        assert all(earlier[1] <= later[0] for earlier, later in pairwise(own))


@pytest.mark.parametrize(
    ("decode", "prefill", "links"), [("", None, 1), ("-tp2", None, 2), ("-tp2", "h100-sxm/qwen3-32b", 1)]
)
def test_gpus_of_a_group_send_their_parts_of_a_prompt_at_once(decode: str, prefill: str | None, links: int) -> None:
    """64 layers of 8 KV heads of 128, 1,000 tokens at 25 GB/s."""
    given = {"profile": f"h100-sxm/qwen3-32b{decode}", "policy": "disaggregated", "num_speculative_tokens": 0}
    pools = {"policy_options.pools.prefill_profile": prefill, "policy_options.pools.link": "0:25"}
    scenario = Scenario.of(**given, num_prompts=1, input_len=1000, output_len=2, request_rate=1, **pools)
    record = simulate(resolve(scenario, load(scenario.profile), "disaggregated"), 0, record_works=True)
    (copy,) = (work for work in record.works if work.kind == "copy")
    assert copy.end_s - copy.start_s == pytest.approx(1000 * 64 * 2 * 8 * 128 * 2 / 25e9 / links)


def test_the_prefill_pool_may_be_of_other_gpus_with_the_same_models() -> None:
    """An H100 computes the same prompts in less time than an A100; other models are refused."""
    pair = "llama-2-7b+tinyllama-1.1b"
    given = {"profile": f"a100-sxm/{pair}", "policy": "disaggregated", "num_prompts": 4, "input_len": 2000}
    took_s = []
    for prefill in (None, f"h100-sxm/{pair}"):
        scenario = Scenario.of(
            **given, output_len=4, request_rate=0.5, **{"policy_options.pools.prefill_profile": prefill}
        )
        record = simulate(resolve(scenario, load(scenario.profile), "disaggregated"), 0, record_works=True)
        took_s.append(sum(work.end_s - work.start_s for work in record.works if work.stream == "prefill0"))
    assert took_s[1] < 0.6 * took_s[0]
    wrong = Scenario.of(**given, **{"policy_options.pools.prefill_profile": "h100-sxm/llama-3.1-8b"})
    with pytest.raises(ValueError, match=r"Give the models of 'a100-sxm/llama-2-7b\+tinyllama-1.1b'"):
        simulate(resolve(wrong, load(wrong.profile), "disaggregated"), 0)


def test_a_draw_varies_the_times_of_both_pools_alike() -> None:
    """Passes that take twice as long in service do so on prefill GPUs of another profile, too."""
    given = Scenario.of(
        profile="h100-sxm/qwen3-32b-tp2", policy="disaggregated", num_speculative_tokens=0, num_prompts=2,
        input_len=2000, output_len=4, **{"policy_options.pools.prefill_profile": "h100-sxm/qwen3-32b"},
    )  # fmt: skip
    resolved = resolve(given, load(given.profile), "disaggregated")
    took_s = [
        sum(work.end_s - work.start_s for work in simulate(each, 0, record_works=True).works if work.kind == "prefill")
        for each in (resolved, resolved.drawn(with_times(resolved.profile, passes=2.0)))
    ]
    assert took_s[1] == pytest.approx(2.0 * took_s[0], rel=0.02)
