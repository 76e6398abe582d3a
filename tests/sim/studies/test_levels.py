"""How far a level may be from a server's: by measured cells, by an engine's pooled constants, near saturation."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from math import log
from typing import Any

import msgspec
import pytest
from rich.console import Console

from sim.compare.side_by_side import Comparison, Level, compare
from sim.costs.profile_files import load
from sim.report.comparisons import level_lines
from sim.report.say import print_answer
from sim.run.resolve import resolve, resolve_all
from sim.run.scenario import Scenario, parse_scenario
from sim.studies.evidence import Question, evidence, levels, measured

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
    assert line.startswith("not measured: no level on h200-sxm with llama-3.1-70b")
    assert "speed-up" not in line


def test_pooled_constants_of_an_engine_show_in_a_level_and_those_of_measured_cells_do_not() -> None:
    """46 % of SGLang's step on an H100, where it was never measured, and with drafts nothing hides it."""
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
    assert (
        text == f"near saturation: steps 1 % longer make mean E2EL longer by {heavy.elasticity:.1f} % (autoregressive)"
    )


def test_near_a_capacity_that_was_not_measured_a_level_answers_to_step_times_too() -> None:
    """A closed loop reaches 30 of 34 requests/s, so that 24 need no saturated run; they are near 34 all the same."""
    given: dict[str, Any] = {"policy": "autoregressive", "num_speculative_tokens": 0, "max_num_seqs": 64}
    result, (heavy,) = compared("a100-sxm/llama-3.1-8b", **given, request_rate=24, num_prompts=500)
    _, (light,) = compared("a100-sxm/llama-3.1-8b", **given, request_rate=4, num_prompts=500)
    assert result.policies[0].load.capacity_per_s is None
    assert heavy.elasticity is not None
    assert heavy.elasticity > 1.5
    assert light.elasticity is None


def test_the_table_says_levels_in_place_of_the_errors_of_kernels() -> None:
    result, found = compared(EAGLE, policy=["autoregressive", "continuous"], engine="sglang-0.5")
    out = StringIO()
    print_answer(Console(file=out, width=200), msgspec.structs.replace(result, levels=found))
    assert "in 19 cases of 20 a server's mean E2EL is" in out.getvalue()
    assert "the engine's own times, averaged over machines, add" in out.getvalue()
    assert "held-out error" not in out.getvalue()
    assert "body" not in out.getvalue()


def test_a_policy_near_saturation_moves_neither_end_of_what_is_said_of_the_others() -> None:
    """35 % lower to 60 % higher; baseline, whose interval is far wider, has words of its own."""
    result, (level,) = compared("h100-sxm/llama-3.1-8b", policy="autoregressive", num_speculative_tokens=0)
    given = {"mean_e2el_ms": 100.0, "error_pct": (-35.0, 60.0)}
    usual = msgspec.structs.replace(level, **given, interval=(65.0, 160.0))
    steep = msgspec.structs.replace(level, **given, policy="baseline", interval=(10.0, 870.0))
    (text, *_) = level_lines(msgspec.structs.replace(result, levels=[usual, steep]))
    assert "is 35 % lower to 60 % higher, baseline 8.7 times (by errors on" in text
