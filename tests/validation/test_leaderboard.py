"""The leaderboard: its figures are those of the data that it is made of, and cells that judge nothing are apart."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from validation.pages.leaderboard import FOLDER, PAGE, PEERS, main
from validation.tables import csv_rows


def test_the_page_is_of_the_data_that_it_is_made_of(tmp_path: Path) -> None:
    main(tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == PAGE.read_text(), "python -m validation leaderboard"


def test_the_first_line_has_the_means_of_the_committed_cells() -> None:
    cells = [row for row in csv_rows(FOLDER / "served-cells.csv") if row["role"] == "judged"]
    cells = [cell for cell in cells if cell["peer_tpot_error_pct"]]
    ours, theirs = (fmean(abs(float(cell[f"{who}tpot_error_pct"])) for cell in cells) for who in ("", "peer_"))
    first = PAGE.read_text().splitlines()[2]
    assert f"On {len(cells):,} measured serving cells" in first
    assert f"by {ours:.1f} %, aiconfigurator 0.12's by {theirs:.1f} %" in first


def test_every_figure_of_another_simulator_has_its_source_and_date() -> None:
    assert all(peer["source"] and peer["date"] and float(peer["error_pct"]) > 0.0 for peer in csv_rows(PEERS))
