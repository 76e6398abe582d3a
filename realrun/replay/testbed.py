"""A profile's pair on a device of this machine: exact dimensions, random weights, slots for a scenario's requests.

Not here: what runs on it (realrun.replay.run), what the machine is (realrun.host.machine).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import torch

from realrun.host import cuda
from realrun.kernels.options import PairOptions
from realrun.kernels.pair_kernels import PairKernels
from realrun.model.attention import CONTEXT_STEP, Attention
from realrun.model.memory import GIB
from realrun.model.weights import random_model, tied_pair
from realrun.replay.experiment import most_at_once
from realrun.replay.genuine import Tied
from sim.costs.memory import loaded_models
from sim.costs.profile import Profile
from sim.costs.shapes import ModelShape
from sim.experiment.assemble import Experiment

DTYPES = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}
"""By bytes per weight."""
SPARE_SLOTS = 8
"""For requests that are finished while their draft prefill is still under way."""
MOST_STREAMS = 8
"""Streams that policies replayed together ask for, lanes of one name sharing theirs (realrun.kernels.pair_kernels)."""
CUBLAS_BYTES = 32 << 20
"""Workspace of cuBLAS per handle and stream on Hopper (its documentation); a stream and its capture have one each."""
GRAPH_BYTES = GIB
"""Private pools of captured graphs; assumed, never measured."""
CONTEXT_BUCKETS = 4
"""Contexts that CUDA graphs are captured for, in equal steps from the shortest prompt to the longest request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What the experiments need room for."""

    slots: int
    min_tokens: int
    """The shortest prompt: no row decodes with less context."""
    max_tokens: int
    draft_tokens_max: int


def sizes_for(experiments: Sequence[Experiment], device: torch.device) -> Sizes:
    """Slots for as many requests as can be in flight, or as fit the device's memory beside the weights.

    Raises ValueError where not even one fits.
    """
    drafted = max(experiment.draft_tokens_max for experiment in experiments)
    # Behind the output: what the last round accepts too much, and with async drafting one draft and its bounds more.
    requests = [request for experiment in experiments for request in experiment.requests()]
    longest = max(request.prompt_tokens + request.output_tokens for request in requests) + 3 * (drafted + 1)
    max_tokens = ceil(longest / CONTEXT_STEP) * CONTEXT_STEP
    profile = experiments[0].profile
    models = loaded_models(profile, with_draft=drafted > 0)
    weights = sum(shape.weight_bytes for shape in models)
    per_slot = max_tokens * (sum(shape.kv_bytes_per_token for shape in models) + _workspace_bytes_per_token(models))
    utilisation = experiments[0].scenario.engine.gpu_memory_utilization
    has = cuda.find(device).free_bytes() * utilisation - _reserved_bytes(device)
    fitting = int((has - weights) // per_slot) - SPARE_SLOTS - 1
    if fitting < 1:
        raise ValueError(
            f"{' + '.join(shape.name for shape in models)} need {weights / GIB:.1f} GiB and one request "
            f"{per_slot / GIB:.2f} GiB; {device} has {has / GIB:.1f} GiB within gpu_memory_utilization: "
            "choose a smaller pair or shorter requests"
        )
    slots = min(fitting, max(most_at_once(experiment) for experiment in experiments))
    shortest = min(request.prompt_tokens for request in requests)
    return Sizes(slots=slots, min_tokens=shortest, max_tokens=max_tokens, draft_tokens_max=drafted)


def _workspace_bytes_per_token(models: Sequence[ModelShape]) -> int:
    """Gathered keys and values of one slot's token on every stream; rows padded to a bucket come beside the slots."""
    widest = max(shape.kv_heads * shape.head_dim * shape.dtype_bytes for shape in models)
    return MOST_STREAMS * 2 * 2 * widest


def _reserved_bytes(device: torch.device) -> int:
    """What CUDA's libraries and captured graphs take beside weights, KV and workspaces."""
    return 0 if device.type == "cpu" else 2 * MOST_STREAMS * CUBLAS_BYTES + GRAPH_BYTES


def build_kernels(
    profile: Profile,
    sizes: Sizes,
    device: torch.device,
    *,
    temperature: float,
    cuda_graph: bool,
    seed: int,
    tied: Tied | None = None,
) -> PairKernels:
    """The pair with random weights, or `tied`; without drafts in sight only the target.

    Raises ValueError if it does not fit.
    """
    shapes = loaded_models(profile, with_draft=sizes.draft_tokens_max > 0)
    made = shapes if tied is None else shapes[:1]
    target, *drafts = [random_model(shape, dtype=_dtype(shape), device=device, seed=seed) for shape in made]
    if tied is not None and len(shapes) > 1:
        target, *drafts = tied_pair(target, tied.draft_layers, tied.epsilon)
    is_graphed = cuda_graph and device.type == "cuda"
    options = PairOptions(
        slots=sizes.slots + SPARE_SLOTS,
        max_tokens=sizes.max_tokens,
        attention=Attention.EFFICIENT if device.type == "cuda" else Attention.FLASH_CPU,
        draft_tokens_max=sizes.draft_tokens_max,
        temperature=temperature,
        seed=seed,
        batch_buckets=_doubling(sizes.slots) if is_graphed else (),
        context_buckets=context_buckets(sizes.min_tokens, sizes.max_tokens) if is_graphed else (),
        cuda_graphs=is_graphed,
    )
    return PairKernels(target, drafts[0] if drafts else None, options)


def _dtype(shape: ModelShape) -> torch.dtype:
    if shape.dtype_bytes not in DTYPES:
        raise ValueError(f"{shape.name}: weights of {shape.dtype_bytes} bytes cannot be replayed; want 2, 4 or 8")
    return DTYPES[shape.dtype_bytes]


def _doubling(most: int) -> tuple[int, ...]:
    """1, 2, 4, ... and `most`."""
    return tuple(sorted({*(1 << power for power in range(most.bit_length()) if 1 << power < most), most}))


def context_buckets(shortest: int, longest: int) -> tuple[int, ...]:
    """At most CONTEXT_BUCKETS multiples of CONTEXT_STEP above `shortest` and up to `longest`, itself one of them."""
    share = (longest - shortest) / CONTEXT_BUCKETS
    ends = [shortest + share * part for part in range(1, CONTEXT_BUCKETS)]
    return tuple(sorted({*(min(longest, ceil(end / CONTEXT_STEP) * CONTEXT_STEP) for end in ends), longest}))
