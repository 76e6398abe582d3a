"""JSON as plain values, or one line that says where it is wrong: file, and line or key.

Stricter than the standard library: nothing nested without end, no key twice, no NaN, no number that a 64-bit one cannot
hold, no control characters in texts (a terminal would obey them). A fault is left where it stands, to name the key.
Not here: opening files (sim.files.read), what the values mean.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from threading import local
from typing import NamedTuple, TypeAlias, TypeVar

import msgspec

from sim.files.read import CONTROL, MAX_BYTES, lines_of, read_text

MAX_DEPTH = 64
"""Lists and objects inside each other; ours are four deep."""
MAX_WHOLE = 2**63 - 1
"""Counts and seeds go into tables of 64-bit numbers."""
RETIRED = "prompt_launch_s"
"""A key of older profiles: 0 is read as if it were not there."""
T = TypeVar("T")
Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
"""Values that a JSON text can hold."""

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b'[]{}"'))
_SUSPECT = re.compile(
    r"\\u00(?:0[0-8bBcCeEfF]|1[0-9a-fA-F]|7[fF]|[89][0-9a-fA-F])|\\[bf]|\\u[dD][89a-fA-F]|[\x7f-\x9f\ud800-\udfff]"
)
"""May be the spelling of a control character or of half a pair."""


class _Fault(NamedTuple):
    """Something wrong that the standard library lets pass, in place of the value."""

    text: str


_met = local()
"""`faults` of the text that this thread reads."""


def read_json(path: str | Path, what: str, *, max_bytes: int = MAX_BYTES, has_prose: bool = False) -> Json:
    """The value in a JSON file. Raises ValueError naming file and key, or line."""
    return parse_json(read_text(path, what, max_bytes=max_bytes), f"{what} {str(path)!r}", has_prose=has_prose)


def json_lines(path: str | Path, what: str, *, has_prose: bool = False) -> Iterator[tuple[int, Json]]:
    """The value on each line that is not blank, and the line's number."""
    for number, line in lines_of(path, what):
        if line.strip():
            yield number, parse_json(line, f"{what} {str(path)!r}", number, has_prose=has_prose)


def parse_json(text: str, where: str, line: int | None = None, *, has_prose: bool = False) -> Json:
    """The value that `text` spells; `where` it stands begins every message, `line` is given for one line of a file.

    `has_prose`: another program's file. Its texts are counted and never shown, and may hold any character; its
    Infinity is "inf", and its NaN is None.
    """
    if line is not None:
        where = f"{where} line {line}"
    try:
        if text.count("[") + text.count("{") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
            raise RecursionError
        _met.faults = []
        value: Json = _DECODERS[has_prose].decode(text)
        if _met.faults or (not has_prose and _SUSPECT.search(text)):
            _refuse_faults(value, where)
    except json.JSONDecodeError as error:
        at = f" line {error.lineno}" if line is None else ""
        raise ValueError(f"{where}{at}: not valid JSON: {error.msg[0].lower()}{error.msg[1:]}") from None
    except RecursionError:
        raise ValueError(f"{where}: nested deeper than {MAX_DEPTH} levels") from None
    return value


def value_at(value: Json, path: str) -> Json:
    """The value under keys joined by dots; None where there is none.

    >>> value_at({"ttft": {"mean": 3.0}}, "ttft.mean")
    3.0
    """
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def leaves(block: Mapping[str, Json], prefix: str = "") -> Iterator[tuple[str, Json]]:
    """Every key of nested blocks, dotted, and its value; null for an empty block."""
    for key, value in block.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", None if value == {} else value


def convert(value: Json, kind: type[T], where: str) -> T:
    """`value` checked to be a `kind`. Raises ValueError naming the key, and the number that stands there.

    >>> from typing import Annotated
    >>> convert([1, 0], list[Annotated[int, msgspec.Meta(ge=1)]], "note")
    Traceback (most recent call last):
    ...
    ValueError: note: [1]: expected `int` >= 1, got 0
    """
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        problem, _, path = str(error).partition(" - at `")
        if f"`{RETIRED}`" in problem and (newer := _without_retired(value)) != value:
            return convert(newer, kind, where)
        path = path.rstrip("`").removeprefix("$").removeprefix(".")
        key = f"{path}: " if path else ""
        told = f"{problem[:1].lower()}{problem[1:]}{_given(value, path, problem)}{_hint(problem, kind)}"
        raise ValueError(f"{where}: {key}{told}") from None


def _without_retired(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _without_retired(held) for key, held in value.items() if key != RETIRED or held}
    return [_without_retired(held) for held in value] if isinstance(value, list) else value


def _given(value: Json, path: str, problem: str) -> str:
    """The number at `path`, where msgspec does not say it and the way there is known."""
    if ", got " in problem or "[...]" in path:
        return ""
    for name, index in _STEP.findall(path):
        if index and isinstance(value, Sequence) and int(index) < len(value):
            value = value[int(index)]
        elif isinstance(value, Mapping) and name in value:
            value = value[name]
        else:
            return ""
    return f", got {value:.12g}" if isinstance(value, int | float) else ""


def _depth(text: str) -> int:
    """Depth of nested brackets, up to one more than MAX_DEPTH."""
    data = text.encode("utf-8", "replace").replace(b"\\\\", b"").replace(b'\\"', b"")
    # What is left outside of strings are brackets alone; every pass takes away the innermost ones.
    rest = b"".join(data.translate(None, _NOT_BRACKETS).split(b'"')[::2])
    depth = 0
    while depth <= MAX_DEPTH and (b"[]" in rest or b"{}" in rest):
        rest = rest.replace(b"[]", b"").replace(b"{}", b"")
        depth += 1
    return depth + rest.count(b"[") + rest.count(b"{")


def _fault(text: str) -> _Fault:
    _met.faults.append(text)
    return _Fault(text)


def _pairs(pairs: list[tuple[str, Json]]) -> dict[str, Json] | _Fault:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        twice = next(name for index, (name, _) in enumerate(pairs) if any(name == key for key, _ in pairs[:index]))
        return _fault(f"key {twice[-80:]!r} stands twice")
    return mapping


def _whole(text: str) -> int | _Fault:
    if len(text) > 18 and not (len(text) <= 20 and -MAX_WHOLE - 1 <= int(text) <= MAX_WHOLE):
        return _fault(f"{text:.24} must be below 2^63")
    return int(text)


def _real(text: str) -> float | _Fault:
    value = float(text)
    return value if isfinite(value) else _fault(f"{text:.24} is no finite number")


def _constant(text: str) -> _Fault:
    return _fault(f"{text} is no number of JSON. Give null or a finite one")


def _foreign_constant(text: str) -> str | _Fault | None:
    """A closed loop's request_rate, which SGLang writes as Infinity and vLLM as "inf"; NaN is a mean of nothing."""
    return None if text == "NaN" else "inf" if text == "Infinity" else _constant(text)


_DECODERS = {
    has_prose: json.JSONDecoder(object_pairs_hook=_pairs, parse_int=_whole, parse_float=_real, parse_constant=constant)
    for has_prose, constant in ((False, _constant), (True, _foreign_constant))
}
"""By `has_prose`."""


def _refuse_faults(value: Json | _Fault, where: str, path: str = "") -> None:
    """Raise ValueError for the first thing in `value` that the standard library lets pass and we do not."""
    key = f"{path[-80:]!r} " if path else ""
    if isinstance(value, _Fault):
        raise ValueError(f"{where}: {key}{value.text}")
    if isinstance(value, str) and (bad := CONTROL.search(value)):
        raise ValueError(f"{where}: {key}holds the control character {bad[0]!a}. Remove it")
    if isinstance(value, list):
        for index, each in enumerate(value):
            _refuse_faults(each, where, f"{path}[{index}]")
    elif isinstance(value, dict):
        for name, each in value.items():
            if bad := CONTROL.search(name):
                raise ValueError(f"{where}: {key}a key holds the control character {bad[0]!a}. Remove it")
            _refuse_faults(each, where, f"{path}.{name}".removeprefix("."))


def _hint(problem: str, kind: type) -> str:
    """The nearest valid key for msgspec's message on an unknown one."""
    match = re.search(r"unknown field `([^`]+)`", problem)
    nearest = get_close_matches(match[1], sorted(set(_keys(kind))), n=1, cutoff=0.5) if match else []
    return f". Did you mean {nearest[0]!r}?" if nearest else ""


def _keys(kind: type, outer: Sequence[type] = ()) -> Iterator[str]:
    """All keys of a struct and of the structs inside it, one of its own kind left out."""
    if kind in outer or not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return
    for field in msgspec.structs.fields(kind):
        yield field.encode_name
        for part in getattr(field.type, "__args__", (field.type,)):
            yield from _keys(part, (*outer, kind))
