"""Labels of served cells: which cells constants were fitted on, and which labels cannot be.

A label is doubted by what was measured, by datasheets and by other rows, never by what is simulated. Not here: how a
row is read (validation.silicon.served_cells).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from statistics import median

from sim.costs.memory import kv_capacity_tokens
from sim.costs.profile import Profile
from sim.costs.shapes import ModelShape
from validation.silicon.served_cells import WITH_MTP, Cell

MISLABELLED = ("nvidia/Llama-3.1-8B-Instruct-FP8",)
"""Cells of H200 that imply 76 % of its peak."""
MAX_COMPUTE, MAX_BANDWIDTH = 0.75, 0.95
"""Shares of the datasheet's roofs. A cell that would take longer with these for its arithmetic and for one reading of
weights and KV is not what its label says."""
HAS_MTP = (*WITH_MTP, "Qwen3.5-397B-A17B", "GLM-5")
"""Models with an MTP layer of their own, which a server may draft with."""
TWIN_RATIO = 1.5
"""A row so many times faster than another with the same labels drafts with the model's own MTP layer, unmarked."""
CAMPAIGN_RATIO = 1.25
"""The same in the median over a campaign, which drafts or does not: 1.28 to 2.2 and up to 1.2 are found."""
ROUNDING = 1e-3
"""Relative difference between figures of one run in several dumps."""
VLLM_0_12 = frozenset(
    {
        (1024, 128, 8), (1024, 128, 64), (1024, 512, 16), (1024, 512, 128), (1024, 1024, 32),
        (4096, 128, 8), (4096, 128, 64), (4096, 512, 16), (4096, 512, 128), (4096, 1024, 32),
    }
)  # fmt: skip
"""ISL, OSL and concurrency of the cells of Qwen3-32B that vLLM 0.12's constants were fitted on."""
DRAWN = frozenset(
    {
        260, 326, 470, 474, 506, 549, 556, 564, 565, 573, 581, 610, 631, 637, 655, 661, 665, 667, 672, 674, 675, 682,
        683, 691, 692, 694, 721, 722, 734, 744, 756, 758, 779, 781, 794, 812, 818, 822, 824, 831, 843, 850, 860, 913,
    }
)  # fmt: skip
"""Numbers at the end of the names of cells of Llama-3.1-70B that the constants of vLLM of autumn 2025 were fitted on: a
third of them, `random.Random(30).sample(ids, len(ids) // 3)` of the sorted names of the visible aggregated rows."""
DRAWN_OF = "2026_04_06_llama_3_1_70b"


def is_marked(cell: Cell) -> bool:
    """Whether constants were fitted on the cell: those of calibrate.importers.aiconfigurator.lookups (REDUCE_RATIO,
    REDUCE_SKEW_S, SUSTAINED_RATIO, QUANTISE_S), that NCCL reduces alone, those of vLLM 0.12 and SGLang's front end in
    sim/engines, and those here."""
    if "Qwen3-32B" in cell.model and cell.version.startswith("0.12") and cell.weights == "bf16":
        return (cell.input_len, cell.output_len, cell.concurrency) in VLLM_0_12
    if cell.id.startswith(DRAWN_OF) and int(cell.id.rpartition("_")[2]) in DRAWN:
        return True
    if cell.deployment.has_nccl_alone and cell.deployment.tensor_parallel > 1:
        return cell.concurrency in (8, 64) and cell.output_len == 256
    if cell.engine == "sglang" and not cell.is_exact and cell.concurrency in (4, 64) and cell.output_len == 1024:
        return cell.deployment.data_parallel == 1
    if cell.engine != "vllm" or cell.concurrency not in (4, 64):
        return "Qwen3-235B" in cell.model and cell.input_len == 4000 and cell.output_len == 100
    dense = "Llama-3.1-70B" in cell.model and (cell.gpu == "h200-sxm" or cell.weights == "nvfp4")
    sparse = "gpt-oss" in cell.model and cell.gpu == "b200-sxm" and cell.version == "0.15.1"
    return (dense or sparse) and cell.output_len == 1024


def roof_share(cell: Cell, profile: Profile, shape: ModelShape) -> float:
    """The least that a token of output takes at MAX_COMPUTE and MAX_BANDWIDTH over what was measured."""
    devices = cell.deployment.tensor_parallel * cell.deployment.data_parallel
    bits = 16.0 if cell.weights in (None, "bf16", "mxfp4-marlin") else 4.0 if cell.weights == "nvfp4" else 8.0
    peak = profile.gpu.peak_flops * 16.0 / bits * devices
    prompts = cell.concurrency * cell.deployment.data_parallel / cell.output_len
    compute_s = prompts * 2.0 * cell.input_len * shape.layers * shape.active_layer_weights / peak
    context = cell.input_len + 0.5 * cell.output_len
    kv_bytes = cell.concurrency * cell.deployment.data_parallel * context * shape.kv_bytes_per_token
    read_s = (shape.read_bytes(cell.concurrency) + kv_bytes) / (profile.gpu.bandwidth_bytes_per_s * devices)
    return (compute_s / MAX_COMPUTE + read_s / MAX_BANDWIDTH) / (1e-3 * cell.tpot_ms)


def memory_share(cell: Cell, profile: Profile) -> float:
    """What the requests being served at once hold of KV, as a share of what fits beside the weights in all of the
    memory. Above 1 the label's KV is not the one that was served.

    A request is served from its first token on, with half its answer in the mean; concurrency is each rank's.
    """
    decode_ms = (cell.output_len - 1) * cell.tpot_ms
    served = cell.concurrency * decode_ms / (cell.ttft_ms + decode_ms)
    return served * (cell.input_len + 0.5 * cell.output_len) / kv_capacity_tokens(profile, 1.0)


def labels_of(cell: Cell) -> tuple[Hashable, ...]:
    """What tells cells apart that may draft unmarked; DeepSeek-R1 and -V3 are one architecture."""
    model = "DeepSeek" if cell.model.endswith(WITH_MTP) else cell.model
    widths = cell.deployment.devices, cell.concurrency * cell.deployment.data_parallel
    return model, cell.engine, cell.gpu, cell.weights, *widths, cell.input_len, cell.output_len


def slowest_of(cells: Iterable[Cell]) -> dict[tuple[Hashable, ...], float]:
    """TPOT of the slowest cell with each labels, of models that have an MTP layer."""
    slowest: dict[tuple[Hashable, ...], float] = {}
    for cell in cells:
        if cell.model.endswith(HAS_MTP):
            slowest[labels_of(cell)] = max(slowest.get(labels_of(cell), 0.0), cell.tpot_ms)
    return slowest


def campaigns_of(cell: Cell) -> tuple[tuple[Hashable, ...], tuple[Hashable, ...]]:
    """What one day's runs of a model have in common; and those that keep whole experts on a device, or cut all."""
    deployment = cell.deployment
    server = labels_of(cell)[0], cell.engine, cell.version, cell.gpu, cell.weights, deployment.data_parallel > 1
    return (*server, cell.day), (*server, cell.day, deployment.expert_parallel is not None)


def drafting(cells: Sequence[Cell]) -> set[str]:
    """Names of the rows that draft: those so much faster than a twin, all of a campaign whose median row is, and rows
    that repeat one of these."""
    slowest, counts = slowest_of(cells), Counter(map(labels_of, cells))
    found: set[str] = set()
    of_campaign: dict[tuple[Hashable, ...], dict[str, float | None]] = {}
    for cell in cells:
        if cell.model.endswith(HAS_MTP):
            ratio = slowest[labels_of(cell)] / cell.tpot_ms if counts[labels_of(cell)] > 1 else None
            for campaign in campaigns_of(cell):
                of_campaign.setdefault(campaign, {})[cell.id] = ratio
    for rows in of_campaign.values():
        ratios = [ratio for ratio in rows.values() if ratio is not None]
        is_drafting = bool(ratios) and median(ratios) > CAMPAIGN_RATIO
        found |= {name for name, ratio in rows.items() if is_drafting or (ratio or 0.0) > TWIN_RATIO}
    first = first_rows(cells)
    runs = {first[name] for name in found}
    return {name for name, run in first.items() if run in runs}


def repeats(cells: Iterable[Cell]) -> set[str]:
    """Names of the rows that are an earlier one's run, read from another dump."""
    return {name for name, run in first_rows(cells).items() if name != run}


def first_rows(cells: Iterable[Cell]) -> dict[str, str]:
    """The first row of the same run, by the name of each: one with its labels and figures."""
    known: dict[tuple[Hashable, ...], list[Cell]] = {}
    found = {}
    for cell in cells:
        same = known.setdefault(_set_up(cell), [])
        first = next((other for other in same if _is_same_run(cell, other)), None)
        if first is None:
            same.append(cell)
        found[cell.id] = (first or cell).id
    return found


def _set_up(cell: Cell) -> tuple[Hashable, ...]:
    lengths = cell.concurrency, cell.input_len, cell.output_len
    return cell.engine, cell.model, cell.gpu, cell.weights, cell.kv, cell.deployment, *lengths


def _is_same_run(cell: Cell, other: Cell) -> bool:
    pairs = (cell.tpot_ms, other.tpot_ms), (cell.ttft_ms, other.ttft_ms)
    return all(abs(a - b) <= ROUNDING * b for a, b in pairs)


def is_outside(cell: Cell) -> bool:
    """Whether requests wait longer than they are served, so that the concurrency of the label was never in the engine;
    or the model's rows are known to be mislabelled."""
    return cell.model in MISLABELLED or cell.ttft_ms > (cell.output_len - 1) * cell.tpot_ms
