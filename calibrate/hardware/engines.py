"""Constants of serving engines by GPU and version, which no kernel table has: host costs, all-reduces, device gaps.

Fitted here from published measurements, never per run; the tables themselves are no part of the project.
Not here: kernels (calibrate.importers), what the constants mean (sim.costs.profile, sim.costs.kernels).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from sim.costs.kernels import AllReduce
from sim.costs.profile import HostCosts

STEP_SOURCE = (
    "step_s, the same for every policy's works, is the 1.207 ms step overhead that SpecDecode-Bench (arXiv 2601.11580) "
    "measured in vLLM on H100 (hidden wherever works are submitted ahead); "
)
ASSUMED_HOST = HostCosts(
    eager_kernel_s=5e-6,
    graph_launch_s=3e-5,
    kernels_per_layer=10,
    result_s=3e-5,
    step_s=1.2e-3,
    row_s=3e-6,
    inflation_eager=(1.0, 1.9, 2.8),
    inflation_graphed=(1.0, 1.1, 1.2),
    source="assumed, not measured, round values: 5 us to launch a kernel, 30 us to replay a graph, 30 us for a result "
    f"to reach the host; {STEP_SOURCE}issuing threads are assumed to share one interpreter almost entirely when eager "
    "and hardly when graphed",
)

REDUCE_SOURCE = "ai-dynamo/aiconfigurator (Apache-2.0) custom_allreduce_perf, CUDA graph, 4 KiB..64 MiB"
"""All-reduces under CUDA graphs, which vLLM captures up to 512 tokens. Launched eagerly they take 2 us longer on RTX
PRO 6000, 15 to 40 us elsewhere: that is the launch, which the host costs already count."""


class Engine(NamedTuple):
    """vLLM of one version on one GPU. `gap_s` and `step_s` None were not measured."""

    gpu: str
    version: str
    """Major and minor; what is known of 0.19.0 holds for 0.19.1."""
    gap_s: float | None = None
    gap_source: str = ""
    all_reduces: Mapping[int, AllReduce] = MappingProxyType({})
    """By degree of tensor parallelism."""
    step_s: float | None = None
    step_source: str = ""


def _reduces(**by_degree: tuple[float, float]) -> Mapping[int, AllReduce]:
    """`tp2=(fixed_s, bytes_per_s)`."""
    return {int(name[2:]): AllReduce(fixed_s=fixed, bytes_per_s=rate) for name, (fixed, rate) in by_degree.items()}


HIDDEN = "hidden by asynchronous scheduling, which vLLM 0.19 does by default; what is not hidden is in gap_s"
A100_REDUCES = _reduces(tp2=(5.049e-6, 1.739e11), tp4=(5.842e-6, 1.019e11), tp8=(7.764e-6, 9.33e10))
"""Of the 0.14 table, the newest there is."""

ENGINES = (
    Engine("a100-sxm", "0.14", all_reduces=A100_REDUCES),
    Engine(
        "a100-sxm",
        "0.24",
        all_reduces=A100_REDUCES,
        step_s=0.0,
        step_source="at its bound in a fit on the goodput of three closed loops of Llama-3.1-8B (no speculation at "
        "concurrency 1 and 8, EAGLE-3 at 1) on an A100-SXM4-80GB: asynchronous scheduling hides it "
        "(manojarulmurugan/SpecDecoding-Study-vLLM-SGLang)",
    ),
    Engine(
        "h100-sxm",
        "0.24",
        None,
        "",
        _reduces(tp2=(4.239e-6, 2.225e11), tp4=(4.825e-6, 1.723e11), tp8=(6.02e-6, 1.885e11)),
    ),
    Engine(
        "l40s", "0.14", None, "", _reduces(tp2=(5.356e-6, 1.896e10), tp4=(1.123e-5, 2.529e9), tp8=(1.996e-5, 1.124e9))
    ),
    Engine(
        "rtx-4090",
        "0.19",
        0.0,
        "0, not fitted: the one public run on this GPU judges the profile",
        step_s=0.0,
        step_source=HIDDEN,
    ),
    Engine(
        "rtx-pro-6000-server",
        "0.19",
        1.354e-3,
        "fitted on the mean TPOT of one vLLM 0.19 run with asynchronous scheduling (casys-kaist/LLMServingSim, MIT: "
        "Llama-3.1-8B, 300 ShareGPT requests)",
        _reduces(tp2=(1.902e-5, 1.52e10)),
        step_s=0.0,
        step_source=HIDDEN,
    ),
)
"""Mean errors of the all-reduces over their tables: A100 8 %, 11 %, 20 % with 2, 4, 8 GPUs, H100 4 %, 7 %, 12 %, L40S
3 %, 3 %, 13 %, RTX PRO 6000 2 %."""


def engine_of(gpu: str, version: str | None) -> Engine:
    """What is known of vLLM `version` on `gpu`; None stands for the newest version that is known there. Of a version or
    GPU that is not known, nothing is measured."""
    known = [engine for engine in ENGINES if engine.gpu == gpu]
    if version is None and known:
        return max(known, key=lambda engine: _parts(engine.version))
    wanted = _parts(version or "")[:2]
    return next((engine for engine in known if _parts(engine.version) == wanted), Engine(gpu, version or "unknown"))


def host_costs(engine: Engine, gap_s: float | None = None) -> HostCosts:
    """Assumed host costs with what is known of the engine; `gap_s` where the caller knows its device gap."""
    known: dict[str, float] = {}
    sources = []
    if engine.step_s is not None:
        known["step_s"] = engine.step_s
        sources.append(f"step_s {engine.step_s:g} of vLLM {engine.version}: {engine.step_source}")
    if gap_s is not None:
        known["gap_s"] = gap_s
        sources.append(f"gap_s {gap_s:g} as given")
    elif engine.gap_s is not None:
        known["gap_s"] = engine.gap_s
        sources.append(f"gap_s of vLLM {engine.version}: {engine.gap_source}")
    if not known:
        return ASSUMED_HOST
    rest = ASSUMED_HOST.source if engine.step_s is None else ASSUMED_HOST.source.replace(STEP_SOURCE, "")
    source = "; ".join([*sources, f"the rest {rest}"])
    return msgspec.structs.replace(ASSUMED_HOST, **known, source=source)


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


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
