"""The writer of docs/scenario.md from the scenario's schema: every key, its default and its meaning.

    python -m validation scenario_docs

A test holds the page to the schema. Not here: the schema (sim.run.scenario).
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from sim.files.json_values import Json
from sim.run.scenario import Scenario, field_types, is_block
from validation.tables import markdown, page

PAGE = Path(__file__).parents[2] / "docs" / "scenario.md"
REQUIRED = ("profile", "policy")
COLUMNS = ["key", "default", "meaning"]


def documented(block: type) -> dict[str, str]:
    """Docstrings below the fields of `block` and of those that it inherits from, by field."""
    texts: dict[str, str] = {}
    for kind in block.__mro__:
        if kind.__module__.startswith("sim."):
            (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
            assert isinstance(body, ast.ClassDef)
            for field, text in pairwise(body.body):
                if isinstance(text, ast.Expr) and isinstance(field, ast.AnnAssign):
                    texts.setdefault(ast.unparse(field.target), " ".join(str(ast.literal_eval(text.value)).split()))
    return texts


def values_of(hint: Any) -> str:
    """The values that a field may have, where they are few."""
    kinds = [
        part for part in getattr(hint, "__args__", (hint,)) if isinstance(part, type) and issubclass(part, StrEnum)
    ]
    return f" One of {', '.join(kinds[0])}." if kinds else ""


def shown(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def tables(block: type = Scenario, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Name, summary and frame of keys of `block` and of each block in it, outer ones first."""
    import pandas as pd

    docs, rows, blocks = documented(block), [], []
    defaults = json.loads(msgspec.json.encode(block() if prefix else Scenario(profile="", policy=("x",))))
    for name, hint in field_types(block).items():
        if is_block(hint):
            blocks.append((f"{prefix}{name}", hint))
            continue
        default = "*required*" if name in REQUIRED else f"`{shown(defaults[name])}`"
        meaning = docs.get(name, "").replace("|", "\\|") + values_of(hint)
        rows.append([f"`{prefix}{name}`", default, meaning.strip()])
    summary = " ".join((inspect.getdoc(block) or "").split("\n\n")[0].split())
    yield f"## `{prefix.removesuffix('.').rpartition('.')[2]}`\n\n{summary}", pd.DataFrame(rows, columns=COLUMNS)
    for name, inner in blocks:
        yield from tables(inner, f"{name}.")


def main(out: Path = PAGE) -> None:
    (_, keys), *blocks = tables()
    page(out, "scenario", keys=keys, blocks="".join(f"\n{head}\n\n{markdown(frame)}\n" for head, frame in blocks))
