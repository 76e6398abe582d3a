"""Pictures and the page of a store: all there, units on every axis, nothing fetched."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import lanesim
from sim.cli.main import run
from sim.report.grid_figures import pictures
from sim.report.panels import set_theme
from sim.report.store_figures import NotDrawn
from sim.report.store_points import Points, read_points

GRID: dict[str, Any] = {
    "scenario": {
        "profile": "cpu/tiny",
        "policy": ["continuous", "pd"],
        "workload": {"num_prompts": 6, "output_len": 6},
    },
    "grid": {
        "workload.request_rate": [2, 8],
        "speculation.num_speculative_tokens": [1, 2],
        "profile": ["cpu/tiny", "h100-sxm/llama-2-7b+tinyllama-1.1b"],
    },
    "replications": 2,
}
UNITS = re.compile(r"\((ms|%.*|tokens.*)\)|requests/s|\$ per|streams?|acceptance|^ms of")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "store"
    lanesim.sweep(GRID, out=path, workers=1)
    return path


@pytest.fixture(scope="module")
def drawn(store: Path) -> Iterator[dict[str, Any]]:
    import matplotlib.pyplot as plt

    set_theme()
    yield {name: draw(read_points(store)) for name, draw in pictures(price_per_hour=2.5).items()}
    plt.close("all")


def test_every_axis_of_every_picture_names_its_unit(drawn: dict[str, Any]) -> None:
    assert len(drawn) == 9
    for name, figure in drawn.items():
        axes = [axis for axis in figure.axes if axis.get_visible()]
        labels = {label for axis in axes for label in (axis.get_xlabel(), axis.get_ylabel()) if label}
        assert labels, name
        assert [label for label in labels if not UNITS.search(label)] == [], name


def test_lines_differ_by_marker_and_dash_so_that_they_read_in_grey(drawn: dict[str, Any]) -> None:
    lines = [line for line in drawn["hockey_stick"].axes[0].get_lines() if not line.get_label().startswith("_")]
    assert len(lines) == 8
    assert len({(line.get_marker(), line.get_linestyle(), line._dash_pattern[1] is None) for line in lines}) > 1
    assert len({line.get_marker() for line in lines}) == 8


def test_a_picture_without_its_rows_says_what_it_needs(store: Path) -> None:
    points = read_points(store).where({"profile": "cpu/tiny", "workload.request_rate": 2.0})
    for name, needs in (
        ("gpu_comparison", "workload.request_rate"),
        ("improvement", "load"),
        ("hockey_stick", "grid over"),
    ):
        with pytest.raises(NotDrawn, match=needs):
            pictures()[name](points)


def test_a_tuned_table_is_drawn_over_the_batch_sizes(store: Path) -> None:
    frame = lanesim.load(store).rename(columns={"workload.request_rate": "workload.max_concurrency"})
    figure = pictures(table=[(1, 4, 2), (5, 512, 1)])["draft_length"](Points(frame=frame, path=store))
    assert figure.axes[0].get_lines()[-1].get_xydata().tolist() == [[0.5, 1.5], [1.5, 0.5]]


def test_plot_writes_png_and_svg_the_same_every_time(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["plot", str(store), "--only", "acceptance", "--where", "profile=cpu/tiny"]
    for folder in ("a", "b"):
        assert run([*flags, "--out", str(tmp_path / folder)]) == 0
    files = [sorted((tmp_path / folder).iterdir()) for folder in ("a", "b")]
    assert [path.name for path in files[0]] == ["acceptance.png", "acceptance.svg"]
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]
    assert run(["plot", str(store), "--only", "acceptence"]) == 2
    assert "did you mean 'acceptance'" in capsys.readouterr().err


class Page(HTMLParser):
    """Tags with their attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    grid = {"workload.request_rate": [2, 8], "speculation.num_speculative_tokens": [0, 2]}
    scenario = GRID["scenario"] | {"policy": ["continuous", "pdv"]}
    lanesim.sweep({"scenario": scenario, "grid": grid}, out=folder / "store")
    path = folder / "page.html"
    assert run(["report", str(folder / "store"), "--out", str(path), "--question", "k < 2 or k > 1?"]) == 0
    return path


def test_the_page_has_question_answer_pictures_tables_assumptions_errors_and_how_to_rerun(page: Path) -> None:
    found = Page(page.read_text())
    text = "".join(found.text)
    assert "k < 2 or k > 1?" in text
    for heading in ("Answer", "Pictures", "Points", "What it rests on", "Points that failed", "Run it again"):
        assert heading in found.text
    assert sum(tag == "img" for tag, _ in found.tags) == 7
    assert "gpu_comparison: needs a grid over profile" in text
    assert "acceptance: needs a grid over" in text
    assert "needs a draft" in text
    assert "workload.request_rate:" in text
    assert "mean held-out errors" in text or "not validated" in text
    assert "<code>replications: 5</code>" in page.read_text()
    assert "`" not in text


def test_the_page_fetches_nothing_and_runs_nothing(page: Path) -> None:
    found = Page(page.read_text())
    assert {tag for tag, _ in found.tags} & {"script", "iframe", "object", "embed", "base"} == set()
    for _, attributes in found.tags:
        for name in ("src", "href"):
            assert (attributes.get(name) or "data:").startswith("data:")
    assert "url(" not in page.read_text()
    assert "prefers-color-scheme: dark" in page.read_text()
    assert "@media print" in page.read_text()


def test_the_page_opens_in_a_browser_without_a_message(page: Path, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("needs Chromium")
    flags = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        "--disable-background-networking",
    ]
    command = [browser, *flags, f"--user-data-dir={tmp_path}", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "Run it again" in done.stdout
    assert "CONSOLE" not in done.stderr
