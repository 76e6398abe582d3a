"""The simulator on a replay's measured times, and the account of what differs. Replays here are exact: threads on the
virtual clock, works of constant time. No torch."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from realrun.host.gpuhost import GpuHost
from realrun.replay.measured_costs import MeasuredCosts, WakeLatency, measured_work
from realrun.replay.replayable import busy_seconds, check_replayable, max_at_once, usage_of
from realrun.validate.error_parts import Observed, first_divergence, judge
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.drafters.registry import DRAFTERS
from sim.interface.request import Request
from sim.interface.work import Kind, Model, Work
from sim.metrics.compared import errors
from sim.metrics.records import WorkRecord
from sim.metrics.summary import summarise
from sim.policies import works as works_of
from sim.run.experiment import Accounts, Experiment
from sim.run.resolve import resolve
from sim.run.scenario import Scenario, parse_scenario
from sim.run.simulate import simulate
from tests.properties import assert_refused, some
from tests.realrun.virtual import ConstantExecutor, VirtualClock
from tests.sim.support import ON_ONE_GPU, most_in_flight

UNEVEN = {Kind.PREFILL: 0.0101, Kind.DRAFT: 0.00203, Kind.VERIFY: 0.00507, Kind.STEP: 0.00611}
"""No two works end at the same instant, which rounding could take apart."""
PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"
SECONDS = {Kind.PREFILL: 0.010, Kind.DRAFT: 0.002, Kind.VERIFY: 0.005, Kind.STEP: 0.006}


def scenario(policy: str, **more: Any) -> Scenario:
    workload = {"num_prompts": 30, "request_rate": 40, "input_len": 64, "output_len": 24, **more.pop("workload", {})}
    return parse_scenario({"profile": "cpu/tiny", "policy": policy, "workload": workload, **more})


def experiment(policy: str, profile: Profile | None = None, num_slots: int = 30, **more: Any) -> Experiment:
    return Experiment(resolve(scenario(policy, **more), profile or load("cpu/tiny"), policy, num_slots=num_slots), 3)


def observe(run: Experiment, seconds: dict[Kind, float] | None = None) -> Observed:
    with GpuHost(ConstantExecutor(seconds or SECONDS), run.draws(), clock=VirtualClock()) as host:
        serving = run.start(host, run.requests())
        host.run_until()
    works = [measured_work(ticket) for ticket in host.works]
    records = [work.record for work in works]
    accounts = Accounts(
        now_s=host.now_s,
        usage=usage_of(records),
        device_busy_s=busy_seconds(records),
        num_polls=host.num_polls,
        works=records,
    )
    record = run.record(serving, accounts)
    return Observed(
        experiment=run,
        run=summarise(record),
        works=works,
        wake=WakeLatency(0.0, 0.0),
    )


@pytest.mark.parametrize("more", [{}, {"workload": {"request_rate": "inf", "max_concurrency": 5}}])
@pytest.mark.parametrize("policy", ON_ONE_GPU)
def test_on_measured_times_the_simulator_schedules_exactly_as_the_replay_did(policy: str, more: dict[str, Any]) -> None:
    verdict = judge(observe(experiment(policy, **more), UNEVEN))
    assert verdict["divergence"] is None
    assert verdict["lookups"]["missed"] == 0
    for statistic in ("mean", "p50", "p95", "p99"):
        for metric in ("ttft", "tpot", "itl", "e2el"):
            assert verdict["decomposition"]["mechanism"][metric][statistic]["error_pct"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(("policy", "num_hidden"), [("baseline", 0), ("pd", 1)])
def test_the_time_the_host_took_to_act_on_each_result_is_part_of_the_mechanism(policy: str, num_hidden: int) -> None:
    """One request: every work that somebody awaited ends 3 ms later for the policy, on one stream and on two.

    But for the target's prefill, which a prefill lane awaits: meanwhile the draft model's own goes on.
    """
    observed = observe(experiment(policy, workload={"num_prompts": 1}))
    slow = [dataclasses.replace(work, reacted_s=work.reacted_s + 0.003) for work in observed.works]
    num_awaited = sum(work.reacted_s == work.reacted_s for work in slow)
    verdict = judge(dataclasses.replace(observed, works=slow))
    e2el_ms = verdict["decomposition"]["mechanism"]["e2el"]["mean"]
    assert num_awaited > 3
    assert e2el_ms["simulated"] - e2el_ms["real"] == pytest.approx(3.0 * (num_awaited - num_hidden))


@pytest.mark.parametrize(("policy", "poll_s"), [("baseline", 0.001), ("pd", 0.0), ("pd", 0.001)])
def test_the_time_to_wake_up_after_a_signal_is_part_of_the_mechanism(policy: str, poll_s: float) -> None:
    """One request: who takes it in wakes 2 ms late, and so does the decode lane; `baseline` has none, never polls."""
    observed = observe(experiment(policy, workload={"num_prompts": 1}, policy_options={"poll_s": poll_s}))
    is_polled = poll_s > 0.0 and policy == "pd"
    wake = WakeLatency(0.0 if is_polled else 0.002, 0.002 if is_polled else 0.0)
    e2el_ms = judge(dataclasses.replace(observed, wake=wake))["decomposition"]["mechanism"]["e2el"]["mean"]
    assert e2el_ms["simulated"] - e2el_ms["real"] == pytest.approx(2.0 if policy == "baseline" else 4.0)


def test_a_machine_that_changed_since_its_profile_was_measured_is_told() -> None:
    """Two fixed passes of 1 and 4 ms then, of 1.2 and 4 ms before the run, of twice as long after it."""
    run = experiment("pd")
    assert judge(observe(run))["machine"] is None
    profile = run.resolved.profile
    host = msgspec.structs.replace(profile.host, probed_s=(0.001, 0.004))
    probed = dataclasses.replace(
        observe(experiment("pd", msgspec.structs.replace(profile, host=host))),
        probed_s=[(0.0012, 0.004), (0.002, 0.008)],
    )
    assert judge(probed)["machine"] == pytest.approx([1.1, 2.0])
    assert judge(dataclasses.replace(probed, probed_s=[()]))["machine"] is None


def test_an_experiment_is_what_the_simulator_runs() -> None:
    """The ingredients that a replay shares with its simulation are those of `lanesim compare`."""
    run = experiment("pdv")
    observed = observe(run)
    record = simulate(resolve(run.scenario, run.resolved.profile, "pdv"), 3)
    assert judge(observed)["metrics"] == errors(observed.run, summarise(record))


@pytest.mark.parametrize("policy", ["baseline", "pdv", "continuous"])
def test_acceptance_that_was_recorded_is_what_the_simulation_plays(policy: str) -> None:
    """The recorded counts in place of the tape that made them: the simulations cannot tell."""
    observed = observe(experiment(policy))
    dictated = judge(observed)
    genuine = dataclasses.replace(observed.experiment, is_dictated=False)
    assert judge(dataclasses.replace(observed, experiment=genuine)) == dictated


def test_what_the_models_would_have_accepted_elsewhere_is_unknown() -> None:
    observed = observe(experiment("pd", workload={"num_prompts": 2}))
    genuine = dataclasses.replace(observed.experiment, is_dictated=False)
    last = max(number for number, work in enumerate(observed.works) if work.record.kind == "verify")
    cut = dataclasses.replace(observed, experiment=genuine, works=observed.works[:last])
    bare = [dataclasses.replace(work, accepted=()) for work in observed.works]
    assert_refused(lambda: judge(cut), "where the replay did not")
    assert_refused(lambda: judge(dataclasses.replace(cut, works=bare)), "replay it again")


def test_a_work_the_replay_never_had_gets_the_mean_of_the_nearest_shapes() -> None:
    observed = observe(experiment("pd"))
    costs = MeasuredCosts(observed.works)
    stranger = Request(index=99, id="x", arrival_s=0.0, prompt_tokens=1, output_tokens=9)
    work = Work(kind=Kind.VERIFY, requests=(stranger,), rows=1, row_tokens=5, context_tokens=70, head_rows=5)
    assert costs.cost(work).device_s == pytest.approx(0.005)
    assert (costs.num_hits, costs.num_misses) == (0, 1)


def test_a_kind_the_replay_never_had_is_refused() -> None:
    costs = MeasuredCosts(observe(experiment("pd")).works)
    assert_refused(lambda: costs.cost(Work(kind=Kind.STEP)), "the replay holds no step work of the target model")


def test_a_tape_must_last_as_long_as_the_run(tmp_path: Path) -> None:
    tape = tmp_path / "tape.jsonl"
    speculation = {"acceptance": f"tape:{tape}"}
    for rows, named in (
        (30, "request 0 has 6 positions and its output 24 tokens"),
        (3, "3 requests and the run has 30"),
    ):
        tape.write_text("[1,2,1,2,1,2]\n" * rows)
        assert_refused(lambda: check_replayable(experiment("pd", speculation=speculation)), named)
    check_replayable(experiment("autoregressive", speculation=speculation))


def test_slots_are_counted_by_who_can_be_in_flight_together() -> None:
    assert max_at_once(experiment("pd")) == 30
    assert max_at_once(experiment("pd", workload={"max_concurrency": 7})) == 7
    for policy in ("continuous", "pd", "baseline"):
        assert max_at_once(experiment(policy, engine={"max_num_seqs": 9})) == 9


def test_a_replay_is_of_no_other_engine_and_plans_nothing_ahead() -> None:
    """The profile's own constants and name; on a GPU's profile, which has none, nothing is added."""
    own = experiment("continuous", num_slots=3).resolved
    assert own.engine.name == "measured here"
    assert own.costs.host.step_s == own.profile.host.step_s > 0.0
    bare = experiment("continuous", load(PAIR), num_slots=3).resolved
    assert bare.engine.name == "no engine"
    assert bare.costs.host.step_s == 0.0
    assert not bare.limits.async_scheduling
    check_replayable(experiment("pd", num_slots=3, engine={"name": "measured here"}))


def test_equal_chunks_of_one_prompt_get_the_time_of_each() -> None:
    """A prompt of 48 in chunks of 16, each with more history than the one before: 1, 2 and 3 s of each model."""
    run = experiment("pd", workload={"num_prompts": 1, "input_len": 48}, engine={"max_num_batched_tokens": 16})
    works = observe(run).works
    chunks = [work for work in works if work.record.kind == "prefill"]
    found = [(work.record.model, work.record.chunk_tokens) for work in chunks]
    assert found == [("target", 16)] * 3 + [("draft", 16)] * 3
    timed = [
        dataclasses.replace(work, record=replace(work.record, end_s=work.record.start_s + 1.0 + number % 3))
        for number, work in enumerate(chunks)
    ]
    costs = MeasuredCosts(timed)
    (request,) = run.requests()
    for model in Model:
        planned = works_of.prefill(request, model, 16)
        assert [costs.cost(work).device_s for work in planned] == pytest.approx([1.0, 2.0, 3.0])
    assert (costs.num_hits, costs.num_misses) == (6, 0)


@pytest.mark.parametrize(
    ("policy", "changes", "named"),
    [
        ("pd", {"policy_options": {"kv": "none"}}, "kv=none"),
        ("pd", {"policy_options": {"kv": "reforward"}}, "kv=reforward"),
        ("continuous", {"engine": {"async_scheduling": True}}, "async_scheduling=true"),
        ("pd", {"policy_options": {"partition": {"prefill": 0.4, "decode": 0.6}}}, "partition"),
        ("pd", {"engine": {"name": "vllm-0.12"}}, "'vllm-0.12'"),
    ],
)
def test_what_can_be_simulated_only_is_refused(policy: str, changes: dict[str, Any], named: str) -> None:
    assert_refused(
        lambda: check_replayable(experiment(policy, load(PAIR), **changes)), f"{named} can be simulated only"
    )


def test_slots_bound_how_many_are_served_at_once() -> None:
    run = experiment("pd", num_slots=4, workload={"request_rate": "inf"})
    with GpuHost(ConstantExecutor(SECONDS), run.draws(), clock=VirtualClock()) as host:
        requests = run.start(host, run.requests()).requests
        host.run_until()
    assert all(request.is_finished for request in requests)
    assert most_in_flight(requests) == 4


def test_a_pair_with_an_eagle_head_is_simulated_as_one_and_refused_as_a_replay() -> None:
    """One assembly: what the simulator takes for EAGLE-3 cannot be replayed as a draft model of its own."""
    name = "h100-sxm/llama-3.1-8b+eagle3"
    eagle = parse_scenario({"profile": name, "policy": "continuous", "workload": {"num_prompts": 3, "output_len": 24}})
    run = Experiment(resolve(eagle, load(name), "continuous", num_slots=3), 0)
    assert run.resolved.limits.method is DRAFTERS["eagle3"]
    with GpuHost(ConstantExecutor(SECONDS), run.draws(), clock=VirtualClock()) as host:
        run.start(host, run.requests())
        host.run_until()
    drafts = [ticket.work for ticket in host.works if ticket.work.kind is Kind.DRAFT]
    simulated = simulate(resolve(eagle, load(name), "continuous"), 0, record_works=True)
    ours = [work for work in simulated.works if work.kind == "draft"]
    later = [(work.rows, work.row_tokens) for work in drafts if not work.chunks]
    assert later
    assert set(later) <= {(rows, 5 * rows) for rows in (1, 2, 3)}
    assert {(work.rows, work.row_tokens) for work in ours if not work.chunk_tokens} <= set(later)
    assert_refused(lambda: check_replayable(run), "drafting by eagle3 can be simulated only")


# -- the first decision that differs, on made-up works

SCENARIO = Scenario.of(profile="cpu/tiny", policy="pdv", num_prompts=6, request_rate=20)
RUN = simulate(resolve(SCENARIO, load("cpu/tiny"), "pdv"), 0, record_works=True)
"""Six requests on the two lanes of `pdv`."""
WORKS = sorted(RUN.works, key=lambda work: work.submitted_s)


def with_other_requests(*numbers: int) -> list[WorkRecord]:
    """WORKS, those of these numbers with a request that nobody has."""
    return [msgspec.structs.replace(work, requests=(99,)) if i in numbers else work for i, work in enumerate(WORKS)]


def divergence(real: list[WorkRecord]) -> dict[str, Any]:
    return some(first_divergence(real, RUN.works))


def numbers_of(stream: str) -> list[int]:
    return [number for number, work in enumerate(WORKS) if work.stream == stream]


def test_runs_that_schedule_alike_do_not_part() -> None:
    assert first_divergence(RUN.works, RUN.works) is None


def test_of_one_stream_the_first_decision_that_differs_is_told() -> None:
    stream = WORKS[0].stream
    second, third = numbers_of(stream)[1:3]
    found = divergence(with_other_requests(second, third))
    assert (found["stream"], found["number"]) == (stream, 1)
    assert found["real"]["requests"] == [99]
    assert found["simulated"]["requests"] == list(WORKS[second].requests)


def test_of_several_streams_the_one_that_parts_first_is_told() -> None:
    streams = list(dict.fromkeys(work.stream for work in WORKS))
    assert len(streams) > 1
    changed = sorted(numbers_of(stream)[-1] for stream in streams)
    first = WORKS[changed[0]]
    found = divergence(with_other_requests(*changed))
    assert (found["stream"], found["real"]["time_s"]) == (first.stream, first.submitted_s)


def test_works_that_only_the_real_run_has_part_it_where_the_simulation_ends() -> None:
    more = msgspec.structs.replace(WORKS[-1], submitted_s=WORKS[-1].submitted_s + 1.0)
    found = divergence([*WORKS, more])
    assert found["number"] == len(numbers_of(more.stream))
    assert found["simulated"] is None
