"""Lanes on shares of the multiprocessors: which can be given, and what a comparison says of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sim.compare.side_by_side import compare
from sim.costs.cost import Demands
from sim.costs.profile import KindError
from sim.costs.profile_files import load
from sim.devices.contention import Contention
from sim.devices.partition import MEASURED
from sim.interface.work import Kind
from sim.policies.registry import PolicyOptions
from sim.report.comparisons import notes
from sim.run.checks import IgnoredKeyWarning
from sim.run.resolve import resolve, resolve_all
from sim.run.scenario import Scenario
from sim.run.simulate import simulate
from tests.properties import assert_refused, printed
from tests.sim.constant_costs import ConstantCosts
from tests.sim.devices.test_partition import PLAIN
from tests.sim.support import SECONDS, AlwaysAccept, NotedController, SimRun, request

PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"
HALVES = {"prefill": 0.5, "decode": 0.5}


def scenario(policy: Any, partition: object, profile: str = PAIR, **changes: Any) -> Scenario:
    given = {"input_len": 512, "output_len": 64, "num_prompts": 40, "request_rate": 10} | changes
    return Scenario.of(profile=profile, policy=policy, **given, **{"policy_options.partition": partition})


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
    ("policy", "partition", "streams", "round_s"),
    [
        ("pd", {"prefill": 0.5, "decode": 0.5}, ("decode", "decode"), (4.0, 10.0)),
        ("pdv", {"prefill": 0.5, "decode": 0.25, "verify": 0.25}, ("decode", "verify"), (8.0, 20.0)),
        ("unified", {"prefill": 0.5, "draft": 0.125, "verify": 0.25}, ("draft", "verify"), (16.0, 20.0)),
        # Draft and verify take turns, so each has all that is left while it runs.
        ("unified", {"prefill": 0.5}, ("draft", "verify"), (4.0, 10.0)),
    ],
)
def test_lanes_on_shares_neither_help_nor_disturb_each_other(
    policy: str, partition: dict[str, float], streams: tuple[str, str], round_s: tuple[float, float]
) -> None:
    """On the whole device a prefill takes 10 s, a draft 2 s and a verify 5 s, and every draft is accepted.

    Works that only compute take 1 / share as long: prefills 20 s on half a device, of target and draft in turn."""
    draft, verify = streams
    draft_s, verify_s = round_s
    run = SimRun(
        policy,
        [request(0, output=6), request(1, arrival_s=1.0, output=4)],
        draws=AlwaysAccept(),
        options=PolicyOptions(poll_s=0.0, partition=partition),
        costs=ConstantCosts(device_s=SECONDS, demand=Demands(1.0, 0.0)),
        contention=Contention(curve=PLAIN),
    )
    assert run.works == sorted(
        [
            (0.0, 20.0, "prefill", "prefill", (0,)),
            (20.0, 40.0, "prefill", "prefill", (0,)),
            (40.0, 60.0, "prefill", "prefill", (1,)),
            (60.0, 80.0, "prefill", "prefill", (1,)),
            (40.0, 40.0 + draft_s, draft, "draft", (0,)),
            (40.0 + draft_s, 40.0 + draft_s + verify_s, verify, "verify", (0,)),
            (80.0, 80.0 + draft_s, draft, "draft", (1,)),
            (80.0 + draft_s, 80.0 + draft_s + verify_s, verify, "verify", (1,)),
        ],
        key=lambda work: work[1],
    )
    assert [(r.first_token_s, r.last_token_s) for r in run.serving.requests] == [
        (40.0, 40.0 + sum(round_s)),
        (80.0, 80.0 + sum(round_s)),
    ]


@pytest.mark.parametrize(
    ("policy", "partition", "named"),
    [
        ("pd", {"prefil": 0.4}, "unknown lane of pd 'prefil'. Did you mean 'prefill'"),
        ("unified", HALVES, "unknown lane of unified 'decode'. Choose from prefill, draft, verify"),
        ("pd", {"prefill": 0.4, "decode": 0.7}, "shares sum to 1.1 and must sum to at most 1: prefill 0.4, decode 0.7"),
        ("pd", {}, "partition={} must be a share by lane, above 0 and at most 1"),
        ("pd", "best", "policy_options.partition: expected"),
        ("unified", {"prefill": 0.5, "deferred": True}, "partition.deferred: one worker runs the lanes of 'unified'"),
        ("pd", HALVES | {"deferred": 1.0}, "only_together and deferred as true or false"),
        ("pd", {"prefill": True}, "partition={'prefill': True} must be a share by lane, above 0 and at most 1"),
        ("pdv", HALVES, "leaves nothing for verify of 'pdv'"),
        (["continuous", "baseline"], HALVES, "continuous, baseline has no lanes"),
    ],
)
def test_what_no_lane_can_be_given_is_one_line(policy: Any, partition: object, named: str) -> None:
    assert_refused(lambda: resolve_all(scenario(policy, partition), load(PAIR)), "policy_options.partition", named)


def test_a_cpu_has_no_multiprocessors_to_give() -> None:
    assert_refused(lambda: resolve_all(scenario("pd", HALVES, "cpu/tiny"), load("cpu/tiny")), "'cpu/tiny' is of a CPU")


def test_shares_stand_in_every_run_and_beside_the_table_and_need_no_bracket() -> None:
    with pytest.warns(IgnoredKeyWarning, match="partition=.* means nothing to continuous"):
        found = compare(resolve_all(scenario(["continuous", "pd"], HALVES), load(PAIR)))
    assert [run["partition"] for run in found.runs] == [None, HALVES]
    assert [row.by_overlap for row in found.policies] == [{}, {}]
    assert not any(row.by_overlap for row in found.paired)
    plain = compare(resolve_all(scenario(["continuous", "pd"], None), load(PAIR)))
    assert plain.policies[1].by_overlap
    assert found.runs[0] == plain.runs[0]
    text = printed(found, 200, is_verbose=True)
    assert "pd: prefill 0.5, decode 0.5" in text
    assert "overlap of streams" not in text


def test_simulations_and_tables_take_the_curve_that_the_profile_has() -> None:
    own = msgspec.structs.replace(MEASURED, saturated_at=1.0)
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
