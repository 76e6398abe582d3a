"""Section F: DiSpec (report 003) on a laptop GPU: launch-bound passes, the what-if of graphed drafts, KV over a link.

The laptop's profile holds the report's own figures; rows that they were fitted on say so. Its speculation is simulated
from the three forward times that it profiles. Not here: the claimed figures (validation/claims/ledger/F.yaml).
"""

from __future__ import annotations

from operator import attrgetter

import msgspec

from sim.acceptance.conversions import iid_rate_for_length
from sim.acceptance.models import IidAcceptance
from sim.costs.compact_kernels import LinearPass
from sim.costs.profile import Profile
from sim.costs.shapes import kv_bytes_per_token, model
from sim.devices.link import link_of
from sim.draws import child_seed
from sim.files.json_values import Json
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate
from validation.claims.claimed_cells import SEED, cell, known
from validation.claims.ledger import Row, Section

PROFILE = "rtx-3070-laptop/qwen2.5-1.5b"
PAIR = "a100-sxm/llama-2-7b+tinyllama-1.1b"
"""Profile on which disaggregated and colocated serving of one tape are compared."""
DRAFT_TOKENS = 4
CONCURRENCIES = (6, 16, 32)
TRANSFERS = {512: "F.kv.512", 2048: "F.kv.2048"}
STEP_BY_STEP, AHEAD = "pdv", "baseline"
"""Policies for one request at a time: verify is launched when the draft's tokens are on the host, as where the host
samples; or while the draft still runs."""
MAX_DRAWS = 10
PLAIN: dict[str, Json] = {"input_len": 16, "output_len": 200, "num_speculative_tokens": 0}
"""What every row that is served has."""


def judge(section: Section, draws: int) -> list[Row]:
    """Passes, batches, speculation with eager and graphed drafts, transfers."""
    num_draws = max(2, min(MAX_DRAWS, draws))
    return [
        section.untested("F.single.hf"),
        *_single(section, num_draws),
        *_batched(section, num_draws),
        *(section.untested(f"F.vllm.{concurrency}") for concurrency in CONCURRENCIES),
        _small_graph(section),
        _tokens_per_step(section),
        *_speculation(section, num_draws),
        *_transfers(section),
        section.untested("F.kv.ipc"),
        _identical(section),
    ]


def _single(section: Section, draws: int) -> list[Row]:
    """One sequence, with graphs and without, and the ratio."""
    tokens_per_s = {}
    for is_graphed in (True, False):
        served = cell("autoregressive", draws, PROFILE, {**PLAIN, "num_prompts": 1, "engine.cuda_graph": is_graphed})
        tokens_per_s[is_graphed] = 1e3 / served.mean("mean_tpot_ms")
    return [
        section.row("F.single.graph", tokens_per_s[True]),
        section.row("F.single.eager", tokens_per_s[False]),
        section.row("F.graph.1.5b", tokens_per_s[True] / tokens_per_s[False]),
    ]


def _batched(section: Section, draws: int) -> list[Row]:
    rows = []
    for concurrency in CONCURRENCIES:
        load: dict[str, Json] = {"num_prompts": concurrency, "request_rate": "inf"}
        served = cell("autoregressive", draws, PROFILE, PLAIN | load)
        rows.append(section.row(f"F.batched.{concurrency}", served.mean("output_throughput")))
    return rows


def _small_graph(section: Section) -> Row:
    """The 0.5B's pass under graphs, by the report's two figures of it."""
    eager_ms, compute_ms = section.constant("draft_eager_ms"), section.constant("draft_compute_ms")
    implied_ms = eager_ms / section.claimed("F.graph.0.5b")
    return section.row("F.graph.0.5b", eager_ms / compute_ms, compute=compute_ms, implied=implied_ms)


def _tokens_per_step(section: Section) -> Row:
    """Tokens per target step by either reading of 50 %."""
    by_reading = lengths(section)
    needed = iid_rate_for_length(by_reading["length"], DRAFT_TOKENS)
    return section.row(
        "F.spec.tokens", by_reading["share"], (by_reading["conditional"], by_reading["share"]), needed=100.0 * needed,
        conditional=by_reading["conditional"],
    )  # fmt: skip


def lengths(section: Section) -> dict[str, float]:
    """Tokens per target step, the target's own included, by what `about 50 % accepted, about 3.6 tokens per step` can
    mean: 50 % of each next token, 50 % of all drafted ones, or 3.6 tokens."""
    rate = section.constant("acceptance")
    return {
        "conditional": IidAcceptance(rate).expected_length(DRAFT_TOKENS),
        "share": 1.0 + rate * DRAFT_TOKENS,
        "length": section.constant("tokens_per_step"),
    }


def laptop_pair(section: Section, draft_compute_ms: float) -> Profile:
    """The int4 7B with the 0.5B: launch-bound passes of the report's times, of which the draft computes this much."""
    base = known(PROFILE)
    launch_s = base.host.eager_kernel_s

    def line(eager_ms: float, compute_ms: float) -> LinearPass:
        return LinearPass(pass_s=compute_ms / 1e3, launches=round(eager_ms / 1e3 / launch_s))

    kernels = msgspec.structs.replace(
        base.linear,
        target=line(section.constant("target_ms"), section.constant("target_compute_ms")),
        draft=line(section.constant("draft_eager_ms"), draft_compute_ms),
    )
    return msgspec.structs.replace(
        base,
        name="rtx-3070-laptop/qwen2.5-7b-int4+qwen2.5-0.5b",
        target=model("qwen2.5-7b"),
        draft=model("qwen2.5-0.5b"),
        kernels=kernels,
    )


def _speculation(section: Section, draws: int) -> list[Row]:
    """Speed-ups over plain decoding, by reading of the acceptance and by the draft's passes."""
    compute_ms = section.constant("draft_compute_ms")
    slower_ms = section.constant("draft_eager_ms") / section.claimed("F.graph.0.5b")
    by_length = lengths(section)
    eager, graphed, slower = (
        {name: speed_up(section, length, draft_ms, cuda_graph, draws) for name, length in by_length.items()}
        for draft_ms, cuda_graph in ((compute_ms, False), (compute_ms, "draft"), (slower_ms, "draft"))
    )
    ahead = speed_up(section, by_length["share"], compute_ms, "draft", draws, policy=AHEAD)
    values = [*graphed.values(), *slower.values()]
    return [
        section.row(
            "F.spec.speedup",
            eager["share"],
            (min(eager.values()), max(eager.values())),
            is_met=eager["conditional"] < 1.0 and eager["share"] < 1.0,
            **eager,
        ),
        section.row(
            "F.spec.whatif",
            graphed["share"],
            (min(values), max(values)),
            is_met=min(values) > 1.0,
            slower_ms=slower_ms,
            compute_ms=compute_ms,
            ahead=ahead,
            **graphed,
            **{f"slower_{name}": value for name, value in slower.items()},
        ),
    ]


def speed_up(
    section: Section,
    tokens_per_step: float,
    draft_compute_ms: float,
    cuda_graph: bool | str,
    draws: int,
    *,
    policy: str = STEP_BY_STEP,
) -> float:
    """Time per token of plain eager decoding over that of speculation."""
    pair = laptop_pair(section, draft_compute_ms)
    lanes: dict[str, Json] = (
        {"policy_options.hybrid_requests": 0, "policy_options.poll_s": 0} if policy == STEP_BY_STEP else {}
    )
    load: dict[str, Json] = PLAIN | {
        "num_prompts": 10,
        "request_rate": "inf",
        "policy_options.workers": 1,
        "engine.num_gpu_blocks": 4096,
    }
    plain = cell("baseline", 2, pair, {**load, "engine.cuda_graph": False})
    speculation: dict[str, Json] = {
        "num_speculative_tokens": DRAFT_TOKENS,
        "acceptance": f"length:{tokens_per_step}",
        "engine.cuda_graph": cuda_graph,
        "engine.max_num_seqs": 1,
    }
    drafted = cell(policy, draws, pair, {**load, **speculation, **lanes})
    return plain.mean("mean_tpot_ms") / drafted.mean("mean_tpot_ms")


def _transfers(section: Section) -> list[Row]:
    """KV of the 7B's geometry over the TCP link."""
    link, per_token = link_of("tcp"), kv_bytes_per_token(model("qwen2.5-7b"), 1)
    rows = []
    for tokens, claim_id in TRANSFERS.items():
        num_bytes = tokens * per_token
        seconds = link.latency_s + num_bytes / link.bytes_per_s
        rows.append(section.row(claim_id, 1e3 * seconds, megabytes=num_bytes / 1e6, gb_per_s=num_bytes / seconds / 1e9))
    return rows


def _identical(section: Section) -> Row:
    """The same tape served colocated and disaggregated: tokens and rounds of every request."""
    found = {}
    for policy in ("pd", "disaggregated"):
        scenario = Scenario.of(
            profile=PAIR, policy=policy, input_len=200, output_len=60, num_prompts=40, request_rate=4, seed=SEED
        )
        record = simulate(resolve(scenario, known(PAIR), policy), child_seed(SEED, 0))
        served = attrgetter("id", "emitted_tokens", "num_rounds", "accepted_tokens")
        found[policy] = list(map(served, record.requests))
    same = sum(one == other for one, other in zip(found["pd"], found["disaggregated"], strict=True))
    total = len(found["pd"])
    return section.row(
        "F.disagg.identical", f"{same} of {total} requests alike", is_met=same == total, same=same, total=total
    )
