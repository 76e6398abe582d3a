"""The atlas: its pairs, what it says of them, and a page that fetches nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sim.studies.answer import Answer
from sim.studies.evidence import MEASURED
from validation.pages import atlas
from validation.pages.atlas import OUT, PAIRS, AtlasRow, AtLoad, Quote, read_pairs
from validation.pages.atlas_page import UNMEASURED, as_html, cells, main, measured, sentence

GIVEN = """
schema: 1
acceptances:
  chat: {acceptance: "length:2.6@3", drafter: org/head, data: chat, source: "org/repo@1 (MIT)", date: 2026-01}
pairs:
  - {target: org/Known, profile: gh200/apertus-8b+eagle3, engine: vllm-0.23, method: eagle3, acceptance: chat}
  - {target: org/New, profile: h200-sxm/qwen3-32b+eagle3, engine: sglang-0.5, method: eagle3, acceptance: chat}
"""
Run = Callable[..., int]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The program on short requests, few loads and lengths."""
    monkeypatch.setattr(atlas, "LENGTHS", {"eagle3": (0, 1, 3)})
    monkeypatch.setattr(atlas, "OUTPUT_TOKENS", 16)
    monkeypatch.setattr(atlas, "MAX_IN_FLIGHT", 4)

    def call(text: str = GIVEN) -> int:
        (tmp_path / "pairs.yaml").write_text(text)
        return main(tmp_path / "pairs.yaml", tmp_path / "out", tmp_path / "done", draws=2, workers=1)

    return call


def row(**changed: Any) -> AtlasRow:
    loads = [
        AtLoad(concurrency=1, k=3, speedup=2.0, interval=(1.8, 2.2), speedups={1: 1.5, 3: 2.0}),
        AtLoad(concurrency=32, k=1, speedup=1.2, interval=(1.1, 1.3), speedups={1: 1.2, 3: 1.1}),
        AtLoad(concurrency=256, k=0, speedup=0.9, interval=(0.8, 1.0), speedups={1: 0.9, 3: 0.7}),
    ]
    given: dict[str, Any] = {
        "target": "org/m", "gpu": "h200-sxm", "gpus": 4, "engine": "vllm-0.24", "method": "eagle3", "drafter": None,
        "quote": Quote(acceptance="length:2.6@3", data="chat", source="s", date="2026"), "profile": "p",
        "profile_source": "s", "answer": Answer(k_table=[[1, 256, 3]], break_even_concurrency=100.0),
        "break_even_interval": (80.0, None), "loads": loads, "one_k": 1, "one_k_regret": 0.05, "one_k_worst": 0.25,
        "has_evidence": False, "line": "vllm serve org/m", "notes": [],
    }  # fmt: skip
    return AtlasRow(**(given | changed))


def test_two_pairs_become_one_file_and_json(run: Run, tmp_path: Path) -> None:
    assert run() == 0
    found = json.loads((tmp_path / "out" / "atlas.json").read_text())
    assert found["schema"] == 1
    known, new = found["pairs"]
    assert [each["concurrency"] for each in known["loads"]] == [1, 4]
    assert known["quote"]["source"] == "org/repo@1 (MIT)"
    assert "org/head" in known["line"]
    assert known["line"].startswith("vllm serve org/Known")
    assert new["line"].startswith("python -m sglang.launch_server --model-path org/New")
    assert known["has_evidence"]
    assert not new["has_evidence"]
    text = (tmp_path / "out" / "atlas.html").read_text()
    assert text.index("Of 2 published pairs, drafting ") < text.index("org/Known")
    assert "vllm-0.23, eagle3, K = 1 to 3, 1 to 8 in flight: output throughput" in text
    assert UNMEASURED in text
    assert text.count("<tr class=grey>") == 1


def test_a_published_speed_up_of_the_pair_stands_beside_it_with_the_error(run: Run, tmp_path: Path) -> None:
    cells = "measured: [{in_flight: 1, k: 3, speedup: 10.0}, {in_flight: 4, k: 3, speedup: 20.0}]"
    assert run(re.sub(r"chat}\n$", f"chat, {cells}}}\n", GIVEN)) == 0
    new = json.loads((tmp_path / "out" / "atlas.json").read_text())["pairs"][1]
    errors = [100 * (load["speedups"]["3"] / far - 1) for load, far in zip(new["loads"], (10, 20), strict=True)]
    text = (tmp_path / "out" / "atlas.html").read_text()
    found = re.findall(r"sglang-0.5, eagle3, K = 3, 1 and 4 in flight: speed-up (\S+) to (\S+) % \(2 cells\)", text)
    assert [float(error) for error in found[0]] == pytest.approx(sorted(errors), abs=0.1)
    assert new["has_evidence"]
    assert (
        run(GIVEN.replace("method: eagle3,", "measured: [{in_flight: 3, k: 3, speedup: 2}], method: eagle3,", 1)) == 0
    )
    assert "at lengths of its own" not in (tmp_path / "out" / "atlas.html").read_text()


def test_a_further_run_simulates_what_changed(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    page = (tmp_path / "out" / "atlas.html").read_bytes()
    assert "(kept)" not in capsys.readouterr().err
    assert run() == 0
    assert capsys.readouterr().err.count("(kept)") == 2
    assert (tmp_path / "out" / "atlas.html").read_bytes() == page
    other = GIVEN.replace(
        "pairs:", '  code: {acceptance: "iid:.8", drafter: org/head, data: c, source: s, date: 2026-02}\npairs:'
    )
    assert run(re.sub(r"chat}\n$", "code}\n", other)) == 0
    assert capsys.readouterr().err.count("(kept)") == 1


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("schema: 1", "schema: 2", "schema"),
        ("method: eagle3, acceptance: chat}\n  -", "method: eagle4, acceptance: chat}\n  -", "eagle4"),
        ("length:2.6@3", "length:9@3", "acceptance length 9.0 must be"),
        ("acceptance: chat}", "acceptance: chats}", "chats"),
        ("date: 2026-01", "day: 2026-01", "day"),
        ("profile: gh200/apertus-8b+eagle3,", "", "want one of them"),
        ("pairs:", "pairs: [", "pairs"),
    ],
)
def test_a_damaged_file_of_pairs_is_one_line(old: str, new: str, said: str, run: Run) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        run(GIVEN.replace(old, new, 1))
    assert "\n" not in str(caught.value)


def test_what_cannot_be_judged_is_left_out_and_named(run: Run, tmp_path: Path) -> None:
    assert run(GIVEN.replace("gh200/apertus-8b+eagle3", "gh200/nowhere")) == 0
    found = json.loads((tmp_path / "out" / "atlas.json").read_text())
    assert len(found["pairs"]) == 1
    assert "nowhere" in found["left_out"][0]["why"]


def test_a_row_says_from_which_load_drafts_lose_and_what_one_length_costs() -> None:
    texts = [cell if isinstance(cell, str) else cell[0] for cell in cells(row())]
    assert "100 (80–> 256)" in texts
    assert texts[5:10] == ["3", "–", "1", "–", "none"]
    assert "5.0 (at worst 25)" in texts
    always = row(answer=Answer(k_table=[], break_even_concurrency=None), break_even_interval=(None, None))
    assert "> 256" in cells(always)
    said = sentence([row(), always])
    assert said.startswith(
        "Of 2 published pairs, drafting raises throughput at every load tried in none. In 1 it lowers"
    )
    assert "org/m on h200-sxm under vllm-0.24 is the first, above 100 requests in flight." in said
    assert "In 1 more it lowers throughput at single loads." in said
    assert "In 1 it lowers throughput at single loads." in sentence([always])
    never = row(answer=Answer(k_table=[], break_even_concurrency=0.0), break_even_interval=(0.0, 0.0))
    assert "under vllm-0.24 is the first, at any load." in sentence([never])


def test_cells_without_drafts_alone_are_called_so() -> None:
    line = (
        f"{MEASURED}: h200-sxm, vllm-0.12, m, no speculation, 8 to 128 in flight: TPOT +1.0 to +2.0 % (5 cells; org; x)"
    )
    answer = Answer(k_table=[], evidence=[line])
    assert measured(row(answer=answer)) == (
        "without drafts only: vllm-0.12, no speculation, 8 to 128 in flight: TPOT +1.0 to +2.0 % (5 cells)"
    )


def test_the_file_has_what_recipes_publish() -> None:
    plots = read_pairs(PAIRS)
    assert len({plot.label for plot in plots}) == len(plots) >= 24
    for part in ("Llama-3.1-8B", "70B", "Qwen3-235B", "gpt-oss", "DeepSeek"):
        assert any(part in plot.pair.target for plot in plots)
    assert all(plot.quote.source and plot.quote.date for plot in plots)


def test_the_page_of_the_site_is_that_of_its_json() -> None:
    """`make atlas` writes both anew."""
    if not (OUT / "atlas.json").exists():
        pytest.skip("no docs/atlas.json: `make atlas` writes it")
    found = json.loads((OUT / "atlas.json").read_text())
    rows = msgspec.convert(found["pairs"], list[AtlasRow], strict=False)
    refused = [(each["pair"], each["why"]) for each in found["left_out"]]
    assert (OUT / "atlas.html").read_text() == as_html(rows, refused, found["draws"])


def test_the_file_fetches_nothing_and_names_are_no_markup() -> None:
    text = as_html([row()], [("<b>", "<i>")], 2)
    assert set(re.findall(r"<(?:img|iframe|object|embed|base|form|b|i)\b", text)) == set()
    links = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert all(link.startswith("#pair-") or link == "data:," for link in links)
