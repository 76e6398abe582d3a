"""Steps of prompts alone and of rows alone, as SGLang's scheduler plans them, and who gives way where memory runs out.

Rules of SGLang 0.5.6 (srt/managers; lines in the engine's file). Prompts go first. One is admitted where it and its
whole answer fit beside a share, `TokenRatio`, of what the running answers still lack; the share falls with each step of
rows. When seats or memory refuse somebody, nobody is admitted until a row has left, and who finished keeps the seat
until the next step of rows. That step first looks whether all rows have room for a round; if not, the one with the
fewest tokens decoded is retracted (of equals the longest prompt, then the newest), with drafts the newest, until the
others have: it waits behind all others, and the share is set to what is decoded of those that stay.

Not here: a request that has finished and runs once more under the overlap scheduler (it is left out), the bound of
max_prefill_tokens, and admission without a radix cache, which orders answers by what they lack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
        self._lookahead = limits.lookahead(serving.controller.draft_tokens_max)

    def plan(self, running: list[Request], drafting: Mapping[int, int] | None, *, after_rows: bool = False) -> Step:
        """The next step (`plan_step`)."""
        serving = self._serving
        serving.intake.take_in(after_rows=after_rows, num_rows=len(running))
        self._merge()
        if self._lookahead:
            for request in running:
                if not request.in_flight:
                    serving.radix.give_back(request, request.context_tokens)
        step = self._plan_prompts(running)
        if step.is_empty:
            step = self._plan_rows(running, drafting)
        if step.is_empty and drafting is None:
            if not (self._limits.async_scheduling and serving.intake.has_queued):
                self._ratio = self._rules.initial
            if not running:
                step = self._plan_prompts(running)
        return step

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

    # -- prompts

    def _plan_prompts(self, running: list[Request]) -> Step:
        serving, pool, limits, hooks = self._serving, self._serving.radix, self._limits, self._hooks
        step = Step([], [], [], ())
        chunks: list[Chunk] = []
        is_cut = bool(running) and _missing(running[-1]) > 0
        if not is_cut and (self._is_full or not serving.intake.has_queued):
            return step
        seats = limits.max_num_seqs - len(self._batch)
        if seats <= 0 and not is_cut:
            self._is_full = True
            return step
        kept = self._ratio * sum(map(self._lacking, self._batch))
        budget = limits.max_num_batched_tokens
        longest = limits.long_prefill_token_threshold or budget
        if is_cut:
            request = running[-1]
            held = request.prefilled_tokens + request.in_flight
            in_last_block = pool.spare_tokens(request, held)
            room = max(in_last_block, in_last_block + int(self._free_tokens - kept))
            tokens = min(_missing(request), longest, budget, room)
            if tokens and hooks is not None:
                tokens = hooks.tokens(request, tokens, step.row_tokens, chunks)
            if tokens and pool.grow(request, held + tokens):
                step.prompts.append(request)
                chunks.append(Chunk(tokens, held))
                budget -= tokens
                kept += self._end_chunk(request, held + tokens)
            else:
                self._has_chunk = True
                return step
        while serving.intake.has_queued and not self._is_full:
            chosen = serving.inbox[0] if hooks is None else hooks.next()
            if chosen is None:
                break
            if len(step.prompts) >= seats:
                self._is_full = True
                break
            found_tokens, num_free_found = pool.prefix(chosen)
            tokens = chosen.prompt_tokens + chosen.emitted_tokens - found_tokens
            if tokens + self._lacking(chosen) >= self._free_tokens - num_free_found * pool.block_size - kept:
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
            if self._free_tokens <= max(0.0, kept):
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
        step = Step([], [], [], ())
        num_before = len(self._batch)
        self._batch = rows = [row for row in self._batch if not row.is_finished]
        if len(rows) < num_before:
            self._is_full = False
        if not rows:
            self._is_full = False
            return step
        cut = [request for request in running[-1:] if _missing(request) > 0]
        # Room for a draft and for its verify: one after the other, counted as if together.
        if self._lacks(1 + 2 * self._lookahead):
            self._retract()
        else:
            decay = (self._rules.initial - self._rules.min_ratio) / self._rules.decay_steps
            self._ratio = max(self._ratio - decay, self._rules.min_ratio)
        if len(rows) < num_before:
            self._is_full = False
        for row in list(rows):
            in_flight = row.in_flight
            if in_flight and row.emitted_tokens + 1 >= row.output_tokens:
                continue
            tokens = 1 + (drafting[row.index] if drafting is not None and in_flight else row.drafted)
            if not self._serving.radix.grow(row, row.context_tokens + in_flight + tokens):
                rows.remove(row)
                self._give_up(row)
                continue
            step.rows.append(row)
            step.row_tokens.append(tokens)
        running[:] = [*rows, *cut]
        return step

    def _lacks(self, num_tokens: int) -> bool:
        """The rows have no room for so many more tokens each."""
        pool = self._serving.radix
        lacking = [pool.missing(row, row.context_tokens + row.in_flight + num_tokens) for row in self._batch]
        return sum(lacking) > pool.num_free

    def _retract(self) -> None:
        rows, rules = self._batch, self._rules
        if not self._lookahead:
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
