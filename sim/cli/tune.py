"""`lanesim tune`: the command line of sim.studies.tune, and for the policy adaptive of sim.studies.load_table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sim.cli.console import claim, progress, say_trace, write_json
from sim.cli.options import VERBOSE, ListOptions, gather, inputs_of, listed, scenario_options

if TYPE_CHECKING:
    from sim.run.scenario import Scenario
    from sim.studies.contexts.tuning import ContextTuning
    from sim.studies.load_table import PolicyTuning
    from sim.studies.tune import Tuning

EXAMPLE = (
    "\b\nExample:\n  lanesim tune --profile h100-sxm/llama-3.1-8b+eagle3 --acceptance length:2.6@3 \\\n"
    "    --num-speculative-tokens 5 --max-num-seqs 32 --input-len 512 --output-len 128"
)


@click.command("tune", cls=ListOptions, epilog=EXAMPLE)
@scenario_options
@click.option(
    "--lengths",
    default=None,
    help="Draft lengths to try. [default: 0,1,.. to num_speculative_tokens, and on while the last is best]",
)
@click.option("--concurrencies", default=None, help="Requests in flight to try. [default: 1,2,4,.. to max_num_seqs]")
@click.option(
    "--contexts",
    default=None,
    help="Prompt lengths with a table each, such as 1k,8k,32k, and what one table for all loses. [default: none]",
)
@click.option(
    "--draws",
    type=int,
    default=None,
    help="Draws within the errors of costs and acceptance. [default: 20; adaptive: 4]",
)
@click.option(
    "--policies", default=None, help="adaptive: lane policies to choose from. [default: pd,unified,pdv,baseline]"
)
@click.option("--target-model", default=None, help="What `vllm serve` loads. [default: as the profile is named]")
@click.option("--draft-model", default=None, help="The draft that it loads. [default: likewise]")
@click.option("--workers", type=click.IntRange(min=1), default=None, help="Processes. [default: one per core]")
@VERBOSE
@click.option("--json", "json_path", default=None, metavar="FILE", help="Write the answer as JSON; - = stdout.")
def tune_command(**flags: Any) -> None:
    """Best draft length by load, as a vLLM table and SGLang's bands, with what it gains and how sure that is.

    Runs a closed loop at every concurrency and draft length, in every draw of what costs and acceptance might as well
    be. With --goodput it maximises requests per second that meet the SLOs. With --policy adaptive it finds the table of
    that policy instead: which lane policy at which load, and the hysteresis.
    """
    from sim.run.scenario import parse_scenario

    json_path, is_verbose, path = flags.pop("json_path"), flags.pop("verbose"), flags["scenario"]
    options = {name: flags.pop(name) for name in OWN_OPTIONS}
    if options["contexts"] and flags.get("input_len") is not None:
        raise ValueError("--input-len: not with --contexts, which are the prompts' lengths")
    raw = gather(flags)
    raw.setdefault("policy", ["continuous"])
    lengths = options["lengths"] = listed("--lengths", options["lengths"], int, WHOLE)
    options["concurrencies"] = listed("--concurrencies", options["concurrencies"], int, WHOLE)
    if lengths:
        raw.setdefault("speculation", {})["num_speculative_tokens"] = max(lengths)
    scenario = parse_scenario(raw)
    claim(files={"--json": json_path}, inputs=inputs_of(path, scenario))
    say_trace(scenario.workload, is_quiet=json_path == "-")
    result = (_policies if scenario.policy == ("adaptive",) else _lengths)(scenario, options)
    if write_json(json_path, result.plain):
        from rich.console import Console

        from sim.report.answers import print_contexts, print_policies, print_tuning
        from sim.studies.contexts.tuning import ContextTuning
        from sim.studies.tune import Tuning

        console = Console()
        if isinstance(result, Tuning):
            print_tuning(console, result, is_verbose=is_verbose)
        elif isinstance(result, ContextTuning):
            print_contexts(console, result)
        else:
            print_policies(console, result)


OWN_OPTIONS = (
    "draws", "target_model", "draft_model", "workers", "concurrencies", "lengths", "policies", "contexts",
)  # fmt: skip
WHOLE = "whole numbers with commas, such as 0,1,3"
FOR_LENGTHS = ("lengths", "contexts", "target_model", "draft_model")


def _lengths(scenario: Scenario, options: dict[str, Any]) -> Tuning | ContextTuning:
    from sim.costs.profile_files import load
    from sim.studies.cost_draws import DEFAULT_DRAWS
    from sim.studies.tune import tune

    if options.pop("policies") is not None:
        raise ValueError("--policies: lane policies are chosen by load with --policy adaptive only")
    if options["draws"] is None:
        options["draws"] = DEFAULT_DRAWS
    contexts = listed("--contexts", options.pop("contexts"), _tokens, "token counts with commas, such as 1k,8k,32k")
    if contexts is not None:
        from sim.studies.contexts.tuning import tune_contexts

        for name in ("target_model", "draft_model"):
            if options.pop(name):
                raise ValueError(f"--{name.replace('_', '-')}: not with --contexts, which prints rows alone")
        with progress() as on_step:
            return tune_contexts(scenario, load(scenario.profile), contexts, on_done=on_step, **options)
    with progress() as on_step:
        return tune(scenario, load(scenario.profile), on_done=on_step, **options)


def _policies(scenario: Scenario, options: dict[str, Any]) -> PolicyTuning:
    from sim.costs.profile_files import load
    from sim.studies.load_table import CANDIDATES, DEFAULT_DRAWS, tune_policies

    for name in FOR_LENGTHS:
        if options[name] is not None:
            raise ValueError(f"--{name.replace('_', '-')}: --policy adaptive chooses policies, not draft lengths")
    with progress() as on_step:
        return tune_policies(
            scenario,
            load(scenario.profile),
            candidates=listed("--policies", options["policies"] or None, str.strip, "policies with commas")
            or CANDIDATES,
            concurrencies=options["concurrencies"],
            draws=DEFAULT_DRAWS if options["draws"] is None else options["draws"],
            workers=options["workers"],
            on_done=on_step,
        )


def _tokens(text: str) -> int:
    """A token count, in thousands of 1,024 where it ends in k."""
    return int(text.lower().removesuffix("k")) * (1024 if text[-1:] in "kK" else 1)
