"""Rules of the workflows: what runs is named by commit or digest, and who may publish does nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TOOLS = ROOT / ".github" / "release-tools.txt"
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+\Z")
PUBLISHING = ("actions/download-artifact@", "actions/deploy-pages@", "pypa/gh-action-pypi-publish@")
"""Actions of a job that may publish: it is handed what another job built."""


def read(workflow: Path) -> Any:
    return yaml.safe_load(workflow.read_text())


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_every_action_is_pinned_by_its_commit_with_its_version_beside_it(workflow: Path) -> None:
    used = re.findall(r"uses: (.*)", workflow.read_text())
    assert used
    assert [action for action in used if not PINNED.match(action)] == []


def test_an_action_has_one_commit_everywhere() -> None:
    used = {action for workflow in WORKFLOWS for action in re.findall(r"uses: (.*)", workflow.read_text())}
    assert len(used) == len({action.partition("@")[0] for action in used})


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_only_a_job_that_publishes_what_another_built_gets_an_identity(workflow: Path) -> None:
    """A workflow as a whole may read and no more; who may write runs no command and checks nothing out."""
    whole = read(workflow)
    assert whole["permissions"] == {"contents": "read"}
    for job in whole["jobs"].values():
        if "permissions" not in job:
            continue
        assert job["needs"]
        assert all("run" not in step and step["uses"].startswith(PUBLISHING) for step in job["steps"])


def test_a_release_is_built_by_tools_whose_digests_are_known() -> None:
    build = read(ROOT / ".github" / "workflows" / "release.yml")["jobs"]["build"]
    commands = [step["run"] for step in build["steps"] if "run" in step]
    (install,) = [command for command in commands if "pip install" in command]
    assert f"--require-hashes --only-binary :all: -r {TOOLS.relative_to(ROOT)}" in install
    assert "make dist BUILD=--no-isolation" in commands
    names = []
    for line in re.sub(r"#.*\n", "", TOOLS.read_text()).replace("\\\n", " ").splitlines():
        name, _, digest = re.fullmatch(r"(\S+)==(\S+) +--hash=sha256:([0-9a-f]{64})", line).groups()  # type: ignore[union-attr]
        names.append(name)
        assert digest
    assert {"build", "setuptools", "twine", "wheel"} <= set(names)


def test_a_job_that_runs_the_suite_fetches_the_history_that_the_budget_is_compared_with() -> None:
    jobs = [job["steps"] for workflow in WORKFLOWS for job in read(workflow)["jobs"].values()]
    whole = [
        steps for steps in jobs if any(re.search(r"make test(?!-)|\.ci/run", step.get("run", "")) for step in steps)
    ]
    assert len(whole) == 3
    assert [steps[0]["with"] for steps in whole] == [{"fetch-depth": 0}] * 3
