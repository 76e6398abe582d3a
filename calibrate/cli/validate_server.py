"""`lanesim validate URL`: a prediction for a running server, the load itself, and the prediction's error. With
--fit-only it sends closed loops and fits the profile to them.

What was sent is in a file after every loop and before a fit; `lanesim calibrate fit FILE` fits that file again. Not
here: the looks themselves (calibrate.server.side), the fit (calibrate.served.fit).
"""

from __future__ import annotations

import os
import shlex
import warnings
from contextlib import ExitStack
from itertools import product
from math import inf
from pathlib import Path
from secrets import token_hex
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import click
from msgspec import Meta, Struct

from calibrate.cli.fit import FitFlags, finish, priced
from calibrate.cli.profile_output import check_out
from sim.cli.console import progress
from sim.cli.flags import ARGUMENT, COUNT, Overwrite, Tokens, command, key
from sim.cli.options import CompareScenario, NumPrompts, Overrides, RequestRate, gather, inputs_of, listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from calibrate.server.served_run import ServedRun
    from calibrate.server.side import Side
    from sim.compare.pool import OnDone
    from sim.files.json_values import Json

EXAMPLE = (
    "lanesim validate http://localhost:8000 --profile mine.json --request-rate 4 --num-prompts 200 \\\n"
    "    --input-len 128 --output-len 64 --set workload.random_range_ratio=0.5"
)
FIT_EXAMPLE = (
    "lanesim validate http://localhost:8000 --fit-only --profile h100-sxm/llama-3.1-8b \\\n"
    "    --set server.levels=1,4,16,64 --out mine.json"
)
NUM_PROMPTS = 200
"""Requests of a scenario that does not say how many: they are sent in real time."""
MAX_REQUESTS = 10_000
"""Most that one command sends."""
LIGHT_REQUESTS = 10
"""Sent right before the load, about one at a time: they tell how fast the server is now, and the time before the
engine."""
MAX_LEVEL = 10_000
"""Requests at once, each a connection."""
KEY = "LANESIM_API_KEY"
"""Environment variable that holds the server's key."""


Served = Annotated[str | None, key("server.model"), "Model, as the server names it. [its only one]"]
Patience = Annotated[
    float,
    Meta(gt=0.0, le=86_400.0),
    key("server.timeout_s"),
    "Most seconds that one answer, or a start of the server, may take.",
]
LEVELS, ROUNDS = key("server.levels"), key("server.rounds")


class ServerFlags(Struct, frozen=True, kw_only=True):
    """Flags of a server's address."""

    url: Annotated[str, ARGUMENT, Meta(title="URL")]
    scenario: Annotated[Path | None, ARGUMENT] = None
    profile: Annotated[
        str | None, "Cost profile: gpu/target[+draft], or its file. [default: a line fitted to the server]"
    ] = None
    request_rate: RequestRate = None
    num_prompts: NumPrompts = None
    input_len: Annotated[int | None, "Prompt tokens."] = None
    output_len: Annotated[int | None, "Output tokens."] = None
    set: Overrides = ()
    model: Served = None
    timeout_s: Patience = 300.0
    levels: Annotated[
        str, LEVELS, "Numbers of parallel requests to calibrate with before predicting. none: use the profile as it is."
    ] = "1,2,4,8,16"
    rounds: Annotated[int, Meta(ge=1, le=1000), ROUNDS, "How often each of them is sent."] = 3
    predict_only: Annotated[bool, key("server.predict_only"), "true: predict, and send no request of the load."] = False
    pair: Annotated[str | None, Meta(title="URL"), "URL of a second server: the same without speculation."] = None
    restart: Annotated[
        tuple[str, ...],
        Meta(title="COMMAND"),
        "Command that starts the server of URL. It is run without speculation, then with it. Or give two commands.",
    ] = ()
    out: Annotated[Path, "File of the prediction, what was sent and the errors."] = Path("served-run.json")
    overwrite: Overwrite = False


@command("server", ServerFlags, example=EXAMPLE)
def server_command(flags: ServerFlags) -> None:
    """Fit the profile to the server, predict the scenario's requests, send them, and say how far off it was.

    With --pair, which is sent the same, or --restart, which starts and ends the server: what speculation gained, beside
    what was predicted, and up to how many requests in flight it does. The prediction is in the
    file before a request of it is sent; the file names no address, prompt or key. Levels that were measured are kept
    beside it, and taken from there when the command is given again with --overwrite.
    """
    with progress() as on_step:
        run = served(flags, on_step)
    if not run.sent:
        e2el_ms, tpot_ms = run.predicted["mean_e2el_ms"] or 0.0, run.predicted["mean_tpot_ms"] or 0.0
        low_ms, high_ms = run.intervals.get("mean_e2el_ms", (e2el_ms, e2el_ms))
        within = f"{low_ms:,.0f} to {high_ms:,.0f} ms in 95 %"
        print(f"Predicted: mean E2EL {e2el_ms:,.0f} ms ({within}), mean TPOT {tpot_ms:.2f} ms.\n{flags.out} has more.")
        print("To send the requests, repeat the command with --overwrite\nand without server.predict_only.")
        return
    _tell(run, flags.out)


def served(flags: ServerFlags, on_step: OnDone) -> ServedRun:
    """The run of a scenario on the server, in the file at `out` as well; without requests where they are only
    predicted. Raises ValueError."""
    from calibrate.served.line import LONE_REQUESTS, NAME, line_of_server, of_a_round
    from calibrate.server.endpoint import base_of
    from calibrate.server.network import Client
    from calibrate.server.server_process import commands_of, started
    from calibrate.server.side import PLAIN, Side
    from sim.costs.profile_files import load
    from sim.files.lock import destinations
    from sim.run.experiment import Experiment
    from sim.run.resolve import resolve_all
    from sim.run.scenario import parse_scenario

    bases, key = [base_of(url) for url in (flags.url, flags.pair) if url is not None], server_key()
    commands = commands_of(flags.restart) if flags.restart else []
    names = ("scenario", "request_rate", "num_prompts", "input_len", "output_len", "set")
    raw = gather(CompareScenario(profile=(flags.profile or NAME,), **{name: getattr(flags, name) for name in names}))
    raw.setdefault("policy", "continuous")
    workload = raw.setdefault("workload", {})
    if isinstance(workload, dict):
        workload.setdefault("num_prompts", NUM_PROMPTS)
    scenario = parse_scenario(raw)
    if scenario.workload.request_rate in (None, inf) and scenario.workload.max_concurrency is None:
        raise ValueError("all requests would be sent at once. Give --request-rate, or --set workload.max_concurrency=N")
    if len(scenario.policy) > 1:
        raise ValueError(f"a server has one scheduler. Name one of {', '.join(scenario.policy)}")
    levels = [] if flags.levels == "none" else levels_of(flags.levels)
    if flags.profile is None and not levels:
        raise ValueError("server.levels=none needs --profile, because a server is calibrated at these levels")
    if (flags.pair or commands) and not levels and "speculation" not in raw:
        raise ValueError(
            "server.levels=none needs the server's draft length: --set speculation.num_speculative_tokens=K"
        )
    if flags.pair is not None and (commands or len(set(bases)) < len(bases)):
        raise ValueError("--pair is the address of a server that does not speculate. Without it, give --restart")
    profile = line_of_server() if flags.profile is None else load(scenario.profile)
    planned = Experiment(resolve_all(scenario, profile)[0], scenario.seed).requests()
    prompts = [each.prompt_tokens for each in planned]
    looks = LONE_REQUESTS + LIGHT_REQUESTS + flags.rounds * sum(map(of_a_round, levels)) if levels else 0
    num_sides = 2 if commands else len(bases)
    count = num_sides * (len(planned) + looks)
    if count > MAX_REQUESTS:
        raise ValueError(
            f"{count:,} requests would be sent, {num_sides * len(planned):,} of them the scenario's. At most "
            f"{MAX_REQUESTS:,} can be sent: lower --num-prompts, server.levels or server.rounds"
        )
    words_drawn = token_hex(4)  # No command had them before: a server may still have their prompts in its cache.
    drafting = (raw, "", ".measured.json")
    plain = ({**raw, "speculation": PLAIN}, "plain: ", ".pair.measured.json")
    logs = [flags.out.with_suffix(suffix) for suffix in (".pair.log", ".log")][: len(commands)]
    outputs = {"--out": flags.out, **dict(zip(("log without speculation", "log with it"), logs, strict=False))}

    def side_of(stack: ExitStack, base: str, given: dict[str, Json], prefix: str, suffix: str) -> Side:
        client = stack.enter_context(Client(base, timeout_s=flags.timeout_s, key=key))
        return Side(client, flags.model, given, profile, flags.out.with_suffix(suffix), words_drawn, prefix, on_step)

    with ExitStack() as stack:
        inputs = inputs_of(flags.scenario, scenario)
        stack.enter_context(destinations(files=outputs, inputs=inputs, overwrite=flags.overwrite))
        if not commands:
            sides = [side_of(stack, base, *how) for base, how in zip(bases, (drafting, plain), strict=False)]
            return _life(flags, sides, prompts, levels)
        before: list[Side] = []
        for words, log, how in zip(commands, logs, (plain, drafting), strict=True):
            with started(words, bases[0], log, timeout_s=flags.timeout_s), ExitStack() as life:
                before.insert(0, side_of(life, bases[0], *how))
                run = _life(flags, before[:1], prompts, levels, before[1:])
        return run


def _life(
    flags: ServerFlags,
    sides: Sequence[Side],
    prompts: Sequence[int],
    levels: Sequence[int],
    before: Sequence[Side] = (),
) -> ServedRun:
    """Looks, prediction, load and verdict while the servers of `sides` run, those of `before` being over.
    The last of all drafts least."""
    from calibrate.server.served_run import compare_pair, write_prediction, write_run
    from calibrate.server.side import in_flight

    together = [*sides, *before]
    if levels:
        _look_and_fit(sides, prompts, levels, flags.rounds, before)
    for side in sides:
        side.predict()
    run = sides[0].run
    if len(together) > 1:
        run.plain = together[1].run
        if levels:
            run.in_flight = in_flight(together[0], together[1], levels, flags.rounds)
    write_prediction(flags.out, run)
    if flags.predict_only:
        return run
    for side in sides:
        try:
            side.send_load()
        finally:
            write_run(flags.out, run)
    for side in sides:
        side.judge()
    if run.plain is not None:
        compare_pair(run)
    write_run(flags.out, run)
    return run


def _look(sides: Sequence[Side], prompt_tokens: Sequence[int], levels: Sequence[int], num_rounds: int) -> None:
    """Send what the servers of `sides` are fitted to, by turns: a server or a machine that slows down for a while does
    so for one round of each."""
    for side in sides:
        side.look_alone(prompt_tokens)
    for number, at_once, side in product(range(num_rounds), levels, sides):
        side.look_at(at_once, number)


def _look_and_fit(
    sides: Sequence[Side],
    prompt_tokens: Sequence[int],
    levels: Sequence[int],
    num_rounds: int,
    before: Sequence[Side],
) -> None:
    """Look at the servers of `sides`, and give each the scenario that it shows and its profile."""
    from calibrate.served.fit import fit_served
    from calibrate.served.judge import setup_of
    from calibrate.served.line import fit_line, intake_error_s, with_price_of
    from calibrate.server.served_run import Doubt
    from calibrate.server.side import as_counted, check_drafts
    from sim.costs.compact_kernels import LinearKernels

    for side in sides:
        side.ask_engine()
    _look(sides, prompt_tokens, levels, num_rounds)
    together = [*sides, *before]
    rounds = [side.rounds(levels, num_rounds) for side in together]
    acceptances = []
    for side, same in zip(sides, rounds, strict=False):
        if len(together) > 1 or side.prefix:
            check_drafts(same, is_plain=bool(side.prefix))
        side.scenario, drawn = as_counted(side.raw, same)
        acceptances.append(drawn)
    doubted, off, given = "", list[float](), sides[0].profile
    if isinstance(given.kernels, LinearKernels):
        for side, same in zip(sides, rounds, strict=False):
            line = fit_line(side.scenario, side.profile, same, side.looks.lone)
            side.profile, doubted, off = line.profile, doubted or line.doubt, [*off, *line.off]
    else:
        # The price of a prompt is the target's: where there is a server without drafts, it tells that.
        plainest = together[-1]
        priced = with_price_of(plainest.scenario, given, plainest.looks.lone)
        setup = setup_of(sides[0].scenario)
        found = fit_served(priced, [each for same in rounds for each in same], setup, sides[0].on_step)
        doubted = found.doubt
        for side in sides:
            side.profile = found.profile
        off = [level.predicted_pct.get(level.fitted_metric, 0.0) / 100.0 for level in found.levels]
    if doubted:
        warnings.warn(doubted, stacklevel=2)
    pace = fmean(each**2 for each in off) ** 0.5
    for side, drawn in zip(sides, acceptances, strict=True):
        side.look_light(LIGHT_REQUESTS)
        side.doubt = Doubt(pace, drawn, intake_error_s(side.scenario, side.profile, side.light))


def _tell(run: ServedRun, out: Path) -> None:
    from calibrate.cli.profile_output import compared_table, print_answer
    from calibrate.cli.validate_file import metric_rows
    from calibrate.served.judge import off_in_words
    from calibrate.server.served_run import PARTS, PARTS_SAID, lateness
    from sim.metrics.compared import LATENCIES
    from sim.report.said import SURE
    from sim.report.tables import new_table, percent

    sentences, off_pct = list(run.verdict), run.errors[PARTS[0]]["e2el"]["mean"]["error_pct"]
    if not sentences and off_pct is not None:
        sentences.append(off_in_words(abs(off_pct), "this load in mean latency"))
    tables, lines = [], []
    if run.in_flight:
        rows = [[str(one.at_once), f"{one.measured:.0f} %", f"{one.predicted:.0f} %"] for one in run.in_flight]
        tables.append(("E2EL shorter by speculation", new_table(["requests in flight"], ["measured", "fitted"], rows)))
    for name, side in [("", run), *([("without speculation", run.plain)] if run.plain else [])]:
        lines += [(SURE, f"{name}: {lateness(side.sent)}".removeprefix(": ").capitalize())]
        if failed := [each.failed for each in side.sent if each.failed]:
            lines.append((SURE, f"{len(failed)} failed: {failed[0]}."))
        tables.append((name, compared_table(("metric", ""), metric_rows(next(iter(side.errors.values()))))))
        parts = [(PARTS_SAID[PARTS.index(part)], errors) for part, errors in side.errors.items()]
        rows = [[part, *(percent(errors[each]["mean"]["error_pct"]) for each in LATENCIES)] for part, errors in parts]
        tables.append(("errors of mean latencies", new_table(["prediction"], [*map(str.upper, LATENCIES)], rows)))
    more = f"{out} has the prediction, the requests and the errors."
    print_answer("\n".join(sentences), tables, lines, more)


class ProbeFlags(FitFlags, frozen=True, kw_only=True):
    """Flags about the loads and the fit."""

    url: Annotated[str, ARGUMENT, Meta(title="URL")]
    model: Served = None
    timeout_s: Patience = 300.0
    levels: Annotated[
        str, LEVELS, "Numbers of parallel requests to send. The largest is predicted from the others."
    ] = "1,2,4,8,16"
    rounds: Annotated[int, Meta(ge=1, le=COUNT), ROUNDS, "How often each of them is sent."] = 7
    input_len: Annotated[Tokens, "Tokens of each prompt."] = 128
    output_len: Annotated[int, Meta(ge=2, le=10_000_000), "Tokens requested."] = 64


@command("fit", ProbeFlags, example=FIT_EXAMPLE)
def fit_command(flags: ProbeFlags) -> None:
    """Time a server from outside: closed loops of streamed requests, several numbers of them at once. The largest is
    predicted from the others. Only the address that is given is called; it serves what is asked, so mind the bill."""
    from calibrate.served.fit import fit_served
    from calibrate.served.judge import LoadSetup
    from calibrate.served.readers import read_looks
    from calibrate.server.endpoint import base_of
    from calibrate.server.network import Client
    from calibrate.server.side import PLAIN, Side
    from sim.costs.engine_costs import engine_of
    from sim.costs.profile_files import load

    base, levels, key = base_of(flags.url), levels_of(flags.levels), server_key()
    measured = (Path("probe") if flags.out is None else flags.out).with_suffix(".measured.json")
    check_out(flags.out, [flags.profile], json_path=flags.json, others={"measured levels": measured})
    profile, raw = load(flags.profile), flags.raw
    engine_of(flags.engine, profile)
    lengths = {"input_len": flags.input_len, "output_len": flags.output_len}
    loops = {
        "policy": "continuous",
        **raw,
        "profile": flags.profile,
        "workload": {"num_prompts": 1, "request_rate": 1.0, **lengths},
        "speculation": PLAIN,
    }
    try:
        with progress() as on_step:
            with Client(base, timeout_s=flags.timeout_s, key=key) as client:
                side = Side(client, flags.model, loops, profile, measured, token_hex(4), "", on_step, is_fresh=True)
                side.warm_up(levels[-1])
                _look([side], [flags.input_len], levels, flags.rounds)
            served = side.looks.rounds
            fitted = fit_served(priced(profile, raw, side.looks), served, LoadSetup.of(raw), on_step)
    except BaseException as error:
        if done := len(read_looks(measured).rounds) // len(levels) if measured.exists() else 0:
            given = {"--profile": flags.profile, "--engine": flags.engine, "--out": flags.out}
            words = [str(word) for pair in given.items() if pair[1] is not None for word in pair]
            words += [word for override in flags.set for word in ("--set", override)]
            again = shlex.join(["lanesim", "calibrate", "fit", str(measured), *words])
            kept = f"{done} of {flags.rounds} rounds are in {str(measured)!r}. To fit them: {again}"
            if isinstance(error, ValueError):
                error.add_note(f"({kept})")
            else:
                click.echo(f"lanesim: {kept}", err=True)
        raise
    finish(fitted, flags, served)


def server_key() -> str | None:
    """The key that the environment has for a server; it is never shown."""
    key = os.environ.get(KEY, "").strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ValueError(f"{KEY} must be printable ASCII without spaces")
    return key or None


def levels_of(text: str) -> list[int]:
    levels = sorted(set(listed("server.levels", text, int, "numbers of requests at once, such as 1,4,16") or ()))
    if levels[0] < 1 or len(levels) < 2:
        raise ValueError(f"server.levels={text!r} must be two or more different numbers from 1 on, such as 1,4,16")
    if levels[-1] > MAX_LEVEL:
        raise ValueError(f"server.levels={text!r} must be at most {MAX_LEVEL} requests at once")
    return levels
