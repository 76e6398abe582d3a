"""Sections B to H: what each module computes by itself, and that every claim of a section gets its row."""

from __future__ import annotations

import numpy as np
import pytest

from sim.devices.contention import BRACKET
from validation.claims import deployment, dispec, noise, three_way
from validation.claims.claimed_cells import Ratio
from validation.claims.ledger import Claim, Verdict, read_section


@pytest.mark.parametrize(("name", "judge"), [("C", three_way.judge), ("D", noise.judge)])
def test_every_claim_of_a_section_has_a_row_with_a_verdict_and_a_sentence(name: str, judge: object) -> None:
    section = read_section(name)
    rows = judge(section, 2)  # type: ignore[operator]
    assert sorted(row.id for row in rows) == sorted(claim.id for claim in section.claims)
    assert all(row.why and "{" not in row.why for row in rows)
    assert all((row.simulated is None) == (row.verdict is Verdict.NOT_TESTABLE) or row.details for row in rows)


def test_noise_shows_the_claimed_gain_in_about_a_fifth_of_draws_and_none_in_the_mean() -> None:
    gains = noise.gains_pct(0.047, 1, 40_000)
    assert np.mean(gains) == pytest.approx(0.0, abs=0.2)
    assert np.std(np.log1p(-gains / 100.0)) == pytest.approx(0.047, rel=0.02)
    assert noise.share(gains, 4.1) == pytest.approx(0.186, abs=0.01)
    assert noise.share(gains, -9.0) < 0.05


def test_a_run_of_several_requests_varies_less_than_one_of_a_single_request() -> None:
    assert np.std(noise.gains_pct(0.047, 5, 20_000)) < np.std(noise.gains_pct(0.047, 1, 20_000))


def test_one_request_of_the_three_way_runs_takes_what_was_measured_once_fitted() -> None:
    section = read_section("C")
    fitted = three_way.fit(section, 3)
    served = three_way.serve(section, fitted, "pd", 1, 3)
    assert served.mean("mean_e2el_ms") == pytest.approx(6487, rel=0.01)


@pytest.mark.parametrize(
    ("lows", "expected"),
    [((1.03, 1.04, 1.05), "PDV"), ((1.01, 1.04, 1.05), "depends on overlap"), ((0.9, 1.0, 1.019), "PD")],
)
def test_pdv_is_recommended_only_where_every_phi_says_so(lows: tuple[float, float, float], expected: str) -> None:
    found = {level: Ratio(low + 0.1, low, low + 0.2) for level, low in zip(BRACKET, lows, strict=True)}
    assert deployment.choice(found) == expected


@pytest.mark.parametrize(
    ("concurrency", "pair", "expected"),
    [(1, "7b", "PD"), (1, "34b", "PDV"), (6, "34b", "PD"), (16, "7b", "PD"), (31, "7b", "PD"), (32, "7b", "PDV")],
)
def test_the_seeds_table_is_read_as_its_slide_writes_it(concurrency: int, pair: str, expected: str) -> None:
    assert deployment.seed_choice(concurrency, pair) == expected


def table_claims() -> list[Claim]:
    """Of section G those of one GPU, pair and concurrency."""
    return [claim for claim in read_section("G").claims if claim.id.split(".")[1] in deployment.GPUS]


def test_the_ledgers_claims_of_the_deployment_table_are_the_slides() -> None:
    for claim in table_claims():
        _, _, pair, concurrency = claim.id.split(".")
        assert claim.claimed == deployment.seed_choice(int(concurrency), pair)


def test_graphed_drafts_flip_the_laptops_speculation_and_eager_ones_do_not() -> None:
    rows = {row.id: row for row in dispec.judge(read_section("F"), 3)}
    eager, graphed = rows["F.spec.speedup"], rows["F.spec.whatif"]
    # By hand: four drafts of 20.2 ms and a verify of 31.9 ms, then of 3 ms each; 3 tokens per step.
    assert eager.simulated == pytest.approx(3.0 * 31.9 / (4 * 20.2 + 31.9), rel=0.05)
    assert graphed.simulated == pytest.approx(3.0 * 31.9 / (4 * 3.0 + 31.9), rel=0.05)
    assert rows["F.spec.tokens"].details["conditional"] == pytest.approx(1.9375)
    assert rows["F.disagg.identical"].verdict is Verdict.REPRODUCED
