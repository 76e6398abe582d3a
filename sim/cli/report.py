"""`lanesim report`: page and pictures of a store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
from msgspec import Meta, Struct

from sim.cli.console import claim
from sim.cli.flags import ARGUMENT, FilePath, Overwrite, Price, command
from sim.cli.lazy import SOURCE

if TYPE_CHECKING:
    from sim.files.json_values import Json


class ReportFlags(Struct, frozen=True, kw_only=True):
    """Flags of `lanesim report`."""

    store: Annotated[Path, ARGUMENT]
    out: Annotated[FilePath, "HTML page to write of a store."] = None
    figures: Annotated[Path | None, Meta(title="DIR"), "Folder for pictures, PNG and SVG."] = None
    where: Annotated[
        tuple[str, ...], Meta(title="KEY=VALUE"), "Draw only points with this value of a key; repeat for several."
    ] = ()
    series: Annotated[
        tuple[str, ...], Meta(title="KEY"), "Drawn lines differ by this key, panels by the others; several times."
    ] = ()
    price: Price = None
    overwrite: Overwrite = False


@command("report", ReportFlags, example="lanesim report results/store --out page.html --figures results/figures")
def report_command(flags: ReportFlags) -> None:
    """Write a STORE of `lanesim sweep` as one page that needs no network (question, answer, pictures, tables,
    assumptions, errors, how to rerun), and with --figures its pictures, each a file."""
    from sim.files.write import write_text
    from sim.metrics.price import usd_per_gpu_h
    from sim.report.page import page
    from sim.report.pictures.panels import set_theme
    from sim.report.pictures.store_pictures import picture_files, pictures, write_pictures
    from sim.report.store_points import read_points
    from sim.run.scenario_file import parse_override
    from sim.studies.sweeps.store import MARK

    if flags.out is None and flags.figures is None:
        raise ValueError("report: nothing to write; add --out PAGE.html or --figures DIR")
    price_per_hour = usd_per_gpu_h(flags.price)
    drawable = pictures(price_per_hour=price_per_hour)
    drawn = picture_files(flags.figures, drawable) if flags.figures is not None else []
    claim(
        files={"--out": flags.out},
        added_to={"--figures": flags.figures},
        adds={"--figures": drawn},
        inputs=[flags.store / MARK],
    )
    click.get_current_context().meta[SOURCE] = str(flags.store)
    if flags.figures is not None:
        set_theme()
        wanted: dict[str, list[Json]] = {}
        for key, value in map(parse_override, flags.where):
            wanted.setdefault(key, []).append(value)
        points = read_points(flags.store).where(wanted)
        points = replace(points, series=tuple(points.key(name) for name in flags.series))
        files, missing = write_pictures(flags.figures, points, drawable)
        for file in files:
            print(file)
        for name, why in missing.items():
            print(f"not drawn: {name} {why}")
    if flags.out is not None:
        write_text(flags.out, page(flags.store, price_per_hour=price_per_hour))
        print(flags.out)
