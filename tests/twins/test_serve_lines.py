"""Twins of a scenario and the line that starts its server: read back, it is the scenario.

Issue 41, A4 and A10.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

from hypothesis import strategies as st

from tests.sim.studies.server_flags import serving
from tests.twins.drawn import CONTINUOUS, PAIR, TABLE, questions
from tests.twins.twin import Asked, Pair, runs, twin, words

SAME = ("max-num-seqs", "max-num-batched-tokens", "speculative-config")
KEYS = {"gpu-memory-utilization": "engine.gpu_memory_utilization", "block-size": "engine.block_size",
        "max-model-len": "engine.max_model_len", "num-gpu-blocks-override": "engine.num_gpu_blocks"}  # fmt: skip


def flags_of(line: str) -> dict[str, str]:
    """The flags of a command line by name."""
    found: dict[str, str] = {}
    name = ""
    for word in shlex.split(line):
        if word.startswith("--"):
            name = word[2:]
            found[name] = ""
        elif name:
            found[name] = f"{found[name]} {word}".strip()
    return found


def read_back(line: str, asked: Asked) -> dict[str, Any]:
    """The question whose server the line starts, with the load and the profile that were asked."""
    found = {name: value for name, value in asked.items() if name not in (*SAME, "num-speculative-tokens", "set")}
    keys: dict[str, Any] = {}
    for name, value in flags_of(line).items():
        if name in SAME:
            found[name] = value
        elif name in KEYS and value != "auto":
            keys[KEYS[name]] = json.loads(value)
        elif name == "enforce-eager":
            keys["engine.cuda_graph"] = False
    return found | ({"set": keys} if keys else {})


WAYS = st.sampled_from(
    (
        {},
        {"set": {"engine.num_gpu_blocks": 600}},
        {"max-num-seqs": 5, "max-num-batched-tokens": 512},
        {"num-speculative-tokens": 0},
        {"set": {"engine.max_model_len": 700}},
        {"set": {"engine.gpu_memory_utilization": 0.7}},
        {"set": {"engine.cuda_graph": False}},
    )
)


@twin(questions(profiles=(PAIR, TABLE), policy=CONTINUOUS), WAYS, share=0.3)
def test_a_line_for_vllm_read_back_is_the_scenario(asked: Asked, way: dict[str, Any]) -> Pair:
    own = {**asked, **way}
    return Pair(runs(own), runs(read_back(serving(*words(own)), own)))
