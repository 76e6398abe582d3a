"""Three choices of `continuous` that a researcher may make: whom to admit, tokens of a step, draft lengths.

A hook is a function of what it is shown, and it cannot change a request. An answer that no step can carry raises
PluginError, which names the policy and the hook. Not here: the choices that `continuous` makes itself (plan, apart).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from sim.engine.serving import Serving
from sim.interface.request import Request
from sim.interface.work import Chunk
from sim.plugins import PluginError, checked_count, naming_plugin, shown
from sim.policies.works import StepLoad


class RequestView(msgspec.Struct, frozen=True, gc=False):
    """One request as a hook sees it."""

    waited_s: float
    """Seconds since the request arrived."""
    prefill_tokens: int
    """Tokens to compute before it decodes. A request that decodes has none left."""
    index: int
    """Counts up in order of arrival."""
    prompt_tokens: int
    output_tokens: int
    """Length of the whole answer. A server does not know it before the answer ends."""
    emitted_tokens: int
    """Output tokens so far. The newest step is not counted where steps are planned ahead."""
    priority: int
    slo_class: str | None
    num_preemptions: int
    drafted_tokens: int
    """Drafted tokens that were verified so far."""
    accepted_tokens: int
    """Accepted ones among them."""


_read = attrgetter(*RequestView.__struct_fields__[2:])


class StepView(NamedTuple):
    """One step as a hook sees it, with what it carries so far."""

    budget_tokens: int
    """Most tokens that a step may carry."""
    num_rows: int
    """Requests that decode."""
    row_tokens: int
    """Their tokens: one each, and the drafts that are verified."""
    prompt_tokens: int


Admit = Callable[[Sequence[RequestView]], RequestView | None]
"""The waiting request that is admitted next. None admits no other one in this step."""
Share = Callable[[RequestView, int, StepView], int]
"""How many tokens a request has, from 0 to the given number, which is what `continuous` would choose."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """The hooks of one policy on one server. Without a function the choice is that of `continuous`."""

    policy: str
    serving: Serving
    budget_tokens: int
    admit: Admit | None
    split: Share | None
    draft_length: Share | None

    def next(self) -> Request | None:
        """The request to be admitted next."""
        inbox = self.serving.inbox
        if self.admit is None:
            return inbox[0]
        waiting = [request for request in inbox if request.queued_s == request.queued_s]
        views = [self._view(request) for request in waiting]
        answer = self._ask("admit", self.admit, tuple(views))
        if answer is None:
            return None
        for view, request in zip(views, waiting, strict=True):
            if view is answer:
                return request
        raise PluginError(f"policy {self.policy!r}: admit gave {shown(answer)}. Return a waiting request or None")

    def tokens(self, request: Request, most: int, row_tokens: Sequence[int], chunks: Sequence[Chunk]) -> int:
        """Tokens of `request` in a step that carries rows of `row_tokens` and `chunks` so far."""
        if self.split is None:
            return most
        return self._share("split", self.split, request, most, self._step(len(row_tokens), sum(row_tokens), chunks))

    def first_tokens(self, request: Request, most: int, row_tokens: Sequence[int], chunks: Sequence[Chunk]) -> int:
        """The same for the first chunk of a waiting request."""
        wanted = min(most, self._view(request).prefill_tokens)
        given = self.tokens(request, wanted, row_tokens, chunks)
        return most if given == wanted else given

    def lengths(self, load: StepLoad, lengths: Sequence[int]) -> Sequence[int]:
        """Draft lengths of the rows and prompts of `load`, `lengths` at most. An unfinished prompt has no draft."""
        if self.draft_length is None:
            return lengths
        drafting = {request.index for request in (*load.rows, *load.completed)}
        step = self._step(load.num_rows, load.row_tokens, load.chunks)
        return [
            self._share("draft_length", self.draft_length, request, most, step) if request.index in drafting else 0
            for request, most in zip((*load.rows, *load.prompts), lengths, strict=True)
        ]

    def _share(self, hook: str, share: Share, request: Request, most: int, step: StepView) -> int:
        answer = self._ask(hook, share, self._view(request), most, step)
        return checked_count(f"policy {self.policy!r}: {hook} of request {request.index}", answer, 0, most)

    def _ask(self, hook: str, function: Callable[..., Any], *given: Any) -> Any:
        try:
            return function(*given)
        except Exception:
            with naming_plugin(f"policy {self.policy!r}: {hook}"):
                raise

    def _step(self, num_rows: int, row_tokens: int, chunks: Sequence[Chunk]) -> StepView:
        return StepView(self.budget_tokens, num_rows, row_tokens, sum([chunk.new_tokens for chunk in chunks]))

    def _view(self, request: Request) -> RequestView:
        prefill_tokens = request.prefill_goal - request.prefilled_tokens - request.in_flight
        if request.is_preempted:
            prefill_tokens = request.prompt_tokens + request.emitted_tokens
        return RequestView(self.serving.host.now_s - request.arrival_s, max(0, prefill_tokens), *_read(request))
