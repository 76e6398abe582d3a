"""The leaderboard: its figures are those of the data that it is made of, and cells that judge nothing are apart."""

from __future__ import annotations

from pathlib import Path

from validation.pages.leaderboard import PAGE, PEERS, main
from validation.tables import csv_rows


def test_the_page_is_of_the_data_that_it_is_made_of(tmp_path: Path) -> None:
    main(tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == PAGE.read_text(), "python -m validation leaderboard"


def test_every_figure_of_another_simulator_has_its_source_and_date() -> None:
    assert all(peer["source"] and peer["date"] and float(peer["error_pct"]) > 0.0 for peer in csv_rows(PEERS))
