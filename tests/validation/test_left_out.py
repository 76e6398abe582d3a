"""A pooled constant without each of its sources: what it would be, and how far off the source that was left out is."""

from __future__ import annotations

from pathlib import Path

from validation.left_out import POOLED, SOURCES, errors_of, left_out

VALUES_S = {"a": 1e-3, "b": 2e-3, "c": 3e-3}


def test_a_source_is_judged_by_the_others_mean() -> None:
    """Errors are 1 % for each millisecond beside a source's own value, on two cells of opposite signs."""

    def errors(source: str, tried_s: float) -> list[float]:
        return [sign * 1e5 * (tried_s - VALUES_S[source]) for sign in (1, -1)]

    first, *_, last = left_out("step_s", "elsewhere", 2e-3, VALUES_S, dict.fromkeys(VALUES_S, "TPOT"), errors)
    assert list(first.values()) == ["step_s", "elsewhere", "a", 1.0, 2.0, 2.5, "TPOT", 2, 100.0, 150.0]
    assert (last["without_ms"], last["pooled_error_pct"], last["without_error_pct"]) == (1.5, 100.0, 150.0)


def test_an_engines_own_constant_is_replaced() -> None:
    """vllm-0.9 has 0.68 ms a draft pass, fitted on this very figure with the others."""
    source = "vllm#20780, vLLM of mid-2025"
    errors = errors_of(Path(), "draft_pass_s")
    (fitted,), (none,) = (errors(source, value_s) for value_s in (0.68e-3, 0.0))
    assert abs(fitted) < 0.5
    assert none < fitted - 10.0
    assert {source for *_, values_s in POOLED for source in values_s} == SOURCES.keys()
