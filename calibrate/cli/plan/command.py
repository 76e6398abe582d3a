"""`lanesim plan`: the command. Importing this module imports click alone. Not here: its flags (flags), deployments that
are searched (planning), the highest load of one that is given (sim.studies.attainment).
"""

from __future__ import annotations

from calibrate.cli.plan.flags import PlanFlags
from sim.cli.console import claim, note_trace, progress, show
from sim.cli.flags import command
from sim.cli.options import gather, inputs_of, parse_goodput, with_assumptions

EXAMPLE = (
    "lanesim plan Qwen/Qwen3-32B-FP8 --gpu h200-sxm --rate 40 --input-len 1500 \\\n"
    "    --output-len 300 --goodput ttft:1000 tpot:40 --draft eagle3 --price 3.5/gpu-h"
)


@command("plan", PlanFlags, example=EXAMPLE, short_help="GPUs to rent for a rate, or the highest rate of one replica.")
def plan_command(flags: PlanFlags) -> None:
    """Say how many GPUs to rent for MODEL at --rate, within the limits of --goodput.

    It searches the ways to split MODEL over GPUs, with and without the drafter. The best few are simulated many times,
    with GPU times and acceptance varied within their errors.

    Without --rate it finds the highest request rate of one replica. With --profile, --set, --serve or a scenario file
    that one deployment is simulated, and --rate gives its number of replicas.
    """
    is_set = any(not flags.disaggregate or text.startswith("policy=") for text in flags.set)
    is_given = bool(flags.profile or flags.serve or is_set)
    if flags.rate is None or is_given or flags.scenario is None or flags.scenario.suffix in (".yaml", ".yml"):
        if flags.disaggregate:
            raise ValueError("--disaggregate needs MODEL --gpu GPU --rate R. It takes no profile, policy or file")
        _highest(flags)
        return
    claim(files={"--json": flags.json}, inputs=[flags.scenario])
    bounds_ms = parse_goodput(flags.goodput)
    if not bounds_ms:
        raise ValueError("no limit on latency is given. Add one, such as --goodput ttft:1000 tpot:40")
    if flags.input_len is None or flags.output_len is None:
        raise ValueError("the lengths of requests are missing. Give them, such as --input-len 1000 --output-len 200")
    from calibrate.cli.plan.planning import planned

    with progress() as on_step:
        result = planned(flags, bounds_ms, on_step)
    show(flags.json, result, is_verbose=flags.verbose)


def _highest(flags: PlanFlags) -> None:
    """The highest load of the deployment that is given, and the replicas for a rate."""
    from sim.costs.profile_files import load
    from sim.run.scenario import parse_scenario
    from sim.studies.attainment import highest_load, usd_per_gpu_h

    price = usd_per_gpu_h(flags.price)
    scenario = parse_scenario(with_assumptions(gather(flags)))
    claim(files={"--json": flags.json}, inputs=inputs_of(flags.scenario, scenario))
    profile = load(scenario.profile)
    if (gpus := profile.tensor_parallel * profile.data_parallel) > (flags.gpus or gpus):
        raise ValueError(f"{profile.name} takes {gpus} GPUs, more than --gpus {flags.gpus}")
    with progress() as on_step:
        result = highest_load(
            scenario,
            profile,
            target_rate=flags.rate,
            price=price,
            draws=flags.draws,
            on_done=on_step,
        )
    note_trace(scenario.workload)
    show(flags.json, result, is_verbose=flags.verbose)
