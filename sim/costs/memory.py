"""How much KV fits beside the weights. Not here: how much a request takes (sim.engine.kv, sim.engine.paged)."""

from __future__ import annotations

from sim.costs.profile import Profile
from sim.costs.shapes import kv_bytes_per_token


def kv_capacity_tokens(profile: Profile, gpu_memory_utilization: float = 0.9, *, with_draft: bool = True) -> int:
    """Tokens whose KV fits beside the weights in `gpu_memory_utilization` of the group's memory; 0 where none does.

    Activations and the engine's own memory are not subtracted. `with_draft` False leaves the draft model out.
    """
    if not 0.0 < gpu_memory_utilization <= 1.0:
        raise ValueError(f"gpu_memory_utilization={gpu_memory_utilization!r} must be in (0, 1]")
    models = profile.models if with_draft else (profile.target,)
    left = gpu_memory_utilization * profile.gpu.memory_bytes * profile.tensor_parallel
    left -= sum(shape.weight_bytes for shape in models)
    return max(0, int(left / sum(kv_bytes_per_token(shape, profile.tensor_parallel) for shape in models)))
