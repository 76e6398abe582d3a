"""The GPU campaign: `python -m calibrate.campaign OUT` measures the reference pairs one after the other, resuming.

Each call ends after `--limit` seconds or when all is done, and says which; run it again until it exits with 0. Results
are small: one profile and one points file per pair. Needs torch, transformers, numpy, scipy, simpy and msgspec, no
installation of lanesim itself.
Not here: a single measurement (measure), the command `lanesim calibrate measure` (measure_command).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from time import monotonic
from typing import NamedTuple

LIMIT_S = 540.0
"""Nine minutes: what one call on a lent machine may take."""
NOT_DONE = 3
"""Exit code of a call that has more to do."""
LEAST_S = 30.0
"""With less time left, no measurement is begun: it would spend it on building models."""
KILL_MARGIN_S = 10.0


class Job(NamedTuple):
    """One pair and the seconds that its measurement is planned with."""

    target: str
    draft: str | None
    budget_s: float
    rows: int | None = None

    @property
    def name(self) -> str:
        return self.target if self.draft is None else f"{self.target}+{self.draft}"


CAMPAIGNS = {
    "cuda": (
        Job("llama-3.2-1b", None, 150.0),
        Job("llama-3.1-8b", "llama-3.2-1b", 400.0),
        Job("llama-2-7b", "tinyllama-1.1b", 400.0, 16),
        Job("qwen2.5-7b", None, 300.0),
    ),
    "cpu": (Job("tiny-target", "tiny-draft", 60.0),),
}


def main(args: Sequence[str] | None = None) -> int:
    """Exit code: 0 all profiles are there, NOT_DONE run it again, 1 a measurement failed (the others went on)."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path, help="directory for profiles and points files")
    parser.add_argument("--device", choices=sorted(CAMPAIGNS), default="cuda")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="SECONDS", help="of this call")
    given = parser.parse_args(args)
    given.out.mkdir(parents=True, exist_ok=True)
    ends_s = monotonic() + given.limit
    failed = []
    for job in CAMPAIGNS[given.device]:
        out = given.out / f"{job.name}.json"
        if out.exists():
            continue
        left_s = ends_s - monotonic() - KILL_MARGIN_S
        if left_s < LEAST_S:
            return _say_not_done(given.out, job)
        try:
            code = subprocess.run(command(job, given.device, out), timeout=left_s, check=False).returncode
        except subprocess.TimeoutExpired:
            return _say_not_done(given.out, job)
        if code:
            failed.append(job.name)
    if failed:
        print(f"campaign: failed: {', '.join(failed)}; the reason stands above", file=sys.stderr)
        return 1
    print(f"campaign: all profiles are in {given.out}")
    for line in left_out([given.out / f"{job.name}.json" for job in CAMPAIGNS[given.device]]):
        print(line)
    return 0


def left_out(files: Sequence[Path]) -> list[str]:
    """One line per profile and other profile: mean errors of the one's constants on the other's models."""
    from calibrate.check import check
    from sim.costs import load

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


def command(job: Job, device: str, out: Path) -> list[str]:
    """The command line of one measurement; it goes on where an earlier one of the same `out` was killed.

    A process of its own: what it held on the device is free when it ends, or is killed.
    """
    code = "import sys; from calibrate.campaign import measure; sys.exit(measure(*sys.argv[1:]))"
    given = (device, job.target, job.draft or "", str(job.rows or ""), str(job.budget_s), str(out))
    return [sys.executable, "-c", code, *given]


def measure(device: str, target: str, draft: str, rows: str, budget_s: str, out: str) -> int:
    """One measurement in this process; exit code 1 and one line if it cannot be."""
    import torch

    from calibrate import points_file
    from calibrate.measure import Session
    from calibrate.pair import pair_spec
    from sim.costs.profile import encode

    torch.set_num_threads(1)
    path = Path(out)
    try:
        spec = pair_spec(device, target, draft or None, None, int(rows) if rows else None, None, None, 0)
        points_path = path.with_suffix(".points.jsonl")
        with points_file.alone(points_path):
            profile = Session(spec, points_path, float(budget_s), _quiet).run()
    except (ValueError, RuntimeError) as error:
        print(f"campaign: {path.stem}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    scratch = path.with_name(f".{path.name}.part")
    scratch.write_bytes(encode(profile))
    os.replace(scratch, path)
    kinds = ((kind, error.mean_error_pct) for kind, error in profile.errors.items())
    print(f"{path.stem}: mean error", ", ".join(f"{kind} {error} %" for kind, error in kinds if error is not None))
    return 0


def _quiet(stage: str, done: int, total: int) -> None:
    """No progress bar: campaigns run unattended."""


def _say_not_done(out: Path, job: Job) -> int:
    print(f"campaign: time is up at {job.name}; what was measured is in {out}, run the same command again")
    return NOT_DONE


if __name__ == "__main__":
    sys.exit(main())
