"""Lanes on shares of the multiprocessors: which can be given, what `auto` chooses, what a comparison says of them."""

from __future__ import annotations

from io import StringIO
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from rich.console import Console

from sim.compare.capacity import Saturation
from sim.compare.side_by_side import compare
from sim.costs.cost import Demands
from sim.costs.forms.build import build_costs
from sim.costs.profile import KindError, Profile
from sim.costs.profile_files import load
from sim.devices.contention import Contention, Regime
from sim.devices.partition import MEASURED
from sim.interface.work import Kind
from sim.metrics.summary import summarise
from sim.policies.registry import POLICIES, Policy, PolicyOptions, register
from sim.report.tables import comparison_tables, notes
from sim.run.checks import IgnoredKeyWarning
from sim.run.forecast import Forecast, LaneSharing, MeanLoad
from sim.run.lane_shares import best_partition
from sim.run.resolve import resolve, resolve_all
from sim.run.scenario import Scenario
from sim.run.simulate import simulate
from tests.sim.constant_costs import ConstantCosts
from tests.sim.support import SECONDS, AlwaysAccept, NotedController, SimRun, request

PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"
HALVES = {"prefill": 0.5, "decode": 0.5}


def scenario(policy: Any, partition: object, profile: str = PAIR, **changes: Any) -> Scenario:
    given = {"input_len": 512, "output_len": 64, "num_prompts": 40, "request_rate": 10} | changes
    return Scenario.of(profile=profile, policy=policy, **given, **{"policy_options.partition": partition})


def paying() -> Profile:
    """PAIR on a GPU where few multiprocessors read at full pace and neighbours slow nobody: shares pay there."""
    shipped = load(PAIR)
    curve = msgspec.structs.replace(MEASURED, saturated_at=0.1, queue_slowdown=0.0, bandwidth_together=1.0)
    return msgspec.structs.replace(shipped, overlap=msgspec.structs.replace(shipped.overlap, partition=curve))


def chosen(policy: str, **changes: Any) -> dict[str, float]:
    """What `auto` gives where lanes are so busy that shares pay."""
    resolved = resolve(scenario(policy, "auto", **changes), paying(), policy)
    assert resolved.is_partitioned
    return resolved.options.shares


def test_shares_that_hold_only_together_leave_a_lone_request_the_whole_gpu() -> None:
    """One request at a time never has two lanes at work, and is served as on plain streams."""

    def e2el_ms(partition: object) -> float:
        found = scenario("pd", partition, num_prompts=3, request_rate="inf", max_concurrency=1)
        return sum(r.last_token_s - r.arrival_s for r in simulate(resolve(found, load(PAIR), "pd"), 0).requests)

    assert e2el_ms(HALVES | {"only_together": True}) == pytest.approx(e2el_ms(None), rel=1e-9)
    assert e2el_ms(HALVES) > 1.1 * e2el_ms(None)


@pytest.mark.parametrize(
    ("is_deferred", "begin_s", "join_s"), [(False, [4.0, 6.0], [6.0, 8.0]), (True, [9.0, 16.0], [16.0, 23.0])]
)
def test_deferred_prompts_begin_and_join_where_a_round_ends(
    is_deferred: bool, begin_s: list[float], join_s: list[float]
) -> None:
    """A prompt takes 2 s, a round 7 s: the first request decodes from 2 to 9, to 16 and to 23 s. The second comes at 4;
    its prompt waits for 9 s, is through at 11 s, and is seen at 16 s, where the third, which came at 5 s, begins."""
    flags = {"only_together": True, "deferred": True} if is_deferred else {"only_together": True}
    run = SimRun(
        "pd",
        [request(0, output=40), request(1, arrival_s=4.0, output=40), request(2, arrival_s=5.0)],
        draws=AlwaysAccept(),
        costs=ConstantCosts(device_s={**SECONDS, Kind.PREFILL: 1.0}, demand=Demands(0.0, 0.0)),
        options=PolicyOptions(poll_s=0.0, partition=HALVES | flags),
        controller=NotedController(4, 4),
        only_together=True,
    )
    works = [work for work in run.works if work[2] == "prefill"]
    assert [min(start_s for start_s, *_, indices in works if indices == (index,)) for index in (1, 2)] == begin_s
    assert [request_.first_token_s for request_ in run.serving.requests[1:]] == join_s


@pytest.mark.parametrize(
    ("policy", "partition", "message"),
    [
        ("pd", {"prefil": 0.4}, "unknown lane of pd 'prefil'; did you mean 'prefill'"),
        ("unified", HALVES, r"unknown lane of unified 'decode' \(known: prefill, draft, verify\)"),
        ("pd", {"prefill": 0.4, "decode": 0.7}, "shares sum to 1.1, want at most 1: prefill 0.4, decode 0.7"),
        ("pd", {}, "partition={}: want a share by lane, above 0 and at most 1"),
        ("pd", "best", "partition='best': want a share by lane"),
        ("unified", {"prefill": 0.5, "deferred": True}, "partition.deferred: one worker runs the lanes of 'unified'"),
        ("pd", HALVES | {"deferred": 1.0}, "only_together and deferred as true or false"),
        ("pd", {"prefill": True}, "partition={'prefill': True}: want a share by lane, above 0 and at most 1"),
        ("pdv", HALVES, "leaves nothing for verify of 'pdv'"),
        (["continuous", "baseline"], "auto", "no lanes to give shares in continuous, baseline; .* pd, pdv, unified"),
    ],
)
def test_what_no_lane_can_be_given_is_one_line(policy: Any, partition: object, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        resolve_all(scenario(policy, partition), load(PAIR))
    assert str(caught.value).startswith("policy_options.partition")
    assert "\n" not in str(caught.value)


def test_a_cpu_has_no_multiprocessors_to_give() -> None:
    with pytest.raises(ValueError, match="'cpu/tiny' is of a CPU"):
        resolve_all(scenario("pd", "auto", "cpu/tiny"), load("cpu/tiny"))


def test_auto_wants_lanes_that_it_knows() -> None:
    strange = register(
        Policy(name="strange", summary="", source="", build=POLICIES["pd"].build, lanes=(("prefill",), ("sample",)))
    )
    with pytest.raises(ValueError, match="'strange' has prefill, sample: give it shares"):
        resolve_all(scenario(strange.name, "auto"), load(PAIR))
    resolve_all(scenario(strange.name, {"prefill": 0.5, "sample": 0.5}), load(PAIR))


def test_shares_stand_in_every_run_and_beside_the_table_and_need_no_bracket() -> None:
    with pytest.warns(IgnoredKeyWarning, match="partition=.* means nothing to continuous"):
        found = compare(resolve_all(scenario(["continuous", "pd"], HALVES), load(PAIR)))
    assert [run["partition"] for run in found.runs] == [None, HALVES]
    assert [row.by_overlap for row in found.policies] == [{}, {}]
    assert not any(row.by_overlap for row in found.paired)
    plain = compare(resolve_all(scenario(["continuous", "pd"], None), load(PAIR)))
    assert plain.policies[1].by_overlap
    assert found.runs[0] == plain.runs[0]
    out = StringIO()
    comparison_tables(Console(file=out, width=200), found, is_verbose=True)
    assert "pd: prefill 0.5, decode 0.5" in out.getvalue()
    assert "overlap of streams" not in out.getvalue()


def test_a_share_of_each_lane_moves_the_latency_it_should() -> None:
    ttft, tpot = [], []
    for prefill in (0.2, 0.5, 0.8):
        given = scenario("pd", {"prefill": prefill, "decode": round(1 - prefill, 3)})
        run = summarise(simulate(resolve(given, load(PAIR), "pd"), 0))
        ttft.append(run["mean_ttft_ms"])
        tpot.append(run["mean_tpot_ms"])
    assert ttft[0] > ttft[1] > ttft[2]
    assert tpot[0] < tpot[1] < tpot[2]


def test_auto_gives_what_a_load_needs_and_the_same_for_all_seeds() -> None:
    long_prompts = chosen("pd", input_len=2048, request_rate=3)
    long_outputs = chosen("pd", input_len=64, output_len=512, request_rate=3)
    assert long_prompts["prefill"] > 2 * long_outputs["prefill"]
    for shares in (long_prompts, long_outputs, chosen("pdv")):
        assert sum(shares.values()) == pytest.approx(1.0)
    assert chosen("pd", seed=1) == chosen("pd", seed=2)
    assert list(chosen("pdv")) == ["prefill", "decode", "verify"]


def test_lanes_that_take_turns_divide_what_auto_leaves() -> None:
    assert list(chosen("unified", request_rate=24)) == ["prefill"]


@pytest.mark.parametrize(
    "load_", [{"request_rate": "inf"}, {"request_rate": "inf", "max_concurrency": 8}, {"request_rate": 500}]
)
def test_auto_knows_bursts_closed_loops_and_overload(load_: dict[str, Any]) -> None:
    shares = chosen("pd", **load_)
    assert 0.3 <= shares["prefill"] <= 0.8


@pytest.mark.parametrize("rate", [4, 16])
def test_auto_is_near_the_best_of_a_grid(rate: float) -> None:
    """Within 4 % of the mean E2EL of the best of nine; the worst is 1.9 times as slow, or more."""

    def e2el_s(partition: object) -> float:
        given = scenario("pd", partition, request_rate=rate, num_prompts=150)
        requests = simulate(resolve(given, load(PAIR), "pd"), 3).requests
        return sum(r.last_token_s - r.arrival_s for r in requests) / len(requests)

    grid = [e2el_s({"prefill": tenths / 10, "decode": 1 - tenths / 10}) for tenths in range(1, 10)]
    assert e2el_s("auto") < 1.04 * min(grid)
    assert max(grid) > 1.9 * min(grid)


def test_capacity_is_that_of_the_shares_that_suit_the_load() -> None:
    """A saturated run would be given others."""
    given = scenario("pd", "auto", input_len=64, output_len=256)
    chosen = resolve(given, paying(), "pd")
    assert chosen.partition is not None
    fixed = resolve(scenario("pd", chosen.partition, input_len=64, output_len=256), paying(), "pd")
    assert Saturation(chosen).capacity == Saturation(fixed).capacity


LOAD = MeanLoad(
    prompt_tokens=100,
    prompt_variation=0.0,
    context_tokens=100.0,
    num_rounds=4.0,
    draft_tokens=4,
    max_at_once=16,
    max_rows={Kind.DRAFT: 16, Kind.VERIFY: 16},
    rate_per_s=1e-6,
    max_concurrency=None,
)
SERIAL = Contention(regime=Regime.SERIAL)
COSTS = ConstantCosts(device_s={Kind.PREFILL: 1.0, Kind.DRAFT: 2.0, Kind.VERIFY: 5.0}, demand=Demands(1.0, 0.0))
READING = ConstantCosts(device_s=COSTS.device_s, demand=Demands(0.2, 1.0))


def test_a_forecast_of_a_lone_request_is_the_sum_of_its_works() -> None:
    """Two prefills on one share; four and a half rounds, the last for waiting, of draft and verify on theirs."""
    one, two, three = (MEASURED.slowdown(1.0, 0.0, share) for share in (0.5, 0.2, 0.3))
    (e2el_s, _) = Forecast((("prefill",), ("decode",)), COSTS, LOAD).score(LaneSharing((0.5, 0.5)))
    assert e2el_s == pytest.approx(2.0 * one + 4.5 * 7.0 * one, rel=0.01)
    (e2el_s, _) = Forecast((("prefill",), ("decode",), ("verify",)), COSTS, LOAD).score(LaneSharing((0.5, 0.2, 0.3)))
    assert e2el_s == pytest.approx(2.0 * one + 4.5 * (2.0 * two + 5.0 * three), rel=0.01)


def test_forecasts_simulations_and_tables_take_the_curve_that_the_profile_has() -> None:
    own = msgspec.structs.replace(MEASURED, saturated_at=1.0)
    (e2el_s, _) = Forecast((("prefill",), ("decode",)), COSTS, LOAD, Contention(curve=own)).score(
        LaneSharing((0.5, 0.5))
    )
    assert e2el_s == pytest.approx((2.0 + 4.5 * 7.0) / 0.5, rel=0.01)

    shipped = load(PAIR)
    error = KindError(mean_error_pct=3.21, max_error_pct=9.0, points=8, held_out="shares between")
    profile = msgspec.structs.replace(
        shipped,
        overlap=msgspec.structs.replace(shipped.overlap, partition=own),
        errors=shipped.errors | {"partition": error},
    )
    found = scenario("pd", HALVES, num_prompts=3, request_rate="inf", max_concurrency=1)
    alone, slower = (simulate(resolve(found, each, "pd"), 0).end_s for each in (shipped, profile))
    assert slower > 1.3 * alone
    assert "(mean errors of their curves: here 3.21 %)" in "\n".join(notes(compare(resolve_all(found, profile))))


def test_a_forecast_of_a_closed_loop_keeps_littles_law() -> None:
    lanes = (("prefill",), ("decode",))
    closed_s, _ = Forecast(lanes, COSTS, LOAD._replace(max_concurrency=3)).score(LaneSharing((0.4, 0.6)))
    open_s, _ = Forecast(lanes, COSTS, LOAD._replace(rate_per_s=3 / closed_s * 0.999)).score(LaneSharing((0.4, 0.6)))
    assert open_s == pytest.approx(closed_s, rel=0.02)


def test_a_forecast_rises_with_the_rate_and_ever_faster() -> None:
    """By steps of 2 %, to four fifths of what prompts could be served at: no kink where one more request finds room."""
    costs, shares = build_costs(load(PAIR)), LaneSharing((0.3, 0.7))

    def e2el_s(rate_per_s: float) -> float:
        return Forecast((("prefill",), ("decode",)), costs, LOAD._replace(rate_per_s=rate_per_s)).score(shares)[0]

    found = [e2el_s(1.02**step) for step in range(156)]
    growth = [later / earlier for earlier, later in pairwise(found)]
    assert growth[0] > 1.0
    assert growth == sorted(growth)


def test_auto_is_the_best_of_plain_streams_and_of_both_kinds_of_shares_in_steps_of_a_twentieth() -> None:
    """At a light load shares cost and plain streams stay; prompts of 2 s do not wait for rounds of 7 s."""
    found = []
    for rate in (1e-6, 0.05):
        load_ = LOAD._replace(rate_per_s=rate)
        forecast = Forecast(POLICIES["pd"].lanes, READING, load_, SERIAL)
        every: dict[object, LaneSharing] = {None: LaneSharing()}
        for part in range(1, 20):
            shares = {"prefill": part / 20, "decode": (20 - part) / 20}
            every[str(shares)] = LaneSharing((part / 20, 1 - part / 20))
            dynamic = shares | {"only_together": True, "deferred": True}
            every[str(dynamic)] = LaneSharing((part / 20, 1 - part / 20), is_dynamic=True)
        best = min(every, key=lambda key: forecast.score(every[key]))
        partition = best_partition(POLICIES["pd"], READING, load_, SERIAL)
        assert best == (None if partition is None else str(partition))
        found.append(partition)
    assert found[0] is None
    assert isinstance(found[1], dict)
    assert "deferred" not in found[1]
