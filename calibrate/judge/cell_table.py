"""Closed-loop cells: a table of operating points and the means measured at each, read from CSV and checked.

Columns: concurrency, input_len, output_len (both left to a list of requests where one is given); optional num_prompts,
num_speculative_tokens, acceptance_length (tokens per verify, bonus included) or acceptance (as --acceptance takes it),
output_len_std and output_len_max where outputs vary around output_len, max_num_seqs, max_num_batched_tokens,
num_gpu_blocks, label, arm; and any of what is in MEASURED. Empty means not given. Other columns serve to mark cells. A
list of requests has prompt_tokens and output_tokens.
Not here: simulating them (calibrate.judge.cells), fitting on them (calibrate.judge.fit_cells).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sim.files.arrow_tables import read_csv
from sim.names import unknown

MEASURED = {
    "ttft_ms": "mean_ttft_ms",
    "tpot_ms": "mean_tpot_ms",
    "itl_ms": "mean_itl_ms",
    "e2el_ms": "mean_e2el_ms",
    "output_throughput": "output_throughput",
    "ttft_p95_ms": "p95_ttft_ms",
    "tpot_p50_ms": "median_tpot_ms",
    "tpot_p95_ms": "p95_tpot_ms",
    "itl_p50_ms": "median_itl_ms",
}
"""Column -> the simulator's key for it (sim.metrics.summary); means and percentiles over requests, milliseconds, and
output tokens per second."""
REQUIRED = ("concurrency",)
LENGTHS = ("input_len", "output_len")
"""Required without a list of requests."""
REQUEST_COLUMNS = ("prompt_tokens", "output_tokens")
WHOLE = {
    "num_prompts": 1,
    "num_speculative_tokens": 0,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "num_gpu_blocks": 2,
    "output_len_max": 1,
}
"""Optional whole numbers and the least of each."""
TEXTS = ("label", "arm", "acceptance")
MAX_WHOLE = 10**9
"""No count or length of any cell is near it."""
LEAST, MOST = 1e-6, 1e12
"""Nor any measured mean near these, in milliseconds or per second: errors against smaller ones have no bound."""
COLUMNS = (*REQUIRED, *LENGTHS, *WHOLE, "output_len_std", "acceptance_length", *TEXTS, *MEASURED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One operating point of a closed loop, and what was measured there."""

    line: int
    concurrency: int
    input_len: int | None
    output_len: int | None
    """Tokens of every output, or their mean; both lengths None where a list of requests has them."""
    output_len_std: float = 0.0
    """Standard deviation of the outputs' tokens; 0 = all the same."""
    output_len_max: int | None = None
    """Where the engine cut outputs off."""
    num_prompts: int | None = None
    num_speculative_tokens: int
    acceptance: str | None = None
    """Acceptance in --acceptance's notation; None without speculation."""
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    num_gpu_blocks: int | None = None
    """Blocks that vLLM logs: one more than is used."""
    label: str = ""
    arm: str = ""
    measured: Mapping[str, float] = field(default_factory=dict)
    """Metric of MEASURED -> its mean."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Every column as it stands in the file, under its name after renaming."""

    @property
    def name(self) -> str:
        what = "/".join(filter(None, (self.label, self.arm)))
        return " ".join(filter(None, (what, self.point, f"k={self.num_speculative_tokens}")))

    @property
    def point(self) -> str:
        """Concurrency, and lengths where the cell has them."""
        lengths = "" if self.input_len is None else f" {self.input_len}->{self.output_len}"
        return f"c={self.concurrency}{lengths}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellTable:
    path: str
    cells: list[Cell]
    unused: list[str]
    """Columns that mean nothing here."""

    def where(self, cell: Cell) -> str:
        return f"table {self.path!r} line {cell.line}"


def parse_columns(text: str | None) -> dict[str, str]:
    """`isl=input_len,osl=output_len` as the table's name -> ours."""
    renamed: dict[str, str] = {}
    for part in filter(None, (text or "").split(",")):
        theirs, equals, ours = (piece.strip() for piece in part.partition("="))
        if not equals or not theirs or not ours:
            raise ValueError(f"--columns {part!r}: want THEIRS=OURS, such as isl=input_len")
        if ours not in COLUMNS:
            raise ValueError(f"--columns: {unknown('column', ours, COLUMNS)}")
        if theirs in renamed or ours in renamed.values():
            raise ValueError(f"--columns {part!r}: {theirs!r} or {ours!r} is named twice")
        renamed[theirs] = ours
    return renamed


def read_cells(path: Path, renamed: Mapping[str, str], *, has_requests: bool = False) -> CellTable:
    """The cells of `path`; `renamed` as parse_columns gives it. With a list of requests (`has_requests`) cells have no
    lengths of their own: such columns tell what is in the list, and nothing is read from them.

    Raises ValueError naming file, line and column.
    """
    return _table(str(path), *read_csv(path, "table"), renamed, has_requests=has_requests)


def cells_of(name: str, rows: Sequence[Mapping[str, object]], *, has_requests: bool = False) -> CellTable:
    """The table of `rows` at hand that all have our columns, read like a file; `name` stands for the file."""
    lines = ((number, list(map(str, row.values()))) for number, row in enumerate(rows, start=2))
    return _table(name, list(rows[0]), lines, {}, has_requests=has_requests)


def _table(
    path: str,
    names: list[str],
    rows: Iterable[tuple[int, list[str]]],
    renamed: Mapping[str, str],
    *,
    has_requests: bool,
) -> CellTable:
    where = f"table {path!r}"
    header = _header(names, renamed, where, REQUIRED if has_requests else REQUIRED + LENGTHS)
    cells = []
    for number, row in rows:
        texts = {name: value.strip() for name, value in zip(header, row, strict=True)}
        cells.append(_cell(texts, number, f"{where} line {number}", has_requests=has_requests))
    if not cells:
        raise ValueError(f"{where} has no cell below its header")
    return CellTable(path=path, cells=cells, unused=[name for name in header if name not in COLUMNS])


def read_request_list(path: Path) -> list[tuple[int, int]]:
    """Prompt and output tokens of the requests of `path`, in order. Raises ValueError naming file, line and column."""
    what = f"requests {str(path)!r}"
    header, rows = read_csv(path, "requests")
    for column in REQUEST_COLUMNS:
        if column not in header:
            raise ValueError(f"{what} line 1: no column {column!r}; want {' and '.join(REQUEST_COLUMNS)}")
    places = [header.index(column) for column in REQUEST_COLUMNS]
    requests = []
    for number, row in rows:
        where = f"{what} line {number}"
        prompt, output = (
            _whole(row[place].strip(), 1, column, where) for place, column in zip(places, REQUEST_COLUMNS, strict=True)
        )
        requests.append((prompt, output))
    if not requests:
        raise ValueError(f"{what} has no request below its header")
    return requests


def _header(names: list[str], renamed: Mapping[str, str], path: str, required: Sequence[str]) -> list[str]:
    for theirs in renamed:
        if theirs not in names:
            raise ValueError(f"{path} line 1: --columns: {unknown('column', theirs, names)}")
    header = [renamed.get(name, name) for name in names]
    if twice := [name for name in dict.fromkeys(header) if header.count(name) > 1]:
        raise ValueError(f"{path} line 1: column {twice[0]!r} is there twice")
    for name in required:
        if name not in header:
            raise ValueError(f"{path} line 1: {unknown('column', name, header)}; name it, or map it with --columns")
    if not set(MEASURED) & set(header):
        raise ValueError(
            f"{path} line 1: no measured mean; want any of {', '.join(MEASURED)}, or map one with --columns"
        )
    return header


def _cell(texts: dict[str, str], line: int, where: str, *, has_requests: bool) -> Cell:
    whole: dict[str, Any] = {name: _whole(texts[name], 1, name, where) for name in REQUIRED}
    whole |= {name: None if has_requests else _whole(texts[name], 1, name, where) for name in LENGTHS}
    for name, least in WHOLE.items():
        whole[name] = _whole(texts[name], least, name, where) if texts.get(name) else None
    whole["num_speculative_tokens"] = whole["num_speculative_tokens"] or 0
    measured = {name: _positive(texts[name], name, where) for name in MEASURED if texts.get(name)}
    if not measured:
        raise ValueError(f"{where}: nothing measured; want any of {', '.join(MEASURED)}")
    acceptance = _acceptance(texts, whole["num_speculative_tokens"], where)
    most = whole["output_len_max"]
    if most is not None and whole["output_len"] is not None and most < whole["output_len"]:
        raise ValueError(f"{where}: output_len_max={most} is below the mean, output_len={whole['output_len']}")
    return Cell(
        line=line,
        output_len_std=_positive(texts["output_len_std"], "output_len_std", where)
        if texts.get("output_len_std")
        else 0.0,
        acceptance=acceptance,
        measured=measured,
        texts=texts,
        label=texts.get("label", ""),
        arm=texts.get("arm", ""),
        **whole,
    )


def _acceptance(texts: Mapping[str, str], draft_tokens: int, where: str) -> str | None:
    spec, length = texts.get("acceptance"), texts.get("acceptance_length")
    if draft_tokens == 0:
        given = [f"{name}={text}" for name, text in (("acceptance", spec), ("acceptance_length", length)) if text]
        if given and not texts.get("num_speculative_tokens"):
            raise ValueError(f"{where}: {given[0]} but no num_speculative_tokens: say how many are drafted, or 0")
        return None
    if spec and length:
        raise ValueError(f"{where}: acceptance={spec!r} and acceptance_length={length!r}: give one")
    if length:
        value = _positive(length, "acceptance_length", where)
        if not 1.0 <= value <= draft_tokens + 1:
            raise ValueError(f"{where}: acceptance_length={length} must be in 1..{draft_tokens + 1}, bonus included")
        return f"length:{value!r}"
    if not spec:
        raise ValueError(f"{where}: num_speculative_tokens={draft_tokens} needs acceptance_length or acceptance")
    return spec


def _whole(text: str, least: int, name: str, where: str) -> int:
    """A whole number; 8.0 is one."""
    try:
        value = float(text)
        if value.is_integer() and least <= value <= MAX_WHOLE:
            return int(value)
    except ValueError:
        pass
    raise ValueError(f"{where}: {name}={text!r:.40} must be a whole number, {least} to {MAX_WHOLE}")


def _positive(text: str, name: str, where: str) -> float:
    try:
        value = float(text)
        if LEAST <= value <= MOST:
            return value
    except ValueError:
        pass
    raise ValueError(f"{where}: {name}={text!r:.40} must be a number, {LEAST:g} to {MOST:g}")
