"""Raw scenarios: a YAML file, and overrides on top of it, dotted or under the flat names of `vllm bench serve`.

Not here: what a scenario may say (sim.run.scenario).
"""

from __future__ import annotations

import re
from pathlib import Path

from sim.files.json_values import Json
from sim.files.yaml_values import parse_yaml, plain_scalar, read_yaml

_PLAIN = re.compile(r"[A-Za-z][\w-]*|\d{1,15}", re.ASCII)
"""Values that YAML reads as one word or number, so that its parser need not be imported."""
_IN_BLOCKS = {
    "workload": (
        *("request_rate", "burstiness", "max_concurrency", "num_prompts", "num_warmups", "dataset_name"),
        *("dataset_path", "input_len", "output_len", "random_range_ratio"),
    ),
    "speculation": ("method", "num_speculative_tokens", "acceptance", "controller"),
    "engine": ("name", "max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks"),
}
FLAT_NAMES = {
    "profile": "profile",
    **{
        "engine" if name == "name" else name: f"{block}.{name}" for block, names in _IN_BLOCKS.items() for name in names
    },
    "seed": "seed",
    "replications": "replications",
}
"""Names of flags, and of keywords in Python, and the dotted keys they stand for."""


def read_scenario(path: Path) -> dict[str, Json]:
    """The raw mapping of a scenario file. Raises ValueError naming the file."""
    raw = read_yaml(path, "scenario file")
    if not isinstance(raw, dict):
        raise ValueError(f"scenario file {str(path)!r} must be a mapping of keys, got {type(raw).__name__}")
    return raw


def set_dotted(raw: dict[str, Json], key: str, value: Json) -> None:
    """Put `value` at dotted `key`, making the mappings on the way."""
    *parents, last = key.split(".")
    for parent in parents:
        child = raw.setdefault(parent, {})
        if not isinstance(child, dict):
            raise ValueError(f"{key}: {parent!r} is a single value, not a block")
        raw = child
    raw[last] = value


def parse_override(text: str) -> tuple[str, Json]:
    """`a.b=value` as key and YAML value; a key may be one of FLAT_NAMES, such as num_prompts."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"--set {text!r} must be key=value, such as engine.max_num_seqs=128")
    key, is_plain = key.strip(), _PLAIN.fullmatch(value)
    read = plain_scalar(value) if is_plain else parse_yaml(value, f"--set {text!r}")
    return key if isinstance(read, dict) else FLAT_NAMES.get(key, key), read
