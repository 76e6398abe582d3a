"""Writes docs/support.md: which model runs on which GPU in which format: measured, derived or refused.

    python -m validation support [--out docs/support.md]

Shipped profiles say it themselves; what is not shipped is tried, from the kernel tables where they have the GPU (`pip
install 'lanesim[tables]'`), else by the constants of another model on that GPU, and refused with the line that a user
would see. Not here: models that nobody named (validation.pages.unprepared), served cells (validation.silicon.judge).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from calibrate.catalogue.derived_profiles import with_models
from calibrate.catalogue.model_configs import source_of, with_formats
from calibrate.importers.aiconfigurator.deployment import DEVICES, Deployment, import_deployment, installed_tables
from sim.costs.profile import SERVED, Profile
from sim.costs.profile_files import load, shipped
from sim.costs.shapes import ModelShape
from validation.tables import as_written, markdown_table

PAGE = Path(__file__).parents[2] / "docs" / "support.md"
GPUS = ("h100-sxm", "h200-sxm", "b200-sxm", "a100-sxm", "l40s", "rtx-4090", "rtx-pro-6000-server", "gh200")
FORMATS = ("bf16", "fp8", "fp8-block", "nvfp4", "mxfp4", "int4")
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
CONSTANTS = {"gh200": "gh200/apertus-8b", "rtx-4090": "rtx-4090/qwen3-8b"}
"""GPU without tables -> the profile whose constants other models take."""
NOTHING_MEASURED = "nothing was measured with"
STAND_IN = "not from the engine's own tables: "
LEGEND = """| sign | it is known from |
| :-- | :-- |
| **served** | serving runs on that GPU: constants were fitted to them |
| **measured** | kernel tables of that GPU, all of the engine's own |
| derived | its tables where a rule or another engine's kernel stands in for some, or constants of another model there |
| – | refused; the reason is below |

A sign in brackets is not shipped: one command makes it. `+` counts shipped profiles with a drafter."""


class Entry(NamedTuple):
    sign: str
    note: str
    """The reason for `derived` and `–`; empty for the others."""


def sign_of(profile: Profile) -> Entry:
    if NOTHING_MEASURED in profile.source:
        return Entry("derived", profile.source.partition(",")[0])
    if profile.conditions == SERVED:
        return Entry("**served**", "")
    if STAND_IN in profile.source:
        return Entry("derived", profile.source.partition(STAND_IN)[2])
    return Entry("**measured**", "")


def kind_of(shape: ModelShape) -> str:
    """The format that a model is known by."""
    if shape.formats is None:
        return "bf16"
    name = shape.formats.mlp if shape.experts is None else shape.formats.experts
    return name.partition("-fp8")[0].partition("-marlin")[0] if name.startswith("mxfp4") else name


def shipped_entries() -> dict[tuple[str, str, str], tuple[Entry, int]]:
    """(GPU, model, format) -> how it is known, and how many drafters come with it."""
    found: dict[tuple[str, str, str], tuple[Entry, int]] = {}
    for name in shipped():
        profile = load(name)
        key = profile.gpu.name, profile.target.name, kind_of(profile.target)
        entry, drafters = found.get(key, (sign_of(profile), 0))
        if profile.draft is None:
            entry = sign_of(profile)
        found[key] = entry, drafters + (profile.draft is not None)
    return found


def tried(gpu: str, name: str, weights: str) -> Entry:
    """What the one-liner makes of it."""
    tables, revision = installed_tables()
    path = tables.parent / "model_configs" / f"{CONFIGS[name]}_config.json"
    try:
        shape = source_of(str(path), plain=False).shape
        own = kind_of(shape)
        if weights != own or weights == "bf16":
            shape = with_formats(shape, weights, None)
        if gpu in DEVICES:
            deployment = Deployment(WIDE.get(name, 1))
            profile = import_deployment(tables, gpu, shape, None, deployment, source=revision)
            return bracketed(sign_of(as_written(profile)))
        if weights != "bf16" or not shape.is_plain:
            return Entry("–", f"no tables of {gpu}: constants of a dense model in bf16 price such models alone")
        return bracketed(sign_of(as_written(with_models(load(CONSTANTS[gpu]), shape, None))))
    except ValueError as error:
        return Entry("–", " ".join(str(error).split()).replace(str(path), path.name))


def bracketed(entry: Entry) -> Entry:
    return entry._replace(sign=f"({entry.sign})")


def formats_of(name: str) -> tuple[str, ...]:
    if name.startswith("gpt-oss"):
        return ("mxfp4",)
    return ("bf16", "fp8", "fp8-block", "nvfp4", "int4")


def lines() -> Iterator[str]:
    known = shipped_entries()
    notes: dict[str, list[str]] = {}
    rows = []
    for name in CONFIGS:
        for weights in formats_of(name):
            cells = []
            for gpu in GPUS:
                entry, drafters = known.get((gpu, name, weights), (None, 0))
                if entry is None:
                    entry = tried(gpu, name, weights)
                if entry.note:
                    notes.setdefault(entry.note, []).append(f"{name} {weights} on {gpu}")
                cells.append(entry.sign + " +" * bool(drafters))
            rows.append([name, weights, *cells])
    yield markdown_table(["model", "format", *GPUS], rows, left=2 + len(GPUS))
    yield "## Reasons\n"
    for note, places in sorted(notes.items(), key=lambda item: (-len(item[1]), item[0])):
        shown = ", ".join(places[:6]) + (f" and {len(places) - 6} more" if len(places) > 6 else "")
        yield f"- {note}: {shown}"


HEAD = """# What is supported

Generated by `python -m validation support` from the shipped profiles (`lanesim profiles`) and the kernel tables of
aiconfigurator-core. Any other model's config.json goes through the same command; docs/unprepared.md has ten that did.
"""


def main(out: Path = PAGE) -> None:
    warnings.simplefilter("ignore")
    out.write_text("\n".join([HEAD, LEGEND, "", *lines()]) + "\n")
