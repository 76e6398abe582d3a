"""Measured points as works: what the cost model is requested, so that measured and fitted are the same thing.

Not here: timing (calibrate.measure.timing), choosing (calibrate.fit.grid), fitting (calibrate.fit.pass_fit).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import msgspec

from sim.costs.profile import Launch, MeasuredPoint, PassKind, Role
from sim.interface.work import Chunk, Kind, Model, Work

VISITS = {"cpu": 5, "cuda": 2}
"""Times that a pass is measured where the budget allows, all the others in between: a machine that drifts does not
favour any. The range of five values is a 94 % interval of their median."""
NOISY_PCT = 5.0
"""A point with a wider half interval is noisy."""


class TimedPass(NamedTuple):
    """A pass of the grid that is timed; fields as in MeasuredPoint."""

    kind: PassKind
    model: Role
    rows: int
    tokens: int
    context_tokens: int
    launch: Launch

    @property
    def name(self) -> str:
        return f"{self.model} {self.kind} {self.rows}x{self.tokens} after {self.context_tokens} {self.launch}"


class MixedPass(NamedTuple):
    """Decoding rows with whole prompts: verified and prefilled in one pass, or drafted after the draft's prefill."""

    decoding: TimedPass
    prompts: int
    prompt_tokens: int
    """Of each prompt."""


class Corun(NamedTuple):
    """Two or three passes that run over and over beside each other, each on a stream and on separate rows."""

    passes: tuple[TimedPass, ...]
    share_pct: int | None = None
    """Percent of the multiprocessors of the first pass, of which the second has the rest; None: all have all."""
    favoured: int | None = None
    """The pass whose stream has a higher priority than the others'; None: all alike."""

    @property
    def is_plain(self) -> bool:
        """True of works on the whole device, streams all alike."""
        return self.share_pct is None and self.favoured is None

    @property
    def kinds(self) -> str:
        return " beside ".join(timed.kind for timed in self.passes)

    @property
    def num_rows(self) -> int:
        return sum(timed.rows for timed in self.passes)

    @property
    def is_captured(self) -> bool:
        return all(timed.launch == "graphed" for timed in self.passes)


def timed_pass_of(point: MeasuredPoint) -> TimedPass:
    return TimedPass(point.kind, point.model, point.rows, point.tokens, point.context_tokens, point.launch)


def merged(visits: Sequence[MeasuredPoint]) -> MeasuredPoint:
    """One point of several visits: medians. Its half width is theirs, or half of the range of their times."""
    device_s = median(visit.device_s for visit in visits)
    range_s = max(visit.device_s for visit in visits) - min(visit.device_s for visit in visits)
    half_width_pct = max(median(visit.half_width_pct for visit in visits), 50.0 * range_s / device_s)
    return msgspec.structs.replace(
        visits[0],
        device_s=device_s,
        host_s=median(visit.host_s for visit in visits),
        half_width_pct=round(half_width_pct, 2),
        repetitions=sum(visit.repetitions for visit in visits),
        is_noisy=half_width_pct > NOISY_PCT,
    )


def work_of(timed: TimedPass) -> Work:
    """The work that a policy would submit for this pass. Prompts end with the chunk, so the target samples."""
    rows, tokens, model = timed.rows, timed.tokens, Model(timed.model)
    context_tokens = rows * timed.context_tokens
    if timed.kind == "prefill":
        return Work(
            kind=Kind.PREFILL,
            model=model,
            chunks=(Chunk(tokens, timed.context_tokens),) * rows,
            head_rows=rows if model is Model.TARGET else 0,
        )
    if timed.kind == "draft":
        return Work(
            kind=Kind.DRAFT,
            model=model,
            rows=rows,
            row_tokens=rows,
            context_tokens=context_tokens,
            head_rows=rows,
            draft_tokens=tokens,
        )
    return Work(
        kind=Kind.VERIFY,
        model=model,
        rows=rows,
        row_tokens=rows * tokens,
        context_tokens=context_tokens,
        head_rows=rows * tokens,
    )


def error_kind(timed: TimedPass) -> str:
    """Key of the profile's errors that a point counts for."""
    return "draft_prefill" if timed.model == "draft" and timed.kind == "prefill" else timed.kind
