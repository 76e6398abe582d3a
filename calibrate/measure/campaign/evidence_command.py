"""`lanesim evidence`: what lanes do on this machine, measured, predicted and replayed in ten minutes.

Not here: the steps (calibrate.measure.campaign.plan), running them (calibrate.measure.campaign.runner).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from shutil import rmtree
from typing import Annotated, Literal

from msgspec import Struct

from sim.cli.console import claim
from sim.cli.flags import Overwrite, command

LARGE_BYTES = 75e9
"""Memory that the larger pair wants."""
MEMORY = "import torch; print(torch.cuda.get_device_properties(0).total_memory)"
"""Program of a process of its own: what it takes of the device is free again."""


class EvidenceFlags(Struct, frozen=True, kw_only=True):
    """Flags of `lanesim evidence`."""

    device: Annotated[Literal["cpu", "cuda"], "What to measure; cuda wants 16 GB."]
    out: Annotated[Path, "Directory for all that is measured; an interrupted run goes on there."]
    whole: Annotated[bool, "Finer grids, five policies, more loads, three runs of each: an hour."] = False
    overwrite: Overwrite = False
    until: Annotated[Literal["smoke", "corun"] | None, "Last step; then no page is made."] = None


@command(
    "evidence",
    EvidenceFlags,
    example="lanesim evidence --device cpu --out results/evidence",
    short_help="Whether lanes pay on this machine: measured, predicted, replayed.",
)
def evidence_command(flags: EvidenceFlags) -> None:
    """Measure this machine, predict lanes beside continuous batching on it, replay both, and say whether lanes pay.

    A smoke step; rates of two streams, with shares and priorities; passes of a pair; replays of a closed loop and an
    open one, predicted and judged. What something else disturbed is measured again; if it still is, the page says so
    and states no verdict. The page is OUT/send/docs/validation/GPU/README.md. The same command goes on after a kill;
    with --overwrite it begins anew.
    """
    from calibrate.measure.campaign.runner import is_ours, run_campaign

    if not flags.out.exists() or not is_ours(flags.out):
        claim(folders={"--out": flags.out})
    elif flags.overwrite:
        rmtree(flags.out)
    code = run_campaign(
        campaign_of(flags.device, _memory_bytes(flags.device), is_whole=flags.whole), flags.out, flags.until
    )
    if code:
        raise SystemExit(code)


def campaign_of(device: str, memory_bytes: float, *, is_whole: bool) -> str:
    """Name of the campaign for a device of that memory.

    >>> campaign_of("cuda", 80e9, is_whole=False), campaign_of("cuda", 24e9, is_whole=True)
    ('cuda-10min', 'cuda-24gb')
    """
    if device == "cpu":
        return device
    name = "cuda" if memory_bytes >= LARGE_BYTES else "cuda-24gb"
    return name if is_whole else f"{name}-10min"


def _memory_bytes(device: str) -> float:
    """Raises ValueError where there is no such device, or no torch."""
    if device == "cpu":
        return 0.0
    asked = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True)
    if asked.returncode:
        reason = " ".join(asked.stderr.strip().splitlines()[-1:])
        raise ValueError(f"--device cuda: {reason}; pip install 'lanesim[gpu,analysis]' on a machine with a GPU")
    return float(asked.stdout)
