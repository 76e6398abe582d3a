"""Writes docs/support.md: which model runs on which GPU in which format: measured, derived or refused.

Shipped profiles say it themselves; what is not shipped is tried from the kernel tables, where they have the GPU (`pip
install '.[tables]'`), and refused with the line that a user would see. Not here: served cells
(validation.silicon.judge).
"""

from __future__ import annotations

import warnings
from itertools import product
from pathlib import Path

from calibrate.catalogue.model_configs import source_of, with_formats
from calibrate.catalogue.published_tables import published_tables
from calibrate.importers.aiconfigurator.deployment import Deployment, import_deployment
from sim.costs.profile import SERVED, Profile
from sim.costs.profile_files import load, shipped
from sim.costs.shapes import ModelShape
from validation.tables import as_written, grouped, page

PAGE = Path(__file__).parents[2] / "docs" / "support.md"
GPUS = ("h100-sxm", "h200-sxm", "b200-sxm", "a100-sxm", "l40s", "rtx-4090", "rtx-pro-6000-server", "gh200")
FORMATS = ("bf16", "fp8", "fp8-block", "nvfp4", "int4", "mxfp4")
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
WIDE = {"llama-3.1-70b": 4}
"""Devices that share a model where one is too small."""
STAND_IN = "not from the engine's own tables: "
REFUSED = "–"


def sign_of(profile: Profile) -> tuple[str, str]:
    """Sign of a profile's origin, and the reason where it is derived."""
    if "nothing was measured with" in profile.source:
        return "derived", profile.source.partition(",")[0]
    if profile.conditions == SERVED:
        return "**served**", ""
    reason = profile.source.partition(STAND_IN)[2]
    return ("derived", reason) if reason else ("**measured**", "")


def format_of(shape: ModelShape) -> str:
    """The format that a model is known by."""
    if shape.formats is None:
        return "bf16"
    name = shape.formats.mlp if shape.experts is None else shape.formats.experts
    return name.partition("-fp8")[0].partition("-marlin")[0] if name.startswith("mxfp4") else name


def tried(gpu: str, name: str, weights: str) -> tuple[str, str]:
    """Result of the importer, in brackets."""
    tables, revision = published_tables()
    path = tables.parent / "model_configs" / f"{CONFIGS[name]}_config.json"
    try:
        shape = source_of(str(path), plain=False).shape
        if weights != format_of(shape) or weights == "bf16":
            shape = with_formats(shape, weights, None)
        profile = import_deployment(tables, gpu, shape, None, Deployment(WIDE.get(name, 1)), source=revision)
        sign, reason = sign_of(as_written(profile))
    except ValueError as error:
        return REFUSED, " ".join(str(error).split()).replace(str(path), path.name)
    return f"({sign})", reason


def main(out: Path = PAGE) -> None:
    import pandas as pd

    warnings.simplefilter("ignore")
    known = grouped(map(load, shipped()), lambda each: (each.gpu.name, each.target.name, format_of(each.target)))
    rows, reasons = [], []
    for name, weights in product(CONFIGS, FORMATS):
        if (weights == "mxfp4") != name.startswith("gpt-oss"):
            continue
        row = {"model": name, "format": weights}
        for gpu in GPUS:
            profiles = sorted(known.get((gpu, name, weights), []), key=lambda each: each.draft is not None)
            sign, reason = sign_of(profiles[0]) if profiles else tried(gpu, name, weights)
            row[gpu] = sign + " +" * any(each.draft is not None for each in profiles)
            reasons += [(reason, f"{name} {weights} on {gpu}")] * bool(reason)
        rows.append(row)
    by_reason = [
        (reason, [where for _, where in each]) for reason, each in grouped(reasons, lambda one: one[0]).items()
    ]
    lines = [
        f"{reason}: {', '.join(where[:6])}" + (f" and {len(where) - 6} more" if len(where) > 6 else "")
        for reason, where in sorted(by_reason, key=lambda each: (-len(each[1]), each[0]))
    ]
    page(out, "support", table=pd.DataFrame(rows), reasons=lines)
