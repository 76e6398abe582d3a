"""Requests that a server answered, as the simulator's: simulated again when and as long as they were sent.

Not here: sending them (calibrate.server.open_loop).
"""

from __future__ import annotations

from collections.abc import Sequence

from calibrate.judge.vllm_requests import fresh
from calibrate.judge.vllm_runs import metrics_of
from calibrate.server.open_loop import Sent
from sim.engine.time_series import GapSamples
from sim.interface.request import Request
from sim.metrics.summary import latencies_s
from sim.run.resolve import Resolved
from sim.run.simulate import simulate


def as_served(sent: Sequence[Sent], planned: Sequence[Request] = ()) -> tuple[list[Request], GapSamples]:
    """As `as_requests`, with the gaps between events that hold tokens."""
    gaps = GapSamples()
    for each in sent:
        for gap_s in each.gaps_s:
            gaps.add(gap_s)
    return as_requests(sent, planned), gaps


def as_requests(sent: Sequence[Sent], planned: Sequence[Request] = ()) -> list[Request]:
    """The answered ones as finished requests, whose arrival is when they were sent, in that order, with the content of
    those that were `planned`. Raises ValueError where none was answered."""
    contents = {each.index: each.content for each in planned}
    answered = sorted((each for each in sent if not each.failed), key=lambda each: each.sent_s)
    if not answered:
        raise ValueError("no request was answered: there is nothing to judge")
    return [
        Request(
            index=index,
            id=str(index),
            arrival_s=each.sent_s - answered[0].sent_s,
            prompt_tokens=each.prompt_tokens,
            output_tokens=each.output_tokens,
            content=contents.get(each.index, ()),
            emitted_tokens=each.output_tokens,
            first_token_s=each.first_s - answered[0].sent_s,
            last_token_s=each.last_s - answered[0].sent_s,
        )
        for index, each in enumerate(answered)
    ]


def simulated(resolved: Resolved, seed: int, requests: Sequence[Request]) -> tuple[list[Request], GapSamples]:
    """The same requests, served by the simulator."""
    record = simulate(resolved, seed, requests=fresh(requests))
    return record.requests, record.gaps


def metrics(served: tuple[Sequence[Request], GapSamples]) -> dict[str, float | None]:
    """Metrics of the finished requests, latencies from arrival, under the simulator's keys."""
    requests = [each for each in served[0] if each.is_finished]
    return metrics_of(requests, served[1], latencies_s(requests))
