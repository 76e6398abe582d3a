"""Acceptance that comes from the two models themselves: the pair that has it, and what a replay recorded of it.

Not here: making the pair agree (realrun.model.weights.tied_pair), the simulator's keyed draws (sim.acceptance.draws).
No torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from realrun.replay.measured import MeasuredWork
from sim.costs.kernels import CompactKernels
from sim.costs.profile import Profile
from sim.interface.work import Kind

EPSILON = 0.2
"""About .65 of the drafted tokens are accepted at temperature 0 (realrun.model.weights.tied_pair)."""
DRAFT_SHARE = 8
"""The draft has one in this many of the target's layers unless told otherwise: about what public pairs have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tied:
    """A draft made of the target's first `draft_layers` layers; the later ones of the target count `epsilon` of them.

    Raises ValueError for an `epsilon` below 0; 0 makes both models the same.
    """

    epsilon: float
    draft_layers: int

    def __post_init__(self) -> None:
        if not 0.0 <= self.epsilon < float("inf"):
            raise ValueError(f"epsilon={self.epsilon!r} must be a finite number of at least 0")


def tied_profile(profile: Profile, epsilon: float, draft_layers: int | None) -> tuple[Profile, Tied]:
    """`profile` with the draft that an epsilon-tied pair has, and that pair. Its kernels price any dense shape.

    Raises ValueError where that cannot be: points of another draft, or as many layers as the target has.
    """
    target = profile.target
    if not isinstance(profile.kernels, CompactKernels):
        raise ValueError(
            f"profile {profile.name!r} is a table of another draft's points: acceptance from the model needs "
            "constants (kernels.form=compact)"
        )
    wanted = draft_layers if draft_layers is not None else max(1, target.layers // DRAFT_SHARE)
    if not 1 <= wanted < target.layers:
        raise ValueError(f"draft layers {wanted} must be in 1..{target.layers - 1}, fewer than {target.name} has")
    draft = msgspec.structs.replace(target, name=f"{target.name}-first-{wanted}", layers=wanted)
    return msgspec.structs.replace(profile, draft=draft), Tied(epsilon=epsilon, draft_layers=wanted)


class RecordedDraws:
    """The acceptance that a replay recorded, as a simulation's draws: any gap is then timing only."""

    def __init__(self, works: Iterable[MeasuredWork]) -> None:
        """Raises ValueError for records without accepted counts."""
        self._accepted: dict[tuple[int, int], int] = {}
        for work in works:
            record = work.record
            if record.kind not in (Kind.VERIFY, Kind.STEP) or record.is_cancelled:
                continue
            if len(work.accepted) != record.rows:
                raise ValueError(
                    f"the replay recorded accepted counts of {len(work.accepted)} of {record.rows} rows of a "
                    f"{record.kind} work; without them it cannot be simulated: replay it again"
                )
            rows = zip(record.requests, work.emitted, work.accepted, strict=False)
            self._accepted.update(((index, emitted), count) for index, emitted, count in rows)

    def run_length(self, index: int, position: int, most: int) -> int:
        """Accepted tokens of a draft of `most` of request `index` with `position` output tokens out.

        Raises ValueError where the replay drafted nothing there.
        """
        count = self._accepted.get((index, position))
        if count is None:
            raise ValueError(
                f"the simulation drafts for request {index} with {position} output tokens out, where the replay "
                "did not (it was cut short, or shortened a draft): what the models would accept there is unknown; "
                "validate a whole replay, or one with --acceptance-from tape"
            )
        return min(count, most)
