"""`lanesim tune`: the command line of sim.studies.tune, and for the policy adaptive of sim.studies.load_table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from sim.cli.console import claim, progress, say_trace, show
from sim.cli.flags import Draws, JsonFile, Overwrite, Verbose, command
from sim.cli.options import ServedFlags, gather, inputs_of, listed

if TYPE_CHECKING:
    from sim.run.scenario import Scenario
    from sim.studies.answer import Stated

EXAMPLE = (
    "lanesim tune --profile h100-sxm/llama-3.1-8b+eagle3 --acceptance length:2.6@3 \\\n"
    "    --num-speculative-tokens 5 --set engine.max_num_seqs=32 --input-len 512 --output-len 128"
)


class TuneFlags(ServedFlags, frozen=True, kw_only=True):
    """Flags of `lanesim tune`."""

    lengths: Annotated[
        str | None, "Draft lengths to try. [default: 0,1,.. to num_speculative_tokens, and on while the last is best]"
    ] = None
    concurrencies: Annotated[str | None, "Requests in flight to try. [default: 1,2,4,.. to max_num_seqs]"] = None
    contexts: Annotated[
        str | None,
        "Prompt lengths with a table each, such as 1k,8k,32k, and what one table for all loses. [default: none]",
    ] = None
    draws: Annotated[Draws | None, "Draws within the errors of costs and acceptance. [default: 20; adaptive: 4]"] = None
    verbose: Verbose = False
    json: JsonFile = None
    overwrite: Overwrite = False


@command("tune", TuneFlags, example=EXAMPLE)
def tune_command(flags: TuneFlags) -> None:
    """Best draft length by load, as a vLLM table and SGLang's bands, with what it gains and how sure that is.

    Runs a closed loop at every concurrency and draft length, several times, each with costs and acceptance drawn anew
    within their measured errors. With --goodput it maximises requests per second that meet the SLOs. With --policy
    adaptive it finds the table of that policy instead: which lane policy at which load, and the hysteresis.
    """
    from sim.run.scenario import parse_scenario
    from sim.run.scenario_file import set_dotted

    if flags.contexts and flags.input_len is not None:
        raise ValueError("--input-len: not with --contexts, which are the prompts' lengths")
    raw = gather(flags)
    raw.setdefault("policy", ["continuous"])
    lengths = listed("--lengths", flags.lengths, int, WHOLE)
    concurrencies = listed("--concurrencies", flags.concurrencies, int, WHOLE)
    if lengths:
        set_dotted(raw, "speculation.num_speculative_tokens", max(lengths))
    scenario = parse_scenario(raw)
    claim(files={"--json": flags.json}, inputs=inputs_of(flags.scenario, scenario))
    say_trace(scenario.workload, is_quiet=flags.json == "-")
    contexts = listed("--contexts", flags.contexts, _tokens, "token counts with commas, such as 1k,8k,32k")
    with progress() as on_step:
        result = _answer(scenario, flags, contexts, lengths, {"concurrencies": concurrencies, "on_done": on_step})
    show(flags.json, result, is_verbose=flags.verbose)


WHOLE = "whole numbers with commas, such as 0,1,3"


def _answer(
    scenario: Scenario,
    flags: TuneFlags,
    contexts: list[int] | None,
    lengths: list[int] | None,
    asked: dict[str, Any],
) -> Stated:
    from sim.costs.profile_files import load
    from sim.studies.load_table import tune_policies
    from sim.studies.tune import tune, tune_contexts

    profile = load(scenario.profile)
    if flags.draws is not None:
        asked = asked | {"draws": flags.draws}
    if scenario.policy == ("adaptive",):
        for name in ("lengths", "contexts"):
            if getattr(flags, name) is not None:
                raise ValueError(f"--{name}: --policy adaptive chooses policies, not draft lengths")
        return tune_policies(scenario, profile, **asked)
    if contexts is not None:
        return tune_contexts(scenario, profile, contexts, lengths=lengths, **asked)
    return tune(scenario, profile, lengths=lengths, **asked)


def _tokens(text: str) -> int:
    """A token count, in thousands of 1,024 where it ends in k."""
    return int(text.lower().removesuffix("k")) * (1024 if text[-1:] in "kK" else 1)
