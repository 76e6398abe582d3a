"""Section E: report 001's hockey stick, vLLM with a draft model under Poisson load, and what bends it.

The report takes a P99 that grows with the load for proof that verify blocks decode. The same load without speculation
tells: what grows without any verify is not verify's. Not here: the claimed figures (validation/claims/ledger/E.yaml).
"""

from __future__ import annotations

from sim.devices.contention import PhiLevel
from sim.files.json_values import Json
from validation.claims.claimed_cells import Cell, bracket, cell, ratio, ratios
from validation.claims.ledger import Row, Section

PROFILE = "a100-sxm/llama-3.1-8b+llama-3.2-1b"
RATES = (2, 6, 10)
NUM_PROMPTS = 300
MAX_DRAWS = 5
ENGINE = "vllm-0.12"
"""Version of late 2025, when the report was written; it names none."""


def judge(section: Section, draws: int) -> list[Row]:
    """P50 and P99 of ITL by rate, their growth, and the growth without speculation."""
    num_draws = max(2, min(MAX_DRAWS, draws))
    speculative = {rate: _cell(section, "continuous", rate, num_draws) for rate in RATES}
    plain = {rate: _cell(section, "autoregressive", rate, num_draws) for rate in RATES}
    rows = []
    for percent in (50, 99):
        metric = f"p{percent}_itl_ms"
        for rate in RATES:
            own = speculative[rate]
            rows.append(
                section.row(
                    f"E.p{percent}.{rate}",
                    own.mean(metric),
                    own.interval(metric),
                    plain=plain[rate].mean(metric),
                    plain_p50=plain[rate].mean("p50_itl_ms"),
                )
            )
    return [*rows, _growth(section, speculative, plain), _cause(section, speculative, plain), _priority(section, draws)]


def _cell(section: Section, policy: str, rate: int, draws: int) -> Cell:
    load = _load(section) | {"engine": ENGINE, "num_prompts": NUM_PROMPTS, "request_rate": rate}
    return cell(policy, draws, PROFILE, load)


def _load(section: Section) -> dict[str, Json]:
    """Lengths and drafts of every row."""
    return {
        "input_len": int(section.constant("input_len")),
        "output_len": int(section.constant("output_len")),
        "num_speculative_tokens": int(section.constant("draft_tokens")),
        "acceptance": f"iid:{section.constant('acceptance')}",
    }


def _growth(section: Section, speculative: dict[int, Cell], plain: dict[int, Cell]) -> Row:
    found = ratio(speculative[RATES[-1]], speculative[RATES[0]], "p99_itl_ms")
    without = ratio(plain[RATES[-1]], plain[RATES[0]], "p99_itl_ms")
    return section.row("E.growth", found.value, (found.low, found.high), without=without.value)


def _cause(section: Section, speculative: dict[int, Cell], plain: dict[int, Cell]) -> Row:
    """P99 over P50 at the highest rate, with and without verify."""
    ours, theirs = (
        own[RATES[-1]].mean("p99_itl_ms") / own[RATES[-1]].mean("p50_itl_ms") for own in (speculative, plain)
    )
    return section.row(
        "E.cause",
        f"P99/P50 {ours:.2f} with, {theirs:.2f} without speculation",
        is_met=ours > 1.5 * theirs,
        speculative=ours,
        plain=theirs,
    )


def _priority(section: Section, draws: int) -> Row:
    """The verify lane on a stream of its own: pdv against pd, gaps between rounds."""
    load = _load(section) | {"num_prompts": 100, "request_rate": 2}
    count = max(2, min(3, draws))
    pdv, pd = (bracket(policy, count, PROFILE, load) for policy in ("pdv", "pd"))
    found = ratios(pdv, pd, "p99_itl_ms")
    more_pct = found.more_pct
    is_met = all(value < 0.0 for value in more_pct.values())
    return section.row("E.priority", more_pct[PhiLevel.MIDDLE.value], found.more_span_pct, is_met=is_met, **more_pct)
