"""Models by their name on Hugging Face, from the config.json files inside the installed aiconfigurator-core.

A name says more than its config sometimes: `-FP8` behind a model whose own config is there without it. Not here: what a
config.json means (models), names of sim.costs.shapes, which are tried last.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

import msgspec

from calibrate.hardware.models import source_of, with_formats
from sim.costs.shapes import MODELS, ModelShape

ENDING = "_config.json"
FORMATS = {
    "fp8-dynamic": "fp8",
    "fp8": "fp8",
    "nvfp4": "nvfp4",
    "gptq-int4": "int4",
    "awq": "int4",
    "w4a16": "int4",
}
"""Ending of a name -> weight format."""
BLOCK_SCALED = ("qwen", "deepseek", "glm")
"""Families whose publishers' own -FP8 is scaled by blocks of 128 x 128."""
SAME_SHAPE = re.compile(r"-(instruct|chat|it|hf|base|thinking)(?=-|$)|^meta-")
"""Parts of a name that change no dimension."""


class NamedModel(NamedTuple):
    shape: ModelShape
    repository: str | None
    """What `vllm serve` loads; None where the user named a file."""


def named_model(name: str, configs: Path | None) -> NamedModel:
    """The model called `name`: a config.json, a folder that holds one, a name on Hugging Face with or without its
    publisher, or a known short name. `configs` is the folder of `PUBLISHER--NAME_config.json` files. Raises ValueError
    with the nearest name."""
    if name.endswith(".json") or Path(name).is_dir():
        return NamedModel(source_of(name, plain=False).shape, None)
    known = {} if configs is None else repositories(configs)
    repository = next((each for each in known if each.lower() == name.lower()), None)
    plain, weights = _without_format(_key(name))
    if repository is None:
        repository = _like(known, _key(name), name) or _like(known, plain, name)
    if repository is None and plain in MODELS:
        shape = source_of(plain, plain=False).shape
        return NamedModel(_in_format(shape, plain, weights), name if "/" in name else None)
    if repository is None:
        near = get_close_matches(_key(name), {_key(each): each for each in known} | {m: m for m in MODELS}, 1, 0.4)
        hint = f"; did you mean {next((each for each in known if _key(each) == near[0]), near[0])!r}?" if near else ""
        raise ValueError(
            f"unknown model {name!r}{hint} (a Hugging Face name of {len(known)}, a config.json, or a profile's name)"
        )
    shape = source_of(str(known[repository]), plain=False).shape
    of_repository = _without_format(_key(repository))
    shape = msgspec.structs.replace(shape, name=plain)
    if weights is not None and of_repository[1] is None:
        shape = _in_format(shape, plain, weights)
    elif shape.formats is None:
        shape = _in_format(shape, plain, of_repository[1])
    return NamedModel(shape, name if "/" in name else repository)


def repositories(configs: Path) -> dict[str, Path]:
    """Name on Hugging Face -> its config.json."""
    files = sorted(configs.glob(f"*{ENDING}"))
    return {
        path.name.removesuffix(ENDING).replace("--", "/"): path
        for path in files
        if not path.name.endswith(f"_hf_quant{ENDING}")
    }


def _like(known: dict[str, Path], key: str, name: str) -> str | None:
    """The repository of that key; of several publishers' the one that was named."""
    publisher = name.partition("/")[0].lower() if "/" in name else ""
    found = [each for each in known if _key(each) == key]
    return next((each for each in found if each.partition("/")[0].lower() == publisher), found[0] if found else None)


def _key(name: str) -> str:
    """The name without its publisher and what changes no dimension, in lower case."""
    return SAME_SHAPE.sub("", name.rpartition("/")[2].lower())


def _without_format(key: str) -> tuple[str, str | None]:
    for ending, weights in FORMATS.items():
        if key.endswith(f"-{ending}"):
            plain = key.removesuffix(f"-{ending}")
            is_block = ending == "fp8" and plain.startswith(BLOCK_SCALED)
            return plain, "fp8-block" if is_block else weights
    return key, None


def _in_format(shape: ModelShape, name: str, weights: str | None) -> ModelShape:
    return msgspec.structs.replace(shape if weights is None else with_formats(shape, weights, None), name=name)
