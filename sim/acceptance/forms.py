"""How many drafted tokens are accepted: the text forms of the models, and the four ways people quote a rate.

Not here: the models' mathematics (sim.acceptance.models), recorded tapes (sim.acceptance.tape), a request's luck
(sim.acceptance.luck), and fits to recordings (sim.acceptance.fit).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

from sim.acceptance.models import (
    MOST_DRAFT_TOKENS,
    Acceptance,
    BetaAcceptance,
    IidAcceptance,
    MarkovAcceptance,
    PerPositionAcceptance,
    check_rate,
    to_conditional,
)
from sim.acceptance.tape import TapeAcceptance, read_tapes
from sim.names import unknown

__all__ = [
    "FORMS",
    "Acceptance",
    "AcceptanceSummary",
    "BetaAcceptance",
    "IidAcceptance",
    "MarkovAcceptance",
    "PerPositionAcceptance",
    "TapeAcceptance",
    "iid_rate_for_length",
    "parse_acceptance",
]

FORMS = {
    "iid": "iid:0.7",
    "length": "length:2.5",
    "per-position": "per-position:.8,.6,.5",
    "beta": "beta:13,8",
    "markov": "markov:.13,.82 or markov:HIT_RATE,MISS_RATE,TO_HIT,TO_MISS[,FADE]",
    "tape": "tape:FILE or tape:FILE#FIELD",
}
"""Name of each model and how it is written."""
_BISECTIONS = 200
Build = Callable[[Sequence[float], int], Acceptance]
"""From the numbers after the colon and the draft length to a model; raises ValueError."""
_registered: dict[str, tuple[Build, str]] = {}


def register_acceptance(name: str, build: Build, form: str) -> None:
    """Make `NAME:numbers` known as an acceptance in this process; `form` says how it is written, such as `mine:.9,.6`.

    Raises ValueError for the name of a built-in one.

    >>> import lanesim
    >>> from sim.acceptance.models import IidAcceptance
    >>> lanesim.register_acceptance("coin", lambda values, draft_tokens: IidAcceptance(values[0]), "coin:.5")
    >>> lanesim.simulate(profile="cpu/tiny", policy="pd", num_prompts=2, acceptance="coin:.5").metrics["completed"]
    2
    """
    if name in FORMS:
        raise ValueError(f"acceptance {name!r} is built in: register under another name")
    _registered[name] = build, form


def parse_acceptance(spec: str, num_speculative_tokens: int) -> Acceptance:
    """The model that `spec` names, for drafts of `num_speculative_tokens` (only `length:` depends on it).

    `iid:A` one rate; `length:L` the iid rate with acceptance length L, bonus included; `per-position:R1,R2,..`
    conditional rates, the last repeating; `beta:A,B` a rate per request; `markov:FIRST,AFTER` the chance of a token
    after a missed one, and after an accepted one; `markov:HIT_RATE,MISS_RATE,TO_HIT,TO_MISS[,FADE]` two hidden
    states; `tape:FILE` recorded. Raises ValueError, one line.
    """
    _check_draft(num_speculative_tokens)
    name, colon, text = spec.partition(":")
    name, text = name.strip().lower(), text.strip()
    forms = FORMS | {own: form for own, (_, form) in _registered.items()}
    if name not in forms:
        raise ValueError(unknown("acceptance model", name, forms))
    if not colon or not text:
        raise ValueError(f"acceptance {spec!r}: nothing after {name!r}; write {forms[name]}")
    if name == "tape":
        return TapeAcceptance(read_tapes(text))
    values = _numbers(spec, forms[name], text)
    if name in _registered:
        return _registered[name][0](values, num_speculative_tokens)
    match name, len(values):
        case "iid", 1:
            return IidAcceptance(values[0])
        case "length", 1:
            return IidAcceptance(iid_rate_for_length(values[0], num_speculative_tokens))
        case "per-position", _:
            return PerPositionAcceptance(tuple(values))
        case "beta", 2:
            return BetaAcceptance(*values)
        case "markov", 2:
            return markov_from_rates(*values)
        case "markov", 4 | 5:
            return MarkovAcceptance(*values)
    raise ValueError(f"acceptance {spec!r}: got {len(values)} numbers; write {FORMS[name]}")


def _numbers(spec: str, form: str, text: str) -> list[float]:
    values = []
    for part in text.split(","):
        try:
            values.append(float(part))
        except ValueError:
            raise ValueError(f"acceptance {spec!r}: {part.strip()!r} is not a number; write {form}") from None
    return values


def _check_draft(num_speculative_tokens: int) -> None:
    if not 1 <= num_speculative_tokens <= MOST_DRAFT_TOKENS:
        raise ValueError(f"num_speculative_tokens={num_speculative_tokens!r} must be in 1..{MOST_DRAFT_TOKENS}")


def _check_length(acceptance_length: float, num_speculative_tokens: int) -> None:
    _check_draft(num_speculative_tokens)
    most = num_speculative_tokens + 1
    if not (isfinite(acceptance_length) and 1.0 <= acceptance_length <= most):
        raise ValueError(
            f"acceptance length {acceptance_length!r} must be from 1 to {most} "
            f"(num_speculative_tokens={num_speculative_tokens}, and the target's own token)"
        )


def markov_from_rates(first: float, after: float) -> MarkovAcceptance:
    """The chain whose state is the acceptance itself: `first` after a missed token, `after` after an accepted one.

    Most rounds start after a miss, so these are about the conditional rates of a draft, the first a little higher.
    """
    check_rate("markov first", first)
    check_rate("markov after", after)
    if not first <= after or (first, after) == (0.0, 1.0):
        raise ValueError(f"acceptance: markov:{first!r},{after!r} wants FIRST <= AFTER, and not 0,1: n-gram hits cling")
    return MarkovAcceptance(1.0, 0.0, first, 1.0 - after)


def iid_rate_for_length(acceptance_length: float, num_speculative_tokens: int) -> float:
    """The rate a with (1 - a^(k+1)) / (1 - a) = acceptance_length (Leviathan et al. 2023, eq. 1), by bisection.

    Raises ValueError outside 1..k+1.
    """
    _check_length(acceptance_length, num_speculative_tokens)
    most = num_speculative_tokens + 1
    low, high = 0.0, 1.0
    if acceptance_length in (1.0, most):
        return low if acceptance_length == 1.0 else high
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        if sum(middle**j for j in range(most)) < acceptance_length:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceSummary:
    """One acceptance at one draft length, in every form it is quoted in. Stored as vLLM's unconditional rates."""

    unconditional_rates: tuple[float, ...]
    """[k] share of rounds that accept at least j + 1 tokens; never rising."""

    def __post_init__(self) -> None:
        _check_draft(len(self.unconditional_rates))
        before = 1.0
        for place, rate in enumerate(self.unconditional_rates, start=1):
            check_rate(f"unconditional rate {place}", rate)
            if rate > before:
                raise ValueError(
                    f"acceptance: unconditional rate {place}={rate!r} must not be above the one before, {before!r}; "
                    "are these conditional rates (per-position:)?"
                )
            before = rate

    @property
    def num_speculative_tokens(self) -> int:
        return len(self.unconditional_rates)

    @property
    def acceptance_length(self) -> float:
        """Tokens per verify round, bonus included."""
        return 1.0 + sum(self.unconditional_rates)

    @property
    def accepted_rate(self) -> float:
        """Accepted / drafted tokens."""
        return sum(self.unconditional_rates) / len(self.unconditional_rates)

    @property
    def conditional_rates(self) -> tuple[float, ...]:
        """[k] chance of token j given that all before it were accepted; 0 where that never happens."""
        return to_conditional(self.unconditional_rates)

    @property
    def model(self) -> PerPositionAcceptance:
        """The per-position model with these rates."""
        return PerPositionAcceptance(self.conditional_rates)

    @classmethod
    def of(cls, acceptance: Acceptance, num_speculative_tokens: int) -> AcceptanceSummary:
        return cls(unconditional_rates=acceptance.unconditional_rates(num_speculative_tokens))

    @classmethod
    def from_conditional(cls, rates: Sequence[float]) -> AcceptanceSummary:
        return cls.of(PerPositionAcceptance(tuple(rates)), len(rates))

    @classmethod
    def from_length(cls, acceptance_length: float, num_speculative_tokens: int) -> AcceptanceSummary:
        """The iid acceptance of this length."""
        return cls.of(
            IidAcceptance(iid_rate_for_length(acceptance_length, num_speculative_tokens)), num_speculative_tokens
        )

    @classmethod
    def from_accepted_rate(cls, accepted_rate: float, num_speculative_tokens: int) -> AcceptanceSummary:
        """The iid acceptance with this accepted / drafted rate."""
        check_rate("accepted rate", accepted_rate)
        return cls.from_length(1.0 + accepted_rate * num_speculative_tokens, num_speculative_tokens)

    @classmethod
    def from_vllm(
        cls,
        num_speculative_tokens: int,
        synthetic_acceptance_length: float | None = None,
        synthetic_acceptance_rates: Sequence[float] | None = None,
    ) -> AcceptanceSummary:
        """From vLLM's speculative config: one of the two, the rates being unconditional, one per drafted token.

        Like vLLM's synthetic sampler a length is spent on the earliest tokens (2.6 is rates 1, 0.6, 0), which is not
        the iid acceptance of that length: for that, `from_length`.
        """
        if (synthetic_acceptance_length is None) == (synthetic_acceptance_rates is None):
            raise ValueError("give one of synthetic_acceptance_length and synthetic_acceptance_rates")
        if synthetic_acceptance_length is not None:
            _check_length(synthetic_acceptance_length, num_speculative_tokens)
            left = synthetic_acceptance_length - 1.0
            return cls(unconditional_rates=tuple(min(1.0, max(0.0, left - j)) for j in range(num_speculative_tokens)))
        rates = tuple(synthetic_acceptance_rates or ())
        if len(rates) != num_speculative_tokens:
            raise ValueError(
                f"synthetic_acceptance_rates has {len(rates)} rates and must have "
                f"num_speculative_tokens={num_speculative_tokens}"
            )
        return cls(unconditional_rates=rates)

    def to_vllm(self) -> dict[str, float | list[float]]:
        """Both of vLLM's keys."""
        return {
            "synthetic_acceptance_length": self.acceptance_length,
            "synthetic_acceptance_rates": list(self.unconditional_rates),
        }
