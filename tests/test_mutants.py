"""Drawn mutants are what they say; applying them is `make mutation-drawn`."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import PurePath

from tests.mutants.__main__ import changes, draw, rooms
from tests.mutants.scratch import ROOT


def test_drawn_mutants_are_those_of_their_seed_and_leave_python() -> None:
    drawn = draw(30, "some commit")
    assert drawn == draw(30, "some commit")
    assert drawn != draw(30, "another commit")
    assert len(set(drawn)) == 30
    for change in drawn:
        text = (ROOT / change.module).read_text()
        mutated = change.apply(text)
        assert ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(text))
        assert mutated.count("\n") <= text.count("\n")


def test_every_room_is_drawn_from() -> None:
    """400 draws of some forty rooms are about ten each; one folder holds nothing that can change."""
    drawn = Counter(str(PurePath(change.module).parent) for change in draw(400, "some commit"))
    assert set(drawn) == set(rooms()) - {"realrun"}
    assert max(drawn.values()) < 30


def test_what_a_line_can_become() -> None:
    text = """def f(a: int = 3, *, b: str = "+") -> int:
    if a < 2 and a:  # 2 < 3
        g(a)
    return min(a, 1.5)
"""
    assert {change.apply(text).splitlines()[change.line - 1].strip() for change in changes("f.py", text)} == {
        'def f(a: int = 4, *, b: str = "+") -> int:',
        "if not (a < 2 and a):  # 2 < 3",
        "if a <= 2 and a:  # 2 < 3",
        "if a < 3 and a:  # 2 < 3",
        "if a < 2 or a:  # 2 < 3",
        "pass",
        "return None",
        "return max(a, 1.5)",
        "return min(a, 3.0)",
    }
