"""Options that policies with lanes have in common, and the limits that all of them keep to.

Not here: the options of one policy (its file), all of them as a scenario has them (registry).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated

import msgspec

from sim.bounds import Bounds, check_bounds
from sim.costs.engine_costs import TokenRatio
from sim.devices.partition import check_shares
from sim.drafters.draft_model import DRAFTER as DRAFT_MODEL
from sim.drafters.drafter import Drafter

ONLY_TOGETHER = "only_together"
"""Key of a partition beside its lanes."""
DEFERRED = "deferred"
"""Another."""
PARTITION_FLAGS = (ONLY_TOGETHER, DEFERRED)


class Batching(StrEnum):
    """BATCHED: one work carries the whole batch. PER_REQUEST: one work per request, as the reports' engines looped."""

    BATCHED = "batched"
    PER_REQUEST = "per_request"


class KvMode(StrEnum):
    """KV that an engine keeps of a round: ROLLBACK (a good engine: rejected tokens are dropped), REFORWARD (accepted
    tokens are run again through the target after verify), NONE (no KV cache: every pass recomputes the whole sequence).

    The latter two are how the engines behind the reports worked (claims, sections A and C).
    """

    ROLLBACK = "rollback"
    REFORWARD = "reforward"
    NONE = "none"


class BatchBy(StrEnum):
    """Number of requests that a lane takes at once: as many as it may (MOST); its share of all that are active, so that
    no lane is left without (QUEUE); as many as there are free tokens of KV for their drafts (MEMORY)."""

    MOST = "most"
    QUEUE = "queue"
    MEMORY = "memory"


MIN_POLL_S = 1e-9
"""Looks per second are counted: a nanosecond apart is as often as any worker looks."""
POLL_S = 0.001
"""Seconds between two looks of an idle worker, where nothing else is given."""
PREEMPTIVE = "preemptive"
"""Priorities that are more than weights."""
COUNT = 1_000_000
CHUNK = "long_prefill_token_threshold"
"""Rule of the engine that a lane's prompts obey."""


@dataclass(frozen=True, kw_only=True)
class RoundOptions:
    """Options of whoever goes through `rounds`. Checked at construction, as all that inherit from it."""

    batching: Batching = Batching.BATCHED
    kv: KvMode = KvMode.ROLLBACK

    def __post_init__(self) -> None:
        check_bounds("policy_options", self)


@dataclass(frozen=True, kw_only=True)
class LaneOptions(RoundOptions):
    """Options of policies with lanes; `pd` has no others."""

    decode_batch: Annotated[int | None, Bounds(1, COUNT)] = None
    """Largest batch of a draft, or of a round where draft and verify are one; null = max_num_seqs."""
    poll_s: Annotated[float | None, Bounds(0, 1e6)] = None
    """Seconds between two looks of an idle worker at its queue; 0: it wakes at once; null: 1 ms, and 10 us of the one
    of unified (report 002)."""
    batch_by: BatchBy = BatchBy.MOST
    """pd, pdv: what sets the size of a batch within its limit: most, queue or memory."""
    stream_priorities: bool | str = False
    """Priorities of contending streams: decode before verify before prefill. true: a higher one waits for
    40 us of another's kernel; preemptive: the highest takes what it can use, the others get the rest. The reports'
    engines had plain streams."""
    partition: dict[str, float | bool] | None = None
    """pd, pdv, unified: shares of the GPU's multiprocessors by lane, such as {prefill: 0.4, decode: 0.6}. Lanes without
    one divide the rest. only_together: true gives a lane the whole GPU while
    no other has work; deferred: true (pd, pdv) lets prompts begin, and join the others, where a round ends."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.poll_s and self.poll_s < MIN_POLL_S:
            raise ValueError(f"policy_options.poll_s={self.poll_s!r} must be 0 or at least {MIN_POLL_S:g} seconds")
        if isinstance(self.stream_priorities, str) and self.stream_priorities != PREEMPTIVE:
            raise ValueError(
                f"policy_options.stream_priorities={self.stream_priorities!r} must be true, false or {PREEMPTIVE}"
            )
        if self.partition is None:
            return
        flags = [self.partition.get(key, False) for key in PARTITION_FLAGS]
        has_shares = self.shares and not any(isinstance(share, bool) for share in self.shares.values())
        if not has_shares or not all(isinstance(flag, bool) for flag in flags):
            raise ValueError(
                f"policy_options.partition={self.partition!r} must be a share by lane, above 0 and at most 1, beside "
                f"them {' and '.join(PARTITION_FLAGS)} as true or false, or null"
            )
        try:
            check_shares(self.shares)
        except ValueError as error:
            raise ValueError(f"policy_options.partition: {error}") from None

    def looks_every_s(self, unless_given: float = POLL_S) -> float:
        """Seconds between two looks of an idle worker."""
        return unless_given if self.poll_s is None else self.poll_s

    def share(self, lane: str) -> float | None:
        """Share of the multiprocessors reserved for `lane`; None where it has none of its own."""
        return self.shares.get(lane)

    @property
    def shares(self) -> dict[str, float]:
        """Given ones, by lane."""
        return {lane: share for lane, share in (self.partition or {}).items() if lane not in PARTITION_FLAGS}

    @property
    def only_together(self) -> bool:
        return self.partition is not None and self.partition.get(ONLY_TOGETHER) is True

    @property
    def defers_prompts(self) -> bool:
        return self.partition is not None and self.partition.get(DEFERRED) is True

    def priority(self, priority: int) -> int:
        """`priority` of a stream where priorities are requested; else all are alike."""
        return priority if self.stream_priorities else 0


def keys(options: type[RoundOptions], *, but: Sequence[str] = ()) -> tuple[str, ...]:
    """Keys of `policy_options` that mean something to a policy with such options, but for some."""
    return tuple(field.name for field in fields(options) if field.name not in but)


class EngineLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that a policy must keep to, under vLLM's names.

    >>> import lanesim
    >>> limits = lanesim.EngineLimits(max_num_seqs=256, max_num_batched_tokens=1000)
    >>> limits.lane_batch(None, draft_tokens=4), limits.lane_batch(6, draft_tokens=4)
    (200, 6)
    """

    max_num_seqs: int = 256
    """Requests admitted and unfinished."""
    max_num_batched_tokens: int = 2048
    """Tokens of one target pass: prompt chunks, and drafted tokens plus one per row."""
    draft_slots: int = 0
    """continuous: tokens of each pass that the engine keeps free for the drafts of every seat."""
    slots_per_request: int = 0
    """continuous: such tokens for each request that a pass carries, in place of every seat."""
    padded_tokens: int = 0
    """continuous: tokens of a chunk that would be a request's last token alone, as of a round; 0: one."""
    seats_lookahead: bool = False
    """continuous: a request is seated with slots for its next draft."""
    prefill_schedule_interval: int = 1
    """continuous: steps from one that may carry prompts to the next while rows decode, unless somebody waited behind
    the last such step."""
    defers_last_token: bool = True
    """Prompts of which one token is left to compute wait like all others."""
    counts_prompt_steps: bool = False
    """Steps of the interval are counted since the last one that carried a prompt; False: since the start."""
    goes_on_without: bool = False
    """Where the request that is planned gives way to others, those behind it are planned; False: the step ends."""
    skips_unused_drafts: bool = False
    """No drafts are made behind a step after which no request could use one."""
    preempts_by_priority: bool = False
    """continuous: where requests have priorities, the lowest one that runs gives way, the latest of those."""
    long_prefill_token_threshold: int = 0
    """Longest chunk of one prompt in a step; 0 = the budget."""
    spares_lone_prompt: bool = False
    """The only request that there is has chunks as long as the budget."""
    async_scheduling: bool = False
    """Plan a step while the one before it is under way."""
    mixes_prompts: bool = True
    """Prompt chunks share a step with the rows that decode (vLLM). False: prompts go first, in steps of their own,
    which hold up all rows, and `token_ratio` says who is admitted (SGLang)."""
    receive_interval: int = 1
    """Steps of rows alone from one look at what has arrived to the next; after a step with prompts, and where nothing
    runs, every plan looks (SGLang's --scheduler-recv-interval)."""
    batch_wait_steps: int = 0
    """continuous: steps for which new prompts are held back while rows run, for others to come
    (TensorRT-LLM's batch_wait_timeout_iters)."""
    batch_wait_ratio: float = 0.0
    """Share of max_num_batched_tokens: prompts that come to so much with the rows are not held back."""
    balance: tuple[int, float] = 0, 0.0
    """continuous: steps from one in which prompts begin to the next while rows run, 0 for any; requests that wait where
    none is waited for.

    A data-parallel rank's prompts wait for all ranks to have one (TensorRT-LLM's attention_dp_config), at most so many
    steps, whose count runs on whether or not somebody waits. Other ranks are not simulated: they are taken to have one
    where here as many wait as come, in the mean, before each of R ranks has one, 1 + 1/2 + .. + 1/R."""
    whole_prompts: bool = False
    """continuous: a prompt that does not fit what a step has left waits for the next one, in place of a chunk of it
    (TensorRT-LLM without enable_chunked_prefill); only one that no step would hold is cut."""
    no_evict: bool = False
    """continuous: admit a request where prompt and whole answer fit beside those of all who run (TensorRT-LLM's
    GUARANTEED_NO_EVICT), so that nothing is preempted; False: where its prompt fits (vLLM)."""
    token_ratio: TokenRatio | None = None
    """continuous: admission and retraction of an engine that does not mix prompts with rows (SGLang)."""
    prefill_decode_interval: int = 0
    """Such an engine's steps of rows behind one of prompts before the next prompts, while rows run."""
    min_free_seats: int = 0
    """While rows run, such an engine begins prompts once so many seats are free."""
    drafts_before_verify: bool = False
    """continuous: a step of rows begins with all passes of its drafts but the first, which ended the step before
    (SGLang); False: drafts end the step (vLLM)."""
    method: Drafter = DRAFT_MODEL
    scheduler: str | None = None
    """continuous: an installed engine whose own scheduler plans the steps, by its name in the entry points
    `lanesim.engines`; None: `continuous` does."""

    @property
    def max_num_scheduled_tokens(self) -> int:
        """Tokens of one step that `continuous` plans, under vLLM's name."""
        return self.max_num_batched_tokens - self.draft_slots * self.max_num_seqs

    def lookahead(self, draft_tokens: int) -> int:
        """Slots that the plan of a sequence keeps for its next draft of `draft_tokens`: none where drafts are looked
        up."""
        return 0 if self.method.looks_up or not draft_tokens else draft_tokens + self.method.extra_slots

    @property
    def retracts(self) -> bool:
        """Admission and retraction go by `token_ratio`."""
        return not self.mixes_prompts

    @property
    def batch_wait(self) -> tuple[int, float]:
        """Steps that prompts wait for at most, and the tokens of a step at which they do not."""
        return self.batch_wait_steps, self.batch_wait_ratio * self.max_num_batched_tokens

    def holds_back(self, prompt_tokens: int, budget: int) -> bool:
        """True where a prompt of so many tokens waits for a step that has more than `budget` left."""
        return self.whole_prompts and budget < prompt_tokens <= self.max_num_scheduled_tokens

    def lane_batch(self, batch: int | None, draft_tokens: int) -> int:
        """Requests that a lane with `batch` takes at once (None: max_num_seqs), as many as a pass that verifies
        `draft_tokens` + 1 of each has room for. At least 1."""
        wanted = self.max_num_seqs if batch is None else min(batch, self.max_num_seqs)
        return max(1, min(wanted, self.max_num_batched_tokens // (draft_tokens + 1)))


def rows_per_work(options: RoundOptions, limits: EngineLimits, batch: int | None, draft_tokens: int) -> int:
    """Requests in one work of a lane with `batch`, with drafts of at most `draft_tokens`."""
    return 1 if options.batching is Batching.PER_REQUEST else limits.lane_batch(batch, draft_tokens)
