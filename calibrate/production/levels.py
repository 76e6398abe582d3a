"""Levels of load of a running server, whatever file reports them; and each as a closed-loop cell.

Not here: reading metrics, logs and results (calibrate.production.metrics, calibrate.production.level_files), driving a
server (calibrate.server.probe), fitting (calibrate.production.engine_fit).
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import inf, pi, sqrt
from statistics import fmean, median, stdev

import msgspec

from calibrate.judge.cell import Cell

MIN_CONCURRENCY, MAX_CONCURRENCY = 1.0, 65_536.0
MAX_TOKENS = 10_000_000.0
"""Tokens of a prompt or an output: longer ones are of other units."""
LONGEST_S = 1000.0
"""Seconds to a first token or between two; likewise."""
SHORTEST_S = 1e-7
"""Seconds per output token of a whole server."""
MAX_DRAFT_TOKENS = 64
DRAFT_LENGTH = "--num-speculative-tokens K"
COUNTS_AGREE = 0.02
"""Relative difference of two counts of one thing: looks and ends of requests cut rounds."""
OF_A_MEDIAN = sqrt(pi / 2.0)
"""Standard error of a median over that of a mean, of normal values."""


class Accepted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Drafts and what became of them.

    >>> Accepted(drafts=100, draft_tokens=3, rates=(0.7, 0.4, 0.2)).length
    2.3
    """

    drafts: float
    """Verify rounds that were counted; the weight of what follows."""
    draft_tokens: int
    rates: tuple[float, ...]
    """Unconditional: the share of drafts accepted up to each position, as vLLM counts them; empty where unknown."""
    mean_length: float | None = None
    """Tokens per verify, bonus included, where only that is known."""

    @property
    def length(self) -> float:
        """Tokens per verify, bonus included."""
        if self.mean_length is not None:
            return self.mean_length
        return round(1.0 + sum(self.rates), 12)

    def check(self, source: str) -> None:
        """Raise ValueError, naming the `source`, unless these are numbers that counting can give."""
        tokens, told = self.draft_tokens, ", ".join(f"{rate:g}" for rate in self.rates)
        falls = all(0.0 <= later <= earlier for earlier, later in pairwise((1.0, *self.rates)))
        for is_so, problem in (
            (len(self.rates) in (0, tokens), f"{len(self.rates)} acceptance rates for drafts of {tokens} tokens"),
            (falls, f"acceptance rates {told} must be 0 to 1, none above the one before it"),
            (1 <= tokens <= MAX_DRAFT_TOKENS, f"drafts of {tokens} tokens; want 1 to {MAX_DRAFT_TOKENS}"),
            (
                1.0 <= self.length <= tokens + 1.0,
                f"acceptance length {self.length:g} must be 1 to {tokens + 1}, bonus included",
            ),
            (0.0 <= self.drafts < inf, f"{self.drafts:g} drafts cannot have been counted"),
        ):
            if not is_so:
                raise ValueError(f"{source}: {problem}")

    @property
    def quote(self) -> str:
        """The acceptance in `--acceptance`'s notation."""
        if self.rates:
            return "vllm:" + ",".join(f"{rate:.4g}" for rate in self.rates)
        return f"length:{self.length:.4g}@{self.draft_tokens}"


def check_counts(where: str, accepted: float, drafted: float, drafts: float = 0.0, length: float | None = None) -> None:
    """Raise ValueError where counts of one source contradict each other: more tokens accepted than drafted, or `length`
    tokens a round of `drafts` rounds beside as many accepted. A count of 0 is not known."""
    if drafted and accepted > drafted:
        raise ValueError(f"{where}: {accepted:g} tokens accepted of {drafted:g} drafted; want counts of one period")
    counted = 1.0 + accepted / drafts if drafts and accepted else length
    if length is not None and counted is not None and abs(length / counted - 1.0) > COUNTS_AGREE:
        raise ValueError(
            f"{where}: acceptance length {length:.2f} by position and {counted:.2f} by its counts; want one of the two"
        )


def of_length(
    where: str, drafts: float, length: float | None, num_speculative_tokens: int | None, flag: str = ""
) -> Accepted | None:
    """Acceptance where its length alone is known. None without drafts, or without a draft length: then with a warning
    that names the `flag` which gives one."""
    if length and not num_speculative_tokens:
        drafting = (
            f"{where}: this server drafts, with acceptance length {length:.2f}, and is fitted as one that does not"
        )
        warnings.warn(f"{drafting}; give its draft length K: {flag or DRAFT_LENGTH}", stacklevel=2)
    if not length or not num_speculative_tokens:
        return None
    return Accepted(drafts=drafts, draft_tokens=num_speculative_tokens, rates=(), mean_length=length)


class ServedLevel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Means over one stretch of serving. Seconds; None where the source does not tell."""

    source: str
    """File, or URL and level."""
    concurrency: float
    """Requests that decode at once."""
    prompt_tokens: float
    output_tokens: float
    ttft_s: float | None = None
    tpot_s: float | None = None
    output_tokens_per_s: float | None = None
    accepted: Accepted | None = None
    num_requests: int = 0
    sent: int = 0
    """Requests of a probe, with those that failed and those that do not count."""
    failed: dict[str, int] = {}
    """Failed ones by what was wrong."""
    spreads_pct: dict[str, float] = {}
    """Half of the range over rounds of the same load, by metric of `measured`; empty for a single round."""
    repeats_pct: dict[str, float] = {}
    """Standard error of each metric as the median of its rounds; likewise."""

    def __post_init__(self) -> None:
        if self.concurrency < MIN_CONCURRENCY:
            raise ValueError(f"{self.source}: {self.concurrency:.2f} requests at once in the mean: hardly any load")
        if self.tpot_s is None and self.output_tokens_per_s is None:
            raise ValueError(f"{self.source}: neither a time per output token nor tokens per second")
        for what, value, least, most in (
            ("requests at once", self.concurrency, MIN_CONCURRENCY, MAX_CONCURRENCY),
            ("prompt tokens", self.prompt_tokens, 0.0, MAX_TOKENS),
            ("output tokens", self.output_tokens, 0.0, MAX_TOKENS),
            ("seconds to the first token", self.ttft_s, SHORTEST_S, LONGEST_S),
            ("seconds per output token", self.tpot_s, SHORTEST_S, LONGEST_S),
            ("output tokens per second", self.output_tokens_per_s, 1.0 / LONGEST_S, 1.0 / SHORTEST_S),
        ):
            if value is not None and not least <= value <= most:
                raise ValueError(f"{self.source}: {value:g} {what} in the mean must be {least:g} to {most:g}")
        if self.accepted is not None:
            self.accepted.check(self.source)

    @property
    def measured(self) -> dict[str, float]:
        """The means under the names of a cell's columns, ms and tokens/s; those that are not known are left out."""
        means = {
            "ttft_ms": None if self.ttft_s is None else self.ttft_s * 1e3,
            "tpot_ms": None if self.tpot_s is None else self.tpot_s * 1e3,
            "output_throughput": self.output_tokens_per_s,
        }
        return {name: value for name, value in means.items() if value is not None}


def cell_of(served: ServedLevel, line: int) -> Cell:
    """The closed loop of as many requests as decoded at once, of mean lengths."""
    accepted = served.accepted
    return Cell(
        line=line,
        concurrency=round(served.concurrency),
        input_len=max(1, round(served.prompt_tokens)),
        output_len=max(2, round(served.output_tokens)),
        num_speculative_tokens=0 if accepted is None else accepted.draft_tokens,
        acceptance=None if accepted is None else accepted.quote,
        label=served.source,
        measured=served.measured,
    )


def middling(rounds: Sequence[ServedLevel]) -> ServedLevel:
    """The median of each metric over rounds, with the drafts of all: a stall in one round is none of the others'."""
    if len(rounds) == 1:
        return rounds[0]
    by_metric = [each.measured for each in rounds]
    columns = {name: [metrics[name] for metrics in by_metric] for name in by_metric[0]}
    medians = {name: median(values) for name, values in columns.items()}
    ttft_ms, tpot_ms = medians.get("ttft_ms"), medians.get("tpot_ms")
    accepted = pooled([each.accepted for each in rounds if each.accepted is not None], rounds[0].source)
    return msgspec.structs.replace(
        rounds[0],
        prompt_tokens=fmean(each.prompt_tokens for each in rounds),
        output_tokens=fmean(each.output_tokens for each in rounds),
        ttft_s=None if ttft_ms is None else ttft_ms / 1e3,
        tpot_s=None if tpot_ms is None else tpot_ms / 1e3,
        output_tokens_per_s=medians.get("output_throughput"),
        accepted=accepted,
        num_requests=sum(each.num_requests for each in rounds),
        sent=sum(each.sent for each in rounds),
        failed=dict(sum((Counter(each.failed) for each in rounds), Counter())),
        spreads_pct={name: 50.0 * (max(all_) - min(all_)) / medians[name] for name, all_ in columns.items()},
        repeats_pct={
            name: 100.0 * OF_A_MEDIAN * stdev(all_) / sqrt(len(all_)) / medians[name] for name, all_ in columns.items()
        },
    )


def pooled(parts: Sequence[Accepted], source: str) -> Accepted | None:
    """All drafts together; None for none. Raises ValueError, naming the `source`, where their lengths differ."""
    if not parts:
        return None
    lengths = sorted({part.draft_tokens for part in parts})
    if len(lengths) > 1:
        raise ValueError(f"{source}: draft lengths {', '.join(map(str, lengths))} in one source; want one")
    drafts = sum(part.drafts for part in parts)
    if drafts <= 0.0:
        return parts[0]
    mean_length = sum(part.length * part.drafts for part in parts) / drafts
    if not all(part.rates for part in parts):
        return Accepted(drafts=drafts, draft_tokens=lengths[0], rates=(), mean_length=mean_length)
    rates = tuple(sum(part.rates[position] * part.drafts for part in parts) / drafts for position in range(lengths[0]))
    return Accepted(drafts=drafts, draft_tokens=lengths[0], rates=rates)
