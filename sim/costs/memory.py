"""Contents of a GPU's memory: whose weights are loaded, and how many blocks of KV are left beside them.

What an engine keeps for activations and CUDA graphs is subtracted where it was measured (EngineCosts.reserved_bytes,
draft_reserved_bytes), else not. Not here: how much a request takes (sim.engine.kv, sim.engine.paged).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from sim.costs.engine_costs import EngineCosts
from sim.costs.layer_kinds import LINEAR, WINDOW
from sim.costs.profile import Profile
from sim.costs.shapes import ModelShape, kv_bytes_per_token, rank_weight_bytes


def loaded_models(profile: Profile, *, with_draft: bool) -> tuple[ModelShape, ...]:
    """Whose weights and KV are in memory: without speculation, and with n-grams, no draft's."""
    return profile.models if with_draft else (profile.target,)


def kv_capacity_tokens(
    profile: Profile,
    gpu_memory_utilization: float = 0.9,
    *,
    with_draft: bool = True,
    beside: Sequence[ModelShape] = (),
    engine: EngineCosts | None = None,
    processes: int = 1,
) -> int:
    """Tokens whose KV fits beside the weights in `gpu_memory_utilization` of the group's memory; 0 where none does.
    Models `beside` the profile's own have weights and KV there, `engine` keeps some for itself, and each of several
    `processes` has the weights, and keeps that, for itself."""
    if not 0.0 < gpu_memory_utilization <= 1.0:
        raise ValueError(f"gpu_memory_utilization={gpu_memory_utilization!r} must be in (0, 1]")
    models = (*loaded_models(profile, with_draft=with_draft), *beside)
    left = gpu_memory_utilization * profile.gpu.memory_bytes * profile.tensor_parallel
    left -= processes * sum(rank_weight_bytes(shape, profile.data_parallel) for shape in models)
    if engine is not None:
        reserved = engine.reserved_bytes + (engine.draft_reserved_bytes if len(models) > 1 else 0)
        left -= processes * reserved * profile.tensor_parallel
    window_share = 0.0 if engine is None else engine.rules.window_share
    return max(0, int(left / pool_bytes_per_token(models, profile.tensor_parallel, window_share)))


def pool_bytes_per_token(models: Sequence[ModelShape], tensor_parallel: int, window_share: float = 0.0) -> int:
    """KV of one token in the pool that `models` share, and `window_share` of it in windows with a pool of their own
    (SGLang's swa_full_tokens_ratio). A block holds the same layers for every request. Where every layer of a draft has
    a window and the target's have none, layers are in groups of as many as that draft has, and the target's last group
    is filled up (vLLM's hybrid KV pool; its measured effect: docs/adr/012-engines-and-caps.md)."""
    total = sum(kv_bytes_per_token(shape, tensor_parallel) for shape in models)
    target, *drafts = models
    group = max((draft.layers for draft in drafts if draft.window_layers == draft.layers), default=1)
    if not target.window_layers:
        total += -target.layers % group * kv_bytes_per_token(target, tensor_parallel) // target.layers
    if window_share and target.window_layers < target.layers:
        windows = [kind for kind in target.kinds(tensor_parallel) if kind.name == WINDOW]
        total += round(window_share * tensor_parallel * sum(kind.layers * kind.token_bytes for kind in windows))
    return total


def state_bytes(models: Sequence[ModelShape], tensor_parallel: int) -> float:
    """Bytes of a sequence's states of linear attention, on all GPUs of a group."""
    kinds = [kind for shape in models for kind in shape.kinds(tensor_parallel) if kind.name == LINEAR]
    return tensor_parallel * sum(kind.layers * kind.sequence_bytes for kind in kinds)


def beside_states(
    num_tokens: int,
    models: Sequence[ModelShape],
    tensor_parallel: int,
    ratio: float,
    slots: int,
    seats: int,
    drafts: int,
) -> tuple[int, int]:
    """Requests, of `seats`, for which a pool of states has room, and tokens of KV that are left of `num_tokens`. The
    pool has `ratio` times the KV's memory. A request takes `slots` states, and one for each token of a verify of
    `drafts` drafted ones. Source: SGLang 0.5.23, mem_cache/kv_cache_configurator.py:3062, 3134 and 3214."""
    state, token_bytes = state_bytes(models, tensor_parallel), pool_bytes_per_token(models, tensor_parallel)
    if not state:
        return seats, num_tokens
    verified, left = drafts + 1 if drafts else 0, float(num_tokens * token_bytes)
    share = left * ratio / (1.0 + ratio)
    num_states = max(0, int((share - state * (1 + verified)) // (state * (1 + verified / slots))))
    seats = min(seats, num_states // slots)
    left -= state * (num_states + 1 + (seats + 1) * verified)
    return seats, int(left / token_bytes)


def kept_blocks(
    models: Sequence[ModelShape],
    tensor_parallel: int,
    block_size: int,
    draft_tokens: int,
    *,
    has_state_pool: bool = False,
) -> int:
    """Blocks that a sequence takes beside those of its tokens: windows and growing groups of compressed KV, and states
    of linear attention without a pool of their own, one for itself and one for each of `draft_tokens`.

    Source: vLLM 0.32, MambaSpec.max_memory_usage_bytes. Windows of grouped attention are left out.
    """
    kept = [
        (kind.layers * kind.sequence_bytes, 1 + draft_tokens if kind.name == LINEAR else 1)
        for shape in models
        for kind in shape.kinds(tensor_parallel)
        if kind.name != WINDOW and not (has_state_pool and kind.name == LINEAR)
    ]
    total = tensor_parallel * sum(num_bytes * count for num_bytes, count in kept)
    return ceil(total / (block_size * pool_bytes_per_token(models, tensor_parallel))) if total else 0
