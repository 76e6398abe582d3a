"""Where a replay and its simulation part, on made-up works: the first decision that differs."""

from __future__ import annotations

from typing import Any

import msgspec

from realrun.validate.divergence import first_divergence
from sim.costs.profile_files import load
from sim.metrics.records import RunRecord, WorkRecord
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate
from tests.properties import some

PROFILE = "cpu/tiny"


def record() -> RunRecord:
    """Six requests on the two lanes of `pdv`."""
    scenario = Scenario.of(profile=PROFILE, policy="pdv", num_prompts=6, request_rate=20)
    return simulate(resolve(scenario, load(PROFILE), "pdv"), 0, record_works=True)


def with_other_requests(works: list[WorkRecord], *numbers: int) -> list[WorkRecord]:
    """`works`, those of these numbers with a request that nobody has."""
    return [msgspec.structs.replace(work, requests=(99,)) if i in numbers else work for i, work in enumerate(works)]


def divergence(run: RunRecord, real: list[WorkRecord]) -> dict[str, Any]:
    return some(first_divergence(run.requests, real, run))


def numbers_of(works: list[WorkRecord], stream: str) -> list[int]:
    return [number for number, work in enumerate(works) if work.stream == stream]


def test_runs_that_schedule_alike_do_not_part() -> None:
    run = record()
    assert first_divergence(run.requests, run.works, run) is None


def test_of_one_stream_the_first_decision_that_differs_is_told() -> None:
    run = record()
    works = sorted(run.works, key=lambda work: work.submitted_s)
    stream = works[0].stream
    second, third = numbers_of(works, stream)[1:3]
    found = divergence(run, with_other_requests(works, second, third))
    assert (found["stream"], found["number"]) == (stream, 1)
    assert found["real"]["requests"] == [99]
    assert found["simulated"]["requests"] == list(works[second].requests)


def test_of_several_streams_the_one_that_parts_first_is_told() -> None:
    run = record()
    works = sorted(run.works, key=lambda work: work.submitted_s)
    streams = list(dict.fromkeys(work.stream for work in works))
    assert len(streams) > 1
    changed = sorted(numbers_of(works, stream)[-1] for stream in streams)
    first = works[changed[0]]
    found = divergence(run, with_other_requests(works, *changed))
    assert (found["stream"], found["real"]["time_s"]) == (first.stream, first.submitted_s)


def test_works_that_only_the_real_run_has_part_it_where_the_simulation_ends() -> None:
    run = record()
    works = sorted(run.works, key=lambda work: work.submitted_s)
    more = msgspec.structs.replace(works[-1], submitted_s=works[-1].submitted_s + 1.0)
    found = divergence(run, [*works, more])
    assert found["number"] == len(numbers_of(works, more.stream))
    assert found["simulated"] is None
