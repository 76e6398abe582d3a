"""Number formats of a checkpoint's weights and KV, read from the `quantization_config` of its config.json or from the
file that NVIDIA's quantiser leaves beside it.

A format is read where every key that changes bytes or kernels is understood, and refused otherwise.
Not here: the layers (model_configs), bits by format (sim.costs.shapes).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from sim.files.json_values import Json, read_json

Quantisation = dict[str, Json]
CONFIG, BESIDE = "config.json", "hf_quant_config.json"
KEYS = ("quantization_config", "compression_config")
LEFT_KEYS = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")
"""Keys that list the modules left in 16 bits."""
BLOCK = [128, 128]
INT4_BITS = 4
COMPRESSED = {
    ("int", 4, None): "int4",
    ("float", 8, 8): "fp8",
    ("float", 4, 4): "nvfp4",
    ("float", 4, None): "mxfp4",
}
"""Type and bits of compressed-tensors' weights, bits of the activations that they meet -> weight format."""
GROUPS = {"nvfp4": 16, "mxfp4": 32}
"""Weights that share a scale."""
MODELOPT = {"FP8": "fp8", "NVFP4": "nvfp4"}
MIXED_KEYS = ("quant_algo", "moe_quant_algo", "config_groups", "quantized_layers", "dynamic", "sparsity_config")
"""Keys by which parts of one checkpoint are in several formats; of each method only its usual one is read."""
PARTS = {
    "projections": re.compile(r"attn(\*|\.\*|$|\.(q|k|v|o|qkv)_proj)"),
    "mlp": re.compile(r"mlp(\*|\.\*|$|\.(gate|up|down|gate_up)_proj)"),
    "shared": re.compile(r"shared_experts?(\*|\.\*|$)"),
}
"""Names of a layer's matrices in lists of modules, by the part of Formats; shared experts are a mixture's `mlp`."""


class Stored(NamedTuple):
    weights: str
    kv: str | None
    """None: that of the activations."""
    left: tuple[str, ...]
    """Parts of which matrices stay in 16 bits."""


def quantisation_of(path: Path, *configs: dict[str, Json]) -> tuple[Path, Quantisation] | None:
    """The file, and the quantisation that one of `configs`, read from `path`, or a file beside it states; or None."""
    stated = [(key, config[key]) for config in configs for key in KEYS if config.get(key) is not None]
    key, value = stated[0] if stated else ("", None)
    if not isinstance(value, dict | None):
        raise ValueError(f"{path}: {key}={value!r} must be an object with quant_method")
    beside = None if value is not None and value.get("quant_method") else _beside(path)
    return beside or (None if value is None else (path, value))


def _beside(path: Path) -> tuple[Path, Quantisation] | None:
    beside = path.with_name(path.name.removesuffix(CONFIG) + BESIDE)
    if not beside.exists():
        return None
    raw = read_json(beside, "quantisation config")
    inner = raw.get("quantization") if isinstance(raw, dict) else None
    if not isinstance(inner, dict):
        raise ValueError(f"{beside}: quantization={inner!r} must be an object with quant_algo")
    return beside, {**inner, "quant_method": "modelopt"}


def stored_formats(path: Path, quantisation: Quantisation) -> Stored:
    """Raises ValueError, one line with what was got and what is read, for any other quantisation."""
    method = quantisation.get("quant_method")
    read = READERS.get(method) if isinstance(method, str) else None
    if read is None:
        raise _refused(path, f"quant_method={method!r}", ", ".join(READERS))
    usual = {"modelopt": ("quant_algo", "config_groups"), "compressed-tensors": ("config_groups",)}
    for key in MIXED_KEYS:
        if quantisation.get(key) and key not in usual.get(str(method), ()):
            raise _refused(path, f"{method} with {key}", f"{method} of one format for all layers")
    return Stored(read(path, quantisation), _kv(path, quantisation), _left(path, quantisation))


def _refused(path: Path, got: str, want: str) -> ValueError:
    return ValueError(
        f"{path}: quantization_config: {got} is not understood. Supported: {want}. Leave it out and write such as "
        "config.json-fp8"
    )


def _fp8(path: Path, quantisation: Quantisation) -> str:
    block = quantisation.get("weight_block_size")
    if block not in (None, BLOCK):
        raise _refused(path, f"weight_block_size={block!r}", f"{BLOCK} or none")
    return "fp8" if block is None else "fp8-block"


def _int4(path: Path, quantisation: Quantisation) -> str:
    bits = quantisation.get("bits", quantisation.get("w_bit"))
    if bits != INT4_BITS:
        raise _refused(path, f"{quantisation['quant_method']} with bits={bits!r}", f"bits={INT4_BITS}")
    if quantisation.get("lm_head"):
        raise _refused(path, f"lm_head={quantisation['lm_head']!r}", "an LM head in 16 bits")
    return "int4"


def _modelopt(path: Path, quantisation: Quantisation) -> str:
    algorithm = str(quantisation.get("quant_algo")).upper()
    if algorithm not in MODELOPT:
        raise _refused(path, f"quant_algo={quantisation.get('quant_algo')!r}", ", ".join(MODELOPT))
    if quantisation.get("config_groups") and _compressed(path, quantisation) != MODELOPT[algorithm]:
        raise _refused(path, f"quant_algo={algorithm} with config_groups of another format", "one format")
    return MODELOPT[algorithm]


def _compressed(path: Path, quantisation: Quantisation) -> str:
    groups = quantisation.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise _refused(path, f"config_groups={groups!r}", "one group or several of one format")
    formats = {_group(path, name, group) for name, group in groups.items()}
    if len(formats) > 1:
        raise _refused(path, f"config_groups of {' and '.join(sorted(formats))}", "groups of one format")
    return formats.pop()


def _group(path: Path, name: str, group: Json) -> str:
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(group, dict) or not isinstance(weights, dict):
        raise _refused(path, f"{name} without weights", "groups with weights")
    if group.get("targets") not in (None, ["Linear"]):
        raise _refused(path, f"{name} with targets for some layers", "targets=['Linear']")
    activations = group.get("input_activations")
    met = activations.get("num_bits") if isinstance(activations, dict) else None
    spelt = (weights.get("type"), weights.get("num_bits"), met)
    stored = COMPRESSED.get(spelt)  # type: ignore[arg-type]
    if stored is None or weights.get("group_size") != GROUPS.get(stored, weights.get("group_size")):
        got = f"{name} of {spelt[0]}{spelt[1]} weights in groups of {weights.get('group_size')}, activations of {met}"
        raise _refused(
            path,
            got,
            "int4 or float4 in groups of 32 for 16-bit activations, float8 for 8, float4 in groups of 16 for 4",
        )
    if weights.get("strategy") == "block":
        if stored != "fp8" or weights.get("block_structure") not in (BLOCK, "x".join(map(str, BLOCK))):
            raise _refused(path, f"block_structure={weights.get('block_structure')!r}", f"float8 in blocks of {BLOCK}")
        return "fp8-block"
    return stored


def _kv(path: Path, quantisation: Quantisation) -> str | None:
    scheme = quantisation.get("kv_cache_scheme") or quantisation.get("kv_cache_quant_algo")
    if scheme is None:
        return None
    if isinstance(scheme, dict):
        is_fp8 = (scheme.get("type"), scheme.get("num_bits")) == ("float", 8)
    else:
        is_fp8 = str(scheme).upper() == "FP8"
    if not is_fp8:
        raise _refused(path, f"a KV cache in {scheme!r}", "FP8 or none")
    return "fp8"


def _left(path: Path, quantisation: Quantisation) -> tuple[str, ...]:
    names: list[str] = []
    for key in LEFT_KEYS:
        value = quantisation.get(key)
        if not isinstance(value, list | None):
            raise _refused(path, f"{key}={value!r}", "a list of modules")
        names += [str(name).replace("\\", "") for name in value or ()]
    return tuple(part for part, pattern in PARTS.items() if any(pattern.search(name) for name in names))


READERS = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "mxfp4": lambda path, quantisation: "mxfp4",
    "awq": _int4,
    "gptq": _int4,
    "modelopt": _modelopt,
    "compressed-tensors": _compressed,
}
"""Reader of each `quant_method`."""
