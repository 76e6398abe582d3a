"""Section B: report 004's table of three schedulers at 3, 5 and 10 requests, as its text describes them.

Its GPU, models, prompts and KV handling are not stated, so tokens per second are not testable; ratios of schedulers on
one machine are, on the calibrated pair that report 000 names. Not here: the claimed figures
(validation/claims/ledger/B.yaml).
"""

from __future__ import annotations

from sim.devices.contention import PhiLevel
from sim.files.json_values import Json
from validation.claims.claimed_cells import Cell, bracket, ratios
from validation.claims.ledger import Row, Section

PROFILE = "a100-sxm/llama-2-7b+tinyllama-1.1b"
CONCURRENCIES = (3, 5, 10)
ENGINES = ("baseline", "pd", "pdv")
DECODE_BATCH, VERIFY_BATCH = 6, 12
"""Stated by the report."""
NUM_PROMPTS = 60
MAX_DRAWS = 5
METRIC = "output_throughput"
ByLevel = dict[PhiLevel, Cell]


def judge(section: Section, draws: int) -> list[Row]:
    """Ratios of throughputs by concurrency, utilisation, and the figures that cannot be tested."""
    cells = {
        (engine, concurrency): _cell(section, engine, concurrency, min(MAX_DRAWS, draws))
        for engine in ENGINES
        for concurrency in CONCURRENCIES
    }
    rows = [_gain(section, cells, concurrency) for concurrency in CONCURRENCIES]
    rows += [_over_baseline(section, cells, concurrency) for concurrency in CONCURRENCIES]
    rows += [_tail(section, cells, concurrency) for concurrency in CONCURRENCIES]
    rows += [_utilization(section, cells, engine) for engine in ENGINES]
    rows += [
        section.untested(f"B.{figure}.{engine}.{concurrency}")
        for figure in ("tps", "p95")
        for engine in ENGINES
        for concurrency in CONCURRENCIES
    ]
    return rows


def _cell(section: Section, engine: str, concurrency: int, draws: int) -> ByLevel:
    load: dict[str, Json] = {
        "policy_options.workers": int(section.constant("workers")),
        "input_len": int(section.constant("input_len")),
        "output_len": 100,
        "num_prompts": NUM_PROMPTS,
        "request_rate": "inf",
        "max_concurrency": concurrency,
        "num_speculative_tokens": 4,
        "acceptance": f"length:{section.constant('acceptance_length')}",
    }
    if engine != "baseline":
        load["policy_options.decode_batch"] = DECODE_BATCH
    if engine == "pdv":
        load["policy_options.verify_batch"] = VERIFY_BATCH
    return bracket(engine, draws, PROFILE, load)


Cells = dict[tuple[str, int], ByLevel]


def _gain(section: Section, cells: Cells, concurrency: int) -> Row:
    """PDV over PD in throughput, percent, at every phi."""
    found = ratios(cells["pdv", concurrency], cells["pd", concurrency], METRIC)
    more_pct = found.more_pct
    middle_pct = more_pct[PhiLevel.MIDDLE.value]
    return section.row(f"B.gain.{concurrency}", middle_pct, found.more_span_pct, is_met=None, **more_pct)


def _over_baseline(section: Section, cells: Cells, concurrency: int) -> Row:
    found = ratios(cells["pd", concurrency], cells["baseline", concurrency], METRIC)
    return section.row(
        f"B.over_baseline.{concurrency}",
        found.value,
        found.span,
        baseline=cells["baseline", concurrency][PhiLevel.MIDDLE].mean(METRIC),
        pd=cells["pd", concurrency][PhiLevel.MIDDLE].mean(METRIC),
    )


def _tail(section: Section, cells: Cells, concurrency: int) -> Row:
    """PDV over PD in the 95th percentile of latency, percent less."""
    found = ratios(cells["pdv", concurrency], cells["pd", concurrency], "p95_e2el_ms")
    low, high = found.span
    interval = (100.0 * (1.0 - high), 100.0 * (1.0 - low))
    return section.row(f"B.p95_gain.{concurrency}", 100.0 * (1.0 - found.value), interval)


def _utilization(section: Section, cells: Cells, engine: str) -> Row:
    shares = [
        100.0 * cells[engine, concurrency][PhiLevel.MIDDLE].mean("device_utilization") for concurrency in CONCURRENCIES
    ]
    low, high = min(shares), max(shares)
    return section.row(f"B.util.{engine}", sum(shares) / len(shares), (low, high), low=low, high=high)
