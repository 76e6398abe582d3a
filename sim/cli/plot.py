"""`lanesim plot` and `lanesim report`: pictures and page of a store; one figure over several results directories."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sim.cli.console import claim
from sim.cli.lazy import SOURCE
from sim.cli.options import OVERWRITE

if TYPE_CHECKING:
    from sim.files.json_values import Json


@click.command("plot", epilog="Example: lanesim plot results/store --price 2.5/gpu-h")
@click.argument("places", metavar="STORE | DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=None,
    help="Folder of a store's pictures [default: STORE/figures]; of directories, the file [throughput_latency.png].",
)
@click.option("--only", multiple=True, metavar="NAME", help="Draw this picture; repeat for several.")
@click.option(
    "--where", multiple=True, metavar="KEY=VALUE", help="Only points with this value of a key; repeat for several."
)
@click.option("--series", multiple=True, metavar="KEY", help="Lines differ by this key, panels by the others; repeat.")
@click.option(
    "--price", default=None, metavar="USD/gpu-h", help="Price of one GPU, for $ per million tokens: 2.5/gpu-h."
)
@OVERWRITE
def plot_command(
    places: tuple[Path, ...],
    out: Path | None,
    only: tuple[str, ...],
    where: tuple[str, ...],
    series: tuple[str, ...],
    price: str | None,
) -> None:
    """Draw what a STORE of `lanesim sweep` holds, as PNG and SVG: throughput against latency, the tail over the rate,
    improvement, draft length by load, Pareto, acceptance, utilisation, GPUs side by side, a timeline.

    Of directories that `lanesim compare --out` wrote: throughput against latency, one line per policy and profile
    through their loads.
    """
    from sim.studies.store import MARK

    if len(places) == 1 and (places[0] / MARK).exists():
        _plot_store(places[0], out, only, where, series, price)
        return
    if only or where or series or price:
        raise ValueError("--only, --where, --series and --price go with a store, which `lanesim sweep --out` wrote")
    from sim.files.write import write_figure
    from sim.report.pictures.figures import draw_throughput_latency
    from sim.report.results import others_of, read_summary

    out = out or places[0].resolve().parent / "throughput_latency.png"
    claim(files={"--out": out}, inputs=[path for each in places for path in others_of(each)])
    results = [read_summary(directory) for directory in places]
    write_figure(out, lambda path: draw_throughput_latency(path, results))
    print(out)


@click.command("report", epilog="Example: lanesim report results/store --out page.html")
@click.argument("store", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="FILE", help="HTML file to write.")
@click.option("--question", default=None, help="What the sweep was to answer. [default: from its grid]")
@click.option(
    "--price", default=None, metavar="USD/gpu-h", help="Price of one GPU, for $ per million tokens: 2.5/gpu-h."
)
@OVERWRITE
def report_command(store: Path, out: Path, question: str | None, price: str | None) -> None:
    """Write one page that needs no network: question, answer, pictures, tables, assumptions, errors, how to rerun."""
    from sim.files.write import write_text
    from sim.metrics.price import Price
    from sim.report.page import page
    from sim.studies.store import files_of

    price_per_hour = None if price is None else Price.of_text(price).of_gpu()
    claim(files={"--out": out}, inputs=files_of(store))
    click.get_current_context().meta[SOURCE] = str(store)
    write_text(out, page(store, question=question, price_per_hour=price_per_hour))
    print(out)


def _plot_store(
    store: Path,
    out: Path | None,
    only: tuple[str, ...],
    where: tuple[str, ...],
    series: tuple[str, ...],
    price: str | None,
) -> None:
    from sim.metrics.price import Price
    from sim.names import unknown
    from sim.report.pictures.grid_figures import pictures
    from sim.report.pictures.panels import set_theme
    from sim.report.pictures.store_figures import picture_files, write_pictures
    from sim.report.store_points import read_points
    from sim.run.scenario_file import parse_override

    drawable = pictures(price_per_hour=None if price is None else Price.of_text(price).of_gpu())
    for name in only:
        if name not in drawable:
            raise ValueError(unknown("picture", name, drawable))
    folder, chosen = out or store / "figures", {name: drawable[name] for name in only or drawable}
    claim(added_to={"--out": folder}, adds={"--out": picture_files(folder, chosen)})
    set_theme()
    click.get_current_context().meta[SOURCE] = str(store)
    wanted: dict[str, list[Json]] = {}
    for key, value in map(parse_override, where):
        wanted.setdefault(key, []).append(value)
    points = read_points(store).where(wanted)
    points = replace(points, series=tuple(points.key(name) for name in series))
    files, missing = write_pictures(folder, points, chosen)
    if only and missing:
        raise ValueError("; ".join(f"{name}: {why}" for name, why in missing.items()))
    for file in files:
        print(file)
    for name, why in missing.items():
        print(f"not drawn: {name} {why}")
