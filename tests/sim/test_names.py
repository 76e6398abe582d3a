"""The command that installs optional dependencies: it works from a clone, wherever it is printed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from sim.names import install_line

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
