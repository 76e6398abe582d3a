"""Acceptance that comes from the two models themselves: the pair that has it, and what a replay recorded of it.

Not here: making a pair agree (realrun.model.weights.tied_pair), loading one and asking it (measured_tape), the
simulator's keyed draws (sim.acceptance.draws). No torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from realrun.replay.measured_costs import MeasuredWork
from sim.acceptance.models import MAX_DRAFT_TOKENS
from sim.acceptance.tape import TapeAcceptance, replay
from sim.costs.compact_kernels import CompactKernels
from sim.costs.profile import Profile
from sim.files.json_values import Json
from sim.interface.request import Request
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """A pair with weights of its own, and what it is asked: texts decide what is accepted."""

    target: Path
    """Folder in the format of transformers, as `draft`."""
    draft: Path
    prompts: tuple[tuple[list[int], str], ...]
    """[requests] token ids and content class."""

    def check(self, requests: Iterable[Request], vocab: int) -> None:
        """Raise ValueError unless there is a prompt for each request, as long as the workload has it."""
        for request in requests:
            if request.index >= len(self.prompts):
                raise ValueError(f"--prompts holds {len(self.prompts)} prompts; --num-prompts asks for more")
            tokens, _ = self.prompts[request.index]
            if len(tokens) != request.prompt_tokens:
                raise ValueError(
                    f"--prompts line {request.index + 1} has {len(tokens)} tokens and its request "
                    f"{request.prompt_tokens}; take lengths from the same file: --dataset-name jsonl --dataset-path"
                )
            if not all(0 <= token < vocab for token in tokens):
                raise ValueError(f"--prompts line {request.index + 1} has a token outside the vocabulary of {vocab}")


class ClassTape(NamedTuple):
    """Requests of one content class."""

    name: str
    tapes: list[list[int]]

    def summary(self, draft_tokens: int) -> dict[str, Json]:
        """Acceptance over the rounds of playing each tape once with drafts of `draft_tokens`."""
        played = TapeAcceptance(tuple(np.array(tape, dtype=np.uint8) for tape in self.tapes))
        rates = played.unconditional_rates(draft_tokens)
        return {
            "class": self.name,
            "requests": len(self.tapes),
            "rounds": sum(len(replay(tape, draft_tokens)) for tape in self.tapes),
            "acceptance_length": 1.0 + sum(rates),
            "acceptance_rates": list(rates),
        }


def by_class(tapes: Sequence[Sequence[int]], classes: Sequence[str]) -> list[ClassTape]:
    """All requests, then each class where there are several; answers of one token, which no draft saw, left out."""
    known = [
        (own, [min(value, MAX_DRAFT_TOKENS + 1) for value in tape])
        for own, tape in zip(classes, tapes, strict=True)
        if len(tape) > 1
    ]
    names = dict.fromkeys(own for own, _ in known)
    found = [ClassTape("all", [tape for _, tape in known])] if known else []
    if len(names) > 1:
        found += [ClassTape(name, [tape for own, tape in known if own == name]) for name in names]
    return found


def write_tapes(folder: Path, tapes: Sequence[ClassTape]) -> None:
    """tape.jsonl of all, the first, and tape-CLASS.jsonl of each class: what `--acceptance tape:FILE` reads."""
    for number, each in enumerate(tapes):
        name = f"tape-{each.name}.jsonl" if number else "tape.jsonl"
        (folder / name).write_text("".join(json.dumps({"yields": tape}) + "\n" for tape in each.tapes))


def rounds_alike(works: Iterable[MeasuredWork], tapes: Sequence[Sequence[int]], draft_tokens: int) -> tuple[int, int]:
    """Rounds of a replay with drafts of `draft_tokens` that lie on the tapes, and those that accepted as those say."""
    num_rounds = num_alike = 0
    for work in works:
        if work.record.kind not in (Kind.VERIFY, Kind.STEP) or work.record.is_cancelled:
            continue
        for index, emitted, accepted in zip(work.record.requests, work.emitted, work.accepted, strict=False):
            if 0 < emitted < len(tapes[index]):
                num_rounds += 1
                num_alike += accepted == min(tapes[index][emitted] - 1, draft_tokens)
    return num_rounds, num_alike
