"""Acceptance lengths that fitted models predict for k = 1..7, beside those of the recorded tapes.

Not here: the fits (sim.acceptance.fit).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from sim.acceptance.fit import fit_beta, fit_markov
from sim.acceptance.models import Acceptance, BetaAcceptance, MarkovAcceptance
from sim.acceptance.tape import TapeAcceptance, Tapes, read_tapes
from validation.accuracy.sections import Line, Row, Section, number, percent
from validation.tables import markdown_table, off_pct

FOLDER = "unlicensed_local_only/specdecode_bench"
DATASETS = ("gsm8k", "instructcoder", "sharegpt")
METHODS = ("eagle3", "ngram")
LENGTHS = range(1, 8)
BAR_PCT = 2.0
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
