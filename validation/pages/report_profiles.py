"""Writes the profiles whose figures two reports quote: `python -m validation report_profiles`.

A report gives a handful of times of whole passes, so each profile is one line per model (kernels.form=linear), marked
with what it was read from and which figures were used. Not here: measured tables (calibrate.importers), the claims.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from sim.costs.kernels import LinearKernels, LinearPass, Measured
from sim.costs.profile import SCHEMA, Gpu, HostCosts, KindError, Overlap, Profile
from sim.costs.profile_files import SHIPPED, ship_profile
from sim.costs.shapes import Formats, ModelShape, model

DATE = "2026-11-22"
WHOLE_CALLS = Measured(tokens=100_000, rows=4096, row_context_tokens=100_000, chunk_tokens=100_000)
"""Nothing is known of the range: lines are taken at their word."""

PDVERIFY = "a100-pdverify/codellama-34b+tinyllama-1.1b"
ROUND_S, PREFILL_S = 0.113, 0.0475
"""A round is four draft and two target calls, a prefill one call of each."""
DRAFT_CALL_S = (ROUND_S - 2 * PREFILL_S) / 2
TARGET_CALL_S = PREFILL_S - DRAFT_CALL_S

DISPEC = "rtx-3070-laptop"
GRAPHED_TOKENS_PER_S = 68.0
"""Qwen2.5-1.5B, one sequence, CUDA graphs."""
EAGER_TOKENS_PER_S = 40.0
BATCHED_TOKENS_PER_S = {6: 373.0, 16: 858.0, 32: 1426.0}
"""Qwen2.5-1.5B, by sequences at once."""
DRAFT_S, DRAFT_COMPUTE_S, TARGET_S = 0.0202, 0.003, 0.0319
"""0.5B draft of one token, eager; its share that is not launches; int4 7B target of one token, eager."""
KERNELS_PER_LAYER = 24
"""Assumed of an eager Python loop over the layers; only its product with the time of a launch was measured."""


def pdverify() -> Profile:
    """The engines behind the 33x: synchronous calls under a lock, whatever the model's label says a 34B target."""
    return _profile(
        name=PDVERIFY,
        gpu=Gpu(name="a100-sxm", memory_bytes=80 * 2**30, peak_flops=312e12, bandwidth_bytes_per_s=2.039e12),
        target=model("codellama-34b"),
        draft=model("tinyllama-1.1b"),
        kernels=LinearKernels(
            target=LinearPass(pass_s=_round(TARGET_CALL_S)),
            draft=LinearPass(pass_s=_round(DRAFT_CALL_S)),
            attention_implementation="transformers, eager",
            kv_layout="contiguous, one request at a time",
            measured=WHOLE_CALLS,
        ),
        host=_host(
            "pdverify",
            eager_kernel_s=0.0,
            kernels_per_layer=1,
            why="each call is synchronous: its time holds its launches",
        ),
        source="therealnaveenkamal/pdverify, branch test, commit 4d537ac, one A100-80: 0.113 s per round of 4 "
        "draft and 2 target calls and 0.0475 s per prefill of both models, means of its per-request times at "
        "concurrency 1 and 2 (first, warm-up request left out) and split into one time per call and model by lanesim",
    )


def dispec_single() -> Profile:
    """Qwen2.5-1.5B by itself: launch-bound when eager, about 14.7 ms per token under CUDA graphs."""
    row_s = _slope({rows: rows / rate for rows, rate in BATCHED_TOKENS_PER_S.items()})
    pass_s = 1.0 / GRAPHED_TOKENS_PER_S - row_s
    layers = model("qwen2.5-1.5b").layers
    launches = layers * KERNELS_PER_LAYER + 6
    return _profile(
        name=f"{DISPEC}/qwen2.5-1.5b",
        gpu=_laptop(),
        target=model("qwen2.5-1.5b"),
        draft=None,
        kernels=LinearKernels(
            target=LinearPass(pass_s=_round(pass_s), row_s=_round(row_s)),
            draft=None,
            attention_implementation="Triton paged attention",
            kv_layout="paged",
            measured=WHOLE_CALLS,
        ),
        host=_host(
            "dispec",
            eager_kernel_s=_round(1.0 / EAGER_TOKENS_PER_S / launches),
            kernels_per_layer=KERNELS_PER_LAYER,
            why="40 tokens/s eager, one sequence",
        ),
        source="puneethgv/DiSpec README, RTX 3070 Laptop, bf16, greedy: 68 tokens/s of one sequence under CUDA "
        "graphs, 40 eager; time per row from 373, 858 and 1426 tokens/s at 6, 16 and 32 sequences; nothing on prompts, "
        "whose time is that of a pass",
    )


def dispec_pair() -> Profile:
    """The int4 7B target with the 0.5B draft, both launch-bound when eager."""
    launches = model("qwen2.5-0.5b").layers * KERNELS_PER_LAYER + 6
    launch_s = DRAFT_S / launches
    target = _int4("qwen2.5-7b")
    read = target.weight_bytes - target.vocab * target.hidden * target.dtype_bytes
    return _profile(
        name=f"{DISPEC}/{target.name}+qwen2.5-0.5b",
        gpu=_laptop(),
        target=target,
        draft=model("qwen2.5-0.5b"),
        kernels=LinearKernels(
            target=LinearPass(
                pass_s=_round(read / _laptop().bandwidth_bytes_per_s), launches=round(TARGET_S / launch_s)
            ),
            draft=LinearPass(pass_s=DRAFT_COMPUTE_S),
            attention_implementation="Triton paged attention",
            kv_layout="paged",
            measured=WHOLE_CALLS,
        ),
        host=_host(
            "dispec",
            eager_kernel_s=_round(launch_s),
            kernels_per_layer=KERNELS_PER_LAYER,
            why="20.2 ms per draft token, eager",
        ),
        source="puneethgv/DiSpec README, RTX 3070 Laptop: int4 7B target 31.9 ms per token (32.0 for 5), draft 20.2 "
        "ms, about 3 of them compute, all eager; the target's own compute is not quoted: its weights less the input "
        "embedding over the datasheet's bandwidth",
    )


def _int4(name: str) -> ModelShape:
    """GPTQ: the layers in int4, embedding and LM head as they were."""
    formats = Formats(projections="int4", mlp="int4")
    return msgspec.structs.replace(model(name), name=f"{name}-int4", formats=formats)


def _laptop() -> Gpu:
    """Datasheet of the RTX 3070 Laptop: 8 GB GDDR6 at 448 GB/s, about 80 TFLOP/s dense in bf16."""
    return Gpu(name="rtx-3070-laptop", memory_bytes=8 * 2**30, peak_flops=81.3e12, bandwidth_bytes_per_s=448e9)


def _host(engine: str, *, eager_kernel_s: float, kernels_per_layer: int, why: str) -> HostCosts:
    return HostCosts(
        eager_kernel_s=eager_kernel_s,
        graph_launch_s=0.0,
        kernels_per_layer=kernels_per_layer,
        result_s=0.0,
        engine=engine,
        step_s=0.0,
        row_s=0.0,
        source=f"{why}; graphs, results and scheduling are taken as free, since the report's times hold them",
    )


def _profile(
    *,
    name: str,
    gpu: Gpu,
    target: ModelShape,
    draft: ModelShape | None,
    kernels: LinearKernels,
    host: HostCosts,
    source: str,
) -> Profile:
    no_error = KindError(
        mean_error_pct=None, max_error_pct=None, points=0, held_out="a few quoted figures, all of them used"
    )
    return Profile(
        schema=SCHEMA,
        name=name,
        gpu=gpu,
        target=target,
        draft=draft,
        kernels=kernels,
        host=host,
        overlap=Overlap(),
        errors=dict.fromkeys(("body", "decode", "prefill", "draft", "verify"), no_error),
        source=f"figures quoted in a report, not measured by lanesim: {source}",
        fingerprint=None,
        date=DATE,
    )


def _slope(points: dict[int, float]) -> float:
    """Of the least-squares line through the points."""
    mean_x, mean_y = sum(points) / len(points), sum(points.values()) / len(points)
    upper = sum((x - mean_x) * (y - mean_y) for x, y in points.items())
    return upper / sum((x - mean_x) ** 2 for x in points)


def _round(value: float) -> float:
    return float(f"{value:.4g}")


PROFILES = (pdverify, dispec_single, dispec_pair)


def main(folder: Path = SHIPPED) -> None:
    for build in PROFILES:
        ship_profile(build(), folder)
