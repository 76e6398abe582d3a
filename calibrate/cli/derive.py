"""`lanesim calibrate derive`: a profile of one GPU or model made into one of another, or of several."""

from __future__ import annotations

from pathlib import Path

import click

from calibrate.cli.profile_output import A_PATH, check_out, write
from sim.cli.lazy import SOURCE
from sim.cli.options import OVERWRITE


@click.command(
    "derive", epilog="Example: lanesim calibrate derive --from h100-sxm/llama-2-7b --gpu h200-sxm --out p.json"
)
@click.option("--from", "origin", required=True, help="Profile to start from: a name or a path.")
@click.option("--gpu", default=None, help="GPU of the same family, such as h200-sxm [the profile's].")
@click.option("--target", default=None, help="Other target: a known name or a config.json [the profile's].")
@click.option(
    "--draft", default=None, help="Draft that goes with --target: likewise, or eagle3, the target's own head."
)
@click.option("--tp", type=click.IntRange(2, 1024), default=None, help="GPUs that share the models [one].")
@click.option("--out", type=A_PATH, required=True, help="Profile to write.")
@OVERWRITE
def derive_command(
    origin: str, gpu: str | None, target: str | None, draft: str | None, tp: int | None, out: Path
) -> None:
    """Transfer a profile to another GPU of its family by their datasheets, to other models by its constants, or to
    several GPUs that share the models; the result is marked as not measured."""
    from calibrate.catalogue.derived_profiles import derive, split, with_models
    from calibrate.catalogue.model_configs import shapes_of
    from sim.costs.profile_files import load

    check_out(out, [origin, target, draft])
    click.get_current_context().meta[SOURCE] = origin if target is None else target
    if gpu is None and target is None and tp is None:
        raise ValueError("derive: nothing to change; give --gpu, --tp, or --target with or without --draft")
    if draft is not None and target is None:
        raise ValueError(f"--draft {draft} needs --target: a draft belongs to its target")
    profile = load(origin)
    if target is not None:
        profile = with_models(profile, *shapes_of(target, draft))
    if gpu is not None:
        profile = derive(profile, gpu)
    if tp is not None:
        profile = split(profile, tp)
    write(profile, out)
