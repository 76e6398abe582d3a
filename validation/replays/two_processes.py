"""Prefill beside decode as two processes on one device, relative to each alone: two engines without MPS, which a GPU
serves in slices of time.

`python -m validation two_processes --out FILE` starts both, each with the weights of both models, as engines of a pair
have them. Passes, streams and rates are those of calibrate.measure.rates; only the processes differ. Not here: two
streams of one process (calibrate.measure.campaign.corun).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any, Literal

PAIRS = {"cuda": ("llama-3.1-8b", "llama-3.2-1b"), "cpu": ("tiny-target", "tiny-draft")}
CHUNKS = {"cuda": (512, 2048), "cpu": (16, 64)}
ROWS = {"cuda": (8, 32), "cpu": (1, 4)}
CONTEXT_TOKENS = {"cuda": 1024, "cpu": 128}
SIDES = "prefill", "decode"
ROUNDS = 3
IN_FLIGHT = 3
MIN_PASSES = 6


def main(out: Path, device: Literal["cuda", "cpu"] = "cuda", window_s: float = 1.0) -> None:
    """Rates [chunks][rows] of both sides to OUT."""
    sides = [_Side(device, side) for side in SIDES]
    cells: list[dict[str, Any]] = []
    fingerprints = [side.heard() for side in sides]
    for chunk, rows in product(CHUNKS[device], ROWS[device]):
        for side, size in zip(sides, (chunk, rows), strict=True):
            side.tell(make=size)
            side.heard()
        rates: list[list[float]] = [[], []]
        alone_s: list[list[float]] = [[], []]
        for _ in range(ROUNDS):
            alone = [_window([side], window_s)[0] for side in sides]
            together = _window(sides, window_s)
            for number, (one, both) in enumerate(zip(alone, together, strict=True)):
                rates[number].append(fmean(one) / fmean(both))
                alone_s[number] += one
        sizes = {"chunk_tokens": chunk, "rows": rows, "context_tokens": CONTEXT_TOKENS[device]}
        cells.append(sizes | {"alone_s": [median(each) for each in alone_s], "rates": rates})
        # At once: whoever lent the device may take it back.
        out.write_text(json.dumps({"fingerprint": fingerprints[0], "cells": cells}, indent=1) + "\n")
        print(f"two processes: prefill {chunk} beside decode {rows}: {median(rates[0]):.2f} + {median(rates[1]):.2f}")
    for side in sides:
        side.end()


class _Side:
    """The parent's end of one process."""

    def __init__(self, device: str, kind: str) -> None:
        words = [sys.executable, "-c", f"from {__name__} import serve; serve({device!r}, {kind!r})"]
        # A pass has one thread, as in measurements and replays.
        alone = os.environ | {"OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=alone)

    def tell(self, **words: float) -> None:
        assert self._process.stdin is not None
        print(json.dumps(words), file=self._process.stdin, flush=True)

    def heard(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        self._process.communicate()


def _window(sides: Sequence[_Side], window_s: float) -> list[list[float]]:
    """Seconds from completion to completion while all these sides were at work [sides][passes]."""
    from calibrate.measure.rates import periods

    begins_s = perf_counter() + 0.05
    for side in sides:
        side.tell(run_at=begins_s, seconds=window_s)
    heard = [side.heard() for side in sides]
    return periods([each["start_s"] for each in heard], [each["ends_s"] for each in heard])


def serve(device: str, kind: str) -> None:
    """One process: a line in, a line out; `make` a pass of that size, `run_at` a moment of the machine's clock."""
    from calibrate.measure.machine import fingerprint
    from calibrate.measure.overlap_cells import CAPTURED, EAGER, prefill_beside_decode
    from calibrate.measure.pair import build, pair_spec
    from calibrate.measure.timing import Bench
    from realrun.kernels.issuer import Pending

    context, launches = CONTEXT_TOKENS[device], CAPTURED if device == "cuda" else EAGER
    rows = max(ROWS[device]) + max(CHUNKS[device]) // context + 1
    spec = pair_spec(device, *PAIRS[device], None, rows, context + 256, None, 0)
    bench = Bench(build(spec, 3))
    print(json.dumps(fingerprint(device, spec.dtype)), flush=True)
    for line in sys.stdin:
        words = json.loads(line)
        if "make" in words:
            passes = prefill_beside_decode(words["make"], words["make"], context, launches)
            timed = passes[SIDES.index(kind)]
            issuer, pass_ = bench.issuer(timed.launch), bench.ready(timed)
            bench.warm(timed, issuer)
            set_back = bench.back(pass_)
            print("{}", flush=True)
            continue
        bench.runs_on.synchronize()
        while perf_counter() < words["run_at"]:
            pass
        origin = issuer.stream.record()
        origin.synchronize()
        origin_s, issued = perf_counter(), list[Pending]()
        while perf_counter() < words["run_at"] + words["seconds"] or len(issued) < MIN_PASSES:
            issuer.stream.run(set_back)
            issued.append(issuer.issue(pass_.shape, pass_.rows))
            if len(issued) >= IN_FLIGHT:
                issued[-IN_FLIGHT].values()
        bench.runs_on.synchronize()
        ends_s = [origin_s + each.end.seconds_after(origin) for each in issued]
        print(json.dumps({"start_s": origin_s + issued[0].start.seconds_after(origin), "ends_s": ends_s}), flush=True)
