"""Constants of a served GPU: planted ones are found, what the law misses is kept by tokens, a launch is no device."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from calibrate.fit.step_times import TimedStep, fit_steps, read_curve, step_s
from sim.costs.forms.compact import CompactCosts
from sim.costs.profile import SERVED, Profile
from sim.costs.profile_files import load
from sim.interface.work import Model
from tests.calibrate.support import published

START = "h100-sxm/llama-3.1-8b"
CAPTURED = (1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512)
EAGER = (576, 640, 768, 1024, 2048, 4096, 8192)
LAUNCH_S = 0.027
"""Planted: passes up to about 1,000 tokens are shorter."""


def planted() -> Profile:
    profile = load(START)
    gemm = msgspec.structs.replace(
        profile.compact.gemm,
        compute_share=0.6,
        bandwidth_share=0.7,
        sharpness=1.8,
        tile_share=0.3,
        wave_share=0.05,
        long_kernel_change=0.0,
    )
    host = msgspec.structs.replace(profile.host, eager_kernel_s=LAUNCH_S / num_kernels(profile))
    return msgspec.structs.replace(
        profile, kernels=msgspec.structs.replace(profile.compact, gemm=gemm, body_ratios=()), host=host
    )


def num_kernels(profile: Profile) -> int:
    return CompactCosts(profile).passes(Model.TARGET).num_kernels


def curve_of(profile: Profile, tokens: Sequence[int] = CAPTURED + EAGER) -> list[TimedStep]:
    return [TimedStep(count, step_s(profile, count)) for count in tokens]


def test_planted_constants_and_launch_are_found() -> None:
    fit = fit_steps(load(START), curve_of(planted()), "planted")
    found, gemm = fit.profile.compact.gemm, planted().compact.gemm
    for name in ("compute_share", "bandwidth_share", "sharpness", "tile_share", "wave_share"):
        assert getattr(found, name) == pytest.approx(getattr(gemm, name), rel=0.01), name
        assert fit.constants[name].half_width < 0.05 * fit.constants[name].value
    assert fit.constants["eager_launch_s"].value == pytest.approx(LAUNCH_S, rel=1e-3)
    assert fit.profile.host.eager_kernel_s * num_kernels(fit.profile) == pytest.approx(LAUNCH_S, rel=1e-3)
    assert all(ratio == pytest.approx(1.0, abs=0.01) for _, ratio in fit.profile.compact.body_ratios)
    assert fit.notes == ()


def test_what_the_law_misses_is_kept_by_tokens() -> None:
    """A step of 256 tokens is 8 % longer than any law has it; the profile says so there, not at 64 and 2,048."""
    curve = [TimedStep(n, 1.08 * s if n == 256 else s) for n, s in curve_of(planted())]
    fit = fit_steps(load(START), curve, "planted")
    served = fit.profile
    for tokens, seconds in curve:
        if tokens not in (576, 640, 768):
            assert step_s(served, tokens) == pytest.approx(seconds, rel=1e-4)
    (bumped,) = (step for step in fit.steps if step.tokens == 256)
    assert bumped.left_out_s == pytest.approx(bumped.seconds / 1.08, rel=0.02)
    assert dict(served.compact.body_ratios)[256] == pytest.approx(1.08, abs=0.03)


def test_steps_that_show_the_launch_keep_no_ratio() -> None:
    fit = fit_steps(load(START), curve_of(planted()), "planted")
    launch = [step.tokens for step in fit.steps if step.is_launch]
    assert launch == [576, 640, 768]
    assert [tokens for tokens, _ in fit.profile.compact.body_ratios] == [n for n in CAPTURED + EAGER if n not in launch]
    assert [step_s(fit.profile, tokens) for tokens in launch] == pytest.approx([LAUNCH_S] * 3, rel=1e-3)


def test_a_curve_of_captured_steps_leaves_the_launch_as_it_is() -> None:
    fit = fit_steps(load(START), curve_of(planted(), CAPTURED), "planted")
    assert "eager_launch_s" not in fit.constants
    assert fit.profile.host == load(START).host
    assert fit.notes[0].startswith("no step shows the launch of an eager pass")


def test_more_tokens_are_never_faster_though_the_curve_falls() -> None:
    curve = [TimedStep(n, 0.97 * s if n == 16 else s) for n, s in curve_of(planted())]
    assert curve[4].seconds < curve[3].seconds
    served = fit_steps(load(START), curve, "planted").profile
    assert step_s(served, 16) == pytest.approx(step_s(served, 8), rel=1e-4)


def test_a_constant_that_the_curve_does_not_tell_is_named() -> None:
    """Up to 24 tokens nothing computes long enough to show the compute roof beside a scatter of 1 %."""
    steps = curve_of(planted(), (1, 2, 4, 8, 12, 16, 20, 24))
    curve = [TimedStep(n, s * (1.01 if place % 2 else 0.99)) for place, (n, s) in enumerate(steps)]
    fit = fit_steps(load(START), curve, "planted")
    assert any(note.startswith("compute_share cannot be determined from this curve") for note in fit.notes)


def test_the_served_profile_says_so_and_has_the_error_of_points_left_out() -> None:
    served = fit_steps(load(START), curve_of(planted()), "my server's steps").profile
    assert served.conditions == SERVED
    assert load(START).conditions == "kernel tables, unloaded"
    assert "my server's steps" in served.source
    assert served.errors["body"].points == len(served.compact.body_ratios) - 2
    assert served.errors["prefill"] == load(START).errors["prefill"]


def test_the_shipped_gh200_is_what_its_curve_gives_today() -> None:
    curve = read_curve(published("unlicensed_local_only/apertus_gh200") / "step_time.csv")
    for name in ("gh200/apertus-8b", "gh200/apertus-8b+eagle3"):
        shipped = load(name)
        again = fit_steps(shipped, curve, "again").profile
        assert again.compact.gemm.compute_share == pytest.approx(shipped.compact.gemm.compute_share, rel=1e-3)
        assert step_s(again, 256) == pytest.approx(step_s(shipped, 256), rel=1e-4)
        assert again.host.eager_kernel_s == pytest.approx(shipped.host.eager_kernel_s, rel=1e-3)


@pytest.mark.parametrize("name", ["gh200/apertus-8b", "gh200/apertus-8b+eagle3"])
def test_on_the_shipped_gh200_more_tokens_are_never_faster(name: str) -> None:
    passes = CompactCosts(load(name)).passes(Model.TARGET)
    times = [passes.body_s(passes.padded_tokens(tokens)) for tokens in [*range(1, 1025), *range(1056, 16385, 32)]]
    assert all(later >= 0.9999 * earlier for earlier, later in pairwise(times))


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch_tokens,step_ms\n1,2\n2,3\n", "2 steps are too few to fit 6 constants: want 8"),
        ("tokens,step_ms\n1,2\n", "line 1: no column 'batch_tokens'"),
        ("batch_tokens,step_ms\n1,-2\n", "line 2: Expected `float` > 0.0 - at `$.step_ms`"),
        ("batch_tokens,step_ms\n1,2\n2.5,2\n", "line 3: Expected `int`"),
        ("batch_tokens,step_ms\n1\n", "line 2: 1 fields, and the header has 2"),
    ],
)
def test_a_bad_curve_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as caught:
        fit_steps(load(START), read_curve(Path(write(tmp_path / "curve.csv", text))), "a curve")
    assert message in str(caught.value)


def test_repeats_of_a_step_count_as_their_median(tmp_path: Path) -> None:
    path = write(tmp_path / "curve.csv", "batch_tokens,step_ms\n8,3\n1,2\n8,5\n8,4\n")
    assert read_curve(Path(path)) == [TimedStep(1, 0.002), TimedStep(8, 0.004)]


def test_a_table_of_points_is_refused() -> None:
    with pytest.raises(ValueError, match=r"has points .*; this needs constants"):
        fit_steps(load("a100-sxm/llama-3.1-8b"), [TimedStep(n, 1e-3 * n) for n in range(1, 9)], "a curve")
