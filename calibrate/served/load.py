"""`ServedLoad`: a server's latencies and throughput under one load, from any source, and the same load judged.

A load has a set-up (GPU, engine, models, degrees), requests in flight or a rate, and what came of it: requests as they
were sent, or means. Every reader makes loads, and the fit and the judge take nothing else:

    a URL                                   calibrate.server.side (closed loops), calibrate.server.endpoint
    results of benchmarks, printed ones     calibrate.served.readers, sim.workload.bench
    a server's log                          calibrate.served.readers
    two looks at /metrics                   calibrate.served.metrics
    time stamps of requests                 calibrate.served.stamped_requests
    a table                                 calibrate.served.load_table

Counts by request and by step say no load: calibrate.served.request_counts, calibrate.served.step_records.
Not here: the fit (calibrate.served.fit), simulating and judging (calibrate.served.judge, calibrate.served.as_sent).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf, pi, sqrt
from statistics import median, stdev
from typing import Annotated, Self

import msgspec

from sim.metrics.compared import LATENCIES, THROUGHPUT, Compared, compared

SHARES = {"p50": "median", "p95": "p95", "p99": "p99"}
MEASURED = {
    **{f"{name}_ms": f"mean_{name}_ms" for name in LATENCIES},
    THROUGHPUT: THROUGHPUT,
    **{f"{name}_{share}_ms": f"{key}_{name}_ms" for name in LATENCIES for share, key in SHARES.items()},
    "power_w": "power_w",
}
"""Metric, a column of that name -> the simulator's key for it (sim.metrics.summary): means and percentiles over
requests, milliseconds; output tokens per second; watts of one GPU."""
Whole = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
"""No count or length of any cell is near the most."""
Positive = Annotated[float, msgspec.Meta(ge=1e-6, le=1e12)]
"""Nor any measured value near these: errors against smaller ones have no bound."""
JUDGED, FITTED = "judged", "fitted"
"""Roles of a cell: nothing was fitted on it, or a constant was, so that it judges nothing."""
MIN_CONCURRENCY, MAX_CONCURRENCY = 1.0, 65_536.0
MAX_TOKENS = 10_000_000.0
"""Tokens of a prompt or an output: longer ones are of other units."""
LONGEST_S = 1000.0
"""Seconds to a first token or between two; likewise."""
SHORTEST_S = 1e-7
"""Seconds per output token of a whole server."""
MAX_DRAFT_TOKENS = 64
DRAFT_LENGTH = "--set num_speculative_tokens=K"
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
            (1 <= tokens <= MAX_DRAFT_TOKENS, f"drafts of {tokens} tokens. Give 1 to {MAX_DRAFT_TOKENS}"),
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
        raise ValueError(f"{where}: {accepted:g} tokens accepted of {drafted:g} drafted. Give counts of one period")
    counted = 1.0 + accepted / drafts if drafts and accepted else length
    if length is not None and counted is not None and abs(length / counted - 1.0) > COUNTS_AGREE:
        raise ValueError(
            f"{where}: acceptance length {length:.2f} by position and {counted:.2f} by its counts. Give one of the two"
        )


def of_length(
    where: str, drafts: float, length: float | None, num_speculative_tokens: int | None, flag: str = ""
) -> Accepted | None:
    """Acceptance where its length alone is known. None without drafts, or without a draft length: then with a warning
    that names the `flag` which gives one."""
    if not length:
        return None
    if num_speculative_tokens:
        return Accepted(drafts=drafts, draft_tokens=num_speculative_tokens, rates=(), mean_length=length)
    drafting = f"{where}: this server drafts, with acceptance length {length:.2f}, and is fitted as one that does not"
    warnings.warn(f"{drafting}. Give its draft length K: {flag or DRAFT_LENGTH}", stacklevel=2)
    return None


class ServedRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request, in seconds after the first one was due. No prompt, no answer, no address."""

    index: int
    """Index of its arrival."""
    due_s: float
    sent_s: float
    first_s: float = 0.0
    last_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    gaps_s: tuple[float, ...] = ()
    """Between events that hold tokens."""
    failed: str = ""
    """Why there is no answer, without the server's own words, which may quote the prompt."""


class StampedRequest(ServedRequest, frozen=True, kw_only=True):
    """One request as an engine logged it; `sent_s` is its arrival."""

    id: str
    queued_s: float
    scheduled_s: float
    content: tuple[int, ...] = ()
    """What its prompt has in common with others, block by block."""


class ServedLoad(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a server did under one load; empty texts and None where a source does not say."""

    line: int = 0
    """Line of its table, the header being line 1."""
    id: str = ""
    source: str = ""
    """File, address, repository or paper; `commit` of it, `licence` and `day` of the measurement as it has them."""
    commit: str = ""
    licence: str = ""
    day: str = ""
    role: str = JUDGED

    gpu: str = ""
    num_gpus: Whole = 1
    engine: str = ""
    engine_version: str = ""
    target: str = ""
    draft: str = ""
    weights: str | None = None
    kv: str | None = None
    """Formats of the weights and of the KV cache; None: as the checkpoint has them."""
    tp: Whole = 1
    ep: Whole | None = None
    dp: Whole = 1
    """Degrees of tensor, expert and data parallelism."""
    max_num_seqs: Whole | None = None
    max_num_batched_tokens: Whole | None = None
    num_gpu_blocks: Annotated[int, msgspec.Meta(ge=2, le=10**9)] | None = None
    """Blocks that vLLM logs: one more than is used."""

    method: str = ""
    num_speculative_tokens: Annotated[int, msgspec.Meta(ge=0, le=10**9)] = 0
    """The column `k`, too."""
    topk: Whole = 1
    """Branches of a drafted tree; 1 = a chain."""
    acceptance: str | None = None
    """Acceptance in --acceptance's notation; None without speculation."""

    concurrency: float = 0
    """Requests in flight of a closed loop; 0 = an open one. A mean where the source counts them."""
    request_rate: Positive | None = None
    """Arrivals per second of an open loop; None in a closed one."""
    is_burst: bool = False
    """All requests were sent at once, and no client held any back; `concurrency` is the mean in flight."""
    num_prompts: Whole | None = None
    input_len: float | None = None
    output_len: float | None = None
    """Tokens of every output, or their mean; both lengths None where a list of requests has them."""
    output_len_std: Annotated[float, msgspec.Meta(ge=0.0, le=1e12)] = 0.0
    """Standard deviation of the outputs' tokens; 0 = all the same."""
    output_len_max: Whole | None = None
    """Tokens at which the engine cut outputs off."""
    random_range_ratio: float | tuple[float, float] | None = None
    """As the scenario's workload.random_range_ratio: 0.2, or shares such as [0.8, 1.0]; `length_range`, too."""
    shared_prefix: Annotated[int, msgspec.Meta(ge=0, le=10**9)] = 0
    """Tokens that prompts of one group begin with; `num_prefixes` is the number of groups."""
    num_prefixes: Whole = 1

    label: str = ""
    arm: str = ""
    pair_id: str = ""
    """Shared by cells of one set-up with and without drafts, or on one stream and on two."""
    measured: Mapping[str, float] = {}
    """Metric of MEASURED -> its value."""
    number: int = 0
    """Of rounds of the same load."""
    requests: tuple[ServedRequest, ...] = ()
    """Requests as they were sent, where the source tells them one by one."""
    clock_offset_s: float = 0.0
    """Offset of the engine's clock to that of the arrivals, where these are two."""
    accepted: Accepted | None = None
    """Drafts by the server's own count."""
    num_requests: int = 0
    """Requests that count, with those that the source does not tell one by one."""
    spreads_pct: Mapping[str, float] = {}
    """Half of the range over rounds of the same load, by metric of `measured`; empty for a single round."""
    repeats_pct: Mapping[str, float] = {}
    """Standard error of each metric as the median of its rounds; likewise."""
    peer: str = ""
    """Another simulator, and its `predicted` values by metric."""
    predicted: Mapping[str, float] = {}
    texts: Mapping[str, str] = {}
    """Every column as it stands in the file, under its name after renaming."""

    @property
    def lengths(self) -> tuple[float, float]:
        """Mean tokens of a prompt and of an output; 0 where a list of requests has them."""
        return self.input_len or 0.0, self.output_len or 0.0

    @property
    def name(self) -> str:
        what = "/".join(filter(None, (self.label, self.arm)))
        return " ".join(filter(None, (what, self.point, f"k={self.num_speculative_tokens}")))

    @property
    def point(self) -> str:
        """Load, and lengths where the cell has them."""
        load = f"c={round(self.concurrency)}" if self.request_rate is None else f"{self.request_rate:g}/s"
        return load if self.input_len is None else f"{load} {round(self.input_len)}->{round(self.output_len or 0)}"


def mean_load(
    source: str,
    concurrency: float,
    prompt_tokens: float,
    output_tokens: float,
    *,
    ttft_s: float | None = None,
    tpot_s: float | None = None,
    output_tokens_per_s: float | None = None,
    accepted: Accepted | None = None,
    num_requests: int = 0,
) -> ServedLoad:
    """Means over one stretch of serving, as a closed loop of as many requests as decoded at once; None where the source
    does not tell. Raises ValueError, naming the `source`, for what no server does."""
    if concurrency < MIN_CONCURRENCY:
        raise ValueError(f"{source}: {concurrency:.2f} requests in flight on average are too few. Send more at once")
    if tpot_s is None and output_tokens_per_s is None:
        raise ValueError(f"{source} has no time per output token and no tokens per second. Give one of them")
    for what, value, least, most in (
        ("requests at once", concurrency, MIN_CONCURRENCY, MAX_CONCURRENCY),
        ("prompt tokens", prompt_tokens, 0.0, MAX_TOKENS),
        ("output tokens", output_tokens, 0.0, MAX_TOKENS),
        ("seconds to the first token", ttft_s, SHORTEST_S, LONGEST_S),
        ("seconds per output token", tpot_s, SHORTEST_S, LONGEST_S),
        ("output tokens per second", output_tokens_per_s, 1.0 / LONGEST_S, 1.0 / SHORTEST_S),
    ):
        if value is not None and not least <= value <= most:
            raise ValueError(f"{source}: {value:g} {what} in the mean must be {least:g} to {most:g}")
    if accepted is not None:
        accepted.check(source)
    means = {"ttft_ms": ttft_s and ttft_s * 1e3, "tpot_ms": tpot_s and tpot_s * 1e3, THROUGHPUT: output_tokens_per_s}
    return ServedLoad(
        source=source,
        concurrency=concurrency,
        input_len=max(1.0, prompt_tokens),
        output_len=max(2.0, output_tokens),
        num_speculative_tokens=0 if accepted is None else accepted.draft_tokens,
        acceptance=None if accepted is None else accepted.quote,
        accepted=accepted,
        measured={name: value for name, value in means.items() if value is not None},
        num_requests=num_requests,
    )


def middling(rounds: Sequence[ServedLoad]) -> ServedLoad:
    """The round of the median time per token, with how far rounds differ: a stall in one is none of the others'."""
    chosen = sorted(rounds, key=lambda each: each.measured.get("tpot_ms", 0.0))[(len(rounds) - 1) // 2]
    if len(rounds) == 1:
        return chosen
    columns = {name: [each.measured[name] for each in rounds] for name in chosen.measured}
    return msgspec.structs.replace(
        chosen,
        spreads_pct={name: 50.0 * (max(all_) - min(all_)) / median(all_) for name, all_ in columns.items()},
        repeats_pct={
            name: 100.0 * OF_A_MEDIAN * stdev(all_) / sqrt(len(all_)) / median(all_) for name, all_ in columns.items()
        },
    )


def pooled(parts: Sequence[Accepted], source: str) -> Accepted | None:
    """All drafts together; None for none. Raises ValueError, naming the `source`, where their lengths differ."""
    if not parts:
        return None
    lengths = sorted({part.draft_tokens for part in parts})
    if len(lengths) > 1:
        raise ValueError(f"{source}: draft lengths {', '.join(map(str, lengths))} in one source. Give one")
    drafts = sum(part.drafts for part in parts)
    if drafts <= 0.0:
        return parts[0]
    mean_length = sum(part.length * part.drafts for part in parts) / drafts
    if not all(part.rates for part in parts):
        return Accepted(drafts=drafts, draft_tokens=lengths[0], rates=(), mean_length=mean_length)
    rates = tuple(sum(part.rates[position] * part.drafts for part in parts) / drafts for position in range(lengths[0]))
    return Accepted(drafts=drafts, draft_tokens=lengths[0], rates=rates)


class JudgedLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A load with what was measured beside what was simulated."""

    cell: ServedLoad
    metrics: Mapping[str, Compared]
    """Values by metric of the cell."""
    peer: Mapping[str, Compared] = {}
    """The same for another simulator."""

    @classmethod
    def beside(cls, cell: ServedLoad, simulated: Mapping[str, float | None]) -> Self:
        """`simulated` has values by metric of MEASURED; one that is missing is not known."""
        metrics = {name: compared(real, simulated.get(name)) for name, real in cell.measured.items()}
        peer = {name: compared(cell.measured.get(name), value) for name, value in cell.predicted.items()}
        return cls(cell=cell, metrics=metrics, peer=peer)

    @property
    def is_fit(self) -> bool:
        """A constant was fitted on it, so that it judges nothing."""
        return self.cell.role == FITTED

    def error_pct(self, metric: str) -> float | None:
        """Error in percent of the real value; None where one side has none."""
        return self.metrics[metric]["error_pct"] if metric in self.metrics else None


def judged_errors(judged: Iterable[JudgedLoad], metric: str) -> list[float]:
    """Errors of the cells that judge, percent."""
    errors = [each.error_pct(metric) for each in judged if not each.is_fit]
    return [error for error in errors if error is not None]
