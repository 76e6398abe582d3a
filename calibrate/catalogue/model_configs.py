"""Models by what a user names them: a name of a table, a repository on Hugging Face, a config.json, a directory of
weights.

A config.json is read by what its keys mean, for the architectures named here; a key that changes the layers in a way
that ModelShape cannot say is refused by its name, never passed over. Keys of vision towers and of training are.
Not here: the table (sim.costs.shapes), building and loading models (realrun.model.weights).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from calibrate.catalogue.checkpoint_formats import quantisation_of, stored_formats
from calibrate.catalogue.published_models import (
    LINES,
    TABLE,
    downloaded,
    published,
    unknown_model,
    without_format,
)
from sim.costs.layer_kinds import CHOSEN_GROUP, WHOLE_GROUP, Compressed, Experts, Indexer, Latent, Linear
from sim.costs.shapes import KV_BITS, MODELS, WEIGHT_BITS, Formats, ModelShape
from sim.drafters.registry import HEADS
from sim.files.json_values import Json, read_json
from sim.model_names import model_key
from sim.names import unknown

FAMILIES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""`model_type` of a config.json -> family of the real passes."""
LINEAR = "linear_attention"
"""A kind in `layer_types`, understood beside the sizes of its heads."""
INDEXED = "deepseek_sparse_attention"
"""Likewise, beside the sizes of an indexer."""
DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
SERVED_BYTES = {"float32": 2, "bfloat16": 2, "float16": 2}
"""Bytes of a number as it is served, by the config's dtype: `--dtype auto` of vLLM and SGLang serves float32 in 16."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
Part = TypeVar("Part", Latent, Indexer, Linear, Compressed)
EVERY_OTHER, EVERY_SIXTH_FULL, CHUNKED = "gemma2", "gemma3_text", "llama4_text"
GATED_QUERIES = "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"
"""Have gates beside their queries without saying so (attn_output_gate)."""
FULL_INTERVAL = 4
"""One layer of so many is not linear, where neither layer_types nor full_attention_interval says which."""


Config = dict[str, Json]
"""Keys of a config.json and their values."""


class ConfigKeys(msgspec.Struct, frozen=True):
    """What the keys of config.json mean, by architecture (`model_type`)."""

    gated: tuple[str, ...]
    """Architectures with a gated MLP."""
    ungated: tuple[str, ...]
    """Architectures whose MLP is up and down alone."""
    experts_are_the_mlp: tuple[str, ...]
    """`intermediate_size` there is an expert's."""
    tied_by_default: tuple[str, ...]
    without_mtp: tuple[str, ...]
    """Architectures without a layer for MTP. Source: vLLM 0.33, config/speculative.py:38 and 733-1159."""
    not_understood: dict[str, str]
    """Keys that change what a layer is, where they are set, and how."""
    unpriced: dict[str, str]
    """Keys that the times leave out in part, and what they have instead."""
    aliases: dict[str, str]
    """A model's name of a key -> the usual one."""
    needed: dict[str, tuple[str, ...]]
    """Field of ModelShape -> the keys that say it; the first is the usual one."""
    parts: dict[str, dict[str, str]]
    """Part of a layer -> its keys and the fields that they say, if any; the first key says that there is one."""


KEYS = msgspec.json.decode(Path(__file__).with_name("config_keys.json").read_bytes(), type=ConfigKeys)


class ModelSource(NamedTuple):
    shape: ModelShape
    family: str | None = None
    """None: it follows from the name."""
    weights: Path | None = None
    """Folder of real weights; None: there are none."""
    repository: str | None = None
    """Name on Hugging Face, which `vllm serve` loads; None where a file was named, or a format of no repository."""
    assumed: str | None = None
    """An assumption that the config alone does not state, for a note."""


def source_of(name: str, *, plain: bool = True) -> ModelSource:
    """Raises ValueError for unknown names and folders; if `plain`, for models that only kernel tables price."""
    path = Path(name)
    if path.is_dir():
        has_weights = any(path.glob("*.safetensors")) or any(path.glob("*.bin"))
        source = _from_config(path / "config.json", path if has_weights else None)
    elif path.suffix == ".json":
        source = _from_config(path, None)
    else:
        source = _by_name(name)
    if plain and not source.shape.is_plain:
        raise ValueError(
            f"{name}: {_special(source.shape)} has no cost form here, only in "
            "`lanesim calibrate import aiconfigurator`. Give a dense decoder in one number format"
        )
    return source


def _by_name(name: str) -> ModelSource:
    """Layers of that very format, else the same ones in the format of the name's ending, else Hugging Face's."""
    plain, weights = without_format(name)
    source = None if weights == "bf16" else _known(name)
    if source is None and weights is not None and (source := _known(plain)) is not None:
        source = source._replace(shape=with_formats(source.shape, weights, None), repository=None)
    if source is None and (source := _of_hub(name) if "/" in name else None) is None:
        raise ValueError(unknown_model(name, list(MODELS)))
    return source._replace(repository=name) if "/" in name else source


def _known(name: str) -> ModelSource | None:
    repository = published(name)
    if name in MODELS:
        return ModelSource(MODELS[name], repository=repository)
    if repository is not None:
        source = _of_config(Path(repository), TABLE[LINES[repository]].config)
        return _called(source, repository)._replace(repository=repository)
    return ModelSource(MODELS[key]) if (key := model_key(name)) in MODELS else None


def _of_hub(name: str) -> ModelSource | None:
    path = downloaded(name)
    if path is None:
        return None
    source = _called(_from_config(path, None), name)
    notes = [f"{name}: dimensions by its config.json from Hugging Face ({path})", source.assumed]
    return source._replace(assumed="; ".join(note for note in notes if note))


def _called(source: ModelSource, repository: str) -> ModelSource:
    """`source` by a model's name, such as qwen3-32b of Qwen/Qwen3-32B-FP8."""
    name = model_key(without_format(repository)[0])
    return source._replace(shape=msgspec.structs.replace(source.shape, name=name))


def _special(shape: ModelShape) -> str:
    if shape.experts is not None:
        return "a mixture-of-experts model"
    if shape.latent is not None:
        return "latent attention"
    if shape.linear is not None:
        return "linear attention"
    return "sliding-window attention" if shape.window_layers else "a quantised model"


def shapes_of(target: str, draft: str | None, *, plain: bool = True) -> tuple[ModelShape, ModelShape | None]:
    """Dimensions of a target and its draft; `eagle3`, `mtp` and `dspark` are heads of the target."""
    shape = source_of(target, plain=plain).shape
    if draft is None:
        return shape, None
    return shape, HEADS[draft](shape) if draft in HEADS else source_of(draft, plain=plain).shape


def with_dtype(shape: ModelShape, dtype: str) -> ModelShape:
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"dtype={dtype!r} must be one of {', '.join(DTYPE_BYTES)}")
    return msgspec.structs.replace(shape, dtype_bytes=DTYPE_BYTES[dtype])


def with_formats(shape: ModelShape, weights: str | None, kv: str | None) -> ModelShape:
    """`shape` with its weights in `weights` and its KV in `kv`; None leaves what the model's files say. As checkpoints
    are published: fp8 is for all layers; of 4 bits, a model with experts has its experts (and with nvfp4 its MLPs) so,
    and attention stays. Raises ValueError for an unknown format."""
    of_files = shape.formats or Formats()
    if weights is not None:
        if weights not in WEIGHT_BITS:
            raise ValueError(unknown("weight format", weights, WEIGHT_BITS))
        is_narrow_sparse = shape.experts is not None and WEIGHT_BITS[weights] < 8.0
        of_files = Formats(
            projections="bf16" if is_narrow_sparse else weights,
            mlp="bf16" if is_narrow_sparse and weights != "nvfp4" else weights,
            experts=weights if shape.experts is not None else "bf16",
            kv=of_files.kv,
        )
    if kv is not None:
        if kv not in KV_BITS:
            raise ValueError(unknown("KV format", kv, KV_BITS))
        of_files = msgspec.structs.replace(of_files, kv=kv)
    return msgspec.structs.replace(shape, formats=None if of_files == Formats() else of_files)


def format_names(shape: ModelShape) -> str:
    """The formats as a name's ending: empty where all is bf16, else such as `-fp8` or `-fp8-kv8`."""
    formats = shape.formats
    if formats is None:
        return ""
    weights = formats.experts if shape.experts is not None else formats.mlp
    return ("" if weights == "bf16" else f"-{weights}") + ("-kv8" if formats.kv == "fp8" else "")


def _from_config(path: Path, weights: Path | None) -> ModelSource:
    return _of_config(path, _read(path))._replace(weights=weights)


def _of_config(path: Path, config: Config) -> ModelSource:
    """The model that keys of a config say; `path` is where they stand."""
    outer = config
    text = config.get("text_config")
    if text is not None and not isinstance(text, dict):
        raise ValueError(f"{path}: text_config={_short(text)} must be an object")
    if text is not None:
        config = {**{key: config[key] for key in ("tie_word_embeddings",) if key in config}, **text}
    config = config | {usual: config[key] for key, usual in KEYS.aliases.items() if config.get(key) is not None}
    kind = str(config.get("model_type"))
    if kind == CHUNKED:
        config = _llama4(path, config)
    for key, what in KEYS.not_understood.items():
        if config.get(key):
            raise ValueError(f"{path}: {key}={_short(config[key])}: no cost form here for {what}")
    if kind not in (*KEYS.gated, *KEYS.ungated):
        raise ValueError(
            f"{path}: model_type={config.get('model_type')!r}: no cost form here for layers of this architecture"
        )
    dimensions: dict[str, Any] = {field: _whole(path, config, keys) for field, keys in KEYS.needed.items()}
    kv_heads = 1 if _flag(path, config, "multi_query") else _given(path, config, "num_key_value_heads")
    head_dim = _given(path, config, "head_dim") or dimensions["hidden"] // dimensions["heads"]
    if head_dim < 1:
        raise ValueError(f"{path}: hidden_size={dimensions['hidden']} is less than one for each head")
    dtype = next(
        (each[key] for each in (config, outer) for key in ("dtype", "torch_dtype") if each.get(key)), "bfloat16"
    )
    if dtype not in tuple(SERVED_BYTES):  # A list has no hash.
        raise ValueError(f"{path}: dtype={_short(dtype)} is not understood. Give one of {', '.join(SERVED_BYTES)}")
    name = (path.parent.name if path.name == "config.json" else path.stem).lower()
    layers = dimensions["layers"]
    window, window_layers = (0, 0) if config.get("compress_ratios") else _window(path, config, kind, layers)
    try:
        shape = ModelShape(
            name=name or "model",
            kv_heads=kv_heads or dimensions["heads"],
            head_dim=head_dim,
            tied_embeddings=_flag(path, config, "tie_word_embeddings", kind in KEYS.tied_by_default),
            dtype_bytes=SERVED_BYTES[str(dtype)],
            is_gated=kind in KEYS.gated,
            experts=_experts(path, config, kind, dimensions["intermediate"]),
            latent=_part(path, config, Latent, query_rank=_count(path, config, "q_lora_rank")),
            indexer=_indexer(path, config, layers),
            linear=_kimi_linear(path, config)
            or _part(path, config, Linear, layers=_linear_layers(path, config, layers)),
            compressed=_compressed(path, config, layers),
            hyper_streams=_count(path, config, "hc_mult"),
            mtp_layers=_mtp_layers(path, config, kind),
            has_query_gate=_flag(path, config, "attn_output_gate", kind in GATED_QUERIES),
            has_wide_qk_norm=config.get("qk_norm_type") == "per_layer",
            window=window,
            window_layers=window_layers,
            **dimensions,
        )
    except ValueError as error:
        raise ValueError(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from error
    stated = quantisation_of(path, config, outer)
    if stated is not None:
        shape = _quantised(*stated, shape)
    if shape.compressed is not None:
        narrow = {"experts": "mxfp4"} if config.get("expert_dtype") == "fp4" else {}
        shape = msgspec.structs.replace(
            shape, formats=msgspec.structs.replace(shape.formats or Formats(), kv="fp8", **narrow)
        )
    assumed = [f"{dtype} weights are served in 16 bits (--dtype auto)"] if DTYPE_BYTES[str(dtype)] > 2 else []
    if config.get("index_share_for_mtp_iteration"):
        assumed.append(
            "where MTP drafts, its layer chooses tokens in every pass, though index_share_for_mtp_iteration is set"
        )
    assumed += [why for key, why in KEYS.unpriced.items() if config.get(key)]
    return ModelSource(shape, FAMILIES.get(kind), assumed="; ".join(assumed) or None)


def _llama4(path: Path, config: Config) -> Config:
    """`config` in the usual keys. One expert takes every token, and layers without experts are wider. Every fourth
    layer has attention over all (transformers, Llama4TextConfig). The chunks of the others are windows of that size,
    which read as much up to the end of the first chunk and more after it."""
    layers = _whole(path, config, ("num_hidden_layers",))
    sparse = layers // (_count(path, config, "interleave_moe_layer_step") or 1)
    return config | {
        "moe_intermediate_size": config.get("intermediate_size"),
        "intermediate_size": config.get("intermediate_size_mlp"),
        "n_shared_experts": 1,
        "first_k_dense_replace": layers - sparse,
        "sliding_window": config.get("attention_chunk_size"),
        "attention_chunk_size": None,
        "chunks_as_windows": True,
        "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * (layers // 4),
    }


MTP_LAYERS = "num_nextn_predict_layers"


def _mtp_layers(path: Path, config: Config, kind: str) -> int | None:
    """Layers to draft with; None where neither the config nor its architecture says."""
    has_none = config.get(MTP_LAYERS, 0 if kind in KEYS.without_mtp else None) == 0
    return 0 if has_none else _count(path, config, MTP_LAYERS) or None


def _experts(path: Path, config: Config, kind: str, intermediate: int) -> Experts | None:
    keys = [key for key in EXPERTS if config.get(key)]
    if not keys:
        return None
    per_token = config.get("num_experts_per_tok") or config.get("experts_per_token")
    if not isinstance(per_token, int):
        raise ValueError(f"{path}: mixture-of-experts ({keys[0]}) without num_experts_per_tok")
    expert_width = config.get("moe_intermediate_size")
    if expert_width is None and kind not in KEYS.experts_are_the_mlp:
        raise ValueError(f"{path}: mixture-of-experts ({keys[0]}) without moe_intermediate_size")
    dense = _count(path, config, "first_k_dense_replace")
    in_turn = config.get("moe_layer_freq", 1)
    if isinstance(in_turn, list) and in_turn == [0] * dense + [1] * (len(in_turn) - dense):
        in_turn = 1
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1 or in_turn != 1:
        raise ValueError(f"{path}: layers with and without experts in turn (mlp_only_layers, decoder_sparse_step, ...)")
    wide = intermediate if expert_width is None else _whole(path, config, ("moe_intermediate_size",))
    shared = _count(path, config, "shared_expert_intermediate_size", "shared_intermediate_size")
    return Experts(
        num=_whole(path, config, (keys[0],)),
        per_token=per_token,
        intermediate=wide,
        shared_intermediate=shared or _count(path, config, "n_shared_experts") * wide,
        dense_layers=dense,
        hidden=_count(path, config, "routed_expert_hidden_size"),
    )


def _part(path: Path, config: Config, kind: type[Part], **more: int) -> Part | None:
    """The part that keys of PARTS describe, with `more` of its fields; None where the first of its keys is not set."""
    keys = KEYS.parts[kind.__name__]
    if not config.get(next(iter(keys))):
        return None
    return kind(**{field: _whole(path, config, (key,)) for key, field in keys.items() if field}, **more)


def _indexer(path: Path, config: Config, layers: int) -> Indexer | None:
    """The indexer of latent or compressed attention, or one of blocks (`sparse_attention_config`)."""
    blocks = config.get("sparse_attention_config")
    if isinstance(blocks, dict) and blocks.get("use_sparse_attention"):
        sparse = _kinds(path, blocks, "sparse_attention_freq", layers, {0, 1})
        return Indexer(
            heads=_whole(path, blocks, ("sparse_num_index_heads",)),
            dim=_whole(path, blocks, ("sparse_index_dim",)),
            tokens=_whole(path, blocks, ("sparse_topk_blocks",)) * _whole(path, blocks, ("sparse_block_size",)),
            full_layers=sparse.count(0),
        )
    indexer = _part(path, config, Indexer, shared_layers=_shared_layers(path, config, layers))
    if indexer is not None and not (config.get("kv_lora_rank") or config.get("compress_ratios")):
        raise ValueError(
            "index_topk needs latent attention (kv_lora_rank) or compressed KV (compress_ratios). It has neither"
        )
    return indexer


def _compressed(path: Path, config: Config, layers: int) -> Compressed | None:
    """Compressed KV; ratios beyond the layers are of those that predict further tokens."""
    if not config.get("compress_ratios"):
        return None
    ratios = _kinds(path, config, "compress_ratios", layers, {0, CHOSEN_GROUP, WHOLE_GROUP})
    chosen = {"chosen_layers": ratios.count(CHOSEN_GROUP), "window_layers": ratios.count(0)}
    return _part(path, config, Compressed, **chosen)


def _kinds(path: Path, config: Config, key: str, layers: int, known: set[int]) -> list[Json]:
    kinds = config.get(key)
    if not isinstance(kinds, list) or len(kinds) < layers or not {*kinds} <= known:
        raise ValueError(f"{path}: {key}={_short(kinds)} must say of each of {layers} layers which it is of {known}")
    return kinds[:layers]


def _kimi_linear(path: Path, config: Config) -> Linear | None:
    """Kimi Delta Attention of `kda_layers`; its keys and values have as many heads of one size."""
    given = config.get("linear_attn_config")
    if not given:
        return None
    if not isinstance(given, dict) or not isinstance(given.get("kda_layers"), list):
        raise ValueError(f"{path}: linear_attn_config={_short(given)} must be an object with kda_layers")
    if not given.get("use_full_rank_gate"):
        raise ValueError(
            f"{path}: linear_attn_config without use_full_rank_gate: a gate of low rank has no cost form here"
        )
    heads, dim = _whole(path, given, ("num_heads",)), _whole(path, given, ("head_dim",))
    return Linear(
        layers=len(given["kda_layers"]),
        key_heads=heads,
        key_dim=dim,
        value_heads=heads,
        value_dim=dim,
        conv_width=_whole(path, given, ("short_conv_kernel_size",)),
        decay_rank=dim,
    )


def _shared_layers(path: Path, config: Config, layers: int) -> int:
    """Layers that read the tokens which the indexer of a layer before them chose."""
    kinds = config.get("indexer_types")
    if kinds is None and config.get("index_topk_freq", 1) == 1:
        return 0
    if not isinstance(kinds, list) or len(kinds) != layers or kinds[0] != "full" or not {*kinds} <= {"full", "shared"}:
        raise ValueError(
            f"{path}: indexer_types={_short(kinds)} must say of each of {layers} layers, the first one full, whether "
            f"its indexer is full or shared (index_topk_freq={config.get('index_topk_freq')})"
        )
    return kinds.count("shared")


def _linear_layers(path: Path, config: Config, layers: int) -> int:
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        return sum(each == LINEAR for each in kinds)
    return layers - layers // (_count(path, config, "full_attention_interval") or FULL_INTERVAL)


def _window(path: Path, config: Config, kind: str, layers: int) -> tuple[int, int]:
    """Tokens of the sliding window and how many layers have it; (0, 0) where none has."""
    window = _count(path, config, "sliding_window")
    kinds = config.get("layer_types")
    if not isinstance(kinds, list | None):
        raise ValueError(f"{path}: layer_types={_short(kinds)} must be a list")
    if isinstance(kinds, list):
        if len(kinds) != layers:
            raise ValueError(f"{path}: layer_types names {len(kinds)} layers, num_hidden_layers={layers}")
        known = {"sliding_attention", "full_attention", "attention"}
        if config.get("linear_num_key_heads"):
            known.add(LINEAR)
        if config.get("index_topk"):
            known.add(INDEXED)
        strange = sorted({str(each) for each in kinds} - known)
        if strange:
            raise ValueError(f"{path}: layer_types has {', '.join(strange)}, which has no cost form here")
        num = sum(each == "sliding_attention" for each in kinds)
        if num and not window:
            raise ValueError(f"{path}: layer_types has sliding_attention, and there is no sliding_window")
        return (window, num) if num else (0, 0)
    if not window or not _flag(path, config, "use_sliding_window", True):
        return 0, 0
    if kind == EVERY_OTHER:
        return window, layers // 2
    if kind == EVERY_SIXTH_FULL:
        return window, layers - layers // (_count(path, config, "sliding_window_pattern") or 6)
    first = _count(path, config, "max_window_layers") if config.get("use_sliding_window") else 0
    return (window, layers - first) if first < layers else (0, 0)


def _quantised(path: Path, quantisation: Config, shape: ModelShape) -> ModelShape:
    """`shape` in the formats of its checkpoint. Raises ValueError for those that are not known."""
    stored = stored_formats(path, quantisation)
    quantised = with_formats(shape, stored.weights, stored.kv)
    if "shared" in stored.left and quantised.formats is not None:
        formats = msgspec.structs.replace(quantised.formats, mlp="bf16")
        quantised = msgspec.structs.replace(quantised, formats=formats)
    wide = [part for part in stored.left if getattr(quantised.formats, part, "bf16") != "bf16"]
    if wide:
        raise ValueError(
            f"{path}: quantization_config leaves matrices of {' and '.join(wide)} in 16 bits, which {stored.weights} "
            "here has narrow. Leave it out and write such as config.json-fp8"
        )
    return quantised


def _count(path: Path, config: Config, *keys: str) -> int:
    """The first of `keys` that is there, 0 where none is."""
    return _whole(path, config, keys) if any(config.get(key) for key in keys) else 0


def _given(path: Path, config: Config, key: str) -> int | None:
    """None where `key` is absent or null, which has a default; 0 is no number of heads."""
    return None if config.get(key) is None else _whole(path, config, (key,))


def _flag(path: Path, config: Config, key: str, default: bool = False) -> bool:
    value = config.get(key, default)
    if not isinstance(value, bool | None):
        raise ValueError(f"{path}: {key}={_short(value)} must be true or false")
    return bool(value)


def _short(value: Json) -> str:
    text = str(value)
    return text if len(text) < 40 else text[:37] + "..."


def _read(path: Path) -> Config:
    config = read_json(path, "model config")
    if not isinstance(config, dict):
        raise ValueError(f"{path}: must hold a JSON object, got {type(config).__name__}")
    return config


def _whole(path: Path, config: Config, keys: tuple[str, ...]) -> int:
    key = next((key for key in keys if config.get(key) is not None), keys[0])
    value = config.get(key)
    if key == "intermediate_size" and value is None and config.get("hidden_size"):
        value = config.get("moe_intermediate_size")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{path}: {key}={value!r} must be a whole number of at least 1")
    return value
