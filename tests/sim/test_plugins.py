"""What plug-ins and callers hand in is taken or refused in one line that says what was got and what is wanted.

Not here: what a user does to meet these checks (tests/attack/test_misuse.py).
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from sim.plugins import (
    PluginError,
    checked_count,
    checked_counts,
    checked_list,
    checked_name,
    checked_reals,
    checked_text,
    naming_plugin,
    shown,
)


def test_an_exception_is_one_line_that_names_the_innermost_plugin_and_an_interrupt_is_none() -> None:
    error = ValueError("two\n  lines")
    with pytest.raises(PluginError) as caught, naming_plugin("policy 'mine'"), naming_plugin("acceptance 'x'"):
        raise error
    assert (str(caught.value), caught.value.__cause__) == ("acceptance 'x': ValueError: two lines", error)
    with pytest.raises(KeyboardInterrupt), naming_plugin("policy 'mine'"):
        raise KeyboardInterrupt


CHECKS: list[tuple[Callable[..., Any], tuple[float, ...], list[Any], list[Any]]] = [
    (checked_name, (), ["a", "7b", "my_policy-2.1+x", "n" * 100],
     ["", "-a", "a b", "a,b", "a/b", "a\n", "n" * 101, 7, None, "ä"]),
    (checked_text, (), ["tab\tand line\nare none"], ["\x1b[31m", 7]),
    (checked_count, (2, 5), [2, 5, np.int64(3)], [1, 6, True, 3.0, "3", None, nan]),
    (checked_count, (0,), [2**31], [2**31 + 1]),
    (checked_counts, (2, 5), [[2, 5], np.array([2, 5])], [[2, 9], 3]),
    (checked_counts, (0,), [[2**31]], [[2**31 + 1]]),
    (checked_reals, (0.0, 2.0), [(0.5, np.float32(0.25), 1)], [[1.0, end] for end in (0.0, 2.0, nan, inf, True, "1")]),
    (checked_list, (), [("a", "b"), np.arange(3)], ["ab", b"ab", 7, None]),
]  # fmt: skip
"""Each check, its ends, what it takes and what it refuses."""


@pytest.mark.parametrize(("check", "ends", "taken", "refused"), CHECKS)
def test_a_value_is_taken_as_pythons_own_or_refused_in_one_short_line(
    check: Callable[..., Any], ends: tuple[float, ...], taken: list[Any], refused: list[Any]
) -> None:
    for value in taken:
        found = check("it", value, *ends)
        assert np.array_equal(found, value)
        assert type(found) in (int, str, list)
    for value in refused:
        with pytest.raises(PluginError, match=r"\Ait[ =:].{1,150}\Z"):
            check("it", value, *ends)


def test_a_value_is_shown_on_one_line_of_sixty_characters_at_most() -> None:
    assert [shown(np.zeros((2, 2))), shown("x" * 100)] == ["array([[0., 0.], [0., 0.]])", "'" + "x" * 59]
