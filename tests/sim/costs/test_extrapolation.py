"""What was extrapolated is data: the largest of each size, merged over blocks and processes."""

from __future__ import annotations

import warnings

import pytest

from sim.costs.extrapolation import Extrapolation, Largest, OutsideProfileWarning, collecting, pass_on
from sim.costs.forms.build import build_costs
from sim.interface.work import Kind, Work
from tests.sim.costs.table_points import table


def step(context_tokens: int) -> Work:
    return Work(kind=Kind.STEP, rows=1, row_tokens=1, context_tokens=context_tokens, head_rows=1)


def test_the_largest_of_many_works_is_collected_and_nothing_is_warned_of() -> None:
    with warnings.catch_warnings(), collecting() as found:
        warnings.simplefilter("error")
        for costs in (build_costs(table()), build_costs(table())):
            for context_tokens in (1000, 5000, 3000):
                costs.cost(step(context_tokens))
    profile = table().name
    assert found.largest == {(profile, "row_context_tokens"): Largest(5000, 110, 1)}
    assert str(found) == f"{profile}: contexts to 5,000 extrapolated, measured to 110 at 1 row"


def test_a_block_within_another_keeps_its_own() -> None:
    with collecting() as outer:
        with collecting() as inner:
            build_costs(table()).cost(step(5000))
        assert inner.largest
    assert not outer.largest
    assert str(outer) == ""


def test_what_another_process_found_is_merged_in_any_order() -> None:
    parts = [Largest(9, 4, 2), Largest(12, 8, 1), Largest(12, 6, 3)]
    lines = set()
    for order in (parts, parts[::-1]):
        with collecting() as found:
            for part in order:
                one = Extrapolation()
                one.add("gpu/model", "rows", part)
                pass_on(one)
        lines.add(str(found))
    assert lines == {"gpu/model: rows to 12 extrapolated, measured to 6"}


def test_without_a_block_it_is_warned_of_in_words_that_do_not_change() -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for context_tokens in (1000, 5000):
            build_costs(table()).cost(step(context_tokens))
    assert len({str(warning.message) for warning in heard}) == 1
    one = Extrapolation()
    one.add("gpu/model", "rows", Largest(9, 4, 2))
    with pytest.warns(OutsideProfileWarning, match="rows beyond the largest measured"):
        pass_on(one)
