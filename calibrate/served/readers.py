"""Loads and acceptance from files: a log, results of benchmarks, and rounds of `lanesim validate --fit-only`. `check`
and all commands share this one list of readers.

A file is recognised by the keys in it. Of a log, the lines count that vLLM and SGLang print every few seconds. A line
counts where its neighbours ran as many requests and none waits, because others mix two loads. Logs do not say how long
prompts and outputs are. Measurements are written before they are fitted, so a fit can be repeated without the server.
Not here: requests one by one (calibrate.served.stamped_requests), files without a load (calibrate.cli.check_files).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from calibrate.served.load import Accepted, ServedLoad, ServedRequest, check_counts, mean_load, of_length, pooled
from calibrate.served.load_table import LENGTHS, read_cells
from calibrate.served.stamped_requests import read_requests
from sim.files.arrow_tables import read_csv
from sim.files.json_values import Json, convert, json_lines, parse_json, read_json, value_at
from sim.files.read import lines_of, read_bytes, read_text
from sim.files.write import write_text
from sim.workload.bench import CONSOLE, KINDS, MAX_CONVERSATION_BYTES, MEDIAN_SIGNS, SIGNS, bench_rows
from sim.workload.trace_rows import ALIASES

NUMBER = r"([0-9]{1,12}(?:\.[0-9]{1,12})?)"
COUNT = r"([0-9]{1,12})"
VLLM_LOAD = re.compile(
    rf"Avg prompt throughput: {NUMBER} tokens/s, Avg generation throughput: {NUMBER} tokens/s, "
    rf"Running: {COUNT} reqs, (?:Swapped: {COUNT} reqs, )?(?:Pending|Waiting): {COUNT} reqs"
)
VLLM_ACCEPTED = re.compile(
    rf"SpecDecoding metrics: Mean acceptance length: {NUMBER},.*?Accepted: {COUNT} tokens, Drafted: {COUNT} tokens, "
    r"Per-position acceptance rate: ([01]\.[0-9]{1,6}(?:, [01]\.[0-9]{1,6})*)(?:, Avg|$)"
)
SGLANG_LOAD = re.compile(
    rf"Decode batch.*?#running-req: {COUNT},.*?(?:accept len: {NUMBER},)?.*?"
    rf"gen throughput \(token/s\): {NUMBER}, #queue-req: {COUNT}"
)
SGLANG_LENGTH = re.compile(rf"accept len: {NUMBER}")
ENGINE = re.compile(r"\bEngine [0-9]{1,6}\b|\bDP[0-9]{1,6}\b")
MIN_LINES, SCHEMA = 2, 2
"""Lines that a load needs to count, and the version of the file of looks."""


class LogLine(NamedTuple):
    """One line: a mean over some seconds."""

    engine: str
    """Data-parallel engine that wrote it; empty where there is one."""
    running: int
    waiting: int
    output_tokens_per_s: float
    accepted: Accepted | None = None


def levels(
    path: Path, prompt_tokens: float | None, output_tokens: float | None, num_speculative_tokens: int | None = None
) -> list[ServedLoad]:
    """Means by requests running, of those loads that lasted, one series per engine; `num_speculative_tokens` for
    SGLang's lines, which tell the acceptance length alone. Raises ValueError, one line naming the file."""
    where = f"log {str(path)!r}"
    windows = read_windows((text for _, text in lines_of(path, "log")), num_speculative_tokens, where)
    if not windows:
        raise ValueError(
            f"{where}: no load of vLLM or SGLang. For /metrics run `lanesim calibrate fit metrics BEFORE AFTER`"
        )
    if not isinstance(prompt_tokens, int | float) or not isinstance(output_tokens, int | float):
        raise ValueError(
            f"{where} does not say how long requests are. Add their mean tokens, such as "
            "--set workload.input_len=512 --set workload.output_len=128"
        )
    by_running: dict[int, list[LogLine]] = {}
    for engine in dict.fromkeys(window.engine for window in windows):
        for window in _settled([each for each in windows if each.engine == engine]):
            by_running.setdefault(window.running, []).append(window)
    kept = {running: windows for running, windows in sorted(by_running.items()) if len(windows) >= MIN_LINES}
    if not kept:
        raise ValueError(
            f"{where}: its {len(windows)} lines never show {MIN_LINES} of the same load with the same before and "
            "after. Hold a number of requests in flight for half a minute"
        )
    return [
        mean_load(
            f"{path.name}, {running} running",
            float(running),
            prompt_tokens,
            output_tokens,
            output_tokens_per_s=sum(window.output_tokens_per_s for window in windows) / len(windows),
            accepted=pooled([window.accepted for window in windows if window.accepted is not None], where),
        )
        for running, windows in kept.items()
    ]


def read_windows(lines: Iterable[str], num_speculative_tokens: int | None = None, where: str = "log") -> list[LogLine]:
    """The lines that say something, in order; acceptance belongs to its engine's line of load before it."""
    windows: list[LogLine] = []
    last: dict[str, int] = {}
    for line in lines:
        named = ENGINE.search(line)
        engine = named[0] if named else ""
        if match := VLLM_LOAD.search(line):
            load = LogLine(
                engine=engine, running=int(match[3]), waiting=int(match[5]), output_tokens_per_s=float(match[2])
            )
        elif match := SGLANG_LOAD.search(line):
            length = SGLANG_LENGTH.search(line)
            accepted = of_length(where, 1.0, float(length[1]), num_speculative_tokens) if length else None
            load = LogLine(
                engine=engine,
                running=int(match[1]),
                waiting=int(match[4]),
                output_tokens_per_s=float(match[3]),
                accepted=accepted,
            )
        elif (match := VLLM_ACCEPTED.search(line)) and windows:
            rates = tuple(map(float, match[4].split(", ")))
            check_counts(where, int(match[2]), int(match[3]))
            counted = Accepted(drafts=int(match[3]) / len(rates), draft_tokens=len(rates), rates=rates)
            place = last.get(engine, len(windows) - 1)
            windows[place] = windows[place]._replace(accepted=counted)
            continue
        else:
            continue
        last[engine] = len(windows)
        windows.append(load)
    return windows


def _settled(windows: Sequence[LogLine]) -> list[LogLine]:
    """Those with as many running before and after, and none waiting."""
    return [
        now
        for before, now, after in zip(windows, windows[1:], windows[2:], strict=False)
        if now.running > 0 and now.waiting == 0 and before.running == now.running == after.running
    ]


Number = Annotated[float, msgspec.Meta(ge=0.0)]


SIMULATED = {"policy", "rejected_token_share"}
"""Keys of a run of lanesim's, which no server has."""


class _Result(msgspec.Struct, kw_only=True):
    """All that is read of a result: means that describe a level, and what it may tell beside."""

    completed: Number
    total_input_tokens: Number
    total_output_tokens: Number
    output_throughput: Number
    mean_ttft_ms: Number | None = None
    mean_tpot_ms: Number | None = None
    max_concurrency: int | None = None
    request_rate: Number | Literal["inf"] | None = None
    """Infinity, as a number or a word: all at once."""
    spec_decode_num_drafts: float | None = None
    spec_decode_per_position_acceptance_rates: list[float] | None = None
    spec_decode_acceptance_length: float | None = None
    spec_decode_num_accepted_tokens: float | None = None
    spec_decode_num_draft_tokens: float | None = None
    median_ttft_ms: Number | None = None
    median_tpot_ms: Number | None = None
    accept_length: float | None = None
    """SGLang's name of spec_decode_acceptance_length."""


def read_bench(path: Path, num_speculative_tokens: int | None = None) -> list[ServedLoad]:
    """The levels that the results in a file tell (sim.workload.bench). Raises ValueError, one line naming the
    file and what is missing.

    Requests in flight are `max_concurrency` where the run reached it; at a rate, by Little's law, throughput times mean
    E2EL. Acceptance where the benchmark had it from the server.
    """
    rows = bench_rows(path)
    where = f"bench result {str(path)!r}"
    return [
        _level(
            row,
            where if len(rows) == 1 else f"{where} result {number}",
            path.name if len(rows) == 1 else f"{path.name} {number}",
            num_speculative_tokens,
        )
        for number, row in enumerate(rows)
    ]


def _level(row: Mapping[str, Json], where: str, source: str, num_speculative_tokens: int | None) -> ServedLoad:
    if row.keys() >= SIMULATED:
        raise ValueError(f"{where} was simulated by lanesim. Give what a server or a benchmark measured")
    result = convert(row, _Result, where)
    completed = int(result.completed)
    if completed < 1 or result.total_output_tokens < completed:
        raise ValueError(f"{where}: no request completed, or some without a token")
    output_tokens = result.total_output_tokens / completed
    ttft_ms, tpot_ms = result.mean_ttft_ms, result.mean_tpot_ms
    medians = {"ttft_p50_ms": result.median_ttft_ms, "tpot_p50_ms": result.median_tpot_ms}
    known = {name: value for name, value in medians.items() if value is not None and None in (ttft_ms, tpot_ms)}
    usual_ms = ttft_ms or result.median_ttft_ms, tpot_ms or result.median_tpot_ms
    if None in usual_ms:
        raise ValueError(f"{where}: no mean_tpot_ms and no median_tpot_ms. Give one of them")
    e2el_s = ((usual_ms[0] or 0.0) + (output_tokens - 1.0) * (usual_ms[1] or 0.0)) / 1e3
    in_flight = result.output_throughput / output_tokens * e2el_s
    limit, rate = result.max_concurrency, float(result.request_rate or 0.0)
    load = mean_load(
        source=source,
        concurrency=float(limit) if limit is not None and in_flight > 0.75 * limit else max(1.0, in_flight),
        prompt_tokens=result.total_input_tokens / completed,
        output_tokens=output_tokens,
        ttft_s=ttft_ms and ttft_ms / 1e3,
        tpot_s=tpot_ms and tpot_ms / 1e3,
        output_tokens_per_s=result.output_throughput,
        accepted=_accepted(result, where, num_speculative_tokens),
        num_requests=completed,
    )
    return msgspec.structs.replace(
        load,
        measured={**load.measured, **known},
        request_rate=rate if limit is None and 0.0 < rate < inf else None,
        is_burst=limit is None and rate == inf,
    )


def _accepted(result: _Result, where: str, num_speculative_tokens: int | None) -> Accepted | None:
    drafts = result.spec_decode_num_drafts or 0.0
    rates = tuple(result.spec_decode_per_position_acceptance_rates or ())
    length = result.spec_decode_acceptance_length or result.accept_length
    accepted = result.spec_decode_num_accepted_tokens or 0.0
    drafted = result.spec_decode_num_draft_tokens or 0.0
    for told in (length, 1.0 + sum(rates) if rates else None):
        check_counts(where, accepted, drafted, drafts, told)
    if rates:
        return Accepted(drafts=drafts or 1.0, draft_tokens=len(rates), rates=rates)
    counted = round(drafted / drafts) if drafts else None
    return of_length(where, drafts or 1.0, length, num_speculative_tokens or counted)


class ServerLooks(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The file beside a served run's: what was sent for the fit, kept as it comes. It stays on this machine: it holds
    the server's address."""

    schema: int = SCHEMA
    kind: str = "looks at a server"
    url: str
    lone: list[ServedRequest] = []
    rounds: list[ServedLoad] = []
    lights: int = 0
    """Light loops that were sent: the next one has other prompts."""


def read_looks(path: Path, url: str | None = None) -> ServerLooks:
    """The looks kept in `path`; of a server at `url` none yet where there is no such file. Raises ValueError for what
    is no such file, or of another server."""
    if url is not None and not path.exists():
        return ServerLooks(url=url)
    where = f"looks at a server {str(path)!r}"
    raw = parse_json(read_text(path, "looks at a server"), where)
    if value_at(raw, "schema") != SCHEMA:
        raise ValueError(
            f"{where}: schema {value_at(raw, 'schema')!r:.20} is not {SCHEMA}. Choose another file, or remove it"
        )
    looks = convert(raw, ServerLooks, where)
    if url not in (None, looks.url):
        raise ValueError(f"{where} are of another server. Choose another --out")
    return looks


def write_looks(path: Path, looks: ServerLooks) -> None:
    """Replace `path`. Raises ValueError where it cannot be written."""
    write_text(path, msgspec.json.encode(looks).decode() + "\n")


SUFFIXES = {".yml": ".yaml", ".txt": ".log", ".prom": ".log"}
"""Endings of names that mean another one."""


LOOKS = frozenset({"url", "lone", "rounds"})
Read = Callable[[Path, int | None], list[ServedLoad]]
"""Of a file, and the draft length of a server that does not say its own. Raises ValueError where it is not sound."""
READERS: list[tuple[str, AbstractSet[str], str, Read]] = [
    (".log", {CONSOLE}, "result of a benchmark", read_bench),
    (".csv", {"concurrency"}, "measured loads", lambda path, _: read_cells(path).cells),
    (".jsonl", {"request_id", "queued_ts"}, "requests of a vLLM run", lambda path, _: [read_requests(path)]),
    (".json", LOOKS, "loads of a server", lambda path, _: read_looks(path).rounds),
    *(
        (ending, set(signs), "result of a benchmark", read_bench)
        for ending in (".jsonl", ".json", "list")
        for signs in (SIGNS, MEDIAN_SIGNS, *KINDS.values())
    ),
]
"""Ending, names that such a file has, the kind, and its reader: the first that fits."""


def told_by(path: Path) -> tuple[str, set[str]]:
    """The ending, `list` for a JSON list, and the names in the file that tell its format: keys, columns, files, and the
    roles that a trace has for columns, such as <prompt>. Raises ValueError."""
    ending = ending_of(path)
    content: Any = ()
    if ending == "folder":
        content = [each.name for each in path.iterdir()]
    elif ending == ".csv":
        content = read_csv(path, "table")[0]
    elif ending == ".jsonl":
        content = next(json_lines(path, "file", has_prose=True), (0, None))[1]
    elif ending == ".json":
        content = read_json(path, "file", max_bytes=MAX_CONVERSATION_BYTES, has_prose=True)
        if isinstance(content, list):
            ending, content = "list", content[0] if content else {}
    elif ending == ".yaml":
        from sim.run.scenario_file import read_scenario

        content = read_scenario(path)
    else:
        content = [path.name, *([CONSOLE] if CONSOLE.encode() in read_bytes(path, "file") else [])]
    if content is None:
        raise ValueError(f"file {str(path)!r} is empty")
    names = set(content) if isinstance(content, dict | list) else set()
    return ending, names | {f"<{role}>" for role, aliases in ALIASES.items() if names & set(aliases)}


def ending_of(path: Path) -> str:
    if path.is_dir():
        return "folder"
    name = path.with_suffix("") if path.suffix == ".gz" else path
    return SUFFIXES.get(name.suffix, name.suffix)


def loads_of(path: Path, draft_tokens: int | None = None, workload: dict[str, Any] | None = None) -> list[ServedLoad]:
    """The loads in `path`; the mean tokens of a log's requests, which it does not say, are taken out of a `workload`.
    Raises ValueError, one line naming the file, also where it holds none."""
    ending, names = told_by(path)
    for of_ending, signs, _, read in READERS:
        if of_ending == ending and signs <= names:
            return read(path, draft_tokens)
    if ending == ".log":
        prompt_tokens, output_tokens = ((workload or {}).pop(name, None) for name in LENGTHS)
        return levels(path, prompt_tokens, output_tokens, draft_tokens)
    raise ValueError(
        f"file {str(path)!r} has no load of a server. Give a log, a result that `vllm bench serve --save-result` or "
        f"alike wrote or printed, or a table. `lanesim check {path}` says what it is"
    )


def in_words(loads: list[ServedLoad]) -> str:
    """Loads and lengths of a file."""
    if not any(load.concurrency and load.measured for load in loads):
        return f"{sum(load.num_requests for load in loads)} requests"
    at_once = ", ".join(f"{round(load.concurrency or 0.0, 1):g}" for load in loads)
    prompt_tokens, output_tokens = loads[0].lengths
    return f"{at_once} requests at once, {prompt_tokens:.0f} in, {output_tokens:.0f} out"
