"""Acceptance models that an installed package names in the entry-point group `lanesim.acceptances`."""

from __future__ import annotations

from importlib import invalidate_caches
from pathlib import Path

import pytest

import lanesim
from sim.cli.main import run
from sim.plugins import PluginError

MODULE = """
import lanesim
from sim.acceptance.models import IidAcceptance


def build(values, draft_tokens):
    if values[0] > 1:
        raise KeyError("inside")
    return IidAcceptance(values[0])


COIN = lanesim.AcceptanceForm(name="coin", build=build, form="coin:.5")
OTHER = "no form"
"""
ENTRIES = """[lanesim.acceptances]
coin = coin_package:COIN
other = coin_package:OTHER
absent = coin_package:ABSENT
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "site"
    (folder / "coin_package-1.dist-info").mkdir(parents=True)
    (folder / "coin_package.py").write_text(MODULE)
    (folder / "coin_package-1.dist-info" / "entry_points.txt").write_text(ENTRIES)
    (folder / "coin_package-1.dist-info" / "METADATA").write_text("Name: coin-package\nVersion: 1\n")
    monkeypatch.syspath_prepend(folder)
    invalidate_caches()


def test_sweep_with_workers_and_report_find_it(tmp_path: Path) -> None:
    grid = {
        "scenario": {
            "profile": "cpu/tiny",
            "policy": "pd",
            "workload": {"num_prompts": 4},
            "speculation": {"acceptance": "coin:.5"},
        },
        "grid": {"workload.request_rate": [2, 8]},
    }
    store, page = tmp_path / "store", tmp_path / "page.html"
    frame = lanesim.sweep(grid, out=store, workers=2)
    assert frame["error"].isna().all()
    assert run(["report", str(store), "--out", str(page)]) == 0
    assert "coin:.5" in page.read_text()


def test_it_is_what_it_says_and_how_it_is_written_is_told() -> None:
    assert lanesim.parse_quoted("coin:.5").model(2).unconditional_rates(2) == (0.5, 0.25)
    with pytest.raises(ValueError, match=r"nothing after 'coin'. Write coin:\.5"):
        lanesim.parse_quoted("coin:")
    with pytest.raises(ValueError, match=r"unknown acceptance model 'coins'\. Did you mean 'coin'"):
        lanesim.parse_quoted("coins:.5")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("coin:2", "acceptance 'coin': KeyError: 'inside'"),
        ("other:2", "acceptance 'other': coin_package:OTHER is not a lanesim.AcceptanceForm"),
        ("absent:2", "acceptance 'absent' of coin_package:ABSENT: AttributeError"),
    ],
)
def test_an_error_names_the_plug_in(text: str, says: str) -> None:
    with pytest.raises(PluginError, match=f"^{says}"):
        lanesim.parse_quoted(text).model(2)
