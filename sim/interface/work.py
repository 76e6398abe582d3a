"""The words policies speak to a host: kinds of work, one work, and its result.

Not here: what a work costs (sim.costs) and who executes it (sim.hosts.simulated, realrun.host.gpuhost).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from sim.interface.request import Request


class Kind(StrEnum):
    """Kind of a work. STEP mixes verification and prefill chunks in one target pass.

    >>> import lanesim
    >>> [kind.value for kind in lanesim.Kind]
    ['prefill', 'draft', 'verify', 'step', 'copy', 'host']
    """

    PREFILL = "prefill"
    DRAFT = "draft"
    VERIFY = "verify"
    STEP = "step"
    COPY = "copy"
    HOST = "host"


class Model(StrEnum):
    """Model of the pair that a pass runs through.

    >>> import lanesim
    >>> [model.value for model in lanesim.Model]
    ['target', 'draft']
    """

    TARGET = "target"
    DRAFT = "draft"


DRAFT, VERIFY, STEP, HOST = Kind.DRAFT, Kind.VERIFY, Kind.STEP, Kind.HOST
TARGET, DRAFT_MODEL = Model.TARGET, Model.DRAFT
"""Aliases for what every step asks about: Python 3.11 takes eight times as long to look up an enum's member."""


class Chunk(NamedTuple):
    """A piece of one prompt: `new_tokens` to compute on top of `history_tokens` already in KV.

    >>> import lanesim
    >>> prompt = [lanesim.Chunk(2048, 0), lanesim.Chunk(952, 2048)]
    >>> sum(chunk.new_tokens for chunk in prompt)
    3000
    """

    new_tokens: int
    history_tokens: int


class Work(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One submission to a stream, described by what its cost depends on.

    A pass through the model has sequences that decode or verify (`rows`, `row_tokens`, `context_tokens`) and prefill
    `chunks`. Either part may be empty. A DRAFT work is `draft_tokens` passes of the draft model in sequence: the first
    carries `row_tokens` with catch-up tokens and `chunks` of the draft's prefill, each later one a single token per
    sequence. With draft_tokens=0 only the first pass runs.

    Two requests with 100 and 140 tokens in KV, and 3 drafted tokens each to verify:

    >>> import lanesim
    >>> verify = lanesim.Work(kind=lanesim.Kind.VERIFY, rows=2, row_tokens=8, context_tokens=240, head_rows=8)
    >>> verify.model, verify.row_tokens - verify.rows
    (<Model.TARGET: 'target'>, 6)
    """

    kind: Kind
    model: Model = Model.TARGET
    requests: Sequence[Request] = ()
    """The rows' requests, decode/verify/draft rows first, then one per chunk; simulated hosts may get none."""
    rows: int = 0
    """Rows that decode, draft or verify. HOST: rows whose n-gram draft is looked up."""
    row_tokens: int = 0
    """Query tokens summed over these rows: rows for plain decode, sum of (draft length + 1) for verify."""
    context_tokens: int = 0
    """Tokens already in KV summed over these rows."""
    chunks: tuple[Chunk, ...] = ()
    """Prefill chunks of the same pass."""
    group_tokens: int = 0
    """Tokens of all data-parallel ranks in this step, these included; 0: each rank has as many as this one."""
    head_rows: int = 0
    """Token positions that go through the LM head and the sampler."""
    draft_tokens: int = 0
    """DRAFT only: passes one after the other, each drafts a token per row; 1 where one pass fills all slots."""
    goes_on: bool = False
    """DRAFT: the passes go on from an earlier work's, so that the first one reads no features of the target."""
    drafter: int = 0
    """Index of the draft model where there are several."""
    drafters: Sequence[int] = ()
    """VERIFY: who drafted for each row where there are several draft models."""
    drafted: Sequence[int] = ()
    """VERIFY: drafted tokens of each row that are checked, where these are not all that is in flight."""
    projected_tokens: int = 0
    """DRAFT of a block drafter: tokens whose features it projects into its KV, those of prompts among them."""
    num_bytes: int = 0
    """COPY only: bytes moved."""
    ahead_s: float = 0.0
    """Seconds since the host could begin to prepare this work: so much of its preparation is over already. A simulated
    host takes it off; on a real one works take what they take."""
    host_s: float = 0.0
    """HOST only: seconds of the policy's CPU time."""

    def checked(self) -> Sequence[int]:
        """[requests] drafted tokens of each that are checked: `drafted`, or those in flight (`Request.drafted`)."""
        return self.drafted or [request.drafted for request in self.requests]


class Result(NamedTuple):
    """Result of a finished work: `accepted` [rows], drafted tokens accepted per row (VERIFY and STEP)."""

    accepted: Sequence[int]


NO_RESULT = Result(())
