"""Lines that start a server, as they stand in public threads."""

from __future__ import annotations

import pytest

from sim.run.launch_line import launched

SGLANG, LENGTH = {"engine.name": "sglang-0.5"}, "speculation.num_speculative_tokens"
START = "python -m sglang.launch_server --model"
TREE = (
    "--speculative-eagle-topk {}: the tree is simulated as a chain of {} drafts, though it verifies and accepts more "
    "tokens"
)


@pytest.mark.parametrize(
    ("line", "model", "draft", "keys", "unread"),
    [
        (
            "vllm serve /models/Meta-Llama-3.1-405B-Instruct -tp 8 -pp 2 --speculative-model /models/Llama-3.1-8B "
            "--num-speculative-tokens 5",
            "Meta-Llama-3.1-405B-Instruct-tp8",
            "Llama-3.1-8B",
            {"speculation.num_speculative_tokens": 5},
            ["--pp 2"],
        ),
        (
            "X=1 vllm serve --log-level=info a/b-8B --quantization fp8 --kv-cache-dtype=fp8 "
            "--max-num-batched-tokens 8k --gpu-memory-utilization 0.95 --enforce-eager --speculative_config "
            """'{"method": "qwen3_next_mtp", "num_speculative_tokens": 2}' --port 80""",
            "a/b-8B-fp8-kv8",
            "mtp",
            {
                "engine.max_num_batched_tokens": 8000,
                "engine.gpu_memory_utilization": 0.95,
                "engine.cuda_graph": False,
                "speculation.num_speculative_tokens": 2,
            },
            ["--log-level info", "--port 80"],
        ),
        (
            "docker run lmsysorg/sglang:latest python3 -m sglang.launch_server --model-path ~/m/Qwen3-235B-A22B "
            "--tp-size 8 --dp-size 2 --enable-dp-attention --max-running-requests 64 --speculative-algorithm EAGLE3 "
            "--speculative-num-steps 3 --speculative-eagle-topk 3 --speculative-draft-model-path x/EAGLE3",
            "Qwen3-235B-A22B-tp4-dp2",
            "eagle3",
            {"speculation.num_speculative_tokens": 3, "engine.max_num_seqs": 64, **SGLANG},
            [TREE.format(3, 3)],
        ),
        ("vllm serve a/b --data-parallel-size 4 --enable-expert-parallel -tp 2", "a/b-tp2-ep8-dp4", None, {}, []),
        ("vllm serve a/b -dp 4", "a/b", None, {}, ["4 replicas: one is simulated"]),
        (f"{START} a/b --speculative-algo EAGLE3", "a/b", "eagle3", {LENGTH: 5, **SGLANG}, [TREE.format(4, 5)]),
        (f"{START} a/deepseek --speculative-algo EAGLE", "a/deepseek", "mtp", {LENGTH: 3, **SGLANG}, []),
        (
            f"SGLANG_SIMULATE_ACC_LEN=2.5 {START} a/deepseek --speculative-algo EAGLE",
            "a/deepseek",
            "mtp",
            {LENGTH: 3, "speculation.acceptance": "pinned:2.5@3", **SGLANG},
            [],
        ),
        (
            f"{START} a/b --speculative-algo NGRAM --speculative-num-draft-tokens 4",
            "a/b",
            "ngram",
            {LENGTH: 4, **SGLANG},
            [],
        ),
    ],
)
def test_a_line_is_a_model_a_drafter_keys_of_a_scenario_and_what_was_not_read(
    line: str, model: str, draft: str | None, keys: dict[str, object], unread: list[str]
) -> None:
    assert launched(line)[:4] == (model, draft, keys, unread)


@pytest.mark.parametrize(
    "line",
    [
        "vllm serve --port 80",
        "vllm serve 'a",
        "vllm serve a/b --max-num-seqs many",
        "vllm serve a/b -tp two",
        "ls -l",
        "python my_server.py --model a/b",
    ],
)
def test_a_line_that_is_not_understood_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"--serve.* (Give such as|No closing)"):
        launched(line)
