"""A model of acceptance from elsewhere, held to what `Acceptance` promises: each answer is checked once, as it comes.

Not here: how such a model is registered (sim.acceptance.forms).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sim.acceptance.models import Acceptance, RunLengths
from sim.draws import Positions
from sim.plugins import PluginError, naming_plugin, shown

SLACK = 1e-9
"""Excess over 1, or over the rate before it, that rounding may give a rate."""


def built_model(
    name: str, build: Callable[[Sequence[float], int], Acceptance], values: Sequence[float], k: int
) -> Acceptance:
    """The model that `build`, registered as `name`, makes of its numbers at draft length `k`. Raises PluginError."""
    what = f"acceptance {name!r}"
    with naming_plugin(what):
        model = build(values, k)
    if not isinstance(model, Acceptance):
        raise PluginError(f"{what} gave {shown(model)}. It must give a lanesim.Acceptance")
    if type(model).__module__.startswith("sim.acceptance."):
        return model
    checked = CheckedAcceptance(model, what)
    checked.expected_length(k)
    checked.conditional_rates(k)
    return checked


@dataclass(frozen=True, slots=True)
class CheckedAcceptance(Acceptance):
    """`model`, whose answers are refused where they are no answers; `what` begins messages."""

    model: Acceptance
    what: str

    def unconditional_rates(self, num_speculative_tokens: int) -> tuple[float, ...]:
        with naming_plugin(f"{self.what}: unconditional_rates"):
            given = self.model.unconditional_rates(num_speculative_tokens)
        rates = self._rates("unconditional_rates", given, num_speculative_tokens)
        if any(rate > before + SLACK for before, rate in pairwise(rates)):
            raise PluginError(f"{self.what}: unconditional_rates gave {shown(given)}. They cannot rise")
        return rates

    def conditional_rates(self, num_speculative_tokens: int) -> tuple[float, ...]:
        self.unconditional_rates(num_speculative_tokens)
        with naming_plugin(f"{self.what}: conditional_rates"):
            given = self.model.conditional_rates(num_speculative_tokens)
        return self._rates("conditional_rates", given, num_speculative_tokens)

    def expected_length(self, num_speculative_tokens: int) -> float:
        self.unconditional_rates(num_speculative_tokens)
        with naming_plugin(f"{self.what}: expected_length"):
            length = float(self.model.expected_length(num_speculative_tokens))
        if not 1.0 <= length <= num_speculative_tokens + 1.0 + SLACK:
            most = num_speculative_tokens + 1
            raise PluginError(f"{self.what}: expected_length gave {length!r}. It must be a number from 1 to {most}")
        return length

    def run_lengths(self, window: Positions, depth: int) -> RunLengths:
        what = f"{self.what}: run_lengths"
        with naming_plugin(what):
            lengths = self.model.run_lengths(window, depth)
        if not isinstance(lengths, np.ndarray) or lengths.dtype.kind not in "iu":
            kind = lengths.dtype if isinstance(lengths, np.ndarray) else type(lengths).__name__
            raise PluginError(f"{what} gave {kind}. It must give an array of whole numbers [positions]")
        num_positions = int(window.widths.sum())
        if lengths.shape != (num_positions,):
            raise PluginError(f"{what} gave an array of shape {lengths.shape}. It must be ({num_positions},)")
        least, most = int(lengths.min()), int(lengths.max())
        if least < 0 or most > depth:
            raise PluginError(f"{what} gave lengths from {least} to {most}. They must be 0 to {depth}")
        return lengths.astype(np.uint8, copy=False)

    def _rates(self, method: str, given: object, count: int) -> tuple[float, ...]:
        with naming_plugin(f"{self.what}: {method} gave {shown(given)}"):
            rates = tuple(float(rate) for rate in given)  # type: ignore[attr-defined]
        if len(rates) != count or not all(0.0 <= rate <= 1.0 + SLACK for rate in rates):
            raise PluginError(f"{self.what}: {method} gave {shown(given)}. It must give {count} numbers from 0 to 1")
        return rates
