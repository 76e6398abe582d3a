"""Measured loads beside simulated ones: the error of each metric, of all judged loads and of speed-ups, and a figure.

A closed loop sends all requests at once, at most `concurrency` in flight, one let in as one finishes; an open loop
sends them at `request_rate`. Where a cell does not say how many, WAVES x concurrency are served, so that filling and
draining weigh about a tenth each; of a list of requests the least number of whole passes through it that are as many.
`continuous` serves cells that draft, `autoregressive` the others. Not here: tables (calibrate.served.load_table).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from math import ceil
from statistics import NormalDist, fmean
from typing import Any

import numpy as np

from calibrate.served.as_sent import as_requests, metrics, simulated
from calibrate.served.load import MEASURED, JudgedLoad, ServedLoad, judged_errors
from calibrate.served.load_table import LENGTHS, VARIED, LoadTable
from sim.costs.engine_costs import engine_of
from sim.costs.profile import Profile
from sim.files.json_values import Json
from sim.interface.request import Request
from sim.metrics.compared import THROUGHPUT, compared, spread
from sim.metrics.summary import summarise
from sim.run.resolve import resolve_all
from sim.run.scenario import Scenario, parse_scenario, to_plain
from sim.run.simulate import simulate
from sim.workload.generate import num_requests

CELLS_SCHEMA = 1
WAVES = 10
MAX_OFF_PCT = 20.0
"""Mean size of errors beyond which a profile is not of a server."""
TOLD_BY = {"tpot_ms": "time per token", "tpot_p50_ms": "time per token", THROUGHPUT: "tokens/s", "e2el_ms": "latency"}
SHOWN = (
    "line", "label", "arm", "concurrency", "input_len", "output_len", "output_len_std", "output_len_max", "num_prompts",
    "random_range_ratio", "num_speculative_tokens", "acceptance",
)  # fmt: skip
"""Fields of a cell that its JSON shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSetup:
    """Settings that hold for all cells of a table."""

    engine: Mapping[str, Json]
    """The scenario's `engine` block; a cell's own columns come first."""
    workload: Mapping[str, Json] = field(default_factory=dict)
    """Further keys of the scenario's `workload` block."""
    devices: Mapping[str, Json] = field(default_factory=dict)
    """The `devices` block."""
    waves: int = WAVES
    """Requests per seat, where the table has no num_prompts."""
    speculation: Mapping[str, Json] = field(default_factory=dict)
    """Further keys of the `speculation` block of cells that draft."""
    requests: Sequence[tuple[int, int]] = ()
    """Prompt and output tokens of the requests that every cell serves, in order and over again; none: as cells say."""
    acceptance_spread: float | None = None
    """Spread of requests in draws, for cells whose acceptance does not say (sim.acceptance.spread)."""
    seed: int = 0

    @classmethod
    def of(cls, raw: Mapping[str, Any], requests: Sequence[tuple[int, int]] = ()) -> LoadSetup:
        """What the blocks of a raw scenario say of all cells. Raises ValueError for other blocks."""
        if foreign := sorted(set(raw) - {"engine", "workload", "speculation", "seed"}):
            raise ValueError(
                f"--set {foreign[0]} must be a key of engine, workload or speculation. The measured loads have the rest"
            )
        blocks = {name: raw.get(name, {}) for name in ("engine", "workload", "speculation")}
        return cls(**blocks, requests=requests, seed=raw.get("seed", 0))

    @property
    def engine_name(self) -> str | None:
        """None: the profile's."""
        name = self.engine.get("name")
        return None if name is None else str(name)


def setup_of(scenario: Scenario) -> LoadSetup:
    """The engine and the way of drafting of a scenario."""
    plain = to_plain(scenario)
    return LoadSetup(engine=plain["engine"], speculation={"method": plain["speculation"]["method"]})


def scenario_of(cell: ServedLoad, profile: Profile, setup: LoadSetup) -> Scenario:
    """The loop of `cell`. Raises ValueError."""
    k = cell.num_speculative_tokens
    limits = {name: getattr(cell, name) for name in ("max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks")}
    at_once = 0 if cell.is_burst or cell.request_rate is not None else round(cell.concurrency)
    means = (cell.input_len, cell.output_len)
    lengths = dict(zip(LENGTHS, [None if each is None else round(each) for each in means], strict=True))
    if setup.requests:
        means = np.mean(setup.requests, axis=0)
        lengths = {name: round(float(mean)) for name, mean in zip(lengths, means, strict=True)}
    per_pass = len(setup.requests) or 1
    workload: dict[str, Json] = {
        "num_prompts": cell.num_prompts or ceil((setup.waves * at_once or cell.num_requests) / per_pass) * per_pass,
        "request_rate": "inf" if cell.request_rate is None else cell.request_rate,
        "max_concurrency": at_once or None,
        **lengths,
        "random_range_ratio": None if setup.requests else cell.random_range_ratio,
    }
    if cell.shared_prefix and cell.input_len is not None:
        unshared_tokens = round(cell.input_len) - cell.shared_prefix
        sharing: dict[str, Json] = {"prefix_len": cell.shared_prefix, "num_prefixes": cell.num_prefixes}
        workload |= {"input_len": unshared_tokens, "sharing": sharing}
    speculation: dict[str, Json] = {"num_speculative_tokens": k}
    if k:
        is_said = setup.acceptance_spread is None or "~" in str(cell.acceptance)
        speculation["acceptance"] = str(cell.acceptance) + ("" if is_said else f"~{setup.acceptance_spread!r}")
        speculation |= setup.speculation
    return parse_scenario(
        {
            "profile": profile.name,
            "policy": "continuous" if k else "autoregressive",
            "engine": {**setup.engine, **{name: value for name, value in limits.items() if value is not None}},
            "workload": {**workload, **setup.workload},
            "devices": dict(setup.devices),
            "speculation": speculation,
            "seed": setup.seed,
        }
    )


def simulate_load(cell: ServedLoad, profile: Profile, setup: LoadSetup) -> dict[str, float]:
    """The metrics of the simulated load that are defined (sim.metrics.summary); its requests as they were sent, where
    they are known. Raises ValueError."""
    scenario = scenario_of(cell, profile, setup)
    if cell.requests:
        sent = metrics(simulated(scenario, profile, as_requests(cell.requests)))
        return {name: value for name, value in sent.items() if value is not None}
    requests = _requests(cell, num_requests(scenario.workload), scenario.seed, setup)
    record = simulate(resolve_all(scenario, profile)[0], scenario.seed, requests=requests)
    run = summarise(record, num_warmups=scenario.workload.num_warmups)
    return {name: value for name, value in run.items() if isinstance(value, int | float)}


def _requests(cell: ServedLoad, num_prompts: int, seed: int, setup: LoadSetup) -> list[Request] | None:
    """The list's, over and over, or those whose outputs vary; None where all are alike."""
    if setup.requests:
        lengths = islice(cycle(setup.requests), num_prompts)
        return [Request(index, str(index), 0.0, *tokens) for index, tokens in enumerate(lengths)]
    return varied_requests(cell, num_prompts, seed) if cell.output_len_std else None


def varied_requests(cell: ServedLoad, num_prompts: int, seed: int) -> list[Request]:
    """Requests whose outputs vary: evenly spaced quantiles of a normal distribution, in an order drawn from `seed`.

    They are cut at output_len_max, and as far below the mean, so that the mean stays. Outputs of one length keep a
    closed loop in step, wave after wave; real outputs that end by themselves do not.
    """
    assert cell.input_len is not None
    assert cell.output_len is not None
    prompt, mean = round(cell.input_len), round(cell.output_len)
    most = cell.output_len_max or 2 * mean - 1
    reach = min(most - mean, mean - 1)
    normal = NormalDist(0.0, cell.output_len_std)
    offsets = [normal.inv_cdf((rank + 0.5) / num_prompts) for rank in range(num_prompts)]
    lengths = [mean + round(min(reach, max(-reach, offset))) for offset in offsets]
    order = np.random.default_rng(seed).permutation(num_prompts).tolist()
    return [Request(index, str(index), 0.0, prompt, lengths[rank]) for index, rank in enumerate(order)]


def judge_loads(
    table: LoadTable,
    profile: Profile,
    setup: LoadSetup,
    on_cell: Callable[[int, int], None] = lambda done, total: None,
) -> list[JudgedLoad]:
    """Every cell beside its simulation; `on_cell` hears how many of how many are done. Cells that differ in what was
    measured alone are simulated once.

    Raises ValueError naming the line of a cell that cannot run.
    """
    judged: list[JudgedLoad] = []
    runs: dict[tuple[Any, ...], dict[str, float]] = {}
    for cell in table.cells:
        on_cell(len(judged), len(table.cells))
        try:
            key = scenario_of(cell, profile, setup).digest, cell.output_len_std, cell.output_len_max
            run = runs[key] if key in runs else simulate_load(cell, profile, setup)
        except ValueError as error:
            raise ValueError(f"{table.where(cell)}: {error}") from None
        runs[key] = run
        judged.append(JudgedLoad.beside(cell, {name: run.get(MEASURED[name]) for name in cell.measured}))
        on_cell(len(judged), len(table.cells))
    return judged


def summary(judged: Sequence[JudgedLoad]) -> dict[str, dict[str, float | int | None]]:
    """Each metric over the judged cells: their number, and the errors' mean size, mean and largest size, percent."""
    metrics = [name for name in MEASURED if any(name in each.metrics for each in judged)]
    return {metric: spread(judged_errors(judged, metric)) for metric in metrics}


def verdict(judged: Sequence[JudgedLoad]) -> str:
    """How far off a profile is, in a sentence, by the first of TOLD_BY that the loads have; empty for none of them."""
    for metric, means in TOLD_BY.items():
        if errors := judged_errors(judged, metric):
            count = "this load" if len(errors) == 1 else f"these {len(errors)} loads"
            return off_in_words(fmean(map(abs, errors)), f"{count} in {means}")
    return ""


def off_in_words(off_pct: float, of: str) -> str:
    """Whether a profile is to be used that is so far off.

    >>> off_in_words(30.0, "this load in latency")
    'Do not use this profile as it is. It is 30 % off this load in latency.'
    """
    warning, subject = ("Do not use this profile as it is. ", "It") if off_pct > MAX_OFF_PCT else ("", "The profile")
    return f"{warning}{subject} is {off_pct:.0f} % off {of}."


def speedups(judged: Sequence[JudgedLoad], metric: str = THROUGHPUT) -> list[dict[str, Any]]:
    """Output throughput of every drafting cell over that of its partner, which drafts nothing; of another `metric`, a
    time, the partner's over the cell's.

    Partners, in JSON by their lines, have the same label, up to its last "/" where there is no arm, and the same
    concurrency and lengths. Of several the mean counts. A pair judges nothing where the constant was fitted on all of
    its cells.
    """
    references: dict[PairKey, list[JudgedLoad]] = {}
    with_metric = [each for each in judged if metric in each.metrics]
    for each in with_metric:
        if each.cell.num_speculative_tokens == 0:
            references.setdefault(_pair_key(each.cell), []).append(each)
    pairs = []
    for each in with_metric:
        partners = references.get(_pair_key(each.cell), [])
        if each.cell.num_speculative_tokens == 0 or not partners:
            continue
        ratios = []
        for side in ("real", "simulated"):
            ratio = (each.metrics[metric][side] or 0.0) / fmean(one.metrics[metric][side] or 0.0 for one in partners)
            ratios.append(ratio if metric == THROUGHPUT else 1.0 / ratio)
        pair = {"name": each.cell.name, "line": each.cell.line, "partners": [one.cell.line for one in partners]}
        role = "fit" if all(one.is_fit for one in (each, *partners)) else "judged"
        pairs.append({**pair, "role": role, **compared(*ratios)})
    return pairs


PairKey = tuple[str, float, float | None, float | None]
"""Label, concurrency and lengths."""


def _pair_key(cell: ServedLoad) -> PairKey:
    label = cell.label if cell.arm else cell.label.rpartition("/")[0] or cell.label
    return label, cell.concurrency, cell.input_len, cell.output_len


def result_of(table: LoadTable, judged: Sequence[JudgedLoad], profile: Profile, setup: LoadSetup) -> dict[str, Any]:
    """The JSON of `validate cells`."""
    pairs = speedups(judged)
    notes = [f"columns that mean nothing here: {', '.join(table.unused)}"] if table.unused else []
    drafting = [each for each in judged if each.cell.num_speculative_tokens and THROUGHPUT in each.metrics]
    if setup.requests:
        notes.append(f"{len(setup.requests)} requests a pass, in whole passes unless the table has num_prompts")
        unread = [name for name in (*LENGTHS, *VARIED) if any(each.cell.texts.get(name) for each in judged)]
        if unread:
            notes.append(f"not read, since the requests are listed: {', '.join(unread)}")
    if 0 < len(drafting) < len(judged) and len(pairs) < len(drafting):
        notes.append(
            f"{len(drafting) - len(pairs)} of {len(drafting)} drafting cells have no partner without drafts of "
            "the same label, concurrency and lengths: no speed-up of theirs"
        )
    return {
        "schema": CELLS_SCHEMA,
        "profile": {"name": profile.name, "source": profile.source},
        "engine": {**setup.engine, "name": engine_of(setup.engine_name, profile).name},
        "waves": setup.waves,
        "requests_per_pass": len(setup.requests) or None,
        "seed": setup.seed,
        "cells": [_plain(each, profile, setup) for each in judged],
        "judged": summary(judged),
        "verdict": verdict(judged),
        "speedups": pairs,
        "speedup": spread([pair["error_pct"] for pair in pairs if pair["role"] == "judged"]),
        "notes": notes,
    }


def _plain(each: JudgedLoad, profile: Profile, setup: LoadSetup) -> dict[str, Json]:
    cell = each.cell
    scenario = scenario_of(cell, profile, setup)
    return {
        **{name: getattr(cell, name) for name in SHOWN},
        "num_prompts": scenario.workload.num_prompts,
        "policy": scenario.policy[0],
        "role": "fit" if each.is_fit else "judged",
        "metrics": dict(each.metrics),
    }
