"""The models of acceptance: which drafted tokens of a request the target accepts.

Every model answers two questions: the expected rates, in closed form, and the run lengths of given requests and
positions from keyed draws. Position p of a request means that p output tokens are out; drafted token j (0-based) from
there is decided by the draw of position p + j, so two rounds share no draw unless they cover the same position.
Not here: the text forms (sim.acceptance.forms), caching (sim.acceptance.draws).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import isfinite
from operator import mul

import numpy as np
from numpy.typing import NDArray

from sim.draws import Floats, Positions, thresholds

RunLengths = NDArray[np.uint8]
"""[positions] accepted drafted tokens from each position on, at most the depth requested."""
Flags = NDArray[np.bool_]

MAX_DRAFT_TOKENS = 126
"""Longest draft: run lengths and accepted counts are signed bytes."""
_ACCEPT, _REQUEST_ALPHA, _STATE, _FIRST_STATE = range(4)
"""Purposes of the keyed draws."""
_LOOK_BACK = 64
"""Positions looked back for a chain's last reset at first; doubled until every request has one."""


def check_rate(name: str, value: float) -> None:
    """Raise ValueError unless `value` is a number in [0, 1]."""
    if not (isfinite(value) and 0.0 <= value <= 1.0):
        raise ValueError(f"acceptance: {name}={value!r} must be a number from 0 to 1")


def to_conditional(unconditional_rates: tuple[float, ...]) -> tuple[float, ...]:
    """[k] chance of each token given that all before it were accepted; 0 where that never happens."""
    return tuple(rate / before if before else 0.0 for before, rate in pairwise((1.0, *unconditional_rates)))


class Acceptance(ABC):
    """Base of every model. Rates are over the rounds of a long run at a fixed draft length k.

    >>> import lanesim
    >>> class Coin(lanesim.Acceptance):
    ...     def unconditional_rates(self, num_speculative_tokens):
    ...         return tuple(0.5**j for j in range(1, num_speculative_tokens + 1))
    ...     def run_lengths(self, window, depth):
    ...         return lanesim.run_lengths(window.draws(0) < lanesim.thresholds(0.5), depth)
    >>> Coin().conditional_rates(3), Coin().expected_length(3)
    ((0.5, 0.5, 0.5), 1.875)
    """

    __slots__ = ()

    @abstractmethod
    def unconditional_rates(self, num_speculative_tokens: int) -> tuple[float, ...]:
        """[k] share of rounds in which at least j + 1 drafted tokens are accepted (vLLM's per-position rate)."""

    @abstractmethod
    def run_lengths(self, window: Positions, depth: int) -> RunLengths:
        """[positions] accepted tokens of a draft of `depth` from each position of `window`.

        The last `depth` positions of every request have no random numbers beyond them and are not meaningful.
        """

    def conditional_rates(self, num_speculative_tokens: int) -> tuple[float, ...]:
        """[k] chance that drafted token j is accepted where all before it were. It is 0 where that never happens."""
        return to_conditional(self.unconditional_rates(num_speculative_tokens))

    def expected_length(self, num_speculative_tokens: int) -> float:
        """Acceptance length: tokens per round, the target's token included."""
        return 1.0 + sum(self.unconditional_rates(num_speculative_tokens))


def run_lengths(accepts: Flags | list[Flags], depth: int) -> RunLengths:
    """Run lengths from `accepts` [positions], or one such array for each position in the draft: whether the random
    number of a position accepts there. At most `depth` long.

    >>> import numpy as np
    >>> run_lengths(np.array([True, True, False, True]), 2).tolist()
    [2, 1, 0, 1]
    """
    if not isinstance(accepts, list):
        accepts = [accepts]
    if not accepts or any(getattr(each, "dtype", None) != np.bool_ for each in accepts):
        raise ValueError("run_lengths needs an array of booleans [positions], or a list of such arrays")
    num_positions = len(accepts[0])
    lengths = accepts[0].view(np.uint8).copy()
    still = accepts[0].copy()
    for j in range(1, min(depth, num_positions)):
        still[num_positions - j :] = False
        still[: num_positions - j] &= accepts[min(j, len(accepts) - 1)][j:]
        lengths += still.view(np.uint8)
    return lengths


@dataclass(frozen=True, slots=True)
class IidAcceptance(Acceptance):
    """Every drafted token is accepted with chance `alpha`, whatever happened before."""

    alpha: float

    def __post_init__(self) -> None:
        check_rate("iid rate", self.alpha)

    def unconditional_rates(self, num_speculative_tokens: int) -> tuple[float, ...]:
        """alpha^1 .. alpha^k; their sum + 1 is (1 - alpha^(k+1)) / (1 - alpha) (Leviathan et al. 2023, eq. 1)."""
        return tuple(self.alpha**j for j in range(1, num_speculative_tokens + 1))

    def run_lengths(self, window: Positions, depth: int) -> RunLengths:
        return run_lengths([window.draws(_ACCEPT) < thresholds(self.alpha)], depth)


@dataclass(frozen=True, slots=True)
class PerPositionAcceptance(Acceptance):
    """Conditional rates by position in the draft; beyond the list the last one repeats.

    >>> model = PerPositionAcceptance((0.75, 0.5))
    >>> model.unconditional_rates(4), model.conditional_rates(4), model.expected_length(4)
    ((0.75, 0.375, 0.1875, 0.09375), (0.75, 0.5, 0.5, 0.5), 2.40625)
    """

    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.rates:
            raise ValueError("acceptance: per-position needs at least one rate")
        for position, rate in enumerate(self.rates):
            check_rate(f"per-position rate {position + 1}", rate)

    def unconditional_rates(self, num_speculative_tokens: int) -> tuple[float, ...]:
        rates = [self.rates[min(j, len(self.rates) - 1)] for j in range(num_speculative_tokens)]
        return tuple(accumulate(rates, mul))

    def run_lengths(self, window: Positions, depth: int) -> RunLengths:
        draws, limits = window.draws(_ACCEPT), thresholds(np.array(self.rates[:depth]))
        return run_lengths([draws < limit for limit in limits], depth)


@dataclass(frozen=True, slots=True)
class BetaAcceptance(Acceptance):
    """An iid rate per request, drawn from Beta(a, b)."""

    a: float
    b: float
    _table: tuple[Floats, Floats, Floats] = field(init=False, repr=False, compare=False)
    """[nodes] rate, its weight, and the distribution function; trapezoids over the logit, where all is smooth."""

    def __post_init__(self) -> None:
        for name, value in (("a", self.a), ("b", self.b)):
            if not (isfinite(value) and 1e-2 <= value <= 1e6):
                raise ValueError(f"acceptance: beta {name}={value!r} must be a number from 0.01 to 1e6")
        object.__setattr__(self, "_table", _beta_table(self.a, self.b))

    def unconditional_rates(self, num_speculative_tokens: int) -> tuple[float, ...]:
        """Requests of equal output run 1 / E[tokens | alpha] rounds per token, so the unlucky ones weigh more."""
        rates, weights, _ = self._table
        powers = rates[:, None] ** np.arange(num_speculative_tokens + 1)
        num_rounds = weights / powers.sum(axis=1)
        return tuple((num_rounds @ powers[:, 1:] / num_rounds.sum()).tolist())

    def request_rates(self, window: Positions) -> Floats:
        """[requests] the rate of each request."""
        rates, _, distribution = self._table
        return np.interp(window.per_request(_REQUEST_ALPHA), distribution, rates)

    def run_lengths(self, window: Positions, depth: int) -> RunLengths:
        per_position = np.repeat(thresholds(self.request_rates(window)), window.widths)
        return run_lengths([window.draws(_ACCEPT) < per_position], depth)


def _beta_table(a: float, b: float) -> tuple[Floats, Floats, Floats]:
    """Nodes in x of Beta(a, b): with t = logit x the density is x^a (1 - x)^b dt, up to a constant."""
    half_width = 40.0 / min(a, b, 1.0) if min(a, b) < 40.0 else 12.0 * (1.0 / a + 1.0 / b) ** 0.5
    logit = np.log(a / b) + np.linspace(-half_width, half_width, 20_001)
    log_x = -np.logaddexp(0.0, -logit)
    log_weight = a * log_x - b * np.logaddexp(0.0, logit)
    log_weight -= log_weight.max()
    kept = log_weight > -40.0
    low, high = logit[kept][[0, -1]]
    logit = np.linspace(low, high, 4_001)
    log_x = -np.logaddexp(0.0, -logit)
    log_weight = a * log_x - b * np.logaddexp(0.0, logit)
    weights = np.exp(log_weight - log_weight.max())
    weights /= weights.sum()
    return np.exp(log_x), weights, np.cumsum(weights) - 0.5 * weights


@dataclass(frozen=True, slots=True)
class MarkovAcceptance(Acceptance):
    """Two hidden states along the output: `hit` accepts a drafted token with `hit_rate`, `miss` with `miss_rate`.

    After every output token a miss turns into a hit with chance `to_hit`, a hit into a miss with `to_miss`; position 0
    is stationary. Drafted token j (0-based) is accepted at fade**j times its state's rate: drafts get worse with depth.
    n-gram drafts are rare hits that last, without fade; EAGLE heads fade and cling to their draws only a little.
    to_hit + to_miss <= 1: states cling, they do not alternate.
    """

    hit_rate: float
    miss_rate: float
    to_hit: float
    to_miss: float
    fade: float = 1.0

    def __post_init__(self) -> None:
        for name in ("hit_rate", "miss_rate", "to_hit", "to_miss", "fade"):
            check_rate(f"markov {name}", getattr(self, name))
        if not 0.0 < self.to_hit + self.to_miss <= 1.0:
            raise ValueError(
                f"acceptance: markov to_hit={self.to_hit!r} + to_miss={self.to_miss!r} must be above 0 and at most 1"
            )

    @property
    def hit_share(self) -> float:
        """Share of output positions in the hit state."""
        return self.to_hit / (self.to_hit + self.to_miss)

    def unconditional_rates(self, num_speculative_tokens: int) -> tuple[float, ...]:
        """Rates over rounds, with states as rows (hit, miss), A_j = accept token j and move on, P = move on: the
        state at the start of a round is stationary under sum_j A_0..A_(j-1) (P - A_j) + A_0..A_(k-1) P, where the last
        term is the target's token after full acceptance."""
        move = np.array([[1.0 - self.to_miss, self.to_miss], [self.to_hit, 1.0 - self.to_hit]])
        accept = np.diag([self.hit_rate, self.miss_rate]) @ move
        reached = [np.eye(2)]
        to_next = np.zeros((2, 2))
        for j in range(num_speculative_tokens):
            to_next += reached[j] @ (move - accept * self.fade**j)
            reached.append(reached[j] @ accept * self.fade**j)
        to_next += reached[-1] @ move
        to_miss, to_hit = to_next[0, 1], to_next[1, 0]
        share = to_hit / (to_hit + to_miss) if to_hit + to_miss > 0.0 else self.hit_share
        start = np.array([share, 1.0 - share])
        return tuple(float(start @ accepted.sum(axis=1)) for accepted in reached[1:])

    def run_lengths(self, window: Positions, depth: int) -> RunLengths:
        draws, states = window.draws(_ACCEPT), self.states(window)
        rates = np.array((self.miss_rate, self.hit_rate))
        num_kinds = 1 if self.fade == 1.0 else depth
        return run_lengths([draws < thresholds(rates * self.fade**j)[states] for j in range(num_kinds)], depth)

    def states(self, window: Positions) -> RunLengths:
        """[positions] 1 in hit, 0 in miss. A draw below to_hit means hit and one from 1 - to_miss on miss, from either
        state; others keep it. So a state is what the newest such draw says."""
        to_hit, stay_hit = thresholds(np.array([self.to_hit, 1.0 - self.to_miss]))
        back = 0 if window.first == 0 else _LOOK_BACK
        while True:
            begin = max(0, window.first - back)
            longer = window._replace(first=begin, widths=window.widths + (window.first - begin))
            offsets = longer.offsets()
            draws = longer.draws(_STATE)
            is_hit = draws < to_hit
            is_reset = is_hit | (draws >= stay_hit)
            if begin == 0:
                is_reset[offsets] = True
                is_hit[offsets] = longer.per_request(_FIRST_STATE) < self.hit_share
            newest = np.maximum.accumulate(np.where(is_reset, np.arange(len(draws)), -1))
            skipped = window.first - begin
            if begin == 0 or bool((newest[offsets + skipped] >= offsets).all()):
                break
            back *= 2
        state: RunLengths = is_hit[newest].view(np.uint8)
        if skipped == 0:
            return state
        wanted = np.ones(len(draws), dtype=np.bool_)
        for offset in offsets:
            wanted[offset : offset + skipped] = False
        rest: RunLengths = state[wanted]
        return rest
