"""A profile's pair on a device of this machine: exact dimensions, random weights, slots for a scenario's requests.

Not here: what runs on it (realrun.replay.replays), what the machine is (realrun.host.machine).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from realrun.host import cuda
from realrun.kernels.host_slots import PairOptions, doubling
from realrun.kernels.pair_kernels import PairKernels
from realrun.model.attention import REMOVED, attention_on, slot_tokens
from realrun.model.memory import GIB, Sizes, ledger
from realrun.model.weights import random_model
from realrun.replay.machine_speed import PROBED_TOKENS
from realrun.replay.replayable import max_at_once
from sim.costs.memory import loaded_models
from sim.costs.profile import Profile
from sim.costs.shapes import ModelShape
from sim.run.experiment import Experiment

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DTYPES = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}
"""The type of weights, by their bytes."""
SPARE_SLOTS = 8
"""Slots for requests that are finished while their draft prefill is still under way."""
MAX_STREAMS = 8
"""Streams that policies replayed together ask for, lanes of one name sharing theirs (realrun.kernels.pair_kernels)."""


def sizes_for(experiments: Sequence[Experiment], device: torch.device) -> Sizes:
    """Slots for the requests in flight, or as many as fit the memory. Raises ValueError where none does."""
    first = experiments[0].resolved
    _check_attention(first.profile, device.type)
    drafted = max(experiment.resolved.lengths.max for experiment in experiments)
    # Behind the output: what the last round accepts too much, and with async drafting one draft and its bounds more.
    requests = [request for experiment in experiments for request in experiment.requests()]
    longest = max(request.prompt_tokens + request.output_tokens for request in requests) + 3 * (drafted + 1)
    models = loaded_models(first.profile, with_draft=drafted > 0)
    is_cuda = device.type == "cuda"
    wanted = Sizes(
        slots=max(max_at_once(experiment) for experiment in experiments) + SPARE_SLOTS,
        max_tokens=slot_tokens(device.type, max(longest, *PROBED_TOKENS)),
        draft_tokens=drafted,
        prompt_tokens=max(
            min(
                experiment.resolved.limits.max_num_batched_tokens,
                sum(request.prompt_tokens for request in experiment.requests()),
            )
            for experiment in experiments
        ),
        streams=MAX_STREAMS,
        has_graphs=is_cuda and first.scenario.engine.cuda_graph is True,
    )
    has = cuda.find(device).free_bytes() * first.scenario.engine.gpu_memory_utilization
    for slots in range(wanted.slots, SPARE_SLOTS, -1):
        sizes = wanted._replace(slots=slots)
        needed = ledger(models, sizes, is_cuda=is_cuda)
        if needed.total <= has:
            return sizes
    raise ValueError(
        f"{' + '.join(shape.name for shape in models)} and one request need {needed}, and {device} has "
        f"{has / GIB:.1f} GiB within gpu_memory_utilization: choose a smaller pair or shorter requests"
    )


def build_kernels(
    profile: Profile, sizes: Sizes, device: torch.device, *, seed: int, loaded: Sequence[PreTrainedModel] = ()
) -> PairKernels:
    """The pair with random weights, or `loaded`; without drafts the target. Raises ValueError if it does not fit."""
    shapes = loaded_models(profile, with_draft=sizes.draft_tokens > 0)
    models = loaded or [random_model(shape, dtype=dtype_of(shape), device=device, seed=seed) for shape in shapes]
    options = PairOptions(
        slots=sizes.slots,
        max_tokens=sizes.max_tokens,
        draft_tokens_max=sizes.draft_tokens,
        seed=seed,
        batch_buckets=doubling(sizes.slots - SPARE_SLOTS) if sizes.has_graphs else (),
        cuda_graphs=sizes.has_graphs,
    )
    return PairKernels(models[0], models[1] if len(models) > 1 else None, options)


def _check_attention(profile: Profile, device: str) -> None:
    """Raise ValueError for a profile measured with an attention that was removed."""
    measured = profile.kernels.attention_implementation
    if measured in REMOVED:
        draft = f" --draft {profile.draft.name}" if profile.draft else ""
        raise ValueError(
            f"profile {profile.name!r} was measured with attention {measured!r}, which was removed: a replay would run "
            f"another program. Use {attention_on(device)!r}: lanesim calibrate measure --device {device} "
            f"--target {profile.target.name}{draft} --out measured.json"
        )


def dtype_of(shape: ModelShape) -> torch.dtype:
    if shape.dtype_bytes not in DTYPES:
        raise ValueError(f"{shape.name}: weights of {shape.dtype_bytes} bytes cannot be replayed. Give 2, 4 or 8")
    return DTYPES[shape.dtype_bytes]
