"""Growth of a server's counters between two looks at its `/metrics`: names of vLLM (V1), SGLang and llama.cpp.

Counters and histograms only grow, so their differences are the means of all that was served between the looks, however
long ago the server was started. llama.cpp counts drafts under vLLM's names, and no requests. Not here:
where the two texts come from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import inf, isfinite
from pathlib import Path

from msgspec import structs

from calibrate.served.load import MAX_DRAFT_TOKENS, Accepted, ServedLoad, check_counts, mean_load, of_length
from sim.files.json_values import Json
from sim.files.read import read_text
from sim.names import install_line

MAX_METRICS_BYTES = 64 << 20
PREFIXES = ("vllm:", "sglang:", "llamacpp:")
TTFT = ("time_to_first_token_seconds",)
TPOT = ("request_time_per_output_token_seconds",)
ITL = ("inter_token_latency_seconds", "time_per_output_token_seconds")
"""Gaps between a request's emissions. vLLM samples a step, SGLang each token of it: their sum is the same."""
E2EL = ("e2e_request_latency_seconds",)
PROMPT, OUTPUT = ("request_prompt_tokens",), ("request_generation_tokens",)
STEPS = ("iteration_tokens_total",)
ACCEPT_LENGTH = "sglang:spec_accept_length"
"""A gauge, of the newest steps: tokens per verify, 0 without drafts. SGLang counts no drafts."""
CACHE_CONFIG, CACHE_SIZES = "vllm:cache_config_info", ("block_size", "num_gpu_blocks")

MAX_LINE = 1 << 16
"""Characters; their parser takes the square of it."""
POSITION = re.compile("[0-9]{1,4}")

Sample = tuple[str, tuple[tuple[str, str], ...]]


class NoMetrics(ValueError):
    """A text that is no server's `/metrics`."""


class Growth:
    """Differences between two looks, summed over engines and models."""

    def __init__(
        self,
        before: Mapping[Sample, float],
        after: Mapping[Sample, float],
        source: str,
        num_speculative_tokens: int | None = None,
        flag: str = "",
    ) -> None:
        """`num_speculative_tokens` of a server that tells the acceptance length alone, which `flag` gives."""
        self._by_name: dict[str, float] = {}
        self._by_position: dict[int, float] = {}
        self.source, self._draft_length = source, (num_speculative_tokens, flag)
        looks = *before.items(), *after.items()
        self.accept_length = next((of for (name, _), of in reversed(looks) if name == ACCEPT_LENGTH and of > 0.0), None)
        for (name, labels), value in after.items():
            bare = name.partition(":")[2]
            grown = value - before.get((name, labels), 0.0)
            is_counted = bare.endswith(("_total", "_sum", "_count"))
            if is_counted and not isfinite(grown):
                raise ValueError(f"{source}: {name} grew by {grown}, which is no finite number")
            if is_counted and grown < 0.0:
                raise ValueError(f"{source}: {name} fell between the two reads. The server was restarted")
            if not 0.0 <= grown < inf:
                continue
            self._by_name[bare] = self._by_name.get(bare, 0.0) + grown
            position = dict(labels).get("position")
            if position is not None and POSITION.fullmatch(position) and "accepted_tokens_per_pos" in bare:
                self._by_position[int(position)] = self._by_position.get(int(position), 0.0) + grown

    def total(self, name: str) -> float:
        return self._by_name.get(f"{name}_total", self._by_name.get(name, 0.0))

    def mean(self, names: Iterable[str]) -> float | None:
        """Mean of the first histogram that has grown."""
        for name in names:
            count, total = self._by_name.get(f"{name}_count", 0.0), self._by_name.get(f"{name}_sum")
            if count and total is not None:
                return total / count
        return None

    def count(self, names: Iterable[str]) -> float:
        return next((count for name in names if (count := self._by_name.get(f"{name}_count", 0.0))), 0.0)

    @property
    def accepted(self) -> Accepted | None:
        """Acceptance of the drafts between the looks; None where nothing was drafted."""
        drafts = self.total("spec_decode_num_drafts")
        if drafts:
            length = self.total("spec_decode_num_draft_tokens") / drafts
            if not isfinite(length):
                raise ValueError(f"{self.source}: {drafts:g} drafts of {length:g} tokens cannot have been counted")
            # Positions that are counted: n-grams often draft fewer, and the mean is no draft length then.
            positions = max(self._by_position, default=-1) + 1
            draft_tokens = round(min(positions or length, MAX_DRAFT_TOKENS + 1.0))
            rates = tuple(self._by_position.get(position, 0.0) / drafts for position in range(draft_tokens))
            accepted = self.total("spec_decode_num_accepted_tokens")
            check_counts(self.source, accepted, length * drafts, drafts, 1.0 + sum(rates) if positions else None)
            if not positions:
                return of_length(self.source, drafts, 1.0 + accepted / drafts, draft_tokens)
            return Accepted(drafts=drafts, draft_tokens=draft_tokens, rates=rates)
        rounds = max(0.0, self.total("generation_tokens") - self.count(E2EL)) / (self.accept_length or 1.0)
        return of_length(self.source, rounds, self.accept_length, *self._draft_length)


def served_between(
    before: Mapping[Sample, float],
    after: Mapping[Sample, float],
    source: str,
    duration_s: float | None,
    num_speculative_tokens: int | None = None,
    flag: str = "metrics BEFORE AFTER",
) -> ServedLoad:
    """Means of what was served between two looks. Raises ValueError, one line naming the `source`.

    How many requests decoded at once is told by the steps: tokens written over steps and tokens per step and request;
    where a server counts no steps, by Little's law from `duration_s` between the looks, which `flag` gives.
    """
    grown = Growth(before, after, source, num_speculative_tokens)
    prompt_tokens, output_tokens, e2el_s = (grown.mean(names) for names in (PROMPT, OUTPUT, E2EL))
    num_requests = grown.count(E2EL)
    if not num_requests:
        raise ValueError(f"{source}: no request was finished between the two reads, or none is counted (llama.cpp)")
    if prompt_tokens is None or output_tokens is None:
        prompt_tokens, output_tokens = (
            grown.total(name) / num_requests for name in ("prompt_tokens", "generation_tokens")
        )
    accepted, tokens = grown.accepted, grown.total("generation_tokens") - num_requests
    if accepted is not None and (verified := tokens - accepted.drafts * (accepted.length - 1.0)) > accepted.drafts:
        # Steps that verify nothing are steps, too: n-grams often find none.
        share = accepted.drafts / verified
        accepted = structs.replace(accepted, rates=tuple(share * rate for rate in accepted.rates))
    tokens_per_step = accepted.length if accepted is not None else 1.0
    itl_s, tpot_s = grown.mean(ITL), grown.mean(TPOT)
    if tpot_s is None and itl_s is not None and tokens > 0.0:
        tpot_s = itl_s * grown.count(ITL) / tokens
    steps = grown.count(STEPS)
    if steps:
        concurrency = tokens / (steps * tokens_per_step)
    elif duration_s is not None and e2el_s is not None:
        concurrency = num_requests * e2el_s / duration_s
    else:
        raise ValueError(
            f"{source}: the server counts no steps, so requests in flight follow from its seconds. Give {flag} SECONDS"
        )
    return mean_load(
        source=source,
        concurrency=max(concurrency, 1.0) if concurrency > 0.9 else concurrency,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        ttft_s=grown.mean(TTFT),
        tpot_s=tpot_s,
        output_tokens_per_s=None if duration_s is None else grown.total("generation_tokens") / duration_s,
        accepted=accepted,
        num_requests=round(num_requests),
    )


def told_by(look: Mapping[Sample, float] | None) -> dict[str, Json]:
    """Keys of a scenario's `engine` that a vLLM says of its KV cache; none where it says nothing.

    >>> labels = ("block_size", "16"), ("enable_prefix_caching", "False"), ("num_gpu_blocks", "455")
    >>> told_by({(CACHE_CONFIG, labels): 1.0})
    {'block_size': 16, 'num_gpu_blocks': 455, 'rules': {'enable_prefix_caching': False}}
    """
    labels = next((dict(labels) for name, labels in look or () if name == CACHE_CONFIG), {})
    told: dict[str, Json] = {key: int(labels[key]) for key in CACHE_SIZES if labels.get(key, "").isdecimal()}
    if labels.get("enable_prefix_caching") == "False":
        told["rules"] = {"enable_prefix_caching": False}
    return told


def samples(path: Path) -> dict[Sample, float]:
    """The server's samples of a saved look, by name and labels."""
    return parse(read_text(path, "metrics", max_bytes=MAX_METRICS_BYTES), f"metrics {str(path)!r}")


def parse(text: str, where: str) -> dict[Sample, float]:
    """The samples of a text. Raises NoMetrics where it is not Prometheus' format, or no server's."""
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        raise ValueError(f"reading /metrics needs prometheus-client: {install_line('production')}") from None
    if max(map(len, text.splitlines()), default=0) > MAX_LINE:
        raise NoMetrics(f"{where}: not in Prometheus' text format: a line of more than {MAX_LINE} characters")
    values = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.startswith(PREFIXES) and not sample.name.endswith(("_bucket", "_created")):
                    values[sample.name, tuple(sorted(sample.labels.items()))] = float(sample.value)
    except (ValueError, LookupError, ArithmeticError) as error:
        raise NoMetrics(f"{where}: not in Prometheus' text format: {' '.join(str(error).split())[:80]}") from None
    if not values:
        raise NoMetrics(f"{where}: no metric of vLLM (vllm:...), SGLang (sglang:...) or llama.cpp (llamacpp:...)")
    return values
