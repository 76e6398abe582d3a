"""Section C: three engines in fp32 without a KV cache, of which one batches; everything arrives at once.

As their code has it, one thread serves PD and PDV: decode goes strictly before prefill, so PD serves one request after
another and PDV one batch of six, and no two calls overlap; the baseline's four workers take turns. The profile is a
line per model: a forward of n tokens takes a floor per layer, fitted on the single request, and the arithmetic of n
tokens at the datasheet's fp32 rate. The other counts of requests are judged. Not here: the claimed figures
(validation/claims/ledger/C.yaml).
"""

from __future__ import annotations

from itertools import product
from statistics import mean

import msgspec

from sim.costs.compact_kernels import LinearPass
from sim.costs.profile import Profile
from sim.costs.shapes import ModelShape
from sim.devices.contention import Regime
from sim.files.json_values import Json
from validation.claims.claimed_cells import Cell, cell, known
from validation.claims.ledger import Row, Section
from validation.claims.prototype import PROFILE as PROTOTYPE

MODELS = "a100-sxm/llama-2-7b+tinyllama-1.1b"
"""Whose shapes: the costs are others."""
ENGINES: dict[str, dict[str, Json]] = {
    "baseline": {"policy_options.workers": 4, "policy_options.batching": "per_request"},
    "pd": {"engine.max_num_seqs": 1, "policy_options.batching": "per_request"},
    "pdv": {"engine.max_num_seqs": 6, "policy_options.batching": "batched"},
}
POLICIES = {"baseline": "baseline", "pd": "pd", "pdv": "pd"}
"""Policies: in one thread PDV's lanes take turns like PD's, batch by batch."""
COUNTS = (1, 5, 20, 50)
FIT_COUNT = 1
DRAFT_TOKENS, OUTPUT_TOKENS = 4, 100
FIT_STEPS = 20


def judge(section: Section, draws: int) -> list[Row]:
    """Requests per second and mean latency of every engine and count; those of one request are what was fitted on."""
    num_draws = max(2, draws // 10)
    fitted = fit(section, num_draws)
    rows = []
    for count, engine in product(COUNTS, ENGINES):
        served = serve(section, fitted, engine, count, num_draws)
        for figure, metric, scale in (("rate", "request_throughput", 1.0), ("mean", "mean_e2el_ms", 1e-3)):
            own = served.mean(metric)
            low, high = served.interval(metric) or (own, own)
            rows.append(section.row(f"C.{figure}.{engine}.{count}", scale * own, (scale * low, scale * high)))
    return rows


def fit(section: Section, draws: int) -> Profile:
    """The floor of a layer's forward at which one request takes what the three engines took in the mean."""
    wanted_s = mean(section.claimed(f"C.mean.{engine}.{FIT_COUNT}") for engine in ENGINES)
    low_s, high_s = 0.0, 5e-3
    for _ in range(FIT_STEPS):
        layer_s = (low_s + high_s) / 2.0
        served = serve(section, fp32(section, layer_s), "pd", FIT_COUNT, draws)
        is_short = served.mean("mean_e2el_ms") / 1e3 < wanted_s
        low_s, high_s = (layer_s, high_s) if is_short else (low_s, layer_s)
    return fp32(section, (low_s + high_s) / 2.0)


def fp32(section: Section, layer_s: float) -> Profile:
    """The pair with `layer_s` per layer and forward, and its arithmetic."""
    models, prototype, flops = known(MODELS), known(PROTOTYPE), section.constant("fp32_flops")
    assert models.draft is not None

    def line(shape: ModelShape) -> LinearPass:
        return LinearPass(pass_s=layer_s * shape.layers, token_s=shape.weight_bytes / shape.dtype_bytes * 2.0 / flops)

    kernels = msgspec.structs.replace(prototype.linear, target=line(models.target), draft=line(models.draft))
    return msgspec.structs.replace(
        prototype, name="a100-sxm/three-way", target=models.target, draft=models.draft, kernels=kernels
    )


def serve(section: Section, profile: Profile, engine: str, count: int, draws: int) -> Cell:
    return cell(
        POLICIES[engine],
        draws,
        profile,
        {
            "policy_options.kv": "none",
            "input_len": int(section.constant("input_len")),
            "output_len": OUTPUT_TOKENS,
            "num_prompts": count,
            "request_rate": "inf",
            "num_speculative_tokens": DRAFT_TOKENS,
            "acceptance": f"length:{section.constant('acceptance_length')}",
            **ENGINES[engine],
        },
        regime=Regime.SERIAL,
    )
