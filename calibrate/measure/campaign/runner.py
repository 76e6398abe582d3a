"""Runs a campaign's steps one after the other; it may be interrupted or killed anywhere, and goes on when called again.

A finished step is not begun again, a measurement goes on where it was, a replay begins anew. Every call begins with the
smoke step, which ends at once on a machine that it has passed on; where it fails, nothing is measured. Not here: which
steps there are (calibrate.measure.campaign.plan), what one does (calibrate.measure.campaign.steps).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from calibrate.measure.campaign.gates import disturbed, forget
from calibrate.measure.campaign.plan import ALWAYS, CAMPAIGNS, DONE, SMOKE, SMOKE_FILE, UNTIL, done_file


def run_campaign(campaign: str, out: Path, until: str | None = None) -> int:
    """Run what OUT lacks. Exit code: 0 every step is done, 1 one failed (after a red smoke step none is begun, else the
    others went on), 2 OUT is somebody else's, 130 interrupted."""
    if out.exists() and not is_ours(out):
        print(f"campaign: {str(out)!r} is there and of no campaign; choose another directory", file=sys.stderr)
        return 2
    out.mkdir(parents=True, exist_ok=True)
    failed: list[str] = []
    steps = CAMPAIGNS[campaign].steps
    for step in steps[: UNTIL.index(until) + 1 if until else len(steps)]:
        if done_file(out, step).exists():
            continue
        try:
            is_over = _run(campaign, out, step) and _undisturbed(campaign, out, step)
        except KeyboardInterrupt:
            print("campaign: interrupted; the same command goes on from here", file=sys.stderr)
            return 130
        if not is_over:
            failed.append(step)
            if step == SMOKE:
                break
        elif step not in ALWAYS:
            done_file(out, step).parent.mkdir(exist_ok=True)
            done_file(out, step).touch()
    if failed:
        print(f"campaign: failed: {', '.join(failed)}; the reason stands above", file=sys.stderr)
        return 1
    if any(disturbed(out, CAMPAIGNS[campaign], step) for step in steps):
        print("campaign: disturbed, also when measured again: the page states no verdict")
    sent = out if until else out / "send"
    print(f"campaign: done; what to send is in {sent} (docs/gpu.md)")
    return 0


def _undisturbed(device: str, out: Path, step: str) -> bool:
    """Measure `step` again, once, where something disturbed it, and say so; False where that failed."""
    campaign = CAMPAIGNS[device]
    reasons = disturbed(out, campaign, step)
    again = done_file(out, f"again {step}")
    if not reasons or again.exists():
        return True
    print("\n".join(f"campaign: {step} is disturbed: {reason}" for reason in reasons), flush=True)
    again.parent.mkdir(exist_ok=True)
    again.touch()
    forget(out, campaign, step)
    return _run(device, out, step)


def is_ours(out: Path) -> bool:
    """A folder that is empty, or that a campaign began."""
    held = {path.name for path in out.iterdir()} if out.is_dir() else None
    return held is not None and (not held or bool(held & {SMOKE_FILE, DONE}))


def _run(device: str, out: Path, step: str) -> bool:
    """A process of its own: what it held on the device is free when it ends, or is killed; it ends with this one."""
    print(f"campaign: {step}", flush=True)
    command = [sys.executable, "-m", "calibrate.measure.campaign.steps", device, str(out), step]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        return process.wait() == 0
