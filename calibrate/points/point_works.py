"""Measured points as works: what the cost model is asked for, so that measured and fitted are the same thing.

Not here: measuring them (calibrate.measure.bench), choosing them (calibrate.measure.grid), the fit
(calibrate.fit.pass_fit).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal, NamedTuple

import msgspec

from sim.costs.profile import Launch, MeasuredPoint, PassKind, Role
from sim.costs.shapes import ModelShape
from sim.interface.work import Chunk, Kind, Model, Work

L2State = Literal["cold", "warm", "unknown"]
L2_STATES: tuple[L2State, ...] = ("cold", "warm", "unknown")
VISITS = {"cpu": 5, "cuda": 2}
"""Times that a place is measured where the budget allows, all the others in between: a machine that drifts does not
favour any. The range of five values is a 94 % interval of their median."""
NOISY_PCT = 5.0
"""A point with a wider half interval is noisy."""
COLD = 2.0
"""A pass whose weights and KV are so many times the L2 cache has evicted what it began with when it is repeated."""


class Place(NamedTuple):
    """Where a point lies in the grid; fields as in MeasuredPoint."""

    kind: PassKind
    model: Role
    rows: int
    tokens: int
    context_tokens: int
    launch: Launch

    @property
    def name(self) -> str:
        return f"{self.model} {self.kind} {self.rows}x{self.tokens} after {self.context_tokens} {self.launch}"

    @property
    def total_tokens(self) -> int:
        """Tokens through the body, all passes of a draft together."""
        return self.rows * self.tokens


class Cell(NamedTuple):
    """Two or three passes that run over and over beside each other, each on a stream and on rows of its own."""

    places: tuple[Place, ...]
    share_pct: int | None = None
    """Percent of the multiprocessors that the first pass is to have while the second has the rest; None: all have
    all."""

    @property
    def name(self) -> str:
        on = "" if self.share_pct is None else f" on {self.share_pct} %"
        first, *others = (f"{place.kind} {place.rows}x{place.tokens} {place.launch}" for place in self.places)
        return " beside ".join((f"{first}{on}", *others))

    @property
    def kinds(self) -> str:
        return " beside ".join(place.kind for place in self.places)

    @property
    def num_rows(self) -> int:
        return sum(place.rows for place in self.places)

    @property
    def is_captured(self) -> bool:
        return all(place.launch == "graphed" for place in self.places)


def place_of(point: MeasuredPoint) -> Place:
    return Place(point.kind, point.model, point.rows, point.tokens, point.context_tokens, point.launch)


def merged(visits: Sequence[MeasuredPoint]) -> MeasuredPoint:
    """One point of several visits to its place: medians over them. Its half width is theirs, or half of the range of
    their times where that is wider."""
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


def work_of(place: Place) -> Work:
    """The work that a policy would submit for this pass. Prompts end with the chunk, so the target samples."""
    rows, tokens, model = place.rows, place.tokens, Model(place.model)
    context_tokens = rows * place.context_tokens
    if place.kind == "prefill":
        return Work(
            kind=Kind.PREFILL,
            model=model,
            chunks=(Chunk(tokens, place.context_tokens),) * rows,
            head_rows=rows if model is Model.TARGET else 0,
        )
    if place.kind == "draft":
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


def l2_state(place: Place, shape: ModelShape, l2_bytes: int | None) -> L2State:
    """State of the L2 cache for `place` repeated over and over, nothing flushed between: "cold" where its weights and
    KV exceed the cache COLD times, "warm" where both fit it. Between, and where its size is not known, "unknown"."""
    if l2_bytes is None:
        return "unknown"
    weights = shape.layers * shape.layer_weights + shape.vocab * shape.hidden
    kv_tokens = place.rows * (place.context_tokens + place.tokens)
    num_bytes = weights * shape.dtype_bytes + kv_tokens * shape.kv_bytes_per_token
    return "cold" if num_bytes >= COLD * l2_bytes else "warm" if num_bytes <= l2_bytes else "unknown"


def error_kind(place: Place) -> str:
    """Key of the profile's errors that a point counts for."""
    return "draft_prefill" if place.model == "draft" and place.kind == "prefill" else place.kind
