"""A server that lanesim starts without and with speculation, one after the other: the load of both is judged, and
whatever happens no process is left. The server is a script of its own on loopback; nothing here asserts how long
anything takes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from calibrate.server import server_process
from calibrate.server.served_run import as_predicted, read_run
from calibrate.server.server_process import commands_of, started
from sim.cli.main import run
from tests.calibrate.server.test_probe import serving
from tests.properties import some

ROOT = Path(__file__).parents[3]
LOAD = [
    *("--profile", "cpu/tiny", "--request-rate", "200", "--num-prompts", "8", "--input-len", "40", "--output-len", "8"),
    *("--set", "server.rounds=1", "--set", "server.levels=1,2"),
]
TOY = """
import os, signal, subprocess, sys
sys.path.insert(0, {root!r})
from tests.calibrate.server.test_probe import Server
drafts = "--spec" in sys.argv
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(os.getpid(), child.pid, flush=True)
# Where the test is interrupted, it is by this process.
signal.raise_signal = lambda number: os.kill(os.getppid(), number)
Server(
    port=int(sys.argv[1]), prompt_tokens=40, words_are_tokens=True, has_metrics=drafts,
    first_s=0.0 if drafts else 0.03, stop_at={stop_at} if drafts else None, piece_s={piece_s},
).serve_forever()
"""


def free_port() -> int:
    with socket.socket() as unbound:
        unbound.bind(("127.0.0.1", 0))
        return int(unbound.getsockname()[1])


def command(port: int, stop_at: int | None = None, piece_s: float = 0.002) -> str:
    text = TOY.format(root=str(ROOT), stop_at=stop_at, piece_s=piece_s)
    return shlex.join([sys.executable, "-c", text, str(port), "--spec", "2"])


def restarted(out: Path, port: int, *commands: str) -> int:
    given = [word for each in commands for word in ("--restart", each)]
    return run(["validate", f"http://127.0.0.1:{port}", *LOAD, *given, "--out", str(out)])


def assert_none_runs(*logs: Path) -> None:
    """None of the processes that wrote these logs, nor what they started; one that nobody waited for does not run."""
    for pid in [pid for log in logs for pid in log.read_text().split()[:2]]:
        state = subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True).stdout.strip()
        assert state[:1] in ("", "Z"), pid


def test_one_command_gives_what_speculation_gains_and_up_to_how_many_in_flight(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, port = tmp_path / "run.json", free_port()
    assert restarted(out, port, command(port)) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith("Speculation makes E2EL ")
    assert "% shorter (predicted: " in told
    assert "Turn speculation on up to 2 requests in flight, the most that were tried." in told
    told = read_run(out)
    assert told.plain is not None
    assert [each.scenario["speculation"]["num_speculative_tokens"] for each in (told, told.plain)] == [2, 0]
    written = json.loads(out.read_text())
    for each, kept in ((told, written), (told.plain, written["plain"])):
        assert len(each.sent) == 8
        assert as_predicted(kept) == each.predicted_sha256
        assert each.predicted_at <= each.sent_at
    assert told.plain.sent_at < told.predicted_at
    assert str(tmp_path) not in out.read_text()
    assert_none_runs(tmp_path / "run.log", tmp_path / "run.pair.log")


def test_an_interrupt_leaves_no_process_and_keeps_what_was_measured(tmp_path: Path) -> None:
    """Amid the load of the second life: two requests tell how it answers, then come 12 alone, 24 at levels, 10 light
    ones. With the same command the looks of both are not sent again."""
    out, port = tmp_path / "run.json", free_port()
    assert restarted(out, port, command(port, stop_at=2 + 12 + 24 + 10 + 3)) == 130
    assert_none_runs(tmp_path / "run.log", tmp_path / "run.pair.log")
    told = read_run(out)
    assert len(some(told.plain).sent) == 8
    assert some(told.plain).errors
    assert told.predicted_at
    assert not told.errors
    assert [(tmp_path / f"run{kind}.measured.json").exists() for kind in ("", ".pair")] == [True, True]


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (["lanesim-no-such-program"], "'lanesim-no-such-program' cannot be started: No such file"),
        ([sys.executable, "-c", "raise SystemExit(3)"], "ended with 3 before it answered at"),
        ([sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"], "did not answer"),
    ],
)
def test_a_command_that_does_not_serve_is_one_line_that_names_its_log(
    program: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    words = shlex.join(program)
    more = ["--set", "server.timeout_s=1.5", "--out", str(tmp_path / "run.json")]
    given = ["--restart", words, "--restart", f"{words} --spec 2"]
    assert run(["validate", f"http://127.0.0.1:{port}", *LOAD, *given, *more]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert said in told
    is_log = "cannot be started" not in told
    assert ("run.pair.log" in told) == is_log == (tmp_path / "run.pair.log").exists()
    if is_log:
        assert_none_runs(tmp_path / "run.pair.log")


def test_what_serves_there_already_is_not_taken_for_the_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving() as server:
        port = server.server_address[1]
        assert restarted(tmp_path / "run.json", port, command(port)) == 2
        assert not server.asked
    assert "answers already" in capsys.readouterr().err


def test_a_server_that_does_not_heed_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process, "GRACE_S", 0.2)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + TOY.format(
        root=str(ROOT), stop_at=None, piece_s=0.002
    )
    port, log = free_port(), tmp_path / "server.log"
    with (
        pytest.raises(KeyboardInterrupt),
        started([sys.executable, "-c", deaf, str(port)], f"http://127.0.0.1:{port}", log, timeout_s=60.0),
    ):
        os.kill(os.getpid(), signal.SIGINT)
    assert_none_runs(log)


@pytest.mark.parametrize("given", [["vllm serve m"], ["a", "b", "c"], ["vllm 'serve"], ["", "a"]])
def test_commands_that_start_no_two_servers_are_refused(given: list[str]) -> None:
    with pytest.raises(ValueError, match="server to start"):
        commands_of(given)
