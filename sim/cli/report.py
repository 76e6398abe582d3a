"""`lanesim report`: the page of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click
from msgspec import Meta, Struct

from sim.cli.console import claim
from sim.cli.flags import ARGUMENT, Overwrite, Price, command
from sim.cli.lazy import SOURCE


class ReportFlags(Struct, frozen=True, kw_only=True):
    """Flags of `lanesim report`."""

    store: Annotated[Path, ARGUMENT]
    out: Annotated[Path, Meta(title="FILE"), "HTML page to write."]
    price: Price = None
    overwrite: Overwrite = False


@command("report", ReportFlags, example="lanesim report results/store --out page.html")
def report_command(flags: ReportFlags) -> None:
    """Write one HTML page of a STORE that `lanesim sweep` filled: answer, pictures, tables and how to rerun it."""
    from sim.files.write import write_text
    from sim.report.page import page
    from sim.studies.attainment import usd_per_gpu_h
    from sim.studies.sweeps.store import MARK

    price_per_hour = usd_per_gpu_h(flags.price)
    claim(files={"--out": flags.out}, inputs=[flags.store / MARK])
    click.get_current_context().meta[SOURCE] = str(flags.store)
    write_text(flags.out, page(flags.store, price_per_hour=price_per_hour))
    print(f"The page of {flags.store} is {flags.out}. Open it in a browser.")
