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
    out: Annotated[Path, "Directory for all that is measured. An interrupted run goes on there."]
    overwrite: Overwrite = False
    until: Annotated[Step | None, "Last step of this call: a prediction can be committed before it is tested."] = None
    only: Annotated[Step | None, "This step alone, again if it is done."] = None


@command(
    "evidence",
    EvidenceFlags,
    example="lanesim evidence --device cpu --out results/evidence",
    short_help="Whether lanes pay on this machine: measured, predicted, replayed.",
)
def evidence_command(flags: EvidenceFlags) -> None:
    """Measure this machine, predict lanes beside continuous batching on it, replay both, and say whether lanes pay.

    Five steps, the most valuable first, each within its own time: smoke (checks), measure (the passes of a pair, and
    OUT/prediction.json of what follows), closed (16 requests in flight, three runs), open (at 0.6 of capacity) and
    many (64 in flight, five policies). Each prints the commands that it runs. The page is
    OUT/send/docs/validation/GPU/README.md. Where something else disturbed a step, it states no verdict. The same
    command goes on after a kill, or after --until; with --overwrite it begins anew.
    """
    if flags.until is not None and flags.only is not None:
        raise ValueError(f"--until {flags.until} and --only {flags.only}: give one of them")
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
        raise ValueError(f"--device cuda: {reason}; {install_line('gpu,analysis')} on a machine with a GPU")
    return float(asked.stdout)
