"""`lanesim capacity`: the command line of sim.studies.attainment."""

from __future__ import annotations

from typing import Any

import click

from sim.cli.console import claim, progress, say_trace, write_json
from sim.cli.options import (
    DRAWS,
    OVERWRITE,
    RATE,
    SHARE,
    VERBOSE,
    WORKERS,
    ListOptions,
    gather,
    inputs_of,
    scenario_options,
)

EXAMPLE = (
    "\b\nExample:\n  lanesim capacity --profile h100-sxm/llama-3.1-8b --policy autoregressive \\\n"
    "    --goodput ttft:500 tpot:40 --input-len 512 --output-len 64 --target-rate 100 --price 2.5/gpu-h"
)


@click.command("capacity", cls=ListOptions, epilog=EXAMPLE)
@scenario_options
@click.option("--attainment", "share", type=SHARE, default=0.95, show_default=True, help="Share that meets all SLOs.")
@click.option("--concurrency", "is_concurrency", is_flag=True, help="Highest number in flight in place of the rate.")
@click.option("--target-rate", type=RATE, default=None, help="Requests per second to find the replicas for.")
@click.option("--price", default=None, metavar="USD/gpu-h", help="3.5/gpu-h, or 7/replica-h.")
@click.option(
    "--draws",
    type=DRAWS,
    default=None,
    help="Draws of costs and acceptance within their errors; 0: as given. [default: 20]",
)
@VERBOSE
@click.option("--workers", type=WORKERS, default=None, help="Processes. [default: one per core]")
@click.option("--json", "json_path", default=None, metavar="FILE", help="Write the answer as JSON; - = stdout.")
@OVERWRITE
def capacity_command(
    share: float,
    is_concurrency: bool,
    target_rate: float | None,
    price: str | None,
    draws: int | None,
    verbose: bool,
    workers: int | None,
    json_path: str | None,
    **flags: Any,
) -> None:
    """Highest request rate at which a share of the requests meets all SLOs (--goodput) jointly, with its interval over
    runs, and its range over draws of what costs and acceptance might as well be.

    With --target-rate the replicas to rent under each routing: the fewest that are simulated to be enough in so many
    draws that a further one holds as well with 90 % confidence.
    """
    from sim.costs.profile_files import load
    from sim.metrics.price import Price
    from sim.run.scenario import parse_scenario
    from sim.studies.attainment import highest_load

    replica_price = None if price is None else Price.of_text(price)
    path = flags["scenario"]
    scenario = parse_scenario(gather(flags))
    claim(files={"--json": json_path}, inputs=inputs_of(path, scenario))
    say_trace(scenario.workload, is_quiet=json_path == "-")
    with progress() as on_step:
        result = highest_load(
            scenario,
            load(scenario.profile),
            share=share,
            is_concurrency=is_concurrency,
            target_rate=target_rate,
            price=replica_price,
            draws=draws,
            workers=workers,
            on_done=on_step,
        )
    if write_json(json_path, result.plain):
        from rich.console import Console

        from sim.report.answers import print_attainment

        print_attainment(Console(), result, is_verbose=verbose)
