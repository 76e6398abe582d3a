"""Results of benchmark tools: means under the keys of `vllm bench serve --save-result`, and requests one by one, as
workloads. Conversations of ShareGPT are among them.

    vLLM             means: an object, an object a line (--append-result), a list (`vllm bench sweep`), or the printed
                     block; SGLang's bench_serving is alike. Requests: --save-detailed
    GuideLLM         benchmarks.json; inter_token_latency_ms is without the first token, as vLLM's TPOT
                     (vllm-project/guidellm, src/guidellm/benchmark/schemas, src/guidellm/schemas/base/request_stats.py)
    AIPerf           means: profile_export_aiperf.json; requests: profile_export.jsonl (ai-dynamo/aiperf,
                     docs/reference/json-export-schema.md, docs/tutorials/working-with-profile-exports.md)
    inference-perf   means: summary_lifecycle_metrics.json, whose time per token counts chunks; requests:
                     per_request_lifecycle_metrics.json (kubernetes-sigs/inference-perf, docs/reports.md,
                     inference_perf/apis/base.py)

bench.json says where each tool has which mean, trace_rows.json where it has what of a request. Requests that failed are
left out and counted; the others are in order of the last token, so all is read, and put in order of arrival.
Not here: a frame of rows (sim.report.notebook).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import msgspec

from sim.files.json_values import Json, json_lines, parse_json, read_json, value_at
from sim.files.read import read_text
from sim.workload.trace_files import TRACE, Row, json_objects, number_of

WHAT = "bench result"
MAX_CONVERSATION_BYTES = 2 << 30
"""Size of such a file, which is read at once: the one that everybody uses has 640 MB."""
MIN_TOKENS = 4
"""Shorter counted conversations are passed over, as in `vllm bench serve`, whose upper bounds are not applied."""
SIGNS, MEDIAN_SIGNS = ("completed", "mean_ttft_ms"), ("completed", "median_ttft_ms")
"""Keys by which a result of vLLM is known; of one without means, those of medians."""
LINE_ENDINGS = (".jsonl", ".jsonl.gz")
CONSOLE = "Serving Benchmark Result"
"""Heading of the block that the tool prints."""
LINE = re.compile(r"^([A-Z][^:\n]*?)(?: \((?:s|ms|req/s|tok/s|RPS)\))?:[ \t]+(\d+(?:\.\d+)?|inf)\s*$", re.MULTILINE)


class Means(msgspec.Struct, frozen=True, kw_only=True):
    """Means of a tool's result, keys joined by dots; of several names the first that is there."""

    backend: str
    completed: tuple[str, ...]
    prompt: str
    output: str
    ttft: str
    tpot: str
    throughput: str
    ms: float = 1.0
    """Milliseconds in a unit of its times."""
    more: dict[str, str] = {}
    """Further keys of a row, and names; those that are not there are left out."""


class _Tables(msgspec.Struct, frozen=True):
    kinds: dict[str, set[str]]
    """Keys that tell whose result an object is; all others are vLLM's."""
    printed: dict[str, str]
    """Name in the printed block -> vLLM's key."""
    means: dict[str, Means]


_TABLES = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=_Tables)
KINDS, PRINTED, MEANS = _TABLES.kinds, _TABLES.printed, _TABLES.means


def bench_rows(path: Path) -> list[dict[str, Json]]:
    """The results in a file as rows with vLLM's keys; vLLM's own keep all keys. Raises ValueError naming the file."""
    where = f"{WHAT} {str(path)!r}"
    if str(path).endswith(LINE_ENDINGS):
        entries = [(f"{where} line {number}", entry) for number, entry in json_lines(path, WHAT, has_prose=True)]
    else:
        text = read_text(path, WHAT, max_bytes=MAX_CONVERSATION_BYTES)
        if CONSOLE in text and not text.lstrip().startswith(("{", "[")):
            content: Json = [_printed(block) for block in text.split(CONSOLE)[1:]]
        else:
            content = parse_json(text, where, has_prose=True)
        if not isinstance(content, list):
            entries = [(where, content)]
        else:
            entries = [(f"{where} entry {number}", entry) for number, entry in enumerate(content)]
    if not entries:
        raise ValueError(f"{where} is empty")
    return [row for at, entry in entries for row in _rows(entry, at)]


def _rows(entry: Json, where: str) -> list[dict[str, Json]]:
    if not isinstance(entry, dict):
        raise ValueError(f"{where} must be an object, as `vllm bench serve --save-result` writes")
    kind = next((kind for kind, signs in KINDS.items() if signs <= set(entry)), "vLLM")
    if kind == "GuideLLM":
        found = _objects(entry["benchmarks"], f"{where}: benchmarks")
        return [_row(MEANS[kind], each, f"{where} benchmark {number}") for number, each in enumerate(found)]
    if kind in MEANS:
        return [_row(MEANS[kind], entry, where)]
    if kind == "lanesim":
        # What `lanesim compare --json` wrote: its load is the scenario's.
        load, runs = value_at(entry, "scenario.workload"), _objects(entry["runs"], f"{where}: runs")
        return [{**(load if isinstance(load, dict) else {}), **run} for run in runs]
    for key in MEDIAN_SIGNS if SIGNS[1] not in entry and MEDIAN_SIGNS[1] in entry else SIGNS:
        _number(entry, key, where)
    return [entry]


def _objects(value: Json, where: str) -> list[dict[str, Json]]:
    if not isinstance(value, list) or not value or not all(isinstance(each, dict) for each in value):
        raise ValueError(f"{where} must be a list of at least one")
    return [each for each in value if isinstance(each, dict)]


def _printed(block: str) -> dict[str, Json]:
    """The numbers of a printed block under vLLM's keys."""
    told = {name.lower(): int(text) if text.isdecimal() else float(text) for name, text in LINE.findall(block)}
    return {key: told[name] for name, key in PRINTED.items() if name in told}


def _row(means: Means, result: Json, where: str) -> dict[str, Json]:
    def of(name: str) -> float:
        return _number(result, name, where)

    completed = int(of(next((name for name in means.completed if _has(result, name)), means.completed[-1])))
    output_tokens = of(means.output)
    ttft_ms, tpot_ms = (of(name) * _ms(means, result, name, where) for name in (means.ttft, means.tpot))
    if means.tpot.endswith("request_latency.mean"):
        if tpot_ms < ttft_ms:
            raise ValueError(f"{where}: {means.tpot}={tpot_ms / 1e3:g} s is below the time to first token")
        tpot_ms = (tpot_ms - ttft_ms) / (output_tokens - 1.0) if output_tokens > 1.0 else 0.0
    more = {key: of(name) for key, name in means.more.items() if key != "max_concurrency" or _has(result, name)}
    if "max_concurrency" in more:
        more["max_concurrency"] = int(more["max_concurrency"])
    return {
        "backend": means.backend,
        "completed": completed,
        "total_input_tokens": of(means.prompt) * completed,
        "total_output_tokens": output_tokens * completed,
        "output_throughput": of(means.throughput),
        "mean_ttft_ms": ttft_ms,
        "mean_tpot_ms": tpot_ms,
        **more,
    }


def _ms(means: Means, result: Json, name: str, where: str) -> float:
    """Milliseconds in a unit of the time `name`, which AIPerf states beside it."""
    unit_name = f"{name.rpartition('.')[0]}.unit"
    unit = value_at(result, unit_name)
    if unit is None:
        return means.ms
    if unit not in ("ms", "s", "sec"):
        raise ValueError(f"{where}: {unit_name}={unit!r:.40} must be ms or s")
    return 1.0 if unit == "ms" else 1e3


def _has(value: Json, path: str) -> bool:
    return value_at(value, path) is not None


def _number(value: Json, path: str, where: str) -> float:
    """The number under `path`, keys joined by dots; vLLM's stay as they are."""
    value = value_at(value, path)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(
            f"{where}: no number under {path!r}. Give what `vllm bench serve --save-result` or alike wrote"
        )
    if value < 0.0:
        raise ValueError(f"{where}: {path}={value:g} must not be negative")
    return value


Entries = Iterator[tuple[str, Row | None]]
"""Requests and where they stand; None = a failed one."""
RESULT_OPTIONS = {"sharegpt": ["tokenizer"], "guidellm": ["benchmark"]}
WARM_UP = "warmup"


def _guidellm(path: str, options: dict[str, str]) -> Entries:
    benchmarks = value_at(_document(path), "benchmarks")
    if not isinstance(benchmarks, list) or not benchmarks:
        raise ValueError(f"{TRACE} {path!r} must be an object with a list `benchmarks`, as guidellm writes")
    last = len(benchmarks) - 1
    if last > 0 and "benchmark" not in options:
        raise ValueError(f"{TRACE} {path!r}: {last + 1} benchmarks in it. Say which: FILE#benchmark=0 to {last}")
    index = number_of(options.get("benchmark", "0"), f"{TRACE} {path!r}", "benchmark")
    if index > last:
        raise ValueError(f"{TRACE} {path!r}: benchmark={index} must be 0 to {last}")
    where = f"{TRACE} {path!r} benchmark {index}"
    successful = value_at(benchmarks[index], "requests.successful")
    if not isinstance(successful, list):
        raise ValueError(f"{where}: no list requests.successful. Was it written with requests?")
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
        raise ValueError(f"{TRACE} {path!r} must be a list of requests, as inference-perf writes per request")
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
            raise ValueError(f"{TRACE} {path!r}: no list {name!r}. Was it saved with --save-detailed?")
        lists[name] = values
        if len(values) != len(lists["input_lens"]):
            raise ValueError(
                f"{TRACE} {path!r}: {name} has {len(values)} entries, and input_lens has {len(lists['input_lens'])}"
            )
    for number, cells in enumerate(zip(*lists.values(), strict=True)):
        entry = dict(zip(lists, cells, strict=True))
        yield f"{TRACE} {path!r} request {number}", None if entry.get("errors") else entry


def conversations(path: str, options: dict[str, str]) -> Iterator[tuple[str, Row]]:
    """`prompt_tokens`, `output_tokens` and `id` of each conversation of at least two turns, and where it stands. An
    entry has the two, or `conversations` with texts under `value`, which the tokenizer.json in the option `tokenizer`'s
    directory counts. Raises ValueError naming the entry."""
    entries = read_json(path, "trace", max_bytes=MAX_CONVERSATION_BYTES, has_prose=True)
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"trace {path!r} must be a non-empty JSON list of conversations")
    count: Callable[[str], int] | None = None
    num_short = 0
    for number, entry in enumerate(entries, start=1):
        where = f"trace {path!r} entry {number}"
        if not isinstance(entry, dict):
            raise ValueError(f"{where} must be an object, got {type(entry).__name__}")
        row: Row = {"id": "", "prompt_tokens": None, "output_tokens": None, **entry}
        if "prompt_tokens" not in entry and "output_tokens" not in entry:
            turns = entry.get("conversations")
            if not isinstance(turns, list):
                raise ValueError(f"{where} must have prompt_tokens and output_tokens, or a list `conversations`")
            texts = [turn.get("value") if isinstance(turn, dict) else None for turn in turns[:2]]
            if len(texts) < 2:
                num_short += 1
                continue
            if not all(isinstance(text, str) for text in texts):
                raise ValueError(f"{where}: its first two turns must have a text under `value`")
            count = count or _counter(path, options.get("tokenizer"))
            lengths = [count(str(text)) for text in texts]
            if min(lengths) < MIN_TOKENS:
                num_short += 1
                continue
            row |= dict(zip(("prompt_tokens", "output_tokens"), lengths, strict=True))
        yield where, row
    if num_short == len(entries):
        raise ValueError(f"trace {path!r}: no conversation of at least two turns of {MIN_TOKENS} tokens in it")


def _counter(path: str, tokenizer: str | None) -> Callable[[str], int]:
    if not tokenizer:
        raise ValueError(f"trace {path!r}: texts without lengths. Name a tokenizer: {path}#tokenizer=DIRECTORY")
    if not Path(tokenizer).is_dir():
        raise ValueError(f"tokenizer={tokenizer!r} must be a local directory")
    try:
        tokenizers = import_module("tokenizers")
    except ImportError:
        raise ValueError(f"trace {path!r}: counting its tokens needs `pip install tokenizers`") from None
    file = Path(tokenizer) / "tokenizer.json"
    try:
        encode = tokenizers.Tokenizer.from_file(str(file)).encode
    except Exception as error:  # the library raises bare Exception for a missing or malformed file
        raise ValueError(f"{file}: cannot be loaded: {str(error).splitlines()[0]}") from None
    return lambda text: len(encode(text, add_special_tokens=False).ids)


REQUESTS: dict[str, Callable[[str, dict[str, str]], Entries]] = {
    "sharegpt": conversations,
    "guidellm": _guidellm,
    "aiperf": _aiperf,
    "inference-perf": _inference_perf,
    "vllm-bench": _vllm_bench,
}
"""Finders of the requests in a file, given the options behind its `#`, by dataset name."""


def _document(path: str) -> Json:
    document: Json = read_json(path, TRACE, max_bytes=MAX_CONVERSATION_BYTES, has_prose=True)
    return document


def _object(value: Json, where: str) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be an object, got {type(value).__name__}")
    return value
