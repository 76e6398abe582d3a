"""Served cells: rows of silicon_sample.csv with what their labels get wrong repaired, and what each is simulated as.

What labels mean and recipes set is in recipes.csv. Of the rows of a setting the first counts whose columns match the
cell: alternatives between bars, patterns, ranges such as 16..; an empty column matches all. What a user would type for
a cell is an import of kernel tables and a scenario: the engine of its version, a closed loop of its concurrency, and
what its recipe sets; no time is added. Not here: labels in doubt (validation.judge.labels), errors
(validation.judge.served_judge).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from math import gcd
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from calibrate.catalogue.model_configs import source_of, with_formats
from calibrate.catalogue.published_tables import published_tables
from calibrate.importers.aiconfigurator.deployment import Deployment, import_deployment
from calibrate.served.load import ServedLoad
from sim.compare.side_by_side import compare
from sim.costs.profile import Profile
from sim.costs.profile_files import save_profile
from sim.costs.shapes import ModelShape
from sim.drafters.registry import draft_model
from sim.files.json_values import Json
from sim.run.resolve import resolve_all
from sim.run.scenario import Scenario, parse_scenario
from validation.tables import as_written, csv_rows, grouped

RECIPES = Path(__file__).parents[1] / "recipes.csv"
GENERATED, RECIPE = "generated", "recipe"
"""Sources of cells: deployments that aiconfigurator generates (AUTO), or InferenceX's recipes."""
AUTO, MEASURED_ON = "aic-auto-gap-analysis", "measured="
ENGINE_KEYS = ("async_scheduling", "cuda_graph", "frontend_s")
RULE_KEYS = (
    "enable_mixed_chunk", "scheduler_recv_interval", "batch_wait_timeout_iters", "batch_wait_max_tokens_ratio",
    "attention_dp_timeout_iters",
)  # fmt: skip
WAVES = 10
"""Requests per request in flight, as InferenceX has it."""
SET_UP = attrgetter(
    "engine", "target", "gpu", "weights", "kv", "tp", "ep", "dp", "concurrency", "input_len", "output_len"
)


@cache
def recipes() -> dict[str, list[dict[str, str]]]:
    """Rows of recipes.csv by setting, columns that match everything left out."""
    rows = [{name: text for name, text in row.items() if text and name != "why"} for row in csv_rows(RECIPES)]
    return grouped(rows, lambda row: row.pop("setting"))


def setting(name: str, label: Mapping[str, object]) -> Any:
    """Value of the first row that matches `label`, by column; None where it is empty. Raises ValueError without one."""
    for row in recipes()[name]:
        if all(_matches(row[column], label[column]) for column in row if column != "value"):
            return _value(row.get("value"))
    raise ValueError(f"no recipe has {name} of {label}")


def _value(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return text


def _matches(alternatives: str, value: Any) -> bool:
    for pattern in alternatives.split("|"):
        low, is_range, high = pattern.partition("..")
        if int(low or 0) <= value <= int(high or value) if is_range else fnmatchcase(str(value), pattern):
            return True
    return False


def label_of(cell: ServedLoad) -> dict[str, object]:
    """Columns of recipes.csv."""
    _, kind, gemm = cell.label.split(" ")
    return {**msgspec.structs.asdict(cell), "kind": kind, "gemm": gemm, "number": cell.id.rpartition("_")[2]}


def read_cells(path: Path, mode: str = "agg") -> list[dict[str, str]]:
    return [row for row in csv_rows(path) if row["mode"] == mode]


def cell_of(row: Mapping[str, str]) -> ServedLoad:
    """The row repaired: widths that are products of two, gpt-oss called nvfp4; `label` is its class: engine, dense or
    MoE, GEMM format."""
    label: dict[str, Any] = {
        "id": row["id"],
        "source": GENERATED if AUTO in row["silicon_data_source"] else RECIPE,
        "day": row["silicon_data_source"].partition(MEASURED_ON)[2][: len("2026-01-14")],
        "engine": row["backend"],
        "target": row["model_path"],
        "gpu": row["system"].replace("_", "-"),
        "gemm": row["gemm_quant_mode"] or "bf16",
    }
    label["engine_version"] = row["backend_version"] or str(setting("engine_version", label))
    for name in ("kind", "weights", "kv"):
        label[name] = setting(name, label)
    tp, ep, dp, concurrency = _widths(row, is_dense=label["kind"] == "dense")
    label |= {"input_len": _whole(row["isl"]), "output_len": _whole(row["osl"])}
    served = {**label, "tp": tp, "dp": dp, "concurrency": concurrency}
    if setting("spreads_experts", served):
        ep = tp * dp
    if ranks := setting("ranks", served):
        gpus, concurrency = tp * dp, concurrency * dp
        dp = gpus if ranks == "all" else ranks
        tp, concurrency = gpus // dp, concurrency // dp
    return ServedLoad(
        label=" ".join((label["engine"], label.pop("kind"), label.pop("gemm"))),
        tp=tp,
        ep=ep if ep > 1 else None,
        dp=dp,
        concurrency=concurrency,
        measured={name: float(row[f"silicon_{name}"]) for name in ("ttft_ms", "tpot_ms")},
        **label,
    )


def _widths(row: Mapping[str, str], *, is_dense: bool) -> tuple[int, int, int, int]:
    """(tensor, expert, data parallel, concurrency of one rank)."""
    tensor, data = _whole(row["tp_size"]) or 1, _whole(row["attention_dp_size"]) or 1
    cut, spread, batch = _whole(row["moe_tp_size"]), _whole(row["moe_ep_size"]), _whole(row["batch_size"])
    if is_dense:
        return tensor, 1, 1, batch
    if cut > 1 and cut == spread:
        width, total = cut, batch * data
    elif data > 1 and tensor == data and spread == data * data:
        width, total = data, batch * data
    else:
        if not _whole(row["attention_dp_size"]) and cut * spread > tensor:
            data = cut * spread // tensor
        return tensor, max(spread, 1), data, batch
    return (1, width, width, max(1, total // width)) if data > 1 else (width, width, 1, total)


def _whole(text: str) -> int:
    return int(float(text)) if text else 0


def deployment_of(cell: ServedLoad) -> Deployment:
    has_nccl_alone, version = setting("has_nccl_alone", label_of(cell)), engine_name(cell).partition("-")[2]
    return Deployment(cell.tp, cell.ep, cell.dp, cell.engine, version, has_nccl_alone=has_nccl_alone)


def target_of(cell: ServedLoad) -> tuple[Path, str | None]:
    """The config.json of the cell's model, and its weights' format where that is not what the file says."""
    name = setting("config", label_of(cell)) or cell.target
    path = published_tables()[0].parent / "model_configs" / f"{name.replace('/', '--')}_config.json"
    formats = source_of(str(path), plain=False).shape.formats
    is_block = cell.weights == "fp8" and formats is not None and formats.projections == "fp8-block"
    return path, None if is_block else cell.weights


def profile_of(cell: ServedLoad, drafter: str | None = None) -> tuple[Profile, ModelShape]:
    """The profile that the cell's labels stand for, and the model's shape; `drafter` is a name of
    `sim.drafters.registry.draft_model`. Raises ValueError for what the tables lack."""
    return _imported(cell.gpu, *target_of(cell), cell.kv, deployment_of(cell), drafter)


@lru_cache(maxsize=512)
def _imported(
    gpu: str, config: Path, weights: str | None, kv: str | None, deployment: Deployment, drafter: str | None
) -> tuple[Profile, ModelShape]:
    tables, revision = published_tables()
    shape = with_formats(source_of(str(config), plain=False).shape, weights, kv)
    draft = draft_model(drafter, shape) if drafter else None
    return as_written(import_deployment(tables, gpu, shape, draft, deployment, source=revision)), shape


def forget_profiles() -> None:
    """Profiles are imported anew, where the importer's constants have changed."""
    _imported.cache_clear()


def budget_of(cell: ServedLoad, drafts: int = 0) -> int | None:
    """Tokens of one step, with so many drafts a request; None where the recipe leaves it to the engine."""
    label = label_of(cell)
    budget: int | None = setting("budget", label)
    if budget is None or not setting("budget_grows", label):
        return budget
    assert cell.input_len is not None
    multiple: int = setting("budget_multiple", label)
    total = budget + round(cell.input_len + (drafts + 1) * cell.concurrency * cell.dp)
    at_least = 0 if drafts else int(setting("budget_at_least", label))
    return max(-(-total // multiple) * multiple, at_least)


def engine_name(cell: ServedLoad) -> str:
    """The engine of sim/engines of the cell's version."""
    return str(setting("name", label_of(cell)))


def engine_block(cell: ServedLoad) -> dict[str, Json]:
    """A scenario's `engine`: name, and what the cell's recipe sets; the engine decides the rest."""
    label = label_of(cell)
    block = {"name": engine_name(cell), "max_num_batched_tokens": budget_of(cell)}
    rules = {name: value for name in RULE_KEYS if (value := setting(name, label)) is not None}
    block |= {name: setting(name, label) for name in ENGINE_KEYS} | {"rules": rules or None}
    return {name: value for name, value in block.items() if value is not None}


def loop_of(cell: ServedLoad, in_flight: int) -> dict[str, Json]:
    """A scenario's `workload`: a closed loop of the cell's lengths."""
    shortest = setting("shortest", label_of(cell))
    return {
        "num_prompts": max(8, WAVES * in_flight),
        "request_rate": "inf",
        "max_concurrency": in_flight,
        "input_len": cell.input_len,
        "output_len": cell.output_len,
        "random_range_ratio": None if shortest is None else [shortest, 1.0],
    }


def raw_scenario(cell: ServedLoad, profile: str) -> dict[str, Any]:
    """The cell in the words of a scenario file, on the profile of that name."""
    return {
        "profile": profile,
        "policy": "autoregressive",
        "engine": engine_block(cell),
        "workload": loop_of(cell, round(cell.concurrency)),
        "speculation": {"num_speculative_tokens": 0},
    }


def means(raw: Mapping[str, Any], profile: Profile) -> dict[str, float]:
    """Mean TPOT and TTFT, milliseconds, that `lanesim compare` states of a scenario of one policy."""
    scenario: Scenario = parse_scenario(raw)
    (served,) = compare(resolve_all(scenario, profile), workers=1).policies
    return {name: served.mean[f"mean_{name}"] or 0.0 for name in ("tpot_ms", "ttft_ms")}


def predicted(cell: ServedLoad) -> dict[str, float]:
    """Mean TPOT and TTFT of the cell, milliseconds. Raises ValueError for what the tables lack."""
    profile, _ = profile_of(cell)
    return means(raw_scenario(cell, profile.name), profile)


# -- disaggregated rows

BUDGET = 16384
"""Tokens of one pass: longer than any prompt of the rows."""
LOST_SEATS = 2
"""Seats of a decode rank over what it holds on average: placement is by free memory, not exactly even."""
SIZES = ("prefill_batch_size", "prefill_num_workers", "decode_batch_size", "decode_num_workers")


class RowPools(NamedTuple):
    """One rank of each pool, as the cell of an aggregated row would have it, and the numbers of ranks."""

    prefill: ServedLoad
    decode: ServedLoad
    prefill_ranks: int
    decode_ranks: int


def pools_of(row: Mapping[str, str]) -> RowPools:
    """Prefill and decode workers, each a separate deployment. Raises ValueError for a row that does not say how much is
    in flight, and for pipelines."""
    if not all(row[key] for key in SIZES):
        raise ValueError("the row has no batch sizes and workers")
    if not {row["prefill_pp_size"], row["decode_pp_size"]} <= {"", "1"}:
        raise ValueError("pipeline parallelism is not simulated")
    cells = []
    for pool in ("prefill", "decode"):
        tp, ep, dp, concurrency = (
            _whole(row[f"{pool}_{name}"]) or 1 for name in ("tp_size", "moe_ep_size", "attention_dp_size", "batch_size")
        )
        cell = cell_of({**row, "batch_size": "1", "tp_size": "1", "attention_dp_size": "1"})
        cells.append(msgspec.structs.replace(cell, tp=tp, ep=ep if ep > 1 else None, dp=dp, concurrency=concurrency))
    prefill, decode = cells
    ranks = (_whole(row[f"{pool}_num_workers"]) * cell.dp for pool, cell in (("prefill", prefill), ("decode", decode)))
    return RowPools(prefill, decode, *ranks)


def pooled_scenario(pools: RowPools, profile: str, prefill: Path) -> dict[str, Any]:
    """The row in the words of a scenario file; `prefill` is the file of the other pool's profile.

    The loop keeps as many in flight as all decode ranks hold. Ranks are alike, so that a part of the node with the same
    ratio of ranks does the same.
    """
    cell, parts = pools.decode, gcd(pools.prefill_ranks, pools.decode_ranks)
    prefill_ranks, decode_ranks = pools.prefill_ranks // parts, pools.decode_ranks // parts
    seats = LOST_SEATS * cell.concurrency + 1
    return raw_scenario(cell, profile) | {
        "policy": "disaggregated",
        "engine": {"name": engine_name(cell), "max_num_seqs": seats, "max_num_batched_tokens": BUDGET},
        "workload": loop_of(cell, round(cell.concurrency) * decode_ranks),
        "policy_options": {
            "pools": {"prefill": prefill_ranks, "decode": decode_ranks, "prefill_profile": str(prefill)},
            "poll_s": 0.0,
        },
    }


def predicted_apart(pools: RowPools, folder: Path) -> dict[str, float]:
    """`predicted` of a disaggregated row; prompts are prefilled one at a time per rank, as the rows say."""
    served, prefilling = (profile_of(cell)[0] for cell in (pools.decode, pools.prefill))
    return means(pooled_scenario(pools, served.name, save_profile(prefilling, folder / "prefill.json")), served)


def family_of(row: Mapping[str, str]) -> str:
    """Engine, GPU and the format of the GEMMs: models of disaggregated rows are DeepSeek's but for a few."""
    return " ".join((row["backend"], row["system"], row["gemm_quant_mode"] or "bf16"))
