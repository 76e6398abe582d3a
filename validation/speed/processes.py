"""Speed of the simulator: CPU seconds and memory of whole processes, in one run beside others' on the same requests.

    .venv/bin/python -m validation speed [--rounds 5] [--only TEXT] [--page FILE] [--csv FILE]

--only: cases whose name has the text; --csv: a table in which the rows replace those of this release.

Every figure is the median over rounds, in which the programs take turns, after one that nobody counts: this
interpreter's lanesim, without its compiled core and with it, where that is built; a bare loop of the same
decisions (validation.speed.bare_loop), whose steps are asserted to be the same; and the offline replay of NVIDIA Dynamo
(Apache-2.0) where its wheels, ai-dynamo and ai-dynamo-runtime 1.6 or later, are installed, whose tokens are asserted to
be as many (of its steps it says nothing). Its drafts cost nothing, so ours come from n-grams beside it, which no pass
makes. Compare ratios of one run, not seconds of two machines.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from sim.run.compiled import SWITCH, is_on
from sim.workload.generate import Workload, build_requests
from validation.tables import csv_rows, write_csv
from validation.tables import page as write_page

PAIR = "h100-sxm/llama-3.1-8b+llama-3.2-1b"
RATE = {0: 12.4, 4: 14.0}
"""Requests per second by draft length that keep about 35 requests in the batch."""
LOOKED_UP_RATE = 18.0
"""Likewise where drafts are looked up."""
LOOKED_UP = ("--set", "speculation.method=ngram")
LANE_RATE = 1.0
MILLION = 1_000_000
"""Requests of the case that the compiled core alone serves, once, without a list of each request's metrics."""
ACCEPTED = 0.7
ASYNC = ("--set", "engine.async_scheduling=true")
ONE_PHI = ("--set", "devices.phi=0.07")
"""Lanes are simulated once, not over the bracket of phi."""
GRID = {
    "scenario": {
        "profile": PAIR,
        "policy": "continuous",
        "workload": {"dataset_name": "azure-conv", "num_prompts": 50},
    },
    "grid": {
        "workload.request_rate": [1, 2, 4, 6, 8, 10, 12, 14, 16, 20],
        "speculation.num_speculative_tokens": [0, 1, 2, 3, 4],
        "speculation.acceptance": ["iid:0.5", "iid:0.6", "iid:0.7", "iid:0.8"],
        "seed": [0, 1, 2, 3, 4],
    },
}
"""1,000 points."""
HEADINGS = {
    "cpu_s": "pure, CPU s",
    "memory_mb": "pure, MB",
    "compiled_s": "compiled, CPU s",
    "compiled_mb": "compiled, MB",
}
"""Columns of the page, by those of the table."""
PURE, COMPILED, BARE, DYNAMO = "lanesim", "lanesim, compiled", "bare loop", "Dynamo replay"

PEAK = """
import re
def peak_mb():
    with open("/proc/self/status") as file:
        return int(re.search("VmHWM:\\\\s+(\\\\d+)", file.read())[1]) / 1024
"""
"""Peak memory of a process since it was executed; its ru_maxrss has what its parent held when it was forked, too."""

LANESIM = """
import json, resource, sys
from sim.cli.main import main
try:
    main()
except SystemExit as exit:
    code = exit.code
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([code, used.ru_utime + used.ru_stime, peak_mb()]), file=sys.stderr)
"""

REFERENCE = """
import json, resource, sys
from validation.speed.bare_loop import run_reference
from sim.costs.profile_files import load
from sim.run.experiment import Experiment
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
profile, num_prompts, rate, draft_tokens, seed = sys.argv[1], *map(float, sys.argv[2:5]), int(sys.argv[5])
scenario = Scenario.of(
    profile=profile, policy="continuous", dataset_name="azure-conv", num_prompts=int(num_prompts), request_rate=rate,
    num_speculative_tokens=int(draft_tokens), acceptance="iid:0.7", max_num_seqs=256, max_num_batched_tokens=2048,
    **{"engine.async_scheduling": False, "speculation.method": "ngram"},
)
resolved = resolve(scenario, load(profile), "continuous")
experiment = Experiment(resolved, seed)
requests = experiment.requests()
steps, end_s = run_reference(
    requests, resolved.costs, experiment.draws(requests), int(draft_tokens), 256,
    resolved.limits.max_num_scheduled_tokens, resolved.limits.slots_per_request, resolved.new_pool(),
)
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([[steps, end_s], used.ru_utime + used.ru_stime, peak_mb()]), file=sys.stderr)
"""

REPLAY = """
import json, resource, sys
from dynamo.replay import run_trace_replay
draft_tokens = int(sys.argv[2])
engine = {"block_size": 16, "num_gpu_blocks": 30_000, "max_num_seqs": 256, "max_num_batched_tokens": 2048,
          "enable_prefix_caching": False}
if draft_tokens:
    engine |= {"aic_nextn": draft_tokens, "aic_nextn_accept_rates": ",".join([sys.argv[3]] * draft_tokens)}
report = run_trace_replay(
    sys.argv[1], extra_engine_args={"engine": engine}, trace_block_size=512, capture_per_request=False
)
used = resource.getrusage(resource.RUSAGE_SELF)
done = [report.summary["completed_requests"], report.summary["total_output_tokens"]]
print(json.dumps([done, used.ru_utime + used.ru_stime, peak_mb()]), file=sys.stderr)
"""


class SpeedCase(NamedTuple):
    """Work that every program does as far as it can."""

    name: str
    policy: str
    num_prompts: int
    rate: float
    draft_tokens: int
    more: tuple[str, ...] = ()

    @property
    def has_peers(self) -> bool:
        """True where other programs serve the same."""
        return self.more == LOOKED_UP


class Used(NamedTuple):
    """Resources that one process used and its result; the latter is that of its kind."""

    gave: Any
    cpu_s: float
    memory_mb: float


SWEEP = "a sweep of 1,000 points of 50 requests"
CASES = (
    SpeedCase("ten requests (start-up)", "continuous", 10, 1.0, 4),
    *(
        SpeedCase(f"continuous, {count:,} requests, {name}", "continuous", count, rate, k, LOOKED_UP)
        for count in (10_000, 100_000)
        for k, rate, name in ((0, RATE[0], "k=0"), (4, LOOKED_UP_RATE, "k=4, n-grams"))
    ),
    SpeedCase(f"continuous, {MILLION:,} requests, k=0", "continuous", MILLION, RATE[0], 0),
    *(
        SpeedCase(f"  asynchronous, 10,000 requests, k={k}", "continuous", 10_000, rate, k, ASYNC)
        for k, rate in RATE.items()
    ),
    *(
        SpeedCase(f"{policy}, 1,000 requests, k=4", policy, 1_000, LANE_RATE, 4, ONE_PHI)
        for policy in ("pd", "pdv", "unified")
    ),
    SpeedCase(SWEEP, "", 50, 0.0, 0),
)


def child(code: str, *arguments: str, core: str = "on") -> tuple[Any, str]:
    """(last line of a fresh interpreter on stderr, as JSON; its stdout); byte code is kept, as once installed. `core`
    says whether runs go to the compiled one."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", PEAK + code, *arguments]
    environment[SWITCH] = core
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stderr.splitlines()[-1]), done.stdout


def simulated(case: SpeedCase, core: str, folder: Path) -> Used:
    """One `lanesim` command: of a sweep all points, else a comparison that writes per-request metrics as JSON."""
    if case.name == SWEEP:
        grid = folder / "grid.yaml"
        grid.write_text(json.dumps(GRID))
        with tempfile.TemporaryDirectory(dir=folder) as store:
            (code, cpu_s, memory_mb), _ = child(
                LANESIM, "sweep", str(grid), "--out", store, "--workers", "1", core=core
            )
        assert code == 0, case
        return Used(None, cpu_s, memory_mb)
    (code, cpu_s, memory_mb), stdout = child(
        LANESIM,
        *("compare", "--policy", case.policy, "--profile", PAIR, "--dataset-name", "azure-conv"),
        *("--num-prompts", str(case.num_prompts), "--request-rate", str(case.rate), "--acceptance", f"iid:{ACCEPTED}"),
        *("--num-speculative-tokens", str(case.draft_tokens), "--seed", "0", "--json", "-"),
        *(("--save-detailed",) if case.num_prompts < MILLION else ()),
        *("--max-num-seqs", "256", "--set", "engine.max_num_batched_tokens=2048"),
        *("--set", "engine.async_scheduling=false", *case.more),
        core=core,
    )
    assert code == 0, case
    return Used(json.loads(stdout)["runs"][0], cpu_s, memory_mb)


def reference(case: SpeedCase, seed: int) -> Used:
    """The bare loop; it gave its steps and the time of the last token."""
    arguments = PAIR, str(case.num_prompts), str(case.rate), str(case.draft_tokens), str(seed)
    return Used(*child(REFERENCE, *arguments)[0])


def replayed(case: SpeedCase, seed: int, tokens: int, folder: Path) -> Used:
    """Dynamo's replay of the same arrivals and lengths, of `tokens` to emit; its steps cost what its polynomial has."""
    trace = folder / f"{case.num_prompts}-{case.draft_tokens}.jsonl"
    if not trace.exists():
        workload = Workload(dataset_name="azure-conv", num_prompts=case.num_prompts, request_rate=case.rate)
        blocks = 0
        with trace.open("w") as file:
            for request in build_requests(workload, seed):
                first, blocks = blocks, blocks - -request.prompt_tokens // 512
                row = {
                    "timestamp": 1e3 * request.arrival_s,
                    "input_length": request.prompt_tokens,
                    "output_length": request.output_tokens,
                    "hash_ids": list(range(first, blocks)),
                }
                file.write(json.dumps(row) + "\n")
    used = Used(*child(REPLAY, str(trace), str(case.draft_tokens), str(ACCEPTED))[0])
    assert used.gave == [case.num_prompts, tokens], used
    return used


def measured(case: SpeedCase, cores: Mapping[str, str], rounds: int, folder: Path) -> dict[str, list[Used]]:
    """[rounds] of each program, which take turns."""
    by_program: dict[str, list[Used]] = {}
    if case.num_prompts >= MILLION:
        return {name: [simulated(case, core, folder)] for name, core in cores.items() if name == COMPILED}
    for _ in range(1 + rounds):
        for name, core in cores.items():
            by_program.setdefault(name, []).append(simulated(case, core, folder))
        if not case.has_peers:
            continue
        run = by_program[PURE][-1].gave
        bare = reference(case, run["seed"])
        steps, end_s = bare.gave
        assert sum(run["num_works"].values()) == steps * (2 if case.draft_tokens else 1), (run["num_works"], steps)
        assert abs(run["duration"] - end_s) < 1e-6 * end_s
        by_program.setdefault(BARE, []).append(bare)
        if find_spec("dynamo") is not None:
            by_program.setdefault(DYNAMO, []).append(replayed(case, run["seed"], run["total_output_tokens"], folder))
    return {name: used[1:] for name, used in by_program.items()}


def row_of(case: SpeedCase, by_program: Mapping[str, Sequence[Used]]) -> dict[str, str]:
    """Medians, and medians of the rounds' ratios; empty where a program did not run."""

    def ratio(ours: str, theirs: str, field: str = "cpu_s") -> str:
        if ours not in by_program or theirs not in by_program:
            return ""
        pairs = zip(by_program[ours], by_program[theirs], strict=True)
        return f"{median(getattr(a, field) / getattr(b, field) for a, b in pairs):.2f}"

    def of(program: str, field: str, digits: int) -> str:
        used = by_program.get(program)
        return f"{median(getattr(each, field) for each in used):.{digits}f}" if used else ""

    runs = [used[-1].gave for used in by_program.values() if isinstance(used[-1].gave, dict)]
    return {
        "case": case.name.strip(),
        "steps": str(runs[0]["num_works"]["step"]) if runs and case.policy == "continuous" else "",
        "tokens": str(runs[0]["total_output_tokens"]) if runs else "",
        "cpu_s": of(PURE, "cpu_s", 2),
        "memory_mb": of(PURE, "memory_mb", 0),
        "compiled_s": of(COMPILED, "cpu_s", 2),
        "compiled_mb": of(COMPILED, "memory_mb", 0),
        "compiled / pure": ratio(COMPILED, PURE),
        "pure / bare loop": ratio(PURE, BARE),
        "pure / Dynamo": ratio(PURE, DYNAMO),
        "compiled / Dynamo": ratio(COMPILED, DYNAMO),
        "memory / Dynamo": ratio(COMPILED if COMPILED in by_program else PURE, DYNAMO, "memory_mb"),
    }


def machine() -> str:
    """Its processor and cores, and the interpreter."""
    with open("/proc/cpuinfo") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def main(rounds: int = 5, only: str = "", page: Path | None = None, csv: Path | None = None) -> None:
    cores = {PURE: "off"} | ({COMPILED: "on"} if is_on() else {})
    lines: list[dict[str, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            if only in case.name:
                lines.append(row_of(case, measured(case, cores, rounds, Path(folder))))
                print(", ".join(f"{key} {value}" for key, value in lines[-1].items() if value), flush=True)
                write(lines, rounds, page, csv)


def write(lines: Sequence[Mapping[str, str]], rounds: int, page: Path | None, csv: Path | None) -> None:
    """The page and the table so far: whoever stops the command keeps them."""
    import pandas as pd

    if page is not None:
        write_page(
            page,
            "speed",
            version=version("lanesim"),
            machine=machine(),
            rounds=str(rounds),
            dynamo=version("ai-dynamo") if find_spec("dynamo") is not None else "not installed",
            table=pd.DataFrame(lines).rename(columns=HEADINGS),
        )
    if csv is not None:
        of_release = [{"release": version("lanesim"), "machine": machine(), **row} for row in lines]
        table = replaced(csv_rows(csv), of_release) if csv.exists() else of_release
        write_csv(csv, list(table[0]), [row.values() for row in table])


def replaced(table: Sequence[Mapping[str, str]], rows: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """`table` with `rows` instead of those of the same release and case; a column that a row lacks is empty there."""
    blank = dict.fromkeys([*rows[0], *table[0]], "")
    new = {(row["release"], row["case"]) for row in rows}
    kept = [row for row in table if (row["release"], row["case"]) not in new]
    return [blank | dict(row) for row in (*kept, *rows)]
