"""Draft-length controllers by their names in a scenario. Not here: what they do (draft_length, adaptive_length)."""

from __future__ import annotations

from collections.abc import Mapping

from sim.engine.adaptive_length import AdaptiveVerification, Bands, GoodputLength, RoundSeconds, SglangAdaptive
from sim.engine.draft_length import BatchTable, ByBatch, Controller, Feedback, Fixed

VERIFYING = "adaptive_verification"
"""Also chooses what is verified of what was drafted."""
CONTROLLERS = ("fixed", "feedback", "by_batch", "goodput", "sglang_adaptive", VERIFYING)


def build_controller(
    name: str, draft_tokens: int, *, table: BatchTable | Bands | None = None, round_s: RoundSeconds | None = None
) -> Controller:
    """The controller called `name`; `draft_tokens` is what it starts at, or the most that it may draft (by_batch,
    goodput). Without drafts every one is fixed at 0.

    by_batch reads rows of `table`, sglang_adaptive its bands (None: SGLang's own); goodput and adaptive_verification
    ask `round_s` what a round of so many rows and drafted, or verified, tokens takes. Raises ValueError for an unknown
    name, and for what its name needs and lacks.

    >>> build_controller("by_batch", 3, table=((1, 64, 3), (65, 128, 1))).length_for(100)
    1
    """
    if name not in CONTROLLERS:
        raise ValueError(f"controller {name!r} is not one of {', '.join(CONTROLLERS)}")
    if draft_tokens == 0 or name == "fixed":
        return Fixed(draft_tokens)
    if name == "feedback":
        return Feedback(draft_tokens)
    if name == "sglang_adaptive":
        return SglangAdaptive(draft_tokens, table if isinstance(table, Mapping) else None)
    if name == "by_batch":
        if table is None or isinstance(table, Mapping):
            raise ValueError("controller by_batch needs a table of draft lengths by batch size")
        return ByBatch(table, draft_tokens)
    if round_s is None:
        raise ValueError(f"controller {name} needs a profile, for the cost of a round")
    return (AdaptiveVerification if name == VERIFYING else GoodputLength)(draft_tokens, round_s)
