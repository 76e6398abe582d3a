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
from sim.names import span


class DirectoryFlags(Struct, frozen=True, kw_only=True):
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
        _tell(judged, doubt)


def _tell(verdicts: list[dict[str, Any]], doubt: str) -> None:
    """Print how far off latency was, each part of the error of each run, and where the schedules part."""
    from rich.console import Console

    from sim.report.said import IN_JSON, SURE, Said, print_said
    from sim.report.tables import new_table

    rows, lines = [], []
    for verdict in verdicts:
        name = f"{verdict['policy']}, seed {verdict['seed']}"
        for part, metrics in verdict["decomposition"].items():
            means = [metrics[metric]["mean"] for metric in ("ttft", "tpot", "itl", "e2el")]
            values = [*means, metrics["e2el"]["p95"], metrics["output_throughput"]]
            errors = ["–" if each["error_pct"] is None else f"{each['error_pct']:+.1f}" for each in values]
            rows.append([verdict["policy"], part, *errors])
        lookups = verdict["lookups"]
        lines.append(f"{name}: {lookups['found']} measured times, {lookups['missed']} by the nearest shape.")
        if verdict["machine"]:
            when = zip(("before", "after"), verdict["machine"], strict=False)
            slower = " and ".join(f"{ratio:.2f} {each} the run" for each, ratio in when)
            lines.append(f"Fixed passes took {slower}, times as long as with the profile.")
        lines.append(_divergence(verdict["divergence"]))
    off_pct = [verdict["metrics"]["e2el"]["mean"]["error_pct"] for verdict in verdicts]
    off = span(f"{each:+.1f}" for each in sorted(each for each in off_pct if each is not None))
    answer = (
        f"{doubt}\nMean latency of {len(verdicts)} simulated run{'s' * (len(verdicts) != 1)} is off by {off} %.".strip()
    )
    table = new_table(["scheduler", "error in %"], ["TTFT", "TPOT", "ITL", "E2EL", "p95 E2EL", "tokens/s"], rows)
    print_said(Console(markup=False), Said(answer, [("", table)], [(SURE, line) for line in lines], more=IN_JSON))


def _divergence(parting: dict[str, Any] | None) -> str:
    if parting is None:
        return "Both made the same scheduling decisions."
    sides = {name: parting[name] for name in ("real", "simulated")}
    parts = [
        f"{name} {side['kind']} of requests {side['requests']} at {side['time_s']:.4f} s" if side else f"{name} nothing"
        for name, side in sides.items()
    ]
    return f"Schedules part at work {parting['number']} of stream {parting['stream']!r}: {', '.join(parts)}."
