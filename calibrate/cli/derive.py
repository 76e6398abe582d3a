"""`lanesim calibrate derive`: a profile of one GPU made into one of another."""

from __future__ import annotations

from pathlib import Path

import click

from calibrate.cli.output import A_PATH, check_out, write


@click.command(
    "derive", epilog="Example: lanesim calibrate derive --from h100-sxm/llama-2-7b --gpu h200-sxm --out p.json"
)
@click.option("--from", "origin", required=True, help="Profile to start from: a name or a path.")
@click.option("--gpu", required=True, help="GPU of the same family, such as h200-sxm.")
@click.option("--out", type=A_PATH, required=True, help="Profile to write.")
def derive_command(origin: str, gpu: str, out: Path) -> None:
    """Transfer a profile to another GPU of its family by their datasheets; the result is marked as not measured."""
    from calibrate.hardware.datasheets import derive
    from sim.costs.profile_files import load

    check_out(out, [origin])
    write(derive(load(origin), gpu), out)
