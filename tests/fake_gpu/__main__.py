"""The campaign on a fake GPU: python -m tests.fake_gpu OUT LIBRARIES [GPU ...]

LIBRARIES are what tests.fake_gpu.build made. Runs with the torch of this Python, which is to be a CUDA build. Each
campaign is killed once in every step and called again. Exit code 1 where a capture was violated, more memory was
reserved than planned, a measured run went to the driver for memory, or a step failed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple

from calibrate.measure.campaign.plan import STEPS, Step, done_file

GIB = 1 << 30
ROOT = Path(__file__).parents[2]
KILLED_AT_LINES = 3
"""Of the points file, so many more than before."""
WITHIN_S = 4.0
"""Seconds into a step that writes no points."""
PATIENCE_S = 900.0


class Gpu(NamedTuple):
    name: str
    capability: int
    multiprocessors: int
    mib: int
    slower: float
    """Times as long as on an H100 that kernels take: no pass may beat the data sheet."""


GPUS = {
    "a100": Gpu("NVIDIA A100-SXM4-80GB", 80, 108, 81153, 3.2),
    "h100": Gpu("NVIDIA H100 80GB HBM3", 90, 132, 81079, 1.0),
    "rtx-4090": Gpu("NVIDIA GeForce RTX 4090", 89, 128, 24083, 6.0),
}


def environment(gpu: Gpu, libraries: Path, counts: Path) -> dict[str, str]:
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(libraries),
        "PYTHONPATH": f"{Path(__file__).parent / 'site'}:{ROOT}",
        "FAKE_NAME": gpu.name,
        "FAKE_CC": str(gpu.capability),
        "FAKE_SMS": str(gpu.multiprocessors),
        "FAKE_MIB": str(gpu.mib),
        "FAKE_SLOWER": str(gpu.slower),
        "FAKE_COUNTS": str(counts),
    }


def rehearse(gpu: Gpu, libraries: Path, out: Path) -> Iterator[str]:
    """What is wrong. The campaign begins anew, is killed once within each of its steps, and called again."""
    rmtree(out, ignore_errors=True)
    counts = out.with_suffix(".counts.jsonl")
    counts.unlink(missing_ok=True)
    command = [sys.executable, "-m", "lanesim", "evidence", "--device", "cuda", "--out", str(out)]
    env = environment(gpu, libraries, counts)
    for step in STEPS:
        before = {each: done_file(out, each).exists() for each in STEPS}
        with subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True) as process:
            if not _killed(process, out, step):
                yield f"{step} was over before it could be killed"
        lost = [each for each, is_done in before.items() if is_done and not done_file(out, each).exists()]
        if lost or done_file(out, step).exists():
            yield f"{step} was killed, and what is over is wrong: {lost or step}"
    code = subprocess.run(command, cwd=ROOT, env=env, timeout=PATIENCE_S, check=False).returncode
    if code:
        yield f"the campaign ended with {code}"
    for line in map(json.loads, counts.read_text().splitlines() if counts.exists() else ()):
        yield from _judged(line)
    for summary in out.glob("*/summary.json"):
        for run in json.loads(summary.read_text())["replay"]["runs"]:
            print(f"{summary.parent.name} {run['policy']}: {run['num_device_allocations']} driver allocations")
            if run["num_device_allocations"]:
                yield f"{summary.parent.name}: {run['policy']} went to the driver while it was measured"


def _killed(process: subprocess.Popen[bytes], out: Path, step: Step) -> bool:
    """Kill the campaign once `step` is under way: it writes points, or began WITHIN_S ago. Its process ends with it."""
    before, ends_s, began_s = _points(out), time.monotonic() + PATIENCE_S, 0.0
    while process.poll() is None and time.monotonic() < ends_s:
        previous = STEPS[: STEPS.index(step)]
        if all(done_file(out, each).exists() for each in previous):
            began_s = began_s or time.monotonic()
            has_points = step == "measure" and len(_points(out)) >= len(before) + KILLED_AT_LINES
            if has_points or (step != "measure" and time.monotonic() > began_s + WITHIN_S):
                kept = _points(out)
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return not done_file(out, step).exists() and _points(out)[: len(kept)] == kept
        time.sleep(0.05)
    return False


def _points(out: Path) -> list[bytes]:
    """Whole lines of the points file."""
    path = next(out.glob("*.points.jsonl"), None)
    return path.read_bytes().splitlines(keepends=True)[:-1] if path else []


def _judged(line: dict[str, Any]) -> Iterator[str]:
    step, planned = " ".join(line["process"][:2]) or "?", line["planned"][0] if line["planned"] else 0
    print(
        f"{step}: {line['graphs']} graphs of {line['nodes']} nodes, {line['launches']} launches, reserved "
        f"{line['reserved'] / GIB:.1f} of {planned / GIB:.1f} GiB planned, {line['violations']} violations, "
        f"{line['full_queues']} full launch queues"
    )
    if line["violations"]:
        yield f"{step}: {line['violations']} capture violations"
    if line["reserved"] > planned:
        yield f"{step}: {line['reserved'] / GIB:.2f} GiB reserved, {planned / GIB:.2f} planned"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fake_gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("libraries", type=Path)
    parser.add_argument("gpus", nargs="*", choices=[*GPUS, []], default=[])
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    wrong = []
    for name in given.gpus or GPUS:
        print(f"== {name}", flush=True)
        wrong += [f"{name}: {each}" for each in rehearse(GPUS[name], given.libraries.resolve(), given.out / name)]
    for each in wrong:
        print(f"fake gpu: {each}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
