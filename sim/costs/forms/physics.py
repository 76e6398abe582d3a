"""Physical bounds of a profile: no pass is faster than its bytes and FLOPs over the roofs of its GPU's data sheet.

Passes whose weights and KV fit the last-level cache and CPUs are exempt. Not here: what passes take (the forms beside
this), the roofs themselves (sim.costs.datasheets).
"""

from __future__ import annotations

from sim.costs.compact_kernels import LinearKernels
from sim.costs.datasheets import DATASHEETS, gpu_name
from sim.costs.forms.build import build_costs
from sim.costs.layer_kinds import FULL
from sim.costs.passes import pass_use
from sim.costs.profile import Gpu, Profile
from sim.costs.shapes import WEIGHT_BITS, ModelShape
from sim.interface.work import Chunk, Model

ANY_FLOPS, ANY_BYTES_PER_S = 2e16, 4e13
"""Dense bf16 FLOP/s and bytes/s that no chip has: several times those of the fastest that are announced."""
CACHE_BYTES = 256e6
"""Size of the largest last-level cache (MI300X); passes in a loop find so much of what they read there."""
SHARE_OF_LEAST = 0.9
"""Share of the least time that a measured pass may take: clocks, rounding, experts that a loop activates again."""
DECODES = ((1, 1, 1024), (8, 1, 1024), (64, 1, 1024), (32, 5, 1024))
"""Rows, queries of each, and context of each."""
PREFILLS = (128, 2048, 8192)
CPU = "cpu"


def check_physics(profile: Profile) -> None:
    """Raise ValueError naming the pass, its time and the least possible one."""
    if profile.gpu.name == CPU:
        return
    sheet = DATASHEETS.get(gpu_name(profile.gpu.name))
    costs = build_costs(profile)
    passes: list[tuple[int, int, int, tuple[Chunk, ...]]] = [(*rows, ()) for rows in DECODES]
    if isinstance(profile.kernels, LinearKernels):
        passes = passes[:1]  # Few times of whole passes were published; the rest is a line through them.
    else:
        passes += [(0, 0, 0, (Chunk(tokens, 0),)) for tokens in PREFILLS]
    for model, shape in zip(Model, profile.models, strict=False):
        for rows, queries, context, chunks in passes:
            taken_s = costs.passes(model).pass_s(rows, rows * queries, rows * context, chunks, max(1, rows))
            least_s = _least_s(profile, shape, sheet.gpu if sheet else None, rows, queries, context, chunks)
            if taken_s < SHARE_OF_LEAST * least_s:
                what = f"{rows} rows of {queries} with {context} of context" if rows else f"a prompt of {chunks[0][0]}"
                roofs = f"the data sheet of {profile.gpu.name}" if sheet else "any GPU"
                raise ValueError(
                    f"a pass of {shape.name} over {what} takes {1e3 * taken_s:.3g} ms, and by the roofs of {roofs} "
                    f"it takes {1e3 * least_s:.3g} ms at least"
                )


def _least_s(
    profile: Profile,
    shape: ModelShape,
    gpu: Gpu | None,
    rows: int,
    queries: int,
    context: int,
    chunks: tuple[Chunk, ...],
) -> float:
    """Weights and KV read once, beyond the cache, or FLOPs in the narrowest format; an embedding row per token."""
    devices = profile.tensor_parallel * profile.data_parallel
    tokens = rows * queries + sum(chunk.new_tokens for chunk in chunks)
    head_bytes = shape.dtype_bytes * (shape.vocab * shape.hidden + shape.fusion_weights)
    num_bytes = (shape.read_bytes(tokens) + head_bytes) / devices
    is_whole = [kind.name for kind in shape.kinds()] == [FULL]
    """Every layer attends to all of the context."""
    use = pass_use(shape, 1, rows, rows * queries, rows * context if is_whole else 0, chunks if is_whole else (), 1)
    flops = use.flops if is_whole else 2.0 * tokens * shape.layers * shape.active_layer_weights
    if is_whole:
        kv_tokens = rows * (context + queries)
        num_bytes += shape.kv_bytes_per_token * kv_tokens / profile.tensor_parallel
    formats = shape.formats
    bits = [WEIGHT_BITS[each] for each in (formats.projections, formats.mlp, formats.experts)] if formats else [16.0]
    peak_flops = (gpu.peak_flops if gpu else ANY_FLOPS) * 16.0 / min(16.0, *bits)
    bytes_per_s = gpu.bandwidth_bytes_per_s if gpu else ANY_BYTES_PER_S
    return max((num_bytes - CACHE_BYTES) / bytes_per_s, flops / devices / peak_flops)
