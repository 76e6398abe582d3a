"""What plug-ins and callers hand in is taken or refused in one line that says what was got and what is wanted."""

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


def refused(check: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(PluginError) as error:
        check("it", *arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (KeyError("a b"), "KeyError: 'a b'"),
        (ValueError("two\n  lines"), "ValueError: two lines"),
        (SystemExit(0), "SystemExit: 0"),
    ],
)
def test_an_exception_of_a_plugin_names_it_is_one_line_and_does_not_end_its_caller(
    error: BaseException, told: str
) -> None:
    with pytest.raises(PluginError) as caught, naming_plugin("policy 'mine'"):
        raise error
    assert (str(caught.value), caught.value.__cause__) == (f"policy 'mine': {told}", error)


def test_the_innermost_plugin_is_named_once() -> None:
    with (
        pytest.raises(PluginError, match=r"^acceptance 'x': TypeError: no$"),
        naming_plugin("policy 'mine'"),
        naming_plugin("acceptance 'x'"),
    ):
        raise TypeError("no")


def test_an_interrupt_is_no_exception_of_a_plugin() -> None:
    with pytest.raises(KeyboardInterrupt), naming_plugin("policy 'mine'"):
        raise KeyboardInterrupt


def test_a_value_is_shown_on_one_line_of_sixty_characters_at_most() -> None:
    assert shown("short") == "'short'"
    assert shown(np.zeros((2, 2))) == "array([[0., 0.], [0., 0.]])"
    assert shown("x" * 100) == "'" + "x" * 59


@pytest.mark.parametrize("name", ["a", "7b", "my_policy-2.1+x", "n" * 100])
def test_a_name_for_lists_tables_and_files_is_taken(name: str) -> None:
    assert checked_name("it", name) == name


@pytest.mark.parametrize("name", ["", "-a", "a b", "a,b", "a/b", "a\n", "n" * 101, 7, None, "ä"])
def test_another_name_is_refused(name: object) -> None:
    assert refused(checked_name, name) == (f"it {shown(name)}: want a name of letters, digits and _ . + -, at most 100")


def test_a_text_has_no_control_characters() -> None:
    assert checked_text("it", "tab\tand line\nare none") == "tab\tand line\nare none"
    assert refused(checked_text, "\x1b[31m") == "it='\\x1b[31m': want a text without control characters"
    assert refused(checked_text, 7) == "it=7: want a text without control characters"


@pytest.mark.parametrize("value", [2, 5, np.int64(3)])
def test_a_count_within_its_ends_is_taken(value: Any) -> None:
    found = checked_count("it", value, 2, 5)
    assert (found, type(found)) == (value, int)


@pytest.mark.parametrize("value", [1, 6, True, 3.0, "3", None, nan])
def test_a_count_beyond_its_ends_or_of_another_type_is_refused(value: object) -> None:
    assert refused(checked_count, value, 2, 5) == f"it={value!r} must be at least 2 and at most 5, a whole number"


def test_counts_are_checked_one_by_one() -> None:
    assert refused(checked_count, 2**31 + 1, 0).endswith("at most 2147483648, a whole number")
    assert checked_counts("it", np.array([2, 5]), 2, 5) == [2, 5]
    assert refused(checked_counts, [2, 9], 2, 5).startswith("it=9 must be")
    assert refused(checked_counts, [2**31 + 1], 0).startswith("it=2147483649 must be at least 0 and at most 2147483648")
    assert checked_counts("it", [2**31], 0) == [2**31]


def test_reals_lie_between_their_ends_which_are_none_of_them() -> None:
    assert checked_reals("it", (0.5, np.float32(0.25), 1), 0.0, 2.0) == [0.5, 0.25, 1.0]
    for value in (0.0, 2.0, nan, inf, True, "1"):
        wanted = f"it: {value!r} must be a number above 0 and below 2"
        assert refused(checked_reals, [1.0, value], 0.0, 2.0) == wanted


def test_a_list_is_anything_of_several_but_a_text() -> None:
    assert checked_list("it", (each for each in "ab")) == ["a", "b"]
    for value in ("ab", b"ab", 7, None):
        assert refused(checked_list, value) == f"it={value!r}: want a list"
