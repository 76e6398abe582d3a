"""Ways to damage a file: bytes, lines, words, and values of a parsed one; and a limit on what reads it."""

from __future__ import annotations

import io
import json
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

WORDS = (
    *("NaN", "Infinity", "-1", "0", "1e999", "1e300", "-0.0", "null", "true", '""', "[]", "{}", "9" * 400, "[/x]"),
    *("9223372036854775808", "-9223372036854775809", "1:30", "010", "&a [*a]", "*a", '!!int ""', "!!bool foo", "<<: x"),
    *("\\u001b[31m", "\x1b[2J", "\x00", "? [a, b]", "---\n", "\n", "\r", ",", '"', "[" * 200, '{"a":' * 200, "\\ud800"),
    *("../../etc/passwd", "/dev/zero", "a\x00b", "%s%n", "é", "\ufeff", "1e-320", "0x1f", "inf", "2023-13-45", "yes"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1e300, -1e-300, 2**63, -(2**70), "", "x", "[/x]", "\x1b[31m", "\ud800", [], {}, [[]]),
    *([1, 2, 3], {"a": 1}, 10**400, "9" * 400, "/dev/zero", 0.5, "1", ["x"], 2**62),
)


class TooLong(BaseException):
    """More time than was allowed; no error that a command would answer to."""


@contextmanager
def at_most(seconds: float, timer: int) -> Iterator[None]:
    """Raises TooLong after so many seconds of the processor, or of the clock, as `timer` of the signal module says."""

    def stop(*_: object) -> None:
        raise TooLong(f"longer than {seconds:g} s")

    number = {signal.ITIMER_PROF: signal.SIGPROF, signal.ITIMER_REAL: signal.SIGALRM}[timer]
    before = signal.signal(number, stop)
    signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, 0.0)
        signal.signal(number, before)


def damaged(content: bytes, name: str, rng: random.Random) -> bytes:
    """`content` of a file called `name`, one to three times damaged."""
    ways: list[Callable[[bytes, random.Random], bytes]] = [_bytes, _lines, _words]
    if name.endswith((".json", ".jsonl")):
        ways += [_json, _json, _json]
    if name.endswith(".parquet"):
        ways = [_bytes, _parquet, _parquet, _parquet]
    for _ in range(rng.choice((1, 1, 2, 3))):
        content = rng.choice(ways)(content, rng)
    return content


def _bytes(content: bytes, rng: random.Random) -> bytes:
    """A byte replaced, all behind a place or a few dropped, or some put in: new ones or those that are there."""
    if not content:
        return rng.randbytes(rng.randrange(40))
    at = rng.randrange(len(content))
    num_dropped, put = rng.choice(
        (
            (1, rng.randbytes(1)),
            (len(content), b""),
            (rng.randrange(1, 50), b""),
            (0, rng.randbytes(rng.randrange(1, 8))),
            (0, content[at : at + rng.randrange(1, 200)]),
        )
    )
    return content[:at] + put + content[at + num_dropped :]


def _lines(content: bytes, rng: random.Random) -> bytes:
    """A line dropped, doubled, behind another one, or without its end."""
    lines = content.splitlines(keepends=True) or [b""]
    at = rng.randrange(len(lines))
    line = lines[at]
    lines[at : at + 1] = rng.choice(([], [line, line], [rng.choice(lines), line], [line.rstrip(b"\r\n")]))
    return b"".join(lines)


def _words(content: bytes, rng: random.Random) -> bytes:
    word = rng.choice(WORDS).encode("utf-8", "surrogatepass")
    starts = [i for i, byte in enumerate(content) if byte in b' ,:[{\n"'] or [0]
    at = rng.choice(starts) + 1
    end = next((i for i in range(at, len(content)) if content[i] in b',:]}\n"'), at)
    return content[:at] + word + content[end if rng.random() < 0.7 else at :]


def _json(content: bytes, rng: random.Random) -> bytes:
    """One value of one document, or of one line, replaced, renamed, dropped or doubled."""
    try:
        lines = content.decode().splitlines() if b"\n{" in content else [content.decode()]
        at = rng.randrange(len(lines))
        value = json.loads(lines[at])
        places = list(_places(value))
        if not places:
            return _words(content, rng)
        holder, key = rng.choice(places)
        how = rng.randrange(6)
        if how == 0:
            del holder[key]
        elif how == 1 and isinstance(holder, dict):
            holder[str(key)[:-1]] = holder.pop(key)
        elif how == 2 and isinstance(holder, list):
            holder.append(holder[key])
        else:
            holder[key] = rng.choice(VALUES)
        lines[at] = json.dumps(value)
    except (ValueError, RecursionError):
        return _bytes(content, rng)
    return "\n".join(lines).encode("utf-8", "surrogatepass") + b"\n" * content.endswith(b"\n")


def _places(value: Any) -> Any:
    keys: Any = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _parquet(content: bytes, rng: random.Random) -> bytes:
    """One column dropped, renamed, of another type or with other values; or fewer rows, or none."""
    try:
        table = pq.read_table(io.BytesIO(content))
        table.validate(full=True)
        _ = table.column_names
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return _bytes(content, rng)
    if not table.num_columns:
        return _bytes(content, rng)
    at = rng.randrange(table.num_columns)
    name = table.column_names[at]
    how = rng.randrange(5)
    if how == 0:
        table = table.drop_columns([name])
    elif how == 1:
        table = table.rename_columns([f"{each}x" if each == name else each for each in table.column_names])
    elif how == 2:
        table = table.slice(0, rng.randrange(3))
    else:
        value = rng.choice((None, float("nan"), float("inf"), -1.0, -5, 2**62, "x", "\x1b[2J", [], [-1], [None], True))
        values = table[name].to_pylist()
        if how == 3 or not values:
            values = [value] * table.num_rows
        else:
            values[rng.randrange(len(values))] = value
        try:
            table = table.set_column(at, name, pa.array(values))
        except (pa.ArrowException, TypeError, OverflowError):
            table = table.set_column(at, name, pa.array([str(each) for each in values]))
    return parquet_of(table)


def parquet_of(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()
