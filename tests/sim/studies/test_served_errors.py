"""The model of errors on served cells: what set-ups that were measured say of one that was not."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from sim.costs.layer_kinds import Experts
from sim.costs.profile_files import load, shipped
from sim.costs.shapes import Formats
from sim.studies.evidence import measured
from sim.studies.served_errors import (
    GRID,
    HIGH_95,
    LOW_95,
    ErrorChances,
    ErrorPart,
    ServedErrors,
    SetUp,
    measured_name,
    served_errors,
    speedup_errors,
)

ERRORS = ServedErrors(
    schema=1,
    bias=-0.02,
    group=ErrorPart(0.04, 1.3),
    set_up=ErrorPart(0.04, 1.4),
    cell=ErrorPart(0.05, 2.5),
    speedup=ErrorPart(0.04, 4.0),
    set_ups=(
        SetUp("vllm", "h200-sxm", "a", -0.5, 9),
        SetUp("vllm", "h200-sxm", "a", -0.4, 1),
        SetUp("vllm", "h200-sxm", "deepseek-v3", 0.01, 3),
    ),
)


def width(chances: ErrorChances) -> float:
    return chances.at(HIGH_95) - chances.at(LOW_95)


def test_set_ups_of_the_same_engine_gpu_and_model_narrow_an_interval_and_move_it_to_their_error() -> None:
    unknown, one, two = (ERRORS.level(known) for known in ([], [0.0], [0.0, 0.01]))
    assert width(two) < width(one) < width(unknown)
    assert unknown.at(0.5) == pytest.approx(-0.02, abs=0.01)
    assert ERRORS.level([-0.5, -0.52]).at(0.5) == pytest.approx(-0.5, abs=0.05)


def test_a_level_with_drafts_is_never_surer_than_the_plain_one() -> None:
    for known in ([], [0.0], [-0.4, 0.1]):
        plain, drafted = ERRORS.level(known), ERRORS.level(known, drafts=True)
        assert drafted.at(LOW_95) < plain.at(LOW_95)
        assert drafted.at(HIGH_95) > plain.at(HIGH_95)


def test_chances_and_their_inverse_agree() -> None:
    chances = ERRORS.level([0.05])
    for share in (LOW_95, 0.3, 0.5, HIGH_95):
        assert chances.chance(chances.at(share)) == pytest.approx(share, abs=1e-9)
    assert chances.shares.sum() == pytest.approx(1.0)


def test_an_independent_error_adds_its_variance() -> None:
    """Parts of 200 degrees of freedom are normal."""
    part = ErrorPart(0.05, 200.0)
    once = ErrorChances(part.density() / part.density().sum())
    deviation = float(np.sqrt((once.and_also(part).shares * GRID**2).sum()))
    assert deviation == pytest.approx(0.05 * np.sqrt(2.0), rel=0.02)


def test_a_mechanism_that_was_never_measured_is_as_unsure_as_another_model() -> None:
    plain, one, two = (ERRORS.level([0.0], unmeasured=count) for count in (0, 1, 2))
    assert width(plain) < width(one) < width(two)


def test_versions_of_an_engine_are_one() -> None:
    assert ERRORS.known("vllm-0.12", "h200-sxm", "a") == [-0.5, -0.4]
    assert ERRORS.known("vllm-0.32", "h200-sxm", "deepseek-v3") == [0.01]
    assert ERRORS.known("sglang-0.5", "h200-sxm", "a") == ERRORS.known("vllm-0.12", "b200-sxm", "a") == []


def test_a_model_is_the_measured_one_of_its_layers_whatever_it_is_called() -> None:
    """As a config.json by path is called after its folder; a name with other layers is another model."""
    shape = load("h200-sxm/llama-3.1-8b").target
    for change, name in (
        ({"name": "my-finetune"}, "llama-3.1-8b"),
        ({"name": "model", "formats": Formats(mlp="fp8"), "max_context": 8192}, "llama-3.1-8b"),
        ({"layers": 31}, ""),
        ({"vocab": 32_000}, ""),
        ({"experts": Experts(num=8, per_token=2, intermediate=14_336)}, ""),
    ):
        assert measured_name(msgspec.structs.replace(shape, **change)) == name


def test_every_measured_model_has_layers_of_its_own_and_shipped_profiles_have_theirs() -> None:
    layers = served_errors().layers
    assert len(set(layers.values())) == len(layers)
    assert {cell.model for cell in measured().cells} | {each.model for each in served_errors().set_ups} == set(layers)
    for target in (load(name).target for name in shipped()):
        assert measured_name(target) == (target.name if target.name in layers else "")


def test_what_is_shipped_counts_a_set_up_once_and_says_more_of_measured_ones() -> None:
    shipped = served_errors()
    assert len(shipped.set_ups) > 100
    known, unknown = (shipped.level(shipped.known("vllm-0.19", gpu, "minimax-m2.5")) for gpu in ("h100-sxm", "l40s"))
    assert shipped.known("vllm-0.19", "h100-sxm", "minimax-m2.5")
    assert width(known) < 0.75 * width(unknown)
    assert width(speedup_errors()) < 0.5 * width(known)
