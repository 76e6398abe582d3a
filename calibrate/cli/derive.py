"""`lanesim calibrate derive`: a profile of one GPU or model made into one of another, or of several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click
from msgspec import Meta, Struct

from calibrate.cli.profile_output import check_out, write
from sim.cli.flags import Overwrite, command
from sim.cli.lazy import SOURCE


class DeriveFlags(Struct, frozen=True, kw_only=True):
    """Flags of `lanesim calibrate derive`."""

    from_: Annotated[str, "Profile to start from: its name or its file."]
    gpu: Annotated[str | None, "GPU of the same family, such as h200-sxm. [the profile's]"] = None
    target: Annotated[str | None, "Other target: a name or a config.json. [the profile's]"] = None
    draft: Annotated[str | None, "Draft for --target: a name, a config.json, or eagle3."] = None
    tp: Annotated[int | None, Meta(ge=2, le=1024), "GPUs that share the models. [one]"] = None
    out: Annotated[Path, "Profile to write."]
    overwrite: Overwrite = False


@command(
    "derive", DeriveFlags, example="lanesim calibrate derive --from h100-sxm/llama-2-7b --gpu h200-sxm --out p.json"
)
def derive_command(flags: DeriveFlags) -> None:
    """Transfer a profile to another GPU of its family by their datasheets, to other models by its constants, or to
    several GPUs that share the models; the result is marked as not measured."""
    from calibrate.catalogue.derived_profiles import derive, split, with_models
    from calibrate.catalogue.model_configs import shapes_of
    from sim.costs.profile_files import load

    gpu, target, draft, tp = flags.gpu, flags.target, flags.draft, flags.tp
    check_out(flags.out, [flags.from_, target, draft])
    click.get_current_context().meta[SOURCE] = flags.from_ if target is None else target
    if gpu is None and target is None and tp is None:
        raise ValueError("no change is named. Give --gpu, --tp, or --target with or without --draft")
    if draft is not None and target is None:
        raise ValueError(f"--draft {draft} needs --target: a draft belongs to its target")
    profile = load(flags.from_)
    if target is not None:
        profile = with_models(profile, *shapes_of(target, draft))
    if gpu is not None:
        profile = derive(profile, gpu)
    if tp is not None:
        profile = split(profile, tp)
    write(profile, flags.out)
