"""`lanesim validate vllm`: the command line of calibrate.served.as_recorded. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from calibrate.cli.engine_flags import Budget, JudgingFlags, Requests, Seats, check_outputs, set_up, write_result
from calibrate.cli.profile_output import print_compared
from sim.cli.flags import command

EXAMPLE = (
    "lanesim validate vllm --requests requests.jsonl --profile h100-sxm/llama-3.1-8b \\\n"
    "    --max-num-seqs 256 --max-num-batched-tokens 2048 --set engine.num_gpu_blocks=2588"
)
TITLES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL", "ttft_arrival": "TTFT from arrival"}


class VllmFlags(JudgingFlags, frozen=True, kw_only=True):
    """Flags of vllm."""

    requests: Requests
    prompts: Annotated[
        Path | None,
        Meta(title="PROMPTS.jsonl"),
        "What prompts have in common, one line per request in the same order: prefix_blocks (chained ids of 16-token "
        "blocks) or input_tok_ids.",
    ] = None
    max_num_seqs: Seats
    max_num_batched_tokens: Budget
    num_speculative_tokens: Annotated[int, Meta(le=126), "Draft length; a server with /metrics says its own."] = 0


@command("vllm", VllmFlags, example=EXAMPLE)
def vllm_command(flags: VllmFlags) -> None:
    """Simulate the requests of a real vLLM run, at their recorded arrivals, and say how far off the simulator was.

    TTFT and E2EL count from queued_ts, when the engine took a request in; ttft_arrival from arrival_time. The offset of
    the two clocks is the least queued_ts - arrival_time. TPOT leaves out requests of one output token.
    """
    from calibrate.served.as_recorded import FIGURES, draw_vllm, judge_run, scenario_of
    from calibrate.served.stamped_requests import read_requests
    from sim.costs.profile_files import load
    from sim.run.scenario_file import set_dotted

    limits = {"max_num_seqs": flags.max_num_seqs, "max_num_batched_tokens": flags.max_num_batched_tokens}
    raw, path = set_up(flags.engine, flags.set, **limits), flags.requests
    tokens, acceptance = flags.num_speculative_tokens, raw.get("speculation", {}).get("acceptance")
    tape = str(acceptance).removeprefix("tape:")
    inputs = [path, flags.prompts, flags.profile, flags.engine, tape, tape.rpartition("#")[0]]
    check_outputs(flags, inputs, FIGURES)
    if tokens > 0 and raw.get("policy") == "autoregressive":
        raise ValueError(f"--num-speculative-tokens {tokens}: autoregressive drafts nothing; use continuous")
    if tokens > 0 and acceptance is None:
        raise ValueError(f"--num-speculative-tokens {tokens}: none is assumed; --set speculation.acceptance=iid:.7")
    set_dotted(raw, "speculation.num_speculative_tokens", tokens)
    loaded = load(flags.profile)
    scenario = scenario_of(path, loaded.name, raw)
    real = read_requests(path, flags.prompts, scenario.engine.block_size)
    ranks = scenario.devices.count
    if loaded.target.experts is not None and loaded.data_parallel != ranks:
        raise ValueError(
            f"devices.count={ranks}: ranks share the experts of {loaded.target.name!r}, and profile "
            f"{loaded.name!r} is of {loaded.data_parallel}: import it with --dp {ranks}"
        )
    verdict = judge_run(real, scenario, loaded)
    if flags.out is not None and flags.plots:
        draw_vllm(flags.out, verdict)
    write_result(verdict.result, flags)
    if flags.json != "-":
        _tell(verdict.result)


def _tell(result: dict[str, Any]) -> None:
    from calibrate.served.as_recorded import LATENCIES
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
            f"{result['preemptions']} preemptions simulated; {hit_rate:.1%} of the prompts' tokens found in the prefix "
            "cache",
            *result["notes"],
        ],
    )
