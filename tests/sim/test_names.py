"""Profiles by the names that people write, and the command that installs optional dependencies."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from sim.costs import profile_files
from sim.costs.profile_files import UnknownProfile, load
from sim.names import install_line
from sim.run.scenario import Scenario


@pytest.mark.parametrize(
    ("written", "shipped"),
    [
        ("h200-sxm/Qwen/Qwen3-32B-FP8+eagle3", "h200-sxm/qwen3-32b-fp8+eagle3"),
        ("H100/meta-llama/Llama-3.1-8B-Instruct", "h100-sxm/llama-3.1-8b"),
        ("b200/llama-3.1-70b-tp4-nvfp4", "b200-sxm/llama-3.1-70b-nvfp4-tp4"),
        ("h200-sxm/qwen3-32b-tp1+eagle3", "h200-sxm/qwen3-32b+eagle3"),
    ],
)
def test_a_profile_is_found_under_the_names_of_its_parts(written: str, shipped: str) -> None:
    assert load(written).name == shipped
    assert Scenario.of(profile=written, policy="continuous").profile == shipped


@pytest.mark.parametrize(
    ("written", "proposed"),
    [
        ("h200-sxm/qwen3-32b-fp8-tp2+eagle3", "Did you mean 'h200-sxm/qwen3-32b-fp8+eagle3'"),
        ("gh200/llama-2-7b", "Did you mean 'gh200/llama-3.1-8b'"),
        ("b200-sxm/llama-2-7b", "Did you mean 'b200-sxm/llama-3.1-8b'"),
        ("a100/codellama-34b+tinyllama-1.1b", "Did you mean 'a100-sxm/codellama-34b+tinyllama-1.1b'"),
        ("mi300x/qwen3-32b", "No shipped profile is of a GPU 'mi300x'"),
    ],
)
def test_what_is_proposed_is_of_the_same_gpu_and_never_taken_for_it(
    written: str, proposed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where none can be made. Another degree of tensor parallelism is another profile, and of two GPUs of a family
    neither is meant."""
    monkeypatch.setattr(profile_files, "MAKER", "not_installed:profile")
    with pytest.raises(UnknownProfile) as error:
        load(written)
    assert proposed in str(error.value)


ROOT = Path(__file__).parents[2]
ROOMS = ("sim", "calibrate", "realrun", "validation", "docs", "notebooks")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_a_hint_names_the_clone_and_extras_that_it_has() -> None:
    assert install_line("analysis") == f"pip install -e '{ROOT}[analysis]'"
    named = {
        extra
        for path in [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
        for extras in re.findall(r"install_line\('([a-z,]+)'\)", path.read_text())
        for extra in extras.split(",")
    }
    assert {"analysis", "gpu", "tables"} <= named <= set(EXTRAS)


def test_nobody_is_told_to_install_lanesim_from_an_index() -> None:
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.*") if path.suffix in (".py", ".md", ".ipynb")]
    files += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    assert [path for path in files if re.search(r"install ['\"]?lanesim", path.read_text(errors="replace"))] == []
