"""`lanesim validate vllm`: the command line of calibrate.judge.vllm_runs. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from calibrate.cli.engine_flags import JudgingFlags, Seats, UpToBillion, engine_block
from calibrate.judge.validation_output import check_outputs, print_compared, write_result
from sim.cli.flags import Gpus, command

if TYPE_CHECKING:
    from sim.files.json_values import Json

EXAMPLE = (
    "lanesim validate vllm --requests requests.jsonl --profile h100-sxm/llama-3.1-8b \\\n"
    "    --max-num-seqs 256 --max-num-batched-tokens 2048 --num-gpu-blocks 2588"
)
TITLES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL", "ttft_arrival": "TTFT from arrival"}


class VllmFlags(JudgingFlags, frozen=True, kw_only=True):
    """Flags of `lanesim validate vllm`."""

    requests: Annotated[
        Path,
        "JSON lines: request_id, input_toks, output_toks, arrival_time, queued_ts, scheduled_ts, first_token_ts, "
        "last_token_ts.",
    ]
    prompts: Annotated[
        Path | None,
        Meta(title="PROMPTS.jsonl"),
        "What prompts have in common, one line per request in the same order: prefix_blocks (chained ids of 16-token "
        "blocks) or input_tok_ids.",
    ] = None
    max_num_seqs: Annotated[Seats, "The server's, as vLLM was started."]
    max_num_batched_tokens: Annotated[UpToBillion, "The server's, as vLLM was started."]
    data_parallel_size: Annotated[
        Gpus, "Ranks, each with seats and KV of its own; a request goes to the least busy."
    ] = 1
    num_speculative_tokens: Annotated[int, Meta(le=126), "0 = no speculation."] = 0
    acceptance: Annotated[str | None, "iid:0.7, length:2.5, tape:FILE#FIELD, ...; needed with speculation."] = None
    policy: Literal["continuous", "autoregressive"] = "continuous"
    """vLLM's engines; `autoregressive` drafts nothing."""


@command("vllm", VllmFlags, example=EXAMPLE)
def vllm_command(flags: VllmFlags) -> None:
    """Simulate the requests of a real vLLM run, at their recorded arrivals, and say how far off the simulator was.

    TTFT and E2EL count from queued_ts, when the engine took a request in; ttft_arrival from arrival_time. The offset of
    the two clocks is the least queued_ts - arrival_time. TPOT leaves out requests of one output token.
    """
    from calibrate.judge.vllm_requests import read_requests
    from calibrate.judge.vllm_runs import FIGURES, draw_vllm, judge_run, scenario_of
    from sim.costs.profile_files import load
    from sim.workload.content import BLOCK_TOKENS

    path, ranks, tape = flags.requests, flags.data_parallel_size, (flags.acceptance or "").removeprefix("tape:")
    inputs = [path, flags.prompts, flags.profile, flags.engine, tape, tape.rpartition("#")[0]]
    check_outputs(flags, inputs, FIGURES)
    speculation = _speculation(flags)
    engine = engine_block(flags, flags.max_num_seqs, flags.max_num_batched_tokens)
    loaded = load(flags.profile)
    real = read_requests(path, flags.prompts, flags.block_size or BLOCK_TOKENS)
    if loaded.target.experts is not None and loaded.data_parallel != ranks:
        raise ValueError(
            f"--data-parallel-size {ranks}: ranks share the experts of {loaded.target.name!r}, and profile "
            f"{loaded.name!r} is of {loaded.data_parallel}: import it with --dp {ranks}"
        )
    scenario = scenario_of(path, len(real.requests), loaded.name, flags.policy, engine, speculation, flags.seed, ranks)
    verdict = judge_run(real, scenario, loaded)
    if flags.out is not None and flags.plots:
        draw_vllm(flags.out, verdict)
    write_result(verdict.result, flags)
    if flags.json != "-":
        _tell(verdict.result)


def _speculation(flags: VllmFlags) -> dict[str, Json]:
    """The scenario's `speculation` block. Raises ValueError for a policy that drafts nothing, or no acceptance."""
    tokens, acceptance = flags.num_speculative_tokens, flags.acceptance
    if tokens > 0 and flags.policy == "autoregressive":
        raise ValueError(f"--num-speculative-tokens {tokens}: --policy autoregressive drafts nothing; use continuous")
    if tokens > 0 and acceptance is None:
        raise ValueError(f"--num-speculative-tokens {tokens} needs --acceptance, such as length:2.5: none is assumed")
    block = {"num_speculative_tokens": tokens, "acceptance": acceptance, "method": flags.method}
    return {name: value for name, value in block.items() if value is not None}


def _tell(result: dict[str, Any]) -> None:
    from calibrate.judge.vllm_runs import LATENCIES
    from sim.metrics.compared import STATISTICS, THROUGHPUT

    metrics = result["metrics"]
    rows = [
        ((f"{TITLES[name]} (ms)" if statistic == "mean" else "", statistic), metrics[name][statistic])
        for name in LATENCIES
        for statistic in STATISTICS
    ]
    hit_rate = result["prefix_cache_hit_rate"] or 0.0
    print_compared(
        f"{result['profile']['name']}, {result['policy']}: {result['num_requests']} requests",
        ("metric", ""),
        [*rows, (("output (tok/s)", ""), metrics[THROUGHPUT])],
        [
            f"{result['preemptions']} preemptions simulated; {hit_rate:.1%} of the prompts' blocks found in the prefix "
            "cache",
            *result["notes"],
        ],
    )
