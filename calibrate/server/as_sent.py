"""Requests that a server answered, as the simulator's: simulated again when and as long as they were sent, with the
acceptance that they show.

Not here: sending them (calibrate.server.open_loop).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from calibrate.judge.vllm_requests import fresh
from calibrate.judge.vllm_runs import metrics_of
from calibrate.production.levels import Accepted
from calibrate.production.request_records import MIN_REQUESTS, spread_of_requests
from calibrate.server.open_loop import Sent
from sim.engine.time_series import GapSamples
from sim.interface.request import Request
from sim.metrics.summary import latencies_s, slo_shares
from sim.run.resolve import Resolved
from sim.run.simulate import simulate

GOODPUT = "request_goodput"


def as_served(sent: Sequence[Sent], planned: Sequence[Request] = ()) -> tuple[list[Request], GapSamples]:
    """Requests as `as_requests` has them, with the gaps between events that hold tokens."""
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
    return record.requests.objects(), record.gaps


def metrics(
    served: tuple[Sequence[Request], GapSamples], slo_ms: Mapping[str, float | None] = {}
) -> dict[str, float | None]:
    """Metrics of the finished requests, latencies from arrival, under the simulator's keys; with `slo_ms` the requests
    per second that meet all of them."""
    requests = [each for each in served[0] if each.is_finished]
    told = metrics_of(requests, served[1], latencies_s(requests))
    if any(bound is not None for bound in slo_ms.values()):
        last_s, first_s = max(each.last_token_s for each in requests), min(each.arrival_s for each in requests)
        good = slo_shares(requests, slo_ms)["all"]
        told[GOODPUT] = None if good is None else good * len(requests) / (last_s - first_s)
    return told


def step_rates(accepted: Accepted, sent: Sequence[Sent]) -> tuple[float, ...]:
    """Accepted share by position of all steps of requests that decode, some of which may have no draft, as with n-grams
    that find none; empty where it is not known."""
    steps = sum(len(each.gaps_s) for each in sent)
    return tuple(min(1.0, accepted.drafts / steps) * rate for rate in accepted.rates) if steps else ()


def quote_of(accepted: Accepted, sent: Sequence[Sent], spread: float | None = None) -> str:
    """Acceptance in `--acceptance`'s notation by the server's count of drafts, and by how many steps each request
    needed: requests differ in more than draws by `spread`, which is looked for where it is not given."""
    rates = step_rates(accepted, sent)
    if not rates:
        return accepted.quote
    spread = spread_of(rates, sent) if spread is None else spread
    return "vllm:" + ",".join(f"{rate:.4g}" for rate in rates) + (f"~{spread:g}" if spread else "")


def spread_of(rates: tuple[float, ...], sent: Sequence[Sent]) -> float:
    """The spread of requests by their steps, with the tokens of these scaled to what `rates` give, since an end cuts
    the last step's; 0 where too few tell it, or do not tell it from 0."""
    counted = [(len(each.gaps_s), each.output_tokens - 1) for each in sent if each.gaps_s]
    if not rates or len(counted) < MIN_REQUESTS:
        return 0.0
    scale = (1.0 + sum(rates)) * sum(steps for steps, _ in counted) / sum(tokens for _, tokens in counted)
    told = spread_of_requests(rates, [(steps, scale * tokens) for steps, tokens in counted])
    return told.value if told.low else 0.0
