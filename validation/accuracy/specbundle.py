"""SpecBundle's cells: EAGLE-3 drafters under SGLang on H200, speed-ups beside simulated ones.

The table (sgl-project/SpecForge, MIT) has tokens per second with and without drafts and the acceptance length of each
cell; it says neither how many GPUs share a model nor how long prompts and outputs are. DEPLOYED and PROMPT_TOKENS,
OUTPUT_TOKENS are assumed: of the numbers of GPUs the one whose simulated plain throughput is nearest that of the
fastest data set. Constants of sglang-0.5 on H200 were fitted on the 8B; everything else is judged. Not here: the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import msgspec

from calibrate.catalogue.model_configs import source_of
from calibrate.importers.aiconfigurator.deployment import Deployment, import_deployment, installed_tables
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.costs.shapes import draft_model
from sim.metrics.summary import number, summarise
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate
from validation.accuracy.closed_loops import error_lines
from validation.accuracy.sections import Line, Row, Section
from validation.tables import as_written, csv_rows, off_pct

TABLE = "specbundle/specbundle_h200_eagle3.csv"
SOURCE = "sgl-project/SpecForge@a6b6b0230009 (MIT), docs/spec_bundle/public/raw_data/data.json"
TITLE = "H200, EAGLE-3 under SGLang"
DENSE_BAR_PCT, SPARSE_BAR_PCT = 4.0, 8.0
"""Bars for the mean size of the error of speed-ups."""
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


class Cell(NamedTuple):
    """One pair of runs."""

    target: str
    draft: str
    k: int
    acceptance_length: float
    workload: str
    concurrency: int
    plain_tokens_per_s: float
    output_tokens_per_s: float

    @property
    def is_fitted(self) -> bool:
        return self.target == FITTED

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
        return off_pct(self.speedup, self.cell.speedup)

    @property
    def has_right_sign(self) -> bool:
        return (self.speedup > 1.0) == (self.cell.speedup > 1.0)


def cell_of(row: Mapping[str, str]) -> Cell:
    """Raises ValueError for a tree of drafts."""
    if row["topk"] != "1":
        raise ValueError(f"topk={row['topk']}: trees of drafts are not simulated; want chains, topk=1")
    return Cell(
        target=row["target"],
        draft=row["draft"],
        k=int(row["steps"]),
        acceptance_length=float(row["accept_len_incl_bonus"]),
        workload=row["dataset"],
        concurrency=int(row["batch_size"]),
        plain_tokens_per_s=float(row["baseline_output_tok_per_s"]),
        output_tokens_per_s=float(row["output_tok_per_s"]),
    )


def read(path: Path) -> list[Cell]:
    return [cell_of(row) for row in csv_rows(path)]


@lru_cache(maxsize=8)
def profile_of(target: str) -> Profile:
    """The shipped one of the 8B; the others from SGLang's kernels in the installed tables. Raises ValueError where
    these are missing."""
    config, degree = DEPLOYED[target]
    if target == FITTED:
        return load(f"{GPU}/llama-3.1-8b+eagle3")
    tables, revision = installed_tables()
    shape = source_of(str(tables.parent / "model_configs" / f"{config}_config.json"), plain=False).shape
    draft = draft_model("eagle3", msgspec.structs.replace(shape, formats=None))
    profile = import_deployment(tables, GPU, shape, draft, Deployment(degree, engine="sglang"), source=revision)
    return as_written(profile)


@lru_cache(maxsize=256)
def tokens_per_s(target: str, concurrency: int, k: int, acceptance_length: float) -> float:
    """Throughput of a closed batch; k = 0: without drafts."""
    profile = profile_of(target)
    drafting: dict[str, int | str] = {"num_speculative_tokens": k}
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
        **{"engine.name": ENGINE},
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


def specbundle_section(data: Path) -> Section:
    """Speed-ups of dense models and of those with experts, the fitted 8B apart."""
    judged = judge(read(data / TABLE))
    others = [each for each in judged if not each.cell.is_fitted]
    dense = [each for each in judged if not each.cell.is_sparse]
    sparse = [each for each in others if each.cell.is_sparse]
    lines = [
        *_lines("speed-up, dense, the fitted 8B among them", dense, DENSE_BAR_PCT),
        *_lines("speed-up, Llama-3.3-70B, judged", [each for each in others if not each.cell.is_sparse]),
        *_lines("speed-up, Qwen3 with experts, judged", sparse, SPARSE_BAR_PCT),
    ]
    right = sum(each.has_right_sign for each in judged)
    plain_pct = fmean(off_pct(each.plain_tokens_per_s, each.cell.plain_tokens_per_s) for each in others)
    degrees = ", ".join(f"{target} on {degree}" for target, (_, degree) in DEPLOYED.items())
    about = [
        f"{SOURCE}: SGLang of December 2025 on H200, EAGLE-3 chains, closed batches of 1 (8B) and 8; part of the table",
        f"engine `{ENGINE}`: prompts in steps of their own, its overlap scheduler without drafts and not with them",
        "8B: profile `h200-sxm/llama-3.1-8b+eagle3`; the others are imported from SGLang's kernels",
        f"assumed, not published: {degrees} GPUs, the number whose plain throughput is "
        f"nearest that of the fastest data set; prompts of "
        f"{PROMPT_TOKENS} and outputs of {OUTPUT_TOKENS} tokens",
        f"fitted: step_s, draft_pass_s and gap_s of {ENGINE} on H200 on the mean plain throughput of the 8B and its "
        f"mean speed-ups at K = 3 and 7, {len(judged) - len(others)} cells; every other model is judged",
        f"judged models' plain throughput is {plain_pct:+.0f} % off, by the assumed lengths: it is not judged",
        f"faster or slower than without drafts: right in {right} of {len(judged)} cells",
    ]
    return Section(title=TITLE, about=about, lines=lines, rows=list(map(_row, judged)))


def _lines(what: str, judged: Sequence[Judged], bar_pct: float | None = None) -> list[Line]:
    return error_lines(f"{what}, {len(judged)} cells", [each.error_pct for each in judged], bar_pct)


def _row(judged: Judged) -> Row:
    """A row of the matrix: speed-ups alone, since throughput goes by lengths that are not published."""
    cell, degree = judged.cell, DEPLOYED[judged.cell.target][1]
    return Row(
        gpu="H200",
        engine=ENGINE,
        model=f"{cell.target.lower()}{f'-tp{degree}' if degree > 1 else ''}",
        method="eagle3",
        k=cell.k,
        workload=f"{cell.workload}, {cell.draft.rpartition('/')[2]}",
        concurrency=str(cell.concurrency),
        is_fit=cell.is_fitted,
        errors_pct={"speed-up": judged.error_pct},
    )
