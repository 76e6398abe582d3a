"""The real vLLM's page, without vLLM: which cores a server and its client have, what is left to measure, and the page
of runs by a server of a known law."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from msgspec import structs

from calibrate.served.line import fit_line, line_of_server, lone_requests
from calibrate.server.served_run import Doubt, judge, now, predict, read_run, write_prediction, write_run
from sim.run.experiment import Experiment
from sim.run.resolve import resolve_all
from sim.workload.classes import Goodput
from tests.calibrate.server.test_looks import in_steps, looked_at, scenario
from validation.replays import real_vllm


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no processor affinity here")
def test_every_server_has_the_first_core_and_its_client_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not the first server alone: what the client may run on is no more what the next server may."""
    before = os.sched_getaffinity(0)
    servers: list[str] = []

    @contextmanager
    def started(words: Sequence[str], *_: Any, **__: Any) -> Iterator[None]:
        servers.append(" ".join(words[:3]))
        yield

    monkeypatch.setattr(real_vllm, "started", started)
    clients = []
    for _ in range(2):
        with real_vllm.serving(tmp_path / "models", real_vllm.SERVERS["off"]):
            clients.append(os.sched_getaffinity(0))
    assert servers == [f"taskset --cpu-list {min(before)}"] * 2
    assert clients == [before - {min(before)} or before] * 2
    assert os.sched_getaffinity(0) == before


def write_runs(report: Path) -> None:
    """Every run of the page, served at once by the law of in_steps."""
    line = line_of_server()
    given = structs.replace(scenario(line.name, async_scheduling=False), goodput=Goodput(tpot_ms=1e6))
    profile = fit_line(given, line, looked_at(given, line), in_steps(lone_requests([50, 100, 150]), 1)).profile
    planned = Experiment(resolve_all(given, profile)[0], 0).requests()
    paths = [path for name in real_vllm.SERVERS for _, path in real_vllm.planned_runs(name, 1, report)]
    run = predict(given, profile, planned, Doubt(0.1))
    write_prediction(paths[0], run)
    run.sent_at, run.sent = now(), in_steps(planned, 4)
    judge(run, given, profile, planned)
    for path in paths:
        write_run(path, run)


def test_what_is_measured_is_not_measured_again_and_makes_the_page(tmp_path: Path) -> None:
    report = tmp_path / "real-vllm"
    assert len(real_vllm.planned_runs("off", 1, report)) == real_vllm.NUM_IDENTICAL + len(real_vllm.LOADS)
    write_runs(report)
    assert not real_vllm.planned_runs("off", 1, report)
    assert len(real_vllm.planned_runs("off", 2, report)) == len(real_vllm.LOADS)
    real_vllm.write_page(report)
    text = report.with_suffix(".md").read_text()
    assert text.count("| off | 2.5 | 1 |") == 1
    assert text.count("| mean TPOT | 5 |") == 1
    path = report / "off-at-1-round-1.json"
    run = read_run(path)
    run.predicted["mean_tpot_ms"] = 1.0
    write_run(path, run)
    with pytest.raises(ValueError, match="not what it was before its load was sent"):
        real_vllm.write_page(report)


def test_the_predictions_that_are_kept_are_those_from_before_their_loads() -> None:
    """Also where a key of theirs is retired since."""
    assert real_vllm.runs_of(Path(__file__).parents[2] / "docs" / "validation" / "real-vllm")


def test_a_speed_up_within_its_noise_has_no_wrong_sign() -> None:
    gains = pd.DataFrame({"measured": [1.02, 1.05, 1.1], "predicted": [0.98, 0.98, 1.2], "noise": 0.03})
    same_side, unsure = real_vllm.sides(gains)
    assert (same_side.to_list(), unsure.to_list()) == ([False, False, True], [True, False, False])
