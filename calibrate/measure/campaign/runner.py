"""Runs a campaign's steps one after the other; it may be interrupted or killed anywhere, and goes on when called again.

A finished step is not begun again, a measurement goes on where it was, a replay begins anew. A step that reaches its
limit is over with what it has. Every call begins with the smoke step, which ends at once on a machine that it has
passed on; where it fails, nothing is measured. Not here: which steps there are (calibrate.measure.campaign.plan), what
one does (calibrate.measure.campaign.steps).
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from calibrate.measure.campaign.gates import disturbed, forget
from calibrate.measure.campaign.plan import (
    CAMPAIGNS,
    DONE,
    MEASURE,
    PREDICTION,
    REPORT,
    SMOKE,
    SMOKE_FILE,
    STEPS,
    Campaign,
    Step,
    device_of,
    done_file,
)
from calibrate.measure.campaign.verdict import findings

GRACE_S = 30.0
"""Seconds for a step at its limit to write what it has."""


def run_campaign(name: str, out: Path, *, until: Step | None = None, only: Step | None = None) -> int:
    """Run what OUT lacks. Exit code: 0 every step is done, 1 one failed (after a red smoke step none is begun, else the
    others went on), 2 OUT is of something else, 130 interrupted."""
    if out.exists() and not is_ours(out):
        print(f"campaign: {str(out)!r} is there and of no campaign; choose another directory", file=sys.stderr)
        return 2
    out.mkdir(parents=True, exist_ok=True)
    campaign = CAMPAIGNS[name]
    failed: list[str] = []
    if only is not None and done_file(out, only).exists():
        # Again: co-runs go on with what they lack, a replay begins anew by itself.
        done_file(out, only).unlink()
        if only == MEASURE:
            forget(out, campaign)
    wanted = (only,) if only else STEPS[: STEPS.index(until) + 1] if until else STEPS
    left = _left(out, wanted)
    print("\n".join(_found(out, name) if not left else [_next(campaign, left)]), flush=True)
    for step in dict.fromkeys((SMOKE, *left)):
        try:
            is_over = _run(name, out, step)
        except KeyboardInterrupt:
            print("campaign: interrupted; the same command goes on from here", file=sys.stderr)
            return 130
        if is_over:
            done_file(out, step).parent.mkdir(exist_ok=True)
            done_file(out, step).touch()
            for line in disturbed(out, campaign, step):
                print(f"campaign: {step} is disturbed: {line}", flush=True)
        else:
            failed.append(step)
            if step == SMOKE:
                break
    if SMOKE not in failed and campaign.job.profile_path(out).exists() and not _run(name, out, REPORT):
        failed.append(REPORT)
    if failed:
        print(f"campaign: failed: {', '.join(failed)}; the reason stands above", file=sys.stderr)
        return 1
    if left:
        print("\n".join(_found(out, name)))
    return 0


def is_ours(out: Path) -> bool:
    """A folder that is empty, or that a campaign began."""
    held = {path.name for path in out.iterdir()} if out.is_dir() else None
    return held is not None and (not held or bool(held & {SMOKE_FILE, DONE}))


def _left(out: Path, steps: tuple[Step, ...]) -> list[Step]:
    return [step for step in steps if not done_file(out, step).exists()]


def _next(campaign: Campaign, left: list[Step]) -> str:
    steps = ", ".join(f"{step} ({campaign.limit_s(step):.0f} s)" for step in left)
    return f"next: {steps}; {sum(map(campaign.limit_s, left)):.0f} s at most"


def _found(out: Path, name: str) -> list[str]:
    """What the replays found, where what is sent lies, and what is left."""
    campaign, left = CAMPAIGNS[name], _left(out, STEPS)
    judged = {load.title: out / f"{load.name}.json" for load in campaign.loads}
    results = {title: json.loads(path.read_text()) for title, path in judged.items() if path.exists()}
    lines = [f"found: {line}" for line in findings(results)]
    if not lines and (out / PREDICTION).exists():
        lines = [f"found: a profile, and what it predicts of every replay, to be committed now: {out / PREDICTION}"]
    again = [step for step in STEPS if disturbed(out, campaign, step)]
    if again:
        lines.append(f"disturbed: {', '.join(again)}; the page states no verdict; --only {again[0]} does it again")
    if left:
        command = f"lanesim evidence --device {device_of(name)} --out {out}"
        return [*lines, f"{_next(campaign, left)}; `{command}` goes on"]
    return [*lines, f"what to send is in {out / 'send'} (docs/gpu.md)"]


def _run(name: str, out: Path, step: str) -> bool:
    """A process of its own: what it held on the device is free when it ends, or is killed; it ends with this one. At
    its limit it is interrupted, and keeps what it has."""
    print(f"campaign: {step}", flush=True)
    limit_s = CAMPAIGNS[name].limit_s(step)
    command = [sys.executable, "-m", "calibrate.measure.campaign.steps", name, str(out), step]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(limit_s) == 0
        print(f"campaign: {step} is at its limit of {limit_s:.0f} s", flush=True)
        # Twice: an interrupt may come where a lock is held, and the step then waits for ever.
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                return process.wait(GRACE_S) == 0
        process.kill()
        return False
