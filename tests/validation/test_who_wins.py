"""Who is first over the bracket of phi, on figures made by hand."""

from __future__ import annotations

from validation.pages.who_wins import phi_star, winner

PHIS = (0.0, 0.07, 0.25)
ONE = {"continuous": [9.0, 9.1, 9.2]}


def lanes(mean: float) -> dict[str, list[float]]:
    return {**ONE, "pd": [mean, mean + 0.1, mean + 0.2]}


def test_a_winner_is_named_only_where_it_is_first_at_every_phi() -> None:
    assert winner([lanes(12.0), lanes(11.0), lanes(10.0)]) == ["continuous"]
    assert winner([lanes(12.0), lanes(10.0), lanes(8.0)]) == []
    assert winner([lanes(12.0), lanes(9.0), lanes(9.0)]) == []


def test_phi_star_lies_where_the_first_at_either_end_change_places() -> None:
    assert phi_star(PHIS, [lanes(12.0), lanes(10.0), lanes(8.0)]) == "pd from 0.16"
    assert phi_star(PHIS, [lanes(12.0), lanes(11.0), lanes(10.0)]) == "–"


def test_a_break_even_behind_an_overloaded_end_was_not_checked() -> None:
    assert phi_star(PHIS, [ONE, lanes(8.5), lanes(8.0)]) == "not checked"
