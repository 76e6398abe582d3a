"""The text forms of acceptance: what people write becomes something quoted, or a model at one draft length.

Not here: what a quote means at a draft length (quoted), models and tapes, fits to recordings (validation.judge).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sim.acceptance.models import (
    MAX_DRAFT_TOKENS,
    Acceptance,
    BetaAcceptance,
    IidAcceptance,
    MarkovAcceptance,
    PerPositionAcceptance,
    RunLengths,
    check_rate,
)
from sim.acceptance.pairs import PROMPTS
from sim.acceptance.quoted import (
    AtEveryLength,
    LengthInUse,
    MeasuredLength,
    MeasuredRates,
    Quoted,
    QuotedModel,
    QuotedTape,
    Synthetic,
    check_draft,
)
from sim.acceptance.spread import SPREADS, AssumedSpread, QuotedSpread
from sim.acceptance.tape import TapeAcceptance, read_tapes
from sim.draws import Positions
from sim.names import unknown
from sim.plugins import PluginError, checked_name, checked_text, installed, loaded, naming_plugin, shown

FORMS = {
    "iid": "iid:0.7",
    "length": "length:2.6@3 (acceptance length, bonus included, at draft length 3)",
    "vllm": "vllm:.74,.49,.37 (unconditional rates, as vLLM logs them; ~0 behind them: requests are alike)",
    "per-position": "per-position:.74,.66,.76 (conditional rates)",
    "beta": "beta:13,8",
    "markov": "markov:.13,.82 or markov:HIT_RATE,MISS_RATE,TO_HIT,TO_MISS[,FADE]",
    "pinned": "pinned:3.5@5 (length at draft length 5 that a server pins, such as SGLANG_SIMULATE_ACC_LEN)",
    "synthetic": "synthetic:2.6 or synthetic:.74,.49,.37 (length, or rates, of vLLM's synthetic sampler)",
    "tape": "tape:FILE or tape:FILE#FIELD",
}
"""Name of each form and how it is written."""
SPREADABLE, OF_REQUESTS = ("iid", "length", "vllm", "per-position"), ("length", "vllm")
"""Forms that take a spread of requests, and those that have one where none is given: they were measured over
requests; the others say themselves that all are alike."""
SPREAD_FORM = "vllm:.54,.33,.21~1.1 (standard deviation of requests on the logit scale), ~.9..1.2, ~natural or ~random"
Build = Callable[[Sequence[float], int], Acceptance]
"""Makes a model of the numbers after the colon and the draft length; raises ValueError."""
BARE = re.compile(r"\d+(\.\d+)?")
GROUP = "lanesim.acceptances"
"""Entry points of installed packages."""
SLACK = 1e-9
"""Excess over 1, or over the rate before it, that rounding may give a rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceForm:
    """`NAME:numbers` as an acceptance: `build` makes the model, `form` says how it is written, such as `mine:.9,.6`.

    A package that names one in the entry-point group `lanesim.acceptances` adds it to every command.

    >>> import lanesim
    >>> from sim.acceptance.models import IidAcceptance
    >>> def build(values, draft_tokens):
    ...     return IidAcceptance(values[0])
    >>> COIN = lanesim.AcceptanceForm(name="coin", build=build, form="coin:.5")
    """

    name: str
    build: Build
    form: str

    def __post_init__(self) -> None:
        checked_name("acceptance", self.name)
        what = f"acceptance {self.name!r}"
        if self.name in FORMS:
            raise ValueError(f"{what} is built in. Register under another name")
        if self.name != self.name.lower():
            raise PluginError(f"{what} must be in lower case, such as {self.name.lower()!r}")
        if not callable(self.build):
            raise PluginError(f"{what}: build={shown(self.build)} must be a function of numbers and draft length")
        checked_text(f"{what}: form", self.form)


_registered: dict[str, AcceptanceForm] = {}


def register_acceptance(name: str, build: Build, form: str) -> None:
    """Add an AcceptanceForm to this process, for a caller's scenarios. A later one of a name replaces it. To have it
    everywhere, name it in the entry-point group `lanesim.acceptances` of a package instead. Each answer of its model is
    checked (CheckedAcceptance). Raises ValueError for the name of a built-in one.

    >>> import lanesim
    >>> from sim.acceptance.models import IidAcceptance
    >>> lanesim.register_acceptance("fair", lambda values, draft_tokens: IidAcceptance(values[0]), "fair:.5")
    >>> lanesim.simulate(profile="cpu/tiny", policy="pd", num_prompts=2, acceptance="fair:.5").metrics["completed"]
    2
    """
    _registered[name] = AcceptanceForm(name=name, build=build, form=form)


def registered() -> list[tuple[str, Build, str]]:
    """Forms that `register_acceptance` made known in this process: name, build, form."""
    return [(each.name, each.build, each.form) for each in _registered.values()]


def _form_of(name: str) -> AcceptanceForm:
    """The form that is registered or installed under a name. Raises ValueError naming the nearest one."""
    if name in _registered:
        return _registered[name]
    entries = installed(GROUP)
    if name in PROMPTS and name not in entries:
        raise ValueError(f"acceptance {name!r} takes no numbers. Leave out what follows it")
    if name not in entries:
        raise ValueError(unknown("acceptance model", name, [*PROMPTS, *FORMS, *_registered, *entries]))
    return loaded(f"acceptance {name!r}", entries[name], AcceptanceForm)


@dataclass(frozen=True, slots=True)
class QuotedForm(AtEveryLength):
    """A form that somebody registered: its function makes the model of each draft length."""

    name: str
    build: Build
    values: tuple[float, ...]

    def model(self, k: int) -> Acceptance:
        check_draft(k)
        what = f"acceptance {self.name!r}"
        with naming_plugin(what):
            model = self.build(self.values, k)
        if not isinstance(model, Acceptance):
            raise PluginError(f"{what} gave {shown(model)}. It must give a lanesim.Acceptance")
        if type(model).__module__.startswith("sim.acceptance."):
            return model
        checked = CheckedAcceptance(model, what)
        checked.unconditional_rates(k)
        return checked


@dataclass(frozen=True, slots=True)
class CheckedAcceptance(Acceptance):
    """`model`, whose answers are refused where they are no answers; `what` begins messages. Other rates and the length
    follow from its unconditional rates."""

    model: Acceptance
    what: str

    def unconditional_rates(self, num_speculative_tokens: int) -> tuple[float, ...]:
        what = f"{self.what}: unconditional_rates"
        with naming_plugin(what):
            given = self.model.unconditional_rates(num_speculative_tokens)
        with naming_plugin(f"{what} gave {shown(given)}"):
            rates = tuple(float(rate) for rate in given)
        if len(rates) != num_speculative_tokens or not all(0.0 <= rate <= 1.0 + SLACK for rate in rates):
            raise PluginError(f"{what} gave {shown(given)}. It must give {num_speculative_tokens} numbers from 0 to 1")
        if any(rate > before + SLACK for before, rate in pairwise(rates)):
            raise PluginError(f"{what} gave {shown(given)}. They cannot rise")
        return rates

    def run_lengths(self, window: Positions, depth: int) -> RunLengths:
        what = f"{self.what}: run_lengths"
        with naming_plugin(what):
            lengths = self.model.run_lengths(window, depth)
        if not isinstance(lengths, np.ndarray) or lengths.dtype.kind not in "iu":
            kind = lengths.dtype if isinstance(lengths, np.ndarray) else type(lengths).__name__
            raise PluginError(f"{what} gave {kind}. It must give an array of whole numbers [positions]")
        num_positions = int(window.widths.sum())
        if lengths.shape != (num_positions,):
            raise PluginError(f"{what} gave an array of shape {lengths.shape}. It must be ({num_positions},)")
        least, most = int(lengths.min()), int(lengths.max())
        if least < 0 or most > depth:
            raise PluginError(f"{what} gave lengths from {least} to {most}. They must be 0 to {depth}")
        return lengths.astype(np.uint8, copy=False)


def parse_quoted(text: str) -> Quoted:
    """The acceptance that `text` quotes, to be had at any draft length.

    docs/acceptance.md explains each of FORMS. After the numbers of SPREADABLE an ending says how requests differ.
    `~S` is a standard deviation of S on the logit scale, and `~LOW..HIGH` a random one between these. With `~0` they
    are alike. `~natural` and `~random` are what they do on such prompts, the default of lengths and of vLLM's rates.
    Raises ValueError, one line.

    >>> import lanesim
    >>> quoted = lanesim.parse_quoted("vllm:.74,.49,.37")
    >>> [round(rate, 2) for rate in quoted.model(3).conditional_rates(3)]
    [0.74, 0.66, 0.76]
    >>> round(quoted.model(3).expected_length(3), 2), quoted.measured_k
    (2.6, 3)
    """
    if not isinstance(text, str):
        raise PluginError(f"acceptance {shown(text)} must be a text such as iid:0.7")
    text = in_full(text)
    name, colon, rest = text.partition(":")
    name, rest = name.strip().lower(), rest.strip()
    if not colon and name in PROMPTS:
        raise ValueError(f"acceptance {text!r} is known of a profile's own drafter alone. Write {FORMS['length']}")
    registered = None if name in FORMS else _form_of(name)
    form = FORMS[name] if registered is None else registered.form
    if not colon or not rest:
        raise ValueError(f"acceptance {text!r}: nothing after {name!r}. Write {form}")
    if name == "tape":
        return QuotedTape(TapeAcceptance(read_tapes(rest)))
    rest, tilde, spread = rest.partition("~")
    if tilde and name not in SPREADABLE:
        raise ValueError(f"acceptance {text!r}: only {', '.join(SPREADABLE)} take a spread of requests, ~{spread}")
    if name in ("length", "pinned"):
        alike = _length(text, name, rest)
    else:
        values = _numbers(text, form, rest)
        if registered is not None:
            return QuotedForm(name, registered.build, tuple(values))
        try:
            alike = _built_in(text, name, values)
        except ValueError as error:
            raise ValueError(f"{error}. Write {_nearest(name, values)}") from None
    if not tilde:
        return AssumedSpread(alike) if name in OF_REQUESTS else alike
    if spread in SPREADS:
        return AssumedSpread(alike, SPREADS[spread])
    (low, *high) = (_numbers(text, SPREAD_FORM, part, most=1)[0] for part in spread.split("..", 1))
    if high:
        return AssumedSpread(alike, (low, high[0]))
    return QuotedSpread(alike, low) if low else alike


def in_full(text: str) -> str:
    """`iid:0.7` of 0.7, `length:2.6` of 2.6; any other text as it is."""
    if not BARE.fullmatch(text.strip()):
        return text
    return f"{'length' if float(text) >= 1.0 else 'iid'}:{text}"


def num_rates(text: str) -> int | None:
    """Rates by position in the draft that `text` lists; None where it is of another form.

    >>> num_rates("vllm:.54,.33,.21~1.1"), num_rates("iid:.7")
    (3, None)
    """
    name, _, rest = text.partition(":")
    return rest.count(",") + 1 if name.strip().lower() in ("vllm", "per-position") else None


def _built_in(text: str, name: str, values: list[float]) -> Quoted:
    match name, len(values):
        case "iid", 1:
            return QuotedModel(IidAcceptance(values[0]))
        case "vllm", _:
            return MeasuredRates(tuple(values))
        case "per-position", _:
            return QuotedModel(PerPositionAcceptance(tuple(values)), _remarks_on_conditional(values))
        case "synthetic", _:
            return Synthetic(tuple(values))
        case "beta", 2:
            return QuotedModel(BetaAcceptance(*values))
        case "markov", 2:
            return QuotedModel(markov_from_rates(*values))
        case "markov", 4 | 5:
            return QuotedModel(MarkovAcceptance(*values))
    raise ValueError(f"acceptance {text!r}: got {len(values)} numbers")


def _length(text: str, name: str, rest: str) -> Quoted:
    """`length:L`, `length:L@K` or `pinned:L@K`."""
    number, at, measured = rest.partition("@")
    (length,) = _numbers(text, FORMS[name], number, most=1)
    if not at and name == "length":
        return LengthInUse(length)
    if not measured.strip().isdecimal() or not 1 <= int(measured) <= MAX_DRAFT_TOKENS:
        raise ValueError(
            f"acceptance {text!r}: {measured.strip()!r} after @ must be the draft length that was measured, a whole "
            f"number in 1..{MAX_DRAFT_TOKENS}. Write {FORMS[name]}"
        )
    try:
        measured_length = MeasuredLength(length, int(measured))
    except ValueError as error:
        raise ValueError(f"{error}. Write {FORMS[name]}") from None
    return measured_length if name == "length" else Synthetic((length,), is_clamped=True)


def _nearest(name: str, values: list[float]) -> str:
    """Spelling of the form that was probably meant."""
    numbers = ",".join(f"{value:g}" for value in values)
    if name == "iid" and len(values) == 1 and values[0] > 1.0:
        return f"length:{numbers}@K if this is an acceptance length at draft length K"
    if name == "vllm" and all(0.0 <= value <= 1.0 for value in values):
        return f"per-position:{numbers} if these are conditional rates"
    return FORMS[name]


def _remarks_on_conditional(rates: list[float]) -> tuple[str, ...]:
    """Rates that fall at every position are as vLLM logs them, more often than not."""
    if len(rates) < 2 or any(rate >= before for before, rate in pairwise(rates)):
        return ()
    numbers = ",".join(f"{rate:g}" for rate in rates)
    return (f"per-position:{numbers} is read as conditional rates. If vLLM logged them, write vllm:{numbers}",)


def _numbers(spec: str, form: str, text: str, *, most: int | None = None) -> list[float]:
    values = []
    for part in text.split(","):
        try:
            values.append(float(part))
        except ValueError:
            raise ValueError(f"acceptance {spec!r}: {part.strip()!r} is not a number. Write {form}") from None
    if most is not None and len(values) > most:
        raise ValueError(f"acceptance {spec!r}: got {len(values)} numbers. Write {form}")
    return values


def markov_from_rates(first: float, after: float) -> MarkovAcceptance:
    """The chain whose state is the acceptance itself: `first` after a missed token, `after` after an accepted one. Most
    rounds start after a miss, so these are about the conditional rates of a draft."""
    check_rate("markov first", first)
    check_rate("markov after", after)
    if not first <= after or (first, after) == (0.0, 1.0):
        raise ValueError(f"acceptance markov:{first!r},{after!r} must have FIRST <= AFTER, and not be 0,1")
    return MarkovAcceptance(1.0, 0.0, first, 1.0 - after)
