"""A probe of a server on loopback: what it counts, how many it keeps in flight, and what it says of servers that fail.

The server answers from a script; nothing is timed but what the script holds back.
"""

from __future__ import annotations

import json
import shlex
import signal
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from calibrate.cli.fit import source_command
from calibrate.cli.validate_server import fit_command
from calibrate.served.as_sent import closed_loop
from calibrate.served.line import LONE_REQUESTS
from calibrate.served.load import ServedRequest
from calibrate.served.readers import read_looks
from calibrate.server.endpoint import find, send, slots, stream
from calibrate.server.network import Client, RequestFailed
from sim.cli.main import run
from sim.interface.request import Request
from tests.calibrate.served.test_reports import look

MAX_BYTES = 64 << 20
Pieces = Iterator[bytes | float]
"""Bytes to send, seconds to wait."""
Way = Callable[[int], Pieces]
"""Of the tokens that are asked for, 0 where none are."""


class Server(ThreadingHTTPServer):
    """Counts what it is asked; waits `first_s` before the first token of each answer and `piece_s` before each piece.
    Answers `way_path` by `way`, if there is one, after `sound` sound answers there and for `broken` ones.
    As it is asked for the one numbered `stop_at`, whoever probes is interrupted, and it answers no more: however busy
    the machine is, no load ends before the interrupt comes."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        *,
        is_chat: bool = False,
        is_strict: bool = False,
        has_metrics: bool = False,
        answer: str | None = None,
        first_s: float = 0.0,
        prompt_tokens: int = 70,
        stop_at: int | None = None,
        usage_tokens: int | None = None,
        words_are_tokens: bool = False,
        props: str | None = None,
        port: int = 0,
        piece_s: float = 0.002,
        way_path: str = "",
        way: Way | None = None,
        sound: int = 0,
        broken: int = 1 << 30,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        if trust is not None:
            self.socket = trust.wrap_socket(self.socket, server_side=True)
        self.way_path, self.way, self.turns = way_path, way, range(sound, sound + broken)
        self.turn = 0
        """Requests of `way_path` so far."""
        self.heads: list[str] = []
        self.has_broken, self.has_ended = threading.Event(), threading.Event()
        self.piece_s = piece_s
        self.is_chat, self.is_strict, self.has_metrics, self.answer = is_chat, is_strict, has_metrics, answer
        self.first_s, self.prompt_tokens, self.stop_at = first_s, prompt_tokens, stop_at
        self.words_are_tokens, self.props = words_are_tokens, props
        self.usage_tokens = usage_tokens
        """Tokens that it says it wrote, where these are not those it was asked for."""
        self.asked: list[dict[str, Any]] = []
        self.now = self.most = self.streams = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def _breaks(self, tokens: int) -> bool:
        """Answer by the server's way where it is its turn: bytes to send, and seconds to wait, of at most MAX_BYTES."""
        self.server.heads.append(str(self.headers))
        if self.server.way is None or self.path != self.server.way_path:
            return False
        with self.server.lock:
            self.server.turn += 1
            if self.server.turn - 1 not in self.server.turns:
                return False
        self.server.has_broken.set()
        self.close_connection, num_bytes = True, 0
        for piece in self.server.way(tokens):
            if self.server.has_ended.is_set() or num_bytes > MAX_BYTES:
                self.close_connection = True
                break
            if isinstance(piece, float):
                self.server.has_ended.wait(piece)
                continue
            if piece.startswith(b"HTTP/"):
                self.close_connection = b"Connection: close" in piece
            num_bytes += len(piece)
            self.wfile.write(piece)
        return True

    def _reply(self, code: int, text: str, kind: str = "application/json") -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def handle(self) -> None:
        with suppress(OSError, json.JSONDecodeError):  # A client may leave before its body is there.
            super().handle()

    def do_GET(self) -> None:
        if self._breaks(0):
            return
        if self.path == "/v1/models":
            self._reply(200, json.dumps({"data": [{"id": "tiny"}]}))
        elif self.path == "/metrics" and self.server.has_metrics:
            served = self.server.streams
            drafts = (2 * served, served) if served else (0, 0)
            self._reply(200, look(served, 40 * served, drafts=2 * served, accepted=drafts), "text/plain")
        elif self.path == "/props" and self.server.props is not None:
            self._reply(200, self.server.props)
        else:
            self._reply(404, "{}")

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._breaks(asked["max_tokens"]):
            return
        if self.server.is_chat != self.path.endswith("/chat/completions"):
            self._reply(404, "{}")
            return
        if self.server.is_strict and "ignore_eos" in asked:
            self._reply(422, "{}")
            return
        if self.server.answer is not None:
            self._reply(500, self.server.answer)
            return
        with self.server.lock:
            self.server.asked.append(asked)
            self.server.now += 1
            self.server.most = max(self.server.most, self.server.now)
            if len(self.server.asked) == self.server.stop_at:
                signal.raise_signal(signal.SIGINT)
        if self.server.stop_at is not None and len(self.server.asked) >= self.server.stop_at:
            self.rfile.read(1)  # Nothing comes but the end of the connection.
            self.close_connection = True
            return
        self._stream(asked)
        with self.server.lock:
            self.server.now -= 1
            self.server.streams += 1

    def _stream(self, asked: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        # Several tokens a piece, as a server that speculates sends them.
        pieces = max(1, asked["max_tokens"] // 2)
        threading.Event().wait(self.server.first_s)
        for _ in range(pieces):
            threading.Event().wait(self.server.piece_s)
            choice = {"delta": {"content": "a b"}} if self.server.is_chat else {"text": "a b"}
            self._chunk(f"data: {json.dumps({'choices': [choice]})}\n\n")
        words = len(asked.get("prompt", "").split())
        usage = {
            "prompt_tokens": words if self.server.words_are_tokens else self.server.prompt_tokens,
            "completion_tokens": self.server.usage_tokens or asked["max_tokens"],
        }
        self._chunk(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n")
        self._chunk("")

    def _chunk(self, text: str) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(text.encode()), text.encode()))


@contextmanager
def serving(**how: Any) -> Iterator[Server]:
    server = Server(**how)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.has_ended.set()
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(("is_chat", "is_strict"), [(False, False), (False, True), (True, False), (True, True)])
def test_a_loop_keeps_its_streams_in_flight_and_counts_the_servers_tokens(is_chat: bool, is_strict: bool) -> None:
    requests = [Request(index, str(index), 0.0, 8, 16) for index in range(20)]
    sent: list[ServedRequest] = []
    with serving(is_chat=is_chat, is_strict=is_strict) as server, Client(server.url) as client:
        endpoint = find(client, None)
        assert (endpoint.model, endpoint.is_chat, endpoint.is_strict) == ("tiny", is_chat, is_strict)
        send(client, endpoint, requests, words_per_token=1.0, block_tokens=16, max_concurrency=4, on_sent=sent.append)
    assert server.most == 4
    assert len(server.asked) == 1 + 20
    found = closed_loop(4, 0, sent)
    assert (found.concurrency, found.lengths, found.accepted) == (4.0, (70.0, 16.0), None)
    assert found.measured["tpot_ms"] >= 7 * 2.0 / 15
    prompts = [asked["messages"][0]["content"] if is_chat else asked["prompt"] for asked in server.asked]
    assert len(set(prompts)) == len(prompts)


@pytest.mark.parametrize(
    ("props", "at_once"),
    [
        ('{"total_slots": 4, "chat_template": "a\\nb"}', 4),
        ('{"total_slots": 0}', None),
        ("<html>", None),
        ("{}", None),
        (None, None),
    ],
)
def test_slots_are_those_of_llama_cpp(props: str | None, at_once: int | None) -> None:
    with serving(props=props) as server, Client(server.url) as client:
        assert slots(client) == at_once


def test_a_usage_of_fewer_tokens_than_the_stream_has_pieces_is_refused() -> None:
    with serving(usage_tokens=2) as server, Client(server.url) as client:
        endpoint = find(client, None)
        message = "says in its usage that it wrote 2 tokens, and its stream has 8 pieces of text"
        with pytest.raises(RequestFailed, match=message):
            stream(client, endpoint, "river", 16)


def test_a_probe_warms_up_goes_by_turns_and_predicts_the_largest_load(tmp_path: Path) -> None:
    with serving(words_are_tokens=True) as server:
        flags = ["--set", "server.levels=1,2,3", "--set", "server.rounds=2"]
        flags += ["--input-len", "8", "--output-len", "4", "--profile", "cpu/tiny", "--json", str(tmp_path / "r.json")]
        flags += ["--out", str(tmp_path / "m.json")]
        done = CliRunner().invoke(fit_command, [server.url, *flags])
    assert done.exit_code == 0, done.output
    looked, warm_up, alone, counted = 2, 2 * 3, LONE_REQUESTS, 2 * 3 * 12
    assert len(server.asked) == looked + warm_up + alone + counted
    result = json.loads((tmp_path / "r.json").read_text())
    assert {"step_s", "gap_s"} & {each["constant"] for each in result["constants"]}
    assert result["verdict"].startswith(("This server is ", "The simulator does not fit this server"))
    assert [each["concurrency"] for each in result["levels"]] == [1.0, 2.0, 3.0]
    held = result["held_back"]
    metrics = {"ttft_ms", "tpot_ms", "output_throughput"}
    assert held["concurrency"] == 3
    assert set(held["measured"]) == set(held["errors_pct"]) == set(held["spreads_pct"]) == metrics
    again = [str(tmp_path / "m.measured.json"), "--profile", "cpu/tiny", "--json", "-"]
    fitted_again = CliRunner().invoke(source_command, again)
    assert json.loads(fitted_again.stdout) | {"next": ""} == result | {"next": ""}


SHORT = ["--set", "server.levels=1,2,3", "--input-len", "8", "--output-len", "4"]
WARM_UP = 2 + 2 * 3 + LONE_REQUESTS
"""Requests before the first round: one to look for the endpoint, one that tells how many tokens a word has."""


def command_that_fits(told: str) -> list[str]:
    """The command that the message names."""
    _, _, command = told.partition("To fit them: lanesim ")
    return shlex.split(command.strip().rstrip(")"))


def test_what_was_measured_is_kept_where_the_fit_fails_and_can_be_fitted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prompts that no memory holds: nothing can be fitted. With the number put right it can, without the server."""
    monkeypatch.chdir(tmp_path)
    with serving(prompt_tokens=5_000_000) as server:
        told = ["--set", "server.rounds=1", "--profile", "cpu/tiny", "--out", "mine.json"]
        assert run(["validate", server.url, "--fit-only", *SHORT, *told]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "1 of 1 rounds are in 'mine.measured.json'" in message
    again = command_that_fits(message)
    told = ["--profile", "cpu/tiny", "--out", "mine.json"]
    assert again == ["calibrate", "fit", "mine.measured.json", *told]
    kept = tmp_path / "mine.measured.json"
    assert [each.concurrency for each in read_looks(kept).rounds] == [1.0, 2.0, 3.0]
    kept.write_text(kept.read_text().replace("5000000", "70"))
    assert run([*again, "--json", "r.json"]) == 0
    result = json.loads((tmp_path / "r.json").read_text())
    assert (result["held_back"]["concurrency"], len(result["levels"])) == (3, 3)
    assert (tmp_path / "mine.json").is_file()


def test_an_interrupted_probe_keeps_its_whole_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    one_round = 3 * 12
    with serving(stop_at=WARM_UP + one_round + 3) as server:
        words = ["--fit-only", *SHORT, "--set", "server.rounds=2", "--profile", "cpu/tiny"]
        assert run(["validate", server.url, *words]) == 130
        assert len(server.asked) < WARM_UP + one_round + 8
    message = capsys.readouterr().err
    assert "1 of 2 rounds are in 'probe.measured.json'" in message
    assert run(command_that_fits(message.splitlines()[0])) == 0
