"""`lanesim report`: a store as one HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from sim.cli.console import claim


@click.command("report", epilog="Example: lanesim report results/store --out page.html")
@click.argument("store", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="FILE", help="HTML file to write.")
@click.option("--question", default=None, help="What the sweep was to answer. [default: from its grid]")
@click.option("--price", default=None, metavar="DOLLARS/h", help="Of one GPU, for $ per million tokens: 2.5/h.")
def report_command(store: Path, out: Path, question: str | None, price: str | None) -> None:
    """Write one page that needs no network: question, answer, pictures, tables, assumptions, errors, how to rerun."""
    from sim.cli.plot import dollars
    from sim.files.write import write_text
    from sim.report.page import page

    claim(files={"--out": out}, inputs=[store / "store.json"])
    write_text(out, page(store, question=question, price_per_hour=None if price is None else dollars(price)))
    print(out)
