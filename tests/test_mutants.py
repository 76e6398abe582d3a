"""The lists of mutants still fit the modules that they change, and drawn ones are what they say; applying either is
`make mutation` and `make mutation-drawn`."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import PurePath

import pytest

from tests.mutants import ROOT, Target, targets
from tests.mutants.drawn import changes, draw, rooms

TARGETS = targets()
FEWEST = 20


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.module)
def test_every_mutant_changes_one_place_of_its_module_and_leaves_python(target: Target) -> None:
    for mutant in target.mutants:
        ast.parse(target.mutated(mutant))
    assert max(Counter((mutant.old, mutant.new) for mutant in target.mutants).values()) == 1
    assert len(target.mutants) >= FEWEST
    assert all(mutant.old != mutant.new for mutant in target.mutants)
    assert all(mutant.note or mutant.equivalent for mutant in target.mutants)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.module)
def test_the_tests_of_a_module_are_there(target: Target) -> None:
    assert target.tests
    assert [name for name in target.tests if not (ROOT / name).is_file()] == []


def test_there_is_one_list_per_module() -> None:
    assert len({target.module for target in TARGETS}) == len(TARGETS)


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
    """400 draws of some forty rooms are about ten each; three folders hold nothing that can change."""
    drawn = Counter(str(PurePath(change.module).parent) for change in draw(400, "some commit"))
    assert set(drawn) == set(rooms()) - {"calibrate", "realrun", "lanesim"}
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
