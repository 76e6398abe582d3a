"""The atlas: its pairs, and a row of simulated loads alone for each."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from validation.pages import atlas
from validation.pages.atlas import KEY, OUT, PAIRS, main, read_pairs
from validation.tables import csv_rows

GIVEN = """
acceptances:
  chat: {acceptance: "length:2.6@3", drafter: org/head, data: chat, source: "org/repo@1 (MIT)", date: 2026-01}
pairs:
  - {target: org/Known, profile: gh200/apertus-8b+eagle3, engine: vllm-0.23, method: eagle3, acceptance: chat}
  - {target: org/New, profile: h200-sxm/qwen3-32b+eagle3, engine: sglang-0.5, method: eagle3, acceptance: chat}
"""
ERRORS = "error of measured drafts nearby"
Run = Callable[..., list[dict[str, str]]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The table's rows on short requests, few loads and lengths."""
    monkeypatch.setattr(atlas, "LENGTHS", {"eagle3": (0, 1, 3)})
    monkeypatch.setattr(atlas, "WORKLOAD", {"input_len": 1024, "output_len": 16, "max_concurrency": 4})

    def call(text: str = GIVEN, only: str = "") -> list[dict[str, str]]:
        (tmp_path / "pairs.yaml").write_text(text)
        assert main(tmp_path / "pairs.yaml", tmp_path / "atlas.csv", only, draws=2, workers=1) == 0
        return csv_rows(tmp_path / "atlas.csv")

    return call


def test_a_row_has_the_loads_that_were_simulated_and_the_errors_near_them(run: Run) -> None:
    cells = "measured: [{in_flight: 1, k: 3, speedup: 10}, {in_flight: 3, k: 3, speedup: 10}]"
    known, new = run(re.sub(r"chat}\n$", f"chat, {cells}}}\n", GIVEN))
    for row in (known, new):
        assert [bool(row[f"K at {at}"]) for at in atlas.LOADS] == [True, True, False, False, False, False, False]
        assert row["K at the most"] == f"4: {row['K at 4']}"
        k, speedup = re.fullmatch(r"(\d) \((\d\.\d\d)\)", row["K at 1"]).groups()  # type: ignore[union-attr]
        assert int(k) == 0 or float(speedup) > 1.0
    assert "vllm-0.23, apertus-8b, eagle3, K = 1 to 3, 1 to 8 in flight: output throughput" in known[ERRORS]
    assert re.fullmatch(r"this pair, K = 3, 1 in flight: speed-up -\d\d\.\d %", new[ERRORS])


def test_only_some_pairs_leaves_the_other_rows_as_they_are(run: Run) -> None:
    before = run()
    changed = GIVEN.replace("length:2.6@3", "length:1.01@3")
    after = run(changed, "Known")
    assert after[:2] == before
    assert [row["K at 1"][0] for row in after if row["acceptance"] == "length:1.01@3"] == ["0"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("method: eagle3, acceptance: chat}\n  -", "method: eagle4, acceptance: chat}\n  -", "eagle4"),
        ("length:2.6@3", "length:9@3", "acceptance length 9.0 must be"),
        ("acceptance: chat}", "acceptance: chats}", "chats"),
        ("date: 2026-01", "day: 2026-01", "day"),
        ("profile: gh200/apertus-8b+eagle3,", "", "exclude each other"),
        ("pairs:", "pairs: [", "pairs"),
    ],
)
def test_a_damaged_file_of_pairs_is_one_line(old: str, new: str, said: str, run: Run) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        run(GIVEN.replace(old, new, 1))
    assert "\n" not in str(caught.value)


def test_a_pair_that_cannot_be_priced_is_left_out_and_named(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = run(GIVEN.replace("gh200/apertus-8b+eagle3", "gh200/nowhere"))
    assert row["target"] == "org/New"
    assert "nowhere" in capsys.readouterr().err


def test_every_pair_of_the_file_has_its_row_and_every_row_its_pair() -> None:
    pairs = [
        (pair.target, pair.engine, quote.drafter or pair.method, quote.acceptance) for pair, quote in read_pairs(PAIRS)
    ]
    rows = csv_rows(OUT)
    assert [(row["target"], row["engine"], row["drafter"], row["acceptance"]) for row in rows] == pairs
    assert len({tuple(row[name] for name in KEY) for row in rows}) == len(rows) >= 24
