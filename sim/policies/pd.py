"""PD: a prefill lane, and a decode lane in which draft and verify are atomic. Two streams, decode first.

With a cap per lane (`lanes`) each seats requests of its own: who has no seat for decoding waits, prompt computed, until
one that decodes is through. Source: reports 002, 004; caps: SGLang's prefill and decode servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec

from sim.bounds import Bounds, check_bounds
from sim.engine.serving import Serving
from sim.interface.host import Stream
from sim.interface.request_queue import RequestQueue
from sim.interface.wait import Task
from sim.names import unknown
from sim.policies import rounds
from sim.policies.options import CHUNK, COUNT, EngineLimits, LaneOptions, keys, rows_per_work
from sim.policies.policy import Policy

PREFILL, DECODE = "prefill", "decode"


class LaneLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one lane."""

    max_num_seqs: Annotated[int, Bounds(1, COUNT)]

    def __post_init__(self) -> None:
        check_bounds("policy_options.lanes", self)


@dataclass(frozen=True, kw_only=True)
class PdOptions(LaneOptions):
    """Options of `pd`."""

    lanes: dict[str, LaneLimits] | None = None
    """pd: requests that a lane seats, such as {prefill: {max_num_seqs: 4}, decode: {max_num_seqs: 4}}; a lane without
    one, or null: engine.max_num_seqs in all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for lane in self.lanes or {}:
            if lane not in (PREFILL, DECODE):
                raise ValueError(unknown("key of policy_options.lanes", lane, (PREFILL, DECODE)))

    def num_seats(self, most: int) -> int:
        """Requests that both lanes seat together, where a lane without a cap seats `most`."""
        if self.lanes is None:
            return most
        return sum(self.lanes[lane].max_num_seqs if lane in self.lanes else most for lane in (PREFILL, DECODE))

    @property
    def decode_rows(self) -> int | None:
        """Largest batch of the decode lane: as given, and no more than it seats; None: max_num_seqs."""
        seats = self.lanes[DECODE].max_num_seqs if self.lanes and DECODE in self.lanes else None
        given = [rows for rows in (self.decode_batch, seats) if rows is not None]
        return min(given, default=None)


def coroutines(serving: Serving, options: PdOptions, limits: EngineLimits) -> list[Task]:
    decode = RequestQueue(DECODE)
    decode_stream = serving.host.stream(DECODE, priority=options.priority(1), sm_share=options.share(DECODE))
    prefill_stream = serving.host.stream(PREFILL, sm_share=options.share(PREFILL))
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
    serving: Serving, options: PdOptions, limits: EngineLimits, decode: RequestQueue, stream: Stream
) -> None:
    """The oldest requests of the lane, one round each, back to its end; or to its head, where they have its seats."""
    at_most = rows_per_work(options, limits, options.decode_rows, serving.controller.draft_tokens_max)
    while True:
        batch = await rounds.take_batch(serving, decode, options, at_most, num_lanes=1)
        going_on = await rounds.run_round(serving, batch, options, stream, stream)
        if options.lanes is None:
            await decode.put_all(serving.host, going_on)
        else:
            decode.put_back(serving.host, going_on)


POLICY = Policy(
    name="pd",
    summary="prefill lane and decode lane, two streams",
    is_built_in=True,
    source="reports 002, 004",
    build=coroutines,
    chooses_drafter=True,
    takes=(*keys(PdOptions), CHUNK),
    lanes=((PREFILL,), (DECODE,)),
)
