"""Twins of a scenario and the command lines that would check it: read back, they are the scenario.

Issue 41, A4 and A10.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

from hypothesis import strategies as st

from tests.sim.studies.server_flags import checking
from tests.twins.drawn import CONTINUOUS, PAIR, TABLE, questions
from tests.twins.twin import Asked, Pair, or_refused, runs, twin, words

SAME = (
    "max-num-seqs",
    "max-num-batched-tokens",
    "request-rate",
    "num-prompts",
    "max-concurrency",
    "burstiness",
    "seed",
)
RENAMED = {
    "random-input-len": "input-len",
    "random-output-len": "output-len",
    "random-range-ratio": "random-range-ratio",
    "speculative-config": "speculative-config",
}
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


def read_back(lines: tuple[str, str, list[str]], asked: Asked) -> dict[str, Any]:
    """The question that `vllm serve` and `vllm bench serve` were asked, on the same profile."""
    serve, bench, _ = lines
    flags = flags_of(serve) | flags_of(bench)
    found: dict[str, Any] = {
        name: asked[name] for name in ("profile", "policy", "acceptance", "engine") if name in asked
    }
    keys: dict[str, Any] = {}
    for name, value in flags.items():
        if name in SAME:
            found[name] = value
        elif name in RENAMED:
            found[RENAMED[name]] = value
        elif name in KEYS and value != "auto":
            keys[KEYS[name]] = json.loads(value)
        elif name == "goodput":
            found["goodput"] = value.split()
        elif name == "enforce-eager":
            keys["engine.cuda_graph"] = False
    return found | ({"set": keys} if keys else {})


WAYS = st.sampled_from(
    (
        {},
        {"max-concurrency": 3},
        {"request-rate": "inf", "max-concurrency": 2},
        {"random-range-ratio": 0.3},
        {"burstiness": 0.5},
        {"goodput": ["ttft:200", "tpot:9"]},
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
    return Pair(runs(own), runs(read_back(checking(*words(own)), own)))


CHANGES: tuple[dict[str, Any], ...] = (
    {"workload.sharing.prefix_len": 200},
    {"workload.sharing.num_turns": 3},
    {"workload.sharing.num_forks": 2},
    {"slo_classes": [{"name": "a", "share": 0.5, "ttft_ms": 99.0}, {"name": "b", "share": 0.5, "priority": 1}]},
    {"workload.random_range_ratio": [0.5, 1.0]},
    {"engine.rules.enable_prefix_caching": False},
    {"engine.rules.long_prefill_token_threshold": 64},
    {"engine.rules.enable_chunked_prefill": False},
    {"engine.async_scheduling": False},
    {"engine.max_model_len": 600},
    {"engine.cuda_graph": "decode"},
    {"speculation.controller": "feedback"},
    {"devices.count": 2},
    {"devices.routing": "least-outstanding", "devices.count": 2},
    {"window.stop_s": 2.0},
    {"workload.num_warmups": 3},
    {"speculation.acceptance": "iid:0.1"},
)


@twin(questions(profiles=(PAIR,), policy=CONTINUOUS), share=0.05)
def test_another_scenario_has_another_line_or_a_note(asked: Asked) -> Pair:
    """A10: what a line does not say, it says that it does not."""

    def lines(change: dict[str, Any]) -> Any:
        return or_refused(lambda: checking(*words({**asked, "set": change})))

    usual = lines({})
    return Pair([change for change in CHANGES if lines(change) == usual], [])
