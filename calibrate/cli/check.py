"""`lanesim calibrate check`: the error of a profile, as a table, JSON and figure."""

from __future__ import annotations

from pathlib import Path

import click

from calibrate.cli.profile_output import A_PATH, print_errors
from sim.cli.console import claim, write_json
from sim.cli.options import OVERWRITE

FIGURE = "check.png"
PAIR = "h100-sxm/llama-3.1-8b+llama-3.2-1b"


@click.command("check", epilog=f"Example: lanesim calibrate check {PAIR}")
@click.argument("profile")
@click.option(
    "--against",
    type=A_PATH,
    default=None,
    help="Measured profile, points file (.jsonl) or folder of aiconfigurator tables; default: its held-out errors.",
)
@click.option("--json", "json_path", default=None, metavar="FILE", help="Write the result as JSON; - = stdout.")
@OVERWRITE
@click.option("--out", type=A_PATH, default=None, help="Directory for the figure check.png.")
def check_command(profile: str, against: Path | None, json_path: str | None, out: Path | None) -> None:
    """Error of PROFILE (a name or a path) per kind: a table, and a figure of measured against fitted."""
    from calibrate.judge.profile_errors import check, check_json
    from sim.costs.profile_files import load

    claim(
        files={"--json": json_path, "--out": None if out is None else out / FIGURE},
        inputs=[profile, *([against] if against is None or not against.is_dir() else against.rglob("*"))],
    )
    loaded = load(profile)
    if against is not None and not against.exists():
        raise ValueError(f"--against {str(against)!r} does not exist")
    errors, comparisons = check(loaded, against)
    if out is not None and not comparisons:
        raise ValueError(
            f"--out draws measured points and profile {loaded.name!r} carries none; add --against PATH with some"
        )
    if out is not None:
        from calibrate.judge.profile_figure import draw_check

        draw_check(out / FIGURE, loaded, comparisons)
    if write_json(json_path, check_json(loaded, errors, against.name if against is not None else None)):
        print_errors(loaded, errors)
