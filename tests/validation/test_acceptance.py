"""Fits to recorded acceptance: known models come back."""

from __future__ import annotations

import numpy as np
import pytest

from sim.acceptance.draws import AcceptanceDraws
from sim.acceptance.forms import parse_quoted
from sim.acceptance.models import Acceptance
from sim.acceptance.tape import Tapes
from validation.judge.sources import fit_markov, spec_of

LENGTHS = range(1, 8)


def tapes_of(acceptance: Acceptance, num_requests: int, output_tokens: int) -> Tapes:
    """What a recorder would have written, seed 11."""
    draws = AcceptanceDraws(acceptance, 11)
    return tuple(
        np.array([1, *(draws.run_length(i, p, 16) + 1 for p in range(1, output_tokens))], dtype=np.uint8)
        for i in range(num_requests)
    )


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["markov:.13,.82", "markov:.9,.4,.05,.05,.95"])
def test_a_fitted_chain_predicts_the_lengths_of_the_chain_behind_the_tapes(spec: str) -> None:
    """300 requests of 500 tokens: within 1.5 %, the sampling error of the tapes."""
    truth = parse_quoted(spec).model(4)
    fitted = fit_markov(tapes_of(truth, 300, 500))
    for k in LENGTHS:
        assert fitted.expected_length(k) == pytest.approx(truth.expected_length(k), rel=0.015)
    assert parse_quoted(spec_of(fitted)).model(4).expected_length(4) == fitted.expected_length(4)
