"""`lanesim validate vllm`: the command line of realrun.validate.vllm.compare. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from realrun.cli.engine_flags import POLICIES, engine_block, engine_options
from realrun.cli.output import check_outputs, output_options, write_result

if TYPE_CHECKING:
    from realrun.validate.vllm.compare import VllmVerdict

EXAMPLE = (
    "\b\nExample:\n  lanesim validate vllm --requests requests.jsonl --profile h100-sxm/llama-3.1-8b \\\n"
    "    --max-num-seqs 256 --max-num-batched-tokens 2048 --num-gpu-blocks 2588"
)
TITLES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL", "ttft_arrival": "TTFT from arrival"}


@click.command("vllm", epilog=EXAMPLE)
@click.option("--requests", "path", type=click.Path(path_type=Path), required=True,
              help="JSON lines: request_id, input_toks, output_toks, arrival_time, queued_ts, scheduled_ts, "
              "first_token_ts, last_token_ts.")  # fmt: skip
@click.option("--prompts", type=click.Path(path_type=Path), default=None, metavar="PROMPTS.jsonl",
              help="What prompts have in common, one line per request in the same order: prefix_blocks (chained ids of "
              "16-token blocks) or input_tok_ids.")  # fmt: skip
@click.option("--profile", required=True, help="Cost profile: gpu/target[+draft], or a path.")
@click.option("--max-num-seqs", type=int, required=True, help="As vLLM was started with.")
@click.option("--max-num-batched-tokens", type=int, required=True, help="As vLLM was started with.")
@engine_options
@click.option("--num-speculative-tokens", type=int, default=0, show_default=True, help="0 = no speculation.")
@click.option("--acceptance", default=None, help="iid:0.7, length:2.5, tape:FILE#FIELD, ...; needed with speculation.")
@click.option("--policy", type=click.Choice(POLICIES), default="continuous", show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Of the acceptance luck.")
@output_options
def vllm_command(path: Path, prompts: Path | None, profile: str, policy: str, seed: int, **flags: Any) -> None:
    """Simulate the requests of a real vLLM run, at their recorded arrivals, and say how far off the simulator was.

    TTFT and E2EL count from queued_ts, when the engine took a request in; ttft_arrival from arrival_time. The offset of
    the two clocks is the least queued_ts - arrival_time. TPOT leaves out requests of one output token.
    """
    from realrun.validate.vllm.compare import draw_vllm, judge_run, scenario_of
    from realrun.validate.vllm.requests import read_requests
    from sim.costs.profile_files import load
    from sim.workload.content import BLOCK_TOKENS

    tape = (flags["acceptance"] or "").removeprefix("tape:")
    check_outputs(flags, [path, prompts, profile, flags["engine_name"], tape, tape.rpartition("#")[0]])
    speculation = _speculation(flags, policy)
    engine = engine_block(flags)
    loaded = load(profile)
    real = read_requests(path, prompts, engine.get("block_size", BLOCK_TOKENS))
    scenario = scenario_of(path, len(real.requests), loaded.name, policy, engine, speculation, seed)
    verdict = judge_run(real, scenario, loaded)
    if flags["out"] is not None and flags["plots"]:
        draw_vllm(flags["out"], verdict)
    write_result(verdict.result, flags)
    if flags["json_path"] != "-":
        _tell(verdict)


def _speculation(flags: dict[str, Any], policy: str) -> dict[str, Any]:
    """The scenario's `speculation` block. Raises ValueError for a policy that drafts nothing, or no acceptance."""
    tokens, acceptance = flags["num_speculative_tokens"], flags["acceptance"]
    if tokens > 0 and policy == "autoregressive":
        raise ValueError(f"--num-speculative-tokens {tokens}: --policy autoregressive drafts nothing; use continuous")
    if tokens > 0 and acceptance is None:
        raise ValueError(f"--num-speculative-tokens {tokens} needs --acceptance, such as length:2.5: none is assumed")
    block = {"num_speculative_tokens": tokens, "acceptance": acceptance, "method": flags["method"]}
    return {name: value for name, value in block.items() if value is not None}


def _tell(verdict: VllmVerdict) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from realrun.validate.errors import STATISTICS
    from realrun.validate.vllm.compare import LATENCIES
    from sim.report.tables import percent, print_table, significant

    result = verdict.result
    title = f"{result['profile']['name']}, {result['policy']}: {result['num_requests']} requests"
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column("metric", no_wrap=True)
    for heading in ("", "real", "simulated", "error"):
        table.add_column(heading, justify="right", no_wrap=True)
    rows = [
        (f"{TITLES[name]} (ms)" if statistic == "mean" else "", statistic, result["metrics"][name][statistic])
        for name in LATENCIES
        for statistic in STATISTICS
    ]
    for name, statistic, values in [*rows, ("output (tok/s)", "", result["metrics"]["output_throughput"])]:
        table.add_row(
            name, statistic, significant(values["real"]), significant(values["simulated"]), percent(values["error_pct"])
        )
    console = Console(markup=False)
    print_table(console, table)
    found = result["prefix_cache_hit_rate"] or 0.0
    console.print(
        f"{result['preemptions']} preemptions simulated; {found:.1%} of the prompts' blocks found in the prefix cache",
        highlight=False,
    )
    for note in result["notes"]:
        console.print(note, style="dim", highlight=False)
