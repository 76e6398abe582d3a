"""What a comparison may conclude: load verdicts, settled lengths, the overlap bracket, orders of policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import msgspec
import numpy as np
import pytest
from rich.console import Console

from sim.compare.capacity import NEAR_SATURATION, Saturation, load_of
from sim.compare.point_runs import on_points, run_point
from sim.compare.pool import Runner
from sim.compare.run_length import Length, choose_run_length
from sim.compare.side_by_side import PAIRED_METRICS, Comparison, Frame, compare, paired_differences
from sim.compare.verdict import METRIC, STATED, Order
from sim.costs.profile_files import changed, load
from sim.devices.contention import BRACKET, PhiLevel, Regime
from sim.metrics.load import SHORT_RUN_ERROR, Load, Verdict
from sim.report.comparisons import notes, said_comparison
from sim.run.resolve import Resolved, resolve, resolve_all, with_keys
from sim.run.scenario import Scenario
from sim.run.simulate import simulate
from sim.studies.cost_draws import with_times

PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"
OLDER = "a100-sxm/llama-2-7b+tinyllama-1.1b"
ALONE = "h100-sxm/llama-2-7b"
LARGE = "h100-sxm/llama-3.1-8b+llama-3.2-1b"


def one_at_a_time(**changes: object) -> Scenario:
    """M/D/1: one request at a time, each a single pass over a prompt of one length."""
    return Scenario.of(
        profile=ALONE,
        policy="autoregressive",
        input_len=512,
        output_len=1,
        max_num_seqs=1,
        num_speculative_tokens=0,
        **changes,
    )


def run(**changes: object) -> Comparison:
    scenario = Scenario.of(profile=PAIR, **{"input_len": 128, "output_len": 64} | changes)
    return compare(resolve_all(scenario, load(PAIR)), workers=1)


def saturation(scenario: Scenario, policy: str = "autoregressive") -> Saturation:
    return Saturation(resolve(scenario, load(scenario.profile), policy))


def length_of(scenario: Scenario) -> Length:
    return choose_run_length(resolve_all(scenario, load(scenario.profile)))


def framed(runs: Mapping[str, Sequence[Mapping[PhiLevel, float] | float]]) -> Frame:
    """Steady runs whose metrics are all one number, by policy and replication; with phi where it matters."""
    by_key: dict[tuple[str, PhiLevel], list[Any]] = {}
    for policy, values in runs.items():
        for value in values:
            for level, one in (value if isinstance(value, dict) else {PhiLevel.MIDDLE: value}).items():
                by_key.setdefault((policy, level), []).append(dict.fromkeys(PAIRED_METRICS, one))
    return Frame(by_key, dict.fromkeys(by_key, Load(verdict=Verdict.STABLE, rate_per_s=1.0)))


def test_capacity_of_one_server_is_one_over_its_service_time() -> None:
    rate, (low, high) = saturation(one_at_a_time()).capacity
    alone = compare(resolve_all(one_at_a_time(num_prompts=1), load(ALONE))).runs[0]["mean_e2el_ms"]
    assert isinstance(alone, float)
    assert rate == pytest.approx(1e3 / alone, rel=0.01)
    assert (high - low) / 2.0 == pytest.approx(SHORT_RUN_ERROR * rate, rel=1e-3)


@pytest.mark.parametrize(
    ("load_share", "verdict"), [(0.5, Verdict.STABLE), (0.9, Verdict.STABLE), (1.1, Verdict.OVERLOADED)]
)
def test_a_queue_of_fixed_service_is_told_by_its_rate_and_capacity(load_share: float, verdict: Verdict) -> None:
    rate, _ = saturation(one_at_a_time()).capacity
    found = compare(resolve_all(one_at_a_time(num_prompts=1000, request_rate=load_share * rate), load(ALONE)))
    assert found.policies[0].load.verdict is verdict
    assert found.runs[0]["load"] == verdict.value
    assert found.runs[0]["unstable"] is (verdict is Verdict.OVERLOADED)


def test_closed_loops_and_bursts_are_called_so() -> None:
    closed = run(policy="continuous", num_prompts=40, request_rate=inf, max_concurrency=4)
    burst = run(policy="continuous", num_prompts=40, request_rate=inf)
    assert [found.policies[0].load.verdict for found in (closed, burst)] == [Verdict.CLOSED, Verdict.BURST]


def test_an_overloaded_policy_has_no_intervals_and_no_order() -> None:
    found = run(policy=["continuous", "baseline"], num_prompts=300, request_rate=20, replications=2)
    by_name = {row.policy: row for row in found.policies}
    assert by_name["continuous"].load.verdict is Verdict.STABLE
    assert by_name["continuous"].ci95["mean_e2el_ms"] is not None
    assert by_name["baseline"].load.verdict is Verdict.OVERLOADED
    assert by_name["baseline"].ci95["mean_e2el_ms"] is None
    assert {pair.order for pair in found.paired} == {Order.NONE}


def test_requests_of_a_tail_count_as_often_as_they_are_independent() -> None:
    """12,000 short ones that hardly meet are enough; of as many on a busy device a fifth counts."""
    few = run(policy="continuous", num_prompts=6000, request_rate=2, output_len=1, replications=2).policies[0]
    assert few.ci95["p99_e2el_ms"] is not None
    busy = run(policy="continuous", num_prompts=6000, request_rate=40, replications=2)
    assert busy.policies[0].ci95["mean_e2el_ms"] is not None
    assert busy.policies[0].ci95["p99_e2el_ms"] is None
    assert any(line.startswith("p99 has no interval: ") and " where 10,000 are wanted" in line for line in notes(busy))


def test_replications_of_neighbouring_seeds_share_nothing() -> None:
    seeds = [
        {found["seed"] for found in run(policy="continuous", num_prompts=5, replications=4, seed=seed).runs}
        for seed in (0, 1)
    ]
    assert len(seeds[0]) == len(seeds[1]) == 4
    assert not seeds[0] & seeds[1]


def test_a_length_left_open_spans_twenty_latencies_and_is_the_same_for_all() -> None:
    scenario = Scenario.of(
        profile=LARGE,
        policy=["autoregressive", "continuous"],
        input_len=64,
        output_len=600,
        request_rate=16,
        replications=1,
    )
    length = length_of(scenario)
    found = compare(resolve_all(scenario, load(LARGE)), workers=1)
    slowest_s = max(row.mean["mean_e2el_ms"] or 0.0 for row in found.policies) / 1e3
    assert length.is_auto
    assert length.num_prompts > 1000
    assert length.num_prompts / 16 > 0.9 * 20 * slowest_s
    assert length.num_warmups <= 0.1 * length.num_prompts
    assert {run["num_prompts"] for run in found.runs} == {length.num_prompts - length.num_warmups}
    assert found.length == length


def test_a_closed_loop_left_open_ends_with_as_many_as_come_while_the_last_ones_before_end() -> None:
    """All alike, but for the drafts that each has accepted: the longest take 1.3 to 2 times as long as their mean."""
    scenario = Scenario.of(
        profile=PAIR, policy="continuous", input_len=64, output_len=16, request_rate=inf, max_concurrency=64
    )
    length = length_of(scenario)
    assert 1.3 * 64 < length.num_cooldowns < 2.0 * 64
    assert length.num_prompts - length.num_cooldowns >= 20 * 64
    found = compare(resolve_all(msgspec.structs.replace(scenario, replications=1), load(PAIR)), workers=1)
    assert found.runs[0]["num_prompts"] == length.num_prompts - length.num_warmups - length.num_cooldowns


def test_what_is_left_out_of_a_length_left_open_is_capped_whoever_asked_for_it() -> None:
    """A third of a closed loop, a tenth of an open one: the first ones go before the last ones."""
    lengths = {"input_len": 64, "output_len": 16, "workload.num_warmups": 60, "workload.num_cooldowns": 300}
    asked: dict[str, Any] = {"profile": PAIR, "policy": "continuous", **lengths}
    for arriving, most in (({"request_rate": inf, "max_concurrency": 4}, 333), ({"request_rate": 4}, 100)):
        length = length_of(Scenario.of(**asked, **arriving))
        assert (length.num_prompts, length.num_warmups, length.num_cooldowns) == (1000, 60, most - 60)


@pytest.mark.parametrize("policy", ["autoregressive", "pd"])
def test_gaps_of_a_run_are_of_the_requests_that_are_neither_warm_up_nor_cool_down(policy: str) -> None:
    """Without drafts a gap for each token but the first, whether rows are accounted one by one or as totals."""
    scenario = Scenario.of(
        profile=PAIR,
        policy=policy,
        input_len=64,
        output_len=16,
        num_speculative_tokens=0,
        num_prompts=40,
        max_concurrency=8,
        request_rate=inf,
        **{"workload.num_warmups": 5, "workload.num_cooldowns": 10},
    )
    gaps = simulate(resolve(scenario, load(PAIR), policy), 0).gaps
    assert sum(gaps.counts) == (40 - 5 - 10) * 15


def test_a_burst_left_open_is_a_thousand_requests() -> None:
    length = length_of(one_at_a_time(request_rate=inf))
    assert (length.num_prompts, length.is_auto) == (1000, True)


def test_a_second_pilot_makes_no_run_shorter_than_the_first_one_asked_for() -> None:
    """With this seed the pilot of 1,000 requests asks for 1,400, and the one of 1,400 for 1,300."""
    asked: dict[str, Any] = {"profile": ALONE, "policy": "autoregressive", "dataset_name": "azure-conv"}
    asked |= {"num_speculative_tokens": 0, "request_rate": 8, "engine.max_model_len": 100_000}
    length = length_of(Scenario.of(**asked, seed=5))
    assert length.num_prompts == 1400


def test_a_given_length_is_obeyed_and_called_a_transient_where_it_is_one() -> None:
    short = run(policy="continuous", num_prompts=30, request_rate=10)
    assert short.length.num_prompts == 30
    assert any("are too few for steady means" in note for note in short.notes)
    assert run(policy="continuous", num_prompts=1000, request_rate=10).notes == []
    assert not any("too few" in note for note in run(policy="continuous", num_prompts=30, request_rate=inf).notes)


def test_a_part_of_a_deployments_ranks_is_said_to_be_one() -> None:
    asked = {"profile": "rtx-pro-6000-server/qwen3-30b-a3b-dp2", "policy": "continuous", "num_speculative_tokens": 0}
    for count, is_part in ((1, True), (2, False)):
        scenario = Scenario.of(**asked, num_prompts=4, output_len=4, **{"devices.count": count})
        found = compare(resolve_all(scenario, load(scenario.profile)), workers=1)
        assert any("2 data-parallel ranks" in note for note in found.notes) is is_part


def test_lanes_are_shown_over_phi_and_single_streams_are_not() -> None:
    found = run(policy=["continuous", "pd"], num_prompts=60, request_rate=4, replications=3)
    by_name = {row.policy: row for row in found.policies}
    assert by_name["continuous"].by_overlap == {}
    assert list(by_name["pd"].by_overlap) == ["phi_low", "phi_middle", "phi_high"]
    assert by_name["pd"].by_overlap["phi_middle"]["mean_e2el_ms"] == by_name["pd"].mean["mean_e2el_ms"]
    alone = run(policy="pd", num_prompts=60, request_rate=4, **{"devices.phi": 0.15})
    assert alone.policies[0].by_overlap == {}
    first = next(each for each in found.runs if each["policy"] == "pd")
    ratio = alone.policies[0].mean["mean_e2el_ms"] / first["mean_e2el_ms"]  # type: ignore[operator]
    means = [by_name["pd"].by_overlap[level]["mean_e2el_ms"] for level in ("phi_high", "phi_middle")]
    assert means[0] == pytest.approx(ratio * means[1]), "the first replication's requests, at either end once"  # type: ignore[operator]


@pytest.mark.parametrize(
    ("policy", "changes"),
    [
        ("baseline", {}),
        ("continuous", {"devices.count": 2}),
        ("autoregressive", {"devices.count": 3}),
        ("disaggregated", {"input_len": 32, "policy_options.pools.draft": 1}),
    ],
)
def test_gpus_of_one_stream_each_are_simulated_once_since_every_regime_says_the_same(
    policy: str, changes: dict[str, object]
) -> None:
    few: dict[str, object] = {"policy": policy, "num_prompts": 40, "request_rate": 8, "replications": 2} | changes
    found = run(**few).policies[0]
    assert found.by_overlap == {}
    for regime in Regime:
        assert run(**few, **{"devices.overlap": regime}).policies[0].mean == found.mean


@pytest.mark.parametrize(
    ("policy", "changes"), [("pd", {"devices.count": 2}), ("pipelined", {"policy_options.pools.draft": 1})]
)
def test_lanes_that_share_any_of_several_gpus_are_bracketed(policy: str, changes: dict[str, object]) -> None:
    found = run(policy=policy, num_prompts=40, request_rate=8, **changes)
    assert list(found.policies[0].by_overlap) == ["phi_low", "phi_middle", "phi_high"]


def test_roofs_are_an_upper_bound_and_state_no_order_of_lanes() -> None:
    few: dict[str, Any] = {"policy": ["autoregressive", "continuous", "pdv"], "num_prompts": 150, "replications": 3}
    found = run(**few, request_rate=2, **{"devices.overlap": "roofs"})
    orders = {pair.order for pair in found.paired if "pdv" in (pair.a, pair.b)}
    assert orders == {Order.NONE}
    assert {pair.order for pair in found.paired if "pdv" not in (pair.a, pair.b)} != {Order.NONE}
    assert any("an upper bound, as requested" in line for line in notes(found))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "(phi) was varied from 0.06 to 0.15"),
        ({"devices.phi": 0.2}, "phi 0.2, as requested"),
        ({"devices.overlap": "roofs"}, "No order of lanes is stated"),
    ],
)
def test_what_is_assumed_of_overlap_stands_beside_the_verdict_in_brief(given: dict[str, Any], said: str) -> None:
    found = run(policy=["continuous", "pd"], num_prompts=20, request_rate=4, **given)
    in_brief = [text for _, text in said_comparison(found, Console()).lines]
    for lines in (in_brief, notes(found)):
        assert [said in line for line in lines].count(True) == 1
    over_phi = [line for line in notes(found) if " of pd at phi 0.06 / 0.1 / 0.15: " in line]
    assert len(over_phi) == (0 if given else 2)


def test_an_order_that_flips_within_the_bracket_has_its_break_even() -> None:
    """pd takes 12, 10 and 8 s where continuous takes 9: half-way between 0.07 and 0.25."""
    draws, takes = (0.99, 1.0, 1.01), dict(zip(BRACKET, (12.0, 10.0, 8.0), strict=True))
    plain = {"continuous": [9.0 * draw for draw in draws]}
    found = paired_differences(
        framed(plain | {"pd": [{level: s * draw for level, s in takes.items()} for draw in draws]})
    )
    assert {pair.order for pair in found} == {Order.OVERLAP}
    assert [pair.break_even_phi for pair in found] == pytest.approx([0.16] * len(PAIRED_METRICS))
    agreed = paired_differences(framed(plain | {"pd": [10.0 * draw for draw in draws]}))
    assert {(pair.order, pair.break_even_phi) for pair in agreed} == {(Order.HIGHER, None)}
    assert "break_even_phi" in msgspec.to_builtins(found[0])


@pytest.mark.parametrize("num_others", [0, 2])
def test_of_equal_policies_one_comparison_in_twenty_names_a_winner(num_others: int) -> None:
    """Two of one mean and spreads of 1 and 5, beside others far behind. Allowed are 5 % and two standard errors."""
    rng, named, tries = np.random.default_rng(0), 0, 1000
    for _ in range(tries):
        runs = {name: rng.normal(mean, spread, 4).tolist() for name, mean, spread in EQUAL[: 2 + num_others]}
        found = [row for row in paired_differences(framed(runs)) if row.metric == METRIC]
        named += all(row.order in STATED for row in found)
    assert named / tries <= 0.05 + 2.0 * (0.05 * 0.95 / tries) ** 0.5


EQUAL = (("a", 100.0, 1.0), ("b", 100.0, 5.0), ("c", 200.0, 1.0), ("d", 300.0, 5.0))
"""Name, mean and spread."""


@pytest.mark.parametrize(
    ("other", "order"),
    [
        ((100.0, 101.0, 102.0), Order.SAME),
        ((100.0, 101.0, 102.0 + 1e-6), Order.CLOSE),
        ((101.0, 100.0, 102.0), Order.CLOSE),
        ((110.0, 95.0, 101.0), Order.FEW),
        ((110.0, 111.0, 112.5), Order.HIGHER),
        ((90.0, 91.0, 92.5), Order.LOWER),
    ],
)
def test_an_order_is_told_by_the_interval_of_the_difference(other: tuple[float, ...], order: Order) -> None:
    found = paired_differences(framed({"a": (100.0, 101.0, 102.0), "b": other}))
    assert {row.order for row in found} == {order}


def test_where_an_order_flips_has_an_interval() -> None:
    """12, 10 and 8 s against 9 cross at 0.16; 0.1 s either way moves that by 0.009, the mean of three draws by t over
    sqrt(3) of it."""
    draws, takes = (-0.1, 0.0, 0.1), dict(zip(BRACKET, (12.0, 10.0, 8.0), strict=True))
    pd = [{level: s + draw for level, s in takes.items()} for draw in draws]
    found = paired_differences(framed({"continuous": [9.0] * 3, "pd": pd}))
    half = 0.009 * 4.3027 / 3**0.5
    assert found[0].break_even_ci95 == pytest.approx((0.16 - half, 0.16 + half), abs=0.0011)


def test_no_order_rests_on_an_end_of_the_bracket_where_a_policy_is_overloaded() -> None:
    """Between what `pd` serves at phi 0 and at 0.07, of which the former is 5 % less."""
    few: dict[str, Any] = {"profile": OLDER, "input_len": 256, "output_len": 32, "num_prompts": 400, "replications": 3}
    at_low, at_middle = (
        saturation(Scenario.of(policy="pd", **few, **{"devices.phi": phi}), "pd").capacity[1] for phi in (0.0, 0.07)
    )
    rate = (at_low[1] + at_middle[0]) / 2.0
    assert at_low[1] < rate < at_middle[0]
    found = compare(
        resolve_all(Scenario.of(policy=["autoregressive", "pd"], **few, request_rate=rate), load(OLDER)), workers=1
    )
    assert [row.load.verdict for row in found.policies] == [Verdict.STABLE] * 2
    assert not {pair.order for pair in found.paired} & set(STATED)
    assert {pair.order for pair in found.paired if pair.metric == METRIC} == {Order.OVERLAP}


def test_phi_on_a_profile_whose_overlap_was_measured_is_refused_in_one_line() -> None:
    profile = load(PAIR)
    measured = changed(profile, overlap=msgspec.structs.replace(profile.overlap, measured=True))
    given = Scenario.of(profile=PAIR, policy="pd", devices={"phi": 0.2})
    with pytest.raises(ValueError, match=r"devices\.phi=0\.2 is for .* has one\. Leave it out") as refused:
        resolve(given, measured, "pd")
    assert "\n" not in str(refused.value)


def test_nothing_to_run_needs_no_worker() -> None:
    assert on_points(run_point, [], Runner(2)) == []


@pytest.mark.parametrize("policy", ["continuous", "pd", "pdv", "unified"])
def test_what_few_requests_in_flight_get_through_is_less_than_capacity(policy: str) -> None:
    given = Scenario.of(profile=PAIR, policy=policy, input_len=256, output_len=64)
    measured = saturation(given, policy)
    few, more = (measured.floor(rate_per_s) for rate_per_s in (0.0, inf))
    assert 0.0 < 1.5 * few < more < measured.capacity[0]


def load_in_doubt(given: Scenario) -> Load:
    return load_of(resolve(given, load(given.profile), "continuous"), is_in_doubt=True)


def test_loads_of_one_setting_share_their_saturated_runs_and_other_costs_have_their_own() -> None:
    def resolved(**changes: Any) -> Resolved:
        return resolve(Scenario.of(profile=PAIR, policy="pd", input_len=64, **changes), load(PAIR), "pd")

    slow = Saturation.of(resolved(request_rate=1, num_prompts=30))
    assert slow is Saturation.of(resolved(request_rate=8, max_concurrency=4, replications=3))
    assert slow is not Saturation.of(resolved(request_rate=1, num_speculative_tokens=2))
    slower = with_times(load(PAIR), passes=1.1)
    assert slow is not Saturation.of(resolved().drawn(slower))
    assert slow is not Saturation.of(resolved(), seed=1)


def test_a_load_beyond_the_shortest_loop_is_stable_by_a_longer_one() -> None:
    given = Scenario.of(profile=PAIR, policy="continuous", input_len=256, output_len=64)
    rate = 1.1 * saturation(given, "continuous").floor()
    found = load_in_doubt(with_keys(given, workload={"request_rate": rate}))
    assert (found.verdict, found.capacity_per_s) == (Verdict.STABLE, None)


def test_a_stable_load_knows_whether_it_is_near_what_capacity_surely_exceeds() -> None:
    """The shortest loop tells that it is stable; a longer one that it is not near."""
    given = Scenario.of(profile=PAIR, policy="continuous", input_len=256, output_len=64)
    rate = 0.8 * saturation(given, "continuous").floor()
    found = load_in_doubt(with_keys(given, workload={"request_rate": rate}))
    assert found.floor_per_s is not None
    assert NEAR_SATURATION * found.floor_per_s > rate


@pytest.mark.parametrize("turn_gap_s", [0.1, 30.0])
def test_capacity_of_sessions_is_of_turns_as_they_come_with_what_is_left_of_those_before(turn_gap_s: float) -> None:
    """At 45 a second memory holds a session's 0.5 s, and nothing of those that last 150 s."""
    sharing = {"workload.sharing.num_turns": 6, "workload.sharing.turn_gap_s": turn_gap_s}
    asked = {"profile": "h100-sxm/llama-3.1-8b", "policy": "continuous", "num_speculative_tokens": 0}
    asked |= {"input_len": 300, "output_len": 100, "request_rate": 45, "num_prompts": 3000}
    scenario = Scenario.of(**asked, **sharing)
    rate, _ = saturation(scenario, "continuous").capacity
    served = simulate(resolve(scenario, load(scenario.profile), "continuous"), 1).requests
    half_s, last_s = served[1500].arrival_s, served[-1].arrival_s
    done = sum(half_s < request.last_token_s <= last_s for request in served) / (last_s - half_s)
    assert done == pytest.approx(min(rate, 45.0), rel=0.15)
    assert (rate > 45.0) == (turn_gap_s == 0.1)


def test_a_saturated_run_of_prompts_that_begin_alike_fills_all_seats() -> None:
    """Memory holds 168 such requests one by one; what they have in common is there once, and 1,024 are seated."""
    asked = {"profile": "h100-sxm/llama-3.1-8b", "policy": "continuous", "num_speculative_tokens": 0}
    sharing = {"workload.sharing.prefix_len": 2000, "workload.sharing.num_prefixes": 4}
    rate, (low, high) = saturation(Scenario.of(**asked, **sharing, input_len=128, output_len=64), "continuous").capacity
    assert 0.9 * rate < low < rate < high < 1.1 * rate
