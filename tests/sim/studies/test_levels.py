"""How far a level may be from a server's: by measured cells, by an engine's pooled constants, near saturation."""

from __future__ import annotations

from dataclasses import replace
from math import log
from typing import Any

import msgspec
import pytest

from sim.compare.side_by_side import Comparison, Level, compare
from sim.compare.verdict import METRIC, Order
from sim.costs.layer_kinds import Linear
from sim.costs.profile_files import load
from sim.report.comparisons import level_lines
from sim.run.resolve import resolve, resolve_all
from sim.run.scenario import Scenario, parse_scenario
from sim.studies.evidence import REPLAYED, Question, as_replayed, asked_of, evidence, levels, measured
from sim.studies.served_errors import unmeasured
from tests.properties import printed

REPLAYED_PROFILE = "h100-sxm/llama-3.1-8b+llama-3.2-1b-measured"
EAGLE, SPEEDUPS = "h100-sxm/llama-3.1-8b+eagle3", "h200-sxm/llama-3.1-8b+eagle3"


def compared(profile: str, **changes: Any) -> tuple[Comparison, list[Level]]:
    given = {"input_len": 256, "output_len": 64, "num_prompts": 60, "request_rate": 1, "replications": 1} | changes
    policies = resolve_all(Scenario.of(profile=profile, **given), load(profile))
    result = compare(policies, workers=1)
    return result, levels(result, policies)


def half(level: Level) -> float:
    """Of the interval, in the logarithm of the mean."""
    return log(level.interval[1] / level.mean_e2el_ms)


def test_a_level_is_as_sure_as_the_simulator_was_on_set_ups_like_it() -> None:
    """No part of the interval is noise where one replication ran: it is that of the errors, on both sides."""
    _, (near,) = compared(
        "gh200/apertus-8b+eagle3", policy="autoregressive", num_speculative_tokens=0, engine="vllm-0.23"
    )
    _, (far,) = compared("a100-sxm/qwen3-8b", policy="autoregressive", num_speculative_tokens=0)
    assert (near.num_set_ups, far.num_set_ups) == (1, 0)
    assert near.error_pct[0] > far.error_pct[0]
    assert near.error_pct[1] < far.error_pct[1]
    for level in (near, far):
        assert level.interval == pytest.approx([level.mean_e2el_ms * (1.0 + pct / 100.0) for pct in level.error_pct])


def test_an_order_that_errors_on_replays_turn_round_is_not_stated() -> None:
    """24 in flight ran on no GPU, 16 did: there continuous is further below the measured latency than pd is. Taken out
    of both means, that adds `shift` to continuous less pd, by which an order holds or not."""
    both = {"policy": ("pd", "continuous"), "max_concurrency": 24, "num_prompts": 48, "request_rate": "inf"}
    scenario = Scenario.of(profile=REPLAYED_PROFILE, input_len=512, output_len=128, replications=1, **both)
    policies = resolve_all(scenario, load(REPLAYED_PROFILE))
    result = compare(policies, workers=1)
    off = {cell.policy: cell.error_pct for cell in measured().cells if (cell.gpu, cell.in_flight) == ("h100-sxm", 16)}
    added = {row.policy: row.mean[METRIC] * (1 / (1 + off[row.policy] / 100) - 1) for row in result.policies}
    shift = added["continuous"] - added["pd"]
    assert shift > 20.0
    (pair,) = [row for row in result.paired if row.metric == METRIC]
    for share, order in ((0.9, Order.REPLAYS), (1.1, Order.LOWER)):
        row = msgspec.structs.replace(pair, order=Order.LOWER, interval=(-2 * shift, -share * shift))
        told = as_replayed(msgspec.structs.replace(result, paired=[row]), policies)
        assert [each.order for each in told.paired] == [order]
        assert ("how far off the simulator was on a real GPU" in told.verdict) == (order is Order.REPLAYS)


def test_errors_of_speedups_are_no_evidence_of_a_level() -> None:
    """28 speed-ups of Llama-3.3-70B with EAGLE-3 were measured on an H200 with SGLang, and no level."""
    result, _ = compared(SPEEDUPS, policy="continuous", engine="sglang-0.5")
    profile = msgspec.structs.replace(load(SPEEDUPS), target=load("h200-sxm/llama-3.1-70b-tp4").target)
    near = [cell for cell in measured().cells if cell.source.endswith("Llama-3.3-70B")]
    assert [cell.is_level for cell in near] == [False] * 28
    given = resolve(parse_scenario(result.scenario), load(SPEEDUPS), "continuous")
    (level,) = levels(result, [replace(given, profile=profile)])
    assert level.num_set_ups == 0
    asked = Question(method="eagle3", ks=(3,), in_flight=(8.0, 8.0), engine="sglang-0.5")
    speedup, line = evidence(profile, [asked])
    assert speedup.startswith(
        "measured nearest: h200-sxm, sglang-0.5, llama-3.1-70b, eagle3, K = 3, 8 in flight: speed-up"
    )
    assert line.startswith("not measured: no latency on h200-sxm with llama-3.1-70b")
    assert "speed-up" not in line


def test_an_answer_on_a_replayed_set_up_quotes_the_replay_first() -> None:
    """And nothing else of that policy; another load, acceptance or engine is no replay."""
    given = {"policy": ["pd", "continuous"], "input_len": 512, "output_len": 128, "num_prompts": 32}
    closed: dict[str, Any] = {"request_rate": "inf", "max_concurrency": 16}

    def lines(**changes: Any) -> list[str]:
        scenario = Scenario.of(profile=REPLAYED_PROFILE, replications=1, **given | closed | changes)
        policies = resolve_all(scenario, load(REPLAYED_PROFILE))
        return evidence(load(REPLAYED_PROFILE), [asked_of(one, (16.0, 16.0)) for one in policies])

    (line,) = lines()
    assert line.startswith(REPLAYED)
    assert "pd 1,131 ms and continuous 1,175 ms" in line
    assert "pd was 4 % faster" in line
    for changes in ({"input_len": 256}, {"acceptance": "iid:0.5"}, {"engine": "vllm-0.32"}):
        assert not any(each.startswith(REPLAYED) for each in lines(**changes))
    first, *others = lines(policy=["pd", "baseline"])
    assert first.startswith(REPLAYED)
    assert len(others) == 1


def test_pooled_constants_of_an_engine_show_in_a_level_and_those_of_measured_cells_do_not() -> None:
    """56 % of SGLang's step on an H100, where it was never measured, and with drafts nothing hides it."""
    _, (pooled,) = compared(EAGLE, policy="continuous", engine="sglang-0.5")
    _, (own,) = compared("gh200/apertus-8b+eagle3", policy="continuous", engine="vllm-0.23")
    assert pooled.engine_pct is not None
    assert pooled.engine_pct > 5.0
    assert half(pooled) > log(1.0 + pooled.error_pct[1] / 100.0)
    assert own.engine_pct is None


def test_near_saturation_a_level_answers_to_step_times_by_more_than_their_error() -> None:
    given: dict[str, Any] = {"policy": "autoregressive", "num_speculative_tokens": 0, "max_num_seqs": 8}
    _, (light,) = compared("h100-sxm/llama-3.1-8b", **given, request_rate=2)
    result, (heavy,) = compared("h100-sxm/llama-3.1-8b", **given, request_rate=14, num_prompts=1000)
    assert light.elasticity is None
    assert heavy.elasticity is not None
    assert heavy.elasticity > 1.5
    assert half(heavy) > 0.99 * heavy.elasticity * log(1.0 + heavy.error_pct[1] / 100.0)
    text = level_lines(msgspec.structs.replace(result, levels=[heavy]))[1]
    assert text == (
        f"Autoregressive is near its limit: steps 1 % slower make its latency {heavy.elasticity:.1f} % longer."
    )


def test_so_near_to_the_highest_rate_that_latency_has_no_range_no_error_is_said() -> None:
    given: dict[str, Any] = {"policy": "autoregressive", "num_speculative_tokens": 0, "num_prompts": 1000}
    near, found = compared("h100-sxm/llama-3.1-8b", **given, request_rate=4.8, input_len=8000, output_len=20)
    assert found == []
    assert level_lines(near)[1].startswith("No error was measured so near to the highest rate")
    assert len(level_lines(compared("h100-sxm/llama-3.1-8b", **given)[0])) == 1


def test_the_table_says_levels_in_place_of_the_errors_of_kernels() -> None:
    result, found = compared(EAGLE, policy=["autoregressive", "continuous"], engine="sglang-0.5")
    result = msgspec.structs.replace(result, levels=found)
    text = printed(result, 200)
    assert "Your server's latency: " in text
    assert "The engine's own times are averages over machines" in printed(result, 200, is_verbose=True)
    assert "Error of GPU times" not in text
    assert "body" not in text


def test_a_policy_near_saturation_moves_neither_end_of_what_is_said_of_the_others() -> None:
    """35 % lower to 60 % higher; baseline, whose interval is far wider, has words of its own."""
    result, (level,) = compared("h100-sxm/llama-3.1-8b", policy="autoregressive", num_speculative_tokens=0)
    given = {"mean_e2el_ms": 100.0, "error_pct": (-35.0, 60.0)}
    usual = msgspec.structs.replace(level, **given, interval=(65.0, 160.0))
    steep = msgspec.structs.replace(level, **given, policy="baseline", interval=(10.0, 870.0))
    (text, *_) = level_lines(msgspec.structs.replace(result, levels=[usual, steep]))
    assert "latency: 35 % lower to 60 % higher, baseline 8.7 times (19 of 20 cases)." in text


def test_a_range_is_wider_and_says_why_where_no_server_had_the_mechanism() -> None:
    """A pinned acceptance, a hybrid model under an engine that served none, and experts of another shape."""
    drafted = {"policy": "continuous", "engine": "vllm-0.24"}
    result, (plain,) = compared(EAGLE, **drafted, acceptance="iid:0.7")
    _, (pinned,) = compared(EAGLE, **drafted, acceptance="synthetic:2.6")
    assert (len(plain.wider), len(pinned.wider)) == (0, 1)
    assert plain.error_pct[0] > pinned.error_pct[0]
    assert plain.error_pct[1] < pinned.error_pct[1]
    (text, *_) = level_lines(msgspec.structs.replace(result, levels=[pinned]))
    assert "wider" in text
    assert pinned.wider[0] in text
    one = resolve(
        Scenario.of(profile=EAGLE, policy="autoregressive", engine="vllm-0.24"), load(EAGLE), "autoregressive"
    )
    hybrid = Linear(layers=24, key_heads=16, key_dim=128, value_heads=32, value_dim=128)
    target = msgspec.structs.replace(one.profile.target, linear=hybrid)
    source = "tables; experts scaled from 384 of 7168 x 2048"
    changes = {"hybrid": {"target": target}, "experts": {"source": source}}
    for word, change in changes.items():
        (reason,) = unmeasured(replace(one, profile=msgspec.structs.replace(one.profile, **change)))
        assert word in reason
    scaled = load("h100-sxm/gpt-oss-120b")
    assert "experts scaled from" in scaled.source
    measured_there = resolve(Scenario.of(profile=scaled.name, policy="autoregressive"), scaled, "autoregressive")
    assert not unmeasured(measured_there)
    served = msgspec.structs.replace(one.engine, name="sglang-0.5")
    assert not unmeasured(replace(one, engine=served, profile=msgspec.structs.replace(one.profile, target=target)))
