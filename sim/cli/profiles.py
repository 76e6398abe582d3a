"""`lanesim profiles`: what is shipped, where it comes from, how wrong it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sim.files.json_values import Json

LONGEST_LIST = 12
"""Values shown of a list."""


@click.group("profiles", invoke_without_command=True, epilog="Example: lanesim profiles show h100-sxm/llama-2-7b")
@click.option("--gpu", default="", help="Only GPUs a part of whose name begins so: h200, 6000.")
@click.option(
    "--model",
    "--target",
    "model",
    default="",
    help="Only targets and drafts whose name holds this; a Hugging Face name.",
)
@click.option("--dtype", default=None, help="Only weights so: bf16, fp8, nvfp4, mxfp4 (however it runs) ...")
@click.pass_context
def profiles_command(ctx: click.Context, gpu: str, model: str, dtype: str | None) -> None:
    """List the shipped cost profiles with their mean held-out errors; `show NAME` prints one."""
    if ctx.invoked_subcommand is not None:
        return
    from rich.console import Console

    from sim.costs.profile import SERVED
    from sim.costs.profile_files import load, shipped
    from sim.model_names import model_key
    from sim.report.tables import new_table, print_table

    caption = (
        "mean error on held-out points, percent; – = not validated; s = layers fitted to a served GPU, under load; "
        "* = overlap of streams measured"
    )
    kinds, rows = ("body", "decode", "prefill", "draft", "verify"), []
    for name in shipped():
        profile = load(name)
        kind, formats = "bf16", profile.target.formats
        if formats is not None:
            kind = formats.mlp if profile.target.experts is None else formats.experts
        is_gpu, is_kind = f"-{gpu}" in f"-{profile.gpu.name}", dtype is None or f"{kind}-".startswith(f"{dtype}-")
        if not is_gpu or not is_kind or model_key(model) not in name.partition("/")[2]:
            continue
        cells = []
        for kind in kinds:
            error = profile.errors.get(kind)
            known = error is not None and error.mean_error_pct is not None
            cells.append(f"{error.mean_error_pct:.1f}" if error is not None and known else "–")
        marks = " s" * (profile.conditions == SERVED) + " *" * profile.overlap.measured
        rows.append([name + marks, *cells])
    if not rows:
        gpus = ", ".join(dict.fromkeys(name.partition("/")[0] for name in shipped()))
        given = ((flag, value) for flag, value in (("gpu", gpu), ("model", model), ("dtype", dtype)) if value)
        raise ValueError(
            f"no shipped profile with {' '.join(f'--{flag} {value}' for flag, value in given)}; GPUs: {gpus}"
        )
    table = new_table(["profile"], kinds, rows, caption=caption, padding=(0, 0, 0, 1))
    table.columns[0].min_width = max(map(len, shipped()))
    print_table(Console(markup=False), table)


@profiles_command.command("show", epilog="Example: lanesim profiles show h100-sxm/llama-2-7b+tinyllama-1.1b")
@click.argument("name")
@click.option("--json", "is_json", is_flag=True, help="The profile as its file has it.")
def show_command(name: str, is_json: bool) -> None:
    """Print source, fingerprint, errors and constants of one profile (a name or a path)."""
    import msgspec

    from sim.costs.profile_files import load

    profile = load(name)
    plain = msgspec.to_builtins(profile)
    if is_json:
        print(msgspec.json.format(msgspec.json.encode(plain), indent=1).decode())
        return
    print(f"{profile.name}  (schema {profile.schema}, {profile.date})")
    print(f"measured: {profile.conditions or 'not said'}")
    print(f"source: {profile.source}")
    print(f"fingerprint: {profile.fingerprint or 'none: published tables'}")
    print("errors on held-out points:")
    for kind, error in profile.errors.items():
        figures = f"mean {error.mean_error_pct} %, max {error.max_error_pct} %, {error.points} points"
        print(f"  {kind}: {figures if error.points else 'none'} ({error.held_out})")
    for block in ("gpu", "target", "draft", "kernels", "host", "overlap"):
        print(f"{block}:")
        _print_block(plain[block], "  ")


def _print_block(block: Json, indent: str) -> None:
    if not isinstance(block, dict):
        print(f"{indent}{block}")
        return
    for key, value in block.items():
        if isinstance(value, dict) and value:
            print(f"{indent}{key}:")
            _print_block(value, indent + "  ")
        elif isinstance(value, list | tuple):
            print(f"{indent}{key}: {_shortened(value)}")
        else:
            print(f"{indent}{key}: {'none' if value == {} else value}")


def _shortened(values: Sequence[Json]) -> str:
    """A list as one line."""
    if values and isinstance(values[0], list | tuple):
        return f"{len(values)} x {len(values[0])} values; --json has them"
    if len(values) > LONGEST_LIST:
        return f"{len(values)} values, {values[0]} to {values[-1]}; --json has them"
    return ", ".join(map(str, values))
