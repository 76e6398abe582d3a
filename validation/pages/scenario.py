"""Writes docs/scenario.md from the scenario's schema: every key, its default, and what it means.

    python -m validation scenario_docs

A test holds the page to the schema. Not here: the schema (sim.run.scenario).
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from sim.files.json_values import Json
from sim.run.scenario import Scenario
from validation.page import markdown, page

PAGE = Path(__file__).parents[2] / "docs" / "scenario.md"
COLUMNS = ["key", "default", "meaning"]


def documented(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Docstrings below the fields of `struct`, by field."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(struct)))
    body = tree.body[0]
    assert isinstance(body, ast.ClassDef)
    texts: dict[str, str] = {}
    name = ""
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and name:
            texts[name] = " ".join(str(node.value.value).split())
            name = ""
        else:
            name = ""
    return texts


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


def tables(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Name, summary and frame of keys of `struct` and of each block in it, outer ones first."""
    import pandas as pd

    docs, hints = documented(struct), get_type_hints(struct)
    rows, blocks = [], []
    for field in msgspec.structs.fields(struct):
        hint = hints[field.name]
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            blocks.append((f"{prefix}{field.name}", hint))
            continue
        default = "*required*" if field.default is msgspec.NODEFAULT else f"`{shown(field.default)}`"
        meaning = docs.get(field.name, "").replace("|", "\\|") + values_of(hint)
        rows.append([f"`{prefix}{field.name}`", default, meaning.strip()])
    summary = " ".join((inspect.getdoc(struct) or "").split("\n\n")[0].split())
    yield f"## `{prefix.removesuffix('.').rpartition('.')[2]}`\n\n{summary}", pd.DataFrame(rows, columns=COLUMNS)
    for name, block in blocks:
        yield from tables(block, f"{name}.")


def main(out: Path = PAGE) -> None:
    (_, keys), *blocks = tables(Scenario)
    page(out, "scenario", keys=keys, blocks="".join(f"\n{head}\n\n{markdown(frame)}\n" for head, frame in blocks))
