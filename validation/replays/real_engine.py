"""Logs of a real vLLM on a CPU, for `python -m validation conformance`: run with vLLM's Python (`make vllm`).

    python -m validation.replays.real_engine MODELS OUT.json [--spec none|ngram|self|good|fair|poor] [--blocks N]

The folder MODELS gets a small Llama of random weights and drafts of three qualities; nothing is downloaded. A draft
that is the target itself (`self`) is accepted always (greedy). Requests arrive before given calls of `engine.step()`,
and OUT.json has what the scheduler decided.
Nothing else should run beside it: vLLM's threads spin, and a busy machine takes forty times as long.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

VOCABULARY = 2048
LATER_SHARE = 0.01
"""Factor on the output weights of the target's layers behind the first."""
DRAFTS = {"good": 0.0, "fair": 0.3, "poor": 1.0}
"""Noise on the head of each draft, over its weights' standard deviation."""
DRAFT_MODEL: dict[str, Any] = {"method": "draft_model"}
NGRAM: dict[str, Any] = {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1}
LAST_ARRIVAL = 60
ALONE = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
"""Environment of a vLLM that asks nobody and binds no core."""
QUIET = ALONE | {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


def make_models(folder: Path, words: Sequence[str] = ()) -> None:
    """A target and drafts, with a tokenizer that knows `words`, where the folder has none. Layers of the target behind
    the first add little to what that one says. So the first alone is a draft of a twelfth of its work that is often
    right: `good`. In `fair` and `poor` the head has noise on it."""
    import torch

    if (folder / "target").exists():
        return
    target = _model(12, 0)
    with torch.no_grad():
        for layer in target.model.layers[1:]:
            layer.self_attn.o_proj.weight.mul_(LATER_SHARE)
            layer.mlp.down_proj.weight.mul_(LATER_SHARE)
    saved = {"target": target}
    for name, noise in DRAFTS.items():
        saved[name] = draft = _model(1, 1)
        draft.load_state_dict(target.state_dict(), strict=False)
        torch.manual_seed(5)
        with torch.no_grad():
            head = draft.lm_head.weight
            head.add_(noise * head.std() * torch.randn_like(head))
    for name, each in saved.items():
        each.save_pretrained(folder / name)
        _tokenizer(folder / name, words)


def _model(layers: int, seed: int) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=512,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        intermediate_size=1408,
        max_position_embeddings=4096,
        bos_token_id=3,
        eos_token_id=1,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


def _tokenizer(folder: Path, words: Sequence[str]) -> None:
    """One of words: the last are `words`."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = [*(f"t{i}" for i in range(VOCABULARY - len(words))), *words]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="t0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"unk_token": "t0", "eos_token": "t1", "pad_token": "t2", "bos_token": "t3"}
    PreTrainedTokenizerFast(tokenizer_object=made, **special).save_pretrained(folder)


def write_log(arguments: argparse.Namespace) -> str:
    make_models(arguments.folder)
    engine = _engine(arguments)
    from vllm import SamplingParams
    from vllm.version import __version__

    scheduler = engine.engine_core.engine_core.scheduler
    steps: list[dict[str, Any]] = []
    schedule = scheduler.schedule

    def logged(*args: Any, **kwargs: Any) -> Any:
        running = {request.request_id for request in scheduler.running}
        out = schedule(*args, **kwargs)
        tokens = out.num_scheduled_tokens
        seated = [name for name in tokens if name not in running]
        steps.append(
            {
                "scheduled": {_name(key): count for key, count in tokens.items()},
                "drafts": {_name(key): len(ids) for key, ids in out.scheduled_spec_decode_tokens.items()},
                "preempted": sorted(map(_name, getattr(out, "preempted_req_ids", None) or ())),
                "cached": {_name(name): scheduler.requests[name].num_computed_tokens - tokens[name] for name in seated},
            }
        )
        return out

    scheduler.schedule = logged
    draw = random.Random(arguments.seed)
    requests: list[dict[str, Any]] = [
        {
            "name": f"r{index}",
            "step": draw.randrange(LAST_ARRIVAL),
            "prompt": draw.choice((20, 100, 300, 700)),
            "output": draw.randrange(5, 60),
        }
        for index in range(arguments.requests)
    ]
    prompts = {each["name"]: [draw.randrange(10, 2000) for _ in range(each["prompt"])] for each in requests}
    step, emitted = 0, dict.fromkeys(prompts, 0)
    while step <= LAST_ARRIVAL or engine.has_unfinished_requests():
        for each in requests:
            if each["step"] == step:
                sampling = SamplingParams(temperature=0, max_tokens=each["output"], ignore_eos=True)
                engine.add_request(each["name"], {"prompt_token_ids": prompts[each["name"]]}, sampling)
        if engine.has_unfinished_requests():
            began, before = time.perf_counter(), len(steps)
            new = {}
            for output in engine.step():
                name = output.request_id if output.request_id in emitted else _name(output.request_id)
                count = len(output.outputs[0].token_ids)
                new[name], emitted[name] = count - emitted[name], count
            if len(steps) > before:
                steps[-1] |= {"at": step, "new": new, "seconds": time.perf_counter() - began}
        step += 1
    kept = {name: value for name, value in vars(arguments).items() if name not in ("folder", "out")}
    kept["version"] = ".".join(__version__.split(".")[:2])
    arguments.out.write_text(json.dumps({"arguments": kept, "requests": requests, "steps": steps}))
    return f"{arguments.out}: {len(steps)} steps, {sum(len(each['preempted']) for each in steps)} preemptions"


def _name(request_id: str) -> str:
    """The one that was given: the engine adds a random part."""
    return request_id.rpartition("-")[0] or request_id


def _engine(arguments: argparse.Namespace) -> Any:
    """One in this process, each step planned after the last: on a CPU vLLM plans none ahead."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    from vllm import EngineArgs, LLMEngine

    model = "target" if arguments.spec == "self" else arguments.spec
    drafter = NGRAM if arguments.spec == "ngram" else DRAFT_MODEL | {"model": str(arguments.folder / model)}
    spec = drafter | {"num_speculative_tokens": arguments.k}
    given = EngineArgs(
        model=str(arguments.folder / "target"),
        dtype="bfloat16",
        max_model_len=1024,
        max_num_seqs=arguments.seqs,
        max_num_batched_tokens=arguments.tokens,
        enforce_eager=True,
        speculative_config=None if arguments.spec == "none" else spec,
        block_size=32,
        num_gpu_blocks_override=arguments.blocks,
        async_scheduling=False,
        disable_log_stats=True,
    )
    return LLMEngine.from_engine_args(given)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--spec", default="none")
    parser.add_argument("--blocks", type=int)
    for name, default in (("k", 3), ("seqs", 8), ("tokens", 256), ("requests", 24), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    print(write_log(parser.parse_args()))
