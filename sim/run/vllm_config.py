"""vLLM's `speculative_config` JSON, taken verbatim: which keys of a scenario it sets.

Keys that change nothing here (paths, revisions, quantisation of the drafter, which the profile says) are accepted and
have no effect; a key that nobody knows is refused with the nearest name, as is a method without a cost here.
Not here: reading scenario files (scenario_file), what the keys mean (scenario).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sim.drafters.drafter import Drafter
from sim.drafters.registry import SPELLINGS, in_parallel
from sim.files.json_values import Json, parse_json
from sim.names import unknown

TAKEN = ("num_speculative_tokens", "num_speculative_tokens_per_batch_size")
"""Keys of the same name in `speculation`."""
SYNTHETIC = ("synthetic_acceptance_length", "synthetic_acceptance_rates")
PARALLEL_KEY = "parallel_drafting"
WITHOUT_EFFECT: Sequence[str] = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes())["without_effect"]
"""Keys that change nothing here."""


def speculation_of(text: str) -> dict[str, Json]:
    """The `speculation` block that the JSON object `text` stands for. Raises ValueError.

    >>> speculation_of('{"method": "eagle3", "model": "some/head", "num_speculative_tokens": 3}')
    {'method': 'eagle3', 'num_speculative_tokens': 3}
    >>> texts = ('"parallel_drafting": true, "model": "a/b"', '"model": "a/b"', '"method": "deepseek_mtp"')
    >>> [speculation_of(f'{{{text}, "num_speculative_tokens": 5}}')["method"] for text in texts]
    ['parallel', 'draft_model', 'mtp']
    >>> by_batch = '"num_speculative_tokens": 4, "num_speculative_tokens_per_batch_size": [[1, 8, 4]]'
    >>> list(speculation_of(f'{{"method": "ngram", {by_batch}}}').values())
    ['ngram', 4, [[1, 8, 4]], 'by_batch']
    """
    config = parse_json(text, "--speculative-config")
    if not isinstance(config, dict):
        raise ValueError(f"--speculative-config must be a JSON object, got {type(config).__name__}")
    known = ("method", PARALLEL_KEY, *TAKEN, *SYNTHETIC, *WITHOUT_EFFECT)
    for key in config:
        if key not in known:
            raise ValueError(unknown("key of --speculative-config", key, known))
    if idle := [key for key in config if key in WITHOUT_EFFECT and key != "model"]:
        warnings.warn(f"--speculative-config: {', '.join(idle)} does not change the simulated times", stacklevel=2)
    block: dict[str, Json] = {"method": _method(config).name}
    block |= {key: config[key] for key in TAKEN if config.get(key) is not None}
    if synthetic := [config[key] for key in SYNTHETIC if config.get(key) is not None]:
        block["acceptance"] = _acceptance(synthetic)
    if "num_speculative_tokens" not in block:
        raise ValueError("--speculative-config: num_speculative_tokens is missing, and no profile says it")
    if "num_speculative_tokens_per_batch_size" in block:
        block["controller"] = "by_batch"
    return block


def _acceptance(synthetic: list[Json]) -> str:
    if len(synthetic) > 1:
        raise ValueError(f"--speculative-config: give {' or '.join(SYNTHETIC)}, not both")
    value = synthetic[0]
    rates = [value] if not isinstance(value, list) else [1.0 + value[0]] if len(value) == 1 else value
    return f"synthetic:{','.join(map(str, rates))}"


def _method(config: dict[str, Json]) -> Drafter:
    """What vLLM would draft with: the method named, or else the model's. Names that end in `_mtp` are of one family."""
    name = config.get("method")
    if name is None:
        name = "ngram" if config.get("model") in ("ngram", "[ngram]") else "draft_model"
    method = SPELLINGS.get("mtp" if str(name).endswith("_mtp") else str(name))
    if method is None:
        raise ValueError(unknown("method of --speculative-config", str(name), SPELLINGS))
    return in_parallel(method) if config.get(PARALLEL_KEY) else method
