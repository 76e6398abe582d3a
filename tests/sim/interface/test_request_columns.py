"""Requests as columns: the same as objects, which nobody builds for a run in the core and its metrics."""

from __future__ import annotations

import pickle
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.costs.profile_files import load
from sim.interface.request import Request
from sim.interface.request_columns import Requests
from sim.metrics.load import needs_capacity
from sim.metrics.records import REQUEST_COLUMNS, request_columns
from sim.metrics.summary import detailed, summarise
from sim.run import compiled
from sim.run.resolve import resolve_all
from sim.run.scenario import Scenario
from sim.run.simulate import simulate


def columns(count: int) -> Requests:
    numbers = np.arange(count)
    return Requests({"arrival_s": numbers / 4, "prompt_tokens": numbers + 5, "output_tokens": numbers + 1})


@given(st.lists(st.booleans(), max_size=8))
def test_those_that_are_kept_are_the_same_before_and_after_objects_are_built(marks: list[bool]) -> None:
    is_kept = np.array(marks, dtype=np.bool_)
    asked, objects = columns(len(marks)), Requests.of(columns(len(marks)).objects())
    assert [astuple(each)[1:] for each in asked.kept(is_kept)] == [astuple(each)[1:] for each in objects.kept(is_kept)]
    assert [*map(astuple, columns(len(marks))[1:4])] == [*map(astuple, objects[1:4])]
    kept = columns(len(marks)).kept(is_kept)
    for name in REQUEST_COLUMNS[1:]:
        assert repr(kept.column(name).tolist()) == repr(objects.kept(is_kept).column(name).tolist())
    assert [each.index for each in kept] == [*range(len(kept))]


def test_a_request_that_was_taken_out_is_the_one_that_changes() -> None:
    asked = columns(3)
    asked[1].emitted_tokens = 2
    assert asked.column("emitted_tokens").tolist() == [0, 2, 0]
    asked.change({"emitted_tokens": np.array([1, 2, 3])})
    assert [each.is_finished for each in pickle.loads(pickle.dumps(asked))] == [True] * 3
    assert isinstance(asked[0], Request)


@pytest.mark.skipif(not compiled.is_on(), reason="the core is not built, or switched off")
def test_a_run_in_the_core_and_its_metrics_build_no_request() -> None:
    given_ = {"dataset_name": "azure-conv", "num_prompts": 30, "request_rate": 9, "num_speculative_tokens": 3}
    scenario = Scenario.of(profile="h100-sxm/llama-3.1-8b+llama-3.2-1b", policy=["continuous", "pd"], **given_)
    for resolved in resolve_all(scenario, load(scenario.profile)):
        record = simulate(resolved, 0)
        summarise(record, num_warmups=3, num_cooldowns=2, goodput_ms={"ttft_ms": 50.0})
        detailed(record), needs_capacity(record), request_columns(record)
        assert record.requests.is_table
