"""Section D: report 000's gains of one draw each, as a replication study.

Both sides of the report's comparison run the same sequential algorithm, so the simulator gives them the same time. What
two runs of one engine differ by is in the report's own repository: the same request, the same draws, served by two
engines that do the same calls. The study draws pairs of runs with that noise and counts how often one pair shows
what was claimed. What the report expects of its next phase, draft and verify of one request overlapped, is simulated on
a calibrated GPU: the policy `pipelined` against `pd`. Not here: the claimed figures (validation/claims/ledger/D.yaml).
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from sim.devices.contention import PhiLevel
from sim.draws import Floats
from sim.files.json_values import Json
from validation.claims.claimed_cells import bracket, cell, ratio, ratios
from validation.claims.ledger import Row, Section

PROFILE = "a100-sxm/llama-2-7b+tinyllama-1.1b"
STUDIES_PER_DRAW = 400
"""Pairs of runs behind one of `draws`: they cost nothing."""
RARE = 0.05
"""Noise alone is no explanation of what it shows less often than this."""
PRIORITY_METRIC = "mean_itl_ms"
PIPELINED_AT = (1, 100)
"""Requests in flight: one, where phase 1 would help latency most, and the report's production scale."""
PIPELINED_METRIC = "p95_e2el_ms"
PIPELINED_DRAWS = 3
MAX_DRAWS = 5


def judge(section: Section, draws: int) -> list[Row]:
    """How often noise shows each gain in one draw, and what preemptive priorities would do."""
    spread = section.constant("pair_spread") / 100.0
    single = gains_pct(spread, 1, draws * STUDIES_PER_DRAW)
    three = gains_pct(spread, 3, draws * STUDIES_PER_DRAW)
    ten = gains_pct(spread, 5, draws * STUDIES_PER_DRAW)
    return [
        _study(section, "D.single", single, 4.1),
        _study(section, "D.three", three, 2.6),
        _study(section, "D.medium", ten, -9.0),
        _both(section, single, three),
        _scaling(section),
        _priority(section, "D.priority", min(MAX_DRAWS, draws)),
        *(_pipelined(section, concurrency, max(2, min(PIPELINED_DRAWS, draws))) for concurrency in PIPELINED_AT),
        section.untested("D.outlook"),
    ]


def gains_pct(spread: float, num_requests: int, studies: int) -> Floats:
    """[studies] percent by which the p95 of one run of `num_requests` is shorter than another's of the same work.

    `spread` is the standard deviation of the logarithm of the ratio of two single requests. A run has a speed of its
    own that all its requests share (clocks, caches, other tenants): half of the variance is taken as the run's, half as
    the request's. The percentile is numpy's, as the harness takes it.
    """
    random = np.random.default_rng(2000 + num_requests)
    each = spread / sqrt(2.0)
    run, own = each / sqrt(2.0), each / sqrt(2.0)

    def p95() -> Floats:
        shared = random.normal(0.0, run, (studies, 1))
        times = np.exp(shared + random.normal(0.0, own, (studies, num_requests)))
        found: Floats = np.percentile(times, 95.0, axis=1)
        return found

    baseline, ours = p95(), p95()
    gains: Floats = 100.0 * (1.0 - ours / baseline)
    return gains


def share(gains: Floats, claimed: float) -> float:
    """Share of the studies that show as much as claimed, in its direction."""
    return float(np.mean(gains >= claimed if claimed > 0 else gains <= claimed))


def _study(section: Section, claim_id: str, gains: Floats, claimed: float) -> Row:
    probability = share(gains, claimed)
    low, high = (float(value) for value in np.quantile(gains, [0.025, 0.975]))
    return section.row(
        claim_id,
        float(np.mean(gains)),
        (low, high),
        is_met=probability >= RARE,
        probability=probability,
        percent=100.0 * probability,
        low=low,
        high=high,
    )


def _both(section: Section, single: Floats, three: Floats) -> Row:
    """Both of the report's rows in one go, two independent pairs of runs."""
    probability = share(single, 4.1) * share(three, 2.6)
    return section.row("D.consistent", probability, is_met=False, probability=probability, percent=100.0 * probability)


def _scaling(section: Section) -> Row:
    """The report's own two rows: the gain falls where it is said to grow."""
    return section.row("D.scaling", "falls from 4.1 to 2.6 %", is_met=False)


def _priority(section: Section, claim_id: str, draws: int) -> Row:
    """Gaps between tokens under preemptive priorities, over those of plain streams."""
    load: dict[str, Json] = {
        "dataset_name": "sharegpt-long",
        "num_prompts": 100,
        "request_rate": 0.6,
        "num_speculative_tokens": 4,
        "acceptance": "iid:0.7",
        "policy_options.decode_batch": 6,
        "policy_options.verify_batch": 12,
    }
    plain = cell("pdv", draws, PROFILE, load)
    strict = cell("pdv", draws, PROFILE, {**load, "policy_options.stream_priorities": "preemptive"})
    found = ratio(strict, plain, PRIORITY_METRIC)
    ttft = ratio(strict, plain, "mean_ttft_ms")
    change = 100.0 * (found.value - 1.0)
    return section.row(
        claim_id,
        change,
        (100.0 * (found.low - 1.0), 100.0 * (found.high - 1.0)),
        is_met=False,
        change=change,
        ttft=100.0 * (ttft.value - 1.0),
    )


def _pipelined(section: Section, concurrency: int, draws: int) -> Row:
    """The 95th percentile of E2EL with draft and verify of a request overlapped, against PD, at every phi; and with
    a GPU for the draft model."""
    load: dict[str, Json] = {
        "input_len": int(section.constant("input_len")),
        "output_len": int(section.constant("output_len")),
        "num_prompts": max(16, 3 * concurrency),
        "request_rate": "inf",
        "max_concurrency": concurrency,
        "num_speculative_tokens": 4,
        "acceptance": f"iid:{section.constant('acceptance')}",
    }
    pd, ours = (bracket(policy, draws, PROFILE, load) for policy in ("pd", "pipelined"))
    apart = cell("pipelined", draws, PROFILE, {**load, "policy_options.draft_devices": 1})
    longer = ratios(ours, pd, PIPELINED_METRIC)
    gains = {level: 100.0 * (1.0 - found.value) for level, found in longer.by_level.items()}
    least, most = longer.span
    low, high = section.claim(f"D.pipelined.{concurrency}").bounds()
    return section.row(
        f"D.pipelined.{concurrency}",
        gains[PhiLevel.MIDDLE],
        (100.0 * (1.0 - most), 100.0 * (1.0 - least)),
        is_met=all(low <= gain <= high for gain in gains.values()),
        **{f"gain_{level.value}": gain for level, gain in gains.items()},
        apart=100.0 * (1.0 - ratio(apart, pd[PhiLevel.MIDDLE], PIPELINED_METRIC).value),
        per_gpu=ratio(apart, pd[PhiLevel.MIDDLE], "output_throughput_per_gpu").value,
    )
