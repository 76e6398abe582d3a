"""`lanesim capacity`: the command line of sim.studies.attainment."""

from __future__ import annotations

from typing import Annotated

from sim.cli.console import claim, progress, say_runs, say_trace, show
from sim.cli.flags import Draws, JsonFile, Overwrite, Price, Rate, Share, Verbose, command
from sim.cli.options import ServedFlags, gather, inputs_of, with_assumptions

EXAMPLE = (
    "lanesim capacity --profile h100-sxm/llama-3.1-8b --policy autoregressive \\\n"
    "    --goodput ttft:500 tpot:40 --input-len 512 --output-len 64 --target-rate 100 --price 2.5/gpu-h"
)


class CapacityFlags(ServedFlags, frozen=True, kw_only=True):
    """Flags of `lanesim capacity`."""

    attainment: Annotated[Share, "Share of the requests that meets all SLOs."] = 0.95
    target_rate: Annotated[Rate | None, "Requests per second to find the replicas for."] = None
    price: Price = None
    draws: Annotated[Draws | None, "Draws of costs and acceptance within their errors; 0: as given. [default: 20]"] = (
        None
    )
    verbose: Verbose = False
    json: JsonFile = None
    overwrite: Overwrite = False


@command("capacity", CapacityFlags, example=EXAMPLE)
def capacity_command(flags: CapacityFlags) -> None:
    """Highest request rate at which a share of the requests meets all SLOs (--goodput) jointly, with its interval over
    runs, and its range over draws of costs and acceptance within their measured errors.

    With --target-rate the replicas to rent: the fewest that are simulated to be enough in so many draws that a further
    one holds as well with 90 % confidence. Requests find them by devices.routing.
    """
    from sim.costs.profile_files import load
    from sim.metrics.price import usd_per_gpu_h
    from sim.run.scenario import parse_scenario
    from sim.studies.attainment import highest_load

    price = usd_per_gpu_h(flags.price)
    scenario = parse_scenario(with_assumptions(gather(flags)))
    claim(files={"--json": flags.json}, inputs=inputs_of(flags.scenario, scenario))
    say_trace(scenario.workload, is_quiet=flags.json == "-")
    say_runs(len(scenario.policy) * (flags.draws or 0))
    with progress() as on_step:
        result = highest_load(
            scenario,
            load(scenario.profile),
            share=flags.attainment,
            target_rate=flags.target_rate,
            price=price,
            draws=flags.draws,
            on_done=on_step,
        )
    show(flags.json, result, is_verbose=flags.verbose)
