"""Real runs made up from simulated ones: what vLLM would have written, and tables of closed-loop cells."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from math import isnan
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner, Result

from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.interface.request import Request
from sim.run.resolve import resolve
from sim.run.scenario import parse_scenario
from sim.run.simulate import simulate

PROFILE = "h100-sxm/llama-3.1-8b"
EPOCH_S, MONOTONIC_S = 1_787_267_980.25, 27_536.5
"""Readings of the two clocks at the first arrival."""


def invoke(command: click.Command, *args: str) -> Result:
    return CliRunner().invoke(command, list(args))


def result_of(command: click.Command, *args: str) -> dict[str, Any]:
    """What the command prints with --json -."""
    done = invoke(command, *args, "--json", "-")
    if done.exception is not None:
        raise done.exception
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def refusal(command: click.Command, *args: str) -> str:
    """The line that `lanesim` prints for bad input: the command raised ValueError or a usage error, nothing else."""
    done = invoke(command, *args)
    if done.exit_code == 2:
        return done.output
    assert isinstance(done.exception, ValueError), (done.output, done.exception)
    assert done.output == ""
    return str(done.exception)


def served(policy: str = "continuous", profile: Profile | None = None, **workload: Any) -> Sequence[Request]:
    """Requests of a simulated run, finished."""
    profile = profile or load(PROFILE)
    raw = {
        "profile": PROFILE,
        "policy": policy,
        "engine": {"max_num_seqs": 256, "max_num_batched_tokens": 2048, "async_scheduling": False},
        "speculation": {"num_speculative_tokens": 0},
        "workload": workload,
    }
    scenario = parse_scenario(raw)
    return simulate(resolve(scenario, profile, policy), 0).requests


def stamps(requests: Iterable[Request]) -> list[dict[str, Any]]:
    """One object per request as in requests.jsonl; an engine silent about its intake took them in on arrival."""
    requests = list(requests)
    start_s = requests[0].arrival_s

    def monotonic(time_s: float) -> float:
        return MONOTONIC_S + time_s - start_s

    rows = []
    for request in requests:
        queued_s = request.arrival_s if isnan(request.queued_s) else request.queued_s
        rows.append(
            {
                "request_id": f"bench-{request.index}",
                "input_toks": request.prompt_tokens,
                "output_toks": request.output_tokens,
                "arrival_time": EPOCH_S + request.arrival_s - start_s,
                "queued_ts": monotonic(queued_s),
                "scheduled_ts": monotonic(request.scheduled_s),
                "first_token_ts": monotonic(request.first_token_s),
                "last_token_ts": monotonic(request.last_token_s),
            }
        )
    return rows


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
