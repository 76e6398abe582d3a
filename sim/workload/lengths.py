"""Prompt and output lengths of recorded workloads, as small quantile tables with both lengths dependent.

A table is the prompt's quantile function and the output's, for each of several equal-sized groups by prompt length.
Both are piecewise linear in probability and fitted to the sorted lengths by least squares, which keeps the means.
Not here: arrivals (sim.workload.generate) and whole traces (sim.workload.traces).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from sim.draws import Floats, Integers

_PROMPT_LEVELS = (
    0.0, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5,
    0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.93, 0.96, 0.98, 0.99, 0.995, 0.998, 1.0,
)  # fmt: skip
"""Probabilities of the prompt quantiles."""
_OUTPUT_LEVELS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995, 1.0)
"""Probabilities of the output quantiles."""
PART = 1 << 15
"""Requests whose lengths are drawn together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthTable:
    """Joint distribution of prompt and output tokens."""

    source: str
    recorded_means: tuple[float, float]
    """Mean prompt and output tokens of the source."""
    prompt_tokens: tuple[int, ...]
    """[prompt levels]"""
    output_tokens: tuple[tuple[int, ...], ...]
    """[groups][output levels], short prompts first."""

    def sample(self, prompt_uniforms: Floats, output_uniforms: Floats) -> tuple[Integers, Integers]:
        """[requests] prompt and [requests] output tokens for uniforms in [0, 1)."""
        lengths = np.empty((2, len(prompt_uniforms)), np.int64)
        for at in range(0, len(prompt_uniforms), PART):
            part = slice(at, at + PART)
            lengths[:, part] = self._sample(prompt_uniforms[part], output_uniforms[part])
        return lengths[0], lengths[1]

    def _sample(self, prompt_uniforms: Floats, output_uniforms: Floats) -> tuple[Integers, Integers]:
        """The same of a part, whose scratch is small."""
        prompts = np.interp(prompt_uniforms, _PROMPT_LEVELS, self.prompt_tokens)
        groups = (prompt_uniforms * len(self.output_tokens)).astype(np.int64)
        levels = np.asarray(_OUTPUT_LEVELS)
        above = np.searchsorted(levels, output_uniforms, side="right")
        quantiles = np.asarray(self.output_tokens, dtype=np.float64)
        low, high = quantiles[groups, above - 1], quantiles[groups, above]
        share = (output_uniforms - levels[above - 1]) / (levels[above] - levels[above - 1])
        outputs = low + share * (high - low)
        return np.rint(prompts).astype(np.int64), np.rint(outputs).astype(np.int64)


LENGTH_TABLES = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=dict[str, LengthTable])
"""Lengths by dataset name."""
