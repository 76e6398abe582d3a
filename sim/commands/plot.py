"""`lanesim plot`: one figure over several results directories."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("plot", epilog="Example: lanesim plot results/rate-1 results/rate-2 --out throughput_latency.png")
@click.argument("directories", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), default=Path("throughput_latency.png"), show_default=True)
def plot_command(directories: tuple[Path, ...], out: Path) -> None:
    """Draw throughput against latency, one line per policy through the loads of DIRECTORIES.

    Each directory is one `lanesim compare --out`, all of the same profile.
    """
    from sim.plots import draw_throughput_latency
    from sim.results import read_summary, write_figure

    results = [read_summary(directory) for directory in directories]
    profiles = {result["profile"]["name"] for result in results}
    if len(profiles) > 1:
        raise ValueError(f"the directories are of different profiles: {', '.join(sorted(profiles))}")
    write_figure(out, lambda path: draw_throughput_latency(path, results))
    print(out)
