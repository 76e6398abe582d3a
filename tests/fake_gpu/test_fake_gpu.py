"""The rehearsal on a fake GPU: what it makes up, what it finds wrong, and where its libraries are, what they forbid."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from realrun.kernels.passes import NOT_FORCED, ChunkShape, PassShape
from sim.interface.work import Kind, Model
from tests.fake_gpu.__main__ import GPUS, _judged, environment
from tests.fake_gpu.site.sitecustomize import results

LIBRARIES = os.environ.get("FAKE_LIBRARIES")
SOUND = {
    "process": ["cuda", "out", "smoke"],
    "planned": [100],
    "reserved": 90,
    "graphs": 3,
    "nodes": 900,
    "launches": 1000,
    "violations": 0,
    "full_queues": 0,
}


def test_made_up_results_are_what_a_tape_dictates_and_first_tokens_of_whole_prompts() -> None:
    shape = PassShape(Kind.STEP, Model.TARGET, 2, 3, chunks=(ChunkShape(1, 8, True), ChunkShape(1, 9, False)))
    rows = [(0, 3, 1, 0), (1, 2, 5, 0), (2, 8, NOT_FORCED, 0), (3, 9, NOT_FORCED, 0)]
    assert results(shape, rows) == [[1, 1, 1, -1], [1, 1, 1, -1], [0, 1, -1, -1], [0, -1, -1, -1]]


def test_memory_beyond_the_plan_and_violations_are_found() -> None:
    assert list(_judged(SOUND)) == []
    assert list(_judged({**SOUND, "violations": 2})) == ["smoke: 2 capture violations"]
    assert list(_judged({**SOUND, "reserved": 101})) == ["smoke: 0.00 GiB reserved, 0.00 planned"]


@pytest.mark.skipif(LIBRARIES is None, reason="FAKE_LIBRARIES names no folder of fake CUDA libraries (make fake-gpu)")
@pytest.mark.parametrize(
    ("captured", "violations"), [("x.add_(1)", 0), ("x.sum().item()", 1), ("torch.ones(4).to('cuda')", 1)]
)
def test_what_cuda_forbids_in_a_capture_is_counted(captured: str, violations: int, tmp_path: Path) -> None:
    code = (
        "import torch, ctypes\n"
        "x = torch.zeros(4, device='cuda')\n"
        "stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()\n"
        "try:\n"
        " with torch.cuda.graph(graph, stream=stream, capture_error_mode='thread_local'):\n"
        f"  {captured}\n"
        "except RuntimeError: pass\n"
        "lib = ctypes.CDLL('libcudart.so.13'); lib.fake_stats.restype = ctypes.c_char_p\n"
        "print(lib.fake_stats().decode())\n"
    )
    env = environment(GPUS["h100"], Path(str(LIBRARIES)), tmp_path / "counts")
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert (json.loads(done.stdout)["violations"] > 0) is (violations > 0)
