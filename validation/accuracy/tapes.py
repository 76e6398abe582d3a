"""A model of acceptance fitted to recorded tapes.

Not here: tapes and models (sim.acceptance).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim.acceptance.models import MarkovAcceptance, RunLengths
from sim.acceptance.tape import TapeAcceptance
from sim.draws import Floats

FIT_DRAFT_TOKENS = 7
"""Longest draft that a fit looks at."""
SLOWEST = 1e-3
"""Smallest switching chance tried: states of a thousand tokens; slower ones belong to a request."""
STARTS = (
    (0.95, 0.05, 0.02, 0.05, 0.999),
    (0.90, 0.50, 0.10, 0.10, 0.97),
    (0.80, 0.30, 0.30, 0.30, 0.95),
    (0.99, 0.50, 0.01, 0.02, 0.97),
)
"""Hit rate, miss rate, to_hit, share of to_miss, fade."""


def fit_markov(
    tapes: Sequence[Sequence[int] | RunLengths], num_speculative_tokens: int = FIT_DRAFT_TOKENS
) -> MarkovAcceptance:
    """Least squares on the rates that all draft lengths 1..k together show when the tapes are replayed.

    These are the unconditional rates by place for every length: rounds start where others ended, so how they change
    with the length tells how long hits last.
    """
    from scipy.optimize import least_squares

    draft_lengths = range(1, num_speculative_tokens + 1)
    recorded = TapeAcceptance(tuple(np.asarray(tape, dtype=np.uint8) for tape in tapes))
    wanted = np.concatenate([recorded.unconditional_rates(k) for k in draft_lengths])

    def misfit(parameters: Floats) -> Floats:
        model = _markov(parameters)
        shown: Floats = np.concatenate([model.unconditional_rates(k) for k in draft_lengths]) - wanted
        return shown

    bounds = ([0.0, 0.0, SLOWEST, SLOWEST, 0.0], [1.0, 1.0, 1.0, 1.0, 1.0])
    fits = [least_squares(misfit, np.array(start), bounds=bounds) for start in STARTS]
    return _markov(min(fits, key=lambda fit: float(fit.cost)).x)


def _markov(parameters: Floats) -> MarkovAcceptance:
    """Rates as they are; `to_hit`, and `to_miss` as a share of what to_hit leaves below 1; fade."""
    hit_rate, miss_rate, to_hit, share, fade = np.clip(parameters, 0.0, 1.0).tolist()
    return MarkovAcceptance(hit_rate, miss_rate, to_hit, share * (1.0 - to_hit), fade)


def spec_of(model: MarkovAcceptance) -> str:
    """The model in --acceptance's notation, every digit."""
    values = (model.hit_rate, model.miss_rate, model.to_hit, model.to_miss, model.fade)
    return f"markov:{','.join(map(repr, values))}"
