"""`lanesim calibrate import aiconfigurator`: profiles from published tables.

Importing this module imports click alone. Not here: the import itself (calibrate.importers).
"""

from __future__ import annotations

from pathlib import Path

import click

from calibrate.cli.profile_output import A_PATH, check_out, needs_analysis, write
from sim.cli.lazy import SOURCE
from sim.cli.options import GPUS, OVERWRITE

TABLE_ENGINES = ("vllm", "sglang", "trtllm")
IMPORT_EXAMPLE = (
    "Example: lanesim calibrate import aiconfigurator --gpu h200-sxm --target llama-3.1-8b --weights fp8 --out p.json"
)


@click.group("import", epilog=IMPORT_EXAMPLE)
def import_group() -> None:
    """Make a profile from published kernel tables."""


@import_group.command("aiconfigurator", epilog=IMPORT_EXAMPLE)
@click.argument("path", type=A_PATH, required=False)
@click.option("--gpu", required=True, help="GPU, such as h200-sxm.")
@click.option("--target", required=True, help="Target model: a Hugging Face name, one of a profile, or a config.json.")
@click.option("--draft", default=None, help="Draft model, likewise.")
@click.option("--tp", type=GPUS, default=1, show_default=True, help="Devices that share the models (tensor parallel).")
@click.option("--ep", default=None, type=GPUS, help="Devices that the experts are spread over, instead of cut.")
@click.option("--dp", type=GPUS, default=1, show_default=True, help="Ranks whose attention has requests of its own.")
@click.option("--weights", default=None, help="bf16, fp8, fp8-block, nvfp4, mxfp4 or int4; default: the config's own.")
@click.option("--kv-dtype", default=None, help="KV cache in bf16 or fp8; default: the config's own, else bf16.")
@click.option("--engine", default="vllm", show_default=True, help="Whose kernels: vllm, sglang or trtllm[-VERSION].")
@click.option("--nccl", is_flag=True, help="All-reduces are NCCL's alone, as in TensorRT-LLM 1.0's dense models.")
@click.option("--revision", default="unrecorded revision", help="Revision of the tables at PATH, for the record.")
@click.option("--out", type=A_PATH, required=True, help="Profile to write.")
@OVERWRITE
def aiconfigurator_command(
    path: Path | None,
    gpu: str,
    target: str,
    draft: str | None,
    tp: int,
    ep: int | None,
    dp: int,
    weights: str | None,
    kv_dtype: str | None,
    engine: str,
    nccl: bool,
    revision: str,
    out: Path,
) -> None:
    """NVIDIA aiconfigurator's tables: those inside the installed aiconfigurator-core (`pip install 'lanesim[tables]'`),
    or those below PATH, which holds GPU folders and their YAML datasheets."""
    from calibrate.catalogue.model_configs import shapes_of, with_formats

    files: list[Path] = []
    if path is not None:
        click.get_current_context().meta[SOURCE] = str(path)
        files = [path, *(file for ending in ("yaml", "parquet") for file in path.rglob(f"*.{ending}"))]
    check_out(out, [target, draft, *files])
    name, _, version = engine.partition("-")
    if name not in TABLE_ENGINES:
        raise ValueError(f"--engine {engine!r}: kernels are of {', '.join(TABLE_ENGINES)}, with -VERSION if you like")
    target_shape, draft_shape = shapes_of(target, draft, plain=False)
    try:
        from calibrate.importers.aiconfigurator.deployment import Deployment, import_deployment, installed_tables

        if path is None:
            path, revision = installed_tables()
        profile = import_deployment(
            path,
            gpu,
            with_formats(target_shape, weights, kv_dtype),
            None if draft_shape is None else with_formats(draft_shape, None, kv_dtype),
            Deployment(tp, ep, dp, name, version or None, has_nccl_alone=nccl),
            source=revision,
        )
    except ImportError as error:
        raise needs_analysis(error) from None
    except OSError as error:
        raise ValueError(f"{path}: a table cannot be read: {error}") from error
    write(profile, out)
