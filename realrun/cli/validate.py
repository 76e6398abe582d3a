"""`lanesim validate DIRECTORY`: the simulator against a replay. Mounted by calibrate.cli.validate.

Not here: the comparison (realrun.validate.error_parts). Importing this module imports click alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import click
from msgspec import Meta, Struct

from sim.cli.console import claim, write_json
from sim.cli.flags import ARGUMENT, JsonFile, Overwrite, command
from sim.cli.lazy import SOURCE


class DirectoryFlags(Struct, frozen=True, kw_only=True):
    """Flags of a replay's directory."""

    directory: Annotated[Path, ARGUMENT, Meta(title="DIRECTORY")]
    profile: Annotated[str | None, "Cost profile: gpu/target[+draft], or its file. [the replay's]"] = None
    json: JsonFile = None
    overwrite: Overwrite = False


@command("directory", DirectoryFlags, example="lanesim validate results/replay --json -")
def directory_command(flags: DirectoryFlags) -> None:
    """Body of `lanesim validate DIRECTORY`."""
    from realrun.validate.error_parts import judge, result_of
    from realrun.validate.gates import of_profile, of_replay, verdict
    from realrun.validate.readback import read_replay, read_summary
    from sim.costs.profile_files import load
    from sim.report.results import others_of

    directory = flags.directory
    click.get_current_context().meta[SOURCE] = str(directory)
    claim(files={"--json": flags.json}, inputs=[flags.profile, *others_of(directory)])
    scenario, summary = read_summary(directory)
    profile = load(flags.profile if flags.profile is not None else directory / "profile.json")
    judged = [judge(observed) for observed in read_replay(directory, scenario, summary, profile)]
    result = result_of(summary, profile, judged)
    doubt = verdict([*of_profile(profile), *of_replay(result)])
    if write_json(flags.json, result | {"verdict": doubt or None}):
        if doubt:
            print(doubt)
        _tell(judged)


def _tell(verdicts: list[dict[str, Any]]) -> None:
    """Print of each run the headline, each part of the error, and where the schedules part."""
    print("simulated in Python, with the policy object that the replay ran")
    for verdict in verdicts:
        print(f"{verdict['policy']}, seed {verdict['seed']}: error in % of the real run")
        print(f"  {'':<12}{'TTFT':>8}{'TPOT':>8}{'ITL':>8}{'E2EL':>8}{'p95 E2EL':>10}{'tokens/s':>10}")
        for part, metrics in verdict["decomposition"].items():
            means = [metrics[name]["mean"] for name in ("ttft", "tpot", "itl", "e2el")]
            values = [*means, metrics["e2el"]["p95"], metrics["output_throughput"]]
            cells = ["-" if value["error_pct"] is None else f"{value['error_pct']:+.1f}" for value in values]
            print(
                f"  {part:<12}" + "".join(f"{cell:>{w}}" for cell, w in zip(cells, (8, 8, 8, 8, 10, 10), strict=True))
            )
        lookups = verdict["lookups"]
        print(f"  measured times: {lookups['found']} works found, {lookups['missed']} by nearest shape")
        if verdict["machine"]:
            told = zip(("before", "after"), verdict["machine"], strict=False)
            slower = ", ".join(f"{ratio:.2f} {when} the run" for when, ratio in told)
            print(f"  the machine: fixed passes took {slower}, times as long as with the profile")
        print(f"  {_divergence(verdict['divergence'])}")


def _divergence(parting: dict[str, Any] | None) -> str:
    if parting is None:
        return "schedules: the same decisions throughout"
    sides = {name: parting[name] for name in ("real", "simulated")}
    told = [
        f"{name} {side['kind']} of requests {side['requests']} at {side['time_s']:.4f} s" if side else f"{name} nothing"
        for name, side in sides.items()
    ]
    return f"schedules part at work {parting['number']} of stream {parting['stream']!r}: {', '.join(told)}"
