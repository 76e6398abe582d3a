"""What the speed benchmark says of its rounds."""

from __future__ import annotations

from pathlib import Path

from validation.speed.processes import (
    CASES,
    COMPILED,
    DYNAMO,
    LOOKED_UP,
    PURE,
    SpeedCase,
    Used,
    child,
    measured,
    replaced,
    row_of,
)


def case(**changes: object) -> SpeedCase:
    return SpeedCase("ten requests", "continuous", 10, 1.0, 4)._replace(**changes)


def rounds(*pairs: tuple[float, float]) -> list[Used]:
    return [Used(None, cpu_s, memory_mb) for cpu_s, memory_mb in pairs]


def test_a_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    """A machine that is half as fast in the second round changes no ratio of it."""
    found = {
        PURE: rounds((2.0, 60.0), (4.0, 60.0), (9.0, 60.0)),
        COMPILED: rounds((1.0, 60.0), (2.0, 60.0), (3.0, 60.0)),
        DYNAMO: rounds((1.0, 240.0), (2.0, 240.0), (1.0, 240.0)),
    }
    assert row_of(case(), found) == {
        "case": "ten requests",
        "steps": "",
        "tokens": "",
        "cpu_s": "4.00",
        "memory_mb": "60",
        "compiled_s": "2.00",
        "compiled_mb": "60",
        "compiled / pure": "0.50",
        "pure / bare loop": "",
        "pure / Dynamo": "2.00",
        "compiled / Dynamo": "1.00",
        "memory / Dynamo": "0.25",
    }


def test_others_serve_what_continuous_serves_synchronously() -> None:
    assert {each.name for each in CASES if each.has_peers} == {
        f"continuous, {count:,} requests, {k}" for count in (10_000, 100_000) for k in ("k=0", "k=4, n-grams")
    }


def test_the_bare_loop_takes_the_steps_of_a_drafted_run() -> None:
    """Its draft takes a row's budget, blocks of memory beyond it, and the host's time to look it up."""
    one = case(name="continuous, 300 requests, k=4", num_prompts=300, rate=18.0, more=LOOKED_UP)
    measured(one, {PURE: "off"}, 0, Path("."))


def test_memory_is_that_of_the_process_itself() -> None:
    """A child is forked from a process that holds 100 MB at least."""
    held = bytearray(100_000_000)
    peak_mb, _ = child("import json, sys; print(json.dumps(peak_mb()), file=sys.stderr)")
    assert 1.0 < peak_mb < 50.0 < len(held) / 1e6


def test_rows_stand_in_for_those_of_their_release_and_case() -> None:
    old, other, new = (
        {"release": release, "case": "ten requests", "cpu_s": cpu_s}
        for release, cpu_s in (("0.2.0", "0.30"), ("0.1.0", "0.40"), ("0.2.0", "0.24"))
    )
    assert replaced([old, other], [new]) == [other, new]
