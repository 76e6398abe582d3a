"""The search over candidate deployments: what is refused and why, which is best, and what is said of it."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import msgspec
import pytest

from sim.costs.datasheets import POWER
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.run.scenario import Scenario
from sim.studies.plan.candidate_ranking import Candidate, Contender, Refused, first_pass
from sim.studies.plan.search import Rental, in_other_tables, plan
from sim.workload.classes import Goodput
from tests.properties import printed

ONE, FOUR = "h100-sxm/qwen3-32b", "h100-sxm/qwen3-32b-tp2"
PAIR = "h200-sxm/llama-3.1-8b+eagle3"


def scenario(profile: str = ONE, ttft_ms: float = 1000.0, tpot_ms: float = 60.0, k: int = 0, **more: Any) -> Scenario:
    return Scenario.of(
        profile=profile, policy="continuous", input_len=256, output_len=32, num_prompts=60, num_speculative_tokens=k,
        acceptance="length:2.6@3", **{"goodput.ttft_ms": ttft_ms, "goodput.tpot_ms": tpot_ms}, **more,
    )  # fmt: skip


def candidates(*names: str) -> list[Candidate]:
    return [Candidate(name, load(name)) for name in names]


def planned(given: Scenario, *names: str, **options: Any) -> Rental:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return plan(given, candidates(*names), **{"rate_per_s": 20.0, "draws": 3, "workers": 1, **options})


@cache
def planned_with_drafts() -> Rental:
    """One answer that several tests read."""
    return planned(scenario(PAIR, k=2), PAIR, price_per_gpu_h=3.5)


def ranked(given: Scenario, *names: str, rate: float = 20.0) -> tuple[list[Contender], list[Refused]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return first_pass(given, candidates(*names), rate, 1, lambda *_: None)


def test_a_candidate_that_misses_the_slo_alone_is_refused_with_what_it_reaches() -> None:
    found, refused = ranked(scenario(tpot_ms=15.0), ONE, FOUR)
    assert [each.candidate.name for each in found] == [FOUR]
    assert refused[0].deployment == "TP1"
    assert "one request alone has" in refused[0].why
    assert refused[0].miss is not None
    assert refused[0].miss > 1.0


def test_a_candidate_that_misses_the_slo_with_every_draft_length_is_refused_with_the_nearest() -> None:
    plain, drafting = (ranked(scenario(PAIR, tpot_ms=0.1, k=k), PAIR)[1][0] for k in (0, 2))
    assert plain.miss is not None
    assert drafting.miss is not None
    assert 1.0 < drafting.miss < plain.miss


def test_a_candidate_without_room_for_kv_is_refused_with_that_reason() -> None:
    small = msgspec.structs.replace(load(ONE), gpu=msgspec.structs.replace(load(ONE).gpu, memory_bytes=70_000_000_000))
    _, refused = first_pass(scenario(), [Candidate(ONE, small)], 20.0, 1, lambda *_: None)
    assert "no room for KV" in refused[0].why
    assert refused[0].miss is None


def test_nothing_that_meets_the_slos_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"no deployment meets TTFT 1000 ms and TPOT 1 ms\. Nearest is TP2: .* tpot"):
        planned(scenario(tpot_ms=1.0), ONE, FOUR)


def test_the_fewest_gpus_for_the_rate_come_first_and_the_sentence_says_so() -> None:
    found = planned(scenario(), ONE, FOUR, rate_per_s=20.0, price_per_gpu_h=2.0)
    rows = [row for row in found.deployments if not row.is_first_pass]
    assert [row.gpus for row in rows] == sorted(row.gpus for row in rows)
    best = found.deployments[0]
    assert found.verdict.startswith(f"Rent {best.gpus} x h100-sxm: {best.replicas} replica")
    assert best.worlds_met == sum(share >= 0.95 for share in best.attainment_by_draw)
    assert best.usd_per_million_tokens == pytest.approx(2.0 * best.gpus / (20.0 * 32 * 3600.0) * 1e6)


def test_where_tables_dispute_a_note_says_what_either_world_comes_to() -> None:
    """The best row at a rate; by tables in which passes take 1.5 times as long, as long as here, or far longer."""
    found = planned(scenario(), ONE, rate_per_s=40.0, draws=0)
    best = found.deployments[0]

    def other_gpus(ratio: float) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            told = in_other_tables(found, load(ONE), ratio, "vllm's own")
        return told.removeprefix("By vllm's own tables ")

    slower = int(other_gpus(1.5).removeprefix("you need about ").removesuffix(" GPUs."))
    assert other_gpus(1.0) == f"you need about {best.gpus} GPUs."
    assert slower > best.gpus
    assert other_gpus(100.0) == "nothing meets the SLOs."


def test_slos_that_bound_no_waiting_leave_what_a_replica_can_serve() -> None:
    given = msgspec.structs.replace(scenario(), goodput=Goodput(tpot_ms=60.0))
    bounded, loose = (planned(each, ONE).deployments[0] for each in (given, scenario(ttft_ms=1e9)))
    assert bounded.rate_per_replica == pytest.approx(loose.rate_per_replica)


def test_a_drafter_that_pays_is_in_the_row_and_its_lengths_are_by_load() -> None:
    found = planned_with_drafts()
    best = found.deployments[0]
    assert best.num_speculative_tokens in (1, 2)
    assert found.tuning is not None
    assert best.k_table == found.tuning.k_table
    assert "with eagle3 at K = " in found.verdict
    assert '"method": "eagle3"' in found.start
    lines = printed(found).splitlines()
    assert len(lines) < 25
    assert max(len(line.rstrip()) for line in lines if "speculative-config" not in line) <= 80
    assert " ".join(" ".join(lines).split()).startswith(" ".join(found.verdict.split()))


def test_one_draft_is_always_among_the_lengths_since_it_fits_captured_graphs_the_longest() -> None:
    given = scenario(PAIR, k=3, max_concurrency=16)
    sure = msgspec.structs.replace(given.speculation, acceptance="length:3.8@3")
    (found,), _ = ranked(msgspec.structs.replace(given, speculation=sure), PAIR)
    assert (found.k, found.lengths) == (3, (1, 3))


def test_ranks_of_a_replica_count_together() -> None:
    def ranks(profile: Profile) -> Profile:
        return msgspec.structs.replace(profile, data_parallel=2)

    one, (two,) = candidates(PAIR)[0], [Candidate(PAIR, ranks(load(PAIR)))]
    found, _ = first_pass(scenario(PAIR), [one, two], 50.0, 1, lambda *_: None)
    by_gpus = {each.candidate.gpus: each for each in found}
    assert by_gpus[2].rate_per_s == pytest.approx(2.0 * by_gpus[1].rate_per_s)


def test_a_plan_says_joules_of_simulated_rows_where_it_is_asked() -> None:
    found = planned(scenario(energy=True), ONE, rate_per_s=5.0)
    (row,) = (each for each in found.deployments if not each.is_first_pass)
    idle_w, limit_w = POWER["h100-sxm"]
    joules = row.joules_per_output_token
    assert joules is not None
    assert idle_w < joules * row.output_tokens_per_s_per_gpu < limit_w
    assert "energy" not in found.scenario
    assert "J/tok" in printed(found, 200)
    assert planned(scenario(), ONE, rate_per_s=5.0).deployments[0].joules_per_output_token is None


def test_tokens_of_a_plan_are_those_that_are_served_where_the_context_ends_answers() -> None:
    """16 of 32 are served."""
    asked = planned(scenario(**{"engine.max_model_len": 272}), ONE, rate_per_s=5.0, draws=0).deployments[0]
    assert asked.output_tokens_per_s_per_gpu == pytest.approx(5.0 * 16 / asked.gpus)
