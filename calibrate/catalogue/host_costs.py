"""Host costs of imported profiles, and all-reduces by GPU and version, which no kernel table has.

What an engine adds to the GPU's time is data of its own (sim/engines): a profile has it only where it was fitted
together with the kernels. Fitted here from published measurements, never per run; the tables themselves are no part of
the project. Not here: kernels (calibrate.importers), what the constants mean (sim.costs.profile,
sim.costs.compact_kernels).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from sim.costs.compact_kernels import AllReduce
from sim.costs.engine_costs import ADDED_BY_AN_ENGINE, EngineCosts, engine_names, host_with, load_engine
from sim.costs.profile import HostCosts

ASSUMED_HOST = HostCosts(
    eager_kernel_s=5e-6,
    graph_launch_s=3e-5,
    kernels_per_layer=10,
    result_s=3e-5,
    step_s=0.0,
    row_s=0.0,
    inflation_eager=(1.0, 1.9, 2.8),
    inflation_graphed=(1.0, 1.1, 1.2),
    source="assumed, not measured, round values: 5 us to launch a kernel, 30 us to replay a graph, 30 us for a result "
    "to reach the host; issuing threads are assumed to share one interpreter almost entirely when eager and hardly "
    f"when graphed; {ADDED_BY_AN_ENGINE}",
)

REDUCE_SOURCE = "ai-dynamo/aiconfigurator (Apache-2.0) custom_allreduce_perf, CUDA graph, 4 KiB..64 MiB"
"""All-reduces under CUDA graphs, which vLLM captures up to 512 tokens. Launched eagerly they take 2 us longer on RTX
PRO 6000, 15 to 40 us elsewhere: that is the launch, which the host costs already count."""
GATHER_SOURCE = "ai-dynamo/aiconfigurator (Apache-2.0) nccl_perf, 4 KiB..64 MiB"
SERVED_REDUCES = (
    "all-reduces in service of four GPUs joined in pairs by six NVLink-4 links each: H100's rate over 1.35, fixed time "
    "fitted on Apertus 8B at 4 in flight (swiss-ai/apertus-speculative-decoding, no licence: constants alone)"
)
UNRECORDED = "of an unrecorded version"


class Engine(NamedTuple):
    """The all-reduces of vLLM of one version on one GPU."""

    gpu: str
    version: str
    """Major and minor; what is known of 0.19.0 holds for 0.19.1."""
    all_reduces: Mapping[int, AllReduce] = MappingProxyType({})
    """Times by degree of tensor parallelism."""
    source: str = REDUCE_SOURCE
    """Source of `all_reduces`."""
    gathers: Mapping[int, AllReduce] = MappingProxyType({})
    """An all-gather of all ranks' tokens and the reduce-scatter back, by how many ranks (GATHER_SOURCE)."""


def _reduces(**by_degree: tuple[float, float]) -> Mapping[int, AllReduce]:
    """`tp2=(fixed_s, bytes_per_s)`, `dp2` likewise."""
    return {int(name[2:]): AllReduce(fixed_s=fixed, bytes_per_s=rate) for name, (fixed, rate) in by_degree.items()}


ENGINES = (
    Engine("a100-sxm", "0.14", _reduces(tp2=(5.049e-6, 1.739e11), tp4=(5.842e-6, 1.019e11), tp8=(7.764e-6, 9.33e10))),
    Engine("h100-sxm", "0.24", _reduces(tp2=(4.239e-6, 2.225e11), tp4=(4.825e-6, 1.723e11), tp8=(6.02e-6, 1.885e11))),
    Engine("gh200", "0.23", _reduces(tp4=(1.27e-5, 1.276e11)), SERVED_REDUCES),
    Engine("l40s", "0.14", _reduces(tp2=(5.356e-6, 1.896e10), tp4=(1.123e-5, 2.529e9), tp8=(1.996e-5, 1.124e9))),
    Engine(
        "rtx-pro-6000-server", "0.19", _reduces(tp2=(1.902e-5, 1.52e10)), gathers=_reduces(dp2=(1.249e-5, 2.926e10))
    ),
)
"""Mean errors of the all-reduces over their tables: A100 8 %, 11 %, 20 % with 2, 4, 8 GPUs, H100 4 %, 7 %, 12 %, L40S
3 %, 3 %, 13 %, RTX PRO 6000 2 %, its gathers 10 %. GH200, four joined in pairs: H100's rate over what an all-reduce
takes longer in service (1.35, fitted on other cells), and a fixed time fitted on one served level (docs/adr/018)."""


def engine_of(gpu: str, version: str | None) -> Engine:
    """What is known of vLLM `version` on `gpu`; None stands for the newest version that is known there. Of a version or
    GPU that is not known, nothing is measured."""
    known = [engine for engine in ENGINES if engine.gpu == gpu]
    if version is None and known:
        return max(known, key=lambda engine: _parts(engine.version))
    wanted = _parts(version or "")[:2]
    return next((engine for engine in known if _parts(engine.version) == wanted), Engine(gpu, version or UNRECORDED))


def vllm_of(gpu: str, version: str | None) -> EngineCosts | None:
    """What vLLM of `version` adds on `gpu`; None where sim/engines has no such version, or none is given."""
    name = "vllm-" + ".".join(map(str, _parts(version or "")[:2]))
    return load_engine(name, gpu) if name in engine_names() else None


def host_costs(engine: EngineCosts | None) -> HostCosts:
    """Assumed host costs; with the constants of `engine` where the kernels were measured inside it."""
    return ASSUMED_HOST if engine is None else host_with(ASSUMED_HOST, engine)


def all_reduce_of(engine: Engine, tensor_parallel: int) -> AllReduce | None:
    """None for a single GPU. Raises ValueError where none is known."""
    if tensor_parallel == 1:
        return None
    reduce = engine.all_reduces.get(tensor_parallel)
    if reduce is None:
        known = [
            f"{other.gpu} with vLLM {other.version}: --tp {', '.join(map(str, other.all_reduces))}"
            for other in sorted(ENGINES, key=lambda other: other.gpu != engine.gpu)
            if other.all_reduces
        ]
        raise ValueError(
            f"no all-reduce of {tensor_parallel} GPUs is known for {engine.gpu!r} with vLLM {engine.version}; "
            f"known: {'; '.join(known)}"
        )
    return reduce


def gather_of(engine: Engine, ranks: int) -> AllReduce | None:
    """None for a single rank. Raises ValueError where none is known."""
    if ranks == 1:
        return None
    gather = engine.gathers.get(ranks)
    if gather is None:
        known = [f"{other.gpu}: --dp {', '.join(map(str, other.gathers))}" for other in ENGINES if other.gathers]
        raise ValueError(f"no gather of {ranks} ranks is known for {engine.gpu!r}; known: {'; '.join(known)}")
    return gather


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
