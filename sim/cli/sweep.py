"""`lanesim sweep`: a grid into a store."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import click
from msgspec import Meta, Struct

from sim.cli.console import claim, progress, say_trace
from sim.cli.flags import ARGUMENT, JsonFile, Overwrite, Workers, command
from sim.cli.lazy import SOURCE

if TYPE_CHECKING:
    from sim.studies.sweeps.sweep import SweepEstimate, Swept

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
    pool: Annotated[Literal["process", "ray"], "ray: a cluster's workers."] = "process"
    dry_run: Annotated[bool, "Only say how many points there are, and what they would take."] = False
    json: JsonFile = None
    overwrite: Overwrite = False


@command("sweep", SweepFlags, example=EXAMPLE)
def sweep_command(flags: SweepFlags) -> None:
    """Run every point of GRID that STORE does not have, on the same draws.

    GRID is a YAML file: `scenario:` as a scenario file, `grid:` with a list of values for any dotted key of it,
    `profile`, `policy` and `engine` among them, gone through in all combinations; `zip:` with blocks of lists that are
    gone through side by side; `replications:`.

    A sweep that was killed goes on where it was, grids merge, and several may run into one store at once. A point that
    fails is a row with its error, which the next sweep runs again. Read it with `lanesim.load(STORE)` and
    `lanesim report`.
    """
    from sim.studies.sweeps.grid import Grid
    from sim.studies.sweeps.store import MARK, Store
    from sim.studies.sweeps.sweep import MAX_RUNS, SweepPlan, estimate, sweep

    grid, out, workers = flags.grid, flags.out, flags.workers
    click.get_current_context().meta[SOURCE] = str(grid)
    read = Grid.of(grid)
    if read.num_runs > MAX_RUNS and not flags.dry_run:
        raise ValueError(f"{str(grid)!r} is {read.num_runs:,} runs, want {MAX_RUNS:,} at most; grids add to one store")
    plan = SweepPlan.of(read)
    claim(
        files={"--json": flags.json},
        added_to={"--out": None if flags.dry_run else out},
        inputs=[grid, *plan.inputs, out / MARK],
    )
    for workload in read.workloads():
        with suppress(ValueError):  # What cannot be read is the error of its rows.
            say_trace(workload, is_quiet=flags.json == "-")
    if flags.dry_run:
        known = Store(out).keys() if (out / MARK).exists() else frozenset()
        found = estimate(plan, known, workers=workers)
        if _written(flags.json, found):
            time_left = "unknown: every point tried failed" if found.time_s is None else _spoken(found.time_s)
            print(f"{found.num_runs:,} runs, {found.num_known:,} of them in the store")
            print(f"about {time_left} and {found.memory_mb:.0f} MB, judged by {found.num_sampled} runs")
        return
    store, executor = Store.open(out), None
    with progress() as on_step, ExitStack() as stack:
        if flags.pool == "ray":
            from sim.studies.sweeps.ray_pool import ray_workers

            executor, workers = stack.enter_context(ray_workers(workers))
        done = sweep(plan, store, workers=workers, executor=executor, on_done=on_step)
    if _written(flags.json, done):
        failed = f", {done.num_failed:,} failed (column `error`)" if done.num_failed else ""
        print(
            f"{done.num_runs:,} runs: {done.num_known:,} known, {done.num_runs - done.num_known:,} new{failed}; {out}"
        )
        if done.num_failed < done.num_runs:
            from sim.report.say import sweep_sentence
            from sim.report.store_points import read_points

            print(sweep_sentence(read_points(out)))


def _written(path: str | None, result: Swept | SweepEstimate) -> bool:
    """Write the result as one line of JSON where a path is given; False where stdout is taken by it."""
    import msgspec

    from sim.cli.console import write_text

    if path is not None:
        write_text(path, msgspec.json.encode(result).decode() + "\n")
    return path != "-"


def _spoken(time_s: float) -> str:
    if time_s < 90.0:
        return f"{time_s:.0f} s"
    return f"{time_s / 60.0:.0f} min" if time_s < 5400.0 else f"{time_s / 3600.0:.1f} h"
