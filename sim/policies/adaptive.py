"""Adaptive: the lane policy that a table says for the load, new requests only (report 002's deployment table, or a
calibrated one).

The load is the number of unfinished requests. A request stays with the policy that took it in, so after a change both
run until the old one's are through, on the same GPU and in the same memory; with `hysteresis` a row is left only when
the load is so far beyond its edge. Continuous batching keeps its memory otherwise and cannot be a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any

from sim.bounds import Bounds
from sim.engine.intake import Intake
from sim.engine.serving import AdmissionCaps, Choose, Serving
from sim.engine.time_series import GaugePart
from sim.hosts.view import HostView
from sim.interface.request import Request
from sim.interface.wait import Task
from sim.policies import baseline, pd, pdv, unified
from sim.policies.baseline import BaselineOptions
from sim.policies.options import CHUNK, EngineLimits, keys
from sim.policies.pd import PdOptions
from sim.policies.pdv import PdvOptions
from sim.policies.policy import Policy
from sim.policies.unified import UnifiedOptions

PARTS: dict[str, Callable[[Serving, Any, EngineLimits], list[Task]]] = {
    "baseline": baseline.coroutines,
    "pd": pd.coroutines,
    "pdv": pdv.coroutines,
    "unified": unified.coroutines,
}
"""Policies that a row of the table can name."""

SEED_TABLE = "seed-002"
"""The deployment table of that report."""

LoadTable = tuple[tuple[int, str], ...]
"""(least load, policy), rising; the first row begins with 1."""


@dataclass(frozen=True, kw_only=True)
class AdaptiveOptions(BaselineOptions, PdOptions, PdvOptions, UnifiedOptions):
    """Options of `adaptive`: its own, and those of the policies that its rows name."""

    adaptive_table: LoadTable | str = SEED_TABLE
    """adaptive: rows of [unfinished requests from which on, lane policy], the first at 1; seed-002: the deployment
    table of report 002."""
    hysteresis: Annotated[float, Bounds(0, 1e6)] = 0.0
    """adaptive: a row is left only when the load is this share beyond its edge."""

    def __post_init__(self) -> None:
        super().__post_init__()
        key, table = f"policy_options.adaptive_table={self.adaptive_table!r}", self.adaptive_table
        if isinstance(table, str):
            if table != SEED_TABLE:
                raise ValueError(f"{key} must be a list of [load, policy], or {SEED_TABLE}")
            return
        starts = [start for start, _ in table]
        if not starts or starts[0] != 1 or any(later <= earlier for earlier, later in pairwise(starts)):
            raise ValueError(f"{key}: rows begin at {starts}. The first must be 1, and they must rise")
        for _, name in table:
            if name not in PARTS:
                raise ValueError(f"{key}: {name!r} is none of {', '.join(PARTS)}")


class Part(Serving):
    """Part of `whole` that one policy serves: in its memory and its seats, with its controller, into its account."""

    def __init__(self, whole: Serving, label: str) -> None:
        host = HostView(whole.host, label)
        super().__init__(
            host,
            (),
            whole.kv,
            whole.controller,
            AdmissionCaps(max_num_batched_tokens=whole.max_num_batched_tokens),
            measured=whole.measured,
            plans_ahead=whole.plans_ahead,
            intake=Intake(host, queue=GaugePart(whole.queue)),
        )
        self.whole, self.gaps = whole, whole.gaps

    def admit_now(self, choose: Choose | None = None) -> Request | None:
        """Admit as any serving does, within the seats that all parts have together."""
        most = self.whole.max_num_seqs
        if most is not None and self.whole.num_active >= most:
            return None
        request = super().admit_now(choose)
        if request is not None:
            self.whole.num_admitted += 1
        return request

    def release(self, request: Request) -> None:
        self.num_finished += 1
        self.whole.release(request)


def coroutines(serving: Serving, options: AdaptiveOptions, limits: EngineLimits) -> list[Task]:
    table, row = options.adaptive_table, 0
    if isinstance(table, str):
        table = seed_table(is_heavy=False)
    parts = {name: Part(serving, name) for name in dict.fromkeys(name for _, name in table)}

    def arrived(request: Request) -> None:
        """Every request goes to the policy of the present row."""
        nonlocal row
        row = row_for(table, serving.num_arrived - serving.num_finished, row, options.hysteresis)
        parts[table[row][1]].intake.arrive(request)

    def wake() -> None:
        """A seat is free, and memory: whoever waits for it looks."""
        for part in parts.values():
            if part.inbox:
                part.host.notify(part.intake.changed)

    serving.divide(arrived, wake)
    shared = replace(options, lanes=None)  # All parts have the same seats.
    return [task for name, part in parts.items() for task in PARTS[name](part, shared, limits)]


def row_for(table: LoadTable, load: int, present: int, hysteresis: float) -> int:
    """Index of the row that serves `load`: the present one, unless the load is beyond its edge by more than that share
    of the edge; then the row that the load is in.

    >>> table = ((1, "pd"), (32, "unified"))
    >>> [row_for(table, load, 0, 0.25) for load in (31, 39, 40)], [row_for(table, load, 1, 0.25) for load in (25, 23)]
    ([0, 0, 1], [1, 0])

    A load may go beyond several edges at once:

    >>> table = ((1, "pd"), (10, "pdv"), (20, "unified"))
    >>> [row_for(table, load, present, 0.2) for load, present in ((25, 0), (19, 2), (15, 2), (9, 1), (8, 1), (7, 1))]
    [2, 2, 1, 1, 0, 0]
    >>> [row_for(table, load, 0, 0.0) for load in (9, 10, 19, 20)]
    [0, 1, 1, 2]
    """
    row = max(index for index, (start, _) in enumerate(table) if index == 0 or load >= start)
    if row > present and load < table[present + 1][0] * (1.0 + hysteresis):
        return present
    if row < present and load > table[present][0] * (1.0 - hysteresis):
        return present
    return row


def seed_table(*, is_heavy: bool) -> LoadTable:
    """Report 002's: from 32 requests on its unified worker, 6 to 16 pd, and else that worker where the target
    `is_heavy` (34B or more), pd where not.

    >>> seed_table(is_heavy=False)
    ((1, 'pd'), (32, 'unified'))
    >>> seed_table(is_heavy=True)
    ((1, 'unified'), (6, 'pd'), (17, 'unified'))
    """
    if is_heavy:
        return ((1, "unified"), (6, "pd"), (17, "unified"))
    return ((1, "pd"), (32, "unified"))


POLICY = Policy(
    name="adaptive",
    summary="the lane policy that a table says for the load",
    is_built_in=True,
    source="report 002",
    build=coroutines,
    chooses_drafter=True,
    needs_draft=True,
    takes=(*keys(AdaptiveOptions, but=["partition", "lanes"]), CHUNK),
)
