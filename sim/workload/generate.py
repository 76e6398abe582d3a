"""Arrivals: requests from a workload's description and a seed.

Lengths and arrivals come from separate streams of the seed, drawn request by request: another rate rescales the same
arrivals, a longer run begins with the same requests. Closed loops are the server's affair (`max_concurrency`), and so
are warm-ups. Not here: the length tables (sim.workload.lengths) and recorded traces (sim.workload.traces).
"""

from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from math import ceil, floor, inf, sqrt
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from sim.bounds import Bounds, check_bounds
from sim.draws import Floats, Integers
from sim.interface.request_columns import Requests
from sim.names import unknown
from sim.workload.content import BLOCK_TOKENS, Content, reblocked
from sim.workload.lengths import LENGTH_TABLES
from sim.workload.sessions import Sessions, Sharing, requests_of
from sim.workload.traces import TRACE_NAMES, Trace, read_trace, rescaled

FIXED_INPUT_LEN, FIXED_OUTPUT_LEN = 1024, 128
"""Tokens, where `fixed` has none: the defaults of the random dataset of `vllm bench serve`."""
TIMED_TRACES = tuple(name for name in TRACE_NAMES if name != "sharegpt")
"""Trace formats that record arrivals."""
DATASET_NAMES = ("fixed", *LENGTH_TABLES, *TRACE_NAMES)
MIN_RATE = 1e-9
"""Requests per second: one in 32 years."""
MAX_PROMPTS = 10_000_000
"""About what 16 GB of memory hold."""
MAX_TOKENS = 10_000_000
AUTO = "auto"
MIN_AUTO_PROMPTS = 1000
"""Requests of a run whose length is left to lanesim, before it is known how many it needs."""
MEAN_SAMPLE = 20_000
"""Draws whose mean stands for a workload's mean length."""
MAX_BEGUN = 100_000
"""Sessions that have begun before a run at most, about: of longer gaps no run has two turns of one session."""
Mask = NDArray[np.bool_]
_ARRIVALS, _PROMPTS, _OUTPUTS, _PREFIXES = range(4)
"""Streams of the seed."""


class TraceArrivals(StrEnum):
    """Arrivals of a trace's requests: as recorded, with no regard to request_rate; in the same shape at request_rate;
    or drawn like any other's."""

    RECORDED = "recorded"
    RESCALED = "rescaled"
    POISSON = "poisson"

    @property
    def at_rate(self) -> "TraceArrivals":
        """The choice under which the rate counts: recorded times ignore it, rescaled ones of an infinite one are 0."""
        return TraceArrivals.RESCALED if self is TraceArrivals.RECORDED else self


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A workload's description, under the names of `vllm bench serve`. Raises ValueError, one line, when made wrong."""

    dataset_name: str = "sharegpt-long"
    """`fixed`, a length table, or a trace format (its file is dataset_path). sharegpt-long: conversations with answers
    of 512 tokens or more."""
    dataset_path: str | None = None
    """File of a trace."""
    num_prompts: Annotated[int | Literal["auto"], Bounds(1, MAX_PROMPTS)] = "auto"
    """Requests per run; auto = enough for steady means (sim.compare.run_length); of a trace all."""
    request_rate: Annotated[float, Bounds(MIN_RATE, 1e6, admits_inf=True)] = 4.0
    """Requests per second; inf = all at once."""
    burstiness: Annotated[float, Bounds(0, 1e6, is_open=True)] = 1.0
    """Shape of the gamma distribution of gaps between arrivals: 1 is Poisson, less is burstier."""
    max_concurrency: Annotated[int | None, Bounds(1, 1_000_000)] = None
    """Requests that the server works on at once. Where no request_rate is given it is inf then, a closed loop, as in
    `vllm bench serve`; a trace that is replayed as recorded keeps its arrivals."""
    input_len: Annotated[int | None, Bounds(1, MAX_TOKENS)] = None
    """Prompt tokens of every request, whatever the dataset says."""
    output_len: Annotated[int | None, Bounds(1, MAX_TOKENS)] = None
    """Output tokens of every request, whatever the dataset says."""
    random_range_ratio: float | tuple[float, float] | None = None
    """Lengths are drawn uniformly from (1 - ratio) to (1 + ratio) times input_len and output_len, as `vllm bench serve`
    does; of two shares from one to the other: [0.8, 1.0] for clients such as InferenceX's (vLLM 0.8 and SGLang drew
    from ratio to 1). null: all alike."""
    num_warmups: Annotated[int, Bounds(0, MAX_PROMPTS)] = 0
    """Number of the first of num_prompts that are left out of the metrics."""
    num_cooldowns: Annotated[int, Bounds(0, MAX_PROMPTS)] = 0
    """The same of the last: they keep a closed loop full until those before them end. Then throughputs are of what
    ends, and of tokens that come, between the first and the last arrival that are measured, without a drain."""
    trace_arrivals: TraceArrivals = TraceArrivals.RESCALED
    sharing: Sharing = Sharing()
    """What generated prompts have in common: a mapping of the keys below."""

    def measured(self, count: int) -> range:
        """Arrival indices of those of `count` requests that are no warm-up and no cool-down."""
        return range(self.num_warmups, count - self.num_cooldowns)

    def sized(self, num_prompts: int, num_warmups: int = 0, num_cooldowns: int = 0) -> "Workload":
        """The same with so many requests."""
        return msgspec.structs.replace(
            self, num_prompts=num_prompts, num_warmups=num_warmups, num_cooldowns=num_cooldowns
        )

    @property
    def fixed_len(self) -> tuple[int | None, int | None]:
        """(prompt, output) tokens that requests have, or are drawn around; None where the dataset draws them."""
        is_fixed = self.dataset_name == "fixed"
        return (
            self.input_len or (FIXED_INPUT_LEN if is_fixed else None),
            self.output_len or (FIXED_OUTPUT_LEN if is_fixed else None),
        )

    def bounds(self, length: int) -> tuple[int, int]:
        """Shortest and longest of what is drawn around a fixed `length`."""
        low, high = (length * share for share in self._shares)
        if isinstance(self.random_range_ratio, tuple):
            high = floor(high)
        return max(1, floor(low)), max(1, ceil(high))

    @property
    def _shares(self) -> tuple[float, float]:
        """Shortest and longest length that is drawn, as shares of the fixed one."""
        ratio = self.random_range_ratio
        if isinstance(ratio, tuple):
            return ratio
        return (1.0, 1.0) if ratio is None else (1.0 - ratio, 1.0 + ratio)

    def __post_init__(self) -> None:
        check_bounds("workload", self)
        most = self.num_prompts if isinstance(self.num_prompts, int) else MAX_PROMPTS
        if self.num_warmups + self.num_cooldowns >= most:
            raise ValueError(
                f"workload.num_warmups={self.num_warmups} and num_cooldowns={self.num_cooldowns} must be below "
                f"num_prompts={self.num_prompts} together"
            )
        if self.dataset_name not in DATASET_NAMES:
            raise ValueError(unknown("workload.dataset_name", self.dataset_name, DATASET_NAMES))
        if self.random_range_ratio is not None:
            low, high = self._shares
            if not 0.0 < low <= high < inf:
                raise ValueError(
                    f"workload.random_range_ratio={self.random_range_ratio!r} must be at least 0 and below 1, or two "
                    "shares of the length, above 0, the shorter first"
                )
            if self.fixed_len == (None, None):
                raise ValueError(
                    f"workload.random_range_ratio: dataset_name={self.dataset_name!r} draws lengths of its own. Give "
                    "input_len and output_len"
                )
        if self.dataset_name not in TRACE_NAMES:
            if self.dataset_path is not None:
                raise ValueError(
                    f"workload.dataset_path={self.dataset_path!r}: dataset_name={self.dataset_name!r} reads no file. "
                    f"Those that do: {', '.join(TRACE_NAMES)}"
                )
            return
        sharing = self.sharing if self.sharing.is_any else None
        for name, given in {"input_len": self.input_len, "output_len": self.output_len, "sharing": sharing}.items():
            if given is not None:
                raise ValueError(
                    f"workload.{name}={given}: the file of dataset_name={self.dataset_name!r} says that of every "
                    "request. Leave it out"
                )
        if not self.dataset_path:
            raise ValueError(
                f"workload.dataset_name={self.dataset_name!r} reads a file: name it with workload.dataset_path"
            )


def build_requests(workload: Workload, seed: int, block_tokens: int = BLOCK_TOKENS) -> Requests:
    """The requests of `workload` as they are sent, in order of arrival, however long (as served: sim.workload.served),
    with content in blocks of `block_tokens`. A trace without times gets drawn ones. Raises ValueError for one that
    cannot be served."""
    count, ids = num_requests(workload), None
    contents: Sequence[Content] = ()
    if is_trace(workload):
        trace = _trace(workload, count, block_tokens)
        contents = reblocked(trace.contents, trace.content_tokens, block_tokens, trace.source)
        arrivals, ids = _trace_arrivals(trace, workload, seed), np.array(trace.ids, dtype=object)
        prompts, outputs = trace.prompt_tokens, trace.output_tokens
    elif workload.sharing.is_any:
        drawn = requests_of(*_sessions(workload, count, seed), count, block_tokens)
        if workload.request_rate == inf:
            drawn.change({"arrival_s": np.zeros(count)})
        return drawn
    else:
        arrivals = arrival_times(count, workload.request_rate, workload.burstiness, seed)
        prompts, outputs = _lengths(workload, count, seed)
    return Requests({"arrival_s": arrivals, "prompt_tokens": prompts, "output_tokens": outputs}, ids, contents)


def _sessions(workload: Workload, count: int, seed: int) -> tuple[Sessions, Sharing]:
    """Sessions of `count` requests, in order of their beginning, and what they share. As many as are open at any time
    begin before the run, so that its rate and lengths are a long run's from its first request on."""
    sharing = workload.sharing
    turns, forks = sharing.num_turns, sharing.num_forks
    rate, gap_s = workload.request_rate / sharing.requests_per_session, sharing.turn_gap_s
    if rate == inf:
        # Times are requests: a client's next turn comes as many later as there are clients.
        rate, gap_s = 1.0 / sharing.requests_per_session, float(workload.max_concurrency or count)
    if turns > 1:
        gap_s = min(gap_s, MAX_BEGUN / (rate * (turns - 1)))
    before_s = (turns - 1) * gap_s
    num_begun = rate * before_s
    num = count + ceil(num_begun + 10.0 * sqrt(num_begun / min(1.0, workload.burstiness)))
    asked, answered = _lengths(workload, num * turns, seed, forks)
    prefixes = _stream(seed, _PREFIXES).random(num) * sharing.num_prefixes
    sessions = Sessions(
        arrival_times(num, rate, workload.burstiness, seed) - before_s,
        prefixes.astype(np.int64),
        asked.reshape(num, turns),
        answered.reshape(num, turns, forks),
    )
    return sessions, msgspec.structs.replace(sharing, turn_gap_s=gap_s)


def sent_lengths(workload: Workload, seed: int) -> tuple[Integers, Integers]:
    """Prompt and output tokens of requests as they are sent: a whole trace's, or of MEAN_SAMPLE draws."""
    if is_trace(workload):
        trace = _trace(workload, None)
        return trace.prompt_tokens, trace.output_tokens
    if workload.sharing.requests_per_session > 1:
        sent = build_requests(workload.sized(MEAN_SAMPLE), seed)
        return sent.column("prompt_tokens"), sent.column("output_tokens")
    lengths = {name: getattr(workload, name) for name in ("dataset_name", "input_len", "output_len")}
    prompts, outputs = _sample(Workload(**lengths, random_range_ratio=workload.random_range_ratio), seed)
    return workload.sharing.prefix_len + prompts, outputs


@lru_cache(maxsize=4)
def _sample(workload: Workload, seed: int) -> tuple[Integers, Integers]:
    """The lengths of MEAN_SAMPLE requests, which a search asks for at every load."""
    return _lengths(workload, MEAN_SAMPLE, seed)


def is_trace(workload: Workload) -> bool:
    return workload.dataset_name in TRACE_NAMES


def trace_length(workload: Workload) -> int:
    """Requests that the workload's trace holds. Raises ValueError for one that cannot be read."""
    return len(_trace(workload, None).ids)


def at_most(workload: Workload, count: int) -> int:
    """`count`, but no more requests than a trace has."""
    return min(count, trace_length(workload)) if is_trace(workload) else count


def recorded(workload: Workload) -> Trace | None:
    """The part of the workload's trace that a run takes; None where the workload is drawn."""
    return _trace(workload, num_requests(workload)) if is_trace(workload) else None


def num_requests(workload: Workload) -> int:
    """Requests of a run; where that is left open, a whole trace, or the least of a run that is long enough."""
    if isinstance(workload.num_prompts, int):
        return workload.num_prompts
    return trace_length(workload) if is_trace(workload) else MIN_AUTO_PROMPTS


def _trace(workload: Workload, count: int | None, block_tokens: int = BLOCK_TOKENS) -> Trace:
    source = workload.dataset_path or ""
    return _read_trace(trace_stamp(workload), workload.dataset_name, source, count, block_tokens)


def trace_stamp(workload: Workload) -> tuple[int, int] | None:
    """When the workload's file was written, and its size; None where it has none."""
    path = Path((workload.dataset_path or "").rpartition("#")[0] or workload.dataset_path or "")
    if not path.is_file():
        return None
    return path.stat().st_mtime_ns, path.stat().st_size


@lru_cache(maxsize=4)
def _read_trace(stamp: tuple[int, int] | None, name: str, source: str, count: int | None, block_tokens: int) -> Trace:
    """A file is read once as long as it stays as it is."""
    return read_trace(name, source, count, block_tokens)


def arrival_times(count: int, request_rate: float, burstiness: float, seed: int) -> Floats:
    """[count] seconds: gaps are gamma with shape `burstiness` and mean 1 / request_rate, the first one included.

    As in `vllm bench serve`, but for its final stretch of all arrivals to end at exactly count / request_rate, which
    no Poisson process does. An infinite rate puts all at 0.
    """
    if request_rate == inf:
        return np.zeros(count)
    times = _stream(seed, _ARRIVALS).standard_gamma(burstiness, count)
    np.cumsum(times, out=times)
    times /= request_rate * burstiness
    return times


def _trace_arrivals(trace: Trace, workload: Workload, seed: int) -> Floats:
    rate, how = workload.request_rate, workload.trace_arrivals
    if trace.arrival_s is None and how is TraceArrivals.RECORDED:
        raise ValueError(f"{trace.source}: no arrival times to replay. Set workload.trace_arrivals=poisson")
    if how is TraceArrivals.RECORDED and trace.arrival_s is not None:
        return trace.arrival_s
    if how is TraceArrivals.RESCALED and trace.arrival_s is not None:
        return np.zeros(len(trace.arrival_s)) if rate == inf else rescaled(trace.arrival_s, rate, trace.source)
    return arrival_times(len(trace.prompt_tokens), rate, workload.burstiness, seed)


def _lengths(workload: Workload, count: int, seed: int, num_forks: int = 1) -> tuple[Integers, Integers]:
    """[count] prompts and [count * num_forks] answers, those of one prompt together."""
    prompt_draws = _stream(seed, _PROMPTS).random(count)
    output_draws = _stream(seed, _OUTPUTS).random(count * num_forks)
    fixed_prompt, fixed_output = workload.fixed_len
    if fixed_prompt is not None and fixed_output is not None:
        return _around(workload, fixed_prompt, prompt_draws), _around(workload, fixed_output, output_draws)
    prompts, outputs = LENGTH_TABLES[workload.dataset_name].sample(np.repeat(prompt_draws, num_forks), output_draws)
    if fixed_output is not None:
        outputs = _around(workload, fixed_output, output_draws)
    if fixed_prompt is not None:
        return _around(workload, fixed_prompt, prompt_draws), outputs
    return prompts[::num_forks], outputs


def _around(workload: Workload, length: int, uniforms: Floats) -> Integers:
    """Whole lengths between the bounds, each as likely."""
    low, high = workload.bounds(length)
    return low + (uniforms * (high - low + 1)).astype(np.int64)


def _stream(seed: int, purpose: int) -> np.random.Generator:
    if seed < 0:
        raise ValueError(f"seed={seed!r} must be at least 0")
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(purpose,))))
