"""Levels of load and acceptance from a server's log: the lines that vLLM and SGLang print every few seconds.

A line is a mean over some seconds. Those that begin or end a level mix two, so a line counts where its neighbours ran
as many requests and none waits. Logs do not say how long prompts and outputs are. Not here: anything else in the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from calibrate.production.served import Accepted, Served, pooled
from sim.files.read import lines_of

NUMBER = r"([0-9.]+)"
VLLM_LOAD = re.compile(
    rf"Avg prompt throughput: {NUMBER} tokens/s, Avg generation throughput: {NUMBER} tokens/s, "
    r"Running: (\d+) reqs, (?:Swapped: \d+ reqs, )?(?:Pending|Waiting): (\d+) reqs"
)
VLLM_ACCEPTED = re.compile(
    rf"SpecDecoding metrics: Mean acceptance length: {NUMBER},.*?Accepted: (\d+) tokens, Drafted: (\d+) tokens, "
    r"Per-position acceptance rate: ([0-9., ]+?)(?:, Avg|$)"
)
SGLANG_LOAD = re.compile(
    rf"Decode batch.*?#running-req: (\d+),.*?(?:accept len: {NUMBER},)?.*?"
    rf"gen throughput \(token/s\): {NUMBER}, #queue-req: (\d+)"
)
SGLANG_LENGTH = re.compile(rf"accept len: {NUMBER}")
LEAST_LINES = 2
"""Lines that a level needs to count."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """One line: a mean over some seconds."""

    running: int
    waiting: int
    output_tokens_per_s: float
    accepted: Accepted | None = None


def levels(
    path: Path, *, prompt_tokens: float, output_tokens: float, num_speculative_tokens: int | None = None
) -> list[Served]:
    """Means by requests running, of those levels that lasted; `num_speculative_tokens` for SGLang's lines, which tell
    the acceptance length alone. Raises ValueError, one line naming the file."""
    windows = list(read_windows((text for _, text in lines_of(path, "log")), num_speculative_tokens))
    where = f"log {str(path)!r}"
    if not windows:
        raise ValueError(f"{where}: no line of vLLM ('Avg generation throughput') or SGLang ('Decode batch') in it")
    by_running: dict[int, list[Window]] = {}
    for window in _settled(windows):
        by_running.setdefault(window.running, []).append(window)
    kept = {running: own for running, own in sorted(by_running.items()) if len(own) >= LEAST_LINES}
    if not kept:
        raise ValueError(
            f"{where}: its {len(windows)} lines never show {LEAST_LINES} of the same load with the same before and "
            "after; hold a number of requests in flight for half a minute"
        )
    return [
        Served(
            source=f"{path.name}, {running} running",
            concurrency=float(running),
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            output_tokens_per_s=sum(window.output_tokens_per_s for window in own) / len(own),
            accepted=pooled([window.accepted for window in own if window.accepted is not None]),
        )
        for running, own in kept.items()
    ]


def read_windows(lines: Iterable[str], num_speculative_tokens: int | None = None) -> Iterable[Window]:
    """The lines that say something, in order; acceptance belongs to the line of load before it."""
    last: Window | None = None
    for line in lines:
        if found := VLLM_LOAD.search(line):
            if last is not None:
                yield last
            last = Window(running=int(found[3]), waiting=int(found[4]), output_tokens_per_s=float(found[2]))
        elif (found := VLLM_ACCEPTED.search(line)) and last is not None:
            rates = tuple(float(part) for part in found[4].split(",") if part.strip())
            drafts = int(found[3]) / len(rates)
            last = msgspec.structs.replace(last, accepted=Accepted(drafts=drafts, draft_tokens=len(rates), rates=rates))
        elif found := SGLANG_LOAD.search(line):
            if last is not None:
                yield last
            accepted = None
            length = SGLANG_LENGTH.search(line)
            if length and num_speculative_tokens:
                accepted = Accepted(
                    drafts=1.0, draft_tokens=num_speculative_tokens, rates=(), mean_length=float(length[1])
                )
            last = Window(
                running=int(found[1]),
                waiting=int(found[4]),
                output_tokens_per_s=float(found[3]),
                accepted=accepted,
            )
    if last is not None:
        yield last


def _settled(windows: Sequence[Window]) -> list[Window]:
    """Those with as many running before and after, and none waiting."""
    return [
        now
        for before, now, after in zip(windows, windows[1:], windows[2:], strict=False)
        if now.running > 0 and now.waiting == 0 and before.running == now.running == after.running
    ]
