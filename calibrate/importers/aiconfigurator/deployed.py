"""Writes the shipped profiles that are points from the installed tables, and those of a GPU that these lack: `python -m
calibrate.importers.aiconfigurator.deployed CONFIGS`, with Hugging Face config.json files below CONFIGS.

Not here: the import (deployment), the profiles of the fitted law (shipping).
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from calibrate.catalogue.derived_profiles import with_models
from calibrate.catalogue.model_configs import source_of, with_formats
from calibrate.importers.aiconfigurator.deployment import Deployment, import_deployment, installed_tables
from sim.costs.profile_files import SHIPPED, load, ship_profile
from sim.costs.shapes import draft_model

CONFIGS = {
    "llama-3.1-8b": "meta-llama--Meta-Llama-3.1-8B",
    "llama-3.1-70b": "meta-llama--Meta-Llama-3.1-70B",
    "qwen3-8b": "Qwen--Qwen3-8B",
    "qwen3-32b": "Qwen--Qwen3-32B",
    "qwen3-30b-a3b": "Qwen--Qwen3-30B-A3B",
    "gpt-oss-20b": "openai--gpt-oss-20b",
    "gpt-oss-120b": "openai--gpt-oss-120b",
}
"""Name -> file of its config.json, less `_config.json`."""
HOPPER, BLACKWELL = ("h100-sxm", "h200-sxm"), ("b200-sxm",)
GPUS = (*HOPPER, *BLACKWELL, "a100-sxm", "l40s", "rtx-pro-6000-server")
ONLY_BF16 = ("a100-sxm",)
SERVED = {"gh200/apertus-8b": ("llama-3.1-8b", "qwen3-8b", "qwen3-32b")}
"""Profile whose constants were fitted on a served GPU that has no tables -> dense models that they are shipped for."""
WIDE = {"llama-3.1-70b": 4}
"""Devices that share a model where one is too small."""
HEADS = ("gpt-oss-120b", "qwen3-32b", "llama-3.1-8b")
"""Targets that are shipped with an EAGLE-3 head, on H200."""


def formats(gpu: str, name: str) -> tuple[str | None, ...]:
    """Weights that people run there; None: as the checkpoint says."""
    if name.startswith("gpt-oss"):
        return ("mxfp4-fp8",) if gpu in BLACKWELL else ("mxfp4-marlin",) if gpu in HOPPER else (None,)
    narrow = ("fp8", "nvfp4") if gpu in BLACKWELL else ("fp8",)
    if name == "qwen3-30b-a3b" or gpu in ONLY_BF16:
        return (None,)
    return (None, *narrow)


def ship(configs: Path) -> list[Path]:
    """Write every profile that no other script ships; what does not fit a GPU, or has no table, is left out."""
    tables, revision = installed_tables()
    written = []
    for gpu in GPUS:
        for name, file in CONFIGS.items():
            for weights in formats(gpu, name):
                for head in (None, "eagle3") if gpu == "h200-sxm" and name in HEADS else (None,):
                    shape = source_of(str(configs / f"{file}_config.json"), plain=False).shape
                    shape = with_formats(msgspec.structs.replace(shape, name=name), weights, None)
                    draft = None if head is None else draft_model(head, msgspec.structs.replace(shape, formats=None))
                    try:
                        profile = import_deployment(
                            tables, gpu, shape, draft, Deployment(WIDE.get(name, 1)), source=revision
                        )
                    except ValueError as error:
                        print(f"left out: {gpu}/{name} {weights or ''}: {error}")
                        continue
                    label = profile.name
                    if name.startswith("gpt-oss"):
                        label = label.replace("-mxfp4-fp8", "").replace("-mxfp4-marlin", "").replace("-mxfp4", "")
                    if not (SHIPPED / f"{label}.json").exists():
                        written.append(ship_profile(msgspec.structs.replace(profile, name=label)))
    return [*written, *ship_served(configs)]


def ship_served(configs: Path) -> list[Path]:
    """The models of SERVED, nothing of which was measured itself."""
    written = []
    for origin, names in SERVED.items():
        for name in names:
            shape = msgspec.structs.replace(source_of(str(configs / f"{CONFIGS[name]}_config.json")).shape, name=name)
            profile = with_models(load(origin), shape, None)
            if not (SHIPPED / f"{profile.name}.json").exists():
                written.append(ship_profile(profile))
    return written


if __name__ == "__main__":
    for written_path in ship(Path(sys.argv[1])):
        print(written_path)
