"""`vllm bench forward`: the cases that a profile needs, and a profile of what vLLM's own kernels took for them.

vLLM 0.33 times the target's pass of an exact batch, and with a drafter both together (vllm/benchmarks/forward, main.py
and shapes.py). The drafter's time is the difference. With a draft length of 1 the drafter runs one pass, and the times
of its prompts follow. Sampling, rejection and the host are not timed: an engine's constants add them.

Not here: the fit (calibrate.fit.pass_fit).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np

from calibrate.fit.fit_errors import kind_error
from calibrate.fit.grid import Limits, grid, is_held_out, mixed
from calibrate.fit.pass_fit import fit_passes, start_constants
from calibrate.fit.point_works import NOISY_PCT, MixedPass, TimedPass, work_of
from sim.costs.datasheets import Datasheet
from sim.costs.forms.build import build_costs
from sim.costs.profile import IN_A_LOOP, SCHEMA, HostCosts, MeasuredPoint, Overlap, PassKind, Profile
from sim.costs.shapes import ModelShape
from sim.files.json_values import convert, read_json
from sim.interface.work import Chunk, Work

LIMITS = Limits(rows=64, slot_tokens=4096, pass_tokens=8192, draft_tokens=7, has_draft=True, has_graphs=True)
"""KV of 64 requests of 4,096 tokens is 34 GB of an 8B model in bf16."""
SECONDS_PER_US = 1e-6
Whole = Annotated[int, msgspec.Meta(ge=0, le=10**7)]


class ForwardRequest(msgspec.Struct, frozen=True):
    """One request of a batch, under vLLM's names."""

    query_len: Whole
    kv_len: Whole
    """Tokens in the KV cache after the pass."""
    num_draft_tokens: Whole = 0
    chunked: bool = False


class Latency(msgspec.Struct, frozen=True):
    """Percent and count of the replays of a case."""

    count: Annotated[int, msgspec.Meta(ge=1)]
    sample_spread_pct: Annotated[float, msgspec.Meta(ge=0.0)]


class ForwardRank(msgspec.Struct, frozen=True):
    latency_us: Latency
    timing_scope: Literal["target_only", "target_and_drafter"]


class Case(msgspec.Struct, frozen=True):
    case: str
    requests: Annotated[tuple[ForwardRequest, ...], msgspec.Meta(min_length=1)]
    median_us: Annotated[float, msgspec.Meta(gt=0.0, le=1e9)]
    ranks: Annotated[tuple[ForwardRank, ...], msgspec.Meta(min_length=1)]


def passes(num_speculative_tokens: int | None) -> dict[int, list[TimedPass]]:
    """Passes by draft length: 0 of the target, 1 and `num_speculative_tokens` of the drafter, verify among them."""
    has_draft = num_speculative_tokens is not None
    found: dict[int, list[TimedPass]] = {0: []}
    for timed in grid(LIMITS._replace(has_draft=has_draft)):
        if timed.model == "target":
            if timed.kind == "prefill" or timed.launch == ("graphed" if has_draft or timed.kind == "decode" else None):
                found[0].append(timed)
        elif timed.kind == "prefill":
            found.setdefault(1, []).append(timed)
        elif timed.kind == "draft" and timed.tokens == 1 and num_speculative_tokens is not None:
            for length in {1, num_speculative_tokens}:
                found.setdefault(length, []).append(timed._replace(tokens=length))
    # The drafter's time is a difference, so the target's pass of each of its cases is needed.
    needed = [_target_of(timed) for length, alike in found.items() if length for timed in alike]
    found[0] = list(dict.fromkeys([*found[0], *needed]))
    return found


def case_text(timed: TimedPass) -> str:
    """A pass as `--case` has it.

    >>> case_text(TimedPass("verify", "target", 16, 4, 2048, "graphed"))
    'verify-16x4-2048=16*4@2052:3'
    >>> case_text(TimedPass("draft", "draft", 16, 3, 2048, "graphed"))
    'draft3-16x1-2048=16*1@2049'
    """
    target = _target_of(timed)
    name = f"draft{timed.tokens}" if timed.kind == "draft" else "draft1" if timed.model == "draft" else timed.kind
    drafts = f":{target.tokens - 1}" if target.kind == "verify" else ""
    chunked = "c" if target.kind == "prefill" and target.context_tokens else ""
    batch = f"{target.rows}*{target.tokens}@{target.context_tokens + target.tokens}{chunked}{drafts}"
    return f"{name}-{target.rows}x{target.tokens}-{target.context_tokens}={batch}"


def mixed_text(both: MixedPass) -> str:
    """Rows with whole prompts as `--case` has them.

    >>> mixed_text(MixedPass(TimedPass("verify", "target", 16, 5, 576, "graphed"), 3, 512))
    'mixed-16x5-576-3x512=16*5@581:4,3*512'
    """
    rows, batch = both.decoding, case_text(both.decoding).partition("=")[2]
    name = f"mixed-{rows.rows}x{rows.tokens}-{rows.context_tokens}-{both.prompts}x{both.prompt_tokens}"
    return f"{name}={batch},{both.prompts}*{both.prompt_tokens}"


def mixed_passes() -> list[MixedPass]:
    """The target's passes with rows and prompts, which judge the fit and are no part of it."""
    return mixed(LIMITS)


def _target_of(timed: TimedPass) -> TimedPass:
    """The target's pass before which, or beside which, the drafter runs."""
    if timed.kind == "draft":
        return TimedPass("decode", "target", timed.rows, 1, timed.context_tokens, "graphed")
    return timed._replace(model="target")


def points_of(paths: Sequence[Path]) -> tuple[list[MeasuredPoint], list[tuple[MixedPass, float]]]:
    """Passes of the files, the drafter's as differences, and mixed ones in seconds. Raises ValueError."""
    measured: dict[TimedPass, tuple[float, float, int]] = {}
    together: list[tuple[MixedPass, float]] = []
    both: list[tuple[str, int, TimedPass, Case]] = []
    for path in paths:
        where = f"result of vllm bench forward {str(path)!r}"
        for case in convert(read_json(path, "result"), list[Case], where):
            if len(case.ranks) > 1:
                raise ValueError(f"{where}: {len(case.ranks)} GPUs. Give a run on one GPU")
            groups = [_target_pass(alike) for alike in _alike(case.requests)]
            timed = groups[0]
            if len(groups) > 1:
                together.append((_mixed_pass(case, groups, where), case.median_us * SECONDS_PER_US))
            elif case.ranks[0].timing_scope == "target_and_drafter":
                both.append((where, _draft_length(case, where), timed, case))
            else:
                measured[timed] = _timing(case)
    for where, length, timed, case in both:
        alone = measured.get(timed)
        if alone is None:
            raise ValueError(f"{where}: case {case.case!r} has no twin without the drafter. Add the other result")
        seconds, spread_pct, count = _timing(case)
        if seconds <= alone[0]:
            raise ValueError(f"{where}: case {case.case!r} is faster with the drafter than without. Measure it again")
        draft_s = seconds - alone[0]
        width_pct = (spread_pct * seconds + alone[1] * alone[0]) / draft_s
        drafted = timed._replace(model="draft")
        if timed.kind != "prefill":
            drafted = drafted._replace(kind="draft", tokens=timed.tokens * length)
        measured[drafted] = draft_s, width_pct, count
    if not measured:
        raise ValueError("no case was timed. Give results of the commands that `lanesim calibrate cases` prints")
    points = [
        MeasuredPoint(
            **timed._asdict(),
            device_s=seconds,
            host_s=0.0,
            half_width_pct=round(width_pct, 2),
            repetitions=count,
            is_noisy=width_pct > NOISY_PCT,
            is_held_out=is_held_out(timed, list(measured)),
        )
        for timed, (seconds, width_pct, count) in measured.items()
    ]
    return points, together


def _timing(case: Case) -> tuple[float, float, int]:
    """Seconds, half of the spread in percent, replays."""
    latency = case.ranks[0].latency_us
    return case.median_us * SECONDS_PER_US, 0.5 * latency.sample_spread_pct, latency.count


def _alike(requests: Sequence[ForwardRequest]) -> list[list[ForwardRequest]]:
    return [[each for each in requests if each == kind] for kind in dict.fromkeys(requests)]


def _target_pass(requests: Sequence[ForwardRequest]) -> TimedPass:
    """Of requests that are all alike."""
    first = requests[0]
    prefix = first.kv_len - first.query_len
    is_decode = prefix > 0 and first.query_len == 1 + first.num_draft_tokens
    kind: PassKind = "prefill" if not is_decode else "verify" if first.num_draft_tokens else "decode"
    return TimedPass(
        kind, "target", len(requests), first.query_len, prefix, "eager" if kind == "prefill" else "graphed"
    )


def _mixed_pass(case: Case, groups: Sequence[TimedPass], where: str) -> MixedPass:
    kinds = [each.kind for each in groups]
    if kinds not in (["verify", "prefill"], ["decode", "prefill"]) or groups[1].context_tokens:
        raise ValueError(
            f"{where}: case {case.case!r} mixes lengths. Give rows of one length with whole prompts of one length, and "
            "--kv-len-jitter 0, as `lanesim calibrate cases` prints them"
        )
    return MixedPass(groups[0], groups[1].rows, groups[1].tokens)


def _draft_length(case: Case, where: str) -> int:
    name = case.case.partition("-")[0]
    if not name.startswith("draft") or not name.removeprefix("draft").isdecimal():
        raise ValueError(f"{where}: case {case.case!r} does not say its draft length. Name it such as draft3-...")
    return int(name.removeprefix("draft"))


def profile_of(
    paths: Sequence[Path], sheet: Datasheet, target: ModelShape, draft: ModelShape | None, host: HostCosts
) -> Profile:
    """A profile of the kernels that vLLM ran. Raises ValueError, also where a file lacks what the fit needs."""
    points, together = points_of(paths)
    if draft is None:
        points = [point for point in points if point.model == "target"]
    elif not any(point.model == "draft" for point in points):
        raise ValueError(f"no case has the drafter {draft.name!r}: add the results with --speculative-config")
    name = target.name if draft is None else f"{target.name}+{draft.name}"
    start = Profile(
        schema=SCHEMA,
        name=f"{sheet.gpu.name}/{name}",
        gpu=sheet.gpu,
        target=target,
        draft=draft,
        kernels=start_constants(
            is_cpu=False, multiprocessors=sheet.multiprocessors, attention="vllm", kv_layout="paged"
        ),
        host=host,
        overlap=Overlap(),
        errors={},
        conditions=IN_A_LOOP,
        source=f"vllm bench forward: {len(points)} captured cases, {', '.join(path.name for path in paths)}",
        fingerprint=None,
        date=date.today().isoformat(),
    )
    fitted = fit_passes(start, points)
    costs = build_costs(fitted)
    errors = np.array([costs.cost(_work_of(both)).device_s / seconds - 1.0 for both, seconds in together])
    found = {"mixed": kind_error(errors, "passes with rows and prompts, which no fit used")} if together else {}
    return msgspec.structs.replace(fitted, errors=fitted.errors | found)


def _work_of(both: MixedPass) -> Work:
    work = work_of(both.decoding)
    chunks = (Chunk(both.prompt_tokens, 0),) * both.prompts
    return msgspec.structs.replace(work, chunks=chunks, head_rows=work.head_rows + both.prompts)
