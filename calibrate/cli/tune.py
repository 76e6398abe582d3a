"""`lanesim tune`: the command line of sim.studies.tune.

What a running server says of itself (--metrics) stands for flags that are not given. Not here: reading it
(calibrate.served.metrics).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, structs

from sim.cli.console import OnStep, claim, note_trace, progress, show
from sim.cli.flags import Draws, JsonFile, Overwrite, Seconds, Verbose, command, key
from sim.cli.options import ServedFlags, gather, has_no_drafter, inputs_of, listed, with_assumptions
from sim.files.json_values import value_at

if TYPE_CHECKING:
    from calibrate.served.load import ServedLoad
    from calibrate.served.metrics import Sample
    from sim.costs.profile import Profile
    from sim.files.json_values import Json
    from sim.run.scenario import Scenario
    from sim.studies.answer import Stated

EXAMPLE = (
    "lanesim tune --profile h100-sxm/llama-3.1-8b+eagle3 --acceptance length:2.6@3 \\\n"
    "    --set num_speculative_tokens=5 --set engine.max_num_seqs=32 --input-len 512 --output-len 128"
)
OVER = "metrics.over_s"
WHOLE = "whole numbers with commas, such as 0,1,3"
OTHERS = "--draft eagle3, mtp, dspark or a drafter's repository"


class TuneFlags(ServedFlags, frozen=True, kw_only=True):
    """Flags of `lanesim tune`."""

    lengths: Annotated[
        str | None,
        "Draft lengths to try, such as 0,1,3. [default: longer ones until the last is not the best]",
    ] = None
    concurrencies: Annotated[str | None, "Requests in flight to try. [default: 1,2,4,.. to max_num_seqs]"] = None
    contexts: Annotated[
        str | None,
        "Prompt lengths, such as 1k,8k,32k. Each gets a table of draft lengths.",
    ] = None
    draws: Annotated[Draws | None, "How often to vary GPU times and acceptance within their errors. [default: 20]"] = (
        None
    )
    metrics: Annotated[
        str | None,
        Meta(title="URL"),
        "A running server, or a file with its /metrics. Acceptance, lengths and load are read there. The answer says "
        "whether to change its draft length. No request is sent.",
    ] = None
    over_s: Annotated[
        Seconds | None,
        key(OVER),
        "Seconds between two reads of --metrics. For a file, the seconds that it covers. [since the start]",
    ] = None
    verbose: Verbose = False
    json: JsonFile = None
    overwrite: Overwrite = False


@command("tune", TuneFlags, example=EXAMPLE)
def tune_command(flags: TuneFlags) -> None:
    """Find the draft length that is best at each load, and say what it gains and how sure that is.

    It simulates every number of requests in flight with every draft length. Each is repeated with GPU times and
    acceptance varied within their errors. With --goodput it maximises requests per second within the limits.
    """
    from sim.run.scenario import parse_scenario
    from sim.run.scenario_file import set_dotted

    if flags.contexts and flags.input_len is not None:
        raise ValueError("--input-len and --contexts both give the lengths of prompts. Leave one out")
    raw = gather(flags if flags.metrics is None else structs.replace(flags, method=None))
    _check_metrics(flags)
    if flags.metrics is None:
        _choose_drafts(raw, has_lengths=flags.lengths is not None)
    lengths = listed("--lengths", flags.lengths, int, WHOLE)
    concurrencies = listed("--concurrencies", flags.concurrencies, int, WHOLE)
    with progress() as on_step:
        in_use = value_at(raw, "speculation.num_speculative_tokens")
        num_tokens = in_use if isinstance(in_use, int) else None
        served = None if flags.metrics is None else served_by(flags.metrics, flags.over_s, on_step, num_tokens)
        if served is not None:
            concurrencies = concurrencies or [round(served.concurrency)]
            take(served, raw, lengths)
            if flags.method is not None:  # Acceptance is assumed where the server counts none.
                set_dotted(raw, "speculation.method", flags.method)
        if lengths:
            set_dotted(raw, "speculation.num_speculative_tokens", max(lengths))
        scenario = parse_scenario(with_assumptions(raw))
        claim(files={"--json": flags.json}, inputs=[*inputs_of(flags.scenario, scenario), flags.metrics])
        contexts = listed("--contexts", flags.contexts, _tokens, "token counts with commas, such as 1k,8k,32k")
        result = _answer(
            scenario, flags, contexts, lengths, {"concurrencies": concurrencies, "on_done": on_step}, served
        )
    note_trace(scenario.workload)
    show(flags.json, result, is_verbose=flags.verbose)


def _choose_drafts(raw: dict[str, Json], *, has_lengths: bool) -> None:
    """N-grams where no drafter is named, with a note; and no longer drafts than acceptance was measured with."""
    from sim.acceptance.forms import parse_quoted
    from sim.acceptance.pairs import ANY, KINDS

    if has_no_drafter(raw):
        raw["speculation"] = {"method": "ngram"}
        warnings.warn(f"No drafter is named, so n-grams are tried. Others: {OTHERS}", stacklevel=2)
    speculation = raw.get("speculation")
    if isinstance(speculation, dict) and not has_lengths and "acceptance" in speculation:
        text = str(speculation["acceptance"])
        known = None if text in (*KINDS, ANY) else parse_quoted(text).measured_k
        speculation |= {} if known is None else {"num_speculative_tokens": known} | speculation


def _check_metrics(flags: TuneFlags) -> None:
    """Raise ValueError for flags that --metrics has no answer with, and those that mean nothing without it."""
    if flags.over_s is not None and flags.metrics is None:
        raise ValueError(f"{OVER} needs --metrics, whose seconds it gives. Add it, or leave {OVER} out")
    if flags.metrics is not None and flags.contexts is not None:
        raise ValueError("--metrics counts prompts of all lengths together. Leave out --contexts or --metrics")


def served_by(server: str, over_s: float | None, on_step: OnStep, num_tokens: int | None = None) -> ServedLoad:
    """Means of all that a server has served, or of what it serves from now on for `over_s`; of a file `over_s` is what
    it counts. `num_tokens` are drafted, where the server does not tell. Raises ValueError."""
    from calibrate.served.load import DRAFT_LENGTH
    from calibrate.served.metrics import Growth, samples, served_between
    from calibrate.server.endpoint import base_of, look
    from calibrate.server.network import Client

    def between(before: Mapping[Sample, float], after: Mapping[Sample, float], source: str) -> ServedLoad:
        length = Growth(before, after, source).accept_length
        if length is not None and not num_tokens:
            raise ValueError(
                f"{source}: this server drafts, with acceptance length {length:.2f}. Give its draft length K: "
                f"{DRAFT_LENGTH}"
            )
        return served_between(before, after, source, over_s, num_tokens, f"--set {OVER}")

    if Path(server).is_file():
        return between({}, samples(Path(server)), server)
    with Client(base_of(server)) as client:
        before = {} if over_s is None else look(client)
        for second in range(round(over_s or 0.0)):
            on_step("between two looks (s)", second, round(over_s or 0.0))
            sleep(1.0)
        after = look(client)
        if before is None or after is None:
            raise client.failure("/metrics", "is none of vLLM's or SGLang's")
        return between(before, after, f"{client.url}/metrics")


def take(served: ServedLoad, raw: dict[str, Json], lengths: list[int] | None) -> None:
    """Add what a server says to a scenario, where that does not say it, and its draft length to those that are tried.
    Raises ValueError."""
    from calibrate.served.load_table import LENGTHS

    told: dict[str, dict[str, Json]] = {
        "workload": {name: round(tokens) for name, tokens in zip(LENGTHS, served.lengths, strict=True)}
    }
    if served.accepted is not None:
        most = served.accepted.draft_tokens
        told["speculation"] = {"num_speculative_tokens": most, "acceptance": served.accepted.quote}
        if lengths is not None and most not in lengths:
            lengths.append(most)
    for name, values in told.items():
        given = raw.get(name, {})
        if isinstance(given, dict):
            raw[name] = values | given


def _answer(
    scenario: Scenario,
    flags: TuneFlags,
    contexts: list[int] | None,
    lengths: list[int] | None,
    asked: dict[str, Any],
    served: ServedLoad | None,
) -> Stated:
    from sim.costs.profile_files import load
    from sim.studies.length_choice import PLAIN
    from sim.studies.tune import tune, tune_contexts

    profile = load(scenario.profile)
    if flags.draws is not None:
        asked = asked | {"draws": flags.draws}
    if contexts is not None:
        return tune_contexts(scenario, profile, contexts, lengths=lengths, **asked)
    if served is None:
        return tune(scenario, profile, lengths=lengths, **asked, **flags.repositories)
    fitted, note = _as_served(profile, served, scenario)
    in_use = PLAIN if served.accepted is None else served.accepted.draft_tokens
    if lengths is None and scenario.speculation.num_speculative_tokens < in_use:
        lengths = [*range(scenario.speculation.num_speculative_tokens + 1), in_use]
    tuning = tune(scenario, fitted, lengths=lengths, in_use=in_use, **asked, **flags.repositories)
    return structs.replace(tuning, notes=[note, *tuning.notes])


def _as_served(profile: Profile, served: ServedLoad, scenario: Scenario) -> tuple[Profile, str]:
    """The profile with its engine's constants as the server's time per token shows them, and what is assumed."""
    from calibrate.served.fit import ONE_LOAD, fit_served
    from calibrate.served.judge import setup_of

    production = fit_served(profile, [served], setup_of(scenario))
    if production.doubt:
        warnings.warn(production.doubt, stacklevel=2)
    prompt_tokens, output_tokens = served.lengths
    accepted = "no drafts" if served.accepted is None else f"accepted {served.accepted.quote.removeprefix('vllm:')}"
    return production.profile, (
        f"{served.source}: {served.num_requests:,} requests of {prompt_tokens:.0f} and "
        f"{output_tokens:.0f} tokens, {served.concurrency:.1f} decoding at once, {accepted}. Assumed: load and "
        f"acceptance stay so, also where they vary, and {profile.name} is this GPU and model, with what the engine "
        f"adds fitted to {', '.join(served.measured)}. {ONE_LOAD}"
    )


def _tokens(text: str) -> int:
    """A token count, in thousands of 1,024 where it ends in k."""
    return int(text.lower().removesuffix("k")) * (1024 if text[-1:] in "kK" else 1)
