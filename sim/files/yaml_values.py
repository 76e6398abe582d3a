"""YAML as plain values, by the core schema of YAML 1.2, or one line that says where it is wrong.

PyYAML parses; what its events mean is decided here, since its rules are those of YAML 1.1: there `1:30` is 90,
`010` is 8, `yes` is true and a date is no text. Refused: tags, keys that are no text or stand twice, nesting without
end, several documents, aliases that unfold into more than a file can say, control characters.
Not here: opening files (sim.files.read), what the keys mean.
"""

from __future__ import annotations

import re
from copy import deepcopy
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

from sim.files.json_values import MAX_DEPTH, MAX_WHOLE, Json
from sim.files.read import CONTROL, MAX_CONFIG_BYTES, read_text

if TYPE_CHECKING:
    from yaml.events import Event, ScalarEvent

MAX_VALUES = 100_000
"""Values of one file, aliases unfolded."""
MAX_LITERAL = 40
"""Characters of a number; no double needs more."""

_NULL = re.compile(r"(?:~|null|Null|NULL|)\Z")
_BOOL = re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z")
_WHOLE = re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z")
_REAL = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_INFINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z")
_BASES = {"0o": 8, "0x": 16}


class _Wrong(Exception):
    """(line from 1, what is wrong)."""


def read_yaml(path: str | Path, what: str) -> Json:
    """The value in a YAML file. Raises ValueError naming file, line and key."""
    return parse_yaml(read_text(path, what, max_bytes=MAX_CONFIG_BYTES), f"{what} {str(path)!r}")


def parse_yaml(text: str, where: str) -> Json:
    """The value that `text` spells, null for an empty one; `where` it stands begins every message."""
    import yaml

    try:
        return _Document(text).value()
    except _Wrong as wrong:
        line, problem = wrong.args
        raise ValueError(f"{where} line {line}: {problem}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1 + text.count("\n", 0, getattr(error, "position", None) or 0)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "a character that YAML forbids"
        raise ValueError(f"{where} line {line}: not valid YAML: {problem}") from None


def plain_scalar(text: str) -> Json:
    """Value of an unquoted word under the core schema. Raises ValueError for numbers beyond 64 bits."""
    if _NULL.match(text):
        return None
    if _BOOL.match(text):
        return text[0] in "tT"
    if _WHOLE.match(text):
        if len(text) > MAX_LITERAL or abs(whole := int(text, _BASES.get(text[:2], 10))) > MAX_WHOLE:
            raise ValueError(f"{text[:24]} must be below 2^63")
        return whole
    if _REAL.match(text):
        if len(text) > MAX_LITERAL or abs(real := float(text)) == float("inf"):
            raise ValueError(f"{text[:24]} is no finite number")
        return real
    if _INFINITE.match(text):
        value = float(text.replace(".", ""))
        if isnan(value):
            raise ValueError(f"{text} is no number")
        return value
    return text


def yaml_text(value: Json) -> str:
    """`value` as YAML that reads the same under 1.1 and 1.2: texts that either takes for something else are quoted."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Json) -> bool:
            return True

    Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _REAL, list("-+.0123456789"))
    Dumper.add_implicit_resolver("tag:yaml.org,2002:int", _WHOLE, list("-+0123456789"))
    text: str = yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True)
    return text


class _Document:
    """One document, built from the parser's events."""

    def __init__(self, text: str) -> None:
        import yaml

        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self._events = iter(yaml.parse(text, Loader=loader))
        self._anchored: dict[str, tuple[Json, int]] = {}
        """Value by anchor, and how many values it holds."""
        self._num_values = 0

    def value(self) -> Json:
        from yaml import events

        document: Json = None
        has_one = False
        for event in self._events:
            if isinstance(event, events.DocumentStartEvent):
                if has_one:
                    raise _Wrong(_line(event), "a second document begins. Give one")
                document, has_one = self._node(next(self._events), 0), True
        return document

    def _node(self, event: Event, depth: int) -> Json:
        from yaml import events

        if isinstance(event, events.AliasEvent):
            if event.anchor is None or event.anchor not in self._anchored:
                raise _Wrong(_line(event), f"alias *{event.anchor} stands for nothing above it")
            value, size = self._anchored[event.anchor]
            self._count(event, size)
            return deepcopy(value)
        assert isinstance(event, events.ScalarEvent | events.CollectionStartEvent)
        if event.tag is not None:
            raise _Wrong(_line(event), f"tag {event.tag!r:.60} is not read. Give plain values without tags")
        if depth > MAX_DEPTH:
            raise _Wrong(_line(event), f"nested deeper than {MAX_DEPTH} levels")
        before = self._num_values
        self._count(event, 1)
        if isinstance(event, events.ScalarEvent):
            value = _scalar(event)
        elif isinstance(event, events.SequenceStartEvent):
            value = self._list(depth)
        else:
            value = self._mapping(depth)
        if event.anchor is not None:
            self._anchored[event.anchor] = (value, self._num_values - before)
        return value

    def _list(self, depth: int) -> list[Json]:
        from yaml import events

        values = []
        while not isinstance(event := next(self._events), events.SequenceEndEvent):
            values.append(self._node(event, depth + 1))
        return values

    def _mapping(self, depth: int) -> dict[str, Json]:
        from yaml import events

        values: dict[str, Json] = {}
        while not isinstance(event := next(self._events), events.MappingEndEvent):
            if not isinstance(event, events.ScalarEvent) or event.tag is not None or event.anchor is not None:
                raise _Wrong(_line(event), "a key must be a plain text")
            key = _text(event)
            if key in values:
                raise _Wrong(_line(event), f"key {key!r:.60} stands twice")
            values[key] = self._node(next(self._events), depth + 1)
        return values

    def _count(self, event: Event, values: int) -> None:
        self._num_values += values
        if self._num_values > MAX_VALUES:
            raise _Wrong(_line(event), f"more than {MAX_VALUES} values, aliases unfolded")


def _scalar(event: ScalarEvent) -> Json:
    text = _text(event)
    if not event.implicit[0]:
        return text
    try:
        return plain_scalar(text)
    except ValueError as error:
        raise _Wrong(_line(event), str(error)) from None


def _text(event: ScalarEvent) -> str:
    bad = CONTROL.search(event.value)
    if bad:
        raise _Wrong(_line(event), f"the text {event.value!r:.40} holds a control character. Remove it")
    return event.value


def _line(event: Event) -> int:
    assert event.start_mark is not None
    return event.start_mark.line + 1
