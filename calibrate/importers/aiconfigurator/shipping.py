"""Writes the shipped profiles: `python -m calibrate.importers.aiconfigurator.shipping PATH REVISION` with
aiconfigurator's tables at PATH.

Not here: the import itself (calibrate.importers.aiconfigurator.profile).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import msgspec

from calibrate.importers.aiconfigurator.profile import import_aiconfigurator
from sim.costs.engine import MEASURED_HERE
from sim.costs.kernels import (
    CompactKernels,
    DecodeAttention,
    Elementwise,
    Gemm,
    Head,
    Measured,
    PrefillAttention,
    VerifyAttention,
)
from sim.costs.points import TableKernels
from sim.costs.profile import SCHEMA, SERVED, Gpu, HostCosts, KindError, Overlap, Profile
from sim.costs.profile_files import SHIPPED, ship_profile
from sim.costs.shapes import model

GPUS = ("a100-sxm", "h100-sxm")
TARGETS = ("tinyllama-1.1b", "llama-2-7b", "codellama-34b", "llama-3.2-1b", "llama-3.1-8b")
TABLES = ("llama-3.1-8b",)
"""Targets that are shipped as tables of their own points on the A100, where the compact form is 4 % too slow at small
batches, with every draft of theirs. The H100's stay compact: they can be derived from."""
PAIRS = (
    ("llama-2-7b", "tinyllama-1.1b"),
    ("codellama-34b", "tinyllama-1.1b"),
    ("tinyllama-1.1b", "tinyllama-1.1b"),
    ("llama-3.1-8b", "llama-3.2-1b"),
    ("llama-3.1-8b", "eagle3"),
)
SERVED_RATIOS = {"a100-sxm/llama-3.1-8b": ((8, 0.9712), (64, 1.0619), (2048, 1.0763))}
"""GPU and target -> what the layers take under load over the tables, by tokens: +-0.017, +-0.033 and +-0.021."""
SERVED_SOURCE = (
    "ratios of the layers' time under load fitted by lanesim (validate cells --fit-ratios 8,64,2048) on goodput, median"
    " ITL and mean TTFT of the gsm8k cells without speculation of manojarulmurugan/SpecDecoding-Study-vLLM-SGLang (vLLM"
    " 0.24, A100-SXM4-80GB; no licence, figures quoted)"
)
TINY_LENGTHS = 64, 32
"""Prompt and output tokens that a CPU replays in seconds."""
TINY_DATE = "2026-11-21"
TINY_NOTE = "illustrative: round numbers for a laptop CPU, not measured; `lanesim calibrate measure` times this machine"


def tiny_cpu() -> Profile:
    """The pair that replays anywhere, with made-up but plausible constants of a CPU that runs it eagerly in fp32."""
    attention = DecodeAttention(fixed_s=3e-5, row_head_s=2e-7, bandwidth_share=0.5, sharpness=1.0)
    not_measured = KindError(mean_error_pct=None, max_error_pct=None, points=0, held_out=TINY_NOTE)
    kinds = ("body", "decode", "prefill", "draft", "verify")
    return Profile(
        schema=SCHEMA,
        name="cpu/tiny",
        gpu=Gpu(name="cpu", memory_bytes=1_000_000_000, peak_flops=1e11, bandwidth_bytes_per_s=1.5e10),
        target=model("tiny-target"),
        draft=model("tiny-draft"),
        kernels=CompactKernels(
            gemm=Gemm(
                compute_share=0.5,
                bandwidth_share=0.7,
                fixed_s=1e-5,
                depth_s=0.0,
                sharpness=2.0,
                extra_depth=0.0,
                tile_share=0.0,
                wave_share=0.0,
                long_kernel_change=0.0,
                long_kernel_s=1e-3,
                tile_tokens=16,
                small_tile_tokens=1,
                tile_columns=16,
                multiprocessors=1,
            ),
            decode_attention=attention,
            multi_head_decode_attention=attention,
            prefill_attention=PrefillAttention(
                fixed_s=3e-5,
                compute_share=0.2,
                extra_keys=32.0,
                tile_share=0.0,
                block_s=0.0,
                kv_bandwidth_share=0.3,
                small_head_change=0.0,
            ),
            verify_attention=VerifyAttention(kv_slowdown=1.0),
            elementwise=Elementwise(bandwidth_share=0.3, kernel_s=1e-5, kernels_per_layer=6),
            head=Head(sampler_s=5e-5, sampler_passes=3.0),
            all_reduce=None,
            attention_implementation="torch SDPA",
            kv_layout="slotted",
            measured=Measured(tokens=2048, rows=64, row_context_tokens=2048, chunk_tokens=2048),
        ),
        host=HostCosts(
            eager_kernel_s=5e-6,
            graph_launch_s=0.0,
            kernels_per_layer=12,
            max_graph_tokens=0,
            result_s=2e-5,
            engine=MEASURED_HERE,
            step_s=2e-4,
            row_s=3e-6,
            inflation_eager=(1.0, 1.9, 2.8),
            inflation_graphed=(1.0, 1.9, 2.8),
            source=TINY_NOTE,
        ),
        overlap=Overlap(),
        errors=dict.fromkeys(kinds, not_measured),
        source=TINY_NOTE,
        fingerprint=None,
        date=TINY_DATE,
        default_lengths=TINY_LENGTHS,
    )


def _form(gpu: str, target: str) -> Literal["compact", "table"]:
    return "table" if gpu == "a100-sxm" and target in TABLES else "compact"


def served(profile: Profile) -> Profile:
    """`profile` with the ratios of SERVED_RATIOS, where it has some."""
    ratios = SERVED_RATIOS.get(profile.name.partition("+")[0])
    kernels = profile.kernels
    if ratios is None or not isinstance(kernels, CompactKernels | TableKernels):
        return profile
    return msgspec.structs.replace(
        profile,
        kernels=msgspec.structs.replace(kernels, body_ratios=ratios),
        conditions=SERVED,
        source=f"{profile.source}; {SERVED_SOURCE}",
    )


def ship(path: Path, revision: str, to: Path = SHIPPED) -> list[Path]:
    """Write every shipped profile below `to`; returns the files."""
    pairs = [(target, None) for target in TARGETS] + list(PAIRS)
    profiles = [
        import_aiconfigurator(path, gpu, target, draft, revision=revision, form=_form(gpu, target))
        for gpu in GPUS
        for target, draft in pairs
    ]
    return [ship_profile(profile, to) for profile in [*map(served, profiles), tiny_cpu()]]


if __name__ == "__main__":
    for name in ship(Path(sys.argv[1]), sys.argv[2]):
        print(name)
