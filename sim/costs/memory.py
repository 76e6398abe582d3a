"""What fits in a GPU's memory: whose weights are loaded, and how many blocks of KV are left beside them.

Activations and the engine's own memory are not subtracted. Not here: how much a request takes (sim.engine.kv, paged).
"""

from __future__ import annotations

from collections.abc import Sequence

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
) -> int:
    """Tokens whose KV fits beside the weights in `gpu_memory_utilization` of the group's memory; 0 where none does.
    Models `beside` the profile's own have weights there and KV of every token, too."""
    if not 0.0 < gpu_memory_utilization <= 1.0:
        raise ValueError(f"gpu_memory_utilization={gpu_memory_utilization!r} must be in (0, 1]")
    models = (*loaded_models(profile, with_draft=with_draft), *beside)
    left = gpu_memory_utilization * profile.gpu.memory_bytes * profile.tensor_parallel
    left -= sum(rank_weight_bytes(shape, profile.data_parallel) for shape in models)
    return max(0, int(left / sum(kv_bytes_per_token(shape, profile.tensor_parallel) for shape in models)))


def kv_capacity_blocks(
    profile: Profile,
    block_size: int,
    gpu_memory_utilization: float = 0.9,
    *,
    with_draft: bool = True,
    beside: Sequence[ModelShape] = (),
) -> int:
    """Blocks of `block_size` tokens that fit. Raises ValueError where the weights leave no room for one."""
    num_blocks = kv_capacity_tokens(profile, gpu_memory_utilization, with_draft=with_draft, beside=beside) // block_size
    if num_blocks < 1:
        raise ValueError(
            f"profile {profile.name!r}: the weights leave no room for KV within "
            f"gpu_memory_utilization={gpu_memory_utilization} of the GPU's memory"
        )
    return num_blocks
