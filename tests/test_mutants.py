"""The lists of mutants still fit the modules that they change; applying them is `make mutation`."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.mutants import ROOT, Target, targets

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
