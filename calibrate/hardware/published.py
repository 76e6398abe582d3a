"""Models by their names on Hugging Face: config.json files inside the installed aiconfigurator-core, and the targets of
shipped profiles. Not here: what a config.json says (models)."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sim.costs.profile_files import load, shipped
from sim.costs.shapes import ModelShape
from sim.files.json_values import read_json
from sim.model_names import ProfileKey, model_key

PACKAGE, FOLDER = "aiconfigurator_core", "model_configs"
CONFIG, QUANTISATION = "_config.json", "_hf_quant_config.json"
FORMAT = re.compile(r"-(fp8|nvfp4|fp4|static-pertensor)(?=-|$)")
"""Of a repository's name: formats are said apart from the model."""


def config_names() -> list[str]:
    """`organisation/model` of every config there is, sorted; none where the package is not installed."""
    return sorted(path.name.removesuffix(CONFIG).replace("--", "/") for path in _configs())


def config_of(name: str) -> Path | None:
    """The config of a repository: of that very name, else of a fine-tune of the same layers and formats."""
    wanted, key = name.lower(), model_key(name)
    by_name = {path.name.removesuffix(CONFIG).replace("--", "/"): path for path in _configs()}
    for is_same in (
        lambda own: own.lower() == wanted,
        lambda own: own.lower().partition("/")[2] == wanted.rpartition("/")[2],
        lambda own: model_key(own) == key,
    ):
        found = [path for own, path in sorted(by_name.items()) if is_same(own)]
        if found:
            return found[0]
    return None


def quantisation_beside(path: Path) -> dict[str, Any] | None:
    """What NVIDIA's quantiser wrote into a file of its own, as a config's `quantization_config` has it."""
    beside = path.with_name(path.name.removesuffix(CONFIG) + QUANTISATION)
    if not beside.exists():
        return None
    raw = read_json(beside, "quantisation config")
    own = raw.get("quantization") if isinstance(raw, dict) else None
    return {"quant_method": "modelopt", **own} if isinstance(own, dict) else None


def name_of(path: Path) -> str:
    """A model's own name, such as qwen3-32b of Qwen--Qwen3-32B-FP8_config.json."""
    return FORMAT.sub("", model_key(path.name.removesuffix(CONFIG).replace("--", "/")))


def profile_target(name: str) -> ModelShape | None:
    """The target of a shipped profile, in its formats; None where no profile is of that model."""
    key = model_key(name)
    for each in shipped():
        if ProfileKey.of(each).target == key:
            return load(each).target
    return None


def _configs() -> list[Path]:
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return []
    paths = (Path(spec.origin).parent / FOLDER).glob(f"*{CONFIG}")
    return [path for path in paths if not path.name.endswith(QUANTISATION)]
