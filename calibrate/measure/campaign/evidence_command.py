"""`lanesim evidence`: what lanes do on this machine, measured, predicted and replayed in ten minutes, best first.

Not here: the steps (calibrate.measure.campaign.plan), running them (calibrate.measure.campaign.runner).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from shutil import rmtree
from typing import Annotated, Literal

from msgspec import Struct

from calibrate.measure.campaign.plan import Step
from sim.cli.console import claim
from sim.cli.flags import Overwrite, command
from sim.names import install_line

LARGE_BYTES = 75e9
"""Memory that the larger pair wants."""
MEMORY = "import torch; print(torch.cuda.get_device_properties(0).total_memory)"
"""Program of a process of its own: what it takes of the device is free again."""


class EvidenceFlags(Struct, frozen=True, kw_only=True):
    device: Annotated[Literal["cpu", "cuda"], "What to measure. cuda needs 16 GB."]
    out: Annotated[Path, "Directory for the measurements. Run the command again to continue there."]
    overwrite: Overwrite = False
    until: Annotated[
        Step | None, "Last step to run, such as measure. The prediction can be committed before it is tested."
    ] = None
    only: Annotated[Step | None, "Run this step alone, even if it was done."] = None


@command(
    "evidence",
    EvidenceFlags,
    example="lanesim evidence --device cpu --out results/evidence",
    short_help="Measure and predict whether lanes pay on this machine.",
)
def evidence_command(flags: EvidenceFlags) -> None:
    """Measure this machine, predict lanes and continuous batching on it, run both, and say whether lanes pay.

    There are five steps. smoke checks the machine. measure times the passes and writes OUT/prediction.json. closed runs
    16 requests in flight, open runs 0.6 of capacity, many runs 64 in flight under five schedulers.

    Each step prints its commands. The result is OUT/send/docs/validation/GPU/README.md. It gives no verdict where other
    programs disturbed a step. Run the command again to continue, or with --overwrite to begin anew.
    """
    if flags.until is not None and flags.only is not None:
        raise ValueError(f"--until {flags.until} and --only {flags.only} exclude each other")
    from calibrate.measure.campaign.runner import is_ours, run_campaign

    if not flags.out.exists() or not is_ours(flags.out):
        claim(folders={"--out": flags.out})
    elif flags.overwrite:
        rmtree(flags.out)
    name = campaign_of(flags.device, _memory_bytes(flags.device))
    code = run_campaign(name, flags.out, until=flags.until, only=flags.only)
    if code:
        raise SystemExit(code)


def campaign_of(device: str, memory_bytes: float) -> str:
    """Name of the campaign for a device of that memory.

    >>> campaign_of("cuda", 80e9), campaign_of("cuda", 24e9)
    ('cuda', 'cuda-24gb')
    """
    return device if device == "cpu" or memory_bytes >= LARGE_BYTES else f"{device}-24gb"


def _memory_bytes(device: str) -> float:
    """Raises ValueError where there is no such device, or no torch."""
    if device == "cpu":
        return 0.0
    asked = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True)
    if asked.returncode:
        reason = " ".join(asked.stderr.strip().splitlines()[-1:])
        raise ValueError(f"--device cuda: {reason}. Run {install_line('gpu,analysis')} on a machine with a GPU")
    return float(asked.stdout)
