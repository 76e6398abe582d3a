"""Forecasts from the cost model and means alone, without a run: latency and capacity of lanes on shares of the
multiprocessors, and seconds of one step of continuous batching.

Lanes: prompts wait in a queue of one server; as many requests go round the other lanes as Little's law says; a lane's
works take what solo curves and neighbours, or plain streams, make of them, as often as those are busy (docs/adr/003).
Good enough to choose shares by, not to be shown: latencies come from runs. Steps are what a run asks often: the
`goodput` controller, and how an answer moves as its costs are drawn (sim.studies). Not here: which shares there are
(lane_shares), runs (run).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import exp, inf
from typing import NamedTuple

from sim.costs.cost import CostModel
from sim.costs.profile import ShareCurve
from sim.devices.contention import Contention, plain_rates
from sim.devices.partition import MEASURED, Portion, rates_on_shares
from sim.interface.work import Chunk, Kind, Model, Work
from sim.policies.continuous.plan import draft_of
from sim.policies.options import EngineLimits

PREFILL = "prefill"
SIZE_RATIO = 1.3
"""Ratio between two numbers of requests that are tried."""
PASSES = 4
"""Passes after which the busy shares of lanes are steady."""
BISECTIONS = 14
FULL = 0.99
"""A queue that is busier than this is taken for one that grows."""


class MeanLoad(NamedTuple):
    """A workload on an engine in means."""

    prompt_tokens: int
    prompt_variation: float
    """Variance of the prompts' lengths over their squared mean."""
    context_tokens: float
    """Tokens in KV of a request halfway through its output."""
    num_rounds: float
    """Verifies per request."""
    draft_tokens: int
    max_at_once: int
    """Requests that memory and caps hold."""
    max_rows: Mapping[Kind, int]
    """Most rows of one draft, of one verify."""
    rate_per_s: float
    """Infinite where all come at once."""
    max_concurrency: int | None
    plans_ahead: bool = False


class LaneWork(NamedTuple):
    """Work of a lane for one prompt, or in one round."""

    host_s: float
    device_s: float
    """Device time on the whole device."""
    demands: tuple[float, float]
    kernels_per_s: float = 0.0
    """Kernels per second at rate 1."""

    def seconds(self, rate: float) -> float:
        return self.host_s + self.device_s / rate


class LaneSharing(NamedTuple):
    """Sharing of the device between groups of lanes: as plain streams, or on shares of the multiprocessors."""

    shares: tuple[float, ...] | None = None
    """[groups] None: plain streams."""
    is_dynamic: bool = False
    """A work that is alone has the whole device, and prompts begin and end where a round does."""


class Pace(NamedTuple):
    """Seconds of a prompt, and of a round of each of some number of requests that are past it; either with nobody
    beside, and beside the other."""

    prompt_s: float
    prompt_beside_s: float
    round_s: float
    round_beside_s: float
    deferred_s: float = 0.0
    """Seconds that a prompt waits for a round's end before it begins, where it may have to."""

    def towards(self, other: Pace, part: float) -> Pace:
        return Pace(*(a + part * (b - a) for a, b in zip(self, other, strict=True)))


class Forecast:
    """Expected rates of groups of lanes; those of a group take turns. One group is the prefill lane."""

    def __init__(
        self,
        lanes: Sequence[Sequence[str]],
        costs: CostModel,
        load: MeanLoad,
        contention: Contention | None = None,
    ) -> None:
        """`contention` is of plain streams, and has the curve of shares."""
        self._costs, self._load = costs, load
        self._contention = contention or Contention()
        self._prefill = [PREFILL in group for group in lanes].index(True)
        names = [name for group in lanes for name in group]
        self._round_kinds = [self._kinds(group, names) for group in lanes if PREFILL not in group]
        models = (Model.TARGET, Model.DRAFT) if load.draft_tokens else (Model.TARGET,)
        self._prompt = self._lane_work([self._prompt_work(model) for model in models])
        self._round_works: dict[tuple[int, float], LaneWork] = {}

    def score(self, sharing: LaneSharing) -> tuple[float, float]:
        """The lower, the better: mean E2EL in seconds; where no queue is steady, what capacity lacks."""
        load, paces = self._load, self._paces(sharing)
        if load.max_concurrency is not None:
            return self._closed_s(paces, load.max_concurrency), 0.0
        e2el_s = inf if load.rate_per_s == inf else self._open_s(paces, load.rate_per_s)
        return e2el_s, -self._capacity_per_s(paces) if e2el_s == inf else 0.0

    # -- from paces to means

    def _open_s(self, paces: Mapping[int, Pace], rate_per_s: float) -> float:
        """Mean latency where `rate_per_s` requests arrive; infinite where some queue grows."""
        load, prompt_s, prompt_busy = self._load, 0.0, 0.5
        pace = paces[1]
        for _ in range(PASSES):
            num_rounding = self._num_rounding(paces, rate_per_s, prompt_busy)
            if num_rounding == inf:
                return inf
            pace = _pace_of(paces, num_rounding + 1.0)
            # One that waits for another begins where that one ends.
            beside_s = pace.prompt_beside_s + (1.0 - prompt_busy) * pace.deferred_s
            prompt_s = pace.prompt_s + (1.0 - exp(-num_rounding)) * (beside_s - pace.prompt_s)
            prompt_busy = min(1.0, rate_per_s * prompt_s)
        if prompt_busy > FULL:
            return inf
        waiting_s = prompt_s * prompt_busy * (1.0 + load.prompt_variation) / (2.0 * (1.0 - prompt_busy))
        return waiting_s + prompt_s + (load.num_rounds + 0.5) * _round_s(pace, prompt_busy)

    def _closed_s(self, paces: Mapping[int, Pace], concurrency: int) -> float:
        """Mean latency with so many requests always in flight, by Little's law."""
        low, high = 0.0, 2.0 * self._capacity_per_s(paces)
        for _ in range(BISECTIONS):
            rate = 0.5 * (low + high)
            if rate * self._open_s(paces, rate) < concurrency:
                low = rate
            else:
                high = rate
        return concurrency / high

    def _capacity_per_s(self, paces: Mapping[int, Pace]) -> float:
        """Requests per second of the slower of prompts and rounds, all lanes busy."""
        most = self._load.max_at_once
        pace = paces[most]
        return min(1.0 / pace.prompt_beside_s, most / (self._load.num_rounds * pace.round_beside_s))

    def _num_rounding(self, paces: Mapping[int, Pace], rate_per_s: float, prompt_busy: float) -> float:
        """Requests past their prompts that one finds there, on average, at the rate: their throughput at the pace of
        these and itself. Infinite where no number is enough."""
        before, before_per_s = 0.0, 0.0
        for number, pace in paces.items():
            others = number if number == self._load.max_at_once else number - 1
            per_s = others / (self._load.num_rounds * _round_s(pace, prompt_busy))
            if per_s >= rate_per_s:
                return before + (others - before) * (rate_per_s - before_per_s) / (per_s - before_per_s)
            if per_s > before_per_s:
                before, before_per_s = others, per_s
        return inf

    # -- from shares to paces

    def _paces(self, sharing: LaneSharing) -> dict[int, Pace]:
        """Paces by the number of requests that are past their prompts, rising from 1."""
        prompt, num_lanes = self._prompt, len(self._round_kinds)
        shares = list(sharing.shares or [1.0] * (num_lanes + 1))
        prompt_share, round_shares = shares.pop(self._prefill), shares

        def rates(of: Sequence[float], works: Sequence[LaneWork]) -> list[float]:
            if len(works) == 1 and (sharing.is_dynamic or sharing.shares is None):
                return [1.0]
            if sharing.shares is None:
                return self._plain(works)
            return _rates(of, works, self._contention.curve or MEASURED)

        alone_s = prompt.seconds(*rates([prompt_share], [prompt]))
        paces = {}
        for number in _numbers(self._load.max_at_once):
            if number == 1:
                # It goes through its lanes one after the other.
                works = [self._round_work(group, 1) for group in range(num_lanes)]
                each = list(zip(round_shares, works, strict=True))
                idle = [rates([share], [work])[0] for share, work in each]
                both = [rates([prompt_share, share], [prompt, work]) for share, work in each]
                beside_rate = min(pair[0] for pair in both)
                round_s, beside_s = sum(_each_s(works, idle)), sum(_each_s(works, [pair[1] for pair in both]))
            else:
                # As many are in each lane, which all wait for the slowest.
                works = [self._round_work(group, number / num_lanes) for group in range(num_lanes)]
                beside_rate, *busy = rates([prompt_share, *round_shares], [prompt, *works])
                idle = rates(round_shares, works)
                round_s, beside_s = (num_lanes * max(_each_s(works, work_rates)) for work_rates in (idle, busy))
            prompt_s, half = prompt.seconds(beside_rate), 0.5 if sharing.is_dynamic else 0.0
            paces[number] = Pace(alone_s, prompt_s + half * beside_s, round_s, beside_s, half * round_s)
        return paces

    def _plain(self, works: Sequence[LaneWork]) -> list[float]:
        """Rates of works side by side on plain streams."""
        ones = [1.0] * len(works)
        kernels_per_s, demands = [work.kernels_per_s for work in works], [work.demands for work in works]
        return plain_rates(ones, [0] * len(ones), kernels_per_s, demands, self._contention)

    # -- from lanes to works

    def _kinds(self, group: Sequence[str], names: Sequence[str]) -> list[Kind]:
        """Kinds of work of the lanes of `group` in a round; without a lane to verify, those that draft do."""
        drafts = [Kind.DRAFT] if self._load.draft_tokens and tuple(group) != ("verify",) else []
        verifies = [Kind.VERIFY] if "verify" in group or "verify" not in names else []
        return drafts + verifies

    def _round_work(self, group: int, rows: float) -> LaneWork:
        """A round's work of a group for `rows` requests; more than fit into one work take as many more of its time."""
        known = self._round_works.get((group, rows))
        if known is None:
            kinds = self._round_kinds[group]
            fitting = max(1.0, min(rows, *(self._load.max_rows[kind] for kind in kinds)))
            once = self._lane_work([self._rows_work(kind, round(fitting)) for kind in kinds])
            times = max(1.0, rows / fitting)
            known = LaneWork(times * once.host_s, times * once.device_s, once.demands, once.kernels_per_s)
            self._round_works[group, rows] = known
        return known

    def _rows_work(self, kind: Kind, rows: int) -> Work:
        load, is_draft = self._load, kind is Kind.DRAFT
        tokens = rows if is_draft else rows * (load.draft_tokens + 1)
        return Work(
            kind=kind,
            model=Model.DRAFT if is_draft else Model.TARGET,
            rows=rows,
            row_tokens=tokens,
            context_tokens=round(rows * load.context_tokens),
            head_rows=tokens,
            draft_tokens=load.draft_tokens if is_draft else 0,
        )

    def _prompt_work(self, model: Model) -> Work:
        chunks = (Chunk(self._load.prompt_tokens, 0),)
        return Work(kind=Kind.PREFILL, model=model, chunks=chunks, head_rows=int(model is Model.TARGET))

    def _lane_work(self, works: Sequence[Work]) -> LaneWork:
        """Works one after the other: later ones are prepared meanwhile, and the first was while the last ones ran where
        the engine plans ahead; demands are means over their time."""
        costs = [self._costs.cost(work) for work in works]
        demands = [self._costs.demands(work) for work in works]
        device_s = sum(cost.device_s for cost in costs)
        compute, bandwidth = (
            sum(cost.device_s * demand[roof] for cost, demand in zip(costs, demands, strict=True)) / device_s
            if device_s
            else 0.0
            for roof in (0, 1)
        )
        prepare_s = 0.0 if self._load.plans_ahead else costs[0].prepare_s
        kernels_per_s = sum(cost.num_kernels for cost in costs) / device_s if device_s else 0.0
        return LaneWork(prepare_s + self._costs.result_s, device_s, (compute, bandwidth), kernels_per_s)


def _rates(shares: Sequence[float], works: Sequence[LaneWork], curve: ShareCurve) -> list[float]:
    """Rates of works side by side on `shares` [works]."""
    ones = [1.0] * len(shares)
    portions = [Portion(share, True) for share in shares]
    return rates_on_shares(portions, ones, [work.demands for work in works], curve)


def _each_s(works: Sequence[LaneWork], rates: Sequence[float]) -> list[float]:
    return [work.seconds(rate) for work, rate in zip(works, rates, strict=True)]


def _round_s(pace: Pace, prompt_busy: float) -> float:
    """Seconds of a round beside prompts for a share of the time."""
    return 1.0 / ((1.0 - prompt_busy) / pace.round_s + prompt_busy / pace.round_beside_s)


def _numbers(most: int) -> Iterator[int]:
    """1, 2 and so on, ever wider apart, to `most`."""
    number = 1
    while number < most:
        yield number
        number = max(number + 1, int(number * SIZE_RATIO))
    yield most


def _pace_of(paces: Mapping[int, Pace], number: float) -> Pace:
    """The pace between those that are known; beyond them that of the nearest."""
    before: tuple[int, Pace] | None = None
    for known, pace in paces.items():
        if known >= number:
            return pace if before is None else before[1].towards(pace, (number - before[0]) / (known - before[0]))
        before = known, pace
    assert before is not None, "there is always a pace of 1"
    return before[1]


class StepForecast:
    """Steps of rows of `context_tokens` each on `costs`; `has_draft` where a drafter is loaded, which a step without
    drafts brings up to date."""

    def __init__(self, costs: CostModel, limits: EngineLimits, context_tokens: float, *, has_draft: bool) -> None:
        self._costs, self._limits = costs, limits
        self._context_tokens = context_tokens
        self._has_draft = has_draft and not limits.method.looks_up

    def round_s(self, rows: int, draft_tokens: int) -> float:
        """A step of `rows` that each verify `draft_tokens` and draft as many anew."""
        return self.step_s(rows, draft_tokens, ())

    def step_s(
        self, rows: int, draft_tokens: int, prompts: tuple[int, ...], *, drafted_anew: int | None = None
    ) -> float:
        """The same with whole `prompts` of so many tokens beside them; `drafted_anew` instead of as many."""
        row_tokens = rows * (draft_tokens + 1)
        context_tokens = round(rows * self._context_tokens)
        chunks = tuple(Chunk(tokens, 0) for tokens in prompts)
        target = Work(
            kind=Kind.STEP,
            rows=rows,
            row_tokens=row_tokens,
            context_tokens=context_tokens,
            chunks=chunks,
            head_rows=row_tokens + len(chunks),
        )
        works = [target]
        anew = draft_tokens if drafted_anew is None else drafted_anew
        num_drafting = rows + len(chunks)
        if self._has_draft:
            method, in_kv = self._limits.method, context_tokens + sum(prompts)
            works.append(draft_of(method, num_drafting, row_tokens, in_kv, chunks, anew))
        elif anew:
            works.append(Work(kind=Kind.HOST, rows=num_drafting))
        return self._seconds(works)

    def lane_requests_per_s(
        self, rows: int, prompt_tokens: int, num_rounds: float, draft_tokens: int, drafter: int
    ) -> float:
        """Requests per second in a lane, `rows` at a time, with one of several draft models: what their times
        allow, and what the GPU does, of which each takes its prompt and its share of its rounds; whichever is less."""
        context_tokens = round(rows * self._context_tokens)
        verified = rows * (draft_tokens + 1)
        draft = Work(
            kind=Kind.DRAFT,
            model=Model.DRAFT,
            rows=rows,
            row_tokens=rows,
            context_tokens=context_tokens,
            head_rows=rows,
            draft_tokens=draft_tokens,
            drafter=drafter,
        )
        verify = Work(
            kind=Kind.VERIFY, rows=rows, row_tokens=verified, context_tokens=context_tokens, head_rows=verified
        )
        chunks = (Chunk(prompt_tokens, 0),)
        prompt = [
            Work(kind=Kind.PREFILL, chunks=chunks, head_rows=1),
            Work(kind=Kind.PREFILL, model=Model.DRAFT, chunks=chunks, drafter=drafter),
        ]
        own_s = self._seconds(prompt) + num_rounds * self._seconds([draft, verify])
        device_s = self._device_s(prompt) + num_rounds * self._device_s([draft, verify]) / rows
        return min(rows / own_s, 1.0 / device_s)

    def _device_s(self, works: list[Work]) -> float:
        """Seconds that they take of the GPU."""
        return sum(self._costs.cost(work).device_s for work in works)

    def _seconds(self, works: list[Work]) -> float:
        """Seconds of works one after the other on one stream; with asynchronous scheduling the first was prepared while
        the step before it ran. N-grams are looked up when its result is there."""
        issuer_s = device_s = lookup_s = 0.0
        for work in works:
            prepare_s, launch_s, solo_s, _ = self._costs.cost(work)
            if work.kind is Kind.HOST:
                lookup_s += prepare_s
                continue
            if work is works[0] and self._limits.async_scheduling:
                prepare_s = 0.0
            ready_s = issuer_s + prepare_s
            issuer_s = ready_s + launch_s
            device_s = max(max(device_s, ready_s) + solo_s, issuer_s)
        return device_s + self._costs.result_s + lookup_s
