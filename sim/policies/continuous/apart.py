"""Steps of prompts alone and of rows alone, as SGLang's scheduler plans them, and who gives way where memory runs out.

Rules of SGLang 0.5.6 (srt/managers; lines in the engine's file). Prompts go first. One is admitted where it and its
whole answer fit beside a share, `TokenRatio`, of what the running answers still lack; the share falls with each step of
rows. When seats or memory refuse somebody, nobody is admitted until a row has left, and who finished keeps the seat
until the next step of rows. That step first looks whether all rows have room for a round; if not, the one with the
fewest tokens decoded is retracted (of equals the longest prompt, then the newest), with drafts the newest, until the
others have: it waits behind all others, and the share is set to what is decoded of those that stay.

SGLang 0.5.23 differs (TokenRatio): who has finished leaves at the next plan, a block stays free beside each prompt, and
rows with drafts keep slots for two rounds, where the fewest tokens decoded decide who is retracted.

Not here: a request that has finished and runs once more under the overlap scheduler (it is left out), the bound of
max_prefill_tokens, and admission without a radix cache, which orders answers by what they lack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sim.engine.serving import Serving
from sim.interface.request import Request
from sim.interface.work import Chunk
from sim.policies.continuous.hooks import Hooks
from sim.policies.continuous.plan import Step
from sim.policies.options import EngineLimits

SPARE_TOKENS = 2
"""An answer is taken to end so many tokens before memory does."""


class Apart:
    """The planner of one replica. `running` of a plan holds rows, and one unfinished prompt at most."""

    def __init__(self, serving: Serving, limits: EngineLimits, hooks: Hooks | None = None) -> None:
        assert limits.token_ratio is not None, "an engine with this admission"
        self._serving, self._limits, self._rules, self._hooks = serving, limits, limits.token_ratio, hooks
        self._ratio = self._rules.initial
        self._batch: list[Request] = []
        """Rows of the last step of rows, finished ones as well, and those of prompts that have ended since."""
        self._is_full = False
        self._prompts: list[Request] = []
        """The last step's, each with all of its prompt or none."""
        self._has_chunk = False
        """One of them was not through."""
        self._computed: list[Request] = []
        """All of them: an unfinished one is shared from the next plan on, others once their step has ended."""
        self._lost: list[Request] = []
        """Retracted while a step under way has them, whose tokens count for nothing."""
        draft_tokens = serving.controller.draft_tokens_max
        self._lookahead = limits.lookahead(draft_tokens)
        self._leaves_at_once, self._spare_tokens, self._kept_tokens = self._rules.kept(
            draft_tokens, serving.radix.block_size
        )
        self._steps_deferred = 0
        """Plans for which prompts still wait (prefill_decode_interval)."""

    def plan(self, running: list[Request], drafting: Mapping[int, int] | None, *, after_rows: bool = False) -> Step:
        """The next step (`plan_step`)."""
        serving = self._serving
        serving.intake.take_in(after_rows=after_rows, num_rows=len(running))
        self._merge()
        if self._lookahead and not self._kept_tokens:
            for request in running:
                if not request.in_flight:
                    serving.radix.give_back(request, request.context_tokens)
        step = Step([], [], [], ()) if self._defers_prompts(drafting) else self._plan_prompts(running)
        if step.is_empty:
            step = self._plan_rows(running, drafting)
        if step.is_empty and drafting is None:
            is_busy = self._limits.async_scheduling or self._leaves_at_once
            if not (is_busy and serving.intake.has_queued):
                self._ratio = self._rules.initial
            if not self._batch:
                step = self._plan_prompts(running)
        if step.prompts:
            self._steps_deferred = self._limits.prefill_decode_interval
        return step

    def _defers_prompts(self, drafting: Mapping[int, int] | None) -> bool:
        """Prompts wait for so many steps of rows behind a step of prompts; not while nothing runs."""
        if not self._batch and drafting is None:
            self._steps_deferred = 0
        is_deferred = self._steps_deferred > 0
        self._steps_deferred -= is_deferred
        return is_deferred

    def kept(self, step: Step, accepted: Sequence[int]) -> tuple[Step, Sequence[int]]:
        """`step`, which has ended, and what its rows accepted, without those who were retracted meanwhile."""
        if not self._lost:
            return step, accepted
        lost, self._lost = self._lost, []
        rows = [i for i, row in enumerate(step.rows) if row not in lost]
        prompts = [i for i, prompt in enumerate(step.prompts) if prompt not in lost]
        kept = Step(
            [step.rows[i] for i in rows],
            [step.row_tokens[i] for i in rows],
            [step.prompts[i] for i in prompts],
            tuple([step.chunks[i] for i in prompts]),
        )
        return kept, [accepted[i] for i in rows]

    def _merge(self) -> None:
        """Prompts of the last step that are through become rows."""
        later = []
        for request in self._computed:
            if request.is_finished or request.is_preempted:
                continue
            if request.prefilled_tokens < request.prefill_goal <= request.prefilled_tokens + request.in_flight:
                later.append(request)
            else:
                through = min(request.prefilled_tokens + request.in_flight, request.prefill_goal)
                self._serving.radix.computed(request, through)
        self._computed = later
        rows = [request for request in self._prompts if not request.is_finished]
        if self._has_chunk or len(rows) < len(self._prompts):
            self._is_full = False
        if rows and not self._batch:
            self._is_full = False
        self._batch.extend(rows)
        self._prompts, self._has_chunk = [], False
        if self._leaves_at_once:
            self._leave(_has_ended)

    def _leave(self, leaves: Callable[[Request], bool]) -> bool:
        """Such rows leave; True where one did."""
        num_before = len(self._batch)
        self._batch = [row for row in self._batch if not leaves(row)]
        has_left = len(self._batch) < num_before
        if has_left or not self._batch:
            self._is_full = False
        return has_left

    # -- prompts

    def _plan_prompts(self, running: list[Request]) -> Step:
        serving, pool, limits, hooks = self._serving, self._serving.radix, self._limits, self._hooks
        step = Step([], [], [], ())
        chunks: list[Chunk] = []
        is_cut = bool(running) and _missing(running[-1]) > 0
        if not is_cut and (self._is_full or not serving.intake.has_queued):
            return step
        seats = limits.max_num_seqs - len(self._batch)
        if self._leaves_at_once:
            # Who ends with the step under way still has a place in the table of requests.
            seats = limits.max_num_seqs - len(running) + is_cut
        if self._batch and seats < limits.min_free_seats and not is_cut:
            return step
        if seats <= 0 and not is_cut:
            self._is_full = True
            return step
        kept, spare = self._ratio * sum(map(self._lacking, self._batch)), 0
        budget = limits.max_num_batched_tokens
        longest = limits.long_prefill_token_threshold or budget
        if is_cut:
            request = running[-1]
            held = request.prefilled_tokens + request.in_flight
            in_last_block = pool.spare_tokens(request, held)
            room = max(in_last_block, in_last_block + int(self._free_tokens - kept))
            if self._leaves_at_once and self._free_tokens - kept < 1.0:
                room = budget  # it goes on all the same
            tokens = min(_missing(request), longest, budget, room)
            if tokens and hooks is not None:
                tokens = hooks.tokens(request, tokens, step.row_tokens, chunks)
            if tokens and pool.grow(request, held + tokens):
                step.prompts.append(request)
                chunks.append(Chunk(tokens, held))
                budget -= tokens
                kept += self._end_chunk(request, held + tokens)
                spare += self._spare_tokens
            else:
                self._has_chunk = True
                return step
        while serving.intake.has_queued and not self._is_full:
            chosen = serving.inbox[0] if hooks is None else hooks.next()
            if chosen is None or (self._leaves_at_once and budget <= 0 and self._has_room(kept, spare)):
                break
            if len(step.prompts) >= seats:
                self._is_full = True
                break
            found_tokens, num_free_found = pool.prefix(chosen)
            tokens = chosen.prompt_tokens + chosen.emitted_tokens - found_tokens
            free = self._free_tokens - num_free_found * pool.block_size - kept - spare
            is_alone = self._leaves_at_once and not running  # there is never more room than now
            if tokens + self._lacking(chosen) + self._spare_tokens >= free and not is_alone:
                self._is_full = True
                break
            if budget <= 0 or self._has_chunk:
                break
            most = min(budget, longest)
            if hooks is not None:
                most = hooks.first_tokens(chosen, most, step.row_tokens, chunks)
                if not most:
                    break
            seated = serving.seat_now(most, request=chosen)
            if seated is None:
                self._is_full = True
                break
            request, chunk = seated
            running.append(request)
            step.prompts.append(request)
            chunks.append(chunk)
            budget -= chunk.new_tokens
            kept += self._end_chunk(request, chunk.history_tokens + chunk.new_tokens)
            spare += self._spare_tokens
            if not self._has_room(kept, spare):
                self._is_full = True
            if budget <= 0 or self._has_chunk:
                break
        return step._replace(chunks=tuple(chunks))

    def _end_chunk(self, request: Request, held: int) -> float:
        """Note a prompt of the step, of which `held` tokens are computed by its end; tokens that it keeps free."""
        self._computed.append(request)
        if held < request.prefill_goal:
            self._has_chunk = True
            return 0.0
        self._prompts.append(request)
        return min(self._answer(request), self._rules.max_answer_tokens)

    def _has_room(self, kept: float, spare: int) -> bool:
        return self._free_tokens - spare > max(0.0, kept)

    @property
    def _free_tokens(self) -> int:
        return self._serving.radix.num_free * self._serving.radix.block_size

    def _answer(self, request: Request) -> int:
        """Tokens of its answer, which ends before memory does."""
        pool = self._serving.radix
        return min(request.output_tokens, pool.num_blocks * pool.block_size - SPARE_TOKENS - request.prompt_tokens)

    def _lacking(self, request: Request) -> int:
        """Tokens that its answer lacks, as admission counts them."""
        return min(max(0, self._answer(request) - request.emitted_tokens), self._rules.max_answer_tokens)

    # -- rows

    def _plan_rows(self, running: list[Request], drafting: Mapping[int, int] | None) -> Step:
        step, pool = Step([], [], [], ()), self._serving.radix
        ends = _ends if self._leaves_at_once else _has_ended
        has_left = self._leave(ends)
        num_before, cut = len(self._batch), [request for request in running[-1:] if _missing(request) > 0]
        if not self._batch:
            return step
        if self._lacks(0 if self._kept_tokens else 1 + 2 * self._lookahead):
            if has_left and self._leaves_at_once:
                return step  # their memory comes back with the step under way
            self._retract()
        else:
            decay = (self._rules.initial - self._rules.min_ratio) / self._rules.decay_steps
            self._ratio = max(self._ratio - decay, self._rules.min_ratio)
        if len(self._batch) < num_before:
            self._is_full = False
        for row in list(self._batch):
            in_flight = row.in_flight
            if _ends(row):
                continue
            tokens = 1 + (drafting[row.index] if drafting is not None and in_flight else row.drafted)
            if not pool.grow(row, max(self._needed(row, 0), row.context_tokens + in_flight + tokens)):
                self._batch.remove(row)
                self._give_up(row)
                continue
            step.rows.append(row)
            step.row_tokens.append(tokens)
        running[:] = [*self._batch, *[row for row in running if ends(row) and _missing(row) <= 0], *cut]
        return step

    def _needed(self, row: Request, num_tokens: int) -> int:
        """Tokens of the table of `row` for its next step, which has room for `num_tokens` beyond those under way; where
        slots are kept, for those beyond what is known to be accepted."""
        if self._kept_tokens:
            is_prompt = row.prefilled_tokens < row.prefill_goal
            return row.context_tokens + (row.in_flight if is_prompt else 0) + self._kept_tokens
        return row.context_tokens + row.in_flight + num_tokens

    def _lacks(self, num_tokens: int) -> bool:
        """The rows have no room for their next step (`_needed`)."""
        pool = self._serving.radix
        lacking = [max(0, pool.missing(row, self._needed(row, num_tokens))) for row in self._batch]
        return sum(lacking) > pool.num_free

    def _retract(self) -> None:
        rows, rules = self._batch, self._rules
        if not self._lookahead or self._kept_tokens:
            rows.sort(key=lambda row: (-row.emitted_tokens, row.prompt_tokens))
        is_first = True
        while len(rows) > 1 and (is_first or self._lacks(1 + self._lookahead)):
            self._give_up(rows.pop())
            is_first = False
        decoded = sum(row.emitted_tokens for row in rows) + rules.retract_steps * len(rows)
        self._ratio = min(1.0, decoded / (sum(map(self._answer, rows)) + 1))

    def _give_up(self, row: Request) -> None:
        if row.in_flight:
            self._lost.append(row)
            row.in_flight = 0
        self._serving.retract(row)


def _missing(request: Request) -> int:
    """Tokens of its prompt that no chunk has yet."""
    return request.prefill_goal - request.prefilled_tokens - request.in_flight


def _has_ended(row: Request) -> bool:
    return row.is_finished


def _ends(row: Request) -> bool:
    """It has its last token, or has it with the step under way, whatever that accepts."""
    return row.is_finished or (row.in_flight > 0 and row.emitted_tokens + 1 >= row.output_tokens)
