"""Served cells beside lanesim and a peer: `python -m validation silicon CELLS.csv --json OUT [--peer PREDICTIONS.csv]`.

CELLS.csv is ai-dynamo/aiconfigurator's silicon_sample.csv or a part of it: closed loops of vLLM, SGLang and
TensorRT-LLM, mean TTFT and TPOT. Every aggregated row gets a profile from the kernel tables of the installed
aiconfigurator-core (its models' config.json among them) and a scenario: the engine of its version, a closed loop of its
concurrency, and what its recipe sets. What `lanesim compare` says of that is judged; no time is added here.
Classes are engine, dense or MoE, and the format of the GEMMs. Counted apart: rows that constants were fitted on, and
rows whose labels cannot be (beyond the datasheet's roofs or memory, requests that mostly wait, speculation unmarked).
--peer takes the rows with aic_ttft_ms and aic_tpot_ms beside them. Exits 1 where no row is judged, and leaves OUT as it
was; 2 where CELLS.csv or the kernel tables are missing.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from calibrate.catalogue.model_configs import source_of, with_formats
from calibrate.importers.aiconfigurator.deployment import Deployment, import_deployment, installed_tables
from sim.compare.side_by_side import compare
from sim.costs.profile import Profile
from sim.costs.shapes import ModelShape, draft_model
from sim.files.json_values import Json
from sim.run.scenario import Scenario, parse_scenario
from validation.silicon.labels import drafting, is_marked, is_outside, memory_share, repeats, roof_share
from validation.silicon.served_cells import BLACKWELL, Cell, cell_of
from validation.tables import as_written

LENGTH_RANGE = (0.8, 1.0)
"""InferenceX's client draws lengths uniformly between these shares of ISL and OSL; the other client (aiperf, standard
deviations 0) does not vary them."""
WAVES, FEW_WAVES, MANY = 10, 4, 128
"""Requests per place in flight, as InferenceX has it; fewer beyond so many places."""
STARVED_SHARE = 5.0
"""A TTFT above so many times that of the smallest concurrency of its series is admission, not service."""
TRTLLM_BUDGETS = {"Llama": 16384, "gpt-oss": 20000}
"""--max_num_tokens in those of TensorRT-LLM, by model; DeepSeek's have the concurrency, ISL and PADDING, in whole
multiples of it."""
PADDING = 64
BATCH_WAIT: dict[str, Json] = {"batch_wait_timeout_iters": 20, "batch_wait_max_tokens_ratio": 0.9}
"""What recipes of Llama-3.1-70B have, at ISL and OSL 1,024 and fewer than eight GPUs."""
SGLANG = "sglang-0.5"
MANY_CLIENTS = 16
RECEIVE_INTERVALS = {"b200-sxm": (10, 30), "b300-sxm": (10, 10)}
"""--scheduler-recv-interval in InferenceX's recipes of SGLang, below MANY_CLIENTS clients and from there on, by GPU
(benchmarks/*.sh of SemiAnalysisAI/InferenceX); 1, SGLang's own, where the recipes have none, and with data-parallel
attention, which refuses it."""
WITHOUT_INTERVAL = ("zhipuai/GLM-5",)
MIXED = ("0.5.6.post2",)
"""Version of SGLang in the deployments that aiconfigurator generates, which mix prompts with rows (its sglang.rule:
enable_mixed_chunk). First tokens of the other cells of EXACT_SOURCE say that these did not."""
CHUNKS = {("b200-sxm", "fp8"): 32768, ("b200-sxm", None): 32768, ("h200-sxm", "fp8"): 32768}
CHUNK = 16384
"""--chunked-prefill-size in the same: by GPU and weights, and elsewhere."""
EXACT_BUDGET = 1500
"""The token budget of deployments that aiconfigurator generates (cells of EXACT_SOURCE) is this, ISL and the
concurrency. Those of vLLM leave it to vLLM's scheduler, whose own default is VLLM_BUDGET; chosen on the TTFT of marked
cells."""
VLLM_BUDGET = 2048
CHECKPOINTS = {
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/Qwen3-32B-NVFP4": "Qwen/Qwen3-32B",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-ai/DeepSeek-R1",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek-ai/DeepSeek-V3",
    "zhipuai/GLM-5": "zai-org/GLM-5-FP8",
}
"""The row's model -> the config.json of the same architecture that the package has."""
TRTLLM = "trtllm-1.1"
VLLM_BY_VERSION = {"0.11": "vllm-0.12", "0.12": "vllm-0.12"}
VLLM = "vllm-0.19"
"""The engine of a row's version, and that of later ones."""


class Judged(NamedTuple):
    cell: Cell
    tpot_ms: float
    ttft_ms: float
    is_marked: bool
    is_doubtful: bool
    is_starved: bool


def target_of(cell: Cell, configs: Path) -> tuple[Path, str | None]:
    """The config.json of the row's model, and its weights' format where that is not what the file says."""
    path = configs / f"{CHECKPOINTS.get(cell.model, cell.model).replace('/', '--')}_config.json"
    formats = source_of(str(path), plain=False).shape.formats
    is_block = cell.weights == "fp8" and formats is not None and formats.projections == "fp8-block"
    return path, None if is_block else cell.weights


def import_words(cell: Cell) -> list[str]:
    """What a user gives `lanesim calibrate import aiconfigurator` for the row's profile."""
    path, weights = target_of(cell, installed_tables()[0].parent / "model_configs")
    deployment = cell.deployment
    given = {
        "--gpu": cell.gpu,
        "--target": path,
        "--tp": deployment.tensor_parallel,
        "--ep": deployment.expert_parallel,
        "--dp": deployment.data_parallel,
        "--engine": deployment.engine,
        "--weights": weights,
        "--kv-dtype": cell.kv,
    }
    words = [str(word) for flag, value in given.items() if value is not None for word in (flag, value)]
    return [*words, "--nccl"] if deployment.has_nccl_alone else words


@lru_cache(maxsize=512)
def profile_of(
    model: str, gpu: str, weights: str | None, kv: str | None, deployment: Deployment, drafter: str | None = None
) -> tuple[Profile, ModelShape]:
    """The profile that a row's labels stand for, and the model's shape; `drafter` is a name of
    `sim.costs.shapes.draft_model`."""
    tables, revision = installed_tables()
    cell = Cell("", "", "", model, gpu, weights, kv, deployment, 1, 1, 1, False, "", 1.0, 1.0, "")
    path, published = target_of(cell, tables.parent / "model_configs")
    shape = with_formats(source_of(str(path), plain=False).shape, published, kv)
    draft = draft_model(drafter, shape) if drafter else None
    return as_written(import_deployment(tables, gpu, shape, draft, deployment, source=revision)), shape


def engine_name(cell: Cell) -> str:
    """The engine of sim/engines of the row's version."""
    if cell.engine == "vllm":
        return next((name for version, name in VLLM_BY_VERSION.items() if cell.version.startswith(version)), VLLM)
    return SGLANG if cell.engine == "sglang" else TRTLLM


def budget_of(cell: Cell, drafts: int = 0) -> int | None:
    """Tokens of one step, with so many drafts a row; None where the recipe leaves it to the engine."""
    if cell.is_exact:
        return VLLM_BUDGET if cell.engine == "vllm" else EXACT_BUDGET + cell.input_len + cell.concurrency
    if cell.engine == "trtllm":
        of_model = next((tokens for name, tokens in TRTLLM_BUDGETS.items() if name in cell.model), None)
        total = (drafts + 1) * cell.concurrency * cell.deployment.data_parallel + cell.input_len + PADDING
        return of_model or -(-total // PADDING) * PADDING
    return CHUNKS.get((cell.gpu, cell.weights), CHUNK) if cell.engine == "sglang" else None


def receive_interval(cell: Cell) -> int:
    """Steps between two looks at what has arrived, as the recipe of the cell has it."""
    is_plain = cell.engine == "sglang" and cell.deployment.data_parallel == 1 and cell.model not in WITHOUT_INTERVAL
    if not is_plain or cell.is_exact or cell.gpu not in RECEIVE_INTERVALS:
        return 1
    few, many = RECEIVE_INTERVALS[cell.gpu]
    return many if cell.concurrency >= MANY_CLIENTS else few


def batch_wait(cell: Cell) -> dict[str, Json]:
    """How long prompts are held back for others, as the recipe of the cell has it."""
    has_wait = cell.engine == "trtllm" and not cell.is_exact and "Llama" in cell.model
    is_short = (cell.input_len, cell.output_len) == (1024, 1024)
    return BATCH_WAIT if has_wait and is_short and cell.deployment.tensor_parallel < 8 else {}


def is_decode_graphed(cell: Cell) -> bool:
    """vLLM's recipe of Llama-3.1-70B on Blackwell captures decoding alone (cudagraph_mode FULL_DECODE_ONLY)."""
    is_recipe = cell.engine == "vllm" and not cell.is_exact
    return is_recipe and "Llama" in cell.model and cell.gpu.partition("-")[0] in BLACKWELL


def engine_block(cell: Cell) -> dict[str, Json]:
    """Of a scenario: the engine, and what the row's recipe sets; where that is None, the engine decides."""
    return {
        "name": engine_name(cell),
        "max_num_batched_tokens": budget_of(cell),
        "async_scheduling": True if cell.engine == "vllm" and not cell.is_exact else None,
        "enable_mixed_chunk": True if cell.is_exact and cell.version in MIXED else None,
        "scheduler_recv_interval": receive_interval(cell),
        "cuda_graph": "decode" if is_decode_graphed(cell) else True,
        **batch_wait(cell),
    }


def scenario_of(cell: Cell, profile: str) -> Scenario:
    """What a user of `lanesim compare` says of the row on the profile of that name."""
    return parse_scenario(raw_scenario(cell, profile))


def raw_scenario(cell: Cell, profile: str) -> dict[str, Any]:
    """The row in the words of a scenario file."""
    return {
        "profile": profile,
        "policy": "autoregressive",
        "engine": engine_block(cell),
        "workload": {
            "num_prompts": max(8, (FEW_WAVES if cell.concurrency > MANY else WAVES) * cell.concurrency),
            "request_rate": "inf",
            "max_concurrency": cell.concurrency,
            "input_len": cell.input_len,
            "output_len": cell.output_len,
            "length_range": None if cell.is_exact else LENGTH_RANGE,
        },
        "speculation": {"num_speculative_tokens": 0},
    }


@lru_cache(maxsize=4096)
def _loop(key: Cell) -> tuple[float, float]:
    """Mean TPOT and TTFT, milliseconds, of a cell without its id and figures."""
    profile, _ = profile_of(key.model, key.gpu, key.weights, key.kv, key.deployment)
    (served,) = compare(scenario_of(key, profile.name), profile, workers=1).policies
    return served.mean["mean_tpot_ms"] or 0.0, served.mean["mean_ttft_ms"] or 0.0


def predicted(cell: Cell) -> tuple[float, float]:
    return _loop(cell._replace(id="", day="", ttft_ms=0.0, tpot_ms=0.0, family=""))


def judge(rows: Iterable[Mapping[str, str]]) -> Iterator[Judged | tuple[Cell, str]]:
    """Every run judged, or refused with the reason, those that constants were fitted on first."""
    cells = sorted(map(cell_of, rows), key=lambda cell: not is_marked(cell))
    again = repeats(cells)
    first: dict[tuple[Hashable, ...], float] = {}
    drafting_ids = drafting(cells)
    for cell in sorted(cells, key=lambda cell: cell.concurrency):
        first.setdefault(_series(cell), cell.ttft_ms)
    for cell in cells:
        if cell.id in again:
            continue
        try:
            profile, shape = profile_of(cell.model, cell.gpu, cell.weights, cell.kv, cell.deployment)
            tpot_ms, ttft_ms = predicted(cell)
        except ValueError as error:
            yield cell, " ".join(str(error).split())[:200]
            continue
        yield Judged(
            cell=cell,
            tpot_ms=tpot_ms,
            ttft_ms=ttft_ms,
            is_marked=is_marked(cell),
            is_doubtful=_is_beyond(cell, profile, shape) or is_outside(cell) or cell.id in drafting_ids,
            is_starved=cell.ttft_ms > STARVED_SHARE * first[_series(cell)],
        )


def _is_beyond(cell: Cell, profile: Profile, shape: ModelShape) -> bool:
    """Whether the GPU of the label could not have served what was measured."""
    return roof_share(cell, profile, shape) > 1.0 or memory_share(cell, profile) > 1.0


def _series(cell: Cell) -> tuple[Hashable, ...]:
    return (*cell[1:8], cell.input_len, cell.output_len)


def kindest(readings: list[list[dict[str, str]]]) -> dict[str, dict[str, str]]:
    """The peer's row of each id, in the reading of the labels whose mean TPOT error is least for that model, GPU,
    engine and format; where that reading has no answer, another's."""
    errors: dict[tuple[str, ...], dict[int, list[float]]] = {}
    for i, rows in enumerate(readings):
        for row in rows:
            if row["aic_tpot_ms"]:
                error = abs(float(row["aic_tpot_ms"]) / float(row["silicon_tpot_ms"]) - 1.0)
                errors.setdefault(_peer_group(row), {}).setdefault(i, []).append(error)
    chosen: dict[str, dict[str, str]] = {}
    for i, rows in enumerate(readings):
        for row in rows:
            of_group = errors.get(_peer_group(row), {})
            is_best = i == min(of_group, key=lambda each: fmean(of_group[each]), default=0)
            if row["aic_tpot_ms"] and (is_best or row["id"] not in chosen):
                chosen[row["id"]] = row
    return chosen


def _peer_group(row: Mapping[str, str]) -> tuple[str, ...]:
    return row["model_path"], row["system"], row["backend"], row["gemm_quant_mode"]


def classes_of(found: list[Judged | tuple[Cell, str]], peer: Mapping[str, Mapping[str, str]]) -> list[dict[str, Json]]:
    """A row per class, and one each for the marked and the doubtful rows of it."""
    classes: dict[str, list[Judged]] = {}
    refused: dict[str, int] = {}
    for entry in found:
        if isinstance(entry, Judged):
            suffix = " (labels in doubt)" if entry.is_doubtful else " (fitted on)" if entry.is_marked else ""
            classes.setdefault(entry.cell.family + suffix, []).append(entry)
        else:
            refused[entry[0].family] = refused.get(entry[0].family, 0) + 1
    result: list[dict[str, Json]] = []
    for name in sorted({*classes, *refused}):
        rows = classes.get(name, [])
        served = [row for row in rows if not row.is_starved]
        shared = [row for row in rows if peer.get(row.cell.id, {}).get("aic_tpot_ms")]
        result.append(
            {
                "class": name,
                "cells": len(rows),
                "refused": refused.get(name, 0),
                "tpot_mean_abs_pct": _mean_abs([100 * (row.tpot_ms / row.cell.tpot_ms - 1) for row in rows]),
                "tpot_mean_pct": _mean([100 * (row.tpot_ms / row.cell.tpot_ms - 1) for row in rows]),
                "ttft_mean_abs_pct": _mean_abs([100 * (row.ttft_ms / row.cell.ttft_ms - 1) for row in served]),
                "ttft_cells": len(served),
                "peer_cells": len(shared),
                "peer_tpot_mean_abs_pct": _mean_abs(
                    [100 * (float(peer[row.cell.id]["aic_tpot_ms"]) / row.cell.tpot_ms - 1) for row in shared]
                ),
                "tpot_mean_abs_pct_on_peer_cells": _mean_abs(
                    [100 * (row.tpot_ms / row.cell.tpot_ms - 1) for row in shared]
                ),
            }
        )
    return result


def _mean(values: list[float]) -> float | None:
    return round(fmean(values), 2) if values else None


def _mean_abs(values: list[float]) -> float | None:
    return _mean([abs(value) for value in values])


def fail(why: str, code: int) -> int:
    """Say it on stderr, in one line; the exit code."""
    print(f"silicon: {why}", file=sys.stderr)
    return code


def nothing_judged(refusals: Sequence[str], options: argparse.Namespace) -> str:
    """Why no row was judged: the reason that most of the `refusals` have."""
    if not refusals:
        return f"{options.cells}: no row with --mode {options.mode} --only {options.only!r} --every {options.every}"
    ((why, count),) = Counter(refusals).most_common(1)
    return f"{options.cells}: all {len(refusals)} rows refused, {count} of them so: {why}"
