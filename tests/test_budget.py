"""The tree keeps its budget, and each way to get round the budget is found (tests/budget.py)."""

from __future__ import annotations

import subprocess
import warnings
from pathlib import Path

import pytest

from tests.budget import FILE, ROOT, count_ideas, faults, lowered, weigh, weights

BUDGET = """\
total = [{total}, {total}, {total}]
data = ["sim/cells/*"]

[rows]
"sim/large" = [{large}, {large}, {large}]
"sim/small" = [100, 100, 100]

[ideas]
"commands" = 3
"""
IDEAS = {"commands": 3}


def git(root: Path, *args: str) -> None:
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    subprocess.run(["git", *who, "-C", str(root), *args], check=True, capture_output=True)


def commit(root: Path, *, total: int = 1300, large: int = 1200) -> None:
    (root / FILE).write_text(BUDGET.format(total=total, large=large))
    git(root, "add", "--all")
    git(root, "commit", "--allow-empty", "--message", "a change")


def fill(root: Path, name: str, statements: int) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("x = 1\n" * statements)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository of two rows at their ceilings, committed once."""
    git(tmp_path, "init", "--quiet")
    fill(tmp_path, "sim/large/module.py", 1200)
    fill(tmp_path, "sim/small/module.py", 100)
    commit(tmp_path)
    assert faults(tmp_path, IDEAS) == ([], [])
    return tmp_path


def test_every_row_and_every_count_of_ideas_keeps_its_ceiling_and_the_total_never_rose() -> None:
    found, notes = faults(ROOT, count_ideas())
    for note in notes:
        warnings.warn(note, stacklevel=1)
    assert found == []


def test_a_row_above_its_ceiling_fails(tree: Path) -> None:
    fill(tree, "sim/small/module.py", 101)
    assert faults(tree, IDEAS)[0][0].startswith("sim/small, lines: 101 is above its ceiling 100")


def test_a_ceiling_three_percent_too_high_fails_and_one_percent_is_fine(tree: Path) -> None:
    fill(tree, "sim/large/module.py", 1188)
    assert faults(tree, IDEAS)[0] == []
    fill(tree, "sim/large/module.py", 1164)
    assert "run make budget" in faults(tree, IDEAS)[0][0]


@pytest.mark.parametrize("commits_since", [0, 2])
def test_a_total_that_was_raised_fails_however_many_commits_ago(tree: Path, commits_since: int) -> None:
    for _ in range(1 + commits_since):
        commit(tree, total=1310)
    assert sum("above 1300 of an earlier commit" in fault for fault in faults(tree, IDEAS)[0]) == 3


@pytest.mark.parametrize("is_in_merge", [True, False])
def test_a_total_that_only_a_merge_or_only_a_side_branch_lowered_is_the_lowest(tree: Path, is_in_merge: bool) -> None:
    git(tree, "checkout", "--quiet", "-b", "side")
    commit(tree, total=1300 if is_in_merge else 1290)
    git(tree, "checkout", "--quiet", "-")
    fill(tree, "sim/small/other.py", 0)
    git(tree, "add", "--all")
    git(tree, "commit", "--message", "beside it")
    git(tree, "merge", "--no-ff", "--no-commit", "--strategy=ours", "side")
    commit(tree, total=1290 if is_in_merge else 1300)
    commit(tree, total=1300)
    assert any("above 1290 of an earlier commit" in fault for fault in faults(tree, IDEAS)[0])


def test_rows_above_the_total_fail(tree: Path) -> None:
    commit(tree, total=1299)
    assert any("below the sum of the rows, 1300" in fault for fault in faults(tree, IDEAS)[0])


@pytest.mark.parametrize("name", ["sim/new/module.py", "setup.py", "realrun/plan.yaml", "sim/new/templates/page.md"])
def test_a_file_whose_folder_has_no_row_fails(tree: Path, name: str) -> None:
    fill(tree, name, 1)
    git(tree, "add", "--all")
    assert any("no row in budget.toml" in fault for fault in faults(tree, IDEAS)[0])


def test_listed_data_weighs_nothing_but_code_among_it_does(tree: Path) -> None:
    fill(tree, "sim/cells/table.csv", 500)
    git(tree, "add", "--all")
    assert faults(tree, IDEAS)[0] == []
    fill(tree, "sim/cells/module.py", 500)
    git(tree, "add", "--all")
    assert any(fault.startswith("sim/cells") for fault in faults(tree, IDEAS)[0])


def test_ideas_keep_their_counts(tree: Path) -> None:
    assert faults(tree, {"commands": 4})[0] == [
        "commands: 4 is above its ceiling 3; delete code, or take room from another row"
    ]
    assert "run make budget" in faults(tree, {"commands": 2})[0][0]


def test_a_shallow_clone_and_a_tree_without_git_say_what_they_cannot_compare(tree: Path, tmp_path: Path) -> None:
    commit(tree, total=1310)
    git(tree, "clone", "--quiet", "--depth", "1", f"file://{tree}", str(tmp_path / "shallow"))
    found, notes = faults(tmp_path / "shallow", IDEAS)
    assert found == []
    assert "shallow clone" in notes[0]
    (tmp_path / "shallow/.git").rename(tmp_path / "shallow/.gone")
    assert "without git" in faults(tmp_path / "shallow", IDEAS)[1][0]


def test_lowering_takes_ceilings_and_total_down_and_only_a_named_row_up(tree: Path) -> None:
    fill(tree, "sim/large/module.py", 1100)
    fill(tree, "sim/small/module.py", 150)
    text, counted = (tree / FILE).read_text(), weights(tree, ())
    assert lowered(text, counted, IDEAS) == BUDGET.format(total=1250, large=1100)
    moved = lowered(text, counted, IDEAS, ["sim/small"])
    assert moved == BUDGET.format(total=1250, large=1100).replace("[100, 100, 100]", "[150, 150, 150]")


@pytest.mark.parametrize(
    ("name", "text", "weight"),
    [
        ("a.py", '"""Doc."""\n\n# why\nx = 1  # why\n', (1, 2, 2)),
        ("a.py", 'x = 1\n"""Unit\nof it."""\n', (1, 2, 2)),
        ("a.py", 'x = """\n# kept\n"""\n', (3, 1, 1)),
        ("a.py", "x = [y if y else 0 for y in map(lambda z: z, ())]\n", (1, 1, 4)),
        ("a.py", f"x = '{'y' * 201}'\n", (1, 2, 2)),
        ("a.py", f"x = f'{{z}}{'y' * 201}'\n", (1, 2, 2)),
        ("a.py", f"'{'y' * 201}'\n", (0, 1, 1)),
        ("a.c", "/* what;\n */\nint x; // why;\n\nint y;\n", (2, 2, 2)),
        ("a.yaml", "x: 1\n\ny: 2\n", (1, 1, 1)),
        ("a.json", "x" * 1200, (5, 5, 5)),
    ],
)
def test_a_file_weighs_what_can_be_summed_by_hand(name: str, text: str, weight: tuple[int, int, int]) -> None:
    assert weigh(name, text) == weight
