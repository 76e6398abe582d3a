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
from calibrate.cli.profile_output import print_compared
from sim.cli.console import claim, progress, write_text
from sim.cli.flags import ARGUMENT, command, key
from sim.names import DRAFT_KEY

if TYPE_CHECKING:
    from calibrate.served.load import JudgedLoad
    from sim.files.json_values import Json
    from sim.metrics.compared import Compared

EXAMPLE = (
    "printf 'concurrency,input_len,output_len,tpot_ms\\n8,1000,200,7.9\\n' > loads.csv\n"
    "  lanesim validate loads.csv --profile h100-sxm/llama-3.1-8b"
)
RESULT, ARRIVAL = "validation.json", "ttft_arrival"
TITLES = {ARRIVAL: "TTFT from arrival"}


class FileFlags(LoadFlags, frozen=True, kw_only=True):
    """Flags of a file."""

    path: Annotated[Path, ARGUMENT, Meta(title="FILE")]
    beside: Annotated[Path | None, ARGUMENT, Meta(title="[REQUESTS.csv|PROMPTS.jsonl]")] = None
    num_speculative_tokens: Annotated[
        int, Meta(le=126), key(DRAFT_KEY), "Draft length. A server with /metrics says its own."
    ] = 0
    out: Annotated[Path | None, "Directory for validation.json. With a server's URL, the profile to write."] = None


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
    if flags.out is not None and flags.out.exists() and not flags.out.is_dir():
        raise ValueError(f"--out {str(flags.out)!r} is a file; want a directory")
    out = None if flags.out is None else flags.out / RESULT
    claim(files={"--out": out, "--json": flags.json}, inputs=inputs)
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
    _write(result, flags)
    if flags.json != "-":
        _tell(result, judged)


def _write(result: Mapping[str, Json], flags: FileFlags) -> None:
    """`result` as JSON into --out and --json."""
    from sim.files import write
    from sim.report.results import to_json

    text = to_json(result)
    if flags.out is not None:
        write.write_text(flags.out / RESULT, text)
    if flags.json is not None:
        write_text(flags.json, text)


def _tell(result: dict[str, Any], judged: Sequence[JudgedLoad]) -> None:
    """A row per load and metric, and the errors over all of them."""
    rows: list[tuple[Sequence[str], Compared]] = []
    for each in judged:
        name = each.cell.name, "fit" if each.is_fit else "judged"
        for index, (metric, values) in enumerate(each.metrics.items()):
            rows.append(((*(name if index == 0 else ("", "")), metric), values))
    rows += [((pair["name"], pair["role"], "speed-up"), pair) for pair in result["speedups"]]
    lines = [
        f"{metric}: mean absolute error {errors['mean_absolute_error_pct']:.2f} %, mean "
        f"{errors['mean_error_pct']:+.2f} %, largest {errors['max_absolute_error_pct']:.2f} % over "
        f"{errors['cells']} loads"
        for metric, errors in [*result["judged"].items(), ("speed-up", result["speedup"])]
        if errors["cells"]
    ]
    if result["verdict"]:
        print(result["verdict"])
    title = f"{result['profile']['name']}: measured loads"
    print_compared(title, ("load", "", "metric"), rows, [*lines, *result["notes"]])


def _recorded(flags: FileFlags, raw: dict[str, Any]) -> None:
    """Requests of a vLLM run, at their recorded arrivals."""
    from calibrate.served.as_sent import judge_run, scenario_of
    from calibrate.served.stamped_requests import read_requests
    from sim.costs.profile_files import load
    from sim.run.scenario_file import set_dotted

    tokens, acceptance = flags.num_speculative_tokens, raw.get("speculation", {}).get("acceptance")
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        if name not in raw["engine"]:
            raise ValueError(f"{str(flags.path)!r} does not say the server's limits: add --set engine.{name}=N")
    if tokens > 0 and raw.get("policy") == "autoregressive":
        raise ValueError(f"{DRAFT_KEY}={tokens}: autoregressive drafts nothing; use continuous")
    if tokens > 0 and acceptance is None:
        raise ValueError(f"{DRAFT_KEY}={tokens}: none is assumed; --set speculation.acceptance=iid:.7")
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
    _write(result, flags)
    if flags.json == "-":
        return
    hit_rate = result["prefix_cache_hit_rate"] or 0.0
    print_compared(
        f"{result['profile']['name']}, {result['policy']}: {result['num_requests']} requests",
        ("metric", ""),
        list(metric_rows(result["metrics"], ARRIVAL)),
        [
            f"{result['preemptions']} preemptions simulated; {hit_rate:.1%} of the prompts' tokens found in the prefix "
            "cache",
            *result["notes"],
        ],
    )


def metric_rows(errors: Mapping[str, Any], *more: str) -> Iterator[tuple[Sequence[str], Compared]]:
    """Rows of the latencies, of `more` of them, and of the throughput."""
    from sim.metrics.compared import LATENCIES, STATISTICS, THROUGHPUT

    for name in (*LATENCIES, *more):
        for statistic in STATISTICS:
            title = f"{TITLES.get(name, name.upper())} (ms)" if statistic == "mean" else ""
            yield (title, statistic), errors[name][statistic]
    yield ("output (tok/s)", ""), errors[THROUGHPUT]
