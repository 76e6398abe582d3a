"""`lanesim trace`: a Perfetto trace from the works that a results directory recorded."""

from __future__ import annotations

from pathlib import Path

import click

from sim.cli.console import claim
from sim.cli.options import COUNT, OVERWRITE


@click.command("trace", epilog="Example: lanesim trace results/demo-h100 --works 500 --out first.json")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), default=None, help="File to write; default DIR/trace.json.")
@OVERWRITE
@click.option(
    "--works", type=click.IntRange(1, 1000 * COUNT), default=None, help="Show only the first N works of each run."
)
def trace_command(directory: Path, out: Path | None, works: int | None) -> None:
    """Write a trace of all works of every recorded run in DIRECTORY; open it at ui.perfetto.dev.

    Streams are tracks of works, lanes counters of waiting requests, requests spans of queue, prefill and decode.
    """
    from sim.files.write import write_text
    from sim.report.perfetto import trace_json, written_runs
    from sim.report.results import REQUESTS, TRACE, WORKS, others_of, read_columns

    path = out if out is not None else directory / TRACE
    claim(files={"--out": path}, inputs=others_of(directory))
    runs = written_runs(read_columns(directory / WORKS), read_columns(directory / REQUESTS))
    write_text(path, trace_json(runs, works))
    print(f"{path}: open it at ui.perfetto.dev")
