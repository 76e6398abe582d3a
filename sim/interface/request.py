"""One request: what was asked, where it stands, and when each thing happened.

Not here: many requests (request_columns), how they arrive (sim.workload.generate) and the metrics read from them
(sim.metrics.summary).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan


@dataclass(slots=True, eq=False)
class Request:
    """A request and its state. Times are host seconds, nan until they happen.

    `index` is the arrival index and keys the request's random numbers. `id` is only a label.

    >>> import lanesim
    >>> lanesim.Request(0, "r0", arrival_s=0.0, prompt_tokens=64, output_tokens=32).is_finished
    False
    >>> one = lanesim.simulate(profile="cpu/tiny", policy="pd", num_prompts=3, request_rate=10)
    >>> [request.emitted_tokens for request in one.record.requests]
    [32, 32, 32]
    """

    index: int
    id: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    """Tokens to generate, first one included; at least 1."""
    content: tuple[int, ...] = ()
    """Chained ids, from 0, of its whole KV blocks: equal ids mean equal tokens up to and with that block. Those of the
    prompt, and of the answer where that is known; empty where nothing is known."""

    priority: int = 0
    """Higher ones go first of those that wait for admission."""
    slo_class: str | None = None
    """Name of its class among the scenario's."""
    unforeseen_tokens: int = 0
    """Tokens beyond `output_tokens` that an engine plans for, since it cannot foresee the end of the answer."""

    prefilled_tokens: int = 0
    """Tokens that prefill brought into KV: of the prompt, and after a preemption of the output so far."""
    prefill_goal: int = -1
    """Tokens to prefill before decoding goes on: the prompt; after a preemption the output so far as well."""
    kv_tokens: int = 0
    """Tokens held in KV, slots of the round in flight included."""
    emitted_tokens: int = 0
    """Output tokens on the host so far."""
    drafted: int = 0
    """Length of the draft in flight: rides with the draft to verify."""
    needs_catch_up: bool = False
    """The last draft was fully accepted, so the draft model lacks one token in its KV."""

    in_flight: int = 0
    """Tokens of the step that is under way while the next one is planned (asynchronous scheduling)."""
    is_preempted: bool = False
    """Lost its memory and waits for some."""
    num_preemptions: int = 0
    cached_tokens: int = 0
    """Prompt tokens whose KV was there when it was first seated."""

    known_s: float = 0.0
    """When the host could begin to prepare its next work: it was queued, or its work before was submitted."""
    queued_s: float = nan
    """When the engine took it in: at its next step boundary. TTFT as vLLM's timestamps give it counts from here."""
    scheduled_s: float = nan
    first_token_s: float = nan
    last_token_s: float = nan
    """Time of the newest emission."""
    num_rounds: int = 0
    """Verify rounds with a draft."""
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    """Accepted drafted tokens, counted before the output is cut to `output_tokens`."""

    def __post_init__(self) -> None:
        self.prefill_goal = self.prompt_tokens

    @property
    def is_finished(self) -> bool:
        return self.emitted_tokens >= self.output_tokens

    @property
    def context_tokens(self) -> int:
        """Tokens in the target's KV between rounds: prompt and every emitted token but the newest."""
        after_prefill = self.emitted_tokens - 1 - (self.prefill_goal - self.prompt_tokens)
        return self.prefilled_tokens + after_prefill if after_prefill > 0 else self.prefilled_tokens
