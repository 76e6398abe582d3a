"""Synthetic tables in LLMServingSim's layout, one law per kernel, so that expected times can be summed by hand."""

from __future__ import annotations

from pathlib import Path

from calibrate.importers.llmservingsim.layer_files import GEMMS
from sim.costs.datasheets import datasheet
from sim.costs.shapes import MODELS, Experts, ModelShape

SHAPE = MODELS["llama-3.1-8b"]
GPU = datasheet("rtx-4090").gpu
SLOWDOWN = 1.5
ROWS = [1 << i for i in range(9)]
HEAD_ROWS = [*range(1, 17), *range(32, 257, 16)]
CONTEXTS = [16 << i for i in range(10)]
"""kv_decode of the files: KV before the row's own token."""
CHUNKS = [16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048]
HISTORIES = [0, 1024, 4096]
TOKENS = sorted({*range(1, 17), *range(24, 257, 8), *range(320, 2049, 64)})
META = """vllm_version: {version}
gpu: {gpu}
model: meta-llama/Llama-3.1-8B
tp_degrees: [1, 2]
engine_effective:
  hf_overrides: {{num_hidden_layers: 1, intermediate_size: {intermediate}, num_attention_heads: {heads}}}
"""


def gemm_us(tokens: int, columns: int, depth: int) -> float:
    """60 % of the peak and 80 % of the bandwidth, whichever is longer, and 4 us."""
    compute_s = 2.0 * tokens * columns * depth / (0.6 * GPU.peak_flops)
    memory_s = 2.0 * (columns * depth + tokens * (columns + depth)) / (0.8 * GPU.bandwidth_bytes_per_s)
    return 1e6 * (max(compute_s, memory_s) + 4e-6)


def kv_bytes(shape: ModelShape, degree: int = 1) -> float:
    return 2.0 * max(1, shape.kv_heads // degree) * shape.head_dim * shape.dtype_bytes


def decode_us(rows: int, context: int, shape: ModelShape = SHAPE, degree: int = 1) -> float:
    """12 us and 75 % of the bandwidth for the KV of `context` tokens per row, the row's own left out."""
    return 12.0 + 1e6 * rows * context * kv_bytes(shape, degree) / (0.75 * GPU.bandwidth_bytes_per_s)


def chunk_us(tokens: int, history: int = 0, shape: ModelShape = SHAPE, degree: int = 1) -> float:
    flops = 4.0 * shape.heads * shape.head_dim / degree * tokens * (history + 0.5 * tokens)
    read_s = tokens * kv_bytes(shape, degree) / (0.4 * GPU.bandwidth_bytes_per_s)
    return 9.0 + 1e6 * (flops / (0.5 * GPU.peak_flops) + read_s)


def elementwise_us(tokens: int) -> float:
    return 2.0 + 0.01 * tokens


def once_us(tokens: int) -> float:
    """The embedding and the last norm, each."""
    return 3.0 + 0.005 * tokens


def layer_us(tokens: int, shape: ModelShape = SHAPE, degree: int = 1) -> float:
    """A layer without attention, once-a-pass kernels spread over the layers."""
    gemms = sum(gemm_us(tokens, *size) for size in shape.gemms(degree))
    return gemms + 4 * elementwise_us(tokens) + 2 * once_us(tokens) / shape.layers


def lm_head_us(rows: int, shape: ModelShape = SHAPE, degree: int = 1) -> float:
    return gemm_us(rows, shape.vocab // degree, shape.hidden)


def sampler_us(rows: int) -> float:
    return 20.0 + 2.0 * rows


def write_layer_tables(folder: Path, shape: ModelShape = SHAPE, degree: int = 1) -> Path:
    """Tables of `shape` on an RTX 4090, or one of `degree` of them, that follow the laws above."""
    dense = ["layer,tokens,time_us"]
    for tokens in TOKENS:
        for name, (columns, depth) in zip(GEMMS, shape.gemms(degree), strict=True):
            dense.append(f"{name},{tokens},{gemm_us(tokens, columns, depth)}")
        dense += [f"{name},{tokens},{elementwise_us(tokens)}" for name in ("layernorm", "rotary_emb", "act_fn")]
        dense += [f"{name},{tokens},{once_us(tokens)}" for name in ("embedding", "final_layernorm")]
    head = [f"lm_head,{count},{lm_head_us(count, shape, degree)}" for count in HEAD_ROWS]
    head += [f"sampler,{count},{sampler_us(count)}" for count in HEAD_ROWS]
    attention = ["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"]
    for context in CONTEXTS:
        attention += [f"0,0,{count},{context},{decode_us(count, context, shape, degree)}" for count in ROWS]
    for tokens in CHUNKS:
        attention += [f"{tokens},{history},0,0,{chunk_us(tokens, history, shape, degree)}" for history in HISTORIES]
        attention += [
            f"{tokens},0,{count},{context},"
            f"{chunk_us(tokens, 0, shape, degree) + SLOWDOWN * decode_us(count, context, shape, degree)}"
            for context in CONTEXTS
            for count in ROWS
        ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dense.csv").write_text("\n".join(dense) + "\n")
    (folder / "per_sequence.csv").write_text("\n".join(["layer,sequences,time_us", *head]) + "\n")
    (folder / "attention.csv").write_text("\n".join(attention) + "\n")
    return folder


def experts_us(tokens: int, activated: float) -> float:
    """Of one device: 8 us, 5 us an expert read and 0.02 us a token."""
    return 8.0 + 5.0 * activated + 0.02 * tokens


def write_experts(folder: Path, experts: Experts) -> Path:
    """moe.csv by the law above, as many tokens and activated experts as can be."""
    lines = ["tokens,activated_experts,time_us"]
    for tokens in (1 << i for i in range(12)):
        most = min(experts.num, tokens * experts.per_token)
        counts = (count for count in (2, 4, 8, 16) if count <= most)
        lines += [f"{tokens},{count},{experts_us(tokens, count)}" for count in counts]
    (folder / "moe.csv").write_text("\n".join(lines) + "\n")
    return folder


def write_meta(folder: Path, *, version: str = "0.19.0", gpu: str = "NVIDIA GeForce RTX 4090", degree: int = 1) -> None:
    """meta.yaml beside `folder`, of Llama-3.1-8B; its sizes are those of the last degree."""
    text = META.format(version=version, gpu=gpu, intermediate=SHAPE.intermediate // degree, heads=SHAPE.heads // degree)
    (folder.parent / "meta.yaml").write_text(text)
