"""Several constants at once: found where the cells tell them, refused where they do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from calibrate.fit.constants import UNITS_S, fit_constants
from sim.costs.compact_kernels import CompactKernels
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from tests.properties import assert_refused

PROFILE = load("h100-sxm/llama-3.1-8b+llama-3.2-1b")
LEVELS = ((1, 0), (8, 0), (64, 0), (1, 3), (8, 3), (64, 3))
"""Rows of a step, drafted tokens."""


def step_s(profile: Profile, rows: int, draft_tokens: int) -> float:
    """A step as simple as can be: 5 ms of kernels and what the host adds."""
    host = profile.host
    phase_s = host.draft_phase_s if draft_tokens else 0.0
    return 5e-3 + host.step_s + rows * host.row_s + draft_tokens * host.draft_pass_s + phase_s


def ratios(true: Sequence[float], levels: Sequence[tuple[int, int]] = LEVELS, noise: float = 0.0):
    measured = [5e-3 + true[0] + rows * true[1] + k * true[2] for rows, k in levels]
    wrong = np.exp(noise * np.random.default_rng(3).standard_normal(len(levels)))
    return lambda profile: [
        step_s(profile, rows, k) / (real * factor)
        for (rows, k), real, factor in zip(levels, measured, wrong.tolist(), strict=True)
    ]


def test_three_constants_come_back_from_cells_that_tell_them() -> None:
    found = fit_constants(PROFILE, ("step_s", "row_s", "draft_pass_s"), ratios((2e-3, 4e-5, 3e-4)))
    assert found.values_s == pytest.approx({"step_s": 2e-3, "row_s": 4e-5, "draft_pass_s": 3e-4}, rel=1e-3)
    assert found.error_pct < 0.01
    assert all(found.told.values())
    assert found.profile.host.row_s == pytest.approx(4e-5, rel=1e-3)


def test_a_fit_that_begins_near_another_finds_the_same_in_fewer_rounds() -> None:
    asked: list[Profile] = []
    of = ratios((2e-3, 4e-5, 3e-4), noise=0.01)

    def counted(profile: Profile) -> list[float]:
        asked.append(profile)
        return of(profile)

    names = ("step_s", "row_s", "draft_pass_s")
    far = fit_constants(PROFILE, names, counted)
    first = len(asked)
    near = fit_constants(PROFILE, names, counted, far.values_s)
    assert near.values_s == pytest.approx(far.values_s, rel=1e-3)
    assert len(asked) - first < first


def test_intervals_hold_the_truth_behind_noise_and_are_as_wide_as_the_noise_makes_them() -> None:
    true = {"step_s": 2e-3, "row_s": 4e-5}
    quiet, noisy = (
        fit_constants(PROFILE, ("step_s", "row_s"), ratios((2e-3, 4e-5, 0.0), LEVELS[:3] * 4, noise))
        for noise in (0.01, 0.04)
    )
    for found in (quiet, noisy):
        for name, value_s in true.items():
            assert abs(found.values_s[name] - value_s) < found.half_widths_s[name]
    assert noisy.half_widths_s["step_s"] == pytest.approx(4.0 * quiet.half_widths_s["step_s"], rel=0.3)


def test_intervals_are_no_narrower_than_values_are_known_to_repeat() -> None:
    """Six values met exactly: 0.5 % and t of three degrees of freedom; or 1.96 times 4 %."""
    of, names = ratios((2e-3, 4e-5, 3e-4)), ("step_s", "row_s", "draft_pass_s")
    lucky, known = (fit_constants(PROFILE, names, of, noise=noise) for noise in (0.0, 0.04))
    for name in names:
        wider = known.half_widths_s[name] / lucky.half_widths_s[name]
        assert wider == pytest.approx(1.96 * 0.04 / (3.182 * 0.005), rel=1e-3)


def test_a_constant_that_is_not_there_ends_at_0_and_is_not_told() -> None:
    found = fit_constants(PROFILE, ("step_s", "row_s"), ratios((2e-3, 0.0, 0.0)))
    assert found.values_s["row_s"] == pytest.approx(0.0, abs=1e-9)
    assert found.told == {"step_s": True, "row_s": False}


def layers_s(profile: Profile, tokens: int) -> float:
    """1 ms of layers per 100 tokens as the tables have them, times the profile's ratio there, and the host's step."""
    kernels = profile.kernels
    assert isinstance(kernels, CompactKernels)
    counts, found = zip(*(kernels.body_ratios or ((1, 1.0),)), strict=True)
    return 1e-5 * tokens * float(np.interp(tokens, counts, found)) + profile.host.step_s


def test_a_ratio_of_the_layers_is_told_from_what_the_host_adds() -> None:
    """1.2 at 2,048 tokens and more, 1 up to 128, 2 ms of the host."""
    levels = {32: 0.32e-3 + 2e-3, 128: 1.28e-3 + 2e-3, 2048: 1.2 * 20.48e-3 + 2e-3, 8192: 1.2 * 81.92e-3 + 2e-3}
    found = fit_constants(
        PROFILE,
        ("step_s", "ratio@2048"),
        lambda profile: [layers_s(profile, tokens) / real for tokens, real in levels.items()],
    )
    assert found.values_s == pytest.approx({"step_s": 2e-3, "ratio@2048": 1.2}, rel=1e-3)
    assert all(found.told.values())
    assert isinstance(found.profile.kernels, CompactKernels)
    assert found.profile.kernels.body_ratios == ((128, 1.0), (2048, pytest.approx(1.2, rel=1e-3)))


@pytest.mark.parametrize(("name", "unit_s"), UNITS_S.items())
def test_a_constant_must_move_some_value_by_a_thousandth_per_unit(name: str, unit_s: float) -> None:
    def moved_by(share: float):
        return lambda profile: [
            (1.0 + share * times * getattr(profile.host, name) / unit_s) / (1.0 + share * times * 2.0)
            for times in (0.5, 1.0)
        ]

    found = fit_constants(PROFILE, (name,), moved_by(1.1e-3))
    assert found.values_s == pytest.approx({name: 2.0 * unit_s}, rel=1e-3)
    with pytest.raises(ValueError, match=f"{name} moves none of the measured values"):
        fit_constants(PROFILE, (name,), moved_by(0.9e-3))


def phases(levels: Sequence[tuple[int, int]]):
    """1 ms for every phase of drafting and 0.5 ms for each token in it."""
    return lambda profile: [step_s(profile, rows, k) / (5e-3 + k * 5e-4 + (1e-3 if k else 0.0)) for rows, k in levels]


def test_a_phase_of_drafting_is_told_from_its_passes_by_two_draft_lengths_and_not_by_one() -> None:
    names = ("draft_pass_s", "draft_phase_s")
    found = fit_constants(PROFILE, names, phases([(1, 1), (1, 3), (1, 6)]))
    assert found.values_s == pytest.approx({"draft_pass_s": 5e-4, "draft_phase_s": 1e-3}, rel=1e-3)


@pytest.mark.parametrize(
    ("names", "of", "named"),
    [
        *((("step_s", name), ratios((2e-3, 0.0, 0.0)), "ratio@2048") for name in ("ratio@", "ratio@x", "ratio@0", "x")),
        (("step_s", "draft_pass_s"), ratios((2e-3, 4e-5, 0.0), LEVELS[:3]), "draft_pass_s moves none of the measured"),
        (("step_s", "row_s"), ratios((2e-3, 4e-5, 0.0), [(8, 0)] * 3), "cannot tell step_s from row_s"),
        (("draft_pass_s", "draft_phase_s"), phases([(1, 3), (8, 3), (64, 3)]), "draft_pass_s from draft_phase_s"),
        (("step_s", "row_s"), ratios((2e-3, 4e-5, 0.0), [(8, 0)]), "1 measured values cannot tell 2 constants"),
        (("step_s", "step_s"), ratios((2e-3, 4e-5, 0.0)), "each constant once"),
    ],
)
def test_constants_that_cells_do_not_tell_are_refused(names: tuple[str, ...], of: Any, named: str) -> None:
    assert_refused(lambda: fit_constants(PROFILE, names, of), named)
