"""Pages that are generated from the code say what the code says."""

from __future__ import annotations

from benchmarks.scenario_docs import PAGE, page


def test_the_scenario_page_is_the_schemas() -> None:
    """`python -m benchmarks.scenario_docs` writes it anew."""
    assert PAGE.read_text() == page()
