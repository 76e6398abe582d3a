# ruff: noqa: E402
"""Acceptance and sampling as pure functions, against distributions worked out by hand."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from realrun.model import sampling
from realrun.model.sampling import Draw


def test_greedy_acceptance_stops_at_the_first_difference_and_at_the_drafts_length() -> None:
    drafted = torch.tensor([[1, 2, 3], [1, 9, 3], [1, 2, 3], [9, 2, 3]])
    choices = torch.tensor([[1, 2, 3, 4]] * 4)
    lengths = torch.tensor([3, 3, 2, 3])
    assert sampling.accept_greedy(choices, drafted, lengths).tolist() == [3, 1, 2, 0]


def test_a_row_without_a_draft_accepts_nothing() -> None:
    choices, none = torch.tensor([[5]]), torch.zeros(1, 0, dtype=torch.int64)
    assert sampling.accept_greedy(choices, none, torch.tensor([0])).tolist() == [0]


def test_a_drafted_token_passes_with_probability_p_over_q() -> None:
    target = torch.tensor([[[0.2, 0.8], [0.5, 0.5]]], dtype=torch.float64).expand(3, -1, -1)
    draft = torch.tensor([[[0.4, 0.6]]], dtype=torch.float64).expand(3, -1, -1)
    drafted, lengths = torch.zeros(3, 1, dtype=torch.int64), torch.ones(3, dtype=torch.int64)
    draws = torch.tensor([[0.0], [0.49], [0.51]])
    assert sampling.accept_sampled(target, draft, drafted, lengths, draws).tolist() == [1, 1, 0]


def test_residual_is_what_the_draft_left_over_and_the_bonus_is_the_target() -> None:
    target = torch.tensor([[[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]], dtype=torch.float64).expand(2, -1, -1)
    draft = torch.tensor([[[0.2, 0.7, 0.1]]], dtype=torch.float64).expand(2, -1, -1)
    weights = sampling.residual(target, draft, torch.tensor([0, 1]), torch.tensor([1, 1]))
    torch.testing.assert_close(weights, torch.tensor([[0.3, 0.0, 0.1], [0.1, 0.1, 0.8]], dtype=torch.float64))


def test_residual_of_equal_distributions_is_the_target_and_not_nothing() -> None:
    same = torch.tensor([[[0.25, 0.75]]])
    target = torch.cat((same, same), dim=1)
    assert sampling.residual(target, same, torch.tensor([0]), torch.tensor([1])).tolist() == [[0.25, 0.75]]


def test_pick_inverts_the_cumulative_distribution_and_skips_zero_weights() -> None:
    weights = torch.tensor([0.0, 1.0, 0.0, 3.0, 0.0]).expand(4, -1)
    draws = torch.tensor([0.0, 0.2499, 0.25, 1 - 2**-24])
    assert sampling.pick(weights, draws).tolist() == [1, 1, 3, 3]


def test_uniforms_depend_on_request_position_and_purpose_alone() -> None:
    keys = torch.tensor([sampling.request_key(7, request) for request in (0, 1)])
    positions = torch.arange(5).expand(2, -1)
    both = sampling.uniforms(keys.unsqueeze(1), positions, Draw.ACCEPT)
    alone = sampling.uniforms(keys[1:], torch.tensor([3]), Draw.ACCEPT)
    assert both[1, 3] == alone[0]
    others = [sampling.uniforms(keys[1:], torch.tensor([3]), draw) for draw in (Draw.DRAFT, Draw.TARGET)]
    assert len({float(value) for value in (alone, *others)}) == 3


def test_uniforms_are_spread_evenly_along_and_across_requests() -> None:
    """Kolmogorov distance below its 99.9 % point, 1.95 / sqrt(n), for n = 40,000; lag-1 correlations within 4 sigma."""
    keys = torch.tensor([sampling.request_key(3, request) for request in range(200)])
    values = sampling.uniforms(keys.unsqueeze(1), torch.arange(200).expand(200, -1), Draw.TARGET).double()
    ordered, n = values.flatten().sort().values, values.numel()
    assert float((ordered - (torch.arange(n) + 0.5) / n).abs().max()) < 1.95 / math.sqrt(n)
    for axis in (0, 1):
        centred = values - 0.5
        lagged = (centred * centred.roll(1, axis)).mean() * 12
        assert abs(float(lagged)) < 4 / math.sqrt(n)


def test_no_uniform_reaches_one() -> None:
    keys = torch.tensor([sampling.request_key(0, request) for request in range(1000)])
    values = sampling.uniforms(keys.unsqueeze(1), torch.arange(100).expand(1000, -1), Draw.DRAFT)
    assert float(values.min()) >= 0
    assert float(values.max()) <= 1 - 2**-24


@pytest.mark.parametrize("seed", [0, -1, 2**70])
def test_request_keys_fit_a_signed_64_bit_tensor(seed: int) -> None:
    assert torch.tensor(sampling.request_key(seed, 5)).dtype == torch.int64


def test_a_higher_temperature_brings_what_is_likely_and_what_is_not_nearer() -> None:
    """Odds of 16 to 1 are 4 to 1 at temperature 2 and 256 to 1 at a half."""
    logits = torch.tensor([[16.0, 1.0]], dtype=torch.float64).log()
    for temperature, odds in ((1.0, 16.0), (2.0, 4.0), (0.5, 256.0)):
        likely, unlikely = sampling.probabilities(logits, temperature)[0].tolist()
        assert likely / unlikely == pytest.approx(odds)
        assert likely + unlikely == pytest.approx(1.0)
