"""JSON as plain values, or one line that says where it is wrong: file, line and key.

Stricter than the standard library: nothing nested without end, no key twice, no NaN, no number that a 64-bit one cannot
hold, no control characters in texts (a terminal would obey them). Where something is wrong the text is walked a second
time, slowly, to name the place.
Not here: opening files (sim.files.read), what the values mean.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from sim.files.read import CONTROL, MAX_BYTES, MAX_TABLE_BYTES, lines_of, read_text

MAX_DEPTH = 64
"""Lists and objects inside each other; ours are four deep."""
MAX_WHOLE = 2**63 - 1
"""Counts and seeds go into tables of 64-bit numbers."""
T = TypeVar("T")

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},]|-?(?:[0-9][0-9.eE+-]*|Infinity)|NaN')
_COLON = re.compile(r"\s*:")
_NOT_BRACKETS = bytes(set(range(256)) - set(b'[]{}"'))
_SUSPECT = re.compile(
    r"\\u00(?:0[0-8bBcCeEfF]|1[0-9a-fA-F]|7[fF]|[89][0-9a-fA-F])|\\[bf]|\\u[dD][89a-fA-F]|[\x7f-\x9f\ud800-\udfff]"
)
"""May be the spelling of a control character or of half a pair."""


class _Doubt(Exception):
    """Something is wrong that the parser lets pass; the slow walk says where."""


class _Token(NamedTuple):
    path: str
    """As msgspec has it: $.points[3].rows."""
    offset: int
    text: str
    is_key: bool
    inside: int
    """Where the list or object around it begins."""


def read_json(path: str | Path, what: str, *, max_bytes: int = MAX_BYTES, has_prose: bool = False) -> Any:
    """The value in a JSON file. Raises ValueError naming file, line and key."""
    return parse_json(read_text(path, what, max_bytes=max_bytes), f"{what} {str(path)!r}", has_prose=has_prose)


def json_lines(
    path: str | Path, what: str, *, max_bytes: int = MAX_TABLE_BYTES, has_prose: bool = False
) -> Iterator[tuple[int, Any]]:
    """The value on each line that is not blank, and the line's number."""
    for number, line in lines_of(path, what, max_bytes=max_bytes):
        if line.strip():
            yield number, parse_json(line, f"{what} {str(path)!r}", number, has_prose=has_prose)


def parse_json(text: str, where: str, line: int | None = None, *, has_prose: bool = False) -> Any:
    """The value that `text` spells; `where` it stands begins every message, `line` is given for one line of a file.

    `has_prose`: its texts are counted and never shown, and may hold any character.

    >>> parse_json('{"a": [1, 2.5, null]}', "note")
    {'a': [1, 2.5, None]}
    """
    try:
        if text.count("[") + text.count("{") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
            raise ValueError(f"{where}{_at(text, 0, line)}: nested deeper than {MAX_DEPTH} levels")
        value = _DECODER.decode(text)
        if not has_prose and _SUSPECT.search(text):
            _refuse_faults(text, where, line)
    except json.JSONDecodeError as error:
        problem = error.msg[0].lower() + error.msg[1:]
        raise ValueError(f"{where}{_at(text, error.pos, line)}: not valid JSON: {problem}") from None
    except (_Doubt, RecursionError):
        _refuse_faults(text, where, line)
        raise ValueError(f"{where}{_at(text, 0, line)}: not valid JSON") from None
    return value


def convert(value: Any, kind: type[T], where: str, text: str | None = None) -> T:
    """`value` checked to be a `kind`; with the `text` it was parsed from, errors name the line, too."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        problem, _, path = str(error).partition(" - at `")
        path = path.rstrip("`")
        line = "" if text is None or not path else _at(text, _offset_of(text, path), None)
        key = f"{path.removeprefix('$').removeprefix('.')}: " if path not in ("", "$") else ""
        raise ValueError(f"{where}{line}: {key}{problem[:1].lower()}{problem[1:]}{_hint(problem, kind)}") from None


def _depth(text: str) -> int:
    """How deep brackets stand inside each other, up to one more than MAX_DEPTH."""
    data = text.encode("utf-8", "replace").replace(b"\\\\", b"").replace(b'\\"', b"")
    # What is left outside of strings are brackets alone; every pass takes away the innermost ones.
    rest = b"".join(data.translate(None, _NOT_BRACKETS).split(b'"')[::2])
    depth = 0
    while depth <= MAX_DEPTH and (b"[]" in rest or b"{}" in rest):
        rest = rest.replace(b"[]", b"").replace(b"{}", b"")
        depth += 1
    return depth + rest.count(b"[") + rest.count(b"{")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Doubt
    return found


def _whole(text: str) -> int:
    if len(text) > 18 and not _is_whole(text):
        raise _Doubt
    return int(text)


def _is_whole(text: str) -> bool:
    return len(text) <= 20 and -MAX_WHOLE - 1 <= int(text) <= MAX_WHOLE


def _real(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise _Doubt
    return value


def _constant(text: str) -> Any:
    raise _Doubt


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_int=_whole, parse_float=_real, parse_constant=_constant)


def _tokens(text: str) -> Iterator[_Token]:
    """Keys, texts, numbers and the beginnings of lists and objects, each with its path; as far as the text goes."""
    stack: list[tuple[str, int, int]] = [("$", 0, -1)]
    """Path of each open list or object, where it begins, and the place in a list, -1 in an object."""
    key = ""
    for found in _TOKEN.finditer(text):
        token, offset = found[0], found.start()
        around, inside, place = stack[-1]
        path = around if len(stack) == 1 else f"{around}.{key}" if place < 0 else f"{around}[{place}]"
        if token in "]}":
            if len(stack) > 1:
                stack.pop()
        elif token == ",":
            if place >= 0:
                stack[-1] = (around, inside, place + 1)
        elif token in "[{":
            yield _Token(path, offset, token, False, inside)
            stack.append((path, offset, 0 if token == "[" else -1))
        else:
            is_key = place < 0 < len(stack) - 1 and token[0] == '"' and _COLON.match(text, found.end()) is not None
            if is_key:
                key = token[1:-1]
                path = f"{around}.{key}"
            yield _Token(path, offset, token, is_key, inside)


def _refuse_faults(text: str, where: str, line: int | None) -> None:
    """Raise ValueError for the first thing that the parser lets pass and we do not."""
    seen: set[tuple[int, str]] = set()
    for path, offset, token, is_key, inside in _tokens(text):
        problem = None
        if token[0] == '"':
            content = json.loads(token, strict=False)
            bad = CONTROL.search(content)
            if bad:
                problem = f"holds the control character {bad[0]!a}; remove it"
            elif is_key and (inside, content) in seen:
                problem = "stands twice"
            elif is_key:
                seen.add((inside, content))
        elif token in ("NaN", "Infinity", "-Infinity"):
            problem = f"{token} is no number of JSON; want null or a finite one"
        elif token not in "[{":
            is_integer = token.lstrip("-").isdigit()
            if is_integer and not _is_whole(token):
                problem = f"{token:.24} must be below 2^63"
            elif not is_integer and not _is_finite(token):
                problem = f"{token:.24} is no finite number"
        if problem:
            name = path.removeprefix("$").removeprefix(".")
            key = f"{'key ' if is_key else ''}{name[-80:]!r} " if name else ""
            raise ValueError(f"{where}{_at(text, offset, line)}: {key}{problem}")


def _is_finite(token: str) -> bool:
    try:
        return isfinite(float(token))
    except ValueError:
        return False


def _at(text: str, offset: int, line: int | None) -> str:
    number = text.count("\n", 0, offset) + 1 if line is None else line
    return f" line {number}"


def _offset_of(text: str, path: str) -> int:
    """Where the value at `path` begins, or the closest thing around it that has a place."""
    path = path.partition("[...]")[0]
    found = 0
    for token in _tokens(text):
        if token.path == path:
            return token.offset
        if path.startswith(token.path) and not token.is_key:
            found = token.offset
    return found


def _hint(problem: str, kind: Any) -> str:
    """The nearest valid key for msgspec's message on an unknown one."""
    match = re.search(r"unknown field `([^`]+)`", problem)
    nearest = get_close_matches(match[1], sorted(set(_keys(kind))), n=1, cutoff=0.5) if match else []
    return f"; did you mean {nearest[0]!r}?" if nearest else ""


def _keys(kind: Any) -> Iterator[str]:
    """All keys of a struct and of the structs inside it."""
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return
    for field in msgspec.structs.fields(kind):
        yield field.encode_name
        for part in getattr(field.type, "__args__", (field.type,)):
            yield from _keys(part)
