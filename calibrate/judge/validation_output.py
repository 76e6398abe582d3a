"""Output of `validate vllm` and `validate cells`, and the table that commands of this package print.

Not here: the results (calibrate.judge.vllm_runs, calibrate.judge.cells).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sim.cli.console import claim, write_text

if TYPE_CHECKING:
    from sim.files.json_values import Json
    from sim.metrics.compared import Compared

RESULT = "validation.json"


class OutputFlags(Protocol):
    """Flags that say where results go."""

    @property
    def json(self) -> str | None: ...
    @property
    def out(self) -> Path | None: ...
    @property
    def plots(self) -> bool: ...


def check_outputs(flags: OutputFlags, inputs: Iterable[str | Path | None], figures: Sequence[str]) -> None:
    """Hold --out and --json until the command ends, and see whether `figures` may go into --out.
    Raises ValueError, before any work, where one cannot be, or is one of the `inputs`."""
    out = flags.out
    if flags.plots and out is None:
        raise ValueError("--plots draws into a directory: add --out DIR")
    if out is not None and out.exists() and not out.is_dir():
        raise ValueError(f"--out {str(out)!r} is a file; want a directory")
    result = None if out is None else out / RESULT
    files = {"--out": result, "--json": flags.json}
    drawn = [out / name for name in figures] if out is not None and flags.plots else []
    claim(files=files, added_to={"--plots": out if drawn else None}, adds={"--plots": drawn}, inputs=inputs)


def write_result(result: Mapping[str, Json], flags: OutputFlags) -> None:
    """`result` as JSON into --out and --json."""
    from sim.files import write
    from sim.report.results import to_json

    text = to_json(result)
    if flags.out is not None:
        write.write_text(flags.out / RESULT, text)
    if flags.json is not None:
        write_text(flags.json, text)


def print_compared(
    title: str, headings: Sequence[str], rows: Iterable[tuple[Sequence[str], Compared]], lines: Iterable[str]
) -> None:
    """A table of what was measured beside what was simulated, each row with its texts under `headings`, the first of
    which may fold; `lines` below it."""
    from sim.report.tables import percent, significant

    print_columns(
        title,
        headings,
        ("real", "simulated", "error"),
        (
            (*texts, significant(each["real"]), significant(each["simulated"]), percent(each["error_pct"]))
            for texts, each in rows
        ),
        lines,
    )


def print_columns(
    title: str, left: Sequence[str], right: Sequence[str], rows: Iterable[Sequence[str]], lines: Iterable[str]
) -> None:
    """A table on the terminal with columns to the left, the first of which may fold, and to the right; `lines` below
    it."""
    from rich.console import Console

    from sim.report.tables import new_table, print_table

    console = Console(markup=False)
    table = new_table(left, right, rows, title=title, title_justify="left", padding=(0, 1))
    table.columns[0].overflow, table.columns[0].no_wrap = "fold", False
    print_table(console, table)
    for line in lines:
        console.print(line, highlight=False)
