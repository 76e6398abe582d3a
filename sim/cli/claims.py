"""`lanesim claims`: the command line of sim.claims."""

from __future__ import annotations

from pathlib import Path

import click

from sim.cli.console import claim, progress, write_text

EXAMPLE = "\b\nExample:\n  lanesim claims --section C --section F"


@click.command("claims", epilog=EXAMPLE)
@click.option("--section", "sections", multiple=True, metavar="A..H", help="Only this section; repeat for several.")
@click.option("--json", "json_path", default=None, metavar="FILE", help="Write the rows as JSON; - = stdout.")
@click.option("--plots", type=click.Path(path_type=Path), default=None, metavar="DIR", help="Draw figures into DIR.")
@click.option("--draws", type=click.IntRange(min=2), default=None, help="Draws behind a row; fewer are quicker.")
@click.option("--workers", type=click.IntRange(min=1), default=None, help="Processes. [default: one per core]")
def claims_command(
    sections: tuple[str, ...], json_path: str | None, plots: Path | None, draws: int | None, workers: int | None
) -> None:
    """The ledger of published claims: claimed, simulated, verdict, and the sentence that explains it."""
    from sim.claims.ledger import SECTIONS
    from sim.claims.report import print_rows, to_plain
    from sim.claims.run import DRAWS, judge_all
    from sim.names import unknown
    from sim.report.results import to_json

    names = [name.upper() for name in dict.fromkeys(sections)] or list(SECTIONS)
    for name in names:
        if name not in SECTIONS:
            raise ValueError(unknown("section", name, SECTIONS))
    claim(files={"--json": json_path}, added_to={"--plots": plots})
    with progress() as on_step:
        rows = judge_all(names, draws=draws or DRAWS, workers=workers, on_done=on_step)
    if plots is not None:
        from sim.claims.figures import draw

        drawn = draw(plots, rows)
    if json_path is not None:
        write_text(json_path, to_json(to_plain(rows)))
    if json_path != "-":
        from rich.console import Console

        print_rows(Console(), rows)
        if plots is not None:
            print(f"figures in {plots}: {', '.join(drawn)}")
