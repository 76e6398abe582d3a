"""`lanesim validate FILE`: loads that a file holds, each simulated and compared. No torch.

The words `cells TABLE.csv` and `vllm FILE` ask the same. Not here: which file is what
(calibrate.served.readers), simulating (calibrate.served.judge, calibrate.served.as_sent).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from calibrate.cli.fit import LoadFlags
from calibrate.cli.profile_output import compared_table, print_answer
from sim.cli.console import claim, progress, write_json
from sim.cli.flags import ARGUMENT, command, key
from sim.names import DRAFT_KEY

if TYPE_CHECKING:
    from calibrate.served.load import JudgedLoad
    from sim.metrics.compared import Compared

EXAMPLE = (
    "printf 'concurrency,input_len,output_len,tpot_ms\\n8,1000,200,7.9\\n' > loads.csv\n"
    "  lanesim validate loads.csv --profile h100-sxm/llama-3.1-8b"
)
ARRIVAL = "ttft_arrival"
SPREAD = {"mean_absolute": "", "mean": "+", "max_absolute": ""}
"""Statistics of errors, and the sign with which they are printed."""
TITLES = {ARRIVAL: "TTFT from arrival"}


class FileFlags(LoadFlags, frozen=True, kw_only=True):
    """Flags of a file."""

    path: Annotated[Path, ARGUMENT, Meta(title="FILE")]
    beside: Annotated[Path | None, ARGUMENT, Meta(title="[REQUESTS.csv|PROMPTS.jsonl]")] = None
    num_speculative_tokens: Annotated[
        int, Meta(le=126), key(DRAFT_KEY), "Draft length. A server with /metrics says it."
    ] = 0


@command("file", FileFlags, example=EXAMPLE)
def file_command(flags: FileFlags) -> None:
    """Simulate the loads of FILE and say how far off the simulator was at each.

    A table has columns concurrency, input_len, output_len; optional num_prompts, num_speculative_tokens,
    acceptance_length (bonus included) or acceptance, output_len_std and output_len_max (outputs vary) or
    random_range_ratio (both lengths vary, as in a scenario), max_num_seqs, max_num_batched_tokens, num_gpu_blocks,
    label, arm, role; and what was measured: means ttft_ms, tpot_ms, itl_ms, e2el_ms, output_throughput
    (tokens/s), percentiles such as ttft_p95_ms and tpot_p50_ms. Loads without speculation run `autoregressive`, others
    `continuous`; those whose role is `fitted` judge nothing. Where loads with and without speculation pair up (same
    label, or the same up to its last "/" without an arm; same concurrency and lengths), the speed-up is compared, too.

    Requests of a vLLM run are simulated at their recorded arrivals. TTFT and E2EL count from queued_ts, when the engine
    took a request in; ttft_arrival from arrival_time. The offset of the two clocks is the least queued_ts -
    arrival_time. TPOT leaves out requests of one output token.

    Beside a table may stand REQUESTS.csv of prompt_tokens and output_tokens, which every load goes through in whole
    passes; beside a run PROMPTS.jsonl, what its prompts have in common: prefix_blocks or input_tok_ids, a line each.
    """
    from calibrate.served.judge import LoadSetup, judge_loads, result_of
    from calibrate.served.load_table import LoadTable, read_cells, read_request_list
    from calibrate.served.readers import loads_of, told_by
    from calibrate.served.stamped_requests import STAMPS
    from sim.costs.profile_files import load

    raw = flags.raw
    tape = str(raw.get("speculation", {}).get("acceptance")).removeprefix("tape:")
    inputs = [flags.path, flags.beside, flags.profile, flags.engine, tape, tape.rpartition("#")[0]]
    claim(files={"--json": flags.json}, inputs=inputs)
    ending, names = told_by(flags.path)
    if ending == ".jsonl" and (flags.beside is not None or {*STAMPS, "request_id"} & names):
        _recorded(flags, raw)
        return
    profile = load(flags.profile)
    if ending == ".csv":
        table = read_cells(flags.path, has_requests=flags.beside is not None)
    else:
        table = LoadTable(
            str(flags.path), loads_of(flags.path, flags.num_speculative_tokens or None, raw.get("workload")), []
        )
    setup = LoadSetup.of(raw, read_request_list(flags.beside) if flags.beside is not None else ())
    with progress() as on_step:
        judged = judge_loads(table, profile, setup, partial(on_step, "simulating"))
    result = result_of(table, judged, profile, setup)
    if write_json(flags.json, result):
        _tell(result, judged)


def _tell(result: dict[str, Any], judged: Sequence[JudgedLoad]) -> None:
    """A row per load and metric, and the errors over all of them."""
    from sim.report.said import SURE
    from sim.report.tables import new_table

    rows: list[tuple[Sequence[str], Compared]] = []
    for each in judged:
        name = each.cell.name, "fit" if each.is_fit else "judged"
        for index, (metric, values) in enumerate(each.metrics.items()):
            rows.append(((*(name if index == 0 else ("", "")), metric), values))
    rows += [((pair["name"], pair["role"], "speed-up"), pair) for pair in result["speedups"]]
    errors = [
        [metric, *(f"{each[f'{name}_error_pct']:{sign}.1f}" for name, sign in SPREAD.items()), str(each["cells"])]
        for metric, each in [*result["judged"].items(), ("speed-up", result["speedup"])]
        if each["cells"]
    ]
    tables = [("", compared_table(("load", "", "metric"), rows))]
    if errors:
        titles = ["mean size", "mean", "largest", "loads"]
        tables.append(("errors over all loads, in %", new_table(["metric"], titles, errors, padding=(0, 1, 0, 0))))
    name = result["profile"]["name"]
    verdict = result["verdict"] or f"{name}: no load is judged."
    print_answer(
        verdict, tables, [(SURE, f"Simulated with {name}."), *((SURE, f"{note}.") for note in result["notes"])]
    )


def _recorded(flags: FileFlags, raw: dict[str, Any]) -> None:
    """Requests of a vLLM run, at their recorded arrivals."""
    from calibrate.served.as_sent import judge_run, scenario_of
    from calibrate.served.stamped_requests import read_requests
    from sim.costs.profile_files import load
    from sim.run.scenario_file import set_dotted

    tokens, acceptance = flags.num_speculative_tokens, raw.get("speculation", {}).get("acceptance")
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        if name not in raw["engine"]:
            raise ValueError(f"{str(flags.path)!r} does not say the server's limits. Add --set engine.{name}=N")
    if tokens > 0 and raw.get("policy") == "autoregressive":
        raise ValueError(f"{DRAFT_KEY}={tokens}: autoregressive drafts nothing. Use continuous")
    if tokens > 0 and acceptance is None:
        raise ValueError(f"{DRAFT_KEY}={tokens} needs an acceptance. Add --set speculation.acceptance=iid:.7")
    set_dotted(raw, "speculation.num_speculative_tokens", tokens)
    loaded = load(flags.profile)
    scenario = scenario_of(flags.path, loaded.name, raw)
    real = read_requests(flags.path, flags.beside, scenario.engine.block_size)
    ranks = scenario.devices.count
    if loaded.target.experts is not None and loaded.data_parallel != ranks:
        raise ValueError(
            f"devices.count={ranks}: ranks share the experts of {loaded.target.name!r}, and profile "
            f"{loaded.name!r} is of {loaded.data_parallel}: import it with -dp{ranks} after the target"
        )
    result = judge_run(real, scenario, loaded)
    if not write_json(flags.json, result):
        return
    from sim.report.said import SURE

    hit_rate, errors = result["prefix_cache_hit_rate"] or 0.0, result["metrics"]
    off_pct = errors["e2el"]["mean"]["error_pct"]
    off = "has no latency to compare" if off_pct is None else f"is {abs(off_pct):.0f} % off in mean latency"
    doubts = [
        f"Simulated with {result['profile']['name']} and {result['policy']}: {result['preemptions']} preemptions, "
        f"{hit_rate:.1%} of prompt tokens from the prefix cache.",
        *(f"{note}." for note in result["notes"]),
    ]
    table = compared_table(("metric", ""), metric_rows(errors, ARRIVAL))
    answer = f"The simulation of {result['num_requests']} requests {off}."
    print_answer(answer, [("", table)], [(SURE, doubt) for doubt in doubts])


def metric_rows(errors: Mapping[str, Any], *more: str) -> Iterator[tuple[Sequence[str], Compared]]:
    """Rows of the latencies, of `more` of them, and of the throughput."""
    from sim.metrics.compared import LATENCIES, STATISTICS, THROUGHPUT

    for name in (*LATENCIES, *more):
        for statistic in STATISTICS:
            title = f"{TITLES.get(name, name.upper())} (ms)" if statistic == "mean" else ""
            yield (title, statistic), errors[name][statistic]
    yield ("output (tok/s)", ""), errors[THROUGHPUT]
