"""`lanesim validate`: a replay's directory, or one of the sub-commands for other kinds of real runs.

The sub-commands live in modules of their own, loaded when used; one whose module is not there is not listed.
Not here: the comparison (realrun.validate.error_parts), and what the sub-commands do.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sim.cli.console import claim, write_json
from sim.cli.lazy import SOURCE, Commands, LazyGroup
from sim.cli.options import OVERWRITE

if TYPE_CHECKING:
    from realrun.validate.error_parts import Judged

EXAMPLE = "Example: lanesim validate results/replay --json -"
SUB_COMMANDS: Commands = {
    "cells": (
        "calibrate.cli.validate_cells:cells_command",
        "Closed-loop cells of a table: concurrency, measured means.",
    ),
    "vllm": ("calibrate.cli.validate_vllm:vllm_command", "A real vLLM run, from its requests' timestamps."),
}
"""A directory of such a name is reached as ./NAME."""
HELP_FLAGS = ("-h", "--help")
DIRECTORY = "DIRECTORY"
"""Put before a line that names no sub-command."""


class ValidateGroup(LazyGroup):
    """`directory`, which takes over whatever does not begin with the name of a sub-command."""

    def __init__(self, name: str, *, directory: click.Command, commands: Commands = SUB_COMMANDS, **more: Any) -> None:
        super().__init__(name, commands=commands, **more)
        self._directory = directory

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_own = not args or args[0] in (*HELP_FLAGS, *self.list_commands(ctx))
        return super().parse_args(ctx, args if is_own else [DIRECTORY, *args])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] == DIRECTORY:
            return None, self._directory, args[1:]
        return super().resolve_command(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [f"{DIRECTORY} [OPTIONS] | COMMAND ..." if self.list_commands(ctx) else f"{DIRECTORY} [OPTIONS]"]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The directory form's own flags, then the sub-commands."""
        self._directory.format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


@click.command("directory")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--profile", "profile_name", default=None, help="Cost profile, name or path; default: the replay's own.")
@click.option("--json", "json_path", default=None, metavar="FILE", help="Write the result as JSON; - = stdout.")
@OVERWRITE
@click.option("--plots/--no-plots", default=True, help="Draw CDFs, errors and timelines into DIRECTORY.")
def directory_command(directory: Path, profile_name: str | None, json_path: str | None, plots: bool) -> None:
    """What `lanesim validate DIRECTORY` does."""
    from realrun.replay.genuine_acceptance import tied_profile
    from realrun.validate.error_parts import judge, result_of
    from realrun.validate.readback import read_replay, read_summary
    from sim.costs.profile_files import load
    from sim.report.results import others_of

    click.get_current_context().meta[SOURCE] = str(directory)
    drawn_in = directory if plots and directory.is_dir() else None
    claim(
        files={"--json": json_path},
        added_to={"--plots": drawn_in},
        adds={"--plots": sorted(directory.glob("validation-*.png"))},
        inputs=[profile_name, *others_of(directory)],
    )
    scenario, summary = read_summary(directory)
    profile = load(profile_name if profile_name is not None else directory / "profile.json")
    if profile_name is not None and summary["replay"]["acceptance"] == "model":
        profile, _ = tied_profile(profile, summary["replay"]["epsilon"], summary["replay"]["draft_layers"])
    judged = [judge(observed) for observed in read_replay(directory, scenario, summary, profile)]
    result = result_of(summary, profile, judged)
    if plots:
        from realrun.validate.report import draw_validation

        draw_validation(directory, judged)
    if write_json(json_path, result):
        _tell(judged)
        if plots:
            print(f"figures in {directory}")


@click.group(
    "validate",
    cls=ValidateGroup,
    directory=directory_command,
    epilog=EXAMPLE,
    short_help="The simulator against a replay, a vLLM run, or measured cells: how far off, and why.",
)
def validate_command() -> None:
    """Simulate the scenario and tape of the replay in DIRECTORY, and say how far off the simulator was and why.

    mechanism: every work given its measured time. cost: the profile's times, streams alone. contention: the simulation
    as `lanesim compare` runs it.
    """


def _tell(judged: list[Judged]) -> None:
    """Print of each run the headline, each part of the error, and where the schedules part."""
    for each in judged:
        verdict = each.verdict
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


def _divergence(found: dict[str, Any] | None) -> str:
    if found is None:
        return "schedules: the same decisions throughout"
    sides = {name: found[name] for name in ("real", "simulated")}
    told = [
        f"{name} {side['kind']} of requests {side['requests']} at {side['time_s']:.4f} s" if side else f"{name} nothing"
        for name, side in sides.items()
    ]
    return f"schedules part at work {found['number']} of stream {found['stream']!r}: {', '.join(told)}"
