"""Pages of docs: Markdown templates, filled with frames and sentences.

A template is a file of validation/templates, a `string.Template`: all of a page's fixed prose lies there. Not here:
what a page shows, which its program computes.
"""

from __future__ import annotations

import re
from pathlib import Path
from string import Template
from typing import Any

TEMPLATES = Path(__file__).with_name("templates")
MISSING = "–"
"""Text of a cell without a value."""
_FIGURE = re.compile(r"[-+−<>~]?[\d–]|$")


def page(path: Path, template: str, **parts: Any) -> str:
    """Text of the page, written to `path`; `$name` of templates/`template`.md is the part called `name`.

    A part is a pandas frame (a table), a list of texts (bullets), or a text. Raises KeyError where the template names
    a part that is not given, ValueError where a given one is in none of its lines.
    """
    form = Template((TEMPLATES / f"{template}.md").read_text())
    if unused := parts.keys() - set(form.get_identifiers()):
        raise ValueError(f"template {template!r} has no ${', $'.join(sorted(unused))}")
    text = form.substitute({name: _shown(part) for name, part in parts.items()}).strip() + "\n"
    path.write_text(text)
    return text


def markdown(frame: Any) -> str:
    """Table of a pandas frame without its index, no line break at the end; columns of figures stand to the right.

    >>> from pandas import DataFrame
    >>> print(markdown(DataFrame({"policy": ["pd", "pdv"], "gain, %": ["+1.5", None]})))
    | policy | gain, % |
    | :-- | --: |
    | pd | +1.5 |
    | pdv | – |
    """
    cells = frame.astype(object).where(frame.notna(), MISSING).map(str)
    marks = ["--:" if all(map(_FIGURE.match, column)) else ":--" for _, column in cells.items()]
    lines = [list(map(str, cells.columns)), marks, *cells.itertuples(index=False)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _shown(part: Any) -> str:
    if isinstance(part, str):
        return part
    return "\n".join(f"- {line}" for line in part) if isinstance(part, list) else markdown(part)
