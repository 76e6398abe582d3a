"""Pictures and the page of a store: all there, units on every axis, nothing fetched."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Iterator
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import lanesim
from sim.cli.main import run
from sim.report.pictures.panels import label_points, set_theme
from sim.report.pictures.store_pictures import JOULES, NotDrawn, _label, pictures
from sim.report.store_points import read_points

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
    assert len(drawn) == 5
    for name, figure in drawn.items():
        axes = [axis for axis in figure.axes if axis.get_visible()]
        labels = {label for axis in axes for label in (axis.get_xlabel(), axis.get_ylabel()) if label}
        assert labels, name
        assert [label for label in labels if not UNITS.search(label)] == [], name


def drawn_lines(axis: Any) -> list[Any]:
    return [line for line in axis.get_lines() if len(line.get_xdata()) > 1]


def test_lines_differ_by_marker_and_dash_so_that_they_read_in_grey(drawn: dict[str, Any]) -> None:
    lines = drawn_lines(drawn["hockey_stick"].axes[0])
    assert len(lines) == 4
    assert len({(line.get_marker(), str(line._dash_pattern)) for line in lines}) == 4


def test_a_picture_shows_the_means_of_its_points(store: Path, drawn: dict[str, Any]) -> None:
    """Every panel of one metric together has every mean."""
    means = read_points(store).means(["p99_ttft_ms"])
    top = drawn["hockey_stick"].axes[:2]
    shown = sorted(float(value) for axis in top for line in drawn_lines(axis) for value in line.get_ydata())
    assert shown == pytest.approx(sorted(means["p99_ttft_ms"]))


def test_a_picture_without_its_rows_says_what_it_needs(store: Path) -> None:
    points = read_points(store).where("profile", "cpu/tiny").where("workload.request_rate", 2.0)
    for name, needs in (("hockey_stick", "workload.request_rate"), ("improvement", "grid over"), ("pareto", None)):
        if needs is None:
            pictures()[name](points)
            continue
        with pytest.raises(NotDrawn, match=needs):
            pictures()[name](points)


def test_the_title_says_what_is_overloaded_where_something_is(store: Path) -> None:
    points = read_points(store).where("profile", "cpu/tiny")
    for is_overloaded in (True, False):
        figure = pictures()["hockey_stick"](points.with_rows(points.frame.assign(unstable=is_overloaded)))
        assert ("hollow: overloaded" in figure.get_suptitle()) == is_overloaded


def test_a_policy_that_drafts_nothing_has_one_line_and_no_draft_length(store: Path) -> None:
    points = read_points(store).where("profile", "cpu/tiny")
    frame = points.frame
    frame = frame.assign(acceptance_length_tokens=frame["acceptance_length_tokens"].where(frame["policy"] == "pd"))
    (legend,) = pictures()["hockey_stick"](points.with_rows(frame)).legends
    assert {text.get_text() for text in legend.get_texts()} >= {"continuous", "pd, k=1", "pd, k=2"}


def test_labels_of_points_do_not_lie_on_each_other() -> None:
    import matplotlib.pyplot as plt

    set_theme()
    figure, axis = plt.subplots()
    axis.plot([0.0, 1.0], [0.0, 1.0])
    label_points(axis, [(0.5 + place / 200, 0.5, f"k={place}, {rate}") for place in range(9) for rate in (10, 20)])
    boxes = [text.get_window_extent() for text in axis.texts]
    assert len(boxes) > 2
    assert not any(box.overlaps(other) for number, box in enumerate(boxes) for other in boxes[:number])
    plt.close(figure)


def test_a_point_says_what_a_million_tokens_cost_at_a_price_per_hour() -> None:
    """$3.60 per hour are $0.001 per second, in which a GPU gives 1,000 tokens."""
    row = pd.Series({"batch": 8.0, "gpu": 1000.0, JOULES: 0.5})
    assert _label(row, ["batch"], 3.6) == "8, 0.5 J, $1"


class Page(HTMLParser):
    """Tags with their attributes, and the text but for scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] != [("script", {})]:
            self.text.append(data)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    grid = {"workload.request_rate": [2, 8], "speculation.num_speculative_tokens": [0, 2]}
    scenario = GRID["scenario"] | {"policy": ["continuous", "pdv"]}
    lanesim.sweep({"scenario": scenario, "grid": grid}, out=folder / "store")
    path = folder / "page.html"
    assert run(["report", str(folder / "store"), "--out", str(path)]) == 0
    return path


def test_the_page_has_question_answer_pictures_tables_assumptions_errors_and_how_to_rerun(page: Path) -> None:
    found = Page(page.read_text())
    text = "".join(found.text)
    for heading in ("Answer", "Pictures", "Points", "What it rests on", "Points that failed", "Run it again"):
        assert heading in found.text
    assert sum(tag == "img" for tag, _ in found.tags) == 5
    assert "needs a draft" in text
    assert "workload.request_rate:" in text
    assert "mean held-out errors" in text or "not validated" in text
    assert "<code>replications: 5</code>" in page.read_text()
    assert "Errors of costs and acceptance are not in them" in page.read_text()
    assert "`" not in text


def test_the_page_fetches_nothing_and_runs_its_own_script_alone(page: Path) -> None:
    found = Page(page.read_text())
    assert {tag for tag, _ in found.tags} & {"iframe", "object", "embed", "base"} == set()
    (script,) = re.findall(r"<script>(.*?)</script>", page.read_text(), flags=re.DOTALL)
    assert [attributes for tag, attributes in found.tags if tag == "script"] == [{}]
    digest = b64encode(sha256(script.encode()).digest()).decode()
    (policy,) = [attributes["content"] for tag, attributes in found.tags if "http-equiv" in attributes]
    assert policy == f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert not re.search(r"eval|Function\(|innerHTML|fetch\(|import\(|https?:(?!//www\.w3\.org/2000/svg)", script)
    for _, attributes in found.tags:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href"):
            assert (attributes.get(name) or "data:").startswith("data:")
    assert "url(" not in page.read_text()
    assert "prefers-color-scheme: dark" in page.read_text()
    for _, attributes in found.tags:
        kind, _, text = (attributes.get("src") or "").partition("base64,")
        assert not kind or re.search(r"dark\)\{svg\{--ink:#e6e6ea", b64decode(text).decode())
    assert "@media print" in page.read_text()


def opened(page: Path, folder: Path) -> str:
    """The page's document after its script ran in Chromium, which had nothing to say about it."""
    browser = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("needs Chromium")
    flags = ["--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--disable-background-networking"]
    flags += ["--headless=new", f"--user-data-dir={folder / 'browser'}"]
    command = [browser, *flags, "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr
    return done.stdout


def test_a_page_with_hostile_names_opens_without_a_message_and_makes_nothing_of_them(tmp_path: Path) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    profile = tmp_path / f"{hostile}.json"
    lanesim.save_profile(lanesim.load_profile("cpu/tiny"), profile)
    grid = {"profile": ["cpu/tiny", str(profile)], "workload.request_rate": [2, 8]}
    lanesim.sweep({"scenario": GRID["scenario"], "grid": grid}, out=tmp_path / "store", workers=1)
    page = tmp_path / "page.html"
    assert run(["report", str(tmp_path / "store"), "--out", str(page)]) == 0
    for text in (page.read_text(), opened(page, tmp_path)):
        tags = Page(text).tags
        assert len([tag for tag, _ in tags if tag == "script"]) == 1
        assert not [attributes for tag, attributes in tags if tag == "img" and attributes["src"] == "x"]
        assert not [name for _, attributes in tags for name in attributes if name.startswith("on")]
    assert len([tag for tag, _ in tags if tag == "circle"]) == 8


def test_tables_sort_and_points_filter_and_a_dot_tells_its_row(page: Path, tmp_path: Path) -> None:
    """With one more script, which the page's own policy would not let run."""
    clicks = """
      const points = document.getElementById("points"), rows = () => [...points.tBodies[0].rows];
      const head = [...points.tHead.rows[0].cells].find((cell) => cell.textContent.startsWith("mean E2EL"));
      const place = head.cellIndex, seen = [];
      for (const _ of [1, 2]) {
        head.firstChild.click();
        seen.push(rows().map((row) => row.cells[place].dataset.v).join(" "));
      }
      const filter = document.querySelector("input");
      filter.value = "PDV";
      filter.dispatchEvent(new Event("input"));
      const dot = document.querySelector("circle");
      dot.dispatchEvent(new Event("mouseenter"));
      const left = rows().filter((row) => !row.hidden).map((row) => row.textContent.includes("pdv"));
      document.title = JSON.stringify([...seen, left, document.querySelector("output").textContent]);
    """
    text = re.sub(r"<meta http-equiv[^>]*>", "", page.read_text())
    copy = tmp_path / "copy.html"
    copy.write_text(text.replace("</body>", f"<script>{{{clicks}}}</script></body>"))
    (title,) = re.findall(r"<title>(.*?)</title>", opened(copy, tmp_path))
    up, down, left, told = json.loads(html.unescape(title))
    values = [float(value) for value in up.split()]
    assert values == sorted(values)
    assert [float(value) for value in down.split()] == values[::-1]
    assert left
    assert all(left)
    assert "policy: pdv; " in told
    assert "mean E2EL, ms: " in told
