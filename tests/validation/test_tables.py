"""Templates filled with frames, bullets and texts."""

from pathlib import Path

import pandas as pd
import pytest

import validation.tables
from validation.tables import markdown, page


def test_columns_of_figures_stand_to_the_right_and_those_of_one_name_stay_apart() -> None:
    frame = pd.DataFrame([["a 1", "+2.5", 3, None], ["–", "–", 4, 0.5]], columns=["cell", "error", "median", "median"])
    assert markdown(frame) == (
        "| cell | error | median | median |\n| :-- | --: | --: | --: |\n| a 1 | +2.5 | 3 | – |\n| – | – | 4 | 0.5 |"
    )


def test_a_page_is_its_template_with_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation.tables, "TEMPLATES", tmp_path)
    (tmp_path / "short.md").write_text("# $$5\n\n$answer\n\n$table\n\n$notes\n")
    parts = {"answer": "None.", "table": pd.DataFrame({"k": [1]}), "notes": ["one", "two"]}
    text = page(tmp_path / "out.md", "short", **parts)
    assert text == "# $5\n\nNone.\n\n| k |\n| --: |\n| 1 |\n\n- one\n- two\n" == (tmp_path / "out.md").read_text()
    with pytest.raises(KeyError, match="notes"):
        page(tmp_path / "out.md", "short", answer="None.", table="")
    with pytest.raises(ValueError, match=r"has no \$more"):
        page(tmp_path / "out.md", "short", **parts, more="")
