"""Section G: report 002's deployment table, on calibrated GPUs with runs that drain.

For every concurrency the report recommends PD or PDV (its unified worker). Here both serve the same closed loop on two
GPUs and two pairs, at every phi of the bracket, beside continuous batching with and without speculation. Not here:
the table's rules (validation/claims/ledger/G.yaml).
"""

from __future__ import annotations

from collections.abc import Mapping

from sim.devices.contention import PhiLevel
from sim.files.json_values import Json
from sim.policies.choices import LoadTable
from sim.studies.load_table import table_of
from validation.claims.claimed_cells import Cell, Ratio, bracket, cell, ratios
from validation.claims.ledger import Row, Section

GPUS = {"a100": "a100-sxm", "h100": "h100-sxm"}
PAIRS = {"7b": "llama-2-7b+tinyllama-1.1b", "34b": "codellama-34b+tinyllama-1.1b"}
CONCURRENCIES = (1, 2, 8, 16, 32, 64, 128)
OTHERS = ("autoregressive", "continuous")
PD, PDV, EITHER = "PD", "PDV", "depends on overlap"
METRIC = "output_throughput"
WORTHWHILE = 0.02
"""Share of throughput: a smaller difference decides nothing; then the simpler scheduler (PD) is taken, as reported."""
REPLICATIONS = 3
MIN_PROMPTS, PROMPTS_PER_PLACE = 24, 4
SWITCHED_PAIR, SWITCHED_PROMPTS, SWITCHED_METRIC = "7b", 300, "mean_e2el_ms"


def seed_choice(concurrency: int, pair: str) -> str:
    """Report 002's table as its slide 9 writes it.

    >>> [seed_choice(concurrency, "7b") for concurrency in (1, 8, 64)], seed_choice(1, "34b")
    (['PD', 'PD', 'PDV'], 'PDV')
    """
    if concurrency >= 32:
        return PDV
    if 6 <= concurrency <= 16:
        return PD
    return PDV if pair == "34b" else PD


def choice(by_level: Mapping[PhiLevel, Ratio]) -> str:
    """PDV where it is better by more than WORTHWHILE, beyond its interval, at every phi; PD where it is so under
    none; else what overlap is decides."""
    better = [found.low > 1.0 + WORTHWHILE for found in by_level.values()]
    if all(better):
        return PDV
    return EITHER if any(better) else PD


def judge(section: Section, draws: int, gpu: str | None = None) -> list[Row]:
    """A row per GPU, pair and concurrency, and one per GPU for switching by the report's table; `draws` is the most
    replications behind each."""
    replications = max(2, min(REPLICATIONS, draws))
    rows = []
    for name in GPUS if gpu is None else (gpu,):
        for pair in PAIRS:
            own = [_row(section, name, pair, concurrency, replications) for concurrency in CONCURRENCIES]
            rows += own
            if pair == SWITCHED_PAIR:
                rows.append(_switching(section, name, own, replications))
    return rows


def _switching(section: Section, gpu: str, rows: list[Row], replications: int) -> Row:
    """`adaptive` by the report's table against PD alone, on a load that swings across its edge; and the table that the
    rows of this GPU give."""
    chosen = ["unified" if row.simulated == PDV else "pd" for row in rows]
    table, hysteresis = table_of(CONCURRENCIES, chosen)
    profile = f"{GPUS[gpu]}/{PAIRS[SWITCHED_PAIR]}"
    load = _load(section, SWITCHED_PAIR) | {
        "num_prompts": SWITCHED_PROMPTS,
        "request_rate": section.constant(f"switched_rate_{gpu}"),
        "burstiness": section.constant("switched_burstiness"),
    }
    pd, ours = (bracket(policy, replications, profile, load) for policy in ("pd", "adaptive"))
    found = ratios(ours, pd, SWITCHED_METRIC)
    low, high = found.span
    return section.row(
        f"G.adaptive.{gpu}",
        found.value,
        (low, high),
        is_met=all(each.high < 1.0 - WORTHWHILE for each in found.by_level.values()),
        **{f"ratio_{level.value}": each.value for level, each in found.by_level.items()},
        low=low,
        high=high,
        table=_spoken(table),
        hysteresis=hysteresis,
    )


def _spoken(table: LoadTable) -> str:
    """
    >>> _spoken(((1, "pd"), (23, "unified")))
    'PD, PDV from 23'
    """
    names = {"pd": PD, "unified": PDV}
    return ", ".join(names[policy] + (f" from {start}" if start > 1 else "") for start, policy in table)


def _load(section: Section, pair: str) -> dict[str, Json]:
    """Lengths and drafts of every row."""
    return {
        "input_len": int(section.constant("input_len")),
        "output_len": int(section.constant("output_len")),
        "num_speculative_tokens": int(section.constant("draft_tokens")),
        "acceptance": f"length:{section.constant(f'acceptance_length_{pair}')}",
    }


def _row(section: Section, gpu: str, pair: str, concurrency: int, replications: int) -> Row:
    profile = f"{GPUS[gpu]}/{PAIRS[pair]}"
    load = _load(section, pair) | {
        "num_prompts": max(MIN_PROMPTS, PROMPTS_PER_PLACE * concurrency),
        "request_rate": "inf",
        "max_concurrency": concurrency,
    }
    pd, pdv = (bracket(policy, replications, profile, load) for policy in ("pd", "unified"))
    others = {policy: cell(policy, replications, profile, load) for policy in OTHERS}
    found = ratios(pdv, pd, METRIC)
    recommended = choice(found.by_level)
    best, best_tokens_per_s = _best(pd, pdv, others)
    claimed = seed_choice(concurrency, pair)
    low, high = found.span
    return section.row(
        f"G.{gpu}.{pair}.{concurrency}",
        recommended,
        (low, high),
        is_met=recommended == claimed,
        claimed=claimed,
        **{f"ratio_{level.value}": each.value for level, each in found.by_level.items()},
        low=low,
        high=high,
        pd=pd[PhiLevel.MIDDLE].mean(METRIC),
        pdv=pdv[PhiLevel.MIDDLE].mean(METRIC),
        **{policy: own.mean(METRIC) for policy, own in others.items()},
        best=best,
        best_tokens_per_s=best_tokens_per_s,
    )


def _best(pd: Mapping[PhiLevel, Cell], pdv: Mapping[PhiLevel, Cell], others: Mapping[str, Cell]) -> tuple[str, float]:
    """The policy with the highest throughput at the middle phi."""
    found = {policy: own.mean(METRIC) for policy, own in others.items()}
    found |= {PD: pd[PhiLevel.MIDDLE].mean(METRIC), PDV: pdv[PhiLevel.MIDDLE].mean(METRIC)}
    name = max(found, key=lambda policy: found[policy])
    return name, found[name]
