"""The GPU campaign: `python -m calibrate.campaign OUT` runs its steps one after the other, resuming.

Each call ends after `--limit` seconds or when all is done, and says which; run it again until it exits with 0. Then
`python -m calibrate.campaign OUT --ship` writes profiles, raw points and the report from what is in OUT, measuring
nothing. Needs torch, transformers and the analysis extra, no installation of lanesim itself.
Not here: which steps (calibrate.campaign.plan), what one does (calibrate.campaign.steps), the report
(calibrate.campaign.report).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from time import monotonic

from calibrate.campaign.plan import CAMPAIGNS
from calibrate.campaign.report import ship
from calibrate.check.profile import check
from sim.costs.profile_files import load

LIMIT_S = 510.0
"""Eight and a half minutes: a call on a lent machine is cut at nine or ten, start and packing included."""
NOT_DONE = 3
"""Exit code of a call that has more to do."""
LEAST_S = 30.0
"""With less time left, no step is begun: it would spend it on building models."""
KILL_MARGIN_S = 10.0


def main(args: Sequence[str] | None = None) -> int:
    """Exit code: 0 every step is done, NOT_DONE run it again, 1 a step failed (the others went on)."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path, help="directory for everything that is measured")
    parser.add_argument("--device", choices=sorted(CAMPAIGNS), default="cuda")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="SECONDS", help="of this call")
    parser.add_argument("--ship", action="store_true", help="write profiles, points and report from what is measured")
    parser.add_argument("--root", type=Path, default=Path(), help="repository to ship into")
    given = parser.parse_args(args)
    if given.ship:
        return ship(given.out, given.root, CAMPAIGNS[given.device])
    given.out.mkdir(parents=True, exist_ok=True)
    ends_s = monotonic() + given.limit
    failed: list[str] = []
    for step in CAMPAIGNS[given.device].steps:
        if is_done(given.out, step):
            continue
        left_s = ends_s - monotonic() - KILL_MARGIN_S
        if left_s < LEAST_S:
            return _say_not_done(given.out, step)
        try:
            code = subprocess.run(command(given.device, given.out, step), timeout=left_s, check=False).returncode
        except subprocess.TimeoutExpired:
            return _say_not_done(given.out, step)
        if code:
            failed.append(step)
        else:
            done_file(given.out, step).parent.mkdir(exist_ok=True)
            done_file(given.out, step).touch()
    if failed:
        print(f"campaign: failed: {', '.join(failed)}; the reason stands above", file=sys.stderr)
        return 1
    for line in left_out([given.out / f"{job.name}.json" for job in CAMPAIGNS[given.device].jobs]):
        print(line)
    print(f"campaign: done; {given.out} holds every step. Next: the same command with --ship")
    return 0


def left_out(files: Sequence[Path]) -> list[str]:
    """One line per profile and other profile: mean errors of the one's constants on the other's models."""
    lines = []
    for file, other in permutations(files, 2):
        what = f"constants of {file.stem} on {other.stem}, left out of their fit"
        try:
            errors = check(load(file), other).errors
        except ValueError as error:
            lines.append(f"{what}: {error}")
            continue
        means = ", ".join(f"{kind} {error.mean_error_pct} %" for kind, error in errors.items())
        lines.append(f"{what}: mean error {means}")
    return lines


def command(device: str, out: Path, step: str) -> list[str]:
    """The command line of one step; a measurement goes on where an earlier one was killed.

    A process of its own: what it held on the device is free when it ends, or is killed.
    """
    return [sys.executable, "-m", "calibrate.campaign.steps", device, str(out), step]


def done_file(out: Path, step: str) -> Path:
    return out / "done" / step.replace(" ", "-")


def is_done(out: Path, step: str) -> bool:
    return done_file(out, step).exists()


def _say_not_done(out: Path, step: str) -> int:
    print(f"campaign: time is up at {step!r}; what was measured is in {out}, run the same command again")
    return NOT_DONE


if __name__ == "__main__":
    sys.exit(main())
