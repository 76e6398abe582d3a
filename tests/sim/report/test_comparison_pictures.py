"""Pictures of comparisons: every panel shows something, and what it shows is what the rows say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("seaborn")

from sim.cli.main import run

POLICIES = ("autoregressive", "pd")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pictures")


@pytest.fixture(scope="module")
def drawn(folder: Path) -> Iterator[list[Any]]:
    """Figures of a comparison in the order of drawing."""
    import matplotlib.pyplot as plt
    from matplotlib.figure import Figure

    found: list[Any] = []
    savefig = Figure.savefig

    def kept(figure: Figure, file: Any, **options: Any) -> None:
        found.append(figure)
        savefig(figure, file, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", kept)
        # Closed figures keep what was drawn.
        flags = [word for policy in POLICIES for word in ("--policy", policy)]
        flags += ["--profile", "cpu/tiny", "--num-prompts", "12", "--output-len", "6", "--request-rate", "8"]
        assert run(["compare", *flags, "--out", str(folder / "8"), "--plots"]) == 0
    yield found
    plt.close("all")


def test_no_panel_of_the_picture_is_empty(drawn: list[Any]) -> None:
    (figure,) = drawn
    assert len(figure.axes) == 2
    assert all(axis.has_data() and axis.get_visible() for axis in figure.axes)


def test_a_timeline_names_the_kinds_of_works_that_it_shows(drawn: list[Any]) -> None:
    (timeline,) = drawn
    named = [text.get_text() for legend in timeline.legends for text in legend.get_texts()]
    assert set(named) >= {"draft", "verify", "step"}
    colours = {bar.get_facecolor()[:3] for axis in timeline.axes for bar in axis.patches}
    assert {patch.get_facecolor()[:3] for legend in timeline.legends for patch in legend.get_patches()} == colours
