"""Pictures of comparisons: every panel shows something, and what it shows is what the rows say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("seaborn")
from matplotlib.colors import to_hex

from sim.cli.main import run
from sim.report.results import read_summary

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


def test_no_panel_of_any_picture_is_empty(drawn: list[Any]) -> None:
    assert [len(figure.axes) for figure in drawn] == [3, 2]
    for figure in drawn:
        assert all(axis.has_data() and axis.get_visible() for axis in figure.axes)


def test_a_step_line_of_a_latency_ends_at_all_requests_and_at_the_slowest(drawn: list[Any], folder: Path) -> None:
    rows = {row.policy: row for row in read_summary(folder / "8").policies}
    for axis, name in zip(drawn[0].axes, ("ttft", "tpot", "e2el"), strict=True):
        (legend,) = drawn[0].legends
        texts = [text.get_text() for text in legend.get_texts()]
        colours = dict(zip((to_hex(line.get_color()) for line in legend.get_lines()), texts, strict=True))
        lines = {colours[to_hex(line.get_color())]: line for line in axis.get_lines()}
        assert lines.keys() == set(POLICIES)
        for policy, line in lines.items():
            values_ms, shares = (values[1:] for values in line.get_data())
            assert len(values_ms) == 4 * 12
            assert shares[-1] == 1.0
            assert np.mean(values_ms) == pytest.approx(rows[policy].mean[f"mean_{name}_ms"])


def test_a_timeline_names_the_kinds_of_works_that_it_shows(drawn: list[Any]) -> None:
    timeline = drawn[1]
    named = [text.get_text() for legend in timeline.legends for text in legend.get_texts()]
    assert set(named) >= {"draft", "verify", "step"}
    colours = {bar.get_facecolor()[:3] for axis in timeline.axes for bar in axis.patches}
    assert {patch.get_facecolor()[:3] for legend in timeline.legends for patch in legend.get_patches()} == colours
