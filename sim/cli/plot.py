"""`lanesim plot`: one figure over several results directories."""

from __future__ import annotations

from pathlib import Path

import click

from sim.cli.console import claim


@click.command("plot", epilog="Example: lanesim plot results/rate-1 results/rate-2 --out throughput_latency.png")
@click.argument("directories", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=None,
    help="[default: throughput_latency.png beside the first one]",
)
def plot_command(directories: tuple[Path, ...], out: Path | None) -> None:
    """Draw throughput against latency, one line per policy and profile through the loads of DIRECTORIES.

    Each directory is one `lanesim compare --out`.
    """
    from sim.files.write import write_figure
    from sim.report.figures import draw_throughput_latency
    from sim.report.results import others_of, read_summary

    out = out or directories[0].resolve().parent / "throughput_latency.png"
    claim(files={"--out": out}, inputs=[path for each in directories for path in others_of(each)])
    results = [read_summary(directory) for directory in directories]
    write_figure(out, lambda path: draw_throughput_latency(path, results))
    print(out)
