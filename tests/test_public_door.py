"""`import lanesim`: light, documented by examples that run, and enough for what README and docs do."""

from __future__ import annotations

import doctest
import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import lanesim

ROOT = Path(__file__).parents[1]
PUBLIC = [name for name in lanesim.__all__ if not isinstance(getattr(lanesim, name), ModuleType)]
WITH_EXAMPLES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for package in ("lanesim", "sim", "calibrate", "realrun")
    for path in sorted((ROOT / package).rglob("*.py"))
    if ">>> " in path.read_text()
]
"""Modules whose docstrings hold examples."""
BLOCKS = [
    pytest.param(*found, id=f"{page}-{number}")
    for page in ("README.md", "docs/extending.md", "docs/tutorials/researcher.md")
    for number, found in enumerate(
        re.findall(
            r"```python\n(.*?)```(?:\n\nIt prints[^\n]*\n\n```\n(.*?)```)?", (ROOT / page).read_text(), re.DOTALL
        )
    )
]
"""Python of pages, and what a page says that it prints."""


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_an_example_in_its_docstring(name: str) -> None:
    found = getattr(lanesim, name)
    assert ">>> " in (found.__doc__ or "")
    assert found.__module__ in WITH_EXAMPLES


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_every_example_in_a_docstring_runs(name: str) -> None:
    """One that needs torch runs with the tests of what needs it (tests/realrun), where torch is."""
    try:
        module = import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        pytest.skip("torch is not installed")
    done = doctest.testmod(module)
    assert done.attempted > 0
    assert done.failed == 0


def test_every_public_name_says_what_it_is() -> None:
    for name in lanesim.__all__:
        assert (inspect.getdoc(getattr(lanesim, name)) or "").strip(), name


@pytest.mark.parametrize(("block", "output"), BLOCKS)
def test_the_pages_examples_run_and_print_what_stands_there(
    block: str, output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", module)
    exec(compile(block, "example", "exec"), vars(module))
    printed = {line.rstrip() for line in [*capsys.readouterr().out.splitlines(), "…"]}
    assert [line for line in output.splitlines() if line not in printed] == []


def test_importing_it_imports_nothing_heavy_and_sets_nothing() -> None:
    code = (
        "import os, sys; before = dict(os.environ); import lanesim; assert dict(os.environ) == before; "
        "print(sorted({'torch', 'pandas', 'seaborn', 'scipy', 'pyarrow', 'matplotlib', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_name_of_a_built_in_policy_or_acceptance_cannot_be_taken() -> None:
    with pytest.raises(ValueError, match="'pd' is built in"):
        lanesim.register(lanesim.Policy(name="pd", summary="", source="", build=lambda *_: []))
    with pytest.raises(ValueError, match="'iid' is built in"):
        lanesim.register_acceptance("iid", lambda values, draft_tokens: None, "iid:.5")
