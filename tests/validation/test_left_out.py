"""A pooled constant without each of its sources: what it would be, and how far off the source that was left out is."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import fmean

from validation.accuracy.specs import specs
from validation.intervals.left_out import MID_2025, Constant, LeftOut, Source, engine_constant, left_out, run_errors


def source(name: str, value_s: float) -> Source:
    """Off by 1 % for each millisecond beside its own value, on two cells of opposite signs."""
    return Source(name, value_s, "TPOT", lambda tried_s: [1e5 * (tried_s - value_s), -1e5 * (tried_s - value_s)])


def test_a_source_is_judged_by_the_others_mean() -> None:
    pooled = Constant("step_s", "elsewhere", 2e-3, fmean, (source("a", 1e-3), source("b", 2e-3), source("c", 3e-3)))
    first, *_, last = left_out(pooled)
    assert first == LeftOut("step_s", "elsewhere", "a", 1.0, 2.0, 2.5, "TPOT", 2, 100.0, 150.0)
    assert (last.without_ms, last.pooled_error_pct, last.without_error_pct) == (1.5, 100.0, 150.0)


def test_an_engines_own_constant_is_replaced() -> None:
    """vllm-0.9 has 0.68 ms a draft pass, fitted on this very figure with the others."""
    (run, _) = next(spec.runs for spec in specs() if spec.title == MID_2025)
    change = partial(engine_constant, "vllm-0.9", "draft_pass_s")
    (_, own), (_, none) = (run_errors(run, Path(), "tpot_ms", change(value_s)) for value_s in (0.68e-3, 0.0))
    assert abs(own) < 0.5
    assert none < own - 10.0
