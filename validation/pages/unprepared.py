"""Writes docs/unprepared.md: deployments that nobody prepared, a profile and a comparison of each by two commands.

    python -m validation unprepared [--out docs/unprepared.md]

Seven models' config.json, typed in from their public shapes, on GPUs and in formats as they come; then models and
deployments that are refused, each with its line. Needs the kernel tables (`pip install 'lanesim[tables]'`). Fails where
a profile takes MAX_S of CPU or more, or where anything is refused that should not be.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

PAGE = Path(__file__).parents[2] / "docs" / "unprepared.md"
MAX_S = 5.0
CONCURRENCIES = (4, 64)
RUN = "import sys; from sim.cli.main import main; sys.argv[0] = 'lanesim'; main()"

CONFIGS: dict[str, dict[str, Any]] = {
    "qwen2.5-72b": {
        "model_type": "qwen2", "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
        "num_key_value_heads": 8, "intermediate_size": 29568, "vocab_size": 152064, "max_position_embeddings": 32768,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_sliding_window": False, "sliding_window": 131072,
    },
    "gemma-2-27b": {
        "model_type": "gemma2", "hidden_size": 4608, "num_hidden_layers": 46, "num_attention_heads": 32,
        "num_key_value_heads": 16, "head_dim": 128, "intermediate_size": 36864, "vocab_size": 256000,
        "max_position_embeddings": 8192, "sliding_window": 4096, "torch_dtype": "bfloat16",
    },
    "mixtral-8x22b": {
        "model_type": "mixtral", "hidden_size": 6144, "num_hidden_layers": 56, "num_attention_heads": 48,
        "num_key_value_heads": 8, "intermediate_size": 16384, "num_local_experts": 8, "num_experts_per_tok": 2,
        "vocab_size": 32768, "max_position_embeddings": 65536, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    },
    "glm-4.5-air": {
        "model_type": "glm4_moe", "hidden_size": 4096, "num_hidden_layers": 46, "num_attention_heads": 96,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 10944, "moe_intermediate_size": 1408,
        "n_routed_experts": 128, "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 1,
        "vocab_size": 151552, "max_position_embeddings": 131072, "tie_word_embeddings": False,
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
        "num_key_value_heads": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
        "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 3, "moe_layer_freq": 1,
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "vocab_size": 129280, "max_position_embeddings": 163840, "tie_word_embeddings": False,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    },
    "qwen3-next-80b-a3b": {
        "model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 16,
        "num_key_value_heads": 2, "head_dim": 256, "intermediate_size": 5120, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "num_experts": 512, "num_experts_per_tok": 10,
        "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_key_head_dim": 128,
        "linear_num_value_heads": 32, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "vocab_size": 151936,
        "max_position_embeddings": 262144, "tie_word_embeddings": False,
    },
}  # fmt: skip
"""From memory of their public shapes."""
INDEXER = {"index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128}
CONFIGS["deepseek-v3.2"] = {**CONFIGS["deepseek-v3"], **INDEXER, "model_type": "deepseek_v32"}
STRANGE: dict[str, dict[str, Any]] = {
    "kimi-linear": {**CONFIGS["deepseek-v3"], "linear_attn_config": {"num_heads": 32}},
    "deepseek-with-shared-indexers": {**CONFIGS["deepseek-v3.2"], "index_topk_freq": 4},
    "mistral-with-chunked-attention": {**CONFIGS["qwen2.5-72b"], "attention_chunk_size": 8192},
    "granite-with-mamba": {**CONFIGS["qwen2.5-72b"], "model_type": "granite", "mamba_d_state": 128},
    "gemma-that-shares-kv": {**CONFIGS["gemma-2-27b"], "num_kv_shared_layers": 20},
    "qwen2.5-72b-bnb": {**CONFIGS["qwen2.5-72b"], "quantization_config": {"quant_method": "bitsandbytes"}},
}


class Asked(NamedTuple):
    model: str
    gpu: str
    flags: str


ASKED = (
    Asked("qwen2.5-72b", "h200-sxm", "--tp 4 --weights fp8 --kv-dtype fp8"),
    Asked("qwen2.5-72b", "b200-sxm", "--tp 2 --weights nvfp4 --kv-dtype fp8"),
    Asked("qwen2.5-72b", "a100-sxm", "--tp 4"),
    Asked("gemma-2-27b", "h100-sxm", ""),
    Asked("gemma-2-27b", "l40s", "--tp 2 --weights fp8"),
    Asked("mixtral-8x22b", "h100-sxm", "--tp 8"),
    Asked("mixtral-8x22b", "b300-sxm", "--tp 2 --weights fp8"),
    Asked("glm-4.5-air", "h200-sxm", "--tp 4 --ep 4 --weights fp8"),
    Asked("deepseek-v3", "h200-sxm", "--tp 8 --ep 8"),
    Asked("deepseek-v3", "gb200", "--dp 4 --ep 4 --weights nvfp4 --kv-dtype fp8"),
    Asked("qwen3-next-80b-a3b", "h200-sxm", "--tp 2 --weights fp8-block"),
    Asked("deepseek-v3.2", "b200-sxm", "--tp 8 --ep 8 --kv-dtype fp8"),
)
REFUSED = (
    *(Asked(model, "h200-sxm", "--tp 8") for model in STRANGE),
    Asked("qwen2.5-72b", "a100-sxm", "--tp 4 --weights fp8"),
    Asked("qwen2.5-72b", "h100-sxm", ""),
    Asked("qwen2.5-72b", "h200-sxm", "--tp 3"),
    Asked("qwen2.5-72b", "h200", "--tp 4"),
    Asked("qwen2.5-72b", "h200-sxm", "--tp 4 --weights fp6"),
    Asked("glm-4.5-air", "h200-sxm", "--tp 4 --ep 3"),
)


class Outcome(NamedTuple):
    code: int
    stdout: str
    stderr: str
    cpu_s: float


def lanesim(*arguments: str) -> Outcome:
    """The installed command, as a process of its own."""
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", RUN, *arguments], capture_output=True, text=True)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime
    return Outcome(done.returncode, done.stdout, done.stderr, cpu_s)


def import_profile(folder: Path, asked: Asked) -> tuple[Outcome, Path]:
    out = folder / f"{asked.model}-{asked.gpu}-{asked.flags.replace(' ', '')}.json"
    config = folder / f"{asked.model}.json"
    config.write_text(json.dumps({**CONFIGS, **STRANGE}[asked.model]))
    arguments = ("--gpu", asked.gpu, "--target", str(config), *asked.flags.split(), "--out", str(out))
    return lanesim("calibrate", "import", "aiconfigurator", *arguments), out


def compared(profile: Path, concurrency: int) -> str:
    """Output tokens a second and mean TPOT of a closed loop."""
    result = lanesim(
        "compare", "--policy", "autoregressive", "--profile", str(profile), "--input-len", "1024", "--output-len",
        "256", "--request-rate", "inf", "--max-concurrency", str(concurrency), "--num-prompts", str(6 * concurrency),
        "--num-speculative-tokens", "0", "--json", "-",
    )  # fmt: skip
    if result.code:
        raise SystemExit(f"{profile.name}: {result.stderr}")
    run = json.loads(result.stdout)["runs"][0]
    return f"{run['output_throughput']:,.0f} tok/s, {run['mean_tpot_ms']:.1f} ms"


def made(folder: Path, asked: Asked) -> str:
    """The table's line of one deployment."""
    outcome, path = import_profile(folder, asked)
    if outcome.code:
        raise SystemExit(f"{asked}: {outcome.stderr}")
    if outcome.cpu_s >= MAX_S:
        raise SystemExit(f"{asked}: took {outcome.cpu_s:.1f} s of CPU, want less than {MAX_S:g}")
    profile = json.loads(path.read_text())
    errors = profile["errors"]
    interpolation = ", ".join(f"{kind} {errors[kind]['mean_error_pct']:.1f}" for kind in ("body", "decode", "prefill"))
    notes = profile["source"].partition("not from the engine's own tables: ")[2] or "–"
    cells = [compared(path, concurrency) for concurrency in CONCURRENCIES]
    return (
        f"| {asked.model} | {asked.gpu} | `{asked.flags}` | {len(path.read_bytes()) / 1024:.0f} kB | {interpolation} | "
        f"{' | '.join(cells)} | {notes} |"
    )


def refused(folder: Path, asked: Asked) -> str:
    outcome, _ = import_profile(folder, asked)
    lines = outcome.stderr.strip().splitlines()
    if outcome.code != 2 or len(lines) != 1:
        raise SystemExit(f"{asked}: want exit code 2 and one line, got {outcome.code}: {outcome.stderr}")
    return f"| {asked.model} | {asked.gpu} | `{asked.flags}` | {lines[0].replace(str(folder) + '/', '')} |"


def page(folder: Path) -> str:
    titles = ["model", "GPU", "flags", "profile", "interpolation error, %"]
    titles += [f"compare at {concurrency}" for concurrency in CONCURRENCIES]
    titles.append("what stands in where vLLM has no table")
    lines = [HEAD, "| " + " | ".join(titles) + " |", "|" + " :-- |" * len(titles)]
    for asked in ASKED:
        lines.append(made(folder, asked))
        print(lines[-1], flush=True)
    lines += ["", REFUSALS, "| model | GPU | flags | message |", "|" + " :-- |" * 4]
    for asked in REFUSED:
        lines.append(refused(folder, asked))
        print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


HEAD = f"""# Deployments that nobody prepared

Can you simulate a model that nobody has prepared? Here are twelve deployments of seven models, made from nothing but a
config.json that was typed in from the model's public shape. Each took two commands:

    lanesim calibrate import aiconfigurator --gpu GPU --target CONFIG.json ... --out p.json
    lanesim compare --policy autoregressive --profile p.json --input-len 1024 --output-len 256 --request-rate inf \\
        --max-concurrency C --num-speculative-tokens 0

The error in the table is that of interpolation between the points of the kernel tables. How right the tables are is
known from served cells (ADR 018): TPOT within 6 % for dense models under vLLM, within 12 % for mixtures of experts.
Generated by `python -m validation unprepared`, which stops if a profile takes {MAX_S:g} s of CPU or more.
"""
REFUSALS = """## Refused, with the reason
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PAGE)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options.out.write_text(page(Path(folder)))
