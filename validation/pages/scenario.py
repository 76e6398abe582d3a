"""Writes docs/scenario.md from the scenario's schema: every key, its default, and what it means.

    python -m validation scenario_docs

A test holds the page to the schema. Not here: the schema (sim.run.scenario).
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from enum import StrEnum
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from sim.files.json_values import Json
from sim.run.scenario import Scenario

PAGE = Path(__file__).parents[2] / "docs" / "scenario.md"
HEAD = """# The scenario file

YAML, strict: an unknown key is an error with the nearest known one. `--set a.b=c` sets any key by its dotted name, and
the flags of `lanesim compare` set those that `vllm bench serve` has under its names; the last one wins. In Python,
`lanesim.Scenario.of("scenario.yaml", request_rate=8, **{"engine.max_num_seqs": 64})`.

This page is generated from the schema (`python -m validation scenario_docs`).
"""


def documented(struct: type[msgspec.Struct]) -> dict[str, str]:
    """What the source says below each field of `struct`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(struct)))
    body = tree.body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    name = ""
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and name:
            found[name] = " ".join(str(node.value.value).split())
            name = ""
        else:
            name = ""
    return found


def values_of(hint: Any) -> str:
    """The values that a field may have, where they are few."""
    kinds = [
        part for part in getattr(hint, "__args__", (hint,)) if isinstance(part, type) and issubclass(part, StrEnum)
    ]
    return f" One of {', '.join(kinds[0])}." if kinds else ""


def shown(value: Json) -> str:
    if isinstance(value, StrEnum):
        return str(value.value)
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def rows(struct: type[msgspec.Struct], prefix: str) -> list[str]:
    """A table row per key, blocks after the single keys."""
    docs, hints = documented(struct), get_type_hints(struct)
    lines, blocks = [], []
    for field in msgspec.structs.fields(struct):
        hint = hints[field.name]
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            summary = " ".join((inspect.getdoc(hint) or "").split("\n\n")[0].split())
            blocks += ["", f"## `{field.name}`", "", summary, "", "| key | default | meaning |", "| :-- | :-- | :-- |"]
            blocks += rows(hint, f"{prefix}{field.name}.")
            continue
        default = "*required*" if field.default is msgspec.NODEFAULT else f"`{shown(field.default)}`"
        meaning = docs.get(field.name, "").replace("|", "\\|") + values_of(hint)
        lines.append(f"| `{prefix}{field.name}` | {default} | {meaning.strip()} |")
    return lines + blocks


def page() -> str:
    return "\n".join([HEAD, "| key | default | meaning |", "| :-- | :-- | :-- |", *rows(Scenario, "")]) + "\n"


def main() -> None:
    PAGE.write_text(page())
