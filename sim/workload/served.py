"""A workload as an engine serves it, within the model's context. All counts of requests and tokens come from here.

vLLM and TensorRT-LLM end an answer at the context and reject a prompt that leaves no room for one token. SGLang, and an
engine of which nothing is known, reject a request whose prompt and answer would be longer.
Not here: requests as they are sent (sim.workload.generate), which engines end answers, and where (sim.run.limits).
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import msgspec
import numpy as np

from sim.draws import Integers
from sim.interface.request_columns import Requests
from sim.workload.content import BLOCK_TOKENS
from sim.workload.generate import MEAN_SAMPLE, Mask, Workload, at_most, build_requests, sent_lengths

SAMPLE = 200
"""Requests that tell of a workload."""


class AllRejected(ValueError):
    """No request fits into the context."""

    def __init__(self, dataset_path: str | None, shortest: str, max_model_len: int) -> None:
        super().__init__(dataset_path, shortest, max_model_len)

    def __str__(self) -> str:
        dataset_path, shortest, max_model_len = self.args
        return (
            f"every request{f' of {dataset_path!r}' if dataset_path else ''} is rejected: the shortest {shortest} "
            f"tokens, and a prompt and its answer have at most {max_model_len} (engine.max_model_len; by default the "
            "model's context)"
        )


class ServedRequests(NamedTuple):
    """Requests that an engine serves, and how many of those that are sent differ."""

    requests: Requests
    num_cut: int = 0
    """Requests among them whose answers end early."""
    num_rejected: int = 0
    """Requests beside them."""

    @property
    def served_share(self) -> float:
        return len(self.requests) / (len(self.requests) + self.num_rejected)


class MeanTokens(NamedTuple):
    """Means over the requests that are served."""

    prompt: float
    output: float
    served_share: float = 1.0
    """Requests that are served over those that are sent."""

    @property
    def output_per_sent(self) -> float:
        """Output tokens per request that is sent: none of a rejected one."""
        return self.output * self.served_share


class Served(msgspec.Struct, frozen=True):
    """A workload and the context of the engine that serves it."""

    workload: Workload
    max_model_len: int | None = None
    """Tokens of prompt and answer at most; None: any number."""
    ends_answers: bool = True
    """An answer ends there; False: its request is rejected."""

    def requests(self, seed: int, block_tokens: int = BLOCK_TOKENS, end_s: float = inf) -> ServedRequests:
        """New requests in order of arrival, index 0 first, of those that are sent until `end_s`; at a low rate that may
        be none. Raises ValueError where all are rejected, and for a trace that cannot be served."""
        sent = build_requests(self.workload, seed, block_tokens)
        is_sent, outputs = sent.column("arrival_s") <= end_s, sent.column("output_tokens")
        fitted = self._fitted(sent.column("prompt_tokens"), outputs)
        if fitted is None:
            return ServedRequests(sent.kept(is_sent))
        is_served, answers = fitted[0] & is_sent, fitted[1]
        sent.change({"output_tokens": answers})
        num_cut = int(np.count_nonzero(is_served & (answers < outputs)))
        return ServedRequests(sent.kept(is_served), num_cut, int(np.count_nonzero(is_sent & ~is_served)))

    def sample(self, seed: int) -> ServedRequests:
        """SAMPLE requests, or MEAN_SAMPLE where all of these are rejected. Raises ValueError as `requests` does."""
        few, many = (
            msgspec.structs.replace(self, workload=self.workload.sized(at_most(self.workload, count)))
            for count in (SAMPLE, MEAN_SAMPLE)
        )
        try:
            return few.requests(seed)
        except AllRejected:
            return many.requests(seed)

    def mean_tokens(self, seed: int) -> MeanTokens:
        """Means of a whole trace, or of MEAN_SAMPLE draws. Raises ValueError where all are rejected."""
        prompts, outputs = sent_lengths(self.workload, seed)
        fitted = self._fitted(prompts, outputs)
        if fitted is None:
            return MeanTokens(float(prompts.mean()), float(outputs.mean()))
        is_served, answers = fitted
        share = float(is_served.mean())
        return MeanTokens(float(prompts[is_served].mean()), float(answers[is_served].mean()), share)

    def _fitted(self, prompts: Integers, outputs: Integers) -> tuple[Mask, Integers] | None:
        """[requests] which are served, and the tokens of their answers; None where all are served as they are sent."""
        if self.max_model_len is None:
            return None
        room = self.max_model_len - prompts
        if not (outputs > room).any():
            return None
        is_served = room > 0 if self.ends_answers else outputs <= room
        if not is_served.any():
            least = prompts.min() if self.ends_answers else (prompts + outputs).min()
            shortest = f"prompt has {least}" if self.ends_answers else f"prompt and answer have {least}"
            raise AllRejected(self.workload.dataset_path, shortest, self.max_model_len)
        return is_served, np.minimum(outputs, room)
