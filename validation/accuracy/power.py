"""Power of a GPU by the use of its roofs, beside measured averages; which rows were fitted on, and how far off it is.

    .venv/bin/python -m validation power ../shared/data/splitwise/perf_model.csv

The file is that of Splitwise (Mutinifni/splitwise-sim@8f99e7dc9b40, MIT), which is no part of this project: Llama-2-70B
and BLOOM-176B in bf16 on A100-80GB, a batch of prompts at once and then 128 tokens of each, with the average power of a
GPU over its TDP. Utilisation is what the model computes and moves over the measured times; nothing is simulated. Prints
the exponent for sim.metrics.energy and a table of errors. Not here: the form (sim.metrics.energy).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from sim.costs.datasheets import DATASHEETS, POWER
from sim.costs.passes import pass_use
from sim.costs.shapes import MODELS, ModelShape
from sim.interface.work import Chunk
from sim.metrics.energy import EXPONENT, power_w, utilisation_of
from sim.metrics.stats import Floats
from validation.tables import csv_rows, grouped, markdown_table

GPU = "a100-sxm"
SHAPES = {
    "llama2-70b": msgspec.structs.replace(
        MODELS["codellama-34b"], name="llama-2-70b", layers=80, intermediate=28672, max_context=4096
    ),
    "bloom-176b": ModelShape(
        name="bloom-176b", layers=70, hidden=14336, intermediate=57344, heads=112, kv_heads=112, head_dim=128,
        vocab=250880, tied_embeddings=True, max_context=2048, is_gated=False,
    ),
}  # fmt: skip
FITTED = "llama2-70b"
EXPONENTS = np.arange(0.30, 1.205, 0.01)
BROKEN = 0.5
"""A setting whose average power is below this share of that at a shorter prompt, all else equal, is left out: its
prompt phase, which draws the most, is longer, so what was sampled is something else."""


class Setting(NamedTuple):
    """Means of its repetitions."""

    model: str
    tp: int
    prompt_tokens: int
    batch: int
    power: float
    """Average, over TDP."""
    phases: tuple[tuple[float, float], ...]
    """(seconds, utilisation) of the prompt and of the tokens after the first."""


def read(path: Path) -> tuple[list[Setting], list[Setting]]:
    """Settings with a power, and those of them that are left out as broken."""
    rows = [row for row in csv_rows(path) if float(row["average_power"]) > 0.0]
    columns = itemgetter("model", "hardware", "tensor_parallel", "prompt_size", "batch_size", "token_size")
    settings = [_setting(own) for own in grouped(rows, columns).values()]
    broken = [each for each in settings if each.power < BROKEN * _shorter(each, settings)]
    return [each for each in settings if each not in broken], broken


def _shorter(of: Setting, settings: Sequence[Setting]) -> float:
    """The largest power at shorter prompts, all else equal."""
    like = (each for each in settings if (each.model, each.tp, each.batch) == (of.model, of.tp, of.batch))
    return max((each.power for each in like if each.prompt_tokens < of.prompt_tokens), default=0.0)


def _setting(rows: Sequence[dict[str, str]]) -> Setting:
    power, prompt_ms, token_ms = (
        sum(float(row[name]) for row in rows) / len(rows) for name in ("average_power", "prompt_time", "token_time")
    )
    tp, prompt, batch, tokens = (
        int(rows[0][name]) for name in ("tensor_parallel", "prompt_size", "batch_size", "token_size")
    )
    shape, gpu = SHAPES[rows[0]["model"]], DATASHEETS[GPU].gpu
    first = pass_use(shape, tp, 0, 0, 0.0, [Chunk(prompt, 0)] * batch, batch)
    later = pass_use(shape, tp, batch, batch, batch * (prompt + tokens / 2.0), (), batch)
    phases = (
        (prompt_ms / 1e3, utilisation_of(first, prompt_ms / 1e3, gpu)),
        ((tokens - 1) * token_ms / 1e3, utilisation_of(later, token_ms / 1e3, gpu)),
    )
    return Setting(rows[0]["model"], tp, prompt, batch, power, phases)


def errors(settings: Sequence[Setting], exponent: float = EXPONENT) -> Floats:
    """[settings] of average power, relative."""
    power = POWER[GPU]
    times, used = np.array([each.phases for each in settings]).transpose(2, 0, 1)
    watts = np.sum(times * power_w(power, used, exponent), axis=1) / np.sum(times, axis=1)
    found: Floats = watts / power.limit_w / np.array([each.power for each in settings]) - 1.0
    return found


def fitted(settings: Sequence[Setting]) -> float:
    """The exponent of least squared error."""
    return float(min(EXPONENTS, key=lambda exponent: float(np.sum(errors(settings, exponent) ** 2))))


class Split(NamedTuple):
    """Settings that the exponent is fitted on, and others that it is judged on."""

    name: str
    fitted: list[Setting]
    judged_as: str
    judged: list[Setting]


def splits(settings: Sequence[Setting]) -> list[Split]:
    llama = [each for each in settings if each.model == FITTED]
    half = llama[::2]
    found = [
        Split("Llama-2-70B", llama, "BLOOM-176B, TP 8", [each for each in settings if each.model != FITTED]),
        Split("every other one of them", half, "all others", [each for each in settings if each not in half]),
    ]
    for tp in sorted({each.tp for each in llama}):
        own = [each for each in llama if each.tp == tp]
        found.append(Split(f"Llama-2-70B without TP {tp}", [each for each in llama if each.tp != tp], f"TP {tp}", own))
    return found


def table(settings: Sequence[Setting]) -> str:
    """A row per split: its exponent, and the mean and largest error on what was not fitted."""
    rows = []
    for name, own, judged_as, judged in splits(settings):
        exponent = fitted(own)
        mine, theirs = (np.abs(100.0 * errors(each, exponent)) for each in (own, judged))
        errors_pct = [[f"{sizes.mean():.1f}", f"{sizes.max():.1f}"] for sizes in (mine, theirs)]
        rows.append(
            [f"{name} ({len(own)})", f"{exponent:.2f}", *errors_pct[0], f"{judged_as} ({len(judged)})", *errors_pct[1]]
        )
    return markdown_table(["fitted on", "exponent", "mean %", "max %", "judged on", "mean %", "max %"], rows, left=1)


def main(file: Path) -> None:
    settings, broken = read(file)
    print(table(settings))
    for each in broken:
        print(f"left out: {each.model}, TP {each.tp}, prompt {each.prompt_tokens}: {each.power:.3f} of TDP on average")
    for each, error in zip(settings, errors(settings), strict=True):
        print(
            f"{each.model} TP {each.tp} {each.batch} x {each.prompt_tokens}: {each.power:.3f}, {100.0 * error:+.1f} %"
        )
