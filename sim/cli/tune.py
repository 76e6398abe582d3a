"""`lanesim tune`: the command line of sim.studies.tune, and for the policy adaptive of sim.studies.load_table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sim.cli.console import claim, progress, say_trace, write_json
from sim.cli.options import DRAWS, OVERWRITE, VERBOSE, WORKERS, ListOptions, gather, inputs_of, listed, scenario_options

if TYPE_CHECKING:
    from sim.run.scenario import Scenario
    from sim.studies.contexts.tuning import ContextTuning
    from sim.studies.load_table import PolicyTuning
    from sim.studies.tune import Tuning

EXAMPLE = (
    "\b\nExample:\n  lanesim tune --profile h100-sxm/llama-3.1-8b+eagle3 --acceptance length:2.6@3 \\\n"
    "    --num-speculative-tokens 5 --max-num-seqs 32 --input-len 512 --output-len 128"
)


class TuneFlags(NamedTuple):
    """Flags of this command alone, by parameter."""

    lengths: str | None
    concurrencies: str | None
    contexts: str | None
    draws: int | None
    policies: str | None
    target_model: str | None
    draft_model: str | None
    workers: int | None
    verbose: bool
    json_path: str | None


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
    type=DRAWS,
    default=None,
    help="Draws within the errors of costs and acceptance. [default: 20; adaptive: 4]",
)
@click.option(
    "--policies", default=None, help="adaptive: lane policies to choose from. [default: pd,unified,pdv,baseline]"
)
@click.option("--target-model", default=None, help="What `vllm serve` loads. [default: as the profile is named]")
@click.option("--draft-model", default=None, help="The draft that it loads. [default: likewise]")
@click.option("--workers", type=WORKERS, default=None, help="Processes. [default: one per core]")
@VERBOSE
@click.option("--json", "json_path", default=None, metavar="FILE", help="Write the answer as JSON; - = stdout.")
@OVERWRITE
def tune_command(**flags: Any) -> None:
    """Best draft length by load, as a vLLM table and SGLang's bands, with what it gains and how sure that is.

    Runs a closed loop at every concurrency and draft length, in every draw of what costs and acceptance might as well
    be. With --goodput it maximises requests per second that meet the SLOs. With --policy adaptive it finds the table of
    that policy instead: which lane policy at which load, and the hysteresis.
    """
    from sim.run.scenario import parse_scenario
    from sim.run.scenario_file import set_dotted

    path = flags["scenario"]
    if flags["contexts"] and flags["input_len"] is not None:
        raise ValueError("--input-len: not with --contexts, which are the prompts' lengths")
    raw = gather(flags)
    own = TuneFlags(**flags)
    raw.setdefault("policy", ["continuous"])
    lengths = listed("--lengths", own.lengths, int, WHOLE)
    concurrencies = listed("--concurrencies", own.concurrencies, int, WHOLE)
    if lengths:
        set_dotted(raw, "speculation.num_speculative_tokens", max(lengths))
    scenario = parse_scenario(raw)
    claim(files={"--json": own.json_path}, inputs=inputs_of(path, scenario))
    say_trace(scenario.workload, is_quiet=own.json_path == "-")
    result: Tuning | ContextTuning | PolicyTuning
    if scenario.policy == ("adaptive",):
        result = _policies(scenario, own, concurrencies)
    else:
        result = _lengths(scenario, own, lengths, concurrencies)
    if write_json(own.json_path, result.plain):
        from rich.console import Console

        from sim.report.answers import print_contexts, print_policies, print_tuning
        from sim.studies.contexts.tuning import ContextTuning
        from sim.studies.tune import Tuning

        console = Console()
        if isinstance(result, Tuning):
            print_tuning(console, result, is_verbose=own.verbose)
        elif isinstance(result, ContextTuning):
            print_contexts(console, result)
        else:
            print_policies(console, result)


WHOLE = "whole numbers with commas, such as 0,1,3"
FOR_LENGTHS = ("lengths", "contexts", "target_model", "draft_model")


def _lengths(
    scenario: Scenario, own: TuneFlags, lengths: list[int] | None, concurrencies: list[int] | None
) -> Tuning | ContextTuning:
    from sim.costs.profile_files import load
    from sim.studies.cost_draws import DEFAULT_DRAWS
    from sim.studies.tune import tune

    if own.policies is not None:
        raise ValueError("--policies: lane policies are chosen by load with --policy adaptive only")
    draws = DEFAULT_DRAWS if own.draws is None else own.draws
    contexts = listed("--contexts", own.contexts, _tokens, "token counts with commas, such as 1k,8k,32k")
    if contexts is not None:
        from sim.studies.contexts.tuning import tune_contexts

        for name in ("target_model", "draft_model"):
            if getattr(own, name):
                raise ValueError(f"--{name.replace('_', '-')}: not with --contexts, which prints rows alone")
        with progress() as on_step:
            return tune_contexts(
                scenario,
                load(scenario.profile),
                contexts,
                concurrencies=concurrencies,
                lengths=lengths,
                draws=draws,
                workers=own.workers,
                on_done=on_step,
            )
    with progress() as on_step:
        return tune(
            scenario,
            load(scenario.profile),
            concurrencies=concurrencies,
            lengths=lengths,
            draws=draws,
            workers=own.workers,
            target_model=own.target_model,
            draft_model=own.draft_model,
            on_done=on_step,
        )


def _policies(scenario: Scenario, own: TuneFlags, concurrencies: list[int] | None) -> PolicyTuning:
    from sim.costs.profile_files import load
    from sim.studies.load_table import CANDIDATES, DEFAULT_DRAWS, tune_policies

    for name in FOR_LENGTHS:
        if getattr(own, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')}: --policy adaptive chooses policies, not draft lengths")
    with progress() as on_step:
        return tune_policies(
            scenario,
            load(scenario.profile),
            candidates=listed("--policies", own.policies or None, str.strip, "policies with commas") or CANDIDATES,
            concurrencies=concurrencies,
            draws=DEFAULT_DRAWS if own.draws is None else own.draws,
            workers=own.workers,
            on_done=on_step,
        )


def _tokens(text: str) -> int:
    """A token count, in thousands of 1,024 where it ends in k."""
    return int(text.lower().removesuffix("k")) * (1024 if text[-1:] in "kK" else 1)
