"""Signals to stop: SIGINT, SIGTERM and SIGHUP do the same, from the first line of the command to its last.

While the command is being loaded there is nothing to keep, and a signal ends the process at once. Afterwards it is
raised as Stopped wherever the main thread is, so that what holds results can keep them; the exit code says which signal
it was. The same one again within a moment counts once (terminals and wrappers both send it); later ones end the process
at once: scratch that is left is removed by the next writer. Imports nothing that takes time.
Not here: what is kept (realrun.replay.replays, calibrate.measure.command), the line at the end
(sim.cli.main).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TextIO

WORDS = {"SIGINT": "interrupted", "SIGTERM": "terminated", "SIGHUP": "hung up"}
ONCE_S = 1.0
"""Seconds within which further signals are the same wish."""
EXIT_BASE = 128

_stopped: list[tuple[int, float]] = []
"""The first signal, and when it came."""


class Stopped(KeyboardInterrupt):
    """A signal asked the process to stop."""


def end_at_once(number: int, frame: FrameType | None) -> None:
    """One line and the end, without a frame being left."""
    os.write(2, f"lanesim: {word(number)}. Nothing was begun\n".encode())
    os._exit(EXIT_BASE + number)


def stop(number: int, frame: FrameType | None) -> None:
    """Raise Stopped once; if that does not end the process, the next signal does."""
    if not _stopped:
        _stopped.append((number, time.monotonic()))
        raise Stopped
    if time.monotonic() - _stopped[0][1] > ONCE_S:
        os._exit(EXIT_BASE + number)


def listen(handler: signal._HANDLER) -> None:
    """Have `handler` called for each of the signals, save those that this process was started to ignore (nohup)."""
    for name in WORDS:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


@contextmanager
def put_off() -> Iterator[None]:
    """Have a signal that comes within the block wait for its end: what was measured is written down first."""
    came: list[int] = []
    numbers = [number for name in WORDS if (number := getattr(signal, name, None)) is not None]
    before = {number: signal.getsignal(number) for number in numbers}
    listen(lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in came[:1]:
        signal.raise_signal(number)


def word(number: int) -> str:
    return WORDS[signal.Signals(number).name]


def stopped_word() -> str:
    """Name of the signal that came, else of Ctrl-C: interrupted, terminated, hung up."""
    return word(_stopped[0][0] if _stopped else signal.SIGINT)


def exit_code() -> int:
    """Exit code of a process that was stopped: 130, 143 or 129."""
    return EXIT_BASE + (_stopped[0][0] if _stopped else signal.SIGINT)


def have_streams() -> None:
    """Give a process that was started without some of them a standard input, output and error that lead nowhere.

    Without them the first file that is opened gets a number of theirs, and messages go into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = _stream(sys.stdout, 1)
    sys.stderr = _stream(sys.stderr, 2)


def _stream(stream: TextIO | None, number: int) -> TextIO:
    """The stream; what its encoding lacks is written as a question mark."""
    if stream is None:
        return open(number, "w", closefd=False)
    if reconfigure := getattr(stream, "reconfigure", None):
        reconfigure(errors="replace")
    return stream
