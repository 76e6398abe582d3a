"""No file of the site takes the place of another. Not here: looks (validation.pages.site_check)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_two_files_of_one_name_are_named() -> None:
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    assert hooks.written_twice(["a.html", "twice.html", "b.html", "twice.html"]) == ["twice.html"]


def test_no_page_has_the_place_of_a_file_beside_it() -> None:
    """`docs/a.md` becomes a.html, which may be there."""
    places = [path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")]
    pages = [path.parent / "index" if path.name == "README" else path for path in places]
    files = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.html")}
    assert [str(page) for page in pages if page in files] == []
    assert len(set(pages)) == len(pages)
