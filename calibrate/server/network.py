"""The only place that calls a server: one address, every answer within a deadline and a number of bytes.

`stop` shuts the sockets down, so that whatever waits in another thread ends at once. Answers are requested as they
are: compressed ones are refused, and redirects are answers like any other. The address's host and port alone are
called; proxies of the environment are for other addresses than one to measure. A key goes into one header and is
blotted out of every message. Not here: what an answer means (calibrate.server.endpoint).
"""

from __future__ import annotations

import io
import json
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, cast
from urllib.parse import urlsplit

from sim.files.json_values import Json
from sim.files.read import printable

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

CONNECT_S = 10.0
TIMEOUT_S = 300.0
"""Longest from sending a request to the last byte of its answer: a server may load its model meanwhile."""
LINGER_S = 0.05
"""Longest that a stream may take to end after its last event; its connection is used again if it does."""
MAX_IDLE_S = 2.0
"""Longest that a connection is kept between two answers: uvicorn, under vLLM and SGLang, ends it after 5 seconds, at
the same moment as somebody may ask again."""
READ_BYTES = 1 << 16
MAX_LINE_BYTES = 1 << 18
MAX_SHOWN = 200
"""Characters of an answer in a message."""
PORTS = {"http": 80, "https": 443}
NOT_YET = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
T = TypeVar("T")


class RequestFailed(ValueError):
    """A request without a sound answer."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(where, reason)
        self.where, self.reason = where, reason

    def __str__(self) -> str:
        return f"{self.where} {self.reason}"


class Late(RequestFailed):
    """A request that had no whole answer within its deadline: another one would wait as long."""


class _Stopped(Exception):
    """The client was stopped while a request waited."""


class _Broken(Exception):
    """An answer that breaks a bound."""


class _Expired(Exception):
    """A deadline passed."""


class _Wire(io.RawIOBase):
    """A socket that connects, reads and writes until a deadline, and reads at most so many bytes."""

    def __init__(self, kind: int, wires: set[_Wire], stopped: threading.Event, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.bytes_left = 0
        self.waits = 0
        """Number of times that there was nothing to read yet."""
        self.received_s = 0.0
        """When the last bytes came, on the clock of time.perf_counter."""
        self._stopped, self._wires = stopped, wires
        self._socket = socket.socket(kind, socket.SOCK_STREAM)
        wires.add(self)

    def connect(self, address: tuple[str | int | bytes, ...], trust: ssl.SSLContext | None, host: str) -> None:
        self._timed(lambda: self._socket.connect(address))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if trust is not None:
            secured = trust.wrap_socket(self._socket, server_hostname=host, do_handshake_on_connect=False)
            self._socket = secured
            self._timed(secured.do_handshake)

    def sendall(self, data: bytes) -> None:
        """Send all of `data`; http.client calls it."""
        self._timed(lambda: self._socket.sendall(data))

    def makefile(self, mode: str) -> io.BufferedReader:
        """A buffered reader of the answer; http.client calls it."""
        return io.BufferedReader(self, READ_BYTES)

    def close(self) -> None:
        """Nothing: http.client calls it while the answer is still being read, and `end` closes."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        self._left_s()
        self._socket.setblocking(False)
        try:
            count = self._socket.recv_into(buffer)
        except NOT_YET:
            self.waits += 1
            count = self._timed(lambda: self._socket.recv_into(buffer))
        if self._stopped.is_set():
            raise _Stopped
        self.received_s = time.perf_counter()
        self.bytes_left -= count
        if self.bytes_left < 0:
            raise _Broken("answers with more bytes than are read")
        return count

    def is_idle(self) -> bool:
        """Nothing has come, its end neither, since the last answer, a moment ago."""
        self._socket.setblocking(False)
        try:
            self._socket.recv(1)
        except NOT_YET:
            return time.perf_counter() - self.received_s < MAX_IDLE_S
        except OSError:
            return False
        return False

    def halt(self) -> None:
        """Have whatever waits for it in another thread wait no longer."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        self._wires.discard(self)
        self._socket.close()

    def _left_s(self) -> float:
        """Seconds until the deadline, more than 0."""
        if self._stopped.is_set():
            raise _Stopped
        if (left_s := self.deadline_s - time.monotonic()) <= 0.0:
            raise _Expired
        return left_s

    def _timed(self, operate: Callable[[], T]) -> T:
        self._socket.settimeout(self._left_s())
        try:
            return operate()
        except TimeoutError:
            raise _Expired from None
        finally:
            if self._stopped.is_set():
                raise _Stopped


class Reply:
    """One answer while it is read. Its methods raise RequestFailed."""

    def __init__(self, client: Client, path: str, wire: _Wire, response: HTTPResponse) -> None:
        self._client, self._path, self._wire, self._response = client, path, wire, response
        self.status = response.status

    @property
    def received_s(self) -> float:
        return self._wire.received_s

    @property
    def waits(self) -> int:
        """Number of times that there was nothing to read yet: what comes between two of them came at once."""
        return self._wire.waits

    @property
    def is_reusable(self) -> bool:
        has_ended = self._response.isclosed() or self._response.length == 0
        return has_ended and not self._response.will_close

    def text(self) -> str:
        """The whole body."""
        blocks = list(iter(lambda: self._response.read1(READ_BYTES), b""))
        if self._response.length:
            raise _Broken("breaks its answer off")
        return b"".join(blocks).decode("utf-8", "replace")

    def lines(self) -> Iterator[str]:
        """Lines without their ends; what follows the last end is none."""
        while (line := self._response.readline(MAX_LINE_BYTES + 1)).endswith(b"\n"):
            yield line.rstrip(b"\r\n").decode("utf-8", "replace")
        if len(line) > MAX_LINE_BYTES:
            raise _Broken(f"answers with a line of more than {MAX_LINE_BYTES} bytes")

    def linger(self) -> None:
        """Wait a moment for the end of a body whose content has ended."""
        self._wire.deadline_s = min(self._wire.deadline_s, time.monotonic() + LINGER_S)
        with suppress(_Expired, _Broken, OSError, HTTPException, ValueError):
            self._response.read()

    def refusal(self) -> RequestFailed:
        """Text of a status other than 200."""
        shown = f"answers {self.status}"
        if 300 <= self.status < 400:
            to = self._response.headers.get("location", "")
            return self._client.failure(self._path, f"{shown}: redirects are not followed: {to}")
        text = self._response.read(READ_BYTES).decode("utf-8", "replace").strip()
        return self._client.failure(self._path, f"{shown}: {text}" if text else shown)


class Client:
    """Calls one address, from any number of threads. Raises ValueError where its host is unknown."""

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S, key: str | None = None) -> None:
        self.url = url
        self.timeout_s = timeout_s
        self._key = key
        parts = urlsplit(url)
        self._trust = ssl.create_default_context() if parts.scheme == "https" else None
        self._host, self._port = parts.hostname or "", parts.port or PORTS[parts.scheme]
        self._prefix = parts.path
        self._stopped = threading.Event()
        self._wires: set[_Wire] = set()
        self._idle: deque[_Wire] = deque()
        try:
            self._addresses = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise self.failure("", f"cannot be reached: {getattr(error, 'strerror', None) or error}") from None

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        for wire in self._wires.copy():
            wire.end()

    def stop(self) -> None:
        """Have whatever waits in other threads end; nothing is called after it."""
        self._stopped.set()
        for wire in self._wires.copy():
            wire.halt()

    def failure(self, path: str, reason: str, kind: type[RequestFailed] = RequestFailed) -> RequestFailed:
        """The server's words as part of one line: short, printable and without the key."""
        if self._key:
            reason = reason.replace(self._key, "***")
        return kind(f"{self.url}{path}", printable(reason[: 4 * MAX_SHOWN])[:MAX_SHOWN])

    @contextmanager
    def ask(self, path: str, body: Mapping[str, Json] | None = None, *, max_bytes: int) -> Iterator[Reply]:
        """GET `path` below the address, or POST `body` as JSON there. Of the answer, head and body, at most
        `max_bytes` are read, until `timeout_s`. Raises RequestFailed."""
        deadline_s = time.monotonic() + self.timeout_s
        headers = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "lanesim"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            content = json.dumps(body).encode()
        wire = self._wire(deadline_s)
        is_reusable = False
        try:
            wire.deadline_s, wire.bytes_left = deadline_s, max_bytes
            http = HTTPConnection(self._host, self._port)
            http.default_port = PORTS["http" if self._trust is None else "https"]
            http.sock = cast(socket.socket, wire)
            http.request("GET" if content is None else "POST", self._prefix + path, content, headers)
            response = http.getresponse()
            encoding = response.headers.get("content-encoding", "identity")
            if encoding.strip().lower() not in ("", "identity"):
                raise _Broken(f"answers in {encoding}, which was not requested")
            answer = Reply(self, path, wire, response)
            yield answer
            is_reusable = answer.is_reusable
        except _Expired:
            raise self.failure(
                path, f"gave no whole answer within {self.timeout_s:g} s (server.timeout_s)", Late
            ) from None
        except _Broken as error:
            raise self.failure(path, str(error)) from None
        except (OSError, HTTPException) as error:
            problem = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise self.failure(path, f"breaks the connection off: {problem}") from None
        finally:
            if is_reusable:
                self._idle.append(wire)
            else:
                wire.end()

    def _wire(self, deadline_s: float) -> _Wire:
        """One that is left from an answer before, or a new one."""
        while self._idle:
            with suppress(IndexError):
                wire = self._idle.pop()
                if wire.is_idle():
                    return wire
                wire.end()
        failure = self.failure("", "has no address")
        for kind, _, _, _, address in self._addresses:
            wire = _Wire(kind, self._wires, self._stopped, min(deadline_s, time.monotonic() + CONNECT_S))
            try:
                wire.connect(address, self._trust, self._host)
            except _Expired:
                failure = self.failure("", f"takes no connection within {min(CONNECT_S, self.timeout_s):g} s", Late)
            except OSError as error:
                failure = self.failure("", f"cannot be reached: {error.strerror}")
            else:
                return wire
            wire.end()
        raise failure
