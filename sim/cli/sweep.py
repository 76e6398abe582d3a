"""`lanesim sweep`: a grid into a store."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated, Literal

import click
from msgspec import Meta, Struct, structs

from sim.cli.console import claim, note_trace, progress, write_json
from sim.cli.flags import ARGUMENT, JsonFile, Overwrite, Workers, command
from sim.cli.lazy import SOURCE

EXAMPLE = (
    "printf 'scenario: {profile: cpu/tiny, policy: [continuous, pd], workload: {num_prompts: 50}}\\n"
    "grid: {workload.request_rate: [2, 4, 8], speculation.num_speculative_tokens: [0, 2, 4]}\\n' > grid.yaml\n"
    "  lanesim sweep grid.yaml --out results/store"
)


class SweepFlags(Struct, frozen=True, kw_only=True):
    """Flags of `lanesim sweep`."""

    grid: Annotated[Path, ARGUMENT]
    out: Annotated[Path, Meta(title="STORE"), "Store to add to."]
    workers: Workers = None
    pool: Annotated[Literal["process", "ray"], "ray: run on a Ray cluster."] = "process"
    json: JsonFile = None
    overwrite: Overwrite = False


@command("sweep", SweepFlags, example=EXAMPLE)
def sweep_command(flags: SweepFlags) -> None:
    """Run all combinations of GRID that STORE does not have yet, with the same requests in each.

    GRID is a YAML file. `scenario:` is a scenario. `grid:` lists values for its dotted keys, and for `profile`,
    `policy` and `engine`. All combinations are run. `zip:` pairs lists instead. `replications:` is runs of each point.

    Run the command again to continue a sweep that was stopped. Several grids and processes may write to one store. A
    run that fails is kept with its error and tried again by the next sweep. `lanesim report` makes a page of STORE,
    `lanesim.load(STORE)` a table.
    """
    from sim.studies.sweeps.grid import Grid
    from sim.studies.sweeps.store import MARK, Store
    from sim.studies.sweeps.sweep import MAX_RUNS, SweepPlan, sweep

    grid, out, workers = flags.grid, flags.out, flags.workers
    click.get_current_context().meta[SOURCE] = str(grid)
    read = Grid.of(grid)
    if read.num_runs > MAX_RUNS:
        raise ValueError(f"{str(grid)!r} is {read.num_runs:,} runs, more than {MAX_RUNS:,}. Split it over grids")
    plan = SweepPlan.of(read)
    claim(files={"--json": flags.json}, added_to={"--out": out}, inputs=[grid, *plan.inputs, out / MARK])
    for workload in read.workloads():
        with suppress(ValueError):  # What cannot be read is the error of its rows.
            note_trace(workload)
    store, executor = Store.open(out), None
    with progress() as on_step, ExitStack() as stack:
        if flags.pool == "ray":
            from sim.studies.sweeps.ray_pool import ray_workers

            executor, workers = stack.enter_context(ray_workers(workers))
        done = sweep(plan, store, workers=workers, executor=executor, on_done=on_step)
    if write_json(flags.json, structs.asdict(done)):
        print(f"{out} has {done.num_runs:,} runs of this grid, {done.num_runs - done.num_known:,} of them new.")
        if done.num_failed:
            print(f"{done.num_failed:,} runs failed: see the column `error` of lanesim.load.")
        if done.num_failed < done.num_runs:
            from sim.report.say import sweep_sentence
            from sim.report.store_points import read_points

            print(sweep_sentence(read_points(out)))
            print(f"\nmore       lanesim report {out} --out page.html")
