"""`lanesim validate vllm`: the command line of calibrate.judge.vllm_runs. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import click

from calibrate.cli.engine_flags import POLICIES, EngineFlags, engine_block, engine_options
from calibrate.judge.validation_output import OutputFlags, check_outputs, output_options, print_compared, write_result
from sim.cli.options import COUNT, GPUS, UP_TO_BILLION

if TYPE_CHECKING:
    from sim.files.json_values import Json

EXAMPLE = (
    "\b\nExample:\n  lanesim validate vllm --requests requests.jsonl --profile h100-sxm/llama-3.1-8b \\\n"
    "    --max-num-seqs 256 --max-num-batched-tokens 2048 --num-gpu-blocks 2588"
)
TITLES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL", "ttft_arrival": "TTFT from arrival"}


class VllmFlags(EngineFlags, OutputFlags):
    """Flags that are passed on, by parameter."""

    data_parallel_size: int
    num_speculative_tokens: int
    acceptance: str | None


@click.command("vllm", epilog=EXAMPLE)
@click.option("--requests", "path", type=click.Path(path_type=Path), required=True,
              help="JSON lines: request_id, input_toks, output_toks, arrival_time, queued_ts, scheduled_ts, "
              "first_token_ts, last_token_ts.")  # fmt: skip
@click.option("--prompts", type=click.Path(path_type=Path), default=None, metavar="PROMPTS.jsonl",
              help="What prompts have in common, one line per request in the same order: prefix_blocks (chained ids of "
              "16-token blocks) or input_tok_ids.")  # fmt: skip
@click.option("--profile", required=True, help="Cost profile: gpu/target[+draft], or a path.")
@click.option(
    "--max-num-seqs", type=click.IntRange(max=COUNT), required=True, help="The server's, as vLLM was started."
)
@click.option(
    "--max-num-batched-tokens",
    type=UP_TO_BILLION,
    required=True,
    help="The server's, as vLLM was started.",
)
@click.option(
    "--data-parallel-size",
    type=GPUS,
    default=1,
    show_default=True,
    help="Ranks, each with seats and KV of its own; a request goes to the least busy.",
)
@engine_options
@click.option(
    "--num-speculative-tokens", type=click.IntRange(max=126), default=0, show_default=True, help="0 = no speculation."
)
@click.option("--acceptance", default=None, help="iid:0.7, length:2.5, tape:FILE#FIELD, ...; needed with speculation.")
@click.option("--policy", type=click.Choice(POLICIES), default="continuous", show_default=True)
@click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Seed of the acceptance draws."
)
@output_options
def vllm_command(
    path: Path, prompts: Path | None, profile: str, policy: str, seed: int, **flags: Unpack[VllmFlags]
) -> None:
    """Simulate the requests of a real vLLM run, at their recorded arrivals, and say how far off the simulator was.

    TTFT and E2EL count from queued_ts, when the engine took a request in; ttft_arrival from arrival_time. The offset of
    the two clocks is the least queued_ts - arrival_time. TPOT leaves out requests of one output token.
    """
    from calibrate.judge.vllm_requests import read_requests
    from calibrate.judge.vllm_runs import FIGURES, draw_vllm, judge_run, scenario_of
    from sim.costs.profile_files import load
    from sim.workload.content import BLOCK_TOKENS

    tape = (flags["acceptance"] or "").removeprefix("tape:")
    check_outputs(flags, [path, prompts, profile, flags["engine_name"], tape, tape.rpartition("#")[0]], FIGURES)
    speculation = _speculation(flags, policy)
    engine = engine_block(flags)
    loaded = load(profile)
    real = read_requests(path, prompts, flags["block_size"] or BLOCK_TOKENS)
    ranks = flags["data_parallel_size"]
    if loaded.target.experts is not None and loaded.data_parallel != ranks:
        raise ValueError(
            f"--data-parallel-size {ranks}: ranks share the experts of {loaded.target.name!r}, and profile "
            f"{loaded.name!r} is of {loaded.data_parallel}: import it with --dp {ranks}"
        )
    scenario = scenario_of(path, len(real.requests), loaded.name, policy, engine, speculation, seed, ranks)
    verdict = judge_run(real, scenario, loaded)
    if flags["out"] is not None and flags["plots"]:
        draw_vllm(flags["out"], verdict)
    write_result(verdict.result, flags)
    if flags["json_path"] != "-":
        _tell(verdict.result)


def _speculation(flags: VllmFlags, policy: str) -> dict[str, Json]:
    """The scenario's `speculation` block. Raises ValueError for a policy that drafts nothing, or no acceptance."""
    tokens, acceptance = flags["num_speculative_tokens"], flags["acceptance"]
    if tokens > 0 and policy == "autoregressive":
        raise ValueError(f"--num-speculative-tokens {tokens}: --policy autoregressive drafts nothing; use continuous")
    if tokens > 0 and acceptance is None:
        raise ValueError(f"--num-speculative-tokens {tokens} needs --acceptance, such as length:2.5: none is assumed")
    block = {"num_speculative_tokens": tokens, "acceptance": acceptance, "method": flags["method"]}
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
    found = result["prefix_cache_hit_rate"] or 0.0
    print_compared(
        f"{result['profile']['name']}, {result['policy']}: {result['num_requests']} requests",
        ("metric", ""),
        [*rows, (("output (tok/s)", ""), metrics[THROUGHPUT])],
        [
            f"{result['preemptions']} preemptions simulated; {found:.1%} of the prompts' blocks found in the prefix "
            "cache",
            *result["notes"],
        ],
    )
