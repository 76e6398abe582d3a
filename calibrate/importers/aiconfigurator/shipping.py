"""Writes the shipped profiles of two GPUs: `python -m calibrate.importers.aiconfigurator.shipping PATH REVISION` with
aiconfigurator's tables at PATH.

Not here: the import itself (calibrate.importers.aiconfigurator.compact_profile), and cpu/tiny, which was written by
hand.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import msgspec

from calibrate.importers.aiconfigurator.compact_profile import import_aiconfigurator
from sim.costs.kernels import CompactKernels
from sim.costs.points import TableKernels
from sim.costs.profile import SERVED, Profile
from sim.costs.profile_files import ship_profile

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


def ship(path: Path, revision: str) -> list[Path]:
    """Write every one; returns the files."""
    pairs = [(target, None) for target in TARGETS] + list(PAIRS)
    profiles = [
        import_aiconfigurator(path, gpu, target, draft, revision=revision, form=_form(gpu, target))
        for gpu in GPUS
        for target, draft in pairs
    ]
    return [ship_profile(profile) for profile in map(served, profiles)]


if __name__ == "__main__":
    for name in ship(Path(sys.argv[1]), sys.argv[2]):
        print(name)
