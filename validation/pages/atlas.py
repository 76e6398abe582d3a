"""Published pairs of target, GPU, engine and drafter: which draft length pays at which load, and from which load
speculation loses.

A pair is a line of the file of pairs, with published acceptance. Its profile is made by `lanesim plan`'s importer and
kept in the user's cache; its answer is `lanesim tune`'s, kept in results/atlas under a hash of all that it was made
from: a run that was stopped goes on, a further one does what changed. Not here: how it is shown (atlas_page).
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple

import msgspec

from calibrate.catalogue.model_configs import source_of, with_formats
from calibrate.catalogue.published_tables import cache_folder, published_tables
from calibrate.importers.aiconfigurator.deployment import Deployment, in_kernel_format
from calibrate.importers.plan_candidates import imported
from sim.acceptance.forms import parse_quoted
from sim.costs.engine_costs import load_engine
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.drafters.registry import HEADS
from sim.files.json_values import convert
from sim.files.write import write_text
from sim.files.yaml_values import read_yaml
from sim.names import unknown
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.studies.answer import Answer
from sim.studies.evidence import CELLS, MEASURED
from sim.studies.sweeps.store_rows import model_version, profile_hash
from sim.studies.tune import Tuning, concurrencies_of, tune
from validation.tables import off_pct

PAIRS = Path(__file__).with_name("atlas.yaml")
OUT = Path(__file__).parents[2] / "docs"
DONE = Path(__file__).parents[2] / "results" / "atlas"
STUDIES = Path(__file__).parents[2] / "sim" / "studies"
INPUT_TOKENS, OUTPUT_TOKENS = 1024, 128
"""Lengths that `vllm bench serve` has where nothing is said."""
MAX_IN_FLIGHT = 256
NOT_TRIED = (2,)
"""Requests in flight between 1 and 4, which hardly differ; loops of few are the slowest to simulate."""
LENGTHS = {"eagle3": (0, 1, 2, 3, 5, 7), "mtp": (0, 1, 2, 3, 5)}
"""Draft lengths that are tried, by method; 0 keeps the drafter loaded."""
DRAWS = 10
"""Draws, as many as `lanesim plan` makes for draft lengths."""
SCHEMA = 1
DIGITS = 4
TRTLLM_CONFIG = "mtp.yaml"


class Quote(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Published acceptance of a drafter."""

    acceptance: str
    """Acceptance in `--acceptance`'s notation."""
    data: str
    """Hardware that it was measured on."""
    source: str
    date: str
    drafter: str | None = None
    """Name on Hugging Face; None: the checkpoint's own, or not said."""

    def __post_init__(self) -> None:
        parse_quoted(self.acceptance)


class PublishedGain(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published speed-up of the pair."""

    in_flight: int
    k: int
    speedup: float


class AtlasPair(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of the file."""

    target: str
    """Name on Hugging Face."""
    engine: str
    method: Literal["eagle3", "mtp"]
    acceptance: str
    """Name of a quote."""
    gpu: str | None = None
    profile: str | None = None
    """A shipped one, instead of `gpu` and what follows."""
    like: str | None = None
    """A model of the same shape with a known config.json."""
    tp: int = 1
    ep: int | None = None
    weights: str | None = None
    measured: list[PublishedGain] = []
    measured_by: str | None = None
    """None: whoever published the acceptance."""

    def __post_init__(self) -> None:
        if (self.gpu is None) == (self.profile is None):
            raise ValueError(f"gpu={self.gpu!r} and profile={self.profile!r}: want one of them")


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: Literal[1]
    acceptances: dict[str, Quote]
    pairs: list[AtlasPair]

    def __post_init__(self) -> None:
        for pair in self.pairs:
            if pair.acceptance not in self.acceptances:
                raise ValueError(unknown("acceptance", pair.acceptance, self.acceptances))


class AtLoad(msgspec.Struct, frozen=True, kw_only=True):
    concurrency: int
    k: int
    """Draft length of least expected regret among those that were tried; 0 where none gains on average."""
    speedup: float
    """Speed-up of the best draft from 1 on, over no speculation."""
    interval: tuple[float, float]
    """5 to 95 % of the draws."""
    speedups: dict[int, float]
    """Speed-up of each draft length."""


class AtlasRow(msgspec.Struct, frozen=True, kw_only=True):
    """Row of the atlas for one pair."""

    target: str
    gpu: str
    gpus: int
    engine: str
    method: str
    drafter: str | None
    quote: Quote
    profile: str
    profile_source: str
    answer: Answer
    break_even_interval: tuple[float | None, float | None]
    """5 to 95 % of the draws; None: beyond the highest load that was tried."""
    loads: list[AtLoad]
    one_k: int
    """The one draft length from 1 on that loses least, on average over the loads."""
    one_k_regret: float
    """Loss there on average against the best choice at each load, no speculation among them."""
    one_k_worst: float
    """Loss at the load where it loses most."""
    has_evidence: bool
    """True where the pair was measured with drafts within a factor of two of these loads and lengths."""
    line: str
    """The command that starts it."""
    notes: list[str]


class Plot(NamedTuple):
    """A pair to judge."""

    pair: AtlasPair
    quote: Quote

    @property
    def label(self) -> str:
        where = self.pair.gpu or (self.pair.profile or "").partition("/")[0]
        return f"{self.pair.target} on {where}, {self.pair.engine}, {self.pair.acceptance}"


def read_pairs(path: Path) -> list[Plot]:
    """Raises ValueError, one line, for a file that is damaged and a pair that names nothing known."""
    file = convert(read_yaml(path, "pairs"), _File, f"pairs {str(path)!r}")
    return [Plot(pair, file.acceptances[pair.acceptance]) for pair in file.pairs]


def profile_of(pair: AtlasPair) -> Profile:
    """Raises ValueError naming what cannot be priced."""
    if pair.profile is not None or pair.gpu is None:
        return load(pair.profile or "")
    tables, source = published_tables()
    shape = source_of(pair.like or pair.target, plain=False).shape
    target, own = (in_kernel_format(each, pair.gpu) for each in (with_formats(shape, pair.weights, None), shape))
    deployment = Deployment(pair.tp, pair.ep, 1, pair.engine.partition("-")[0])
    made, failed = imported(
        tables, source, pair.gpu, target, HEADS[pair.method](own), [deployment], cache_folder("profiles")
    )
    if failed:
        raise ValueError(failed[0].why)
    return made[0].profile


def row_of(plot: Plot, *, draws: int, workers: int | None, done: Path) -> tuple[AtlasRow, bool]:
    """And whether it had to be simulated."""
    pair, quote = plot
    profile = profile_of(pair)
    load_engine(pair.engine, profile.gpu.name)
    path = done / f"{_key(pair, quote, profile, draws)}.json"
    if path.exists():
        return _row(plot, profile, msgspec.json.decode(path.read_bytes(), type=Tuning)), False
    lengths = LENGTHS[pair.method]
    scenario = Scenario.of(
        profile=profile.name,
        policy="continuous",
        input_len=INPUT_TOKENS,
        output_len=OUTPUT_TOKENS,
        max_concurrency=MAX_IN_FLIGHT,
        num_speculative_tokens=lengths[-1],
        acceptance=quote.acceptance,
        **{"engine.name": pair.engine, "speculation.method": pair.method},
    )
    tried = concurrencies_of(resolve(scenario, profile, "continuous"))
    tuning = tune(
        scenario,
        profile,
        concurrencies=[each for each in tried if each not in NOT_TRIED],
        lengths=lengths,
        draws=draws,
        workers=workers,
        target_model=pair.target,
        draft_model=quote.drafter,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, msgspec.json.encode(tuning).decode())
    return _row(plot, profile, tuning), True


def _key(pair: AtlasPair, quote: Quote, profile: Profile, draws: int) -> str:
    """Hash of all that an answer is made from: the profile (its date left out), the question, and the code."""
    code = hashlib.sha256(CELLS.read_bytes())
    for path in sorted(STUDIES.glob("*.py")):
        code.update(path.read_bytes())
    parts = (
        profile_hash(msgspec.structs.replace(profile, date="")), pair.target, pair.engine, pair.method,
        quote.acceptance, quote.drafter, INPUT_TOKENS, OUTPUT_TOKENS, MAX_IN_FLIGHT, NOT_TRIED, LENGTHS[pair.method],
        draws, model_version(), code.hexdigest(),
    )  # fmt: skip
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _row(plot: Plot, profile: Profile, tuning: Tuning) -> AtlasRow:
    pair, quote = plot
    loads = []
    for point in tuning.points:
        best = point.best_draft
        if best.speedup is None or best.interval is None:
            raise ValueError(f"{plot.label}: nothing is served at {point.concurrency} in flight")
        loads.append(
            AtLoad(
                concurrency=point.concurrency,
                k=best.k if best.speedup > 1.0 else 0,
                speedup=round(best.speedup, DIGITS),
                interval=(round(best.interval[0], DIGITS), round(best.interval[1], DIGITS)),
                speedups={each.k: round(each.speedup or 0.0, DIGITS) for each in point.lengths},
            )
        )
    one_k, lost = _one_length(tuning)
    evidence = [*_published(plot, profile, tuning), *tuning.evidence]
    stood_in = profile.source.partition("not from the engine's own tables: ")[2]
    return AtlasRow(
        target=pair.target,
        gpu=profile.gpu.name,
        gpus=profile.tensor_parallel,
        engine=pair.engine,
        method=pair.method,
        drafter=quote.drafter,
        quote=quote,
        profile=profile.name,
        profile_source=profile.source,
        answer=Answer(
            k_table=tuning.k_table,
            break_even_concurrency=tuning.break_even_concurrency,
            replicas=1,
            evidence=evidence,
        ),
        break_even_interval=tuning.break_even_interval,
        loads=loads,
        one_k=one_k,
        one_k_regret=round(fmean(lost), DIGITS),
        one_k_worst=round(max(lost), DIGITS),
        has_evidence=any(line.startswith(MEASURED) and f", {pair.method}, K = " in line for line in evidence),
        line=_line(pair, profile, tuning, one_k),
        notes=[*tuning.deployment.notes, *([f"not from the engine's own tables: {stood_in}"] if stood_in else [])],
    )


def _published(plot: Plot, profile: Profile, tuning: Tuning) -> list[str]:
    """A line of evidence of the pair's published speed-ups, where their loads and lengths were tried."""
    pair, quote = plot
    tried = {(point.concurrency, each.k): each.speedup for point in tuning.points for each in point.lengths}
    judged = [(cell, simulated) for cell in pair.measured if (simulated := tried.get((cell.in_flight, cell.k)))]
    if not judged:
        return []
    errors = [off_pct(simulated, cell.speedup) for cell, simulated in judged]
    loads, ks = (
        " and ".join(map(str, sorted({getattr(cell, name) for cell, _ in judged}))) for name in ("in_flight", "k")
    )
    span = f"{min(errors):+.1f} to {max(errors):+.1f} %" if len(errors) > 1 else f"{errors[0]:+.1f} %"
    count = f"{len(errors)} cell{'s' * (len(errors) > 1)}"
    return [
        f"{MEASURED}: {profile.gpu.name}, {pair.engine}, {profile.target.name}, {pair.method}, K = {ks}, {loads} in "
        f"flight: speed-up {span} ({count}; {pair.measured_by or quote.source}; at lengths of its own)"
    ]


def _one_length(tuning: Tuning) -> tuple[int, list[float]]:
    """The draft length from 1 on that loses least over all loads, and what it loses at each [loads]."""
    lost = {
        each.k: [next(other.expected_regret for other in point.lengths if other.k == each.k) for point in tuning.points]
        for each in tuning.points[0].lengths
        if each.k > 0
    }
    best = min(lost, key=lambda k: fmean(lost[k]))
    return best, lost[best]


def _line(pair: AtlasPair, profile: Profile, tuning: Tuning, one_k: int) -> str:
    """The command line of the pair's engine. TensorRT-LLM has no table by load: it drafts the one length that loses
    least."""
    if pair.engine.startswith("vllm"):
        return tuning.deployment.vllm_serve
    if pair.engine.startswith("sglang"):
        bands = tuning.deployment.sglang_adaptive_config
        written = "" if bands is None else f"\nadaptive.json: {json.dumps(bands)}"
        return f"python -m sglang.launch_server {tuning.deployment.sglang_flags}{written}"
    k = one_k if any(row[2] for row in tuning.k_table) else 0
    config = f"speculative_config: {{decoding_type: MTP, num_nextn_predict_layers: {k}}}"
    experts = "" if (profile.expert_parallel or 1) == 1 else f" --ep_size {profile.expert_parallel}"
    flags = f"--tp_size {profile.tensor_parallel}{experts}"
    if not k:
        return f"trtllm-serve {pair.target} {flags}"
    return f"trtllm-serve {pair.target} {flags} --extra_llm_api_options {TRTLLM_CONFIG}\n{TRTLLM_CONFIG}: {config}"


def atlas(
    plots: Sequence[Plot], *, draws: int, workers: int | None, done: Path
) -> tuple[list[AtlasRow], list[tuple[str, str]]]:
    """Rows, and which pairs cannot be judged, each with the reason."""
    rows, refused = [], []
    for index, plot in enumerate(plots, start=1):
        try:
            row, is_new = row_of(plot, draws=draws, workers=workers, done=done)
        except ValueError as error:
            refused.append((plot.label, str(error)))
            print(f"{index}/{len(plots)} {plot.label}: left out: {error}", file=sys.stderr, flush=True)
            continue
        rows.append(row)
        print(f"{index}/{len(plots)} {plot.label}{'' if is_new else ' (kept)'}", file=sys.stderr, flush=True)
    return rows, refused
