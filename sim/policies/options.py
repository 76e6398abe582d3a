"""What the policies of a comparison can be told; one block for all, each takes what concerns it."""

from enum import StrEnum

import msgspec


class Batching(StrEnum):
    """BATCHED: one work carries the whole batch. PER_REQUEST: one work per request, as the seeds' engines looped."""

    BATCHED = "batched"
    PER_REQUEST = "per_request"


class KvMode(StrEnum):
    """What an engine keeps of a round: ROLLBACK (a good engine: rejected tokens are dropped), REFORWARD (accepted
    tokens are run again through the target after verify), NONE (no KV cache: every pass recomputes the whole sequence).

    The latter two are how the engines behind the seeds worked (claims, sections A and C).
    """

    ROLLBACK = "rollback"
    REFORWARD = "reforward"
    NONE = "none"


class PolicyOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the lane policies (design, section 5). Checked at construction.

    >>> import lanesim
    >>> scenario = lanesim.Scenario.of(profile="cpu/tiny", policy="pd", **{"policy_options.batching": "per_request"})
    >>> scenario.policy_options.rows_per_work(6)
    1
    """

    workers: int = 4
    """baseline: workers, each with one request."""
    decode_batch: int = 6
    verify_batch: int = 12
    batching: Batching = Batching.BATCHED
    kv: KvMode = KvMode.ROLLBACK
    poll_s: float = 0.001
    """How often an idle worker of a lane looks; 0 wakes it at once."""
    spin_s: float = 0.00001
    """unified: its poll (seed 002)."""
    queue_factor: float = 1.2
    """unified: prompts are taken in while the decode queue is within this many batches."""
    verify_lead: int = 2
    """pdv: verify goes first when its queue exceeds decode's by more than this."""

    stream_priorities: bool = False
    """Ask for stream priorities, decode before verify before prefill, where streams contend. The engines behind the
    seeds made plain streams."""

    def priority(self, priority: int) -> int:
        """`priority` of a stream where priorities are asked for; else all are alike."""
        return priority if self.stream_priorities else 0

    def __post_init__(self) -> None:
        for name in ("workers", "decode_batch", "verify_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"policy_options.{name}={getattr(self, name)!r} must be at least 1")
        for name in ("poll_s", "spin_s", "queue_factor"):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"policy_options.{name}={getattr(self, name)!r} must be a finite number >= 0")
        if self.verify_lead < 0:
            raise ValueError(f"policy_options.verify_lead={self.verify_lead!r} must be at least 0")

    def rows_per_work(self, batch: int) -> int:
        """How many requests one work carries in a lane of `batch`."""
        return 1 if self.batching is Batching.PER_REQUEST else batch


class Method(StrEnum):
    """What drafts, under vLLM's names: a smaller model, an EAGLE-3 head of the target, a look-up of n-grams."""

    DRAFT_MODEL = "draft_model"
    EAGLE3 = "eagle3"
    NGRAM = "ngram"


class EngineLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a continuous-batching engine is told, under vLLM's names.

    >>> import lanesim
    >>> limits = lanesim.Scenario.of(profile="cpu/tiny", policy="continuous", max_num_seqs=16).limits
    >>> isinstance(limits, lanesim.EngineLimits), limits.max_num_seqs, limits.max_num_batched_tokens
    (True, 16, 2048)
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    long_prefill_token_threshold: int = 0
    """Longest chunk of one prompt in a step; 0 = the budget."""
    async_scheduling: bool = False
    """Plan a step while the one before it is under way."""
    method: Method = Method.DRAFT_MODEL
