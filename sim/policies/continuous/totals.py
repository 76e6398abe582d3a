"""Decoding rows as totals: what all of them together gain in each step, and when each leaves.

What is accepted of a row's drafts is known when it joins, so all that it will do is written down at once. Where
requests have content in common it is also known what its table gains by each plan.
Not here: which steps there are (sim.policies.continuous.loop).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engine.paged import PagedPool
from sim.engine.serving import RoundDraws
from sim.interface.request import Request

_GROWTH_STEPS = 4096

Accepted = NDArray[np.int8]
Ints = NDArray[np.int64]


class Begun(NamedTuple):
    """Counts of a row when it joined."""

    emitted_tokens: int
    num_rounds: int
    accepted_tokens: int


class Member(NamedTuple):
    """A decoding row: the step of its first round here, and what each of its rounds from then on accepts."""

    request: Request
    begun: Begun
    first_step: int
    accepted: Accepted | None
    prompt_blocks: int = 0
    """Blocks in its table when it joined, where tables matter."""

    def accepted_in(self, step: int) -> int:
        """Drafted tokens that its round in `step` accepts."""
        return 0 if self.accepted is None else int(self.accepted[step - self.first_step])


def _grown(steps: Ints, length: int) -> Ints:
    """`steps` with zeros behind it where it lacks some for `length`."""
    if length <= len(steps):
        return steps
    return np.concatenate([steps, np.zeros(length, np.int64)])


class RowBlocks:
    """Blocks that the tables of decoding rows gain, by the step that they are planned for."""

    __slots__ = ("_draft_tokens", "_gains", "_is_async", "_lookahead", "_pool")

    def __init__(self, pool: PagedPool, draft_tokens: int, lookahead: int, *, is_async: bool) -> None:
        self._pool = pool
        self._lookahead = lookahead
        self._draft_tokens = draft_tokens
        self._is_async = is_async
        self._gains = np.zeros(_GROWTH_STEPS, dtype=np.int64)
        """[steps] blocks, those of first rounds that are planned ahead left out."""

    @property
    def _reach(self) -> int:
        """Slots beyond a row's context that its plan holds: the round's, and look-ahead for the next draft."""
        return self._draft_tokens + 1 + self._lookahead

    def of_plans(self, member: Member, *, must_end: bool) -> Ints:
        """[plans] blocks of its table after each plan for it, its first round's first.

        Planned ahead, a row counts with all that the round under way can bring, and once more than it has rounds unless
        it `must_end` with the last one.
        """
        request, tokens_per_row = member.request, self._draft_tokens + 1
        if member.accepted is None:
            before = np.arange(request.output_tokens - 1)
        else:
            before = np.zeros(len(member.accepted), dtype=np.int64)
            np.cumsum(member.accepted[:-1] + np.int64(1), out=before[1:])
        held = request.prompt_tokens + self._reach + before
        if self._is_async:
            last = -1 if must_end else len(held)
            held = np.concatenate((held[:1], held[:last] + tokens_per_row))
        blocks: Ints = -(-held // self._pool.block_size)
        return blocks

    def first_gain(self, request: Request) -> int:
        """Blocks that the plan of its first round adds to the prompt's."""
        most = -(-(request.prompt_tokens + self._reach) // self._pool.block_size)
        return max(0, most - self._pool.length(request))

    def join(self, member: Member, *, must_end: bool) -> Member:
        """Take its gains by number from now on; its table has in name what it will have in the end."""
        request, accepted, start = member.request, member.accepted, member.first_step
        block_size = self._pool.block_size
        num_blocks = self._pool.length(request)
        if accepted is None:
            end = start + request.output_tokens - 1
            self._gains = _grown(self._gains, end)
            first = -request.prompt_tokens % block_size
            if first == 0 and self._is_async:
                first = block_size
            self._gains[start + first : end : block_size] += 1
            self._pool.assign(request, -(-(request.prompt_tokens + request.output_tokens - 1) // block_size))
            self._pool.assign_cached(request, request.prompt_tokens + request.output_tokens - 1)
        else:
            blocks = self.of_plans(member, must_end=must_end)
            self._gains = _grown(self._gains, start + len(blocks))
            self._gains[start + 1 : start + len(blocks)] += blocks[1:] - blocks[:-1]
            if not self._is_async:
                self._gains[start] += blocks[0] - num_blocks
            self._pool.assign(request, int(blocks[-1]))
            emitted = request.emitted_tokens + int(accepted[:-1].sum()) + len(accepted) - 1
            self._pool.assign_cached(request, request.prompt_tokens + emitted)
        return member._replace(prompt_blocks=num_blocks)

    def take(self, step: int, completed: Sequence[Request]) -> None:
        """Rows are planned for `step`, and so are first rounds of the `completed` prompts, of the step under way."""
        gain = 0
        if step < len(self._gains):
            gain, self._gains[step] = self._gains.item(step), 0
        for request in completed:
            if request.output_tokens > 1:
                gain += self.first_gain(request)
        if gain:
            self._pool.take(gain)

    def assign_planned(self, member: Member, num_plans: int) -> None:
        """The table of `member` as it is after so many plans for it."""
        blocks = self.of_plans(member, must_end=False)
        self._pool.assign(member.request, int(blocks[num_plans - 1]) if num_plans else member.prompt_blocks)


class Rows:
    """The decoding rows as totals, and when each leaves. `step` is the one under way, or else the next one."""

    __slots__ = (
        "_advance",
        "_blocks",
        "_draft_tokens",
        "_draws",
        "_ending",
        "_leaving",
        "_measured",
        "_members",
        "context_tokens",
        "num_measured",
        "num_rows",
        "step",
    )

    def __init__(self, draws: RoundDraws, draft_tokens: int, measured: range, blocks: RowBlocks | None) -> None:
        self._draws = draws
        self._blocks = blocks
        self._measured = measured
        self._draft_tokens = draft_tokens
        self._leaving: dict[int, list[Request]] = {}
        self._ending: dict[int, int] = {}
        """Step -> rows that begin it with one token left, so that they must end with it."""
        self._members: dict[int, Member] = {}
        self._advance = np.zeros(_GROWTH_STEPS, dtype=np.int64)
        """[steps] context tokens that all rows together gain in a step."""
        self.step = 0
        self.num_rows = 0
        self.num_measured = 0
        """Rows whose gaps count."""
        self.context_tokens = 0

    def join(self, request: Request, accepted: Accepted | None = None) -> None:
        """`request` has tokens out and decodes from the next step on; `accepted` by its rounds, where that is known."""
        begun = Begun(request.emitted_tokens, request.num_rounds, request.accepted_tokens)
        context_tokens = request.context_tokens
        last = 0
        if self._draft_tokens == 0:
            num_rounds = request.output_tokens - begun.emitted_tokens
            gained = num_rounds
        else:
            if accepted is None:
                accepted = self._draws.rounds(
                    request.index, begun.emitted_tokens, request.output_tokens, self._draft_tokens
                )
            num_rounds = len(accepted)
            total = int(np.add.reduce(accepted))
            last = accepted.item(-1)
            gained = total + num_rounds
            request.num_rounds += num_rounds
            request.drafted_tokens += num_rounds * self._draft_tokens
            request.accepted_tokens += total
            start = self.step + 1
            self._advance = _grown(self._advance, start + num_rounds)
            gains = self._advance[start : start + num_rounds]
            gains += accepted
        request.kv_tokens = context_tokens + gained
        self.num_rows += 1
        self.num_measured += request.index in self._measured
        self.context_tokens += context_tokens
        last_step = self.step + num_rounds
        self._leaving.setdefault(last_step, []).append(request)
        must_end = begun.emitted_tokens + gained - last == request.output_tokens
        if must_end:
            self._ending[last_step] = self._ending.get(last_step, 0) + 1
        member = Member(request, begun, self.step + 1, accepted)
        if self._blocks is not None:
            member = self._blocks.join(member, must_end=must_end)
        self._members[request.index] = member

    def read_in(self, running: Sequence[Request]) -> Rows:
        """An account of `running`, which decode from its first step on; some of them were here."""
        rows = Rows(self._draws, self._draft_tokens, self._measured, None)
        rows.step = -1
        for request in running:
            accepted = None
            member = self._members.get(request.index)
            # All members have room for their whole lives and the newest give way first: none has lost its seat.
            if member is not None and member.accepted is not None:
                accepted = member.accepted[request.num_rounds - member.begun.num_rounds :]
            rows.join(request, accepted)
        rows.step = 0
        return rows

    @property
    def requests(self) -> list[Request]:
        """The rows' requests, in order of admission."""
        return [member.request for member in self._members.values()]

    def num_ending(self) -> int:
        """Rows that must end with this step, whatever it accepts."""
        return self._ending.get(self.step, 0)

    def advance(self) -> Sequence[Request]:
        """Account for the step that just ended; returns the requests that leave with it."""
        step = self.step
        self.context_tokens += self.num_rows
        if self._draft_tokens and step < len(self._advance):
            self.context_tokens += self._advance.item(step)
        leaving = self._leaving.pop(step, ())
        if leaving:
            self._ending.pop(step, None)
            self.num_rows -= len(leaving)
            for request in leaving:
                self.context_tokens -= request.kv_tokens
                self.num_measured -= request.index in self._measured
                del self._members[request.index]
        return leaving

    def assign_planned(self, member: Member, num_plans: int) -> None:
        """The table of `member` as it is after so many plans for it, where tables matter."""
        if self._blocks is not None:
            self._blocks.assign_planned(member, num_plans)

    def write_out(self, last_step_s: float) -> list[Member]:
        """Every row as `continuous` would hold it before `step`, in order of admission."""
        drafted = self._draft_tokens
        for request, begun, first_step, accepted, _ in self._members.values():
            num_rounds = self.step - first_step
            gained = num_rounds
            if accepted is not None:
                total = int(accepted[:num_rounds].sum())
                request.num_rounds = begun.num_rounds + num_rounds
                request.accepted_tokens = begun.accepted_tokens + total
                request.drafted_tokens -= (len(accepted) - num_rounds) * drafted
                if num_rounds:
                    request.needs_catch_up = int(accepted[num_rounds - 1]) == drafted
                gained += total
            request.emitted_tokens = begun.emitted_tokens + gained
            request.last_token_s = max(last_step_s, request.last_token_s)
            request.drafted = drafted
            request.kv_tokens = request.context_tokens + drafted + 1
        return list(self._members.values())
