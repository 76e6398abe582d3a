"""One request: what was asked, where it stands, and when each thing happened.

Not here: how requests arrive (sim.workload) and the metrics read from them (sim.metrics).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.host import Ticket


@dataclass(slots=True, eq=False)
class Request:
    """A request and its state. Times are host seconds; nan until they happen.

    `index` is the arrival index and keys the request's luck; `id` is only a label.
    """

    index: int
    id: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    """Tokens to generate, first one included; at least 1."""

    prefilled_tokens: int = 0
    """Prompt tokens in KV."""
    kv_tokens: int = 0
    """Tokens held in KV, slots of the round in flight included."""
    emitted_tokens: int = 0
    """Output tokens on the host so far."""
    drafted: int = 0
    """Length of the draft in flight: rides with the draft to verify."""
    needs_catch_up: bool = False
    """The last draft was fully accepted, so the draft model lacks one token in its KV."""

    draft_prefill: Ticket | None = None
    """The draft model's prefill of this prompt while the first draft has yet to come after it."""

    queued_s: float = nan
    """When the engine took it in: at its next step boundary. TTFT as vLLM's own timestamps give it counts from here."""
    scheduled_s: float = nan
    first_token_s: float = nan
    last_token_s: float = nan
    """Time of the newest emission."""
    num_rounds: int = 0
    """Verify rounds with a draft."""
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    """Accepted drafted tokens, counted before the output is cut to `output_tokens`."""

    @property
    def is_finished(self) -> bool:
        return self.emitted_tokens >= self.output_tokens

    @property
    def context_tokens(self) -> int:
        """Tokens in the target's KV between rounds: prompt and every emitted token but the newest."""
        return self.prefilled_tokens + max(0, self.emitted_tokens - 1)
