"""Acceptance models fitted to recorded tapes: the lengths that they predict for k = 1..7, beside those of the tapes.

Not here: tapes and models (sim.acceptance).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum, lgamma
from pathlib import Path

import numpy as np

from sim.acceptance.models import Acceptance, BetaAcceptance, MarkovAcceptance, RunLengths
from sim.acceptance.tape import TapeAcceptance, Tapes, read_tapes, replay
from sim.draws import Floats
from validation.accuracy.sections import Line, Row, Section, number, percent
from validation.tables import markdown_table, off_pct

FOLDER = "unlicensed_local_only/specdecode_bench"
DATASETS = ("gsm8k", "instructcoder", "sharegpt")
METHODS = ("eagle3", "ngram")
LENGTHS = range(1, 8)
BAR_PCT = 2.0


Tape = Sequence[int] | RunLengths
FIT_DRAFT_TOKENS = 7
"""Longest draft that a fit looks at."""
_BETA_LEAST, _BETA_MOST = 0.02, 1e5
_SLOWEST = 1e-3
"""Smallest switching chance tried: states of a thousand tokens; slower ones are a request's own (fit_beta)."""
_MARKOV_STARTS = (
    (0.95, 0.05, 0.02, 0.05, 0.999),
    (0.90, 0.50, 0.10, 0.10, 0.97),
    (0.80, 0.30, 0.30, 0.30, 0.95),
    (0.99, 0.50, 0.01, 0.02, 0.97),
)
"""Hit rate, miss rate, to_hit, share of to_miss, fade."""


def _counts(tapes: Sequence[Tape], num_speculative_tokens: int) -> tuple[Floats, Floats]:
    """[tapes] accepted and [tapes] rejected drafted tokens that were reached, replaying each tape once."""
    rounds = [replay(tape, num_speculative_tokens) for tape in tapes]
    accepted = np.array([sum(counts) for counts in rounds], dtype=np.float64)
    rejected = np.array(
        [sum(count < num_speculative_tokens for count in counts) for counts in rounds], dtype=np.float64
    )
    if accepted.sum() + rejected.sum() == 0.0:
        raise ValueError("acceptance fit: the tapes hold no round; want at least one of two or more positions")
    return accepted, rejected


def fit_beta(tapes: Sequence[Tape], num_speculative_tokens: int = FIT_DRAFT_TOKENS) -> BetaAcceptance:
    """The spread a + b by maximum likelihood, then the mean that gives the recorded acceptance lengths.

    The likelihood is beta-binomial over requests weighted by their output, since the model is used with outputs that
    know nothing of draws; tokens count as independent given the request's rate, so autocorrelation shows up as spread.
    The mean makes the relative errors of the lengths at k = 1..num_speculative_tokens sum to zero.
    """
    from scipy.optimize import brentq, minimize

    accepted, rejected = _counts(tapes, num_speculative_tokens)
    weights = np.array([len(tape) for tape in tapes], dtype=np.float64)
    triples = list(zip((weights / weights.mean()).tolist(), accepted.tolist(), rejected.tolist(), strict=True))

    def loss(parameters: Floats) -> float:
        a, b = _beta(parameters)
        constant = lgamma(a + b) - lgamma(a) - lgamma(b)
        return -fsum(
            weight * (constant + lgamma(a + yes) + lgamma(b + no) - lgamma(a + b + yes + no))
            for weight, yes, no in triples
        )

    best = minimize(loss, np.ones(2), method="Nelder-Mead", options={"xatol": 1e-5, "fatol": 1e-8, "maxiter": 2000})
    spread = sum(_beta(best.x))
    lengths = range(1, num_speculative_tokens + 1)
    recorded = _recorded(tapes)
    wanted = [recorded.expected_length(k) for k in lengths]

    def excess(mean: float) -> float:
        model = BetaAcceptance(mean * spread, (1.0 - mean) * spread)
        return sum(model.expected_length(k) / length - 1.0 for k, length in zip(lengths, wanted, strict=True))

    edge = _BETA_LEAST / spread
    if excess(edge) >= 0.0 or excess(1.0 - edge) <= 0.0:
        raise ValueError("acceptance fit: the tapes accept everything or nothing; iid:1 or iid:0 says that")
    mean = float(brentq(excess, edge, 1.0 - edge, xtol=1e-9))
    return BetaAcceptance(mean * spread, (1.0 - mean) * spread)


def _beta(logarithms: Floats) -> tuple[float, float]:
    a, b = np.exp(np.clip(logarithms, np.log(_BETA_LEAST), np.log(_BETA_MOST))).tolist()
    return a, b


def _recorded(tapes: Sequence[Tape]) -> TapeAcceptance:
    return TapeAcceptance(tuple(np.asarray(tape, dtype=np.uint8) for tape in tapes))


def fit_markov(tapes: Sequence[Tape], num_speculative_tokens: int = FIT_DRAFT_TOKENS) -> MarkovAcceptance:
    """Least squares on the rates that all draft lengths 1..k together show when the tapes are replayed.

    These are the unconditional rates by place for every length: rounds start where others ended, so how they change
    with the length tells how long hits last.
    """
    from scipy.optimize import least_squares

    lengths = range(1, num_speculative_tokens + 1)
    recorded = _recorded(tapes)
    wanted = np.concatenate([recorded.unconditional_rates(k) for k in lengths])

    def misfit(parameters: Floats) -> Floats:
        model = _markov(parameters)
        shown: Floats = np.concatenate([model.unconditional_rates(k) for k in lengths]) - wanted
        return shown

    bounds = ([0.0, 0.0, _SLOWEST, _SLOWEST, 0.0], [1.0, 1.0, 1.0, 1.0, 1.0])
    fits = [least_squares(misfit, np.array(start), bounds=bounds) for start in _MARKOV_STARTS]
    best: Floats = min(fits, key=lambda fit: float(fit.cost)).x
    return _markov(best)


def _markov(parameters: Floats) -> MarkovAcceptance:
    """Rates as they are; `to_hit`, and `to_miss` as a share of what to_hit leaves below 1; fade."""
    hit_rate, miss_rate, to_hit, share, fade = np.clip(parameters, 0.0, 1.0).tolist()
    return MarkovAcceptance(hit_rate, miss_rate, to_hit, share * (1.0 - to_hit), fade)


FITS: dict[str, Callable[[Tapes], Acceptance]] = {"beta": fit_beta, "markov": fit_markov}


def acceptance_section(data: Path) -> Section:
    lines: list[Line] = []
    rows: list[list[str]] = []
    matrix: list[Row] = []
    for method in METHODS:
        for dataset in DATASETS:
            tapes = read_tapes(f"{data / FOLDER / f'acc_{dataset}.jsonl'}#acc_{method}")
            recorded = TapeAcceptance(tapes)
            lengths = [recorded.expected_length(k) for k in LENGTHS]
            rows.append([f"{dataset} {method}", "recorded length", *(number(length) for length in lengths), ""])
            models = {name: fit(tapes) for name, fit in FITS.items()}
            found = {name: errors_pct(model, lengths) for name, model in models.items()}
            worst = {name: max(errors, key=abs) for name, errors in found.items()}
            for name, model in models.items():
                rows.append([f"{dataset} {method}", spec(model), *map(percent, [*found[name], worst[name]])])
            best = min(worst, key=lambda name: abs(worst[name]))
            what = f"acceptance length, {dataset} {method}, `{best}`: largest error over k = 1..7"
            lines.append(Line(what=what, error_pct=worst[best], bar_pct=BAR_PCT))
            matrix += [
                Row(
                    gpu="–",
                    engine="a model fitted on each tape",
                    model="llama-3.1-8b",
                    method=method,
                    k=k,
                    workload=dataset,
                    together=f"{LENGTHS[0]}..{LENGTHS[-1]}",
                    errors_pct={"acceptance length": error_pct},
                )
                for k, error_pct in zip(LENGTHS, found[best], strict=True)
            ]
    headings = ["tape", "model", *(f"k={k}" for k in LENGTHS), "largest"]
    return Section(
        title="Acceptance at k = 1..7",
        about=[
            "recorded tapes: SpecDecode-Bench/simulator@2fdccbd61b62 (no licence; figures quoted), "
            "Llama-3.1-8B-Instruct with an EAGLE-3 head and with n-grams",
            "fitted: both models on each tape, replayed at every k; of the two the better one is judged",
        ],
        lines=lines,
        tail=markdown_table(headings, rows, left=2),
        rows=matrix,
    )


def errors_pct(model: Acceptance, lengths: Sequence[float]) -> list[float]:
    """Errors of the model's acceptance length at k = 1, 2, .. against the recorded `lengths`, percent."""
    return [off_pct(model.expected_length(k), length) for k, length in enumerate(lengths, start=1)]


def spec(model: Acceptance) -> str:
    """The model in --acceptance's notation, four digits."""
    if isinstance(model, BetaAcceptance):
        return f"`beta:{model.a:.4g},{model.b:.4g}`"
    assert isinstance(model, MarkovAcceptance)
    values = (model.hit_rate, model.miss_rate, model.to_hit, model.to_miss, model.fade)
    return f"`markov:{','.join(f'{value:.4g}' for value in values)}`"
