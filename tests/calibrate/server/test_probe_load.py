"""Ten thousand streamed requests, a hundred at once, of a server whose constants are known: they come back within 10 %,
and memory stays as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from calibrate.judge.cells import CellSetup
from calibrate.production.engine_fit import fit_served
from calibrate.server.network import Client
from calibrate.server.probe import find, level
from sim.costs.compact_kernels import LinearKernels, LinearPass
from sim.costs.engine_costs import with_engine, without_engine
from sim.costs.profile import Profile
from sim.costs.profile_files import load

PASS_S, STEP_S, ROW_S = 0.02, 0.02, 4e-4
OUTPUT_TOKENS = 8
LEVELS = ((1, 40), (25, 260), (100, 10_000))
"""Requests at once, and in all."""
MAX_GROWTH_BYTES = 32 << 20
"""A record of each request is a few hundred bytes."""


def passes() -> Profile:
    """A GPU whose every pass takes PASS_S."""
    profile = load("rtx-3070-laptop/qwen2.5-1.5b")
    assert isinstance(profile.kernels, LinearKernels)
    kernels = msgspec.structs.replace(profile.kernels, target=LinearPass(pass_s=PASS_S))
    bare = with_engine(profile, without_engine(profile))
    host = msgspec.structs.replace(bare.host, eager_kernel_s=0.0, graph_launch_s=0.0, result_s=0.0)
    return msgspec.structs.replace(bare, kernels=kernels, host=host)


@contextmanager
def serving() -> Iterator[str]:
    command = [sys.executable, "-m", "tests.calibrate.server.step_server", *map(str, (PASS_S, STEP_S, ROW_S))]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
    finally:
        server.terminate()
        server.wait()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.nightly
def test_constants_come_back_from_ten_thousand_streams_and_memory_stays(capsys: pytest.CaptureFixture[str]) -> None:
    held: dict[int, int] = {}

    def on_done(done: int) -> None:
        if done in (1_000, 9_000):
            held[done] = resident_bytes()

    served = []
    with serving() as url, Client(url, timeout_s=60.0) as client:
        endpoint = find(client, None)
        for concurrency, num_requests in LEVELS:
            served.append(
                level(
                    client,
                    endpoint,
                    concurrency=concurrency,
                    num_requests=num_requests,
                    input_words=16,
                    output_tokens=OUTPUT_TOKENS,
                    on_done=on_done,
                )
            )
    fitted = fit_served(passes(), served, CellSetup(engine={}))
    found = fitted.fits[0].values_s
    growth = held[9_000] - held[1_000]
    with capsys.disabled():
        pace = ", ".join(f"{1e3 * each.tpot_s:.1f} ms per token at {each.concurrency:.0f}" for each in served)  # type: ignore[operator]
        print(f"\n{pace}; {found}; {growth / 2**20:.1f} MiB more after 8,000 requests; failed: {served[-1].failed}")
    assert found["step_s"] == pytest.approx(STEP_S, rel=0.1)
    assert found["row_s"] == pytest.approx(ROW_S, rel=0.1)
    assert served[-1].failed == {}
    assert growth < MAX_GROWTH_BYTES
