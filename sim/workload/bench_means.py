"""Means that benchmark tools write, as rows under the keys of `vllm bench serve --save-result`.

    vLLM             an object; with --append-result an object a line; `vllm bench sweep` a list of them. SGLang's
                     bench_serving writes the same keys, an object a line
    GuideLLM         benchmarks[].metrics.NAME.successful.mean: time_to_first_token_ms, inter_token_latency_ms (without
                     the first token, as vLLM's TPOT; its own time_per_output_token_ms counts the first one),
                     prompt_token_count, output_token_count, output_tokens_per_second, requests_per_second,
                     request_concurrency (vllm-project/guidellm, src/guidellm/benchmark/schemas/generative/metrics.py)
    AIPerf           profile_export_aiperf.json: NAME.avg with NAME.unit: time_to_first_token and inter_token_latency
                     (ms), input_sequence_length, output_sequence_length, output_token_throughput, request_count;
                     input_config.loadgen.concurrency (ai-dynamo/aiperf, docs/reference/json-export-schema.md)
    inference-perf   summary_lifecycle_metrics.json: successes.latency.NAME.mean (s), successes.prompt_len.mean,
                     output_len.mean, throughput.output_tokens_per_sec, count. Its time per token counts chunks, so
                     TPOT is (request_latency - time_to_first_token) / (output_len - 1)
                     (kubernetes-sigs/inference-perf, docs/reports.md)
    InferenceX       hw, conc, isl, osl, mean_ttft and mean_tpot (s), output_tput_per_gpu, tp; rows of one engine
                     (SemiAnalysisAI/InferenceX, utils/process_result.py)

Not here: requests one by one (sim.workload.bench_requests), a frame of rows (sim.report.bench).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sim.files.json_values import Json, json_lines, read_json, value_at
from sim.workload.sharegpt import MAX_CONVERSATION_BYTES

WHAT = "bench result"
SIGNS = ("completed", "mean_ttft_ms")
"""Keys by which a result of vLLM is known."""
LINE_ENDINGS = (".jsonl", ".jsonl.gz")
KINDS = {
    "GuideLLM": {"benchmarks"},
    "AIPerf": {"time_to_first_token", "output_token_throughput"},
    "inference-perf": {"load_summary", "successes"},
    "InferenceX": {"hw", "conc", "tput_per_gpu"},
}
"""Keys that tell whose result an object is; all others are vLLM's."""


def kind_of(content: Json) -> str:
    """Whose result this is."""
    first = content[0] if isinstance(content, list) and content else content
    keys = set(first) if isinstance(first, dict) else set()
    return next((kind for kind, signs in KINDS.items() if signs <= keys), "vLLM")


def bench_rows(path: Path) -> list[dict[str, Json]]:
    """The results in a file, each as a row with vLLM's keys; a result of vLLM keeps all it has.

    Raises ValueError, one line naming the file and what it lacks.
    """
    where = f"{WHAT} {str(path)!r}"
    if str(path).endswith(LINE_ENDINGS):
        entries = [(f"{where} line {number}", entry) for number, entry in json_lines(path, WHAT, has_prose=True)]
    else:
        content = read_json(path, WHAT, max_bytes=MAX_CONVERSATION_BYTES, has_prose=True)
        if not isinstance(content, list):
            entries = [(where, content)]
        else:
            entries = [(f"{where} entry {number}", entry) for number, entry in enumerate(content)]
    if not entries:
        raise ValueError(f"{where} is empty")
    return [row for at, entry in entries for row in _rows(entry, at)]


def _rows(entry: Json, where: str) -> list[dict[str, Json]]:
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: want an object, as `vllm bench serve --save-result` writes")
    kind = kind_of(entry)
    if kind == "GuideLLM":
        benchmarks = entry["benchmarks"]
        if not isinstance(benchmarks, list) or not benchmarks:
            raise ValueError(f"{where}: benchmarks must be a list of at least one")
        return [_guidellm(each, f"{where} benchmark {number}") for number, each in enumerate(benchmarks)]
    if kind == "AIPerf":
        return [_aiperf(entry, where)]
    if kind == "inference-perf":
        return [_inference_perf(entry, where)]
    if kind == "InferenceX":
        return [_inferencex(entry, where)]
    for key in SIGNS:
        _number(entry, key, where)
    return [entry]


def _guidellm(benchmark: Json, where: str) -> dict[str, Json]:
    def mean(name: str) -> float:
        return _number(benchmark, f"metrics.{name}.successful.mean", where)

    for counted in ("metrics.request_totals.successful", "run_stats.requests_made.successful"):
        if _has(benchmark, counted):
            completed = _number(benchmark, counted, where)
            break
    else:
        completed = _number(benchmark, "metrics.prompt_token_count.successful.count", where)
    return _row(
        "guidellm",
        completed,
        (mean("prompt_token_count"), mean("output_token_count")),
        (mean("time_to_first_token_ms"), mean("inter_token_latency_ms")),
        mean("output_tokens_per_second"),
        request_throughput=mean("requests_per_second"),
        mean_concurrency=mean("request_concurrency"),
    )


def _aiperf(result: Mapping[str, Json], where: str) -> dict[str, Json]:
    def average(name: str) -> float:
        return _number(result, f"{name}.avg", where)

    def average_ms(name: str) -> float:
        held = result.get(name)
        unit = held.get("unit") if isinstance(held, dict) else "ms"
        if unit not in ("ms", "s", "sec"):
            raise ValueError(f"{where}: {name}.unit={unit!r:.40} must be ms or s")
        return average(name) * (1.0 if unit == "ms" else 1e3)

    concurrency = "input_config.loadgen.concurrency"
    more = {"max_concurrency": int(_number(result, concurrency, where))} if _has(result, concurrency) else {}
    return _row(
        "aiperf",
        average("request_count"),
        (average("input_sequence_length"), average("output_sequence_length")),
        (average_ms("time_to_first_token"), average_ms("inter_token_latency")),
        average("output_token_throughput"),
        **more,
    )


def _inference_perf(result: Mapping[str, Json], where: str) -> dict[str, Json]:
    def of(name: str) -> float:
        return _number(result, f"successes.{name}", where)

    output_tokens = of("output_len.mean")
    first_s, all_s = of("latency.time_to_first_token.mean"), of("latency.request_latency.mean")
    if all_s < first_s:
        raise ValueError(
            f"{where}: successes.latency.request_latency.mean={all_s:g} s is below the time to first token"
        )
    token_s = (all_s - first_s) / (output_tokens - 1.0) if output_tokens > 1.0 else 0.0
    return _row(
        "inference-perf",
        of("count"),
        (of("prompt_len.mean"), output_tokens),
        (first_s * 1e3, token_s * 1e3),
        of("throughput.output_tokens_per_sec"),
    )


def _inferencex(result: Mapping[str, Json], where: str) -> dict[str, Json]:
    gpus = _one_engine_gpus(result, where)
    concurrency = int(_number(result, "conc", where))
    row: dict[str, Json] = {
        "backend": "inferencex",
        "max_concurrency": concurrency,
        "output_throughput": _number(result, "output_tput_per_gpu", where) * gpus,
        "mean_ttft_ms": _number(result, "mean_ttft", where) * 1e3,
        "mean_tpot_ms": _number(result, "mean_tpot", where) * 1e3,
    }
    if _has(result, "isl"):
        # How many requests ran is not written; means of one per client say as much.
        row |= {
            "completed": concurrency,
            "total_input_tokens": _number(result, "isl", where) * concurrency,
            "total_output_tokens": _number(result, "osl", where) * concurrency,
        }
    return row | {name: result[name] for name in ("hw", "framework", "precision") if isinstance(result.get(name), str)}


def _one_engine_gpus(result: Mapping[str, Json], where: str) -> float:
    """GPUs that the throughput was divided by: `tp` of one engine. Rows of several nodes divide by their decode GPUs,
    and rows in stages by tp x pp x pcp in some versions alone: both are refused."""
    for key in ("is_multinode", "disagg"):
        if result.get(key) not in (None, False):
            raise ValueError(f"{where}: {key}={result[key]!r} is not understood; want a row of one engine on one node")
    for key in ("pp", "pp_size", "pcp", "pcp_size"):
        if _has(result, key) and _number(result, key, where) != 1.0:
            raise ValueError(f"{where}: {key}={result[key]!r} is not understood; want 1")
    gpus = _number(result, "tp", where)
    if gpus < 1.0:
        raise ValueError(f"{where}: tp={result['tp']!r} must be at least 1")
    return gpus


def _row(
    backend: str,
    completed: float,
    tokens: tuple[float, float],
    latencies_ms: tuple[float, float],
    output_throughput: float,
    **more: Json,
) -> dict[str, Json]:
    """`tokens` of a prompt and an output in the mean, `latencies_ms` TTFT and TPOT."""
    row: dict[str, Json] = {
        "backend": backend,
        "completed": int(completed),
        "total_input_tokens": tokens[0] * int(completed),
        "total_output_tokens": tokens[1] * int(completed),
        "output_throughput": output_throughput,
        "mean_ttft_ms": latencies_ms[0],
        "mean_tpot_ms": latencies_ms[1],
    }
    return row | more


def _has(value: Json, path: str) -> bool:
    return value_at(value, path) is not None


def _number(value: Json, path: str, where: str) -> float:
    """The number under `path`, keys joined by dots; vLLM's own stay as they are."""
    value = value_at(value, path)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(
            f"{where}: no number under {path!r}; want what `vllm bench serve --save-result` or alike wrote"
        )
    if value < 0.0:
        raise ValueError(f"{where}: {path}={value:g} must not be negative")
    return value
