"""`lanesim profiles`: what is shipped, where it comes from, how wrong it is."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from sim.cli.console import claim, write_text
from sim.cli.flags import ARGUMENT, JsonFile, Overwrite, command


class ProfilesFlags(Struct, frozen=True, kw_only=True):
    """Flags of `lanesim profiles`."""

    names: Annotated[tuple[str, ...], ARGUMENT, Meta(title="list [GPU] | show NAME")] = ()
    json: JsonFile = None
    overwrite: Overwrite = False


@command("profiles", ProfilesFlags, example="lanesim profiles show h100-sxm/llama-2-7b+tinyllama-1.1b")
def profiles_command(flags: ProfilesFlags) -> None:
    """List the shipped cost profiles with their mean errors, all or those of a GPU such as h200.

    `show` prints source, machine and errors of one profile, by its name or path. --json writes its file.
    """
    names = flags.names[1:] if flags.names[:1] in (("show",), ("list",)) else flags.names
    is_list = flags.names[:1] == ("list",) or not flags.names
    if len(names) > 1 or not (names or is_list) or (flags.json and is_list):
        raise ValueError("profiles show takes one NAME or path, such as `lanesim profiles show cpu/tiny`")
    if is_list:
        _list("".join(names))
    else:
        _show(names[0], flags.json)


def _list(gpu: str) -> None:
    from rich.console import Console

    from sim.costs.profile import SERVED
    from sim.costs.profile_files import load, shipped
    from sim.report.said import SURE, Said, print_said
    from sim.report.tables import new_table

    kinds, rows = ("decode", "prefill", "draft", "verify"), []
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
        raise ValueError(f"no shipped profile of a GPU {gpu}. GPUs: {gpus}")
    table = new_table(["profile, and mean error of GPU times in %"], kinds, rows, padding=(0, 0, 0, 1))
    doubts = (
        "Errors are of measurements that no constant was fitted on. –: not checked.",
        "verify was measured on an H100 and an H200, for models without experts.",
        "s: fitted to a server under load. *: how two streams share the GPU was measured.",
    )
    answer = f"{len(rows)} profiles are shipped. Others are made when you name MODEL and --gpu."
    more = "lanesim profiles show NAME"
    print_said(Console(markup=False), Said(answer, [("", table)], [(SURE, doubt) for doubt in doubts], more=more))


def _show(name: str, json_path: str | None) -> None:
    import msgspec
    from rich.console import Console

    from sim.costs.profile_files import load
    from sim.report.said import SURE, Said, print_said
    from sim.report.tables import new_table

    profile = load(name)
    if json_path is not None:
        claim(files={"--json": json_path})
        write_text(json_path, msgspec.json.format(msgspec.json.encode(profile), indent=1).decode() + "\n")
        return
    rows = [
        [kind, *("–" if each is None else f"{each:.1f}" for each in (error.mean_error_pct, error.max_error_pct))]
        for kind, error in profile.errors.items()
    ]
    table = new_table(["error of GPU times"], ["mean %", "max %"], rows, padding=(0, 1, 0, 0))
    lines = [
        (SURE, "Errors are of measurements that no constant was fitted on. –: not checked."),
        ("source", profile.source),
        ("machine", ", ".join(map(str, profile.fingerprint.values())) if profile.fingerprint else "published tables"),
    ]
    answer = f"{profile.name}, of {profile.date}: {profile.conditions or 'conditions were not said'}."
    print_said(
        Console(markup=False), Said(answer, [("", table)], lines, more="--json FILE: constants and what errors are of.")
    )
