"""The shipped solo curves beside the measurements that they come from, where those are at hand."""

from __future__ import annotations

import warnings

import pytest

from sim.costs.extrapolation import OutsideProfileWarning
from sim.devices.partition import MEASURED
from tests.calibrate.support import published
from validation.accuracy import multiprocessor_shares as partition


@pytest.mark.parametrize(
    ("model", "num_gpus", "name", "most"),
    [
        ("llama-7b", 1, "llama-7b (fitted)", 0.05),
        ("llama-13b", 1, "llama-13b", 0.07),
        ("llama-30b", 2, "llama-30b on two GPUs", 0.09),
    ],
)
def test_a_models_curves_are_as_wrong_as_stated(model: str, num_gpus: int, name: str, most: float) -> None:
    folder = published("unlicensed_local_only/muxserve_a100_mps")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutsideProfileWarning)
        points = list(partition.model_points(folder, model, num_gpus))
    assert len(points) > 400
    error = partition.mean_size(points, MEASURED)
    assert error < most
    assert 100.0 * error == pytest.approx(MEASURED.errors_pct[name], abs=0.05)


def test_attention_is_as_wrong_as_stated() -> None:
    points = list(partition.attention_points(published("unlicensed_local_only/monoserve_gh200")))
    assert len(points) == 112
    assert 100.0 * partition.mean_size(points, MEASURED) == pytest.approx(
        MEASURED.errors_pct["attention (fitted)"], abs=0.05
    )


def test_a_prefill_beside_a_reader_is_as_wrong_as_stated() -> None:
    folder = published("unlicensed_local_only/monoserve_gh200")
    victim = next(
        point
        for point in partition.attention_points(folder)
        if point.phase == "prefill" and point.tokens == partition.VICTIM_TOKENS
    )
    errors = [
        partition.beside_reader(MEASURED, victim, share) / slow - 1.0 for share, slow in partition.readers(folder)
    ]
    mean = 100.0 * sum(map(abs, errors)) / len(errors)
    assert mean == pytest.approx(MEASURED.errors_pct["prefill beside a reader (fitted)"], abs=0.05)
    assert partition.beside_itself(MEASURED, victim) == pytest.approx(1.07, rel=0.06)
