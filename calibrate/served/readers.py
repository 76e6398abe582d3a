"""Which file holds loads of a server, and who reads it: the one list that `check` and all commands ask.

A file is known by names that are in it, since users name files as they like. Not here: the readers, files that hold no
load (calibrate.cli.check_files).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from calibrate.served.load import ServedLoad
from calibrate.served.load_table import LENGTHS, read_cells
from calibrate.served.reports import levels, read_bench, read_looks
from calibrate.served.stamped_requests import read_requests
from sim.files.arrow_tables import read_csv
from sim.files.json_values import json_lines, read_json
from sim.files.read import read_bytes
from sim.workload.bench import CONSOLE, KINDS, MEDIAN_SIGNS, SIGNS
from sim.workload.sharegpt import MAX_CONVERSATION_BYTES
from sim.workload.trace_rows import ALIASES

SUFFIXES = {".yml": ".yaml", ".txt": ".log", ".prom": ".log"}
"""Endings of names that mean another one."""


class Reader(NamedTuple):
    """A format of loads, and the function that reads it. Raises ValueError where it is not sound."""

    ending: str
    signs: frozenset[str]
    """Names that such a file has."""
    kind: str
    read: Callable[[Path, int | None], list[ServedLoad]]
    """Of a file, and the draft length of a server that does not say its own."""

    def accepts(self, ending: str, names: set[str]) -> bool:
        return ending == self.ending and self.signs <= names


def _bench(path: Path, draft_tokens: int | None) -> list[ServedLoad]:
    return read_bench(path, num_speculative_tokens=draft_tokens)


LOOKS = frozenset({"url", "lone", "rounds"})
READERS = [
    Reader(".log", frozenset({CONSOLE}), "result of a benchmark", _bench),
    Reader(".csv", frozenset({"concurrency"}), "measured loads", lambda path, _: read_cells(path).cells),
    Reader(
        *(".jsonl", frozenset({"request_id", "queued_ts"}), "requests of a vLLM run"),
        lambda path, _: [read_requests(path)],
    ),
    Reader(".json", LOOKS, "loads of a server", lambda path, _: read_looks(path).rounds),
    *(
        Reader(ending, frozenset(signs), "result of a benchmark", _bench)
        for ending in (".jsonl", ".json", "list")
        for signs in (SIGNS, MEDIAN_SIGNS, *KINDS.values())
    ),
]
"""The first that fits."""


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
    for reader in READERS:
        if reader.accepts(ending, names):
            return reader.read(path, draft_tokens)
    if ending == ".log":
        prompt_tokens, output_tokens = ((workload or {}).pop(name, None) for name in LENGTHS)
        return levels(path, prompt_tokens, output_tokens, draft_tokens)
    raise ValueError(
        f"file {str(path)!r} holds no load of a server: want a log, a result that `vllm bench serve --save-result` or "
        f"alike wrote or printed, or a table. `lanesim check {path}` says what it is"
    )


def in_words(loads: list[ServedLoad]) -> str:
    """Loads and lengths of a file."""
    if not any(load.concurrency and load.measured for load in loads):
        return f"{sum(load.num_requests for load in loads)} requests"
    at_once = ", ".join(f"{round(load.concurrency or 0.0, 1):g}" for load in loads)
    prompt_tokens, output_tokens = loads[0].lengths
    return f"{at_once} requests at once, {prompt_tokens:.0f} in, {output_tokens:.0f} out"
