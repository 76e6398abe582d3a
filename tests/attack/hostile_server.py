"""A server on loopback that breaks one rule at a time: each way is a generator of what it sends and how long it waits.

All that is not broken is sound (tests.calibrate.server.test_probe).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from typing import Any

from tests.calibrate.server.test_probe import Pieces, Server, Way, serving

TOKEN_S = 0.002


def head(status: str = "200 OK", *fields: str, kind: str = "application/json", keeps: bool = False) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", *([] if keeps else ["Connection: close"]), *fields]
    return "\r\n".join([*lines, "", ""]).encode()


def whole(body: str | bytes, status: str = "200 OK", *fields: str) -> Way:
    content = body.encode() if isinstance(body, str) else body
    return lambda tokens: iter([head(status, f"Content-Length: {len(content)}", *fields) + content])


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


def event(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


DONE = b"data: [DONE]\n\n"


def stream(
    token: Any = None, *, last: Any = None, has_usage: bool = True, done: bytes = DONE, ends: bool = True
) -> Way:
    """A sound stream, but for what is given; `last` comes before the usage."""

    def sent(tokens: int) -> Pieces:
        yield head("200 OK", "Transfer-Encoding: chunked", kind="text/event-stream", keeps=True)
        for _ in range(tokens):
            yield TOKEN_S
            yield chunk(event({"choices": [{"text": "a "}]} if token is None else token))
        if last is not None:
            yield chunk(event(last))
        if has_usage:
            yield chunk(event({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": tokens}}))
        if done:
            yield chunk(done)
        yield b"0\r\n\r\n" if ends else 60.0

    return sent


def raw(first: bytes, *then: bytes | float, forever: bytes | float | None = None) -> Way:
    """Those pieces, the last of them without end."""
    return lambda tokens: chain((first,), then, repeat(forever) if forever is not None else ())


def drip(content: bytes, each_s: float = 0.05) -> Way:
    """A byte at a time, the last one without end."""

    def sent(tokens: int) -> Pieces:
        for number in range(len(content)):
            yield content[number : number + 1]
            yield each_s
        while True:
            yield content[-1:]
            yield each_s

    return sent


def collected(tokens: int) -> Pieces:
    """All of a stream at once, as a proxy that buffers it sends it."""
    pieces = [piece for piece in stream()(tokens) if isinstance(piece, bytes)]
    yield pieces[0]
    yield 0.05
    yield b"".join(pieces[1:])


def bomb(num_bytes: int = 64 << 20) -> bytes:
    return gzip.compress(bytes(num_bytes), 1)


@contextmanager
def hostile(path: str = "", way: Way | None = None, **how: Any) -> Iterator[Server]:
    is_chat = path == "/v1/chat/completions"
    with serving(way_path=path, way=way, is_chat=is_chat, prompt_tokens=4, **how) as server:
        yield server
