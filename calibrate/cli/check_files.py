"""`lanesim check FILE...`: what a file is and whether it is sound, without running anything.

FORMATS is the table of all: a format is known by names that are in the file, since users name files as they like, and
then read by its own reader, whose refusal is the answer. Files of loads are those of calibrate.served.readers, which
commands ask, too. Not here: the readers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import click
from msgspec import Meta, Struct

from calibrate.served.readers import READERS, ending_of, in_words, loads_of, told_by
from sim.cli.flags import ARGUMENT, command
from sim.cli.lazy import SOURCE
from sim.files.json_values import convert, read_json, value_at
from sim.workload.bench import KINDS, MAX_CONVERSATION_BYTES, SIGNS

TRACE_COLUMNS = "FILE#arrival=COLUMN,prompt=COLUMN,output=COLUMN,unit=ms"
Reader = Callable[[Path], str]
"""Words on the content of a file. Raises ValueError where it is not sound."""


class CheckFlags(Struct, frozen=True, kw_only=True):
    """Flags of `lanesim check`."""

    paths: Annotated[tuple[Path, ...], ARGUMENT, Meta(title="FILE...")]


@command("check", CheckFlags, example="lanesim check scenario.yaml results/demo profile.json")
def check_command(flags: CheckFlags) -> None:
    """Say what each FILE is, and whether lanesim can read it. Nothing is run.

    A FILE may be a scenario, a grid, a profile, an engine, a model's config.json or a folder of results. It may be a
    trace, ShareGPT conversations, an acceptance tape, or a table of measured loads. It may be what a server or its
    benchmark wrote: a log (.log), a page of /metrics (.txt), a result, requests and prompts.

    The first FILE that cannot be read ends the command with exit code 2.
    """
    meta = click.get_current_context().meta
    for path in flags.paths:
        meta[SOURCE] = str(path)
        kind, content = check_file(path)
        print(f"{path}: {kind}: {content}")
    meta.pop(SOURCE)


def check_file(path: Path) -> tuple[str, str]:
    """(what it is, what is in it). Raises ValueError, one line that names the file, where it is not sound or not known.

    >>> import sim.costs.profile_files
    >>> check_file(sim.costs.profile_files.SHIPPED / "h100-sxm" / "llama-2-7b.json")
    ('profile', 'h100-sxm/llama-2-7b')
    """
    file, _, columns = str(path).rpartition("#")
    if "=" in columns and (ending := ending_of(Path(file))) in (".csv", ".jsonl"):
        return f"trace ({ending[1:]})", trace(ending[1:])(path)
    ending, names = told_by(path)
    for of_ending, signs, kind, read in FORMATS:
        if of_ending == ending and signs <= names:
            return kind, read(path)
    raise ValueError(
        f"file {str(path)!r} is none that lanesim reads. `lanesim check --help` lists those that it does, such as "
        ".yaml scenarios, .json profiles and benchmark results, .csv and .jsonl traces"
    )


# -- readers


def reader(where: str, words: Callable[[Any], str], *args: object, of: Callable[[Path], object] = Path) -> Reader:
    """`words` of what the function at `where` (module:name) gives for a file, `of` its path, and `args`."""
    module, _, name = where.partition(":")
    return lambda path: words(getattr(import_module(module), name)(of(path), *args))


def trace(name: str, behind: str = "") -> Reader:
    """Requests in words; an odd clock is a warning."""

    def read(path: Path) -> str:
        from sim.workload.traces import read_trace

        recorded = read_trace(name, f"{path}{behind}")
        if recorded.note is not None:
            warnings.warn(recorded.note, stacklevel=2)
        return recorded.in_words

    return read


def count(noun: str) -> Callable[[Any], str]:
    return lambda values: f"{len(values)} {noun}"


def _guidellm(path: Path) -> str:
    """Its levels, and its requests where it has them."""
    listed = value_at(read_json(path, "file", max_bytes=MAX_CONVERSATION_BYTES, has_prose=True), "benchmarks")
    benchmarks = [each if isinstance(each, dict) else {} for each in (listed if isinstance(listed, list) else ())]
    detailed = [index for index, each in enumerate(benchmarks) if value_at(each, "requests.successful")]
    levels = [in_words(loads_of(path))] if not detailed or any("metrics" in each for each in benchmarks) else []
    return ", ".join([*levels, *(trace("guidellm", f"#benchmark={index}")(path) for index in detailed)])


def _tuned(path: Path) -> str:
    rows = convert(value_at(read_json(path, "table"), "table"), list[tuple[int, int, int]], f"table {str(path)!r}")
    for before, (first, last, k) in zip([0, *(last for _, last, _ in rows)], rows, strict=False):
        if not before < first <= last or k < 0:
            raise ValueError(f"table {str(path)!r}: {first, last, k} after {before}. Rows [start, end, k] must rise")
    return f"{len(rows)} rows"


def _scenario(path: Path) -> str:
    from sim.costs.profile_files import load
    from sim.run.resolve import resolve_all
    from sim.run.scenario import parse_scenario
    from sim.run.scenario_file import read_scenario

    scenario = parse_scenario(read_scenario(path))
    resolve_all(scenario, load(scenario.profile))
    return f"{', '.join(scenario.policy)} on {scenario.profile}"


def _grid(path: Path) -> str:
    from sim.studies.sweeps.grid import Grid
    from sim.studies.sweeps.sweep import SweepPlan

    grid = Grid.of(path)
    SweepPlan.of(grid)
    return f"{grid.num_scenarios} scenarios, {grid.num_runs} runs"


def _results(path: Path) -> str:
    from sim.report.results import REAL_COLUMNS, REQUESTS, WORKS, is_replay, read_columns, read_summary

    requests = read_columns(path / REQUESTS)
    if is_replay(path):
        from sim.costs.profile_files import load

        load(path / "profile.json")
        read_columns(path / WORKS, REAL_COLUMNS)
        return f"{len(set(zip(requests['policy'], requests['seed'], strict=True)))} runs of a replay"
    runs = read_summary(path).runs
    if (path / WORKS).exists():
        read_columns(path / WORKS)
    return f"{len(runs)} runs, {len(requests['index'])} requests"


def _points(path: Path) -> str:
    from calibrate.fit import points_file

    points = points_file.read(path)
    points_file.check_host(path, points)
    return f"{len(points.points)} passes measured, {len(points.left)} visits left"


def _log(path: Path) -> str:
    from calibrate.served.metrics import samples
    from calibrate.served.readers import read_windows
    from sim.files.read import lines_of

    num_lines = len(read_windows(text for _, text in lines_of(path, "file")))
    return f"{num_lines} lines of load" if num_lines else f"{len(samples(path))} samples"


def _column_words(header_and_rows: Any) -> str:
    header, rows = header_and_rows
    return f"{sum(1 for _ in rows)} rows of {', '.join(header[:8])}. A trace's columns can be named: {TRACE_COLUMNS}"


def _config(path: Path) -> str:
    """The model in words, quantised ones among them."""
    from calibrate.catalogue.model_configs import source_of

    source = source_of(str(path), plain=False)
    return ", ".join(text for text in (source.shape.name, source.assumed) if text)


PROFILE = reader("sim.costs.profile_files:load", lambda profile: str(profile.name))
ROWS = reader("sim.report.results:read_columns", lambda columns: f"{len(next(iter(columns.values())))} rows")
FORMATS: list[tuple[str, AbstractSet[str], str, Reader]] = [
    (
        *(".json", {*SIGNS, "input_lens", "output_lens"}, "result of a benchmark"),
        lambda path: f"{in_words(loads_of(path))}, as vllm-bench {trace('vllm-bench')(path)}",
    ),
    (".json", KINDS["GuideLLM"], "result of guidellm", _guidellm),
    (
        *(".json", KINDS["lanesim"], "comparison"),
        reader("sim.report.results:read_summary_file", lambda result: f"{len(result.runs)} simulated runs"),
    ),
    *((ending, signs, kind, lambda path: in_words(loads_of(path))) for ending, signs, kind, _ in READERS),
    *(
        ("folder", {mark}, "store", reader("sim.studies.sweeps.store:Store", lambda store: f"{len(store.rows())} runs"))
        for mark in ("store.sqlite", "store.json")
    ),
    ("folder", {"summary.json"}, "results", _results),
    ("folder", {"config.json"}, "model config", _config),
    (".yaml", {"grid"}, "grid", _grid),
    (".yaml", {"zip"}, "grid", _grid),
    (".yaml", set(), "scenario", _scenario),
    (".parquet", {"requests.parquet"}, "results table", ROWS),
    (".parquet", {"work.parquet"}, "results table", ROWS),
    (
        *(".parquet", set(), "Parquet table"),
        reader("sim.files.arrow_tables:read_parquet", lambda table: f"{table.num_rows} rows", "table"),
    ),
    (".log", set(), "log or metrics of a server", _log),
    (".csv", {"TIMESTAMP", "ContextTokens", "GeneratedTokens"}, "trace (trace-azure)", trace("trace-azure")),
    (".csv", {"Timestamp", "Request tokens", "Response tokens"}, "trace (burstgpt)", trace("burstgpt")),
    (".csv", {"timestamp_ms", "n_prefix_blocks_seen_before"}, "trace (mooncake)", trace("mooncake")),
    (".csv", {"<arrival>", "<prompt>", "<output>"}, "trace (csv)", trace("csv")),
    (
        *(".csv", {"prompt_tokens", "output_tokens"}, "requests of measured loads"),
        reader("calibrate.served.load_table:read_request_list", count("requests")),
    ),
    (".csv", set(), "table of no kind known here", reader("sim.files.arrow_tables:read_csv", _column_words, "table")),
    (".jsonl", {"schema", "fingerprint", "options"}, "points", _points),
    (".jsonl", {"metadata", "metrics"}, "trace (aiperf)", trace("aiperf")),
    (".jsonl", {"input_length", "output_length", "timestamp"}, "trace (mooncake)", trace("mooncake")),
    (".jsonl", {"input_length", "output_length", "session_id"}, "trace (mooncake)", trace("mooncake")),
    (".jsonl", {"<arrival>", "<prompt>", "<output>"}, "trace (jsonl)", trace("jsonl")),
    (".jsonl", {"<prompt>", "<output>"}, "trace (jsonl)", trace("jsonl", "#arrival=")),
    *(
        (".jsonl", {name}, "prompts of a vLLM run", reader("sim.workload.content:read_prompts", count("prompts"), 16))
        for name in ("prefix_blocks", "<tokens>")
    ),
    (".jsonl", set(), "acceptance tape", reader("sim.acceptance.tape:read_tapes", count("requests"), of=str)),
    (".json", {"kernels", "gpu"}, "profile", PROFILE),
    (
        *(".json", {"constants", "caps"}, "engine"),
        reader("sim.costs.engine_costs:load_engine", lambda engine: str(engine.name), "", of=str),
    ),
    (".json", {"model_type"}, "model config", _config),
    (
        *(".json", {"predicted_at", "sent"}, "served run"),
        reader("calibrate.server.served_run:read_run", lambda run: run.in_words),
    ),
    (".json", {"table", "break_even_concurrency"}, "draft lengths by batch size", _tuned),
    ("list", {"start_time", "info"}, "trace (inference-perf)", trace("inference-perf")),
    (
        *("list", {"conversations"}, "ShareGPT conversations"),
        lambda path: count("of them")(read_json(path, "file", max_bytes=MAX_CONVERSATION_BYTES, has_prose=True)),
    ),
    ("list", set(), "ShareGPT conversations", trace("sharegpt")),
]
"""Ending, the names that a file must have (told_by), the kind, and its reader: the first that fits."""
