"""A server that lanesim starts: a command in a process group of its own, which ends with all that it started.

Its output goes to a log, which is named where it fails. Not here: what is asked of it (calibrate.server.endpoint).
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

from calibrate.server.endpoint import MAX_MODELS_BYTES, MODELS
from calibrate.server.network import Client, RequestFailed
from sim.cli.signals import put_off

LOADING = (502, 503, 504)
"""Answers of a server, or of what stands before it, that is not ready yet."""
POLL_S, ANSWER_S = 0.2, 5.0
GRACE_S = 20.0
"""Longest from the request to end to the kill: a vLLM ends its engine within a few seconds."""
SPECULATIVE = ("--spec", "--draft", "-sc.")
"""Beginnings of the options of speculation: vLLM's --speculative-config and -sc.KEY, SGLang's --speculative-*,
llama.cpp's --draft-* and --spec-*."""
DRAFT = re.compile(
    r"--[a-z-]+-draft(-[a-z]+)*|-sc|-(md|hfd|hfrd|cd|devd|ngld|td|tbd|ctkd|ctvd|Cd|Crd|Cbd|Crbd|otd|ncmoed|cmoed)"
)
"""Whole options: vLLM's short one, and llama.cpp's of its draft model such as --model-draft and -ngld."""


@contextmanager
def started(
    words: Sequence[str],
    url: str,
    log: Path,
    *,
    timeout_s: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Have the server of a command answer at `url` within the block. Raises ValueError, naming its `log`, where it does
    not within `timeout_s`, or where something else answers there already."""
    if _status(url) is not None:
        raise ValueError(f"{url} answers already. End that server, or leave out --restart")
    server: subprocess.Popen[bytes] | None = None
    try:
        with put_off(), log.open("wb") as output:
            server = subprocess.Popen(
                words,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline_s = time.monotonic() + timeout_s
        while (status := _status(url)) is None or status in LOADING:
            if server.poll() is not None:
                raise ValueError(f"{words[0]!r} ended with {server.returncode} before it answered at {url}")
            if time.monotonic() > deadline_s:
                raise ValueError(f"{words[0]!r} did not answer at {url} within {timeout_s:g} s of its start")
            time.sleep(POLL_S)
        yield
    except ValueError as error:
        error.add_note(f"(its log is {str(log)!r})")
        raise
    except OSError as error:
        if server is None:
            log.unlink(missing_ok=True)
            raise ValueError(f"{words[0]!r} cannot be started: {error.strerror or error}") from None
        raise
    finally:
        if server is not None:
            with put_off():
                _end(server)


def _status(url: str) -> int | None:
    """HTTP status of the list of models; None where nothing answers."""
    try:
        with Client(url, timeout_s=ANSWER_S) as client, client.ask(MODELS, max_bytes=MAX_MODELS_BYTES) as answer:
            return answer.status
    except RequestFailed:
        return None


def _end(server: subprocess.Popen[bytes]) -> None:
    """End the process and all others of its group; those that do not end in time by force."""
    deadline_s = time.monotonic() + GRACE_S
    with suppress(OSError):  # None of the group is left.
        os.killpg(server.pid, signal.SIGTERM)
        while time.monotonic() < deadline_s:
            server.poll()
            os.killpg(server.pid, 0)
            time.sleep(POLL_S / 4)
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def commands_of(given: Sequence[str]) -> list[list[str]]:
    """Words of the commands that start a server without speculation and with it. One alone is started without its
    options of speculation first. Raises ValueError.

    >>> commands_of(["vllm serve m --speculative-config '{\\"method\\": \\"ngram\\"}' --port 80"])[0]
    ['vllm', 'serve', 'm', '--port', '80']
    >>> " ".join(commands_of(["serve --speculative-algorithm EAGLE3 --tp 2 --speculative-num-steps=3 --port 80"])[0])
    'serve --tp 2 --port 80'
    >>> commands_of(["vllm serve m -sc {} --tp 2"])[0]
    ['vllm', 'serve', 'm', '--tp', '2']
    >>> drafts = "-md d.gguf -hfd org/d -ngld 99 -cd 4096 --hf-repo-draft org/d --ctx-size-draft 9 --device-draft none"
    >>> more = "--draft-max 8 --spec-draft-n-max 4", "-sc.method ngram -sc.num_speculative_tokens=3"
    >>> {" ".join(commands_of([f"serve -m m {options} -c 4096 -ngl 99"])[0]) for options in (drafts, *more)}
    {'serve -m m -c 4096 -ngl 99'}
    >>> commands_of(["a off", "a on"])
    [['a', 'off'], ['a', 'on']]
    """
    try:
        commands = [shlex.split(command) for command in given]
    except ValueError as error:
        raise ValueError(f"server to start, {given[0]!r}: {error}") from None
    if len(commands) == 1:
        plain = [
            word
            for before, word in pairwise(["", *commands[0]])
            if not _is_speculative(word) and (word.startswith("-") or "=" in before or not _is_speculative(before))
        ]
        commands.insert(0, plain)
    if len(commands) != 2 or commands[0] == commands[1] or not all(commands):
        raise ValueError(
            f"server to start: give its command with options of speculation ({', '.join(SPECULATIVE)}...), or "
            "two, first the one that starts it without"
        )
    return commands


def _is_speculative(word: str) -> bool:
    return word.startswith(SPECULATIVE) or DRAFT.fullmatch(word.partition("=")[0]) is not None
