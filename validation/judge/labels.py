"""Labels in doubt of served cells, and cells that constants were fitted on.

A label is doubted by what was measured, by datasheets and by other cells, never by what is simulated. Not here: how a
row is read (validation.judge.served_cells).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from statistics import median

import msgspec

from calibrate.served.load import FITTED, JUDGED, ServedLoad
from sim.costs.memory import kv_capacity_tokens
from sim.costs.profile import Profile
from sim.costs.shapes import ModelShape
from validation.judge.served_cells import SET_UP, label_of, setting
from validation.tables import grouped

DOUBTFUL = "doubtful"
MAX_COMPUTE, MAX_BANDWIDTH = 0.75, 0.95
"""Shares of the datasheet's roofs. A cell that would take longer with these for its arithmetic and for one reading of
weights and KV is not what its label says."""
BITS = {None: 16.0, "bf16": 16.0, "mxfp4-marlin": 16.0, "nvfp4": 4.0}
"""Bits of a number in the arithmetic of a format of weights; 8 in the others."""
TWIN_RATIO = 1.5
"""A cell so many times faster than another with the same labels drafts with the model's MTP layer, unmarked; without
such a layer they contradict each other."""
CAMPAIGN_RATIO = 1.25
"""The same in the median over a campaign, which drafts or does not: 1.28 to 2.2 and up to 1.2 are known."""
ROUNDING = 1e-3
"""Relative difference between figures of one run in several dumps."""


def role_of(cell: ServedLoad, profile: Profile, shape: ModelShape, doubted_ids: set[str]) -> str:
    """Doubtful, fitted or judged, the first that holds; `doubted_ids` draft, or are contradicted."""
    is_beyond = roof_share(cell, profile, shape) > 1.0 or memory_share(cell, profile) > 1.0
    if is_beyond or is_outside(cell) or cell.id in doubted_ids:
        return DOUBTFUL
    return FITTED if is_fitted(cell) else JUDGED


def is_fitted(cell: ServedLoad) -> bool:
    """Constants were fitted on the cell: those that rows of recipes.csv name."""
    return bool(setting("is_fitted", label_of(cell)))


def is_outside(cell: ServedLoad) -> bool:
    """Requests wait longer than they are served, so that the concurrency of the label was never in the engine; or the
    model's rows are known to be mislabelled."""
    return setting("is_mislabelled", label_of(cell)) or cell.measured["ttft_ms"] > decode_ms(cell)


def decode_ms(cell: ServedLoad) -> float:
    """Measured time from the first token of a request to its last."""
    assert cell.output_len is not None
    return (cell.output_len - 1) * cell.measured["tpot_ms"]


def mean_context(cell: ServedLoad) -> float:
    """Tokens that a request holds with half its answer."""
    assert cell.input_len is not None
    assert cell.output_len is not None
    return cell.input_len + 0.5 * cell.output_len


def roof_share(cell: ServedLoad, profile: Profile, shape: ModelShape) -> float:
    """The least that a token of output takes at MAX_COMPUTE and MAX_BANDWIDTH over what was measured."""
    assert cell.input_len is not None
    assert cell.output_len is not None
    devices, in_flight = cell.tp * cell.dp, cell.concurrency * cell.dp
    peak = profile.gpu.peak_flops * 16.0 / BITS.get(cell.weights, 8.0) * devices
    prompts = in_flight / cell.output_len
    compute_s = prompts * 2.0 * cell.input_len * shape.layers * shape.active_layer_weights / peak
    kv_bytes = in_flight * mean_context(cell) * shape.kv_bytes_per_token
    read_s = (shape.read_bytes(cell.concurrency) + kv_bytes) / (profile.gpu.bandwidth_bytes_per_s * devices)
    return (compute_s / MAX_COMPUTE + read_s / MAX_BANDWIDTH) / (1e-3 * cell.measured["tpot_ms"])


def memory_share(cell: ServedLoad, profile: Profile) -> float:
    """KV that requests hold while they are served, as a share of what fits beside the weights in all of the memory.
    Above 1 the label's KV is not the one that was served.

    A request is served from its first token on, with half its answer in the mean; concurrency is each rank's.
    """
    served = cell.concurrency * decode_ms(cell) / (cell.measured["ttft_ms"] + decode_ms(cell))
    return served * mean_context(cell) / kv_capacity_tokens(profile, 1.0)


def architecture(cell: ServedLoad) -> str:
    return setting("architecture", label_of(cell)) or cell.target


def drafting(cells: Sequence[ServedLoad]) -> set[str]:
    """Names of the cells that draft: those so much faster than a twin, all of a campaign whose median cell is, and
    cells that repeat one of these."""
    with_mtp = [cell for cell in cells if setting("has_mtp", label_of(cell))]
    twins = grouped(with_mtp, _labels)
    ratios = {
        cell.id: max(twin.measured["tpot_ms"] for twin in same) / cell.measured["tpot_ms"]
        for same in twins.values()
        for cell in same
        if len(same) > 1
    }
    names = {name for name, ratio in ratios.items() if ratio > TWIN_RATIO}
    for campaign in (_campaign, _release):
        for runs in grouped(with_mtp, campaign).values():
            known = [ratios[cell.id] for cell in runs if cell.id in ratios]
            if known and median(known) > CAMPAIGN_RATIO:
                names |= {cell.id for cell in runs}
    first = first_runs(cells)
    runs_of_names = {first[name] for name in names}
    return {name for name, run in first.items() if run in runs_of_names}


def contradicted(cells: Iterable[ServedLoad]) -> set[str]:
    """Names of the cells that one of the same labels and version contradicts, where no drafts explain it: which of the
    two is right their labels do not tell."""
    names = set()
    for same in grouped(cells, lambda cell: (SET_UP(cell), cell.engine_version)).values():
        times_ms = [cell.measured["tpot_ms"] for cell in same]
        if max(times_ms) > TWIN_RATIO * min(times_ms) and not setting("has_mtp", label_of(same[0])):
            names |= {cell.id for cell in same}
    return names


def _labels(cell: ServedLoad) -> tuple[Hashable, ...]:
    """Labels that tell cells apart which may draft unmarked."""
    widths = cell.tp * cell.dp, cell.concurrency * cell.dp
    return architecture(cell), cell.engine, cell.gpu, cell.weights, *widths, cell.input_len, cell.output_len


def _release(cell: ServedLoad) -> tuple[Hashable, ...]:
    """One day's runs of a model with one version of an engine, on any GPU."""
    return architecture(cell), cell.engine, cell.engine_version, cell.day


def _campaign(cell: ServedLoad) -> tuple[Hashable, ...]:
    """Those on one GPU in one format that all keep whole experts on a device, or all cut them."""
    return *_release(cell), cell.gpu, cell.weights, cell.dp > 1, cell.ep is not None


def first_runs(cells: Iterable[ServedLoad]) -> dict[str, str]:
    """The first cell of the same run, by the name of each: one with its labels and figures, the model's name apart."""
    first: dict[str, str] = {}
    for same in grouped(cells, lambda cell: SET_UP(msgspec.structs.replace(cell, target=architecture(cell)))).values():
        runs: list[ServedLoad] = []
        for cell in same:
            run = next((other for other in runs if _is_same_run(cell, other)), cell)
            if run is cell:
                runs.append(cell)
            first[cell.id] = run.id
    return first


def _is_same_run(cell: ServedLoad, other: ServedLoad) -> bool:
    return all(
        abs(value - other.measured[name]) <= ROUNDING * other.measured[name] for name, value in cell.measured.items()
    )
