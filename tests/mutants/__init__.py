"""Hand-made mutants: changes of one line that some test must notice, one list (TOML) per module beside this file.

`python -m tests.mutants` applies them and counts (docs/testing.md). Not here: the tests that kill them.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """`old`, which occurs exactly once in the module, becomes `new`."""

    old: str
    new: str
    note: str = ""
    equivalent: str | None = None
    """Why no test can tell it from the original; such a mutant is not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A module, the test files that belong to it, and its mutants."""

    module: str
    tests: tuple[str, ...]
    mutants: tuple[Mutant, ...]

    def mutated(self, mutant: Mutant, tree: Path = ROOT) -> str:
        """The text of the module in `tree` with `mutant`. Raises ValueError where the list no longer fits it."""
        text = (tree / self.module).read_text()
        if text.count(mutant.old) != 1:
            raise ValueError(f"{self.module}: {mutant.old!r} occurs {text.count(mutant.old)} times; want it once")
        return text.replace(mutant.old, mutant.new)


def targets() -> list[Target]:
    """All lists, by module."""
    found = []
    for path in sorted(FOLDER.glob("*.toml")):
        raw = tomllib.loads(path.read_text())
        mutants = tuple(Mutant(**mutant) for mutant in raw["mutant"])
        found.append(Target(module=raw["module"], tests=tuple(raw["tests"]), mutants=mutants))
    return sorted(found, key=lambda target: target.module)
