"""Raw scenarios: a YAML file, and overrides on top of it, dotted or under the flat names of `vllm bench serve`.

Not here: what a scenario may say (sim.experiment.scenario).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

FLAT_NAMES = {
    "profile": "profile",
    "request_rate": "workload.request_rate",
    "burstiness": "workload.burstiness",
    "max_concurrency": "workload.max_concurrency",
    "num_prompts": "workload.num_prompts",
    "num_warmups": "workload.num_warmups",
    "dataset_name": "workload.dataset_name",
    "dataset_path": "workload.dataset_path",
    "input_len": "workload.input_len",
    "output_len": "workload.output_len",
    "num_speculative_tokens": "speculation.num_speculative_tokens",
    "acceptance": "speculation.acceptance",
    "controller": "speculation.controller",
    "engine": "engine.name",
    "max_num_seqs": "engine.max_num_seqs",
    "max_num_batched_tokens": "engine.max_num_batched_tokens",
    "num_gpu_blocks": "engine.num_gpu_blocks",
    "seed": "seed",
    "replications": "replications",
}
"""Names of flags, and of keywords in Python, and the dotted keys they stand for."""


def read_scenario(path: Path) -> dict[str, Any]:
    """The raw mapping of a scenario file. Raises ValueError naming the file."""
    import yaml

    try:
        text = path.read_text()
    except OSError as error:
        raise ValueError(f"scenario file {str(path)!r}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"scenario file {str(path)!r}: not UTF-8 text") from None
    try:
        _refuse_duplicates(yaml.compose(text, Loader=yaml.SafeLoader), path)
        raw = yaml.safe_load(text)
    except RecursionError:
        raise ValueError(f"scenario file {str(path)!r}: nested too deep") from None
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = f" line {line + 1}" if line is not None else ""
        raise ValueError(f"scenario file {str(path)!r}{where}: not valid YAML") from None
    if not isinstance(raw, dict):
        raise ValueError(f"scenario file {str(path)!r}: want a mapping of keys, got {type(raw).__name__}")
    return raw


def _refuse_duplicates(node: Any, path: Path) -> None:
    """YAML lets the last of several equal keys win in silence."""
    seen: set[str] = set()
    for key, value in node.value if node is not None and node.id == "mapping" else ():
        if key.value in seen:
            line = key.start_mark.line + 1
            raise ValueError(f"scenario file {str(path)!r} line {line}: key {key.value!r} stands twice")
        seen.add(key.value)
        _refuse_duplicates(value, path)


def set_dotted(raw: dict[str, Any], key: str, value: Any) -> None:
    """Put `value` at dotted `key`, making the mappings on the way."""
    *parents, last = key.split(".")
    for parent in parents:
        child = raw.setdefault(parent, {})
        if not isinstance(child, dict):
            raise ValueError(f"{key}: {parent!r} is a single value, not a block")
        raw = child
    raw[last] = value


def parse_override(text: str) -> tuple[str, Any]:
    """`a.b=value` as key and YAML value."""
    import yaml

    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"--set {text!r}: want key=value, for example engine.max_num_seqs=128")
    try:
        return key.strip(), yaml.safe_load(value)
    except yaml.YAMLError:
        raise ValueError(f"--set {text!r}: {value!r} is not a valid YAML value") from None
