"""Section H: published measurements, which the shipped profiles and engines must meet.

Figures are quoted; where a claim needs the data behind them, which this repository does not hold, the row says so and
where it is judged instead (docs/accuracy.md). Not here: the claimed figures (validation/claims/ledger/H.yaml).
"""

from __future__ import annotations

from math import prod

from sim.costs.engine_costs import engine_of
from sim.costs.forms.build import build_costs
from sim.devices.contention import Regime
from sim.files.json_values import Json
from sim.interface.request import Request
from sim.policies import works
from validation.claims.claimed_cells import Cell, cell, known, ratio
from validation.claims.ledger import Row, Section

A100 = "a100-sxm/llama-3.1-8b+eagle3"
H100 = "h100-sxm/llama-3.1-8b+eagle3"
PAIR = "a100-sxm/llama-2-7b+tinyllama-1.1b"
STUDY_PROMPTS = {1: 64, 8: 160, 32: 320, 64: 512}
"""Requests per run of the A100 study by concurrency."""
STUDY_DRAFT_TOKENS, STUDY_OUTPUT_TOKENS = 5, 256
COST_ROWS = (1, 8, 32, 64)
COST_CONTEXT_TOKENS, COST_DRAFT_TOKENS = 512, 4
ISSUE_LENGTHS = {2: 2.36, 3: 2.79, 4: 3.08, 5: 3.32, 6: 3.46, 7: 3.54}
"""Acceptance length by draft length, vllm#20780: a condition of the rows, quoted with them."""
OVERLAP_ROWS = (4, 16, 64)
MAX_DRAWS = 3


def judge(section: Section, draws: int) -> list[Row]:
    """Serving on A100, batch 1 and cost lines on H100, acceptance, and the bound on overlap."""
    num_draws = max(2, min(MAX_DRAWS, draws))
    return [
        *_study(section, num_draws),
        *_issue(section),
        *(section.untested(f"H.16937.{name}") for name in ("eagle.2", "eagle.4", "eagle.7", "eagle3.2")),
        *_cost_lines(section),
        _acceptance(section),
        _bound(section, num_draws),
        section.untested("H.rtx4090"),
        section.untested("H.rtxpro6000"),
        section.untested("H.positions"),
    ]


def _study(section: Section, draws: int) -> list[Row]:
    """vLLM 0.24 on an A100, GSM8K prompts, with EAGLE-3 and without, and the speed-up."""
    rows = []
    for concurrency, num_prompts in STUDY_PROMPTS.items():
        load: dict[str, Json] = {
            "engine": "vllm-0.24",
            "input_len": int(section.constant("gsm8k_input_len")),
            "output_len": STUDY_OUTPUT_TOKENS,
            "num_prompts": num_prompts,
            "request_rate": "inf",
            "max_concurrency": concurrency,
        }
        speculation: dict[str, Json] = {
            "num_speculative_tokens": STUDY_DRAFT_TOKENS,
            "acceptance": f"length:{section.constant('gsm8k_acceptance_length')}@{STUDY_DRAFT_TOKENS}",
            "speculation.method": "eagle3",
        }
        cells = {
            "none": cell("autoregressive", draws, A100, {**load, "num_speculative_tokens": 0}),
            "eagle3": cell("continuous", draws, A100, {**load, **speculation}),
        }
        for arm, own in cells.items():
            metric = "output_throughput"
            rows.append(section.row(f"H.a100.{arm}.{concurrency}", own.mean(metric), own.interval(metric)))
        found = ratio(cells["eagle3"], cells["none"], "output_throughput")
        rows.append(section.row(f"H.a100.speedup.{concurrency}", found.value, (found.low, found.high)))
    return rows


def _batch_one(section: Section, policy: str, draft_tokens: int, draws: int) -> Cell:
    load: dict[str, Json] = {
        "engine": "vllm-0.9",
        "input_len": int(section.constant("issue_input_len")),
        "output_len": 256,
        "num_prompts": 20,
        "request_rate": "inf",
        "max_concurrency": 1,
        "num_speculative_tokens": draft_tokens,
    }
    if draft_tokens:
        load["acceptance"] = f"length:{ISSUE_LENGTHS[draft_tokens]}@{draft_tokens}"
        load["speculation.method"] = "eagle3"
    return cell(policy, draws, H100, load)


def _issue(section: Section) -> list[Row]:
    """vllm#20780: time per token at batch 1 by draft length; vllm#16937's tokens per second without drafts."""
    plain = _batch_one(section, "autoregressive", 0, 2)
    tpot_ms = plain.mean("mean_tpot_ms")
    rows = [section.row("H.20780.vanilla", tpot_ms), section.row("H.16937.vanilla", 1e3 / tpot_ms, tpot=tpot_ms)]
    for draft_tokens in ISSUE_LENGTHS:
        own = _batch_one(section, "continuous", draft_tokens, MAX_DRAWS)
        rows.append(section.row(f"H.20780.k{draft_tokens}", own.mean("mean_tpot_ms"), own.interval("mean_tpot_ms")))
    return rows


def _cost_lines(section: Section) -> list[Row]:
    """A pass of the target and a draft beside the lines that were fitted in an engine."""
    profile = known(H100)
    costs = build_costs(profile, engine_of("ideal", profile))
    rows = []
    for num_rows in COST_ROWS:
        requests = [_decoding(index) for index in range(num_rows)]
        kv_tokens = sum(request.context_tokens for request in requests)
        plain_s = costs.cost(works.verify(requests)).device_s
        for request in requests:
            request.drafted = COST_DRAFT_TOKENS
        verify_s = costs.cost(works.verify(requests)).device_s
        draft_s = costs.cost(works.draft(requests, COST_DRAFT_TOKENS)).device_s / COST_DRAFT_TOKENS
        for name, seconds, tokens in (
            ("target", plain_s, num_rows),
            ("verify", verify_s, num_rows * (COST_DRAFT_TOKENS + 1)),
            ("draft", draft_s, num_rows),
        ):
            rows.append(section.row(f"H.cost.{name}.{num_rows}", 1e3 * seconds, tokens=tokens, kv_tokens=kv_tokens))
    return rows


def _decoding(index: int) -> Request:
    """A request in the middle of its answer."""
    request = Request(index, str(index), 0.0, COST_CONTEXT_TOKENS, 100)
    request.prefilled_tokens = COST_CONTEXT_TOKENS
    request.emitted_tokens = 1
    return request


def _acceptance(section: Section) -> Row:
    """Acceptance length from per-position rates of one measurement, beside another one's length."""
    rates = [section.constant(f"gsm8k_rate_{position}") for position in range(1, STUDY_DRAFT_TOKENS + 1)]
    length = 1.0 + sum(prod(rates[:position]) for position in range(1, len(rates) + 1))
    return section.row("H.acceptance.gsm8k", length)


def _bound(section: Section, draws: int) -> Row:
    """What three lanes that overlap freely gain on atomic rounds that cannot, beside (Td + Tv) / max(Td, Tv)."""
    profile = known(PAIR)
    costs = build_costs(profile, engine_of("ideal", profile))
    gains, bounds = [], []
    for num_rows in OVERLAP_ROWS:
        requests = [_decoding(index) for index in range(num_rows)]
        draft_s = costs.cost(works.draft(requests, 4)).device_s
        for request in requests:
            request.drafted = 4
        verify_s = costs.cost(works.verify(requests)).device_s
        load: dict[str, Json] = {
            "input_len": 128,
            "output_len": 100,
            "num_prompts": 4 * num_rows,
            "request_rate": "inf",
            "max_concurrency": num_rows,
            "num_speculative_tokens": 4,
            "acceptance": "iid:0.7",
        }
        lanes = cell("pdv", draws, PAIR, load, regime=Regime.ROOFS)
        atomic = cell("pd", draws, PAIR, load, regime=Regime.SERIAL)
        gains.append(ratio(lanes, atomic, "output_throughput").value)
        bounds.append((draft_s + verify_s) / max(draft_s, verify_s))
    is_within = all(gain <= bound for gain, bound in zip(gains, bounds, strict=True))
    return section.row(
        "H.bound",
        max(gains),
        (min(gains), max(gains)),
        is_met=is_within,
        gains=", ".join(f"{gain:.2f}" for gain in gains),
        bounds=", ".join(f"{bound:.2f}" for bound in bounds),
        rows=", ".join(map(str, OVERLAP_ROWS)),
    )
