"""Profiles that claims are simulated with and nothing ships: passes as a report states them, or a line fitted on it.

Not here: fitting the line (validation.claims.runs), the profile of report 002's harness, which is shipped.
"""

from __future__ import annotations

import msgspec

from sim.costs.compact_kernels import LinearPass
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.costs.shapes import ModelShape, model

FP32_FLOPS = 19.5e12
"""FLOP/s of the A100's datasheet, outside tensor cores."""
TARGET_MS, TARGET_COMPUTE_MS = 31.9, 10.0
"""The laptop's 7B-int4, eager, decode of 1 token (verify of 5 tokens 32.0: launches bound both); the second is assumed,
3.8 GB of int4 weights at 448 GB/s, and hidden under the launches."""
DRAFT_EAGER_MS, DRAFT_COMPUTE_MS = 20.2, 3.0
"""Stated of the 0.5B: eager, and actual compute."""
IMPLIED_DRAFT_MS = DRAFT_EAGER_MS / 3.6
"""The 0.5B's pass under graphs, by the ratio that report 003 states."""


def fp32(layer_s: float) -> Profile:
    """The pair with `layer_s` per layer and forward, and its arithmetic."""
    models, prototype = load("a100-sxm/llama-2-7b+tinyllama-1.1b"), load("a100-pdverify/codellama-34b+tinyllama-1.1b")
    assert models.draft is not None

    def line(shape: ModelShape) -> LinearPass:
        parameters = shape.weight_bytes / shape.dtype_bytes
        return LinearPass(pass_s=layer_s * shape.layers, token_s=parameters * 2.0 / FP32_FLOPS)

    kernels = msgspec.structs.replace(prototype.linear, target=line(models.target), draft=line(models.draft))
    return msgspec.structs.replace(
        prototype, name="a100-sxm/three-way", target=models.target, draft=models.draft, kernels=kernels
    )


def laptop(draft_compute_ms: float) -> Profile:
    """ClaimSection F's int4 7B with the 0.5B: launch-bound passes, of which the draft computes this much."""
    base = load("rtx-3070-laptop/qwen2.5-1.5b")
    launch_s = base.host.eager_kernel_s

    def line(eager_ms: float, compute_ms: float) -> LinearPass:
        return LinearPass(pass_s=compute_ms / 1e3, launches=round(eager_ms / 1e3 / launch_s))

    target, draft = line(TARGET_MS, TARGET_COMPUTE_MS), line(DRAFT_EAGER_MS, draft_compute_ms)
    return msgspec.structs.replace(
        base,
        name="rtx-3070-laptop/qwen2.5-7b-int4+qwen2.5-0.5b",
        target=model("qwen2.5-7b"),
        draft=model("qwen2.5-0.5b"),
        kernels=msgspec.structs.replace(base.linear, target=target, draft=draft),
    )
