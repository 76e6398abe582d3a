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

from sim.files.json_values import Json, read_json
from sim.workload.sharegpt import MAX_CONVERSATION_BYTES
from sim.workload.trace_files import (
    TRACE,
    Row,
    TraceRow,
    json_objects,
    missing,
    number_of,
    seconds_of,
    tokens_of,
)

Rows = Iterator[tuple[str, TraceRow | None]]
RESULT_OPTIONS = {"guidellm": ["benchmark"]}
GUIDELLM_TIMES = ("request_start_time", "start_time")
AIPERF_TIMES = ("request_start_ns", "timestamp_ns")
WARM_UP = "warmup"


def _guidellm(path: str, options: dict[str, str]) -> Rows:
    document = _document(path)
    benchmarks = document.get("benchmarks") if isinstance(document, dict) else None
    if not isinstance(benchmarks, list) or not benchmarks:
        raise ValueError(f"{TRACE} {path!r}: want an object with a list `benchmarks`, as guidellm writes")
    last = len(benchmarks) - 1
    if last > 0 and "benchmark" not in options:
        raise ValueError(f"{TRACE} {path!r}: {last + 1} benchmarks in it; say which: FILE#benchmark=0 to {last}")
    index = number_of(options.get("benchmark", "0"), f"{TRACE} {path!r}", "benchmark")
    if index > last:
        raise ValueError(f"{TRACE} {path!r}: benchmark={index} must be 0 to {last}")
    where = f"{TRACE} {path!r} benchmark {index}"
    requests = _part(_object(benchmarks[index], where), "requests", where)
    successful = requests.get("successful")
    if not isinstance(successful, list):
        raise ValueError(f"{where}: no list requests.successful; was it written with requests?")
    for status in ("incomplete", "errored"):
        failed = requests.get(status)
        yield from [(where, None)] * (len(failed) if isinstance(failed, list) else 0)
    for number, entry in enumerate(successful):
        at = f"{where} request {number}"
        row = _object(entry, at)
        started = _first(row, GUIDELLM_TIMES, at)
        yield (
            at,
            TraceRow(
                seconds_of(row[started], "s", at, started),
                tokens_of(_whole(row.get("prompt_tokens")), at, "prompt_tokens"),
                tokens_of(_whole(row.get("output_tokens")), at, "output_tokens"),
                id=_name(row.get("request_id")),
            ),
        )


def _aiperf(path: str, options: dict[str, str]) -> Rows:
    for where, row in json_objects(path, ("metadata", "metrics"), has_prose=True):
        about = _part(row, "metadata", where)
        if about.get("benchmark_phase") == WARM_UP:
            continue
        if row.get("error") is not None or about.get("was_cancelled"):
            yield where, None
            continue
        metrics = _part(row, "metrics", where)
        started = _first(about, AIPERF_TIMES, where)
        yield (
            where,
            TraceRow(
                seconds_of(about[started], "ns", where, f"metadata.{started}"),
                _metric(metrics, "input_sequence_length", where),
                _metric(metrics, "output_sequence_length", where),
                id=_name(about.get("x_request_id")),
            ),
        )


def _inference_perf(path: str, options: dict[str, str]) -> Rows:
    entries = _document(path)
    if not isinstance(entries, list):
        raise ValueError(f"{TRACE} {path!r}: want a list of requests, as inference-perf writes per request")
    for number, entry in enumerate(entries):
        where = f"{TRACE} {path!r} request {number}"
        row = _object(entry, where)
        if row.get("error") is not None:
            yield where, None
            continue
        info = _part(row, "info", where)
        nested = info.get("response_metrics")
        response = nested if isinstance(nested, dict) else info
        yield (
            where,
            TraceRow(
                seconds_of(row.get("start_time"), "s", where, "start_time"),
                tokens_of(_whole(info.get("input_tokens")), where, "info.input_tokens"),
                tokens_of(_whole(response.get("output_tokens")), where, "info.output_tokens"),
            ),
        )


def _vllm_bench(path: str, options: dict[str, str]) -> Rows:
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
    starts, errors = lists.get("start_times"), lists.get("errors")
    for number, prompt in enumerate(lists["input_lens"]):
        where = f"{TRACE} {path!r} request {number}"
        if errors is not None and errors[number]:
            yield where, None
            continue
        yield (
            where,
            TraceRow(
                None if starts is None else seconds_of(starts[number], "s", where, "start_times"),
                tokens_of(prompt, where, "input_lens"),
                tokens_of(lists["output_lens"][number], where, "output_lens"),
            ),
        )


RESULT_READERS: dict[str, Callable[[str, dict[str, str]], Rows]] = {
    "guidellm": _guidellm,
    "aiperf": _aiperf,
    "inference-perf": _inference_perf,
    "vllm-bench": _vllm_bench,
}
"""Readers by dataset name: requests of a file, given the options behind its `#`, in any order; None = a failed one."""


def _document(path: str) -> Json:
    document: Json = read_json(path, TRACE, max_bytes=MAX_CONVERSATION_BYTES, has_prose=True)
    return document


def _object(value: Json, where: str) -> Row:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: want an object, got {type(value).__name__}")
    return value


def _part(row: Row, name: str, where: str) -> Row:
    if name not in row:
        raise ValueError(f"{where}: {missing('field', name, list(row))}")
    return _object(row[name], f"{where}: {name}")


def _first(row: Row, names: tuple[str, ...], where: str) -> str:
    """The first of `names` that `row` has."""
    found = next((name for name in names if row.get(name) is not None), None)
    if found is None:
        raise ValueError(f"{where}: {missing('field', names[0], list(row))}")
    return found


def _metric(metrics: Row, name: str, where: str) -> int:
    metric = _part(metrics, name, where)
    return tokens_of(_whole(metric.get("value")), where, f"metrics.{name}.value")


def _whole(cell: Json) -> Json:
    """A count that was written as 12.0 is 12."""
    return int(cell) if isinstance(cell, float) and cell.is_integer() else cell


def _name(cell: Json) -> str:
    return cell if isinstance(cell, str) and cell.isprintable() else ""
