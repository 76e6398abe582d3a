"""`lanesim calibrate import aiconfigurator`: profiles from published tables.

Importing this module imports click alone. Not here: the import itself (calibrate.importers).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click
from msgspec import Meta, Struct

from calibrate.cli.profile_output import check_out, needs_analysis, write
from sim.cli.flags import ARGUMENT, Gpus, Overwrite, command
from sim.cli.lazy import SOURCE

TABLE_ENGINES = ("vllm", "sglang", "trtllm")
SOURCE_NAME, FORWARD = "aiconfigurator", "vllm-forward"
EXAMPLE = "lanesim calibrate import aiconfigurator --gpu h200-sxm --target llama-3.1-8b --weights fp8 --out p.json"


class ImportFlags(Struct, frozen=True, kw_only=True):
    """Flags of `lanesim calibrate import`."""

    words: Annotated[tuple[str, ...], ARGUMENT, Meta(title="aiconfigurator [PATH] | vllm-forward RESULT...")] = ()
    gpu: Annotated[str, "GPU, such as h200-sxm."]
    target: Annotated[str, "Target model: a Hugging Face name, one of a profile, or a config.json."]
    draft: Annotated[str | None, "Draft model, likewise."] = None
    tp: Annotated[Gpus, "Devices that share the models (tensor parallel)."] = 1
    ep: Annotated[Gpus | None, "Devices that the experts are spread over, instead of cut."] = None
    dp: Annotated[Gpus, "Ranks whose attention has requests of its own."] = 1
    weights: Annotated[str | None, "bf16, fp8, fp8-block, nvfp4, mxfp4 or int4; default: the config's own."] = None
    kv_dtype: Annotated[str | None, "KV cache in bf16 or fp8; default: the config's own, else bf16."] = None
    engine: Annotated[str, "Whose kernels: vllm, sglang or trtllm[-VERSION]."] = "vllm"
    out: Annotated[Path, "Profile to write."]
    overwrite: Overwrite = False


@command("import", ImportFlags, example=EXAMPLE)
def import_command(flags: ImportFlags) -> None:
    """Make a profile from NVIDIA's kernel tables: those of the wheel that LANESIM_TABLES names or of the installed
    aisimulate or aiconfigurator-core (`pip install '.[tables]'` in a clone), or those of PATH: a wheel, or a folder
    that holds GPU folders and their YAML datasheets.

    vllm-forward: of what `vllm bench forward` measured with the commands of `lanesim calibrate cases`."""
    from calibrate.catalogue.published_tables import published_tables, tables_of_wheel

    if flags.words[:1] == (FORWARD,):
        _import_forward(flags)
        return
    words = flags.words[1:] if flags.words[:1] == (SOURCE_NAME,) else flags.words
    if len(words) > 1:
        raise ValueError(f"calibrate import {' '.join(flags.words)}: want {SOURCE_NAME} and at most one PATH")
    path, revision = Path(words[0]) if words else None, "unrecorded revision"
    files: list[Path] = []
    if path is not None:
        click.get_current_context().meta[SOURCE] = str(path)
        files = [path, *(file for ending in ("yaml", "parquet") for file in path.rglob(f"*.{ending}"))]
    check_out(flags.out, [flags.target, flags.draft, *files])
    name, _, version = flags.engine.partition("-")
    if name not in TABLE_ENGINES:
        raise ValueError(
            f"--engine {flags.engine!r}: there are kernel tables of {', '.join(TABLE_ENGINES)}; a -VERSION may follow"
        )
    try:
        from calibrate.importers.aiconfigurator.deployment import Deployment, import_deployment
        from calibrate.importers.plan_candidates import pair_named

        target, draft, _ = pair_named(flags.target, flags.draft, weights=flags.weights, kv=flags.kv_dtype)

        if path is None or path.is_file():
            path, revision = published_tables() if path is None else tables_of_wheel(path)
        profile = import_deployment(
            path,
            flags.gpu,
            target,
            draft,
            Deployment(flags.tp, flags.ep, flags.dp, name, version or None),
            source=revision,
        )
    except ImportError as error:
        raise needs_analysis(error) from None
    except OSError as error:
        raise ValueError(f"{path}: a table cannot be read: {error}") from error
    write(profile, flags.out)


def _import_forward(flags: ImportFlags) -> None:
    """Results of `vllm bench forward`."""
    paths = [Path(word) for word in flags.words[1:]]
    if not paths:
        raise ValueError(f"calibrate import {FORWARD}: want the results, such as {FORWARD} target.json draft1.json")
    check_out(flags.out, [flags.target, flags.draft, *paths])
    try:
        from calibrate.importers.aiconfigurator.deployment import ASSUMED_HOST
        from calibrate.importers.plan_candidates import pair_named
        from calibrate.importers.vllm_forward import profile_of
    except ImportError as error:
        raise needs_analysis(error) from None
    from sim.costs.datasheets import datasheet

    target, draft, _ = pair_named(flags.target, flags.draft, weights=flags.weights, kv=flags.kv_dtype)
    write(profile_of(paths, datasheet(flags.gpu), target, draft, ASSUMED_HOST), flags.out)
