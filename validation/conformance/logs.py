"""Logs of a scheduler's decisions: requests by the step before which they arrive, and what each step carried.

Two kinds of file, of one log each or of many: those of a real engine (`validation.replays.real_engine`), whose tapes
are in the new tokens of each step, and drawn schedules (`validation.conformance.drawn`). Not here: what `continuous`
makes of a log (validation.conformance.replayed).
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from realrun.installed.vllm_scheduler import SchedulerSettings

REAL_BLOCK_SIZE = 32
"""Tokens per KV block of vLLM on a CPU."""
REAL_MAX_MODEL_LEN = 1024
MANY_BLOCKS = 2048
"""Blocks assumed for a log that does not say how many there were: more than its requests need."""
METHODS = {"none": None, "ngram": "ngram"}
"""speculative_config.method by `arguments.spec` of a real log; all others are draft models."""


class LoggedRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request, and the number of steps with tokens before it came."""

    step: int
    prompt_tokens: int
    output_tokens: int
    priority: int = 0
    """The lowest goes first."""
    content: tuple[int, ...] = ()
    """Chained ids of whole blocks that other requests may have as well."""


class Decision(msgspec.Struct, frozen=True, array_like=True):
    """Tokens that one step carried, requests by their index."""

    tokens: dict[int, int]
    drafts: dict[int, int] = {}
    """Drafts among them; none where there are none."""
    preempted: tuple[int, ...] = ()
    cached: dict[int, int] | None = {}
    """Tokens of a seated request that were in the cache; None where nobody noted them."""


class Log(msgspec.Struct, frozen=True):
    """One run of a scheduler."""

    name: str
    engine: str
    """Version of it, such as vllm-0.32."""
    settings: SchedulerSettings
    requests: tuple[LoggedRequest, ...]
    steps: tuple[Decision, ...]
    emitted: tuple[dict[int, int], ...]
    """[steps] new tokens by request."""
    proposed: tuple[dict[int, int], ...] = ()
    """[steps] drafts made behind the step by request, where they vary; () where nobody noted them, or they do not."""


class Tape(NamedTuple):
    """Rounds of a log, by request and output tokens that were out before them."""

    accepted: dict[tuple[int, int], int]
    drafted: dict[tuple[int, int], int]


def tape_of(log: Log) -> Tape:
    accepted: dict[tuple[int, int], int] = {}
    drafted: dict[tuple[int, int], int] = {}
    out = dict.fromkeys(range(len(log.requests)), 0)
    proposed = log.proposed or ({},) * len(log.steps)
    for step, emitted, behind in zip(log.steps, log.emitted, proposed, strict=True):
        for index, count in emitted.items():
            accepted[index, out[index]] = count - 1
            if not log.proposed:
                drafted[index, out[index]] = step.drafts.get(index, 0)
            out[index] += count
            if index in behind:
                drafted[index, out[index]] = behind[index]
    return Tape(accepted, drafted)


# -- files


def read_logs(path: Path) -> list[Log]:
    """The logs of a file: one of a real engine, or any number of drawn ones, gzipped or not. Raises ValueError."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    try:
        if data.lstrip().startswith(b'{"arguments"'):
            return [_real(path.stem, msgspec.json.decode(data))]
        return [msgspec.json.decode(line, type=Log) for line in data.splitlines() if line.strip()]
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise ValueError(f"{str(path)!r}: no log of a scheduler ({error})") from None


def write_logs(path: Path, logs: Iterable[Log]) -> None:
    """Gzipped JSON lines, the same bytes for the same logs."""
    path.write_bytes(gzip.compress(b"".join([msgspec.json.encode(log) + b"\n" for log in logs]), mtime=0))


def _real(name: str, held: dict[str, Any]) -> Log:
    """A log of a real engine: its ticks become steps with tokens."""
    arguments = held["arguments"]
    spec, is_ahead = arguments["spec"], bool(arguments["ahead"]) and not _answers_at_once(held["steps"])
    steps = [step for step in held["steps"] if step["scheduled"]]
    requests = sorted(held["requests"], key=lambda each: (each["step"], int(each["name"][1:])))
    index_of = {each["name"]: index for index, each in enumerate(requests)}
    ticks = [step["at"] for step in steps]
    arrivals = [
        LoggedRequest(
            step=sum(tick < each["step"] for tick in ticks),
            prompt_tokens=each["prompt"],
            output_tokens=each["output"],
            priority=each.get("priority", 0),
            content=tuple(each.get("content", ())),
        )
        for each in requests
    ]

    def by_index(values: dict[str, int]) -> dict[int, int]:
        return {index_of[key]: value for key, value in values.items()}

    decisions, preempted = [], set[int]()
    for step in held["steps"]:
        preempted |= {index_of[key] for key in step["preempted"]}
        if step["scheduled"]:
            cached = by_index(step["cached"]) if "cached" in step else None
            gave_way = tuple(sorted(preempted))
            decisions.append(Decision(by_index(step["scheduled"]), by_index(step["drafts"]), gave_way, cached))
            preempted.clear()
    brought = [by_index(step.get("new", {})) for step in held["steps"]]
    emitted = _settled(decisions, brought if not is_ahead else _a_call_later(held["steps"], brought), arrivals)
    method = METHODS.get(spec, "draft_model")
    settings = SchedulerSettings(
        max_num_seqs=arguments["seqs"],
        max_num_batched_tokens=arguments["tokens"],
        max_model_len=arguments.get("max_model_len", REAL_MAX_MODEL_LEN),
        num_gpu_blocks=arguments["blocks"] or MANY_BLOCKS,
        block_size=arguments.get("block_size", REAL_BLOCK_SIZE),
        async_scheduling=is_ahead,
        method=method,
        num_speculative_tokens=arguments["k"] if method else 0,
    )
    engine = f"vllm-{arguments.get('version', '0.32')}"
    return Log(name, engine, settings, tuple(arrivals), tuple(decisions), emitted)


def _answers_at_once(steps: Sequence[dict[str, Any]]) -> bool:
    """True where some call returned a token of a request that it was the first to schedule: then the engine was
    synchronous, whatever its arguments say. vLLM on a CPU always is (0.32.0, vllm/platforms/cpu.py:331)."""
    seen: set[str] = set()
    for step in steps:
        if any(name not in seen for name in step.get("new", {}) if name in step["scheduled"]):
            return True
        seen |= step["scheduled"].keys()
    return False


def _a_call_later(steps: Sequence[dict[str, Any]], brought: Sequence[dict[int, int]]) -> list[dict[int, int]]:
    """[steps with tokens] of an asynchronous engine, whose call returns what the step before the one it schedules
    brought."""
    later = [*brought[1:], {}]
    return [new for step, new in zip(steps, later, strict=True) if step["scheduled"]]


def _settled(
    decisions: Sequence[Decision], brought: Sequence[dict[int, int]], arrivals: Sequence[LoggedRequest]
) -> tuple[dict[int, int], ...]:
    """[steps] new tokens; what the last ones of a request brought is what its answer lacks, where nobody noted it."""
    emitted = [dict(each) for each in brought if True][: len(decisions)]
    emitted += [{} for _ in range(len(decisions) - len(emitted))]
    last = {index: number for number, step in enumerate(decisions) for index in step.tokens}
    for index, request in enumerate(arrivals):
        missing = request.output_tokens - sum(new.get(index, 0) for new in emitted)
        if missing > 0 and index in last:
            emitted[last[index]][index] = emitted[last[index]].get(index, 0) + missing
    return tuple(emitted)
