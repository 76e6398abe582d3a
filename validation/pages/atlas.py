"""The writer of docs/atlas.csv: the best draft length of published pairs at each simulated load.

    python -m validation atlas [--only TEXT] [--draws 10] [--out docs/atlas.csv]

A pair is a target, a GPU, an engine and a drafter with published acceptance (atlas.yaml). `tune` answers each on a
profile of `lanesim plan`'s importer. The table is written after every pair. --only simulates the pairs whose label has
the text and leaves the other rows as they are. Not here: showing the table (docs/acceptance.md).
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Literal

import msgspec

from calibrate.catalogue.model_configs import source_of, with_formats
from calibrate.catalogue.published_tables import cache_folder, published_tables
from calibrate.importers.aiconfigurator.deployment import Deployment
from calibrate.importers.plan_candidates import imported
from sim.acceptance.forms import parse_quoted
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.drafters.registry import HEADS
from sim.files.json_values import convert
from sim.files.yaml_values import read_yaml
from sim.names import unknown
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.studies.evidence import MEASURED
from sim.studies.tune import Tuning, concurrencies_of, tune
from validation.tables import csv_rows, off_pct, write_csv

PAIRS = Path(__file__).with_name("atlas.yaml")
OUT = Path(__file__).parents[2] / "docs" / "atlas.csv"
WORKLOAD = {"input_len": 1024, "output_len": 128, "max_concurrency": 256}
LOADS = (1, 4, 8, 16, 32, 64, 128)
LENGTHS = {"eagle3": (0, 1, 2, 3, 5, 7), "mtp": (0, 1, 2, 3, 5)}
"""Draft lengths that are tried, by method. 0 keeps the drafter loaded."""
KEY = ("target", "GPUs", "engine", "drafter", "acceptance")


class Quote(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Published acceptance of a `drafter` on some `data`. It is None where the checkpoint drafts by itself."""

    acceptance: str
    data: str
    source: str
    date: str
    drafter: str | None = None


class AtlasPair(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A shipped `profile`, or a `gpu` with what the importer needs. `measured` has published speed-ups."""

    target: str
    engine: str
    method: Literal["eagle3", "mtp"]
    acceptance: str
    gpu: str | None = None
    profile: str | None = None
    like: str | None = None
    tp: int = 1
    ep: int | None = None
    weights: str | None = None
    measured: list[dict[str, float]] = []

    @property
    def label(self) -> str:
        return f"{self.target} on {self.gpu or self.profile}, {self.engine}, {self.acceptance}"


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    acceptances: dict[str, Quote]
    pairs: list[AtlasPair]


def read_pairs(path: Path) -> list[tuple[AtlasPair, Quote]]:
    """Raises ValueError, one line, for a file that is damaged and a pair that names nothing known."""
    file = convert(read_yaml(path, "pairs"), _File, f"pairs {str(path)!r}")
    for pair in file.pairs:
        if pair.acceptance not in file.acceptances:
            raise ValueError(unknown("acceptance", pair.acceptance, file.acceptances))
        if (pair.gpu is None) == (pair.profile is None):
            raise ValueError(f"gpu={pair.gpu!r} and profile={pair.profile!r} exclude each other")
        parse_quoted(file.acceptances[pair.acceptance].acceptance)
    return [(pair, file.acceptances[pair.acceptance]) for pair in file.pairs]


def profile_of(pair: AtlasPair) -> Profile:
    """Raises ValueError naming what cannot be priced."""
    if pair.gpu is None:
        return load(pair.profile or "")
    tables, source = published_tables()
    shape = source_of(pair.like or pair.target, plain=False).shape
    target, head = with_formats(shape, pair.weights, None), HEADS[pair.method](shape)
    deployment = Deployment(pair.tp, pair.ep, 1, pair.engine.partition("-")[0])
    made, failed = imported(tables, source, pair.gpu, target, head, [deployment], cache_folder("profiles"))
    if failed:
        raise ValueError(failed[0].why)
    return made[0].profile


def tuned(pair: AtlasPair, quote: Quote, profile: Profile, draws: int, workers: int | None) -> Tuning:
    keys = {"engine.name": pair.engine, "speculation.method": pair.method, "acceptance": quote.acceptance, **WORKLOAD}
    lengths = LENGTHS[pair.method]
    scenario = Scenario.of(profile=profile.name, policy="continuous", num_speculative_tokens=lengths[-1], **keys)
    # 2 hardly differs from 1 and 4, and loops of few are the slowest to simulate.
    tried = [each for each in concurrencies_of(resolve(scenario, profile, "continuous")) if each != 2]
    return tune(scenario, profile, concurrencies=tried, lengths=lengths, draws=draws, workers=workers)


def row_of(pair: AtlasPair, quote: Quote, profile: Profile, tuning: Tuning) -> dict[str, str]:
    """The pair's row, from simulated loads alone. K is 0 where no length from 1 on gains on average."""
    points, crossing = {point.concurrency: point for point in tuning.points}, tuning.break_even_concurrency
    gains = {(at, each.k): each.speedup or 0.0 for at, point in points.items() for each in point.lengths}
    best = {at: (point.best_draft.k, gains[at, point.best_draft.k]) for at, point in points.items()}
    texts = {at: f"{k if gain > 1.0 else 0} ({gain:.2f})" for at, (k, gain) in best.items()}
    begin, part = f"{MEASURED}: ", f", {pair.method}, K = "
    near = [line.removeprefix(begin) for line in tuning.evidence if line.startswith(begin) and part in line]
    for at, k, speedup in ((int(cell["in_flight"]), int(cell["k"]), cell["speedup"]) for cell in pair.measured):
        if (at, k) in gains:
            near.append(f"this pair, K = {k}, {at} in flight: speed-up {off_pct(gains[at, k], speedup):+.1f} %")
    named = (pair.target, f"{profile.tensor_parallel} x {profile.gpu.name}", pair.engine, quote.drafter or pair.method)
    return {
        **dict(zip(KEY, (*named, quote.acceptance), strict=True)),
        **{f"K at {at}": texts.get(at, "") for at in LOADS},
        "K at the most": f"{max(points)}: {texts[max(points)]}",
        "break-even, in flight": "" if crossing is None else f"{crossing:.0f}",
        "error of measured drafts nearby": "; ".join(line.partition(" (")[0] for line in near),
        "acceptance from": f"{quote.data}, {quote.date}: {quote.source}",
    }


def main(pairs: Path = PAIRS, out: Path = OUT, only: str = "", draws: int = 10, workers: int | None = None) -> int:
    warnings.simplefilter("ignore")
    rows = {tuple(row[name] for name in KEY): row for row in (csv_rows(out) if only and out.exists() else [])}
    for pair, quote in read_pairs(pairs):
        if only in pair.label:
            try:
                profile = profile_of(pair)
                row = row_of(pair, quote, profile, tuned(pair, quote, profile, draws, workers))
                rows[tuple(row[name] for name in KEY)] = row
            except ValueError as error:
                print(f"{pair.label}: left out: {error}", file=sys.stderr, flush=True)
            write_csv(out, list(next(iter(rows.values()), ())), [each.values() for each in rows.values()])
    return 0 if rows else 1
