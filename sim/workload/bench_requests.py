"""Requests one by one from results of benchmark tools, as workloads: when each was sent, and how long it was.

    guidellm         benchmarks.json: benchmarks[].requests.successful[] with request_start_time (Unix s; start_time
                     before 0.3), prompt_tokens, output_tokens, request_id; FILE#benchmark=N where there are several
                     (vllm-project/guidellm, src/guidellm/schemas/base/request_stats.py)
    aiperf           profile_export.jsonl: metadata.request_start_ns (Unix ns; timestamp_ns before 0.3), metrics.
                     input_sequence_length.value, output_sequence_length.value (ai-dynamo/aiperf,
                     docs/tutorials/working-with-profile-exports.md)
    inference-perf   per_request_lifecycle_metrics.json: start_time (s of a clock without origin), info.input_tokens,
                     info.output_tokens or info.response_metrics.output_tokens (kubernetes-sigs/inference-perf,
                     inference_perf/apis/base.py)
    vllm-bench       `vllm bench serve --save-result --save-detailed`: input_lens, output_lens, errors, and
                     start_times (s) where the version has them (vllm-project/vllm, vllm/benchmarks/serve.py)

Requests that failed or were cancelled are left out and counted. These files are in order of the last token, so all is
read, and put in order of arrival. Not here: the means of such results (sim.workload.bench_means).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from sim.files.json_values import Json, read_json, value_at
from sim.workload.sharegpt import MAX_CONVERSATION_BYTES
from sim.workload.trace_files import TRACE, TraceRow, json_objects, missing, number_of, seconds_of, tokens_of

Entries = Iterator[tuple[str, Json]]
"""Requests and where they stand; None = a failed one."""
RESULT_OPTIONS = {"guidellm": ["benchmark"]}
WARM_UP = "warmup"


class Fields(NamedTuple):
    """Where a request has what, keys joined by dots; of several names the first that is there."""

    started: tuple[str, ...]
    unit: str
    """Unit of its clock (sim.workload.trace_files)."""
    prompt: str
    output: tuple[str, ...]
    id: str = ""
    has_times: bool = True
    """Whether every version of the tool writes them."""


def result_rows(name: str, path: str, options: dict[str, str]) -> Iterator[tuple[str, TraceRow | None]]:
    """The requests of a file in any order, given the options behind its `#`; None = a failed one."""
    entries, fields = RESULT_READERS[name]
    for where, entry in entries(path, options):
        yield where, None if entry is None else _request(entry, fields, where)


def _request(entry: Json, fields: Fields, where: str) -> TraceRow:
    row = _object(entry, where)
    started, clock = _first(row, fields.started)
    if clock is None and fields.has_times:
        raise ValueError(f"{where}: {missing('field', started, list(row))}")
    name = value_at(row, fields.id)
    return TraceRow(
        None if clock is None and started not in row else seconds_of(clock, fields.unit, where, started),
        _count(row, (fields.prompt,), where),
        _count(row, fields.output, where),
        id=name if isinstance(name, str) and name.isprintable() else "",
    )


def _first(row: Json, names: tuple[str, ...]) -> tuple[str, Json]:
    """The first of `names` that `row` has, and what it has there; the first of all and None where it has none."""
    found = ((name, value_at(row, name)) for name in names)
    return next((each for each in found if each[1] is not None), (names[0], None))


def _count(row: Json, names: tuple[str, ...], where: str) -> int:
    """Tokens; a count that was written as 12.0 is 12."""
    name, cell = _first(row, names)
    return tokens_of(int(cell) if isinstance(cell, float) and cell.is_integer() else cell, where, name)


def _guidellm(path: str, options: dict[str, str]) -> Entries:
    benchmarks = value_at(_document(path), "benchmarks")
    if not isinstance(benchmarks, list) or not benchmarks:
        raise ValueError(f"{TRACE} {path!r}: want an object with a list `benchmarks`, as guidellm writes")
    last = len(benchmarks) - 1
    if last > 0 and "benchmark" not in options:
        raise ValueError(f"{TRACE} {path!r}: {last + 1} benchmarks in it; say which: FILE#benchmark=0 to {last}")
    index = number_of(options.get("benchmark", "0"), f"{TRACE} {path!r}", "benchmark")
    if index > last:
        raise ValueError(f"{TRACE} {path!r}: benchmark={index} must be 0 to {last}")
    where = f"{TRACE} {path!r} benchmark {index}"
    successful = value_at(benchmarks[index], "requests.successful")
    if not isinstance(successful, list):
        raise ValueError(f"{where}: no list requests.successful; was it written with requests?")
    for status in ("incomplete", "errored"):
        failed = value_at(benchmarks[index], f"requests.{status}")
        yield from [(where, None)] * (len(failed) if isinstance(failed, list) else 0)
    for number, entry in enumerate(successful):
        yield f"{where} request {number}", _object(entry, f"{where} request {number}")


def _aiperf(path: str, options: dict[str, str]) -> Entries:
    for where, row in json_objects(path, ("metadata", "metrics"), has_prose=True):
        if value_at(row, "metadata.benchmark_phase") == WARM_UP:
            continue
        has_failed = row.get("error") is not None or value_at(row, "metadata.was_cancelled")
        yield where, None if has_failed else row


def _inference_perf(path: str, options: dict[str, str]) -> Entries:
    entries = _document(path)
    if not isinstance(entries, list):
        raise ValueError(f"{TRACE} {path!r}: want a list of requests, as inference-perf writes per request")
    for number, entry in enumerate(entries):
        where = f"{TRACE} {path!r} request {number}"
        yield where, None if value_at(entry, "error") is not None else _object(entry, where)


def _vllm_bench(path: str, options: dict[str, str]) -> Entries:
    result = _object(_document(path), f"{TRACE} {path!r}")
    lists = {}
    for name in ("input_lens", "output_lens", "start_times", "errors"):
        values = result.get(name)
        if values is None and name in ("start_times", "errors"):
            continue
        if not isinstance(values, list):
            raise ValueError(f"{TRACE} {path!r}: no list {name!r}; was it saved with --save-detailed?")
        lists[name] = values
        if len(values) != len(lists["input_lens"]):
            raise ValueError(
                f"{TRACE} {path!r}: {name} has {len(values)} entries, and input_lens has {len(lists['input_lens'])}"
            )
    for number, cells in enumerate(zip(*lists.values(), strict=True)):
        entry = dict(zip(lists, cells, strict=True))
        yield f"{TRACE} {path!r} request {number}", None if entry.get("errors") else entry


RESULT_READERS: dict[str, tuple[Callable[[str, dict[str, str]], Entries], Fields]] = {
    "guidellm": (
        _guidellm,
        Fields(("request_start_time", "start_time"), "s", "prompt_tokens", ("output_tokens",), "request_id"),
    ),
    "aiperf": (
        _aiperf,
        Fields(
            ("metadata.request_start_ns", "metadata.timestamp_ns"),
            "ns",
            "metrics.input_sequence_length.value",
            ("metrics.output_sequence_length.value",),
            "metadata.x_request_id",
        ),
    ),
    "inference-perf": (
        _inference_perf,
        Fields(
            ("start_time",), "s", "info.input_tokens", ("info.response_metrics.output_tokens", "info.output_tokens")
        ),
    ),
    "vllm-bench": (_vllm_bench, Fields(("start_times",), "s", "input_lens", ("output_lens",), has_times=False)),
}
"""Who reads the requests, and where each has what, by dataset name."""


def _document(path: str) -> Json:
    document: Json = read_json(path, TRACE, max_bytes=MAX_CONVERSATION_BYTES, has_prose=True)
    return document


def _object(value: Json, where: str) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: want an object, got {type(value).__name__}")
    return value
