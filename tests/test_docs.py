"""Pages that are generated from the code say what the code says; what docstrings and pages point to exists."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import lanesim
from sim.cli.main import run
from validation.pages.scenario import PAGE, main

ROOT = Path(__file__).parent.parent
PACKAGES = ("sim", "realrun", "calibrate", "validation", "tests")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
DOTTED = re.compile(rf"(?<![\w./`-])(?:{'|'.join(PACKAGES)})(?:\.\w+)+")


def test_the_scenario_page_is_the_schemas(tmp_path: Path) -> None:
    """`python -m validation scenario_docs` writes it anew."""
    main(tmp_path / "scenario.md")
    assert PAGE.read_text() == (tmp_path / "scenario.md").read_text()


SYSTEMS = [
    command.replace("MODEL", "meta-llama/Llama-3.1-8B-Instruct").replace("DRAFT", "meta-llama/Llama-3.2-1B-Instruct")
    for page in ("README.md", "docs/systems.md")
    for command in re.findall(r"\| `(lanesim compare [^`]+)` \|", (ROOT / page).read_text())
    if "--vary" not in command
]


@pytest.mark.parametrize("command", sorted(set(SYSTEMS)))
def test_every_system_of_the_seeds_runs_as_its_page_says(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a few requests, so far apart that nobody asks for capacity."""
    monkeypatch.chdir(ROOT)
    _, *args = shlex.split(command)
    apart = [] if "inf" in args else ["--request-rate", "0.02"]
    assert run([*args, *apart, "--num-prompts", "3", "--replications", "1", "--json", "-"]) == 0
    assert all(row["completed"] for row in json.loads(capsys.readouterr().out)["runs"])


def test_the_tails_on_the_page_of_acceptance_are_what_its_command_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs/acceptance.md").read_text()
    (command,) = re.findall(r"^lanesim (compare .+tails\.json)$", text, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    assert run(shlex.split(command)) == 0
    loads = json.loads((tmp_path / "tails.json").read_text())["loads"]
    means = [load["comparison"]["policies"][0]["mean"] for load in loads]
    tpots = [[mean[f"{name}_tpot_ms"] for name in ("mean", "p90", "p99")] for mean in means]
    rows = [f"| {mean:.2f} | {p90 / mean:.2f} | {p99 / mean:.2f} |" for mean, p90, p99 in tpots]
    assert [row for row in rows if row not in text] == []


def test_every_column_of_a_sweep_is_in_the_table_of_its_page() -> None:
    section = (ROOT / "docs/sweeps.md").read_text().partition("## Columns of the table")[2].partition("\n## ")[0]
    patterns = re.findall(r"`([^`]+)`", "".join(re.findall(r"^\|[^|]*\|", section, re.MULTILINE)))
    scenario = {
        "profile": "h100-sxm/llama-2-7b+tinyllama-1.1b", "policy": ["pd", "continuous"], "energy": True,
        "goodput": {"ttft_ms": 500}, "workload": {"num_prompts": 5},
    }  # fmt: skip
    grid = {"workload.request_rate": [2]}
    columns = lanesim.sweep({"scenario": scenario, "grid": grid}, workers=1).columns.difference(list(grid))
    assert [name for name in columns if not any(fnmatchcase(name, each) for each in patterns)] == []
    assert [each for each in patterns if not any(fnmatchcase(name, each) for name in columns)] == []


def is_there(name: str, folder: Path = ROOT) -> bool:
    """Whether `name`, as seen from `folder`, is a folder, a module, or what a module defines: a.b, a.b.Class."""
    path = folder.joinpath(*name.split("."))
    if path.is_dir() or path.with_suffix(".py").is_file():
        return True
    module = path.parent.with_suffix(".py")
    if not module.is_file():
        return False
    return re.search(rf"^(?:class |def |async def )?{path.name}\b", module.read_text(), re.MULTILINE) is not None


def pointers(docstring: str) -> Iterator[str]:
    """Names of modules and files in the brackets after "Not here", without commands and other words."""
    _, _, rest = docstring.partition("Not here")
    for group in re.findall(r"\(([^()]*)\)", rest.partition("\n\n")[0]):
        names = (part.strip() for part in re.split(r"[,;]|\band\b", group))
        yield from (name for name in names if re.fullmatch(r"[\w./-]+", name))


def docstring_of(module: Path) -> str:
    """As it stands in the file, which begins with it or with comments."""
    found = re.match(r'(?:#[^\n]*\n)*"""(.*?)"""', module.read_text(), re.DOTALL)
    return found[1] if found else ""


def test_every_pointer_of_a_module_to_what_is_elsewhere_names_something() -> None:
    """Full names, paths, or names of neighbours in the module's folder or the one above."""
    dead = []
    for module in MODULES:
        docstring = docstring_of(module)
        found = {*DOTTED.findall(docstring), *pointers(docstring)}
        for name in sorted(found):
            is_path = "/" in name and (ROOT / name).exists()
            folders = [ROOT, module.parent, module.parent.parent]
            if not is_path and not any(is_there(name.removeprefix("."), folder) for folder in folders):
                dead.append(f"{module.relative_to(ROOT)}: {name}")
    assert dead == []


def test_every_decision_record_that_is_named_exists() -> None:
    """The changelog may name one that was merged into another, as the index of the records says."""
    folder = ROOT / "docs" / "adr"
    records = {path.name[:3] for path in folder.glob("[0-9]*.md")}
    index = (folder / "README.md").read_text()
    assert set(re.findall(r"^\| \[(\d{3})\]\(\1-", index, re.MULTILINE)) == records
    rows = re.findall(r"^\| ([\d, ]+) \| (\d{3}) \|$", index, re.MULTILINE)
    merged = {number: into for numbers, into in rows for number in numbers.split(", ")}
    assert set(merged.values()) <= records
    assert not merged.keys() & records
    named = re.compile(r"(?:\bADRs? |docs/adr/)(\d{3})\b")
    dead = [
        f"{path.relative_to(ROOT)}: {number}"
        for path in [*MODULES, *PAGES]
        for number in named.findall(path.read_text())
        if number not in records and not (path.name == "CHANGELOG.md" and number in merged)
    ]
    assert dead == []


def test_every_link_within_the_pages_leads_somewhere() -> None:
    dead = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in PAGES
        for link in re.findall(r"\]\((?!https?:|#)([^)\s#]+)", page.read_text())
        if not (page.parent / link).exists()
    ]
    assert dead == []


def test_no_test_names_a_data_folder_of_one_machine() -> None:
    absolute = re.compile(r"""["']/\w[^"']*/shared/""")
    found = [path.relative_to(ROOT) for path in ROOT.glob("tests/**/*.py") if absolute.search(path.read_text())]
    assert found == []
