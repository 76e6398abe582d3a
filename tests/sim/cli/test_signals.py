"""Stopped by a signal, from the first line to the last: one line, the signal's own exit code, nothing half-written."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sim.cli.signals import put_off
from sim.compare.pool import started as started_workers

PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"
LONG = ["compare", "--profile", PAIR, "--policy", "pdv", "--num-prompts", "20000", "--request-rate", "4"]
LONG += ["--input-len", "512", "--output-len", "512"]
ENTRY = "from sim.cli.entry import main; main()"


def started(*args: str, code: str = ENTRY) -> subprocess.Popen[str]:
    """A process that heeds all signals, even where the tests were started to ignore a hang-up (nohup)."""
    command = [sys.executable, "-c", code, *args]
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("number", "word", "code"),
    [(signal.SIGINT, "interrupted", 130), (signal.SIGTERM, "terminated", 143), (signal.SIGHUP, "hung up", 129)],
)
def test_every_signal_is_one_line_and_its_own_exit_code(number: int, word: str, code: int, tmp_path: Path) -> None:
    process = started(*LONG, "--workers", "1", "--out", str(tmp_path / "r"))
    deadline = time.monotonic() + 60
    while not list(tmp_path.rglob("rows")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (code, "")
    assert errors == f"lanesim: {word}. Nothing incomplete was left\n"
    assert list(tmp_path.iterdir()) == []


def test_a_signal_before_the_heavy_imports_is_one_line() -> None:
    code = (
        "import os, signal, sys; from sim.cli import signals\n"
        "class Kill:\n"
        "    def find_spec(self, name, *more):\n"
        "        if name == 'click': os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.meta_path.insert(0, Kill())\n" + ENTRY
    )
    process = started("--help", code=code)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (143, "", "lanesim: terminated. Nothing was begun\n")


def test_signals_that_were_ignored_at_the_start_stay_so() -> None:
    code = "import os, signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); import sim.cli.signals as s\n"
    code += "s.listen(s.stop); os.kill(os.getpid(), signal.SIGHUP); print('on')"
    output, _ = started(code=code).communicate(timeout=60)
    assert output == "on\n"


def test_a_signal_waits_for_the_end_of_what_must_not_be_cut() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        _interrupted_inside(done)
    assert done == ["written"]


def _interrupted_inside(done: list[str]) -> None:
    with put_off():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        done.append("written")


@pytest.mark.parametrize(("closed", "code"), [("2>&-", 2), ("1>&-", 2), ("0<&- 1>&- 2>&-", 2), ("2>/dev/full", 2)])
def test_closed_and_full_streams_change_no_exit_code(closed: str, code: int, tmp_path: Path) -> None:
    command = f"{sys.executable} -m sim.cli.entry compare absent.yaml {closed}"
    assert subprocess.run(["bash", "-c", command], capture_output=True, cwd=tmp_path, env=_env()).returncode == code


def test_a_full_stdout_is_one_line(tmp_path: Path) -> None:
    command = f"{sys.executable} -m sim.cli.entry profiles >/dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, env=_env())
    assert (done.returncode, done.stderr) == (2, "lanesim: stdout: No space left on device\n")


def _env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def test_a_signal_after_the_last_line_changes_nothing() -> None:
    """While the interpreter ends, which takes some 50 ms, what was printed and the exit code stand."""
    late = "import atexit, os, signal; atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
    process = started("profiles", "show", "cpu/tiny", code=late + ENTRY)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert "cpu/tiny" in output


def test_who_is_stopped_does_not_wait_for_what_its_workers_are_at() -> None:
    """A service manager tells the command alone; its workers are at tasks of ten minutes."""
    with pytest.raises(KeyboardInterrupt):
        _stopped_with_workers()
    assert multiprocessing.active_children() == []


def _stopped_with_workers() -> None:
    with started_workers(2) as pool:
        assert pool.executor is not None
        for _ in range(4):
            pool.executor.submit(time.sleep, 600.0)
        time.sleep(0.1)
        raise KeyboardInterrupt
