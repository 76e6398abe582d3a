"""Logs of a scheduler's decisions: requests by the step before which they arrive, and what each step carried.

Two kinds of file: of a real engine (`validation.replays.real_engine`), and of drawn schedules
(`validation.conformance.drawn`, `.sglang`). Not here: `continuous` on a log (validation.conformance.replayed).
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from realrun.installed.vllm_scheduler import SchedulerSettings
from validation.conformance.sglang import SglangLog

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
    stop_tokens: int = 0
    """A stop token ends its answer after so many tokens; 0: nothing but `output_tokens` does."""
    abort_step: int = -1
    """The number of steps with tokens before it was aborted; -1: it was not."""


class Decision(msgspec.Struct, frozen=True, array_like=True):
    """Tokens that one step carried, requests by their index."""

    tokens: dict[int, int]
    drafts: dict[int, int] = {}
    """Drafts among them; none where there are none."""
    preempted: tuple[int, ...] = ()
    cached: dict[int, int] | None = {}
    """Tokens of a seated request that were in the cache; None where nobody noted them."""
    skips_drafts: bool = False
    """No drafts were made behind it, since no request could use them."""


class Log(msgspec.Struct, frozen=True):
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


def read_logs(path: Path) -> list[Any]:
    """Each Log or SglangLog of a file: one of a real engine, or drawn ones, gzipped or not. Raises ValueError."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    try:
        if data.lstrip().startswith(b'{"arguments"'):
            return [_real(path.stem, msgspec.json.decode(data))]
        kind: Any = SglangLog if data.startswith(b'{"kind"') else Log
        return [msgspec.json.decode(line, type=kind) for line in data.splitlines() if line.strip()]
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise ValueError(f"{str(path)!r}: no log of a scheduler ({error})") from None


def write_logs(path: Path, logs: Iterable[Log | SglangLog]) -> None:
    """Gzipped JSON lines, the same bytes for the same logs."""
    path.write_bytes(gzip.compress(b"".join([msgspec.json.encode(log) + b"\n" for log in logs]), mtime=0))


def _real(name: str, held: dict[str, Any]) -> Log:
    """A log of a real engine. On a CPU vLLM plans no step ahead (0.32.0, vllm/platforms/cpu.py:331)."""
    arguments = held["arguments"]
    steps = [step for step in held["steps"] if step["scheduled"]]
    requests = sorted(held["requests"], key=lambda each: (each["step"], int(each["name"][1:])))
    index_of = {each["name"]: index for index, each in enumerate(requests)}
    arrivals = tuple(
        LoggedRequest(sum(step["at"] < each["step"] for step in steps), each["prompt"], each["output"])
        for each in requests
    )

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
    method = METHODS.get(arguments["spec"], "draft_model")
    settings = SchedulerSettings(
        max_num_seqs=arguments["seqs"],
        max_num_batched_tokens=arguments["tokens"],
        max_model_len=REAL_MAX_MODEL_LEN,
        num_gpu_blocks=arguments["blocks"] or MANY_BLOCKS,
        block_size=REAL_BLOCK_SIZE,
        method=method,
        num_speculative_tokens=arguments["k"] if method else 0,
    )
    engine = f"vllm-{arguments.get('version', '0.32')}"
    return Log(name, engine, settings, arrivals, tuple(decisions), tuple(by_index(step["new"]) for step in steps))
