"""The wheel stands alone: installed away from the repository it has all modules and data, and its commands run.

Built from a copy of the tree without network; the dependencies are those of the environment that runs the tests.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PACKAGES = ("lanesim", "sim", "calibrate", "realrun")
FILES = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE")
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
INSTALL = (*PIP, "install", "--no-deps", "--no-index", "--no-compile", "--target")
"""Python compiles what is imported; pip would compile everything first."""
NUM_PROMPTS = 5
CORE = (".c", ".so")
"""The core is built where there is a compiler, and not sent as source."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that neither old build folders nor the working tree take part."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in FILES:
        shutil.copy(ROOT / name, source)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    build = ("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(out), str(source))
    subprocess.run([*PIP, *build], check=True)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the wheel is installed into."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([*INSTALL, str(folder), str(wheel)], check=True)
    return folder


def command(installed: Path, elsewhere: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`lanesim` of the installed wheel, run in the folder `elsewhere`."""
    environment = os.environ | {"PYTHONPATH": str(installed)}
    script = [sys.executable, str(installed / "bin" / "lanesim"), *arguments]
    return subprocess.run(script, cwd=elsewhere, env=environment, capture_output=True, text=True, check=False)


def test_the_wheel_holds_every_module_and_data_file_and_nothing_else(wheel: Path) -> None:
    wanted: set[str] = set()
    for package in PACKAGES:
        files = (path for path in (ROOT / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        files = (path for path in files if path.suffix not in CORE)
        wanted |= {path.relative_to(ROOT).as_posix() for path in files}
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {name for name in held if Path(name).suffix not in CORE} == wanted
    assert sum(name.startswith("sim/profiles/") for name in held) > 20


def test_the_wheel_carries_its_licence_and_notice(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        texts = {Path(name).name: archive.read(name).decode() for name in archive.namelist() if ".dist-info/" in name}
    assert "Apache License" in texts["LICENSE"]
    assert "aiconfigurator" in texts["NOTICE"]
    assert {"License-Expression: Apache-2.0", "License-File: NOTICE"} <= set(texts["METADATA"].splitlines())


def test_what_is_imported_is_what_was_installed(installed: Path, tmp_path: Path) -> None:
    code = f"import {', '.join(PACKAGES)}; print(*(m.__file__ for m in ({', '.join(PACKAGES)})))"
    environment = os.environ | {"PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert all(Path(file).is_relative_to(installed) for file in done.stdout.split())


def test_the_demo_runs_from_another_directory(installed: Path, tmp_path: Path) -> None:
    scenario = installed / "sim" / "scenarios" / "demo.yaml"
    flags = ("--num-prompts", str(NUM_PROMPTS), "--replications", "1", "--out", "results", "--json", "-")
    done = command(installed, tmp_path, "compare", str(scenario), *flags)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [run["completed"] for run in result["runs"]] == [NUM_PROMPTS] * 3
    assert (tmp_path / "results" / "summary.json").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


@pytest.mark.parametrize("name", ["calibrate", "replay", "validate"])
def test_commands_of_the_other_packages_are_found(installed: Path, tmp_path: Path, name: str) -> None:
    done = command(installed, tmp_path, name, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Usage: lanesim {name}")


USERS_SCRIPT = """
import lanesim

profile: lanesim.Profile = lanesim.load_profile("cpu/tiny")
result: lanesim.Comparison = lanesim.compare(profile="cpu/tiny", policy=("pd", "pdv"), num_prompts=5)
names: list[str] = lanesim.policy_names()
"""


WRONG_LINES = {"lanesim.load_profile(3)": "incompatible type", "lanesim.worlds": "no attribute"}
"""What a script may not do, and what is said of it."""


def test_a_users_script_is_type_checked_against_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """In an environment that holds the wheel alone, where only packages that say that they are typed are read."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    subprocess.run([*INSTALL, str(site), str(wheel)], check=True)
    scripts = {f"script{number}.py": line for number, line in enumerate(["", *WRONG_LINES])}
    for name, line in scripts.items():
        (tmp_path / name).write_text(f"{USERS_SCRIPT}{line}\n")
    executable = str(tmp_path / "env" / "bin" / "python")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--python-executable", executable, *scripts],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    *said, total = checked.stdout.splitlines()
    assert total.startswith("Found 2 errors"), checked.stdout + checked.stderr
    for line, name, message in zip(sorted(said), ["script1.py", "script2.py"], WRONG_LINES.values(), strict=True):
        assert line.startswith(f"{name}:")
        assert message in line


def test_the_suite_with_torch_names_every_room_whose_tests_need_it_and_none_that_is_gone() -> None:
    listed = re.search(r"addprefix tests/calibrate/,([\w ]+)\)", (ROOT / "Makefile").read_text())
    assert listed is not None
    rooms = ROOT / "tests" / "calibrate"
    needing = {
        path.relative_to(rooms).parts[0]
        for path in rooms.rglob("test_*.py")
        if 'importorskip("torch")' in path.read_text()
    }
    names = set(listed[1].split())
    assert needing <= names
    assert {name for name in names if not (rooms / name).is_dir()} == set()


def test_version_and_address_are_the_same_wherever_a_release_states_them() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    changes = re.findall(r"^## (\d\S*), (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert changes[0][0] == str(citation["version"]) == project["version"]
    assert changes[0][1] == str(citation.get("date-released", "unreleased"))
    urls = project.get("urls", {})
    assert urls.get("Source") == citation.get("repository-code")
    assert urls.get("Security", "") in (ROOT / "SECURITY.md").read_text()
