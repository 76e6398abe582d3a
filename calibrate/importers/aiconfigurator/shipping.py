"""Writes the shipped profiles of two GPUs: `python -m calibrate.importers.aiconfigurator.shipping PATH REVISION` with
aiconfigurator's tables at PATH.

Not here: the import itself (calibrate.importers.aiconfigurator.compact_profile), and what came about otherwise:
cpu/tiny by hand, llama-3.1-8b on the A100 as points of its own by an earlier release.
"""

from __future__ import annotations

import sys
from pathlib import Path

from calibrate.importers.aiconfigurator.compact_profile import import_aiconfigurator
from sim.costs.profile_files import ship_profile

GPUS = ("a100-sxm", "h100-sxm")
TARGETS = ("tinyllama-1.1b", "llama-2-7b", "codellama-34b", "llama-3.2-1b", "llama-3.1-8b")
POINTS = ("a100-sxm", "llama-3.1-8b")
"""GPU and target that are shipped as their own points, where the compact form is 4 % too slow at small batches. The
H100's stay compact: they can be derived from."""
PAIRS = (
    ("llama-2-7b", "tinyllama-1.1b"),
    ("codellama-34b", "tinyllama-1.1b"),
    ("tinyllama-1.1b", "tinyllama-1.1b"),
    ("llama-3.1-8b", "llama-3.2-1b"),
    ("llama-3.1-8b", "eagle3"),
)


def ship(path: Path, revision: str) -> list[Path]:
    """Write every one; returns the files."""
    pairs = [(target, None) for target in TARGETS] + list(PAIRS)
    profiles = [
        import_aiconfigurator(path, gpu, target, draft, revision=revision)
        for gpu in GPUS
        for target, draft in pairs
        if (gpu, target) != POINTS
    ]
    return list(map(ship_profile, profiles))


if __name__ == "__main__":
    for name in ship(Path(sys.argv[1]), sys.argv[2]):
        print(name)
