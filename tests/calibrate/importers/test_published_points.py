"""Profiles of points from published tables: errors honest, costs near the compact fit's, and profiles that run."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from calibrate.importers.aiconfigurator.deployment import Deployment, import_deployment
from sim.costs.forms.build import build_costs
from sim.costs.forms.table import TableCosts
from sim.costs.profile import Profile
from sim.costs.profile_files import decode, encode, load
from sim.costs.shapes import MODELS
from sim.interface.work import Kind, Model, Work
from tests.calibrate.support import published

PAIRS = tuple(f"{gpu}-sxm/{pair}" for gpu in ("h100", "a100")
              for pair in ("llama-2-7b+tinyllama-1.1b", "llama-3.1-8b+llama-3.2-1b"))  # fmt: skip


@pytest.fixture(scope="module")
def published_profiles() -> dict[str, Profile]:
    path = published("aiconfigurator")
    made = {}
    for name in PAIRS:
        gpu, models = name.split("/")
        target, draft = models.split("+")
        made[name] = import_deployment(path, gpu, MODELS[target], MODELS[draft], Deployment(), source="abc")
    return made


@pytest.mark.parametrize("name", PAIRS)
def test_published_tables_interpolate_within_their_errors(name: str, published_profiles: dict[str, Profile]) -> None:
    made = published_profiles[name]
    assert decode(encode(made), "copy") == made
    assert len(encode(made)) < 20_000
    for kind, bar_pct in (("body", 2.0), ("decode", 6.0), ("prefill", 2.0), ("draft", 4.0), ("draft_body", 2.0)):
        assert (made.errors[kind].mean_error_pct or 0.0) <= bar_pct, kind


@pytest.mark.parametrize("name", PAIRS)
def test_a_table_of_published_points_costs_as_its_compact_fit_does(
    name: str, published_profiles: dict[str, Profile]
) -> None:
    """Decode and draft of typical batches, all of them within the measured range."""
    exact, fitted = TableCosts(published_profiles[name], strict=True), build_costs(load(name))
    ratios = []
    for rows in (1, 4, 16, 64):
        for context in (200, 1000):
            step = Work(kind=Kind.STEP, rows=rows, row_tokens=rows, context_tokens=rows * context, head_rows=rows)
            draft = msgspec.structs.replace(step, kind=Kind.DRAFT, model=Model.DRAFT, draft_tokens=4)
            ratios += [exact.cost(work).device_s / fitted.cost(work).device_s for work in (step, draft)]
    assert np.mean(np.abs(np.array(ratios) - 1.0)) < 0.08
