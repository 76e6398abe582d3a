"""One record per step of a server, whoever writes it, and the cost model of that server.

Forward-pass metrics are JSON lines: vLLM's and SGLang's have `wall_time` and `scheduled_requests`, TensorRT-LLM's
iteration statistics `iterLatencyMS` and `inflightBatchingStats`. A record says how many prompts and rows a step
carried, the prompts' tokens, the KV that both read, and its seconds; not how many tokens a draft had. Two models are
fitted: the profile with its own constants corrected (calibrate.fit.constants), and a straight line
(sim.costs.compact_kernels.LinearPass). Blocks of time that are left out in turn choose between them and are the error.
Not here: levels of load (calibrate.served.load).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from calibrate.fit.constants import RATIO, fit_constants
from calibrate.served.line import line_of_server
from sim.bounds import Bounded, Bounds, Whole
from sim.costs.compact_kernels import LinearKernels, LinearPass
from sim.costs.engine_costs import MEASURED_HERE
from sim.costs.forms.build import build_costs
from sim.costs.profile import KindError, Profile
from sim.costs.profile_files import round_constant
from sim.files.json_values import convert, json_lines
from sim.interface.work import Chunk, Kind, Work
from sim.metrics.stats import Floats

BLOCKS = 5
"""Stretches of time, of equally many steps, of which each is predicted from the others."""
MIN_STEPS = 20 * BLOCKS
LONGEST_STEP_S = 100.0
"""A step that took longer is of other units."""
Requests = Annotated[int, Bounds(0, 65_536)]
"""Requests of one step: each prompt is a chunk of its own, so that a count without end would fill the memory."""
OTHER_UNITS = 100.0
"""Factor between a profile and a server's steps that no server explains, and milliseconds read as seconds do."""
LIKE_STEPS = 64
"""Groups of steps of like size whose means correct a profile: a least square over single steps gives no other one."""
CORRECTED = ("gap_s", f"{RATIO}16")
"""Constants of a profile that steps correct: a step's time beside its layers, and the layers'."""
LINE, CORRECTION = "a straight line", "the profile, corrected"


class StepRecord(NamedTuple):
    """Contents of one step, and its seconds from scheduling to its results."""

    seconds: float
    prompts: int
    """Requests that it carried a part of the prompt of."""
    prompt_tokens: int
    """Tokens of prompts that it computed."""
    prompt_kv_tokens: int
    """Tokens of the same requests that were in KV before."""
    rows: int
    kv_tokens: int
    """Tokens in KV of the rows, the newest among them."""
    rank: int = 0
    """Data-parallel rank that wrote it."""

    @property
    def work(self) -> Work:
        """The step as the cost models take it; prompts share its tokens and KV evenly, and each samples a token."""
        new, history = (
            [total // self.prompts + (index < total % self.prompts) for index in range(self.prompts)]
            for total in (self.prompt_tokens, self.prompt_kv_tokens)
        )
        return Work(
            kind=Kind.VERIFY,
            rows=self.rows,
            row_tokens=self.rows,
            context_tokens=max(0, self.kv_tokens - self.rows),
            chunks=tuple(map(Chunk, new, history)),
            head_rows=self.rows + self.prompts,
        )

    @property
    def terms(self) -> tuple[float, ...]:
        """Factors of the constants of LinearPass, in their order."""
        tokens = self.prompt_tokens + self.rows
        kv_tokens = self.prompt_tokens + self.prompt_kv_tokens + max(self.kv_tokens, self.rows)
        return 1.0, tokens, self.rows + self.prompts, kv_tokens


class _Scheduled(Bounded, frozen=True, kw_only=True, forbid_unknown_fields=False):
    num_prefill_requests: Requests = 0
    sum_prefill_tokens: Whole = 0
    sum_prefill_kv_tokens: Whole = 0
    num_decode_requests: Requests = 0
    sum_decode_kv_tokens: Whole = 0


class _InFlight(Bounded, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=False):
    num_context_requests: Requests
    num_ctx_tokens: Whole
    num_ctx_kv_tokens: Whole
    num_gen_requests: Requests
    num_gen_kv_tokens: Whole


class _ForwardPass(Bounded, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A line of vLLM's or SGLang's; more than the fields here is ignored."""

    wall_time: Annotated[float, Bounds(0.0, LONGEST_STEP_S)]
    scheduled_requests: _Scheduled
    dp_rank: Whole = 0


class _Iteration(Bounded, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A line of TensorRT-LLM's."""

    latency_ms: Annotated[float, Bounds(0.0, 1e3 * LONGEST_STEP_S)] = msgspec.field(name="iterLatencyMS")
    stats: _InFlight = msgspec.field(name="inflightBatchingStats")
    rank: Whole = msgspec.field(default=0, name="attentionDpRank")


def read_steps(path: Path) -> list[StepRecord]:
    """The steps in `path` in their order, without beats of an idle server. Raises ValueError naming file and line."""
    records = []
    for number, raw in json_lines(path, "steps"):
        where = f"steps {str(path)!r} line {number}"
        if isinstance(raw, dict) and "iterLatencyMS" in raw:
            line = convert(raw, _Iteration, where)
            counts, seconds, rank = msgspec.structs.astuple(line.stats), line.latency_ms / 1e3, line.rank
        else:
            told = convert(raw, _ForwardPass, where)
            counts, seconds, rank = msgspec.structs.astuple(told.scheduled_requests), told.wall_time, told.dp_rank
        records.append(StepRecord(seconds, *counts)._replace(rank=rank))
    return [each for each in records if each.seconds > 0.0 and (each.rows or each.prompt_tokens)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsFit:
    """A server's cost model, and errors in percent of the time per token: predicted over measured seconds of the steps
    of a stretch, each as often as it has rows."""

    profile: Profile
    form: str
    steps: int
    shipped_pct: float
    """Error of the profile as it was."""
    blocks_pct: dict[str, list[float]]
    """Form -> error of each block of time by the others; the chosen form first."""
    step_pct: float
    """Mean size of the error of a single step that was left out."""


def fit_steps_of(profile: Profile, records: Sequence[StepRecord], source: str) -> StepsFit:
    """`profile` as the steps of one server have it. Raises ValueError where they are too few, or of several ranks."""
    if len(records) < MIN_STEPS:
        raise ValueError(f"{source}: {len(records)} steps are too few to leave {BLOCKS} blocks out. Give {MIN_STEPS}")
    if ranks := {each.rank for each in records} - {records[0].rank}:
        raise ValueError(f"{source} is of ranks {sorted(ranks | {records[0].rank})}. Give the steps of one")
    shipped_pct = error_pct(predicted_s(profile, records), records)
    if not 1.0 / OTHER_UNITS < 1.0 + shipped_pct / 100.0 < OTHER_UNITS:
        raise ValueError(
            f"{source}: a step takes {fmean(each.seconds for each in records):.3g} s in the mean, and {profile.name} "
            f"is off by {shipped_pct:+,.1f} %. Give wall_time in seconds, iterLatencyMS in milliseconds"
        )
    blocks = blocks_of(records)
    forms: dict[str, Callable[[Profile, Sequence[StepRecord]], Profile]] = {LINE: of_line}
    if not isinstance(profile.kernels, LinearKernels):
        forms[CORRECTION] = _corrected
    left_out, errors_pct = {}, {}
    for name, fit in forms.items():
        try:
            predicted = [
                predicted_s(fit(profile, [each for other in blocks if other is not block for each in other]), block)
                for block in blocks
            ]
        except ValueError:
            continue  # The steps do not tell its constants.
        left_out[name] = np.concatenate(predicted)
        errors_pct[name] = [error_pct(seconds, block) for seconds, block in zip(predicted, blocks, strict=True)]
    order = sorted(errors_pct, key=lambda name: fmean(map(abs, errors_pct[name])))
    chosen, sizes = order[0], [abs(each) for each in errors_pct[order[0]]]
    singles = np.abs(left_out[chosen] / np.array([each.seconds for each in records]) - 1.0)
    told = KindError(
        mean_error_pct=round(fmean(sizes), 2),
        max_error_pct=round(max(sizes), 2),
        points=BLOCKS,
        held_out=f"{source}: time per token of each of {BLOCKS} blocks of time by the others",
    )
    fitted = msgspec.structs.replace(
        forms[chosen](profile, records),
        errors=dict.fromkeys(profile.errors, told),
        conditions="served",
        source=f"{chosen} fitted by lanesim on {len(records)} steps of a running server; before: {profile.source}",
    )
    return StepsFit(
        profile=fitted,
        form=chosen,
        steps=len(records),
        shipped_pct=shipped_pct,
        blocks_pct={name: errors_pct[name] for name in order},
        step_pct=100.0 * float(singles.mean()),
    )


def blocks_of(records: Sequence[StepRecord]) -> list[list[StepRecord]]:
    """The steps in BLOCKS of equally many, in order of time."""
    return [list(records[len(records) * i // BLOCKS : len(records) * (i + 1) // BLOCKS]) for i in range(BLOCKS)]


def predicted_s(profile: Profile, records: Iterable[StepRecord]) -> Floats:
    """[steps] seconds of each step by `profile`, nothing of it hidden behind another."""
    costs = build_costs(profile)
    parts = [costs.cost(each.work) for each in records]
    return np.array([part.prepare_s + max(part.launch_s, part.device_s) for part in parts]) + costs.result_s


def error_pct(seconds: Floats, records: Sequence[StepRecord]) -> float:
    """Error of the time per token; of steps, where none has rows."""
    weights = np.array([each.rows for each in records], dtype=float)
    if not weights.any():
        weights += 1.0
    return 100.0 * float(weights @ seconds / (weights @ [each.seconds for each in records]) - 1.0)


def of_line(profile: Profile, records: Sequence[StepRecord]) -> Profile:
    """`profile` whose steps are a line through `records`: least squares of the error over the time, none below 0. The
    line has all of a step, its engine's time and drafts among them, so that no other constants and no draft stay."""
    from scipy.optimize import nnls

    terms, seconds = np.array([each.terms for each in records]), np.array([each.seconds for each in records])
    scale = terms.max(axis=0).clip(min=1.0)
    weights = np.full(len(records), 1.0 / seconds.mean())
    for _ in range(2):  # By the time of the line, not by the measured one: short ones by chance would count more.
        values, _ = nnls(terms / scale * weights[:, None], seconds * weights)
        weights = 1.0 / (terms @ (values / scale)).clip(min=1e-3 * seconds.mean())
    pass_s, token_s, row_s, kv_token_s = map(round_constant, (values / scale).tolist())
    line = LinearPass(pass_s=pass_s, token_s=token_s, row_s=row_s, kv_token_s=kv_token_s, launches=1)
    server = line_of_server()
    kernels = msgspec.structs.replace(server.linear, target=line, draft=None)
    host = msgspec.structs.replace(server.host, engine=MEASURED_HERE, is_async=False, source="part of the line")
    return msgspec.structs.replace(profile, kernels=kernels, host=host, draft=None)


def _corrected(profile: Profile, records: Sequence[StepRecord]) -> Profile:
    """`profile` with constants of its own that meet the means of like steps."""
    order = sorted(records, key=lambda each: each.terms[1:])
    groups = [group.tolist() for group in np.array_split(np.arange(len(order)), LIKE_STEPS)]
    seconds = np.array([each.seconds for each in order])

    def ratios(priced: Profile) -> list[float]:
        simulated = predicted_s(priced, order)
        return [float(simulated[group].sum() / seconds[group].sum()) for group in groups]

    return fit_constants(profile, CORRECTED, ratios).profile
