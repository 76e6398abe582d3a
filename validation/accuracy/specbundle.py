"""SpecBundle's cells: EAGLE-3 drafters under SGLang on H200, speed-ups beside simulated ones.

The table (sgl-project/SpecForge, MIT) has tokens per second with and without drafts and the acceptance length of each
cell; it says neither how many GPUs share a model nor how long prompts and outputs are. DEPLOYED and PROMPT_TOKENS,
OUTPUT_TOKENS are assumed: the numbers of GPUs are the smallest that lanesim's plain throughput does not contradict.
Constants of sglang-0.5 on H200 were fitted on the 8B; everything else is judged. Not here: the page (page).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from calibrate.hardware.models import source_of
from calibrate.importers.aiconfigurator.deployment import Deployment, import_deployment, installed_tables
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.costs.shapes import draft_model
from sim.metrics.summary import number, summarise
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate

TABLE = "specbundle/specbundle_h200_eagle3.csv"
SOURCE = "sgl-project/SpecForge@a6b6b0230009 (MIT), docs/spec_bundle/public/raw_data/data.json"
GPU, ENGINE = "h200-sxm", "sglang-0.5"
PROMPT_TOKENS, OUTPUT_TOKENS = 300, 500
"""Assumed of every data set."""
WAVES = 10
"""Requests per place in flight."""
FITTED = "Llama-3.1-8B-Instruct"
DEPLOYED = {
    "Llama-3.1-8B-Instruct": ("meta-llama--Meta-Llama-3.1-8B", 1),
    "Llama-3.3-70B-Instruct": ("meta-llama--Meta-Llama-3.1-70B", 4),
    "Qwen3-30B-A3B-Instruct-2507": ("Qwen--Qwen3-30B-A3B", 4),
    "Qwen3-235B-A22B-Instruct-2507": ("Qwen--Qwen3-235B-A22B", 8),
}
"""Target -> config.json of its architecture in aiconfigurator-core, and the GPUs that are assumed to share it."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One pair of runs, under the names that all readers of cells share."""

    source: str
    licence: str
    role: str
    """`fitted` or `judged`."""
    gpu: str
    engine: str
    target: str
    draft: str
    tp: int
    method: str
    k: int
    topk: int
    acceptance_length: float
    workload: str
    concurrency: int
    plain_tokens_per_s: float
    output_tokens_per_s: float

    @property
    def speedup(self) -> float:
        return self.output_tokens_per_s / self.plain_tokens_per_s

    @property
    def is_sparse(self) -> bool:
        return "-A" in self.target


class Judged(NamedTuple):
    cell: Cell
    plain_tokens_per_s: float
    tokens_per_s: float

    @property
    def speedup(self) -> float:
        return self.tokens_per_s / self.plain_tokens_per_s

    @property
    def error_pct(self) -> float:
        return 100.0 * (self.speedup / self.cell.speedup - 1.0)

    @property
    def has_right_sign(self) -> bool:
        return (self.speedup > 1.0) == (self.cell.speedup > 1.0)


def cell_of(row: Mapping[str, str]) -> Cell:
    """Raises ValueError for a tree of drafts."""
    if row["topk"] != "1":
        raise ValueError(f"topk={row['topk']}: trees of drafts are not simulated; want chains, topk=1")
    target = row["target"]
    return Cell(
        source=SOURCE,
        licence="MIT",
        role="fitted" if target == FITTED else "judged",
        gpu=GPU,
        engine=ENGINE,
        target=target,
        draft=row["draft"],
        tp=DEPLOYED[target][1],
        method="eagle3",
        k=int(row["steps"]),
        topk=1,
        acceptance_length=float(row["accept_len_incl_bonus"]),
        workload=row["dataset"],
        concurrency=int(row["batch_size"]),
        plain_tokens_per_s=float(row["baseline_output_tok_per_s"]),
        output_tokens_per_s=float(row["output_tok_per_s"]),
    )


def read(path: Path) -> list[Cell]:
    with path.open(newline="") as file:
        return [cell_of(row) for row in csv.DictReader(file)]


@lru_cache(maxsize=8)
def profile_of(target: str) -> Profile:
    """The shipped one of the 8B; the others from the installed tables. Raises ValueError where these are missing."""
    config, degree = DEPLOYED[target]
    if target == FITTED:
        return load(f"{GPU}/llama-3.1-8b+eagle3")
    tables, revision = installed_tables()
    shape = source_of(str(tables.parent / "model_configs" / f"{config}_config.json"), plain=False).shape
    draft = draft_model("eagle3", msgspec.structs.replace(shape, formats=None))
    return import_deployment(tables, GPU, shape, draft, Deployment(degree, engine="sglang"), source=revision)


@lru_cache(maxsize=256)
def tokens_per_s(target: str, concurrency: int, k: int, acceptance_length: float) -> float:
    """Of a closed batch; k = 0: without drafts."""
    profile = profile_of(target)
    drafting = {"num_speculative_tokens": k}
    if k:
        drafting["acceptance"] = f"length:{acceptance_length:.4f}"
    policy = "continuous" if k else "autoregressive"
    scenario = Scenario.of(
        profile=profile.name,
        policy=policy,
        num_prompts=WAVES * concurrency,
        request_rate="inf",
        max_concurrency=concurrency,
        input_len=PROMPT_TOKENS,
        output_len=OUTPUT_TOKENS,
        **drafting,
        **{"engine.name": ENGINE, "engine.max_num_seqs": concurrency},
    )
    return number(summarise(simulate(resolve(scenario, profile, policy), 0)), "output_throughput") or 0.0


def judge(cells: list[Cell]) -> list[Judged]:
    return [
        Judged(
            cell,
            tokens_per_s(cell.target, cell.concurrency, 0, 0.0),
            tokens_per_s(cell.target, cell.concurrency, cell.k, cell.acceptance_length),
        )
        for cell in cells
    ]
