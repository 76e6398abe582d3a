"""How many drafted tokens are accepted: the text forms of the models.

Not here: the four ways people quote a rate (sim.acceptance.conversions), the models' mathematics (models), recorded
tapes (tape), a request's luck (luck), and fits to recordings (fit).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sim.acceptance.conversions import AcceptanceSummary, check_draft, iid_rate_for_length
from sim.acceptance.models import (
    Acceptance,
    BetaAcceptance,
    IidAcceptance,
    MarkovAcceptance,
    PerPositionAcceptance,
    check_rate,
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
    check_draft(num_speculative_tokens)
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


def markov_from_rates(first: float, after: float) -> MarkovAcceptance:
    """The chain whose state is the acceptance itself: `first` after a missed token, `after` after an accepted one.

    Most rounds start after a miss, so these are about the conditional rates of a draft, the first a little higher.
    """
    check_rate("markov first", first)
    check_rate("markov after", after)
    if not first <= after or (first, after) == (0.0, 1.0):
        raise ValueError(f"acceptance: markov:{first!r},{after!r} wants FIRST <= AFTER, and not 0,1: n-gram hits cling")
    return MarkovAcceptance(1.0, 0.0, first, 1.0 - after)
