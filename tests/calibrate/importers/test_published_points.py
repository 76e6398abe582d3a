"""Profiles of points from published tables: errors honest, costs near the compact fit's, and profiles that run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from calibrate.importers.aiconfigurator.deployment import Deployment, import_deployment
from sim.cli.main import run
from sim.costs.forms.build import build_costs
from sim.costs.forms.table import TableCosts
from sim.costs.profile import Profile
from sim.costs.profile_files import decode, encode, load
from sim.costs.shapes import MODELS
from sim.interface.work import Kind, Model, Work
from tests.calibrate.support import published

PAIRS = {
    "h100-sxm/llama-2-7b+tinyllama-1.1b": 4.0,
    "h100-sxm/llama-3.1-8b+llama-3.2-1b": 5.0,
    "a100-sxm/llama-3.1-8b+llama-3.2-1b": 5.0,
    "a100-sxm/llama-2-7b+tinyllama-1.1b": 14.0,
}
"""Largest difference of the mean TPOT from the compact form, percent. The last pair's multi-head decode attention on
A100 is up to 1.5 times slower at 2 to 8 rows than the compact form's law can say."""


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


@pytest.mark.parametrize("name", PAIRS)
def test_a_table_profile_runs_and_its_tpot_is_near_the_compact_one(
    name: str, published_profiles: dict[str, Profile], tmp_path: Path
) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(encode(published_profiles[name]))
    table_ms, compact_ms = (mean_tpot_ms(profile, tmp_path / "result.json") for profile in (str(path), name))
    assert table_ms == pytest.approx(compact_ms, rel=PAIRS[name] / 100.0)


def mean_tpot_ms(profile: str, result: Path) -> float:
    """Of `lanesim compare --policy continuous` at 1 request/s."""
    run(f"compare --policy continuous --profile {profile} --request-rate 1 --num-prompts 40 --json {result}".split())
    return float(_find(json.loads(result.read_text()), "mean_tpot_ms"))


def _find(content: Any, key: str) -> Any:
    """The first value of `key` anywhere in `content`."""
    if isinstance(content, dict):
        if key in content:
            return content[key]
        content = list(content.values())
    found = (_find(inner, key) for inner in content) if isinstance(content, list) else iter(())
    return next((value for value in found if value is not None), None)
