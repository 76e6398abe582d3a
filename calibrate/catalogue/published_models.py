"""Models by their names on Hugging Face: config.json files beside the published kernel tables, and targets of shipped
profiles. Not here: what a config.json says (model_configs)."""

from __future__ import annotations

from pathlib import Path

from calibrate.catalogue.published_tables import published_configs
from sim.costs.profile_files import load, shipped
from sim.costs.shapes import ModelShape
from sim.model_names import ProfileKey, model_key

CONFIG, QUANTISATION = "_config.json", "_hf_quant_config.json"
FORMATS = {
    "fp8-dynamic": "fp8",
    "fp8-static-pertensor": "fp8",
    "fp8-block": "fp8-block",
    "fp8": "fp8",
    "nvfp4": "nvfp4",
    "fp4": "nvfp4",
    "gptq-int4": "int4",
    "awq": "int4",
    "quantized.w4a16": "int4",
    "w4a16": "int4",
    "bf16": "bf16",
}
"""Ending of a repository's name -> weight format."""
BLOCK_SCALED = ("qwen", "deepseek", "glm", "zai-org")
"""Organisations, and families where none is named, whose own -FP8 is scaled by blocks of 128 x 128."""


def config_names() -> list[str]:
    """`organisation/model` of every config there is, sorted; none where the package is not installed."""
    return sorted(repository_of(path) for path in _configs())


def repository_of(path: Path) -> str:
    """`organisation/model` of a config."""
    return path.name.removesuffix(CONFIG).replace("--", "/")


def without_format(name: str) -> tuple[str, str | None]:
    """A name in lower case without its ending for a weight format, and that format.

    >>> without_format("RedHatAI/Qwen3-32B-FP8-dynamic"), without_format("Qwen/Qwen3-32B")
    (('redhatai/qwen3-32b', 'fp8'), ('qwen/qwen3-32b', None))
    """
    lower = name.lower()
    for ending, weights in FORMATS.items():
        plain = lower.removesuffix(f"-{ending}")
        if plain != lower:
            is_block = ending == "fp8" and plain.startswith(BLOCK_SCALED)
            return plain, "fp8-block" if is_block else weights
    return lower, None


def config_of(name: str) -> Path | None:
    """The config of a repository: of that very name, else of a fine-tune of the same layers and formats. Formats of
    one name are not those of another organisation's."""
    wanted, key = name.lower(), model_key(name)
    organisation = wanted.rpartition("/")[0] if without_format(name)[1] else ""
    by_name = {
        repository: path
        for path in _configs()
        if (repository := repository_of(path)).lower().partition("/")[0] == organisation or not organisation
    }
    for is_same in (
        lambda repository: repository.lower() == wanted,
        lambda repository: repository.lower().partition("/")[2] == wanted.rpartition("/")[2],
        lambda repository: model_key(repository) == key,
    ):
        paths = [path for repository, path in sorted(by_name.items()) if is_same(repository)]
        if paths:
            return paths[0]
    return None


def name_of(path: Path) -> str:
    """A model's name, such as qwen3-32b of Qwen--Qwen3-32B-FP8_config.json."""
    return model_key(without_format(repository_of(path))[0])


def profile_target(name: str) -> ModelShape | None:
    """The target of a shipped profile, in its formats; None where no profile is of that model."""
    key = model_key(name)
    for each in shipped():
        if ProfileKey.of(each).target == key:
            return load(each).target
    return None


def _configs() -> list[Path]:
    return [path for path in published_configs() if path.name.endswith(CONFIG) and not path.name.endswith(QUANTISATION)]
