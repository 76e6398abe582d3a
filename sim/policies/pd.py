"""PD: a prefill lane, and a decode lane in which draft and verify are atomic; two streams, decode first.

Source: reports 002, 004.
"""

from __future__ import annotations

from sim.engine.serving import Serving
from sim.interface.host import Stream
from sim.interface.request_queue import RequestQueue
from sim.interface.wait import Task
from sim.policies import rounds
from sim.policies.options import CHUNK, EngineLimits, LaneOptions, keys, rows_per_work
from sim.policies.policy import Policy


def coroutines(serving: Serving, options: LaneOptions, limits: EngineLimits) -> list[Task]:
    decode = RequestQueue("decode")
    decode_stream = serving.host.stream("decode", priority=options.priority(1), sm_share=options.share("decode"))
    prefill_stream = serving.host.stream("prefill", sm_share=options.share("prefill"))
    return [
        decode_lane(serving, options, limits, decode, decode_stream),
        prefill_lane(serving, options, limits, decode, prefill_stream),
    ]


async def prefill_lane(
    serving: Serving,
    options: LaneOptions,
    limits: EngineLimits,
    decode: RequestQueue,
    stream: Stream,
    apart: rounds.DraftPrompts | None = None,
) -> None:
    """One prompt after the other, then on to `decode`; the draft model may be `apart`."""
    async for request in rounds.prefilled(serving, options, limits, stream, apart):
        serving.commit_prefill(request)
        if not request.is_finished:
            await decode.put(serving.host, request)


async def decode_lane(
    serving: Serving, options: LaneOptions, limits: EngineLimits, decode: RequestQueue, stream: Stream
) -> None:
    """The oldest requests of the lane, one round each, back to its end."""
    at_most = rows_per_work(options, limits, options.decode_batch, serving.controller.draft_tokens_max)
    while True:
        batch = await rounds.take_batch(serving, decode, options, at_most, num_lanes=1)
        going_on = await rounds.run_round(serving, batch, options, stream, stream)
        await decode.put_all(serving.host, going_on)


POLICY = Policy(
    name="pd",
    summary="prefill lane and decode lane, two streams",
    is_built_in=True,
    source="reports 002, 004",
    build=coroutines,
    chooses_drafter=True,
    takes=(*keys(LaneOptions), CHUNK),
    lanes=(("prefill",), ("decode",)),
)
