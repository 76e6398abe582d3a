"""No file of the site takes the place of another."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def hooks() -> Any:
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_line_that_is_a_link_to_a_table_has_the_table_below_it() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="acceptance.md"))
    text = "Read [it](atlas.csv) here.\n\n[The table](atlas.csv)\n"
    shown = hooks().on_page_markdown(text, page, None, None)
    rows = (ROOT / "docs" / "atlas.csv").read_text().splitlines()
    assert shown.startswith(f"{text.rstrip()}\n\n| target | GPUs |")
    assert sum(line.startswith("| ") for line in shown.splitlines()) == len(rows) + 1


def test_a_link_to_a_notebook_leads_to_the_page_that_the_site_has_of_it() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="guide.md"))
    text = "[it](../notebooks/00_in_simpy.ipynb)"
    assert hooks().on_page_markdown(text, page, None, None) == "[it](notebooks/00_in_simpy.ipynb)"


def test_home_has_a_card_for_each_role_that_ends_with_a_command_or_an_answer_of_its_tutorial() -> None:
    site = hooks()
    texts = [(ROOT / "docs" / "tutorials" / f"{page}.md").read_text() for page in site.ROLES.values()]
    last_lines = [block.splitlines()[-1].strip() for block in site.cards().split("    ```\n")[1::2]]
    assert [line for line, text in zip(last_lines, texts, strict=True) if line not in text] == []


def test_two_files_of_one_name_are_named() -> None:
    assert hooks().written_twice(["a.html", "twice.html", "b.html", "twice.html"]) == ["twice.html"]


def test_no_page_has_the_place_of_a_file_beside_it() -> None:
    """`docs/a.md` becomes a.html, which may be there."""
    places = [path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")]
    pages = [path.parent / "index" if path.name == "README" else path for path in places]
    files = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.html")}
    assert [str(page) for page in pages if page in files] == []
    assert len(set(pages)) == len(pages)
