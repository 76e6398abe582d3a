"""`lanesim validate URL`, with and without --fit-only, against servers that break the rules: one clear line and an exit
code, or success where it should be.

No way hangs beyond the deadline that was given, none takes the memory it is offered, and no key, prompt or address gets
into a file.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from calibrate.served.line import LONE_REQUESTS
from calibrate.served.readers import read_looks
from calibrate.server.endpoint import WORDS
from sim.cli.main import run
from tests.attack.hostile_server import DONE, Way, bomb, collected, drip, event, head, hostile, raw, stream, whole

MODELS, COMPLETIONS, CHAT, METRICS = "/v1/models", "/v1/completions", "/v1/chat/completions", "/metrics"
FLAGS = ["--profile", "cpu/tiny", "--set", "server.levels=1,2", "--set", "server.rounds=1"]
FLAGS += ["--input-len", "4", "--output-len", "8", "--set"]
KEY = "sk-not-to-be-seen"
LOAD = ("--request-rate", "500", "--num-prompts", "6", "--input-len", "4", "--output-len", "8")
JUDGED = ("--profile", "cpu/tiny", *LOAD, "--set")
LOOKED = 2
"""Requests that tell `validate` how a server answers, and how many tokens a word has."""
MAX_S = 45
"""Far beyond what such a probe takes, and less than servers hold an answer back."""
MAX_GROWTH_KIB = 96 << 10
SSE = head("200 OK", kind="text/event-stream")
TOKEN = event({"choices": [{"text": "a "}]})
AMPLE_S, SHORT_S = 10.0, 0.8
"""Until an answer is late: a busy machine gives one within the former, and only who is to be late has the latter."""
LATE = r"gave no whole answer within 0\.8 s \(server.timeout_s\)"
LONG = "more bytes than are read"
TYPED = "answers what no OpenAI-compatible server does: "
METRICS_HEAD = head("200 OK", kind="text/plain")


def usage(text: str) -> Way:
    return stream(last=f'{{"choices": [], "usage": {text}}}'.encode())


BROKEN: dict[str, tuple[str, Way, str]] = {
    "models null": (MODELS, whole('{"data": null}'), "names no model. Say which with --model"),
    "models without an id": (MODELS, whole('{"data": [{"id": null}]}'), TYPED + ".*expected `str`"),
    "models of control characters": (MODELS, whole('{"data": [{"id": "\\u001b[2J"}]}'), TYPED + ".*control character"),
    "models nested": (MODELS, whole('{"data": ' + "[" * 200_000), TYPED + ".*nested deeper than 64"),
    "models compressed": (MODELS, whole(bomb(1 << 20), "200 OK", "Content-Encoding: gzip"), "answers in gzip"),
    "models forbidden": (MODELS, whole('{"detail": "no"}', "401 Unauthorized"), "answers 401: .*no"),
    "models without end": (MODELS, raw(head(), forever=b" " * 65536), LONG),
    "one endless header": (MODELS, raw(b"HTTP/1.1 200 OK\r\nX: ", forever=b"y" * 65536), "breaks the connection off"),
    "100 without end": (MODELS, raw(b"", forever=b"HTTP/1.1 100 Continue\r\n\r\n" * 2000), LONG),
    "no HTTP": (MODELS, raw(b"\x16\x03\x01 hello\r\n\r\n"), "breaks the connection off"),
    "half an answer": (MODELS, raw(head("200 OK", "Content-Length: 999") + b'{"data"'), "breaks its answer off"),
    "a chunk of no size": (MODELS, raw(head("200 OK", "Transfer-Encoding: chunked") + b"-5\r\n{"), "breaks"),
    "usage a list": (COMPLETIONS, usage("[1]"), TYPED + ".*usage: expected `object"),
    "tokens below 0": (
        COMPLETIONS,
        usage('{"completion_tokens": -8}'),
        TYPED + ".*completion_tokens: expected `int` >= 0",
    ),
    "too many tokens": (COMPLETIONS, usage('{"completion_tokens": 64}'), "more than 2 times the 2 tokens"),
    "events nested": (COMPLETIONS, stream(b"[" * 100_000), TYPED + ".*nested deeper than 64"),
    "an event of an error": (COMPLETIONS, stream({"error": {"message": "out of memory"}}), "error: out of memory"),
    "tokens without end": (COMPLETIONS, raw(SSE, forever=TOKEN), "more than 2 times the 2 tokens"),
    "a line without end": (COMPLETIONS, raw(SSE, forever=b"data: " + b"x" * 65536), "a line of more than 262144 bytes"),
    "a token a while": (COMPLETIONS, drip(SSE + b":"), LATE),
    "no end said": (COMPLETIONS, stream(has_usage=False, done=b""), r"without \[DONE\] and without usage"),
    "busy for ever": (COMPLETIONS, whole("busy", "503 Busy"), "answers 503: busy"),
    "an error without end": (COMPLETIONS, raw(head("500 Oops"), forever=b"no " * 20_000), "answers 500: no no"),
    "metrics without end": (METRICS, raw(METRICS_HEAD, forever=b'vllm:x_total{a="b"} 1\n' * 2000), LONG),
    "metrics in no number": (
        METRICS,
        whole("vllm:spec_decode_num_drafts_total NaN\n"),
        "grew by nan, which is no finite number",
    ),
}
LATER: dict[str, tuple[Way, str]] = {
    "a stream without a token": (stream({"choices": [{"text": ""}]}), "without a token"),
    "too many tokens": (usage('{"completion_tokens": 17}'), "more than 2 times the [48] tokens"),
    "a byte a while": (drip(SSE + b":"), LATE),
    "closed in the middle": (raw(SSE + TOKEN, 0.002, TOKEN), r"without \[DONE\]"),
    "all at once": (collected, "% of an answer's later tokens with its first: does a proxy collect"),
}
SOUND: dict[str, tuple[str, Way]] = {
    "left open": (COMPLETIONS, stream(ends=False)),
    "reasoning": (CHAT, stream({"choices": [{"delta": {"content": None, "reasoning_content": "hm"}}]})),
    "no UTF-8": (COMPLETIONS, stream(b'{"choices": [{"text": "\xff\\u001b"}]}')),
    "comments": (COMPLETIONS, stream(done=b": ping\r\n\r\nid: 1\n" + DONE)),
    "no usage": (COMPLETIONS, stream(has_usage=False)),
    "metrics of no server": (METRICS, whole("<html>" + "x" * 100_000)),
    "metrics of endless digits": (METRICS, whole("vllm:x_total 1 " + "1" * 400 + "\n")),
    "one line of labels": (METRICS, whole("vllm:x_total{" + 'a="b",' * 200_000 + "} 1\n")),
}


@contextmanager
def bounded() -> Iterator[None]:
    """Fail what takes MAX_S or more memory than MAX_GROWTH_KIB."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"hangs for {MAX_S} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(MAX_S)
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - highest < MAX_GROWTH_KIB


def probe(url: str, folder: Path, *flags: str, timeout_s: float = AMPLE_S) -> int:
    with bounded():
        words = ["validate", url, "--fit-only", *FLAGS, f"server.timeout_s={timeout_s:g}"]
        return run([*words, "--out", str(folder / "m.json"), *flags])


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the first fit of a process imports and keeps is no growth of a later one."""
    words = [*FLAGS, f"server.timeout_s={AMPLE_S:g}", "--out", str(tmp_path_factory.mktemp("warm") / "m.json")]
    with hostile() as server:
        run(["validate", server.url, "--fit-only", *words])


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANESIM_API_KEY", KEY)


def judged(url: str, folder: Path, *more: str, levels: str = "none", timeout_s: float = AMPLE_S) -> int:
    """The exit code. What is written names nothing that it should not, whatever came of it."""
    out = folder / "run.json"
    with bounded():
        words = [*JUDGED, f"server.levels={levels}", "--set", f"server.timeout_s={timeout_s:g}"]
        code = run(["validate", url, *words, "--out", str(out), *more])
    text = out.read_text() if out.exists() else ""
    assert [each for each in (url.partition("//")[2], KEY, *(f"{word} " for word in WORDS)) if each in text] == []
    return code


def one_line(capsys: pytest.CaptureFixture[str], begins: str = "lanesim: http://127.0.0.1:") -> str:
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1, errors
    assert errors.startswith(begins), errors
    assert KEY not in errors
    return errors


@pytest.mark.parametrize("name", BROKEN)
def test_a_server_that_breaks_a_rule_is_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, way, message = BROKEN[name]
    timeout_s = SHORT_S if message == LATE else AMPLE_S
    with hostile(path, way) as server:
        assert probe(server.url, tmp_path, timeout_s=timeout_s) == 2
        assert re.search(message, one_line(capsys))
        assert judged(server.url, tmp_path, timeout_s=timeout_s) == 2
    one_line(capsys, "lanesim: ")


@pytest.mark.parametrize("name", LATER)
def test_a_server_that_breaks_a_rule_under_load_is_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    way, message = LATER[name]
    timeout_s = SHORT_S if message == LATE else AMPLE_S
    with hostile(COMPLETIONS, way, sound=3) as server:
        assert probe(server.url, tmp_path, timeout_s=timeout_s) == 2
    assert re.search(message, one_line(capsys))
    for levels in ("none", "1,2"):
        with hostile(COMPLETIONS, way, sound=LOOKED) as server:
            words = ("--set", "server.rounds=1", "--overwrite")
            assert judged(server.url, tmp_path, *words, levels=levels, timeout_s=timeout_s) == 2
        one_line(capsys, "lanesim: ")


@pytest.mark.parametrize("name", SOUND)
def test_a_server_that_is_merely_odd_is_measured_and_judged(name: str, tmp_path: Path) -> None:
    path, way = SOUND[name]
    with hostile(path, way) as server:
        assert probe(server.url, tmp_path) == 0
        assert judged(server.url, tmp_path) == 0
    loads = read_looks(tmp_path / "m.measured.json").rounds
    assert [load.output_len for load in loads] == [8.0, 8.0]
    errors = json.loads((tmp_path / "run.json").read_text())["errors"]
    assert errors["predicted"]["e2el"]["mean"]["real"] > 0.0


@pytest.mark.parametrize(
    "way", [whole("river stone lamp: " + KEY, "500 Oops"), whole("river stone lamp", "429 river stone ")]
)
def test_what_a_server_says_of_failed_requests_is_not_kept(way: Way, tmp_path: Path) -> None:
    with hostile(COMPLETIONS, way, sound=LOOKED, broken=2) as server:
        assert judged(server.url, tmp_path) == 0
    assert sum(bool(each["failed"]) for each in json.loads((tmp_path / "run.json").read_text())["sent"]) == 2


@pytest.mark.parametrize("is_second", [False, True])
def test_one_of_a_pair_that_breaks_is_one_line(
    is_second: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was sent to the other one is kept."""
    drafts = ("--set", "speculation.num_speculative_tokens=2", "--set", "speculation.acceptance=iid:0.7")
    with hostile() as sound, hostile(COMPLETIONS, whole("busy", "503 Busy"), sound=LOOKED) as broken:
        one, other = (sound, broken) if is_second else (broken, sound)
        assert judged(one.url, tmp_path, "--pair", other.url, *drafts) == 2
    one_line(capsys, "lanesim: ")
    text = (tmp_path / "run.json").read_text()
    assert other.url.partition("//")[2] not in text
    assert sum(not each["failed"] for each in json.loads(text)["sent"]) == (6 if is_second else 0)


def test_a_few_failed_requests_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    warm_up = 4
    sound = LOOKED + warm_up + LONE_REQUESTS
    with hostile(COMPLETIONS, whole("slow down", "429 Busy"), sound=sound, broken=2) as server:
        assert probe(server.url, tmp_path) == 0
    assert "2 of 24 requests failed: answers 429" in capsys.readouterr().out
    loads = read_looks(tmp_path / "m.measured.json").rounds
    assert [(load.num_requests, len(load.requests)) for load in loads] == [(10, 12), (12, 12)]


def test_one_answer_beyond_the_deadline_ends_a_probe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three others that failed would be reported; each that is waited for takes as long again."""
    with hostile(COMPLETIONS, raw(b"", 60.0), sound=5, broken=1) as server:
        assert probe(server.url, tmp_path, timeout_s=SHORT_S) == 2
    assert re.search(LATE, one_line(capsys))


def test_a_key_is_sent_and_never_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--out", str(tmp_path / "p.json"), "--json", str(tmp_path / "r.json")]
    with hostile() as server:
        assert probe(server.url, tmp_path, *flags) == 0
    assert server.heads
    assert all("Authorization: Bearer sk-not-to-be-seen" in each for each in server.heads)
    with hostile(MODELS, whole("wrong key: sk-not-to-be-seen", "401 Unauthorized")) as server:
        assert probe(server.url, tmp_path, *flags, "--overwrite") == 2
    shown = capsys.readouterr()
    assert "answers 401: wrong key: ***" in shown.err
    texts = [shown.out, shown.err, *(path.read_text() for path in tmp_path.iterdir())]
    assert len(texts) >= 2 + 3
    assert not any("not-to-be-seen" in text for text in texts)


def test_a_key_that_is_none_is_refused_unseen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANESIM_API_KEY", "sk-a\r\nX: b")
    with hostile() as server:
        assert probe(server.url, tmp_path) == 2
        assert not server.heads
    told = capsys.readouterr().err
    assert "must be printable ASCII without spaces" in told
    assert "sk-" not in told


def test_an_address_with_a_password_is_refused_unseen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert probe("http://me:secret@127.0.0.1:1", tmp_path) == 2
    told = capsys.readouterr().err
    assert "holds a password. Give the key in LANESIM_API_KEY" in told
    assert "secret" not in told


@pytest.mark.skipif(shutil.which("openssl") is None, reason="nothing here makes a certificate")
def test_a_server_is_measured_encrypted_where_its_certificate_is_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = "openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 2 -subj /CN=localhost"
    make += f" -addext subjectAltName=DNS:localhost -keyout {key} -out {certificate}"
    subprocess.run(make.split(), check=True, capture_output=True)
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trust.load_cert_chain(certificate, key)
    with hostile(trust=trust) as server:
        url = server.url.replace("http://127.0.0.1", "https://localhost")
        assert probe(url, tmp_path) == 2
        assert "certificate verify failed" in capsys.readouterr().err
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert probe(url, tmp_path) == 0


def test_a_port_that_takes_no_answerer_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with hostile() as server:
        url = server.url
    assert probe(url, tmp_path) == 2
    assert "cannot be reached: " in one_line(capsys)


def test_a_signal_ends_a_probe_that_waits(tmp_path: Path) -> None:
    """Before the first answer and amid a load, where no byte comes and where they come slowly."""
    ways = [
        (MODELS, raw(b"", 60.0), 0, signal.SIGTERM),
        (COMPLETIONS, raw(b"", 60.0), 3, signal.SIGINT),
        (COMPLETIONS, drip(SSE + b":"), 2, signal.SIGTERM),
    ]
    for number, (path, way, sound, sign) in enumerate(ways):
        command = [sys.executable, "-m", "sim.cli.entry", "validate", "URL", "--fit-only", *FLAGS]
        command += ["server.timeout_s=60", "--out", str(tmp_path / f"{number}.json")]
        with hostile(path, way, sound=sound) as server:
            command[command.index("URL")] = server.url
            with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ}) as process:
                assert server.has_broken.wait(MAX_S)
                process.send_signal(sign)
                try:
                    _, told = process.communicate(timeout=MAX_S)
                finally:
                    process.kill()
        assert process.returncode == 128 + sign
        assert told.count("\n") == 1
        assert told.startswith(f"lanesim: {'interrupted' if sign == signal.SIGINT else 'terminated'}")
