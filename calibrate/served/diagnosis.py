"""Diagnosis of a measured speed-up: measured loads beside simulated ones, and what is likely wrong.

Both loads are simulated as they are described. Where a measured value is worse than the simulator's errors allow, each
known fault is simulated, and the one that explains most of the difference is named. Where none is, each condition that
lowers a speed-up is taken away, and the one whose absence would raise it most is named.

Not here: reading results (calibrate.served.readers), printing (calibrate.cli.diagnose).
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import ceil, exp, log
from typing import NamedTuple

import msgspec

from calibrate.fit.constants import with_constants
from calibrate.served.judge import LoadSetup, scenario_of, simulate_load
from calibrate.served.load import MEASURED, ServedLoad
from sim.acceptance.pairs import ANY
from sim.compare.side_by_side import cost_source
from sim.costs.engine_costs import engine_of, with_engine
from sim.costs.profile import Profile
from sim.files.json_values import Json
from sim.metrics.compared import THROUGHPUT
from sim.run.resolve import resolve_all
from sim.run.scenario import PlainScenario, Scenario, to_plain
from sim.studies.answer import Stated
from sim.studies.served_errors import HIGH_95, LOW_95, ErrorChances, level_errors, speedup_errors

MIN_EXPLAINED = 0.6
"""Share of the squared difference that a fault must explain to be named."""
AS_LIKELY = 0.95
"""Share of the first cause's explanation from which on another one is named with it."""
MIN_GAIN = 1.25
"""Times by which a speed-up must rise without a condition, for that to be named."""
MIN_FAULT_GAIN = 1.03
"""Likewise without a fault of the comparison itself."""
MIN_ACCEPTANCE_GAIN = 1.4
"""Likewise with the usual acceptance, which differs between kinds of prompts by half."""
MIN_SHORTER = 0.9
"""Answers of the drafting server shorter than this share of the other's end early."""
FIRST_TOKEN_WIDTH = 2.0
"""The error of a time to first token, in errors of a time per token: 28.6 and 11.3 % in docs/accuracy.md."""
FEW_IN_FLIGHT = 16
"""Requests in flight at which the weights, not the batch, set the time of a step."""
BLOCK_TOKENS = 16
ENOUGH = 2.0
"""KV blocks over those that a load needs, at which none waits for memory."""
EAGER_KERNEL_S = 3.6e-5
"""Time to launch a kernel from Python, measured on the host of an H100 (profile
h100-sxm/llama-3.1-8b+llama-3.2-1b-measured). Tables of kernels assume less, as if launches were compiled."""
GRAPH_TOKENS = (1, 8, 32, 128)
STEPS_S = (0.005, 0.01, 0.02, 0.04)
LENGTHS = (1.1, 1.3, 1.6, 2.0)
SHARES = (0.7, 0.5, 0.35, 0.25, 0.15)
"""Values of a hidden fault that are tried: largest captured graph, the host's time of a step, acceptance lengths, and
seats or KV blocks as a share of what the load needs."""


class Arm(NamedTuple):
    """A server under one load, as it is described."""

    load: ServedLoad
    setup: LoadSetup
    profile: Profile

    @property
    def scenario(self) -> Scenario:
        return scenario_of(self.load, self.profile, self.setup)

    def engine(self, **keys: Json) -> Arm:
        """With other keys of the scenario's `engine` block."""
        return self._replace(setup=dataclasses.replace(self.setup, engine={**self.setup.engine, **keys}))

    def changed(self, **fields: object) -> Arm:
        """With other fields of the load."""
        return self._replace(load=msgspec.structs.replace(self.load, **fields))

    def host(self, **constants: float) -> Arm:
        engine = engine_of(self.setup.engine_name, self.profile)
        return self._replace(profile=with_constants(with_engine(self.profile, engine), constants))

    def graphs(self, most_tokens: int) -> Arm:
        """With graphs for steps of so many tokens at most; 0: for none."""
        launch_s = max(EAGER_KERNEL_S, self.profile.host.eager_kernel_s)
        host = msgspec.structs.replace(self.profile.host, max_graph_tokens=most_tokens, eager_kernel_s=launch_s)
        arm = self._replace(profile=msgspec.structs.replace(self.profile, host=host))
        return arm if most_tokens else arm.engine(cuda_graph=False)

    def values(self) -> dict[str, float]:
        """Simulated values by metric of MEASURED."""
        arm = self.graphs(0) if self.setup.engine.get("cuda_graph") is False else self
        if not self.load.request_rate and 0 < self.load.num_requests < self.setup.waves * self.in_flight:
            # No longer than it ran: prompts of the first wave wait for each other.
            arm = arm.changed(num_prompts=self.load.num_prompts or self.load.num_requests)
        run = simulate_load(arm.load, arm.profile, arm.setup)
        return {name: run[key] for name, key in MEASURED.items() if run.get(key)}

    def errors(self) -> ErrorChances:
        resolved = resolve_all(self.scenario, self.profile)[0]
        return level_errors(resolved, drafts=self.load.num_speculative_tokens > 0)

    @property
    def in_flight(self) -> int:
        return self.load.num_requests if self.load.is_burst else max(1, round(self.load.concurrency))


class Pair(NamedTuple):
    """The same server without and with drafts."""

    without: Arm
    drafting: Arm

    def both(self, change: Callable[[Arm], Arm]) -> Pair:
        return Pair(change(self.without), change(self.drafting))

    def one(self, change: Callable[[Arm], Arm]) -> Pair:
        """Only the drafting server changed."""
        return Pair(self.without, change(self.drafting))


class Cause(NamedTuple):
    """Something that lowers a speed-up."""

    name: str
    """What is so, as a clause."""
    remedy: str
    hidden: Callable[[Pair], Iterator[Pair]] | None = None
    """The pair with this fault, in each size and place that is tried; None: it cannot be hidden."""
    removed: Callable[[Pair], Iterator[Pair]] | None = None
    """The pair without this condition; nothing where it does not hold."""
    counts_tokens: bool = False
    """Without the condition the drafting server has more tokens per second, whatever the speed-up."""
    min_gain: float = MIN_GAIN


def _no_graphs(pair: Pair) -> Iterator[Pair]:
    yield pair.both(partial(Arm.graphs, most_tokens=0))
    yield pair.one(partial(Arm.graphs, most_tokens=0))


def _with_graphs(pair: Pair) -> Iterator[Pair]:
    if False in (pair.without.setup.engine.get("cuda_graph"), pair.drafting.setup.engine.get("cuda_graph")):
        yield pair.both(partial(Arm.engine, cuda_graph=True))


def _small_graphs(pair: Pair) -> Iterator[Pair]:
    largest = pair.drafting.in_flight * (pair.drafting.load.num_speculative_tokens + 1)
    for tokens in (each for each in GRAPH_TOKENS if each < largest):
        yield pair.both(partial(Arm.graphs, most_tokens=tokens))


def _low_acceptance(pair: Pair) -> Iterator[Pair]:
    if pair.drafting.load.accepted is None and pair.drafting.load.num_speculative_tokens:
        k = pair.drafting.load.num_speculative_tokens
        for length in (each for each in LENGTHS if each < k + 1):
            yield pair.one(partial(Arm.changed, acceptance=f"length:{length}@{k}"))


def _usual_acceptance(pair: Pair) -> Iterator[Pair]:
    if pair.drafting.load.num_speculative_tokens:
        yield pair.one(partial(Arm.changed, acceptance=ANY))


def _shorter_drafts(pair: Pair) -> Iterator[Pair]:
    for k in range(1, pair.drafting.load.num_speculative_tokens):
        yield pair.one(partial(Arm.changed, num_speculative_tokens=k))


def _few_seats(pair: Pair) -> Iterator[Pair]:
    for share in SHARES:
        seats = max(1, round(share * pair.drafting.in_flight))
        yield pair.one(partial(Arm.changed, max_num_seqs=seats))
        yield pair.both(partial(Arm.changed, max_num_seqs=seats))


def _enough_seats(pair: Pair) -> Iterator[Pair]:
    stated = pair.drafting.load.max_num_seqs or pair.drafting.setup.engine.get("max_num_seqs")
    if isinstance(stated, int) and stated < pair.drafting.in_flight:
        seats = pair.drafting.in_flight
        seated = pair.both(partial(Arm.changed, max_num_seqs=None)).both(partial(Arm.engine, max_num_seqs=seats))
        yield seated.both(partial(_with_blocks, share=ENOUGH))


def _with_blocks(arm: Arm, share: float) -> Arm:
    """With so many KV blocks as this share of the load needs, and enough for one request."""
    of_one = sum(arm.load.lengths) + 2 * arm.load.num_speculative_tokens
    tokens = max(1.5 * of_one, share * arm.in_flight * sum(arm.load.lengths))
    return arm.engine(num_gpu_blocks=ceil(tokens / BLOCK_TOKENS) + 2)


def _little_memory(pair: Pair) -> Iterator[Pair]:
    for share in SHARES:
        yield pair.one(partial(_with_blocks, share=share))
        yield pair.both(partial(_with_blocks, share=share))


def _enough_memory(pair: Pair) -> Iterator[Pair]:
    yield pair.both(partial(_with_blocks, share=ENOUGH))


def _short_prompts(pair: Pair) -> Iterator[Pair]:
    yield pair.both(partial(Arm.changed, input_len=float(BLOCK_TOKENS)))


def _slow_host(pair: Pair) -> Iterator[Pair]:
    for seconds in STEPS_S:
        yield pair.both(partial(Arm.host, step_s=seconds))


def _low_rate(pair: Pair) -> Iterator[Pair]:
    rate = pair.drafting.load.request_rate
    if rate is not None:
        yield pair.both(partial(Arm.changed, request_rate=rate / 4.0))


def _no_burst(pair: Pair) -> Iterator[Pair]:
    if pair.drafting.load.is_burst and pair.drafting.load.num_requests > FEW_IN_FLIGHT:
        yield pair.both(partial(Arm.changed, is_burst=False, concurrency=float(FEW_IN_FLIGHT)))


def _whole_answers(pair: Pair) -> Iterator[Pair]:
    tokens = pair.without.load.output_len
    if (pair.drafting.load.output_len or 0.0) < MIN_SHORTER * (tokens or 0.0):
        yield pair.one(partial(Arm.changed, output_len=tokens))


CAUSES = (
    Cause("steps are launched without CUDA graphs", "remove --enforce-eager", _no_graphs, _with_graphs),
    Cause(
        "steps are larger than the largest captured CUDA graph",
        "raise --max-cudagraph-capture-size",
        _small_graphs,
    ),
    Cause(
        "acceptance is low for these prompts",
        "try a drafter that was trained on such prompts, or n-grams",
        _low_acceptance,
        _usual_acceptance,
        min_gain=MIN_ACCEPTANCE_GAIN,
    ),
    Cause("drafts are too long for this load", "lower num_speculative_tokens", None, _shorter_drafts),
    Cause("max_num_seqs is too small", "raise --max-num-seqs", _few_seats, _enough_seats, counts_tokens=True),
    Cause(
        "KV memory is short",
        "raise --gpu-memory-utilization, or lower --max-model-len",
        _little_memory,
        _enough_memory,
        counts_tokens=True,
    ),
    Cause("prompts interrupt decoding", "lower --max-num-batched-tokens, or reuse prefixes", None, _short_prompts),
    Cause("the host is the limit", "look for a busy CPU, logging or a slow tokenizer", _slow_host),
    Cause("requests wait in a queue", "lower the request rate, or add a replica", None, _low_rate),
    Cause(
        "answers with drafts end early",
        "send --ignore-eos, or compare the same answers",
        removed=_whole_answers,
        min_gain=MIN_FAULT_GAIN,
    ),
    Cause("all requests are sent at once", "set --max-concurrency to what you serve", None, _no_burst),
)


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """A cause, and what it does to the answer."""

    cause: str
    remedy: str
    speedup: float
    """Simulated with the fault, or without the condition."""
    share: float
    """1 is enough to be named. Of a fault: the share of the squared difference that it explains, over MIN_EXPLAINED. Of
    a condition: the logarithm of what is gained without it, over that of the least gain that counts."""


class Diagnosis(Stated, frozen=True, kw_only=True, rename={"costs": "profile"}):
    """A measured pair beside what is to be expected of it; the scenario is that of the drafting server."""

    without: PlainScenario
    """The scenario of the other server."""
    speedup: float | None
    """Measured tokens per second with drafts over those without; of an open loop, latencies without over those with.
    None where one of the two was not measured."""
    expected: float
    expected_interval: tuple[float, float]
    """95 % of the simulator's errors of speed-ups."""
    is_expected: bool
    """Nothing that was measured is worse than expected by more than 95 % of the simulator's errors."""
    values: list[Beside]
    causes: list[Ranked]
    """The largest share first; faults where the pair is not expected, conditions where it is."""

    @property
    def likely(self) -> list[Ranked]:
        """The cause, and those that explain nearly as much."""
        first = self.cause
        return [] if first is None else [each for each in self.causes if each.share >= AS_LIKELY * first.share]

    @property
    def cause(self) -> Ranked | None:
        """None: nothing that the simulator knows explains the difference, or nothing is wrong."""
        return self.causes[0] if self.causes and self.causes[0].share >= 1.0 else None

    @property
    def plain(self) -> dict[str, Json]:
        """As JSON has it."""
        return super().plain | {"likely": [each.cause for each in self.likely]}


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """A measured value beside the simulated one."""

    arm: str
    metric: str
    measured: float
    expected: float
    error_size: float
    """How far apart they are, in errors of the simulator: 1 is the end of 95 %."""

    @property
    def is_better(self) -> bool:
        return (self.measured > self.expected) == (self.metric in (THROUGHPUT, SPEEDUP))


Simulated = tuple[Mapping[str, float], Mapping[str, float]]
ARMS = ("no speculation", "drafting")
SPEEDUP = "speed-up"


def beside(pair: Pair, has: tuple[bool, bool], errors: Sequence[ErrorChances], simulated: Simulated) -> list[Beside]:
    """What was measured of those arms that a pair `has`, beside its simulation. Rates are as far off as times, in the
    other direction."""
    told = []
    for arm, is_measured, name, values, chances in zip(pair, has, ARMS, simulated, errors, strict=True):
        for metric, real in arm.load.measured.items() if is_measured else ():
            if metric in values and (metric != THROUGHPUT or arm.load.request_rate is None):
                width = FIRST_TOKEN_WIDTH if metric.startswith("ttft") else 1.0
                told.append(
                    (name, metric, real, values[metric], [width * chances.at(each) for each in (LOW_95, HIGH_95)])
                )
    if all(has):
        ends = [speedup_errors().at(each) for each in (LOW_95, HIGH_95)]
        told.append(("", SPEEDUP, measured_speedup(pair), speedup_of(pair, simulated), ends))
    return [
        Beside(
            arm=arm,
            metric=metric,
            measured=real,
            expected=expected,
            error_size=abs(log(expected / real) * (-1.0 if metric == THROUGHPUT else 1.0) - 0.5 * (low + high))
            / (0.5 * (high - low)),
        )
        for arm, metric, real, expected, (low, high) in told
    ]


def measured_speedup(pair: Pair) -> float:
    return speedup_of(pair, (pair.without.load.measured, pair.drafting.load.measured))


def speedup_of(pair: Pair, values: Simulated) -> float:
    """Tokens per second with drafts over without. Under a request rate both have the same, so that latencies count."""
    speeds = []
    for arm, each in zip(pair, values, strict=True):
        ttft_ms, tpot_ms = (each.get(f"{name}_ms", each.get(f"{name}_p50_ms", 0.0)) for name in ("ttft", "tpot"))
        if arm.load.request_rate is None and THROUGHPUT in each:
            speeds.append(each[THROUGHPUT])
        else:
            speeds.append(1.0 / (ttft_ms + max(0.0, arm.load.lengths[1] - 1.0) * tpot_ms))
    return speeds[1] / speeds[0]


def diagnose(
    pair: Pair, has: tuple[bool, bool] = (True, True), on_run: Callable[[int], None] = lambda done: None
) -> Diagnosis:
    """What was measured beside what is to be expected, and the likeliest causes of the difference.

    `has` says which arm was measured; the other is simulated alone. Raises ValueError where an arm cannot run.
    """
    runs: dict[str, dict[str, float]] = {}

    def simulated(arm: Arm) -> dict[str, float]:
        key = repr((arm.load, arm.setup, arm.profile.host))
        if key not in runs:
            on_run(len(runs))
            runs[key] = arm.values()
        return runs[key]

    errors = pair.without.errors(), pair.drafting.errors()
    as_described = simulated(pair.without), simulated(pair.drafting)
    values = beside(pair, has, errors, as_described)
    expected, ends = speedup_of(pair, as_described), speedup_errors()
    is_expected = all(each.error_size <= 1.0 or each.is_better for each in values)

    def judge(cause: Cause, variant: Pair) -> Ranked:
        sides = simulated(variant.without), simulated(variant.drafting)
        speedup = speedup_of(variant, sides)
        if is_expected:
            gain = sides[1][THROUGHPUT] / as_described[1][THROUGHPUT] if cause.counts_tokens else speedup / expected
            share = log(gain) / log(cause.min_gain)
        else:
            share = (1.0 - _score(beside(pair, has, errors, sides)) / _score(values)) / MIN_EXPLAINED
        return Ranked(cause=cause.name, remedy=cause.remedy, speedup=speedup, share=share)

    ranked = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for cause in CAUSES:
            variants = cause.removed if is_expected else cause.hidden
            tried = [judge(cause, variant) for variant in (variants(pair) if variants is not None else ())]
            if tried:
                ranked.append(max(tried, key=lambda each: each.share))
    load, profile = pair.drafting.load, pair.drafting.profile
    served = f"{profile.name}, {load.point}, K = {load.num_speculative_tokens}, acceptance {load.acceptance}"
    return Diagnosis(
        scenario=to_plain(pair.drafting.scenario),
        without=to_plain(pair.without.scenario),
        costs=cost_source(profile),
        draws=0,
        covers="",
        notes=[served],
        speedup=measured_speedup(pair) if all(has) else None,
        expected=expected,
        expected_interval=(expected * exp(-ends.at(HIGH_95)), expected * exp(-ends.at(LOW_95))),
        is_expected=is_expected,
        values=values,
        causes=sorted(ranked, key=lambda each: -each.share),
    )


def _score(values: Sequence[Beside]) -> float:
    return sum(each.error_size**2 for each in values)
