"""Draft lengths of a scenario: which its controller may choose, and the times by which it chooses.

Not here: the rules of each controller (sim.engine.controllers), costs of several draft models (sim.run.drafters).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import msgspec

from sim.acceptance.models import Acceptance, IidAcceptance
from sim.acceptance.quoted import Quoted
from sim.costs.cost import CostModel
from sim.engine.controllers import VERIFYING, build_controller
from sim.engine.draft_choice import HYSTERESIS, DraftChoice
from sim.engine.draft_length import Controller
from sim.policies.options import EngineLimits
from sim.run.forecast import StepForecast
from sim.run.scenario import Speculation
from sim.workload.served import Served


class DraftLengths(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens drafted per round; 0 everywhere for a policy that never drafts."""

    given: int
    """The scenario's num_speculative_tokens."""
    min: int
    max: int
    """Look-ahead slots are held for so many."""
    constant: int | None
    """The length that the controller always chooses; None where it may choose this or that."""


def acceptance_at(quoted: Quoted, draft_tokens: int) -> Acceptance:
    """The acceptance model of a quote at a draft length, 0 included. Raises ValueError."""
    return quoted.model(draft_tokens) if draft_tokens else IidAcceptance(0.0)


@dataclass(frozen=True, kw_only=True)
class RoundTimes:
    """Rounds of requests of mean length, which are drawn when a controller first asks."""

    served: Served
    seed: int
    costs: CostModel
    limits: EngineLimits
    acceptances: Sequence[Acceptance]
    """[draft models]"""
    drafted_anew: int | None
    """Tokens that are drafted while fewer are verified; None where all that is drafted is."""
    has_draft: bool

    @cached_property
    def _means(self) -> tuple[float, float]:
        """Tokens of a prompt and of an output, of the workload's sample."""
        sample = self.served.sample(self.seed).requests
        prompts, outputs = sum(r.prompt_tokens for r in sample), sum(r.output_tokens for r in sample)
        return prompts / len(sample), outputs / len(sample)

    @cached_property
    def _steps(self) -> StepForecast:
        """Steps of continuous batching."""
        prompt, output = self._means
        return StepForecast(self.costs, self.limits, prompt + output / 2.0, has_draft=self.has_draft)

    def round_s(self, rows: int, draft_tokens: int) -> float:
        """Seconds by the profile's costs."""
        return self._steps.step_s(rows, draft_tokens, self.drafted_anew)

    def tokens_per_s(self, lengths: Sequence[int], drafter: int, rows: int) -> float:
        """Expected of rounds of so many rows with a draft model."""
        prompt, output = self._means
        accepted = self.acceptances[drafter].expected_length(lengths[drafter])
        return output * self._steps.lane_requests_per_s(
            rows, max(1, round(prompt)), max(0.0, output - 1.0) / accepted, lengths[drafter], drafter
        )


def lengths_of(speculation: Speculation, draft_tokens: int, *, is_real: bool) -> DraftLengths:
    """Raises ValueError for a controller that a real host cannot follow."""
    controller = controller_of(speculation, draft_tokens, None)
    if is_real and speculation.drafts and draft_tokens:
        raise ValueError("speculation.drafts are simulated only: a replay has one draft model loaded")
    if is_real and speculation.controller == VERIFYING and draft_tokens:
        raise ValueError(
            f"speculation.controller={VERIFYING} is simulated only: a replay verifies all that was drafted"
        )
    return DraftLengths(
        given=draft_tokens,
        min=controller.draft_tokens_min,
        max=controller.draft_tokens_max,
        constant=controller.constant_length,
    )


def controller_of(speculation: Speculation, draft_tokens: int, times: RoundTimes | None) -> Controller:
    """The controller of draft lengths; without `times` it says what it may choose, and chooses nothing."""
    if speculation.drafts and draft_tokens:
        lengths = (draft_tokens, *(drafter.num_speculative_tokens for drafter in speculation.drafts))
        tokens_per_s = _no_time if times is None else partial(times.tokens_per_s, lengths)
        return DraftChoice(lengths, tokens_per_s, hysteresis=HYSTERESIS)
    return build_controller(
        speculation.controller,
        draft_tokens,
        table=speculation.num_speculative_tokens_per_batch_size,
        round_s=_no_time if times is None else times.round_s,
    )


def _no_time(rows: int, draft_tokens: int) -> float:
    raise AssertionError("what may be drafted is decided before anything is priced")
