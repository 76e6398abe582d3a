"""A server on loopback that breaks one rule at a time: each way is a generator of what it sends and how long it waits.

Bounded: no way sends more than MAX_BYTES or outlives the server. All that is not broken is sound.
"""

from __future__ import annotations

import gzip
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain, repeat
from typing import Any

MAX_BYTES = 64 << 20
TOKEN_S = 0.002
Pieces = Iterator[bytes | float]
"""Bytes to send, seconds to wait."""
Way = Callable[[int], Pieces]
"""Of the tokens that are asked for, 0 where none are."""
CLOSING = b"Connection: close\r\n"


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


class HostileServer:
    """Answers `path` by `way`, after `sound` sound answers there; everything else soundly."""

    def __init__(
        self,
        path: str = "",
        way: Way | None = None,
        *,
        sound: int = 0,
        broken: int = 1 << 30,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self._trust = trust
        self.path, self.way, self.sound, self.broken = path, way, sound, broken
        self.heads: list[bytes] = []
        self.has_broken = threading.Event()
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while not self._stopped.is_set():
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(60.0)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(OSError), ExitStack() as stack:
            stack.enter_context(connection)
            if self._trust is not None:
                connection = stack.enter_context(self._trust.wrap_socket(connection, server_side=True))
            while (request := self._request(connection)) is not None:
                keeps = False
                num_bytes = 0
                for piece in self._answer(*request):
                    if self._stopped.is_set() or num_bytes > MAX_BYTES:
                        return
                    if isinstance(piece, float):
                        self._stopped.wait(piece)
                        continue
                    keeps = keeps or (piece.startswith(b"HTTP/") and CLOSING not in piece)
                    num_bytes += len(piece)
                    connection.sendall(piece)
                if not keeps:
                    return

    def _request(self, connection: socket.socket) -> tuple[str, int] | None:
        """The path of the next request and the tokens that it asks for; None where none comes."""
        text = b""
        while b"\r\n\r\n" not in text:
            if not (block := connection.recv(65536)):
                return None
            text += block
        first, _, body = text.partition(b"\r\n\r\n")
        lengths = [line.split(b":")[1] for line in first.split(b"\r\n") if line.lower().startswith(b"content-length")]
        while len(body) < int(lengths[0] if lengths else 0):
            if not (block := connection.recv(65536)):
                return None
            body += block
        self.heads.append(first)
        return first.split()[1].decode(), json.loads(body)["max_tokens"] if body else 0

    def _answer(self, path: str, tokens: int) -> Pieces:
        with self._lock:
            count = self._counts.get(path, 0)
            self._counts[path] = count + 1
        if self.way is not None and path == self.path and self.sound <= count < self.sound + self.broken:
            self.has_broken.set()
            return self.way(tokens)
        if path == "/v1/models":
            return whole('{"data": [{"id": "tiny"}]}')(tokens)
        if path == "/v1/completions" and self.path != "/v1/chat/completions":
            return stream()(tokens)
        return whole("{}", "404 Not Found")(tokens)


@contextmanager
def hostile(path: str = "", way: Way | None = None, **how: Any) -> Iterator[HostileServer]:
    server = HostileServer(path, way, **how)
    try:
        yield server
    finally:
        server.stop()
