"""The bars that fits on published kernel tables must meet on models left out; skipped where the tables are absent."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from calibrate.fit.fit_errors import relative_error
from calibrate.fit.held_out import REFERENCES, Tables, held_out_errors
from calibrate.fit.kernel_fit import Body, body_s, fit_gemm
from calibrate.importers.aiconfigurator.compact_profile import DEVICES, import_aiconfigurator, read_tables
from calibrate.importers.aiconfigurator.kernel_files import KernelFiles
from calibrate.importers.aiconfigurator.shipping import TARGETS
from sim.costs.profile import KindError
from sim.costs.profile_files import load
from sim.costs.shapes import MODELS
from tests.calibrate.support import published

VIDUR = {
    "llama-2-7b": "meta-llama/Llama-2-7b-hf",
    "llama-3.1-8b": "meta-llama/Meta-Llama-3-8B",
    "codellama-34b": "codellama/CodeLlama-34b-Instruct-hf",
}
VIDUR_GEMMS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")


@cache
def tables(path: Path, gpu: str) -> Tables:
    return read_tables(KernelFiles(path, gpu), DEVICES[gpu])


@cache
def errors(path: Path, gpu: str) -> dict[str, dict[str, KindError]]:
    return {shape.name: held_out_errors(tables(path, gpu), shape, 1) for shape in REFERENCES}


def mean_error_pct(gpu: str, kind: str, names: tuple[str, ...]) -> float:
    of_models = errors(published("aiconfigurator"), gpu)
    values = [of_models[name][kind].mean_error_pct for name in names]
    return float(np.mean([value for value in values if value is not None]))


ALL = tuple(shape.name for shape in REFERENCES)


@pytest.mark.parametrize(
    ("gpu", "kind", "names", "bar_pct"),
    [
        ("a100-sxm", "body", TARGETS, 4.5),
        ("a100-sxm", "body", ALL, 4.5),
        ("h100-sxm", "body", TARGETS, 3.0),
        ("h100-sxm", "body", ALL, 3.2),
        ("a100-sxm", "verify_body", ALL, 5.0),
        ("h100-sxm", "verify_body", ALL, 5.0),
        ("a100-sxm", "decode", ALL, 4.5),
        ("h100-sxm", "decode", ALL, 4.5),
        ("a100-sxm", "prefill", ALL, 4.5),
        ("h100-sxm", "prefill", ALL, 4.5),
    ],
)
def test_a_model_left_out_of_the_fit_is_predicted(gpu: str, kind: str, names: tuple[str, ...], bar_pct: float) -> None:
    assert mean_error_pct(gpu, kind, names) <= bar_pct


@pytest.mark.parametrize("gpu", ["a100-sxm", "h100-sxm"])
def test_no_shipped_models_passes_are_far_off(gpu: str) -> None:
    of_models = errors(published("aiconfigurator"), gpu)
    for name in TARGETS:
        for kind in ("body", "verify_body", "decode", "prefill"):
            assert (of_models[name][kind].mean_error_pct or 0.0) <= 5.1, (name, kind)


def test_the_form_of_the_body_predicts_vidurs_exact_a100_shapes() -> None:
    """Fitted on two of Vidur's three models, judged on the third. The constants are Vidur's own: the two sources
    differ by up to 24 % on the same GEMM, so those of one are not judged on the other."""
    bodies = vidur_bodies(published("vidur"))
    gpu = load("a100-sxm/llama-2-7b").gpu
    means = []
    for name, body in bodies.items():
        constants = fit_gemm([other for key, other in bodies.items() if key != name], gpu, 108)
        means.append(np.abs(relative_error(body_s(constants, gpu, body), body.seconds)).mean())
    assert 100.0 * np.mean(means) <= 4.0


def vidur_bodies(path: Path) -> dict[str, Body]:
    """One device, 1..4096 tokens; repeated token counts count once."""
    pd = pytest.importorskip("pandas")
    bodies = {}
    for name, folder in VIDUR.items():
        frame = pd.read_csv(path / "compute" / "a100" / folder / "mlp.csv")
        frame = frame[(frame.num_tensor_parallel_workers == 1) & (frame.num_tokens <= 4096)]
        medians = frame.groupby("num_tokens").median(numeric_only=True)
        seconds = 1e-3 * sum(medians[f"time_stats.{gemm}.median"].to_numpy() for gemm in VIDUR_GEMMS)
        bodies[name] = Body(MODELS[name].gemms(), [int(tokens) for tokens in medians.index], seconds)
    return bodies


@pytest.mark.parametrize("name", ["a100-sxm/llama-2-7b+tinyllama-1.1b", "h100-sxm/llama-3.1-8b"])
def test_a_shipped_profile_is_what_the_importer_makes_today(name: str) -> None:
    shipped = load(name)
    gpu, models = name.split("/")
    target, _, draft = models.partition("+")
    made = import_aiconfigurator(published("aiconfigurator"), gpu, target, draft or None)
    assert made.host == shipped.host
    assert made.gpu == shipped.gpu
    for kind, error in shipped.errors.items():
        again = made.errors[kind].mean_error_pct
        assert again == (None if error.mean_error_pct is None else pytest.approx(error.mean_error_pct, abs=0.1))
