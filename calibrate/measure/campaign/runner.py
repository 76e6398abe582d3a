"""The runner of a campaign's steps, one after the other. It may be killed anywhere, and continues when called again.

A step is the commands that a user would type, each in a process: what it held on the device is free when it ends. A
finished step is not begun again, a measurement goes on where it was, a replay begins anew. A step that reaches its
limit is interrupted and over with what it has. Every call begins with the smoke step, which ends at once where it has
passed. Where it fails, nothing is measured. Not here: which steps there are (calibrate.measure.campaign.plan).
"""

from __future__ import annotations

import ctypes
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from shutil import rmtree

from calibrate.catalogue.model_configs import source_of, with_dtype
from calibrate.fit import points_file
from calibrate.measure.campaign.plan import (
    CAMPAIGNS,
    DONE,
    MEASURE,
    PREDICTION,
    SMOKE,
    SMOKE_FILE,
    STEPS,
    Campaign,
    Loop,
    MeasuredPair,
    Step,
    device_of,
    done_file,
)
from calibrate.measure.campaign.prediction import open_rate_per_s, predict
from calibrate.measure.campaign.report import disturbed, findings, report
from calibrate.measure.fits.measured_profile import profile_of
from sim.costs.profile_files import encode
from sim.files.write import write_text

GRACE_S = 30.0
"""Seconds for a step at its limit to write what it has."""
PR_SET_PDEATHSIG = 1
"""Of Linux's prctl(2): the signal that a process gets when its parent ends."""


def run_campaign(name: str, out: Path, *, until: Step | None = None, only: Step | None = None) -> int:
    """Run what OUT lacks. Exit code: 0 all is done, 1 a step failed, 2 OUT is of something else, 130 interrupted."""
    if out.exists() and not is_ours(out):
        print(f"campaign: {str(out)!r} exists and is of no campaign. Choose another directory", file=sys.stderr)
        return 2
    out.mkdir(parents=True, exist_ok=True)
    campaign = CAMPAIGNS[name]
    failed: list[str] = []
    if only is not None and done_file(out, only).exists():
        done_file(out, only).unlink()
        if only == MEASURE:
            _forget(out, campaign.job)
    wanted = (only,) if only else STEPS[: STEPS.index(until) + 1] if until else STEPS
    left = _left(out, wanted)
    print("\n".join(_found(out, name) if not left else [_next(campaign, left)]), flush=True)
    for step in dict.fromkeys((SMOKE, *left)):
        print(f"campaign: {step}", flush=True)
        try:
            is_over = _do(name, out, step)
        except KeyboardInterrupt:
            print("campaign: interrupted. Run the same command to continue", file=sys.stderr)
            return 130
        except ValueError as error:
            print(f"campaign: {step}: {error}", file=sys.stderr)
            is_over = False
        if is_over:
            done_file(out, step).parent.mkdir(exist_ok=True)
            done_file(out, step).touch()
            for line in disturbed(out, campaign, step):
                print(f"campaign: {step} is disturbed: {line}", flush=True)
        else:
            failed.append(step)
            if step == SMOKE:
                break
    if SMOKE not in failed and campaign.job.profile_path(out).exists():
        report(out, campaign)
    if failed:
        print(f"campaign: these steps failed: {', '.join(failed)}. The reason is above", file=sys.stderr)
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
    return f"next: {steps}. They take at most {sum(map(campaign.limit_s, left)):.0f} s"


def _found(out: Path, name: str) -> list[str]:
    """What the replays found, where what is sent lies, and what is left."""
    campaign, left = CAMPAIGNS[name], _left(out, STEPS)
    judged = {load.title: out / f"{load.name}.json" for load in campaign.loads}
    results = {title: json.loads(path.read_text()) for title, path in judged.items() if path.exists()}
    lines = [f"found: {line}" for line in findings(results)]
    if not lines and (out / PREDICTION).exists():
        lines = [f"found: a profile. Commit its prediction of every replay now: {out / PREDICTION}"]
    again = [step for step in STEPS if disturbed(out, campaign, step)]
    if again:
        lines.append(f"disturbed: {', '.join(again)}. The page states no verdict. Repeat with --only {again[0]}")
    if left:
        command = f"lanesim evidence --device {device_of(name)} --out {out}"
        return [*lines, f"{_next(campaign, left)}. To continue: {command}"]
    return [*lines, f"what to send is in {out / 'send'} (docs/gpu.md)"]


def _do(name: str, out: Path, step: Step) -> bool:
    """Whether the step is over. Raises ValueError, one line, for what cannot be done."""
    campaign, device = CAMPAIGNS[name], device_of(name)
    limit_s = campaign.limit_s(step)
    if step == SMOKE:
        return _run("calibrate.measure.campaign.smoke", [name, str(out)], limit_s)
    if step == MEASURE:
        return _measure(device, out, campaign)
    return _replay(device, out, campaign, next(load for load in campaign.loads if step == load.name))


def _measure(device: str, out: Path, campaign: Campaign) -> bool:
    """A pair's points and profile, then what it predicts. Goes on where an earlier measurement was ended."""
    job = campaign.job
    line = ["calibrate", "measure", "--device", device, "--target", job.target, "--draft", job.draft]
    for key, value in (("budget_s", job.budget_s), ("rows", job.rows), ("context", job.context)):
        line += [] if value is None else ["--set", f"measure.{key}={value:g}"]
    profile, points = job.profile_path(out), job.points_path(out)
    profile.unlink(missing_ok=True)
    _run("lanesim", [*line, "--out", str(profile)], campaign.limit_s(MEASURE))
    if not profile.exists():
        # At its limit: replays are worth more than the rest of the points.
        if not points.exists():
            return False
        held = points_file.read(points)
        shapes = [with_dtype(source_of(name).shape, str(held.options["dtype"])) for name in (job.target, job.draft)]
        write_text(profile, encode(profile_of(held, *shapes)).decode())
    predict(out, campaign)
    return True


def _replay(device: str, out: Path, campaign: Campaign, load: Loop) -> bool:
    """Replay `load` into OUT/LOAD and judge it there, as far as it came."""
    directory, scenario, judged = out / load.name, out / f"{load.name}.yaml", out / f"{load.name}.json"
    raw = campaign.scenario(load, str(campaign.job.profile_path(out)), open_rate_per_s(out))
    # JSON is YAML, too.
    write_text(scenario, json.dumps(raw))
    rmtree(directory, ignore_errors=True)
    limit_s = campaign.limit_s(load.name)
    _run("lanesim", ["replay", str(scenario), "--device", device, "--out", str(directory), "--overwrite"], limit_s)
    return _run("lanesim", ["validate", str(directory), "--json", str(judged), "--overwrite"], limit_s)


def _forget(out: Path, job: MeasuredPair) -> None:
    if job.points_path(out).exists():
        job.points_path(out).rename(job.points_path(out).with_suffix(".former.jsonl"))
    job.profile_path(out).unlink(missing_ok=True)


def _run(module: str, words: Sequence[str], limit_s: float) -> bool:
    """Run `python -m MODULE WORDS` to its end, or to its limit, where it is interrupted. True for exit code 0."""
    print(f"campaign: {shlex.join([module, *words])}", flush=True)
    with subprocess.Popen([sys.executable, "-m", module, *words], preexec_fn=_begin_as_child) as process:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(limit_s) == 0
        print(f"campaign: the step is at its limit of {limit_s:.0f} s and is stopped", flush=True)
        # Twice: an interrupt may come where a lock is held, and the step then waits for ever.
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                return process.wait(GRACE_S) == 0
        process.kill()
        return False


def _begin_as_child() -> None:
    """It hears interrupts, which a shell has what it starts in the background ignore, and ends with this process."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
