"""`lanesim calibrate`: measure, import published tables, derive profiles, fit a running server.

Mounted through the entry-point group `lanesim.commands`; importing this module imports click alone.
Not here: what the sub-commands do.
"""

from __future__ import annotations

import click

from sim.cli.lazy import Commands, LazyGroup

SUB_COMMANDS: Commands = {
    "measure": ("calibrate.measure.command:measure_command", "Time a pair of models on this machine."),
    "import": ("calibrate.cli.imports:import_command", "Make a profile from published kernel tables."),
    "cases": ("calibrate.cli.imports:cases_command", "Commands that time a model with vLLM's kernels."),
    "derive": ("calibrate.cli.derive:derive_command", "Transfer a profile to another GPU of its family."),
    "fit": ("calibrate.cli.fit:source_command", "Fit a profile to what a running server wrote."),
}


@click.group(
    "calibrate",
    cls=LazyGroup,
    commands=SUB_COMMANDS,
    epilog="Example: lanesim calibrate derive --from h100-sxm/llama-2-7b --gpu h200-sxm --out p.json",
)
def calibrate_command() -> None:
    """Make cost profiles: measure, import, derive, or fit to a running server."""
