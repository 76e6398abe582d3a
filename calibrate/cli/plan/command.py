"""`lanesim plan`: the command. Importing this module imports click alone. Not here: its flags (flags), the answer
(planning)."""

from __future__ import annotations

from calibrate.cli.plan.flags import PlanFlags
from sim.cli.console import claim, progress, show
from sim.cli.flags import command
from sim.cli.options import parse_goodput

EXAMPLE = (
    "lanesim plan Qwen/Qwen3-32B-FP8 --gpu h200-sxm --rate 40 --input-len 1500 \\\n"
    "    --output-len 300 --goodput ttft:1000 tpot:40 --draft eagle3 --price 3.5/gpu-h"
)


@command("plan", PlanFlags, example=EXAMPLE, short_help="A deployment to rent, from a model's name.")
def plan_command(flags: PlanFlags) -> None:
    """Deployments of MODEL to rent: a Hugging Face name, a config.json, or a profile's name.

    Splits over GPUs are searched, with and without the drafter; the best few are simulated again and again, with costs
    and acceptance drawn anew within their measured errors.
    """
    claim(files={"--json": flags.json}, inputs=[flags.model])
    bounds_ms = parse_goodput(flags.goodput)
    if not bounds_ms:
        raise ValueError("plan: no SLO given; want some of --goodput ttft:MS tpot:MS e2el:MS")
    from calibrate.cli.plan.planning import planned

    with progress() as on_step:
        result = planned(flags, bounds_ms, on_step)
    show(flags.json, result)
