"""`lanesim profiles`: what is shipped, where it comes from, how wrong it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from sim.cli.console import claim, write_text
from sim.cli.flags import ARGUMENT, JsonFile, Overwrite, command

if TYPE_CHECKING:
    from sim.files.json_values import Json

LONGEST_LIST = 12
"""Values shown of a list."""


class ProfilesFlags(Struct, frozen=True, kw_only=True):
    """Flags of `lanesim profiles`."""

    names: Annotated[tuple[str, ...], ARGUMENT, Meta(title="list [GPU] | show NAME")] = ()
    json: JsonFile = None
    overwrite: Overwrite = False


@command("profiles", ProfilesFlags, example="lanesim profiles show h100-sxm/llama-2-7b+tinyllama-1.1b")
def profiles_command(flags: ProfilesFlags) -> None:
    """List the shipped cost profiles with their mean held-out errors, all or those of a GPU such as h200.

    `show` prints source, fingerprint, errors and constants of one, by its name or path; --json has it as its file is.
    """
    names = flags.names[1:] if flags.names[:1] in (("show",), ("list",)) else flags.names
    is_list = flags.names[:1] == ("list",) or not flags.names
    if len(names) > 1 or not (names or is_list) or (flags.json and is_list):
        raise ValueError("profiles show: want one NAME of a profile, or its path")
    if is_list:
        _list("".join(names))
    else:
        _show(names[0], flags.json)


def _list(gpu: str) -> None:
    from rich.console import Console

    from sim.costs.profile import SERVED
    from sim.costs.profile_files import load, shipped
    from sim.report.tables import new_table, print_table

    caption = (
        "mean error on held-out points, percent; – = not validated; verify was measured on an H100 and an H200 alone, "
        "without experts; s = layers fitted to a served GPU, under load; * = overlap of streams measured"
    )
    kinds, rows = ("body", "decode", "prefill", "draft", "verify"), []
    for name in shipped():
        profile = load(name)
        if f"-{gpu}" not in f"-{profile.gpu.name}":
            continue
        errors = [profile.mean_errors_pct.get(kind) for kind in kinds]
        cells = ["–" if error is None else f"{error:.1f}" for error in errors]
        marks = " s" * (profile.conditions == SERVED) + " *" * profile.overlap.is_known
        rows.append([name + marks, *cells])
    if not rows:
        gpus = ", ".join(dict.fromkeys(name.partition("/")[0] for name in shipped()))
        raise ValueError(f"no shipped profile of a GPU {gpu}; GPUs: {gpus}")
    table = new_table(["profile"], kinds, rows, caption=caption, padding=(0, 0, 0, 1))
    table.columns[0].min_width = max(map(len, shipped()))
    print_table(Console(markup=False), table)


def _show(name: str, json_path: str | None) -> None:
    import msgspec

    from sim.costs.profile_files import load
    from sim.files.yaml_values import yaml_text

    profile = load(name)
    plain = msgspec.to_builtins(profile)
    if json_path is not None:
        claim(files={"--json": json_path})
        write_text(json_path, msgspec.json.format(msgspec.json.encode(plain), indent=1).decode() + "\n")
        return
    print(f"{profile.name}  (schema {profile.schema}, {profile.date})")
    print(f"measured: {profile.conditions or 'not said'}")
    print(f"source: {profile.source}")
    print(f"fingerprint: {profile.fingerprint or 'none: published tables'}")
    print("errors on held-out points:")
    for kind, error in profile.errors.items():
        figures = f"mean {error.mean_error_pct} %, max {error.max_error_pct} %, {error.points} points"
        print(f"  {kind}: {figures if error.points else 'none'} ({error.held_out})")
    blocks = {block: plain[block] for block in ("gpu", "target", "draft", "kernels", "host", "overlap")}
    print(yaml_text(_shortened(blocks)), end="")


def _shortened(values: Json) -> Json:
    """The same with lists as one line each."""
    if isinstance(values, Mapping):
        return {key: _shortened(value) for key, value in values.items()}
    if not isinstance(values, list | tuple):
        return values
    if values and isinstance(values[0], list | tuple):
        return f"{len(values)} x {len(values[0])} values; --json has them"
    if len(values) > LONGEST_LIST:
        return f"{len(values)} values, {values[0]} to {values[-1]}; --json has them"
    return ", ".join(map(str, values))
