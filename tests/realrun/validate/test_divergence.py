"""Where a replay and its simulation part, on made-up works: the first decision that differs."""

from __future__ import annotations

from typing import Any

import msgspec

from realrun.validate.error_parts import first_divergence
from sim.costs.profile_files import load
from sim.metrics.records import WorkRecord
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate
from tests.properties import some

PROFILE = "cpu/tiny"


SCENARIO = Scenario.of(profile=PROFILE, policy="pdv", num_prompts=6, request_rate=20)
RUN = simulate(resolve(SCENARIO, load(PROFILE), "pdv"), 0, record_works=True)
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
