"""The rehearsal on a fake GPU: what it makes up, what it finds wrong, and where its libraries are, what they forbid."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from realrun.kernels.device_passes import NOT_FORCED, ChunkShape, PassShape
from sim.costs.datasheets import datasheet_of_device
from sim.interface.work import Kind, Model
from tests.fake_gpu.__main__ import GPUS, ROOT, Gpu, _judged, environment
from tests.fake_gpu.site.sitecustomize import results

LIBRARIES = os.environ.get("FAKE_LIBRARIES")
SOUND = {
    "process": ["calibrate", "measure", "--device"],
    "planned": [100],
    "reserved": 90,
    "graphs": 3,
    "nodes": 900,
    "launches": 1000,
    "violations": 0,
    "full_queues": 0,
}


def test_environments_that_run_tests_have_what_tests_import() -> None:
    recipes = re.split(r"\n(?=\S)", (ROOT / "Makefile").read_text())
    running = {each for recipe in recipes for each in re.findall(r"(\.venv-\w+)/bin/python -m pytest", recipe)}
    assert running == {".venv-fake"}
    for name in running:
        (recipe,) = (each for each in recipes if each.startswith(f"{name}/.ready:"))
        assert "-e '.[dev]'" in recipe


@pytest.mark.parametrize("gpu", list(GPUS.values()))
def test_no_fake_gpu_computes_faster_than_its_data_sheet(gpu: Gpu) -> None:
    """As a profile that does is refused; products take 7e14 FLOP/s and 2.7e12 bytes/s on the fake H100."""
    sheet = datasheet_of_device(gpu.name)
    assert sheet is not None
    assert 7e14 / gpu.slower < 0.8 * sheet.gpu.peak_flops
    assert 2.7e12 / gpu.slower < 0.85 * sheet.gpu.bandwidth_bytes_per_s


def test_made_up_results_are_what_a_tape_dictates_and_first_tokens_of_whole_prompts() -> None:
    shape = PassShape(Kind.STEP, Model.TARGET, 2, 3, chunks=(ChunkShape(1, 8, True), ChunkShape(1, 9, False)))
    rows = [(0, 3, 1), (1, 2, 5), (2, 8, NOT_FORCED), (3, 9, NOT_FORCED)]
    assert results(shape, rows) == [[1, 1, 1, -1], [1, 1, 1, -1], [0, 1, -1, -1], [0, -1, -1, -1]]


def test_memory_beyond_the_plan_and_violations_are_found() -> None:
    assert list(_judged(SOUND)) == []
    assert list(_judged({**SOUND, "violations": 2})) == ["calibrate measure: 2 capture violations"]
    assert list(_judged({**SOUND, "reserved": 101})) == ["calibrate measure: 0.00 GiB reserved, 0.00 planned"]


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


LAYERS = """
import ctypes, json, sys, msgspec, torch
from realrun.kernels.host_slots import PairOptions
from realrun.kernels.pair_kernels import PairKernels
from realrun.kernels.device_passes import PassShape
from realrun.model.weights import random_model
from sim.costs.shapes import model
from sim.interface.work import Kind, Model

(name,) = sys.argv[1:]
library, nodes = ctypes.CDLL("libcudart.so.13"), [0]
library.fake_stats.restype = ctypes.c_char_p
for layers in (2, 6):
    shape = msgspec.structs.replace(model(name), layers=layers, vocab=1000)
    weights = random_model(shape, dtype=torch.bfloat16, seed=0, device="cuda")
    options = PairOptions(
        slots=8, max_tokens=1024, batch_buckets=(1, 8), cuda_graphs=True
    )
    kernels = PairKernels(weights, None, options)
    rows, verify = torch.zeros(8, 4, dtype=torch.int64, device="cuda"), PassShape(Kind.VERIFY, Model.TARGET, 8, 5)
    with torch.inference_mode():
        kernels.passes.run(verify, rows)
        kernels.runs_on.stream().capture(lambda: kernels.passes.run(verify, rows))()
    found = json.loads(library.fake_stats())
    nodes.append(found["nodes"])
# Nodes count up over graphs.
print(json.dumps({"per_layer": (nodes[2] - 2 * nodes[1]) / 4, "violations": found["violations"]}))
"""


@pytest.mark.skipif(LIBRARIES is None, reason="FAKE_LIBRARIES names no folder of fake CUDA libraries (make fake-gpu)")
@pytest.mark.parametrize(("name", "per_layer"), [("llama-3.1-8b", 18), ("qwen3-32b", 22)])
def test_a_captured_layer_takes_so_many_launches(name: str, per_layer: int, tmp_path: Path) -> None:
    env = environment(GPUS["h100"], Path(str(LIBRARIES)), tmp_path / "counts")
    command = [sys.executable, "-c", LAYERS, name]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["violations"] == 0
    assert found["per_layer"] == per_layer
