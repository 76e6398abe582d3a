"""The description of one way of drafting. Each has a file beside this one.

Not here: all of them by name (registry), acceptance (sim.acceptance), seconds (sim.costs).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from sim.costs.shapes import ModelShape
from sim.interface.request import Request
from sim.interface.work import DRAFT, DRAFT_MODEL, HOST, Chunk, Work


def beside(target: ModelShape, **own: Any) -> ModelShape:
    """A shape of the target's width, heads and context, with parts of its `own`."""
    names = ("hidden", "heads", "kv_heads", "head_dim", "max_context", "dtype_bytes")
    return ModelShape(tied_embeddings=True, **{name: getattr(target, name) for name in names}, **own)


def reads_all(num_rows: int, verified: int, draft_tokens: int) -> tuple[int, int, int]:
    """`Drafter.passes` of one that reads every verified token in its first pass, then runs once per token."""
    return verified, num_rows, draft_tokens


def reads_two(num_rows: int, verified: int, draft_tokens: int) -> tuple[int, int, int]:
    """`Drafter.passes` of one that reads two tokens a row in its first pass, then runs once per token."""
    return 2 * num_rows, num_rows, draft_tokens


def _received(name: str) -> Drafter:
    drafter: Drafter = import_module(f"sim.drafters.{name}").DRAFTER
    return drafter


@dataclass(frozen=True, kw_only=True, eq=False)
class Drafter:
    """A way of drafting.

    `name` is the file's. It stands in scenarios and in the rules of engine files, and `spellings` mean the same in
    vLLM's speculative_config. There it is `vllm_method` with parallel_drafting where that is given, and `vllm_note`
    says what the line lacks. `sglang` is SGLang's --speculative-algorithm; SGLang adapts its length to the load or not.

    `passes` are tokens of the first pass, rows of the LM head and number of passes, by rows, tokens just verified and
    draft tokens of a row. Every later pass has one token a row. One that `looks_up` has none. The profile of one with a
    `mark`, a field of ModelShape, has a draft with that field; `what` says so in a sentence. `head` is its shape for a
    target. `on_heads` are the heads that may draft so, too, and what the rules of engine files call that.
    An engine plans ahead, and keeps slots, for the drafters that its file names.
    """

    name: str
    spellings: tuple[str, ...] = ()
    passes: Callable[[int, int, int], tuple[int, int, int]] = reads_all
    looks_up: bool = False
    in_one_pass: bool = False
    extra_slots: int = 0
    """Look-ahead slots of a draft beyond its tokens."""
    reads_features: bool = False
    projects_context: bool = False
    """Verified tokens and prompts go into its KV by a projection, and through no pass."""
    is_model: bool = False
    """A model of its own, which lanes and replays can run."""
    has_checkpoint: bool = True
    mark: str = ""
    what: str = ""
    head: Callable[[ModelShape], ModelShape] | None = None
    on_heads: Mapping[str, str] = field(default_factory=dict)
    vllm_method: str | None = None
    vllm_note: str | None = None
    sglang: str | None = None
    sglang_adapts: bool = False

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Callable[[str], Drafter], tuple[str]]:
        """Another process has the same object, by its name."""
        return _received, (self.name,)

    @property
    def runs_per_token(self) -> bool:
        return not self.looks_up and not self.in_one_pass

    def draft(
        self,
        num_rows: int,
        verified: int,
        context_tokens: int,
        chunks: tuple[Chunk, ...],
        draft_tokens: int,
        requests: Sequence[Request] = (),
    ) -> Work:
        """The draft of `draft_tokens` for each of `num_rows` rows, of which `verified` tokens were just verified and
        `context_tokens` are in KV, beside `chunks` of prompts. One of 0 tokens only brings its KV up to date."""
        if self.looks_up:
            return Work(kind=HOST, rows=num_rows)
        row_tokens, head_rows, passes = self.passes(num_rows, verified, draft_tokens)
        projected, has_pass = 0, True
        if self.projects_context:
            projected, has_pass = verified + sum(chunk.new_tokens for chunk in chunks), draft_tokens > 0
            chunks = ()
        return Work(
            kind=DRAFT,
            model=DRAFT_MODEL,
            requests=requests,
            rows=num_rows if has_pass else 0,
            row_tokens=row_tokens,
            context_tokens=context_tokens if has_pass else 0,
            chunks=chunks,
            head_rows=head_rows if draft_tokens else 0,
            draft_tokens=passes if num_rows else 0,
            projected_tokens=projected,
        )
