"""`lanesim calibrate fit`: constants and acceptance from what a running server exports. No GPU needed here."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
from msgspec import Meta, Struct

from calibrate.cli.profile_output import check_out, save
from sim.cli.flags import ARGUMENT, GIVEN, DraftTokens, JsonFile, Number, Overwrite, command, key
from sim.cli.options import Overrides
from sim.names import DRAFT_KEY, capital

if TYPE_CHECKING:
    from calibrate.served.fit import Production
    from calibrate.served.load import ServedLoad
    from calibrate.served.readers import ServerLooks
    from sim.costs.profile import Profile
    from sim.files.json_values import Json

EXAMPLE = "lanesim calibrate fit c8.json c32.json --profile h100-sxm/llama-3.1-8b --out mine.json"

METRICS, STEPS, REQUESTS = "metrics", "steps", "requests"
FORMS = {METRICS: "BEFORE AFTER [SECONDS]", STEPS: "FILE", REQUESTS: "FILE"}
"""Word before files that are no loads -> what follows it."""
MAX_SPREAD_PCT = 15.0
"""Rounds that differ by more are said to be noisy: a median of them is no better than that."""


class LoadFlags(Struct, frozen=True, kw_only=True):
    """Flags of loads that a server had; None where not given."""

    profile: Annotated[str, "Cost profile of the GPU and models: gpu/target[+draft], or its file."]
    engine: Annotated[
        str | None,
        key("engine.name"),
        "Engine and version that served, such as vllm-0.12. [default: the profile's, or vllm-0.33]",
    ] = None
    set: Overrides = ()
    json: JsonFile = None
    overwrite: Overwrite = False

    @property
    def raw(self) -> dict[str, Any]:
        """The raw scenario: the `engine` block of that name, and what --set says."""
        from sim.run.scenario_file import parse_override, set_dotted

        raw: dict[str, Any] = {"engine": {} if self.engine is None else {"name": self.engine}}
        for text in self.set:
            set_dotted(raw, *parse_override(text))
        return raw


class FitFlags(LoadFlags, frozen=True, kw_only=True):
    """Flags of loads that a profile is fitted to."""

    out: Annotated[Path | None, "Profile to write, with the constants of the server."] = None


class SourceFlags(FitFlags, frozen=True, kw_only=True):
    """Flags of `lanesim calibrate fit`."""

    files: Annotated[tuple[Path, ...], ARGUMENT, Meta(title="RESULT|LOG... | FORM FILE...")]
    num_speculative_tokens: Annotated[DraftTokens | None, key(DRAFT_KEY), "Where the source has no rates."] = None

    @property
    def form(self) -> str | None:
        """The word before the files, if it is one of FORMS."""
        return next((name for name in FORMS if self.files[:1] == (Path(name),)), None)


@command("fit", SourceFlags, example=EXAMPLE)
def source_command(flags: SourceFlags) -> None:
    """Fit a profile to what your server or its benchmark wrote, and read its acceptance there.

    RESULT is of vllm bench, GuideLLM, AIPerf or inference-perf. For a LOG of the server add its mean tokens: --set
    workload.input_len=N and --set workload.output_len=N. Each load is also predicted from the others.

    `metrics BEFORE AFTER` takes two saved pages of /metrics, and the SECONDS between them where the server counts no
    steps.

    `steps FILE` takes a JSON line per step of the server. It fits a cost model and tests it on the rest of the time.

    `requests FILE` takes a JSON line per request of vLLM, SGLang or AIPerf. It estimates acceptance and its spread.
    """
    from calibrate.served.fit import fit_served
    from calibrate.served.judge import LoadSetup
    from calibrate.served.readers import LOOKS, read_looks, told_by
    from sim.cli.console import progress
    from sim.costs.profile_files import load

    out = flags.out
    check_out(out, [*flags.files, flags.profile], json_path=flags.json)
    if flags.form is not None:
        num = len(flags.files) - 1
        if num not in ((2, 3) if flags.form == METRICS else (1,)):
            raise ValueError(f"the files are missing. Write `lanesim calibrate fit {flags.form} {FORMS[flags.form]}`")
    if flags.form == STEPS:
        fit_of_steps(flags, flags.files[1])
        return
    if flags.form == REQUESTS:
        show_acceptance(flags, flags.files[1])
        return
    raw = flags.raw
    served = read_served(flags, raw.get("workload", {}))
    profile = load(flags.profile)
    for path in () if flags.form else flags.files:
        if told_by(path)[1] >= LOOKS:
            profile = priced(profile, raw, read_looks(path))
    with progress() as on_step:
        production = fit_served(profile, served, LoadSetup.of(raw), on_step)
    finish(production, flags, served)


def priced(profile: Profile, raw: dict[str, Any], looks: ServerLooks) -> Profile:
    """`profile` with the price of prompts that a server showed when it served them one by one, if it did.
    `raw` has what is known of its engine."""
    from calibrate.served.line import with_price_of
    from calibrate.server.side import as_counted

    scenario, _ = as_counted({"policy": "continuous", **raw, "profile": profile.name}, looks.rounds)
    return with_price_of(scenario, profile, looks.lone) if looks.lone else profile


def fit_of_steps(flags: SourceFlags, path: Path) -> None:
    """Fit, write and show the cost model of the server whose steps are in `path`. Raises ValueError."""
    from calibrate.served.step_records import fit_steps_of, read_steps
    from sim.cli.console import write_json
    from sim.costs.profile_files import load

    for name, given in {"--set": flags.set, DRAFT_KEY: flags.num_speculative_tokens}.items():
        if given:
            raise ValueError(f"{STEPS} and {name}: step records hold the time of drafts already. Give one")
    fit = fit_steps_of(load(flags.profile), read_steps(path), path.name)
    if flags.out is not None:
        save(fit.profile, flags.out)
    result: dict[str, Json] = {
        "form": fit.form,
        "steps": fit.steps,
        "profile_error_pct": fit.shipped_pct,
        "block_errors_pct": {form: list(errors) for form, errors in fit.blocks_pct.items()},
        "step_error_pct": fit.step_pct,
    }
    if write_json(flags.json, result):
        from calibrate.cli.profile_output import print_answer
        from sim.report.said import SURE
        from sim.report.tables import new_table

        worst = max(map(abs, fit.blocks_pct[fit.form]))
        answer = f"{capital(fit.form)} predicts this server's time per token within {worst:.1f} %.\n"
        answer += f"{flags.profile} was off by {fit.shipped_pct:+.0f} %."
        rows = [[form, *(f"{error:+.1f}" for error in each)] for form, each in fit.blocks_pct.items()]
        titles = [str(place) for place in range(1, len(fit.blocks_pct[fit.form]) + 1)]
        table = new_table(["cost model"], titles, rows, padding=(0, 1, 0, 0))
        doubt = f"Each fifth of {fit.steps} steps is predicted from the others. One step is {fit.step_pct:.1f} % off."
        more = "Nothing was written. Add --out FILE.json." if flags.out is None else f"The profile is in {flags.out}."
        print_answer(answer, [("error by fifth of the time, in %", table)], [(SURE, doubt)], more)


def show_acceptance(flags: SourceFlags, path: Path) -> None:
    """Show acceptance and spread of the requests in `path`. Raises ValueError."""
    from calibrate.served.request_counts import acceptance_of, read_requests
    from sim.cli.console import write_json

    for name, given in {"--set": flags.set, "--out": flags.out}.items():
        if given:
            raise ValueError(f"{REQUESTS} and {name}: requests tell acceptance alone. Give one of them")
    counts, without = read_requests(path)
    accepted, spread = acceptance_of(counts, path.name, flags.num_speculative_tokens)
    quote = accepted.quote + spread.form
    result: dict[str, Json] = {
        "acceptance": quote,
        "acceptance_length": accepted.length,
        "num_speculative_tokens": accepted.draft_tokens,
        "spread": spread.value,
        "spread_90": [spread.low, spread.high],
        "requests": len(counts),
        "without_drafts": without,
    }
    if write_json(flags.json, result):
        words = ["lanesim", "tune", "--profile", flags.profile, "--acceptance", quote]
        print(
            f"{len(counts)} requests accept {accepted.length:.2f} tokens a verify, of {accepted.draft_tokens} drafted."
            f"\nRequests differ by {spread.value:g} on the logit scale (90 %: {spread.low:g} to {spread.high:g})."
            f"\n{without} lines have no drafts."
            f"\n\nmore       {shlex.join(words)}"
        )


def read_served(flags: SourceFlags, workload: dict[str, Any]) -> list[ServedLoad]:
    """The levels of all sources; lengths of a log's requests are taken out of `workload`. Raises ValueError where there
    is no level, or a source lacks what it needs."""
    from calibrate.served.metrics import samples, served_between
    from calibrate.served.readers import loads_of

    num_tokens = flags.num_speculative_tokens
    if flags.form == METRICS:
        _, before, after, *seconds = flags.files
        looks = samples(before), samples(after)
        duration_s = Number(0.0, 1e6, min_open=True).convert(str(seconds[0]), None, None) if seconds else None
        served = [served_between(*looks, str(after), duration_s, num_tokens)]
    else:
        served = [load for path in flags.files for load in loads_of(path, num_tokens, workload)]
    if not served:
        raise ValueError("no file is named. Give a RESULT or LOG, or `metrics`, `steps` or `requests` and their files")
    for accepted, source in ((each.accepted, each.source) for each in served):
        if accepted is not None and num_tokens not in (None, accepted.draft_tokens):
            raise ValueError(
                f"{source}: its drafts have {accepted.draft_tokens} tokens, not {DRAFT_KEY}={num_tokens}. "
                "Leave that out"
            )
    return served


def finish(production: Production, flags: FitFlags, served: Sequence[ServedLoad]) -> None:
    """Write and print what came of a fit to `served`, and the command to go on with."""
    from sim.cli.console import write_json

    if flags.out is not None:
        save(production.profile, flags.out)
    ending = advice(production, flags.profile, flags.out)
    if write_json(flags.json, plain(production) | {"next": ending}):
        show(production, ending, _noise(production, served))


def _noise(production: Production, served: Sequence[ServedLoad]) -> Iterator[str]:
    """By how much rounds of a load differ, and requests that failed."""
    seen = [level.served for level in production.levels]
    for each in seen:
        if spreads := ", ".join(f"{name} ±{spread:.0f} %" for name, spread in each.spreads_pct.items()):
            yield f"Rounds of {each.source} differ: {spreads}."
    requests = [request for each in served for request in each.requests]
    if failed := [request.failed for request in requests if request.failed]:
        yield f"{len(failed)} of {len(requests)} requests failed: {failed[0]}."
    if any(spread > MAX_SPREAD_PCT for each in seen for spread in each.spreads_pct.values()):
        yield "Let nothing else use the server and this machine, or add server.rounds."


def advice(production: Production, profile_name: str, out: Path | None) -> str:
    """The use of the fit in one sentence, and the command to go on with."""
    if production.doubt:
        command = ["lanesim", "profiles", "show", profile_name]
        return f"See whether the profile is of this server's GPU, model, weights and degree: {shlex.join(command)}"
    if out is None:
        context = click.get_current_context()
        group = ["calibrate"] if context.command.name == "fit" else []
        again = shlex.join(["lanesim", *group, str(context.command.name), *context.meta[GIVEN]])
        return f"Nothing was written. To keep the constants as a profile: {again} --out mine.json"
    largest = max(production.levels, key=lambda level: level.served.concurrency).served
    prompt_tokens, output_tokens = map(round, largest.lengths)
    loop = {
        "--profile": out,
        "--request-rate": "inf",
        "--max-concurrency": round(largest.concurrency),
        "--input-len": prompt_tokens,
        "--output-len": output_tokens,
    }
    command = ["lanesim", "compare", "--policy", "autoregressive"]
    if production.accepted is not None:
        command += ["--policy", "continuous"]
        loop |= {
            "--num-speculative-tokens": production.accepted.draft_tokens,
            "--acceptance": production.accepted.quote,
        }
    command += [str(word) for flag, value in loop.items() for word in (flag, value)]
    chosen = "" if production.tried else ". How the engine schedules was not tested: that takes three loads or more"
    return f"{out} has the server's constants{chosen}. To simulate its largest load: {shlex.join(command)}"


def plain(production: Production) -> dict[str, Json]:
    """Fits and levels as `--json` writes them."""
    return {
        "verdict": production.verdict,
        "left_error_pct": production.left[0],
        "caution": production.caution or None,
        "forms": [
            {"is_async": form.is_async, "has_row_s": form.has_rows, "held_back_error_pct": each.error_pct}
            for each in production.tried
            for form in (each.form,)
        ],
        "constants": [
            {"constant": name, "value_s": value_s, "half_width_s": fit.half_widths_s[name], "is_told": fit.told[name]}
            for fit in production.fits
            for name, value_s in fit.values_s.items()
        ],
        "unfitted": dict(production.unfitted),
        "error_pct": production.fits[0].error_pct,
        "acceptance": None if production.accepted is None else production.accepted.quote,
        "acceptance_length": None if production.accepted is None else production.accepted.length,
        "levels": [
            {
                "source": level.served.source,
                "concurrency": level.served.concurrency,
                "input_len": level.served.input_len,
                "output_len": level.served.output_len,
                "errors_pct": level.errors_pct,
                "left_out_error_pct": level.predicted_pct.get(level.fitted_metric),
                "left_out_errors_pct": level.predicted_pct or None,
            }
            for level in production.levels
        ],
        "held_back": None
        if (held := production.held_back) is None
        else {
            "concurrency": held.served.concurrency,
            "measured": dict(held.served.measured),
            "errors_pct": held.predicted_pct,
            "spreads_pct": dict(held.served.spreads_pct),
        },
    }


def show(production: Production, ending: str, doubts: Iterable[str]) -> None:
    """The verdict, then the error left at each load, constants and acceptance."""
    from calibrate.cli.profile_output import print_answer
    from sim.report.said import NEXT, SURE
    from sim.report.tables import new_table

    rows = []
    for level in production.levels:
        served, predicted = level.served, level.predicted_pct
        first = [served.source, f"{served.concurrency:.1f}", *(f"{tokens:.0f}" for tokens in served.lengths)]
        for metric, error in level.errors_pct.items():
            rows.append([*first, metric, f"{error:+.1f}", f"{predicted[metric]:+.1f}" if metric in predicted else "–"])
            first = [""] * len(first)
    lines = [("fitted", f"{fit}.") for fit in production.fits]
    if production.accepted is not None:
        lines.append(("fitted", f"--acceptance {production.accepted.quote}"))
    if production.tried:
        forms = ", ".join(f"{each.form} {each.error_pct:+.1f} %" for each in production.tried)
        lines.append((SURE, f"Error at the largest load by the form of a step, the chosen one first: {forms}."))
    names_by_reason: dict[str, list[str]] = {}
    for name, reason in production.unfitted.items():
        names_by_reason.setdefault(reason, []).append(name)
    lines += [(SURE, f"{', '.join(names)} unchanged: {reason}.") for reason, names in names_by_reason.items()]
    sentence, _, typed = ending.partition(": lanesim ")
    said = sentence.rpartition(". ")[0] or sentence  # The last sentence says what the command is for.
    lines += [*((SURE, doubt) for doubt in [*doubts, f"{said}."]), (NEXT, f"lanesim {typed}")]
    headings = ["in flight", "prompt", "output", "metric", "fitted", "from others"]
    table = new_table(["load"], headings, rows, fold=["load"], padding=(0, 1, 0, 0))
    answer = production.verdict.replace(". ", ".\n")
    print_answer(
        answer, [("error of the simulation in %, with constants of all loads and of the others", table)], lines
    )
