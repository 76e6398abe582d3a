"""What the comparison with Dynamo says of its rounds."""

from __future__ import annotations

from pathlib import Path

from validation.speed import CASES, COMPILED, DYNAMO, PURE, SpeedCase, Used, child, measured, row_of


def rounds(*pairs: tuple[float, float]) -> list[Used]:
    return [Used(None, cpu_s, memory_mb) for cpu_s, memory_mb in pairs]


def test_a_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    """A machine that is half as fast in the second round changes no ratio of it."""
    found = {
        PURE: rounds((2.0, 60.0), (4.0, 60.0), (9.0, 60.0)),
        COMPILED: rounds((1.0, 60.0), (2.0, 60.0), (3.0, 60.0)),
        DYNAMO: rounds((1.0, 240.0), (2.0, 240.0), (1.0, 240.0)),
    }
    row = row_of(CASES[0], found)
    assert (row["pure, CPU s"], row["compiled, MB"]) == ("4.00", "60")
    assert (row["pure / Dynamo"], row["compiled / Dynamo"], row["memory / Dynamo"]) == ("2.00", "1.00", "0.25")


def test_a_program_that_is_not_installed_has_no_figures(tmp_path: Path) -> None:
    (used,) = measured(SpeedCase(10, 4, 1.0), 1, tmp_path)[PURE]
    assert used.result[1] > 10
    row = row_of(CASES[0], {PURE: [used]})
    assert (row["compiled, CPU s"], row["pure / Dynamo"]) == ("", "")


def test_memory_is_that_of_the_process_itself() -> None:
    """A child is forked from a process that holds 100 MB at least."""
    held = bytearray(100_000_000)
    used, _ = child("result = 0")
    assert 1.0 < used.memory_mb < 50.0 < len(held) / 1e6
