"""Holds `continuous` against the decisions of real schedulers: the exit code is the number of logs that differ.

    .venv/bin/python -m validation conformance LOG...              real engines' logs, and drawn ones (.jsonl.gz)
    .venv/bin/python -m validation conformance --vllm PATH         schedules drawn now, by the vLLM in that folder

A step is equal where requests, tokens of each, drafts among them, preempted requests and tokens found in the cache are.
PATH is an installed vLLM's site-packages, or a wheel unpacked (its Python is enough; what it imports must be
installed).
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

from realrun.installed.vllm_scheduler import installed_version
from sim.costs.engine_costs import engine_names
from sim.names import unknown
from validation.conformance.drawn import FEATURES, drawn_logs
from validation.conformance.logs import Log, read_logs, write_logs
from validation.conformance.replayed import Difference, differences

MAX_SHOWN = 5
"""Logs of which the first step that differs is printed."""
MAX_CODE = 100
"""Exit codes end at 255, and some above 125 mean other things."""


def main(
    logs: list[Path],
    engine: str | None = None,
    vllm: Path | None = None,
    draws: int = 20,
    first_seed: int = 0,
    keep: int = 0,
    out: Path | None = None,
) -> int:
    """Raises ValueError for files and engines that are not there."""
    if engine is not None and not engine.endswith(".json") and engine not in engine_names():
        raise ValueError(unknown("engine", engine, engine_names()))
    if not logs and vllm is None:
        raise ValueError("want a log, or --vllm with the folder of an installed or unpacked vLLM")
    num_differ = 0
    for path in logs:
        held = read_logs(path)
        num_differ += _judged(path.name, held, engine, is_each_named=len(held) == 1)
    if vllm is not None:
        num_differ += _drawn(vllm, range(first_seed, first_seed + draws), engine, keep, out)
    return min(num_differ, MAX_CODE)


def _judged(name: str, logs: list[Log], engine: str | None, *, is_each_named: bool) -> int:
    """Number of `logs` that differ, printed."""
    compared = [(log, differences(log, engine)) for log in logs]
    bad = [(log, steps) for log, steps in compared if steps]
    num_steps = sum(len(log.steps) for log in logs)
    under = engine or ", ".join(sorted({log.engine for log in logs}))
    what = f"{len(logs)} logs, {len(bad)} differ" if not is_each_named else f"{len(bad and bad[0][1])} differ"
    print(f"{name}: {num_steps} steps under {under}; {what}")
    _show(bad)
    return len(bad)


def _show(bad: list[tuple[Log, list[Difference]]]) -> None:
    for log, steps in bad[:MAX_SHOWN]:
        print(f"  {log.name}: {len(steps)} of {len(log.steps)} steps, first {steps[0].step}")
        print(f"    simulated {steps[0].simulated}\n    real      {steps[0].real}")


def _drawn(folder: Path, seeds: range, engine: str | None, keep: int, out: Path | None) -> int:
    """Draws, and writes the first `keep` schedules of each feature to `out`."""
    sys.path.insert(0, str(folder.resolve()))
    try:
        version = installed_version()
    except ImportError as error:
        raise ValueError(f"--vllm {str(folder)!r}: no vLLM that can be imported ({error})") from None
    of_version = f"vllm-{'.'.join(version.split('.')[:2])}"
    if engine is None and of_version not in engine_names():
        raise ValueError(f"{unknown('engine', of_version, engine_names())}; name one with --engine")
    num_logs, num_steps, num_differ = Counter[str](), Counter[str](), Counter[str]()
    bad, kept, stopped = [], [], list[str]()
    seconds = 0.0
    for feature in FEATURES:
        began = time.perf_counter()
        for log in drawn_logs((feature,), seeds, of_version, stopped):
            seconds += time.perf_counter() - began
            steps = differences(log, engine)
            num_logs[feature] += 1
            num_steps[feature] += len(log.steps)
            if steps:
                num_differ[feature] += 1
                bad.append((log, steps))
            if num_logs[feature] <= keep:
                kept.append(log)
            began = time.perf_counter()
        print(
            f"{feature:22}{num_logs[feature]:6} schedules {num_differ[feature]:6} differ {num_steps[feature]:8} steps"
        )
    total = sum(num_steps.values())
    print(
        f"vLLM {version} under {engine or of_version}: {sum(num_logs.values())} schedules, {sum(num_differ.values())} "
        f"differ, {total} steps, {total / seconds:.0f} a second of vLLM's"
    )
    if stopped:
        print(f"ended by an assertion of vLLM's own, not compared: {'; '.join(stopped)}")
    _show(bad)
    if out is not None:
        write_logs(out, kept)
    return len(bad)
