"""`lanesim check FILE...`: what a file is and whether it is sound, without running anything.

Every format is told by what is in the file, since users name files as they like, and then read by its own reader.
Not here: the readers. It lives in this package because this one alone knows all formats.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sim.cli.console import claim, write_json
from sim.cli.lazy import SOURCE
from sim.cli.options import OVERWRITE
from sim.workload.bench import KINDS, kind_of

if TYPE_CHECKING:
    from calibrate.server.levels import Served

FIRST_LINES = 1
YAML_ENDINGS = (".yaml", ".yml")
TRACE_COLUMNS = "FILE#arrival=COLUMN,prompt=COLUMN,output=COLUMN,unit=ms"
TEXT_ENDINGS = (".log", ".txt", ".prom")


@click.command("check", epilog="Example: lanesim check scenario.yaml results/demo-h100 profile.json")
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "json_path", default=None, metavar="FILE", help="Write what was found as JSON; - = stdout.")
@OVERWRITE
def check_command(paths: tuple[Path, ...], json_path: str | None) -> None:
    """Say what each FILE is, and whether it is sound; nothing is run.

    Known: scenarios, grids, profiles, engines, models' config.json, results and stores (folders), points, traces,
    ShareGPT conversations, acceptance tapes, requests of a vLLM run and their prompts, tables of closed-loop cells,
    tuned tables; logs (.log), looks at /metrics (.txt), benchmark results and measured levels of a server.
    The first one that is not sound ends the command with exit code 2.
    """
    claim(files={"--json": json_path}, inputs=paths)
    found = []
    meta = click.get_current_context().meta
    for path in paths:
        meta[SOURCE] = str(path)
        kind, content = check_file(path)
        found.append({"path": str(path), "kind": kind, "content": content})
        if json_path != "-":
            print(f"{path}: {kind}: {content}")
    meta.pop(SOURCE)
    write_json(json_path, {"files": found})


def check_file(path: Path) -> tuple[str, str]:
    """(what it is, what is in it). Raises ValueError, one line that names the file, where it is not sound or not known.

    >>> import sim.costs.profile_files
    >>> check_file(sim.costs.profile_files.SHIPPED / "h100-sxm" / "llama-2-7b.json")
    ('profile', 'h100-sxm/llama-2-7b')
    """
    from sim.files.read import read_bytes

    file, _, columns = str(path).rpartition("#")
    if "=" in columns and (kind := _unpacked(Path(file)).suffix.removeprefix(".")) in ("csv", "jsonl"):
        return _trace(kind, Path(file), str(path))
    if path.is_dir():
        return _folder(path)
    if path.suffix in YAML_ENDINGS:
        return _yaml(path)
    if path.suffix == ".parquet":
        return _parquet(path)
    if _unpacked(path).suffix == ".csv":
        return _csv(path)
    if _unpacked(path).suffix == ".jsonl":
        return _json_lines(path)
    if path.suffix == ".json":
        return _json(path)
    if path.suffix in TEXT_ENDINGS:
        return _text(path)
    read_bytes(path, "file")
    raise ValueError(
        f"file {str(path)!r}: want a name that ends with .yaml, .json, .jsonl, .csv, .parquet, .log or .txt, or a "
        "folder of results"
    )


def _unpacked(path: Path) -> Path:
    return path.with_suffix("") if path.suffix == ".gz" else path


def _folder(path: Path) -> tuple[str, str]:
    from sim.report.results import REAL_COLUMNS, REQUESTS, SUMMARY, WORKS, is_replay, read_columns, read_summary
    from sim.studies.store import MARK, Store

    if (path / MARK).exists():
        keys = Store(path).keys()
        return "store", f"{len(keys)} rows"
    if (path / "config.json").exists() and not (path / SUMMARY).exists():
        return _json(path / "config.json")
    if is_replay(path):
        from sim.costs.profile_files import load

        load(path / "profile.json")
        requests = read_columns(path / REQUESTS)
        read_columns(path / WORKS, REAL_COLUMNS)
        return "replay", f"{len(set(zip(requests['policy'], requests['seed'], strict=True)))} runs"
    if not (path / SUMMARY).exists():
        raise ValueError(
            f"folder {str(path)!r}: holds none of {SUMMARY} (results), {MARK} (a store) and config.json (a model)"
        )
    summary = read_summary(path)
    requests = read_columns(path / REQUESTS)
    if (path / WORKS).exists():
        read_columns(path / WORKS)
    return "results", f"{len(summary.runs)} runs, {len(requests['index'])} requests"


def _yaml(path: Path) -> tuple[str, str]:
    from sim.costs.profile_files import load
    from sim.run.resolve import resolve_all
    from sim.run.scenario import parse_scenario
    from sim.run.scenario_file import read_scenario

    raw = read_scenario(path)
    if "grid" in raw or "zip" in raw:
        from sim.studies.grid import Grid
        from sim.studies.sweep import SweepPlan

        grid = Grid.of(path)
        try:
            SweepPlan.of(grid)
        except ValueError as error:
            raise ValueError(f"grid file {str(path)!r}: {error}") from None
        return "grid", f"{grid.num_scenarios} scenarios, {grid.num_runs} runs"
    try:
        scenario = parse_scenario(raw)
        resolve_all(scenario, load(scenario.profile))
    except ValueError as error:
        raise ValueError(f"scenario file {str(path)!r}: {error}") from None
    return "scenario", f"{', '.join(scenario.policy)} on {scenario.profile}"


def _parquet(path: Path) -> tuple[str, str]:
    from sim.files.arrow_tables import read_parquet
    from sim.report.results import COLUMNS, read_columns

    if path.name in COLUMNS:
        columns = read_columns(path)
        return "results table", f"{len(next(iter(columns.values())))} rows"
    table = read_parquet(path, "table")
    return "Parquet table", f"{table.num_rows} rows of {', '.join(table.column_names[:8])}"


def _text(path: Path) -> tuple[str, str]:
    from calibrate.server.level_files import read_windows
    from calibrate.server.metrics import samples
    from sim.files.read import lines_of

    if num_lines := sum(1 for _ in read_windows(text for _, text in lines_of(path, "file"))):
        return "log of a server", f"{num_lines} lines of load"
    try:
        return "metrics of a server", f"{len(samples(path))} samples"
    except ValueError as error:
        raise ValueError(f"file {str(path)!r}: no line of load of vLLM or SGLang in it, and as {error}") from None


def _csv(path: Path) -> tuple[str, str]:
    from calibrate.judge.cell_table import REQUEST_COLUMNS, REQUIRED, read_cells, read_request_list
    from sim.files.arrow_tables import read_csv

    header, rows = read_csv(path, "table")
    names = set(header)
    if names >= set(REQUIRED):
        return "closed-loop cells", f"{len(read_cells(path, {}).cells)} cells"
    for name, needed in (
        ("trace-azure", {"TIMESTAMP", "ContextTokens", "GeneratedTokens"}),
        ("burstgpt", {"Timestamp", "Request tokens", "Response tokens"}),
        ("mooncake", {"timestamp_ms", "input_length", "output_length", "n_prefix_blocks_seen_before"}),
    ):
        if names >= needed:
            return _trace(name, path)
    if names == set(REQUEST_COLUMNS):
        return "requests of closed-loop cells", f"{len(read_request_list(path))} requests"
    if _has_lengths(names):
        return _trace("csv", path)
    content = f"{sum(1 for _ in rows)} rows of {', '.join(header[:8])}"
    return "table of no kind known here", f"{content}; a trace's columns can be named: {TRACE_COLUMNS}"


def _json_lines(path: Path) -> tuple[str, str]:
    from calibrate.judge.vllm_requests import FIELDS, read_requests
    from sim.acceptance.tape import read_tapes
    from sim.files.json_values import json_lines
    from sim.workload.content import BLOCK_TOKENS, TOKEN_FIELDS, read_prompts
    from sim.workload.traces import ALIASES

    _, first = next(json_lines(path, "file"), (0, None))
    if first is None:
        raise ValueError(f"file {str(path)!r} is empty")
    names = set(first) if isinstance(first, dict) else set()
    if names >= {"schema", "fingerprint", "options"}:
        from calibrate.fit import points_file

        points = points_file.read(path)
        points_file.check_host(path, points)
        return "points", f"{len(points.points)} passes measured, {len(points.left)} visits left"
    if names >= set(FIELDS):
        return "requests of a vLLM run", f"{len(read_requests(path).requests)} requests"
    if names >= {"metadata", "metrics"}:
        return _trace("aiperf", path)
    if names >= {"completed", "mean_ttft_ms"}:
        return _bench(path)
    if {"input_length", "output_length"} <= names and names & {"timestamp", "session_id"}:
        return _trace("mooncake", path)
    if _has_lengths(names):
        return _trace("jsonl", path, None if names & set(ALIASES["arrival"]) else f"{path}#arrival=")
    if names & {"prefix_blocks", *TOKEN_FIELDS}:
        return "prompts of a vLLM run", f"{len(read_prompts(path, BLOCK_TOKENS))} prompts"
    return "acceptance tape", f"{len(read_tapes(str(path)))} requests"


def _json(path: Path) -> tuple[str, str]:
    from sim.files.json_values import read_json
    from sim.workload.sharegpt import MAX_CONVERSATION_BYTES

    content = read_json(path, "file", max_bytes=MAX_CONVERSATION_BYTES, has_prose=True)
    if isinstance(content, list):
        head = content[0] if content and isinstance(content[0], dict) else {}
        if {"start_time", "info"} <= set(head):
            return _trace("inference-perf", path)
        if {"completed", "mean_ttft_ms"} <= set(head) or kind_of(content) != "vLLM":
            return _bench(path)
        from sim.workload.traces import read_trace

        if all(isinstance(entry, dict) and "conversations" in entry for entry in content[:FIRST_LINES]):
            return "ShareGPT conversations", f"{len(content)} of them; counting tokens needs a tokenizer"
        return "ShareGPT conversations", f"{len(read_trace('sharegpt', str(path)).ids)} with lengths"
    if not isinstance(content, dict):
        raise ValueError(f"file {str(path)!r}: want an object or a list, got {type(content).__name__}")
    for keys, read in _OBJECTS:
        if keys <= set(content):
            return read(path)
    raise ValueError(f"file {str(path)!r}: no kind of file that lanesim reads has the keys {', '.join(content)[:200]}")


def _profile(path: Path) -> tuple[str, str]:
    from sim.costs.profile_files import load

    return "profile", load(path).name


def _engine(path: Path) -> tuple[str, str]:
    from sim.costs.engine_costs import load_engine

    return "engine", load_engine(str(path), "").name


def _config(path: Path) -> tuple[str, str]:
    from calibrate.catalogue.model_configs import source_of

    source = source_of(str(path), plain=False)
    return "model config", ", ".join(text for text in (source.shape.name, source.assumed) if text)


def _bench(path: Path) -> tuple[str, str]:
    from calibrate.server.level_files import read_bench

    return "result of a benchmark", _at_once(read_bench(path))


def _at_once(levels: Sequence[Served]) -> str:
    loads = ", ".join(f"{level.concurrency:.1f}" for level in levels)
    lengths = levels[0]
    return f"{loads} requests at once, {lengths.prompt_tokens:.0f} in, {lengths.output_tokens:.0f} out"


def _saved_in_detail(path: Path) -> tuple[str, str]:
    return "result of a benchmark", f"{_bench(path)[1]}; as vllm-bench {_trace('vllm-bench', path)[1]}"


def _guidellm(path: Path) -> tuple[str, str]:
    """Its levels, and its requests where it has them."""
    from calibrate.server.level_files import read_bench
    from sim.files.json_values import read_json, value_at
    from sim.workload.sharegpt import MAX_CONVERSATION_BYTES

    found = []
    content = read_json(path, "file", max_bytes=MAX_CONVERSATION_BYTES, has_prose=True)
    listed = value_at(content, "benchmarks")
    benchmarks = listed if isinstance(listed, list) else []
    has_requests = [isinstance(each, dict) and bool(each.get("requests")) for each in benchmarks]
    if not any(has_requests) or any(isinstance(each, dict) and "metrics" in each for each in benchmarks):
        found.append(_at_once(read_bench(path)))
    for index in range(len(benchmarks)):
        if has_requests[index]:
            found.append(_trace("guidellm", path, f"{path}#benchmark={index}")[1])
    return "result of guidellm", "; ".join(found)


def _measured(path: Path) -> tuple[str, str]:
    from calibrate.server.level_files import read_measured

    told = ", ".join(f"{level.concurrency:.0f}" for level in read_measured(path))
    return "levels of a server", f"{told} requests at once"


def _tuning(path: Path) -> tuple[str, str]:
    """What `lanesim tune --json` wrote."""
    from sim.files.json_values import convert, read_json, value_at

    raw = read_json(path, "table")
    wanted = f"table {str(path)!r}: want `table` with [start, end, k] rows, as `lanesim tune` writes"
    rows = convert(value_at(raw, "table"), list[tuple[int, int, int]], wanted)
    for before, (first, last, k) in zip([0, *(last for _, last, _ in rows)], rows, strict=False):
        if not before < first <= last or k < 0:
            raise ValueError(f"{wanted}; got [{first}, {last}, {k}] after {before}")
    return "draft lengths by batch size", f"{len(rows)} rows"


def _summary(path: Path) -> tuple[str, str]:
    from sim.report.results import read_summary_file

    return "comparison", f"{len(read_summary_file(path).runs)} runs"


_OBJECTS: tuple[tuple[set[str], Callable[[Path], tuple[str, str]]], ...] = (
    ({"kernels", "gpu"}, _profile),
    ({"constants", "caps"}, _engine),
    ({"policies", "runs"}, _summary),
    ({"model_type"}, _config),
    ({"completed", "mean_ttft_ms", "input_lens", "output_lens"}, _saved_in_detail),
    ({"completed", "mean_ttft_ms"}, _bench),
    ({"benchmarks"}, _guidellm),
    *((signs, _bench) for kind, signs in KINDS.items() if kind != "GuideLLM"),
    ({"url", "levels"}, _measured),
    ({"table", "break_even_concurrency"}, _tuning),
)
"""Keys that tell a kind of object, and what reads it."""


def _has_lengths(names: set[str]) -> bool:
    from sim.workload.traces import ALIASES

    return bool(names & set(ALIASES["prompt"])) and bool(names & set(ALIASES["output"]))


def _trace(name: str, path: Path, source: str | None = None) -> tuple[str, str]:
    from sim.workload.traces import read_trace

    trace = read_trace(name, str(path) if source is None else source)
    if trace.note is not None:
        warnings.warn(trace.note, stacklevel=2)
    return f"trace ({name})", trace.in_words
