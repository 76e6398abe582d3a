"""Draft-length controllers that estimate acceptance as they go: argmax of goodput, vLLM's adaptive verification, and
SGLang's bands.

All learn from the verify rounds alone, so they pay for what they do not know. Not here: the protocol, and controllers
that estimate no acceptance rate by place (draft_length).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from heapq import heapify, heappop, heappush
from itertools import accumulate
from operator import mul

from sim.bounds import Bounded, Count, SomeShare, Whole
from sim.engine.draft_length import Controller
from sim.interface.request import Request

MEMORY_ROUNDS = 500.0
"""Rounds that the running acceptance rates remember, older ones ever less."""
PRIOR_RATE, PRIOR_ROUNDS = 0.7, 5.0
"""What is believed of the first drafted token before anything was seen, and how many rounds that is worth."""
PROBE_EVERY = 200
"""Decisions for nothing after which one token is drafted, to see whether acceptance has changed."""

OWN_ROUNDS = 10.0
"""Rounds of its own by which a request's acceptance counts as much as that of all others."""

RoundSeconds = Callable[[int, int], float]
"""(rows, draft length) -> seconds of a whole round."""


class RunningRates:
    """Conditional acceptance rates by place in the draft, from rounds of whatever length.

    A place that was hardly reached takes the rate of the one before it.

    >>> rates = RunningRates(3)
    >>> for _ in range(4000):
    ...     rates.saw(2, 1)
    >>> [round(chance, 2) for chance in rates.survival()]
    [1.0, 0.01, 0.0]

    Before the first round they are the prior's. After 100 rounds the first is (50 + 5 x 0.7) / (100 + 5):

    >>> rates = RunningRates(2)
    >>> [round(chance, 4) for chance in rates.survival()]
    [0.7, 0.49]
    >>> for accepted in [2, 1, 0, 0] * 25:
    ...     rates.saw(2, accepted)
    >>> [round(chance, 4) for chance in rates.survival()]
    [0.5095, 0.2552]

    After 500 rounds at 1 and as many at 0 about 1/e of the memory is left:

    >>> rates = RunningRates(1)
    >>> for accepted in [1] * 500 + [0] * 500:
    ...     rates.saw(1, accepted)
    >>> round(rates.survival()[0], 2)
    0.37
    """

    def __init__(self, num_places: int) -> None:
        self._reached = [0.0] * num_places
        self._accepted = [0.0] * num_places

    def saw(self, drafted: int, accepted: int) -> None:
        """A round in which the first `accepted` of `drafted` tokens were accepted."""
        for place in range(min(accepted + 1, drafted)):
            self._reached[place] += 1.0
            self._accepted[place] += place < accepted
            kept = MEMORY_ROUNDS / self._reached[place]
            if kept < 1.0:
                self._reached[place] *= kept
                self._accepted[place] *= kept

    def conditional(self) -> list[float]:
        """[positions] chance that a token is accepted where all before it were."""
        rates, rate = [], PRIOR_RATE
        for reached, accepted in zip(self._reached, self._accepted, strict=True):
            rate = (accepted + PRIOR_ROUNDS * rate) / (reached + PRIOR_ROUNDS)
            rates.append(rate)
        return rates

    def survival(self) -> list[float]:
        """[positions] chance that a draft is accepted up to and including each of its tokens."""
        return list(accumulate(self.conditional(), mul))


class GoodputLength(Controller):
    """The draft length with the most expected tokens per second: argmax over k of (1 + sum of survival up to k) over
    the seconds of a round, the shortest of equals.

    `round_s` is the cost model's own; survival is a running estimate. Where nothing is worth drafting, every
    PROBE_EVERY-th decision drafts one token all the same.
    """

    draft_tokens_min = 0
    constant_length = None

    def __init__(self, draft_tokens_max: int, round_s: RoundSeconds) -> None:
        self.draft_tokens_max = draft_tokens_max
        self._round_s = cache(round_s)
        self._rates = RunningRates(draft_tokens_max)
        self._num_idle = 0

    def length_for(self, num_requests: int) -> int:
        seconds = [self._round_s(max(1, num_requests), k) for k in range(self.draft_tokens_max + 1)]
        chosen = best_length(self._rates.survival(), seconds)
        self._num_idle = 0 if chosen else self._num_idle + 1
        if self._num_idle >= PROBE_EVERY:
            self._num_idle = 0
            return 1
        return chosen

    def saw_round(self, drafted: int, accepted: int) -> None:
        self._rates.saw(drafted, accepted)


def best_length(survival: list[float], seconds: list[float]) -> int:
    """The draft length of most tokens per second; `survival` [k], `seconds` [k + 1] of a round, from 0 on.

    >>> best_length([0.5, 0.25], [1.0, 1.2, 1.5])
    1
    >>> best_length([0.5, 0.25], [1.0, 1.5, 1.7])
    2

    Of equals it is the shorter:

    >>> best_length([0.5, 0.25], [1.0, 1.5, 2.0]), best_length([0.8, 0.64, 0.5], [10.0, 11.0, 12.0, 13.0])
    (0, 3)
    """
    best, tokens = 0, 1.0
    most = tokens / seconds[0]
    for k, chance in enumerate(survival, start=1):
        tokens += chance
        if tokens / seconds[k] > most:
            best, most = k, tokens / seconds[k]
    return best


class AdaptiveVerification(Controller):
    """vLLM's adaptive verification: all draft the same, and each step verifies the drafted tokens that are likeliest to
    survive, of whatever request, up to the number with the most expected tokens per second.

    A token survives with the product of its request's acceptance rates up to it. vLLM takes these from the drafter's
    confidence; here they are the running rates of all requests, moved by what each request has accepted itself. The
    drafts of tokens that are left out are paid. Source: vLLM's documentation, adaptive verification.
    """

    constant_length = None

    def __init__(self, draft_tokens: int, round_s: RoundSeconds) -> None:
        self.draft_tokens_min = self.draft_tokens_max = draft_tokens
        self._round_s = cache(round_s)
        self._rates = RunningRates(draft_tokens)
        self._rounds = self._accepted = 0.0

    def length_for(self, num_requests: int) -> int:
        return self.draft_tokens_max

    def saw_round(self, drafted: int, accepted: int) -> None:
        self._rates.saw(drafted, accepted)
        kept = min(1.0, MEMORY_ROUNDS / (self._rounds + 1.0))
        self._rounds = kept * (self._rounds + 1.0)
        self._accepted = kept * (self._accepted + accepted)

    def verify(self, rows: Sequence[Request]) -> list[int]:
        """[rows] how many of its drafted tokens each verifies; the likeliest first, of equals the oldest row's."""
        if not rows:
            return []
        rates = self._rates.conditional()
        lifts = [self._lift(request) for request in rows]
        slots = [(-min(1.0, rates[0] * lifts[i]), i) for i, request in enumerate(rows) if request.drafted]
        heapify(slots)
        taken = [0] * len(rows)
        order: list[int] = []
        gained = [float(len(rows))]
        while slots:
            chance, place = heappop(slots)
            taken[place] += 1
            order.append(place)
            gained.append(gained[-1] - chance)
            depth = taken[place]
            if depth < rows[place].drafted:
                heappush(slots, (chance * min(1.0, rates[depth] * lifts[place]), place))
        best = max(range(len(gained)), key=lambda count: (gained[count] / self._seconds(len(rows), count), -count))
        for place in order[best:]:
            taken[place] -= 1
        return taken

    def _lift(self, request: Request) -> float:
        """A request's own rate over everybody's, drawn to 1 while it has few rounds. Both are accepted tokens over
        these and one rejection per round."""
        rounds, accepted = request.num_rounds, request.accepted_tokens
        if not rounds or not self._accepted:
            return 1.0
        everybodys = self._accepted / (self._accepted + self._rounds)
        own = accepted / (accepted + rounds)
        return (OWN_ROUNDS + rounds * own / everybodys) / (OWN_ROUNDS + rounds)

    def _seconds(self, rows: int, tokens: int) -> float:
        """Seconds of a round whose rows verify so many drafted tokens in all: between the draft lengths either side."""
        length, rest = divmod(tokens, rows)
        low = self._round_s(rows, length)
        return low if not rest else low + rest / rows * (self._round_s(rows, length + 1) - low)


class Band(Bounded, frozen=True, kw_only=True):
    """Draft lengths that SGLang chooses from at batch sizes from its key on, under the keys of its adaptive config
    file."""

    candidate_steps: tuple[Whole, ...]
    ema_alpha: SomeShare = 0.2
    update_interval: Count = 5
    warmup_batches: Whole = 10
    down_hysteresis: float = -0.25
    up_hysteresis: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        steps = self.candidate_steps
        if not steps or list(steps) != sorted(set(steps)):
            raise ValueError(f"candidate_steps={list(steps)} must be draft lengths from 0 on, rising")


Bands = Mapping[str, Band]
"""Bands by the least batch size of each, in digits as in SGLang's file."""

SGLANG_BANDS: dict[str, Band] = {
    "1": Band(candidate_steps=(1, 3, 5, 7)),
    "8": Band(candidate_steps=(0, 1, 3), down_hysteresis=0.0),
    "32": Band(candidate_steps=(0, 1), down_hysteresis=0.0),
    "64": Band(candidate_steps=(0,), down_hysteresis=0.0),
}
"""SGLang's defaults (`--speculative-adaptive` without a config file, sgl-project/sglang@015c872)."""


def bands_by_start(bands: Bands) -> dict[int, Band]:
    """`bands` by their least batch size, rising. Raises ValueError for a key that is none."""
    for key in bands:
        if not (key.isdigit() and int(key) >= 1):
            raise ValueError(f"speculative_adaptive_config: {key!r} must be a batch size from 1 on")
    if not bands:
        raise ValueError("speculative_adaptive_config must have at least one batch size")
    return {int(key): bands[key] for key in sorted(bands, key=int)}


class SglangAdaptive(Controller):
    """SGLang's adaptive draft length: in each band of batch sizes an average of accepted tokens, and steps up and down
    a list of candidates as it passes half-way marks between them.

    The rounds between two decisions are one verified batch, and count for the band of its size. A band at 0 goes up to
    its next candidate at the next update, as SGLang probes. CUDA-graph padding of batch sizes is left out.
    Source: AdaptiveStepSlot in sgl-project/sglang@015c872.
    """

    constant_length = None

    def __init__(self, start: int, bands: Bands | None = None) -> None:
        self._bands = bands_by_start(SGLANG_BANDS if bands is None else bands)
        self._starts = list(self._bands)
        self._slots = [_Slot(band, start) for band in self._bands.values()]
        lengths = [step for band in self._bands.values() for step in band.candidate_steps]
        self.draft_tokens_min, self.draft_tokens_max = min(lengths), max(lengths)
        self._accepted = 0
        self._rounds = 0
        self._idle_batch = 0
        """Size of the last batch if it drafted nothing, else 0."""

    def length_for(self, num_requests: int) -> int:
        if self._rounds:
            self._slot(self._rounds).saw(self._accepted / self._rounds)
        elif self._idle_batch:
            self._slot(self._idle_batch).saw(None)
        self._accepted = self._rounds = 0
        chosen = self._slot(num_requests).steps
        self._idle_batch = 0 if chosen else num_requests
        return chosen

    def saw_round(self, drafted: int, accepted: int) -> None:
        self._rounds += 1
        self._accepted += accepted

    def _slot(self, batch: int) -> _Slot:
        return self._slots[max(0, bisect_right(self._starts, batch) - 1)]


class _Slot:
    """One band's state."""

    def __init__(self, band: Band, start: int) -> None:
        steps = band.candidate_steps
        self._band = band
        self.steps = start if start in steps else steps[len(steps) // 2]
        self._accepted_mean = float(self.steps - 1)
        self._num_batches = 0

    def saw(self, accepted_mean: float | None) -> None:
        """A batch with so many accepted tokens per request; None: it drafted nothing."""
        band = self._band
        if accepted_mean is not None and self.steps:
            self._accepted_mean += band.ema_alpha * (accepted_mean - self._accepted_mean)
        self._num_batches += 1
        past_warmup = self._num_batches - band.warmup_batches
        if past_warmup > 0 and past_warmup % band.update_interval == 0:
            self._update()

    def _update(self) -> None:
        band, steps = self._band, self._band.candidate_steps
        place = steps.index(self.steps)
        if self.steps == 0:
            self.steps = steps[min(place + 1, len(steps) - 1)]
            if self.steps and self._accepted_mean < 0.0:
                self._accepted_mean = float(self.steps - 1)
            return
        down = place
        while down > 0:
            lower = steps[down - 1]
            if self._accepted_mean > (lower - 0.5 if lower else 0.5) + band.down_hysteresis:
                break
            down -= 1
        if down < place:
            self.steps = steps[down]
            return
        while place < len(steps) - 1 and self._accepted_mean > steps[place] - 0.5 + band.up_hysteresis:
            place += 1
        self.steps = steps[place]
