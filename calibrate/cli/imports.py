"""`lanesim calibrate import`: profiles from published tables.

Importing this module imports click alone. Not here: the imports themselves (calibrate.importers).
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


@import_group.command(
    "aiconfigurator",
    epilog=IMPORT_EXAMPLE,
)
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
@click.option(
    "--form",
    type=click.Choice(["points", "compact"]),
    default=None,
    help="points: layers composed of kernels, any model (default without PATH); compact: fitted constants, plain dense "
    "models (default with PATH).",
)
@click.option("--revision", default=None, help="Revision of the tables at PATH, for the record.")
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
    form: str | None,
    revision: str | None,
    out: Path,
) -> None:
    """NVIDIA aiconfigurator's tables: those inside the installed aiconfigurator-core (`pip install 'lanesim[tables]'`),
    or those below PATH, which holds GPU folders and their YAML datasheets."""
    from calibrate.catalogue.model_configs import shapes_of, with_formats

    if path is not None:
        click.get_current_context().meta[SOURCE] = str(path)
    check_out(out, [target, draft, *([] if path is None else _below(path))])
    asks_points = weights or kv_dtype or ep or dp > 1 or engine != "vllm" or nccl
    form = form or ("compact" if path is not None and not asks_points else "points")
    if form != "points" and asks_points:
        raise ValueError(f"--form {form} has no --ep, --dp, --weights, --kv-dtype, --engine, --nccl; leave --form out")
    shapes = shapes_of(target, draft, plain=form != "points")
    try:
        from calibrate.importers.aiconfigurator.compact_profile import import_aiconfigurator
        from calibrate.importers.aiconfigurator.deployment import Deployment, import_deployment, installed_tables

        if path is None:
            path, revision = installed_tables()
        revision = revision or "unrecorded revision"
        if form == "points":
            deployment = Deployment(tp, ep, dp, *_engine(engine), has_nccl_alone=nccl)
            draft_shape = None if shapes[1] is None else with_formats(shapes[1], None, kv_dtype)
            target_shape = with_formats(shapes[0], weights, kv_dtype)
            profile = import_deployment(path, gpu, target_shape, draft_shape, deployment, source=revision)
        else:
            profile = import_aiconfigurator(path, gpu, shapes[0], shapes[1], tp, revision=revision)
    except ImportError as error:
        raise needs_analysis(error) from None
    except OSError as error:
        raise ValueError(f"{path}: a table cannot be read: {error}") from error
    write(profile, out)


def _engine(text: str) -> tuple[str, str | None]:
    """`vllm-0.19` as name and version; raises ValueError for another engine."""
    name, _, version = text.partition("-")
    if name not in TABLE_ENGINES:
        raise ValueError(f"--engine {text!r}: kernels are of {', '.join(TABLE_ENGINES)}, with -VERSION if you like")
    return name, version or None


@import_group.command(
    "llmservingsim",
    epilog="Example: lanesim calibrate import llmservingsim perf/RTX4090/meta-llama/Llama-3.1-8B/bf16/tp1 "
    "--gpu rtx-4090 --target llama-3.1-8b --out p.json",
)
@click.argument("path", type=A_PATH)
@click.option("--gpu", required=True, help="GPU, such as rtx-4090.")
@click.option("--target", required=True, help="The model of the tables: a Hugging Face name or a config.json.")
@click.option(
    "--draft", default=None, help="Draft model, likewise, with --draft-path; or eagle3, the target's own head."
)
@click.option("--draft-path", type=A_PATH, default=None, help="The draft's folder of tables, same GPU and degree.")
@click.option(
    "--tp", type=GPUS, default=1, show_default=True, help="Devices that share the models: PATH's own degree, tpN."
)
@click.option(
    "--dp", type=GPUS, default=1, show_default=True, help="Ranks with requests of their own that share the experts."
)
@click.option("--engine-version", default=None, help="vLLM version of all-reduces and gap; default: PATH's meta.yaml.")
@click.option("--revision", default="unrecorded revision", help="Revision of the tables, for the record.")
@click.option("--out", type=A_PATH, required=True, help="Profile to write.")
@OVERWRITE
def llmservingsim_command(
    path: Path,
    gpu: str,
    target: str,
    draft: str | None,
    draft_path: Path | None,
    tp: int,
    dp: int,
    engine_version: str | None,
    revision: str,
    out: Path,
) -> None:
    """LLMServingSim's tables (dense, per_sequence, attention, moe) in PATH, the folder of one GPU, model and degree."""
    from calibrate.catalogue.model_configs import shapes_of

    click.get_current_context().meta[SOURCE] = str(path)
    check_out(out, [target, draft, *_below(path), *_below(draft_path)])
    target_shape, draft_shape = shapes_of(target, draft, plain=False)
    try:
        from calibrate.importers.llmservingsim.layer_profile import import_llmservingsim

        profile = import_llmservingsim(
            path,
            gpu,
            target_shape,
            draft_shape,
            tp,
            dp,
            draft_path=draft_path,
            revision=revision,
            engine_version=engine_version,
        )
    except ImportError as error:
        raise needs_analysis(error) from None
    write(profile, out)


def _below(path: Path | None) -> list[Path]:
    """The files that an import from `path` may read."""
    if path is None:
        return []
    return [path, *(file for ending in ("csv", "yaml", "parquet") for file in path.rglob(f"*.{ending}"))]
