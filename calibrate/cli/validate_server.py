"""`lanesim validate URL`: predict a scenario on a running server, send it, and say how far off the prediction was."""

from __future__ import annotations

import warnings
from itertools import product
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from calibrate.cli.probe import key_of, levels_of
from sim.cli.console import claim, progress
from sim.cli.flags import ARGUMENT, Overwrite, command
from sim.cli.options import CompareScenario, NumPrompts, Overrides, RequestRate, gather, inputs_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from calibrate.server.open_loop import Sent
    from calibrate.server.sent_fit import Round
    from calibrate.server.served_run import ServedRun
    from sim.costs.profile import Profile
    from sim.files.json_values import Json
    from sim.interface.request import Request
    from sim.run.scenario import Scenario

EXAMPLE = (
    "lanesim validate http://localhost:8000 --profile mine.json --request-rate 4 --num-prompts 200 \\\n"
    "    --input-len 128 --output-len 64 --set workload.random_range_ratio=0.5"
)
TITLES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL"}
NUM_PROMPTS = 200
"""Requests of a scenario that is not told how many: they are sent in real time."""
MAX_REQUESTS = 10_000
INTAKE_REQUESTS = 20
"""Sent first, about one at a time: they tell the time before the engine."""


class ServerFlags(Struct, frozen=True, kw_only=True):
    """Flags of a server's address."""

    url: Annotated[str, ARGUMENT, Meta(title="URL")]
    scenario: Annotated[Path | None, ARGUMENT] = None
    profile: Annotated[str | None, "Cost profile: gpu/target[+draft], or a path. [a line, of the server itself]"] = None
    request_rate: RequestRate = None
    num_prompts: NumPrompts = None
    input_len: Annotated[int | None, "Prompt tokens."] = None
    output_len: Annotated[int | None, "Output tokens."] = None
    set: Overrides = ()
    model: Annotated[str | None, "Model, as the server names it. [its only one]"] = None
    levels: Annotated[str, "Closed loops that the profile is fitted to first, requests at once; none: it was."] = (
        "1,2,4,8,16"
    )
    rounds: Annotated[int, Meta(ge=1, le=1000), "Over the levels, by turns."] = 3
    max_requests: Annotated[int, Meta(ge=1, le=MAX_REQUESTS), "Most requests that may be sent."] = 1000
    timeout_s: Annotated[float, Meta(gt=0.0, le=86_400.0), "Longest that one answer may take, to its last byte."] = (
        300.0
    )
    api_key_env: Annotated[str | None, Meta(title="NAME"), "Environment variable that holds the server's key."] = None
    predict_only: Annotated[bool, "Look and predict; send nothing of the scenario."] = False
    out: Annotated[Path, "File of the prediction, what was sent and the errors."] = Path("served-run.json")
    overwrite: Overwrite = False


@command("server", ServerFlags, example=EXAMPLE)
def server_command(flags: ServerFlags) -> None:
    """Fit the profile to the server, predict the scenario's requests, send them, and say how far off it was.

    The prediction is in the file before a request of it is sent; the file names no address, prompt or key. Levels that
    were measured are kept beside it, and taken from there when the command is given again with --overwrite.
    """
    from calibrate.server.metrics import told_by
    from calibrate.server.network import Client
    from calibrate.server.open_loop import send, tokens_per_word
    from calibrate.server.probe import base_of, drafts_between, find, look
    from calibrate.server.sent_fit import (
        Round,
        of_a_round,
        one_at_a_time,
        read_looks,
        round_requests,
        with_intake,
        write_looks,
    )
    from calibrate.server.served_run import judge, predict, write_run
    from calibrate.server.server_line import LONE_REQUESTS, NAME, line_of_server, lone_requests
    from sim.costs.profile_files import load
    from sim.run.experiment import Experiment
    from sim.run.resolve import resolve_all
    from sim.run.scenario import parse_scenario

    base, key = base_of(flags.url), key_of(flags.api_key_env)
    names = ("scenario", "request_rate", "num_prompts", "input_len", "output_len", "set")
    raw = gather(CompareScenario(profile=(flags.profile or NAME,), **{name: getattr(flags, name) for name in names}))
    raw.setdefault("policy", "continuous")
    workload = raw.setdefault("workload", {})
    if isinstance(workload, dict):
        workload.setdefault("num_prompts", NUM_PROMPTS)
    scenario = parse_scenario(raw)
    if scenario.workload.request_rate in (None, inf) and scenario.workload.max_concurrency is None:
        raise ValueError("all requests would be sent at once: give --request-rate, or --set workload.max_concurrency=N")
    if len(scenario.policy) > 1:
        raise ValueError(f"a server has one scheduler; policy names {', '.join(scenario.policy)}")
    levels = [] if flags.levels == "none" else levels_of(flags.levels)
    if flags.profile is None and not levels:
        raise ValueError("--levels none: without --profile the server's own line is fitted to them")
    claim(files={"--out": flags.out}, inputs=inputs_of(flags.scenario, scenario))
    profile = line_of_server() if flags.profile is None else load(scenario.profile)
    planned = Experiment(resolve_all(scenario, profile)[0], scenario.seed).requests()
    count = len(planned) + (
        LONE_REQUESTS + INTAKE_REQUESTS + flags.rounds * sum(map(of_a_round, levels)) if levels else 0
    )
    if count > flags.max_requests:
        raise ValueError(
            f"{count:,} requests would be sent, {len(planned):,} of them the scenario's, and --max-requests is "
            f"{flags.max_requests:,}: give --num-prompts, fewer --levels or --rounds, or allow more"
        )
    with Client(base, timeout_s=flags.timeout_s, key=key) as client, progress() as on_step:
        endpoint = find(client, flags.model)
        words = 1.0 / tokens_per_word(client, endpoint)

        def sent_of(requests: Sequence[Request], stage: str, sent: list[Sent], at_once: int | None) -> list[Sent]:
            def on_sent(each: Sent) -> None:
                sent.append(each)
                on_step(stage, len(sent), len(requests))

            send(
                client,
                endpoint,
                requests,
                words_per_token=words,
                block_tokens=scenario.engine.block_size,
                seed=scenario.seed,
                max_concurrency=at_once,
                on_sent=on_sent,
            )
            return sent

        intake: list[Sent] = []
        if levels:
            engine = raw.setdefault("engine", {})
            if isinstance(engine, dict):
                raw["engine"] = told_by(look(client)) | engine
            path = flags.out.with_suffix(".measured.json")
            looks = read_looks(path, base)
            if not looks.lone:
                looks.lone = sent_of(lone_requests([each.prompt_tokens for each in planned]), "one by one", [], 1)
                write_looks(path, looks)
            known = {(each.at_once, each.number) for each in looks.rounds}
            # By turns, so that a server or a machine that slows down for a while does so for one round of each.
            for number, at_once in product(range(flags.rounds), levels):
                if (at_once, number) not in known:
                    before, requests = look(client), round_requests(scenario, profile, at_once, number)
                    sent = sent_of(requests, f"{at_once} at once", [], at_once)
                    drafts = drafts_between(before, look(client), base)
                    looks.rounds.append(Round(at_once=at_once, number=number, sent=sent, accepted=drafts))
                    write_looks(path, looks)
            rounds = [each for each in looks.rounds if each.at_once in levels and each.number < flags.rounds]
            scenario = _as_served(raw, rounds)
            scenario, profile = _fitted(scenario, profile, looks.lone, rounds)
            light = one_at_a_time(scenario, profile, INTAKE_REQUESTS)
            if not looks.light:
                looks.light = sent_of(light, "about one at a time", [], None)
                write_looks(path, looks)
            profile = with_intake(scenario, profile, looks.light, light)
            intake = looks.light
        run = predict(scenario, profile, planned)
        run.intake = intake
        write_run(flags.out, run)
        if flags.predict_only:
            e2el_ms, tpot_ms = run.predicted["mean_e2el_ms"] or 0.0, run.predicted["mean_tpot_ms"] or 0.0
            print(f"predicted: E2EL {e2el_ms:,.0f} ms, TPOT {tpot_ms:.2f} ms in the mean; the rest in {flags.out}")
            print("the same command with --overwrite and without --predict-only sends the requests")
            return
        before = look(client)
        try:
            sent_of(planned, "sending", run.sent, scenario.workload.max_concurrency)
            run.accepted = drafts_between(before, look(client), base)
        finally:
            write_run(flags.out, run)
    judge(run, profile, planned)
    write_run(flags.out, run)
    _tell(run)
    print(f"prediction, requests and errors in {flags.out}")


def _as_served(raw: dict[str, Json], rounds: Sequence[Round]) -> Scenario:
    """The scenario with the draft length and the acceptance that the server counted, where it does not say them."""
    from calibrate.server.levels import pooled
    from sim.run.scenario import parse_scenario

    accepted = pooled([each.accepted for each in rounds if each.accepted is not None], "the server")
    speculation = raw.setdefault("speculation", {})
    if isinstance(speculation, dict):
        speculation.setdefault("num_speculative_tokens", 0 if accepted is None else accepted.draft_tokens)
        if accepted is not None:
            speculation.setdefault("acceptance", accepted.quote)
    return parse_scenario(raw)


def _fitted(
    scenario: Scenario, profile: Profile, lone: Sequence[Sent], rounds: Sequence[Round]
) -> tuple[Scenario, Profile]:
    """The scenario with the server's scheduling, the profile with its price of prompts and its constants."""
    from calibrate.cli.production import doubt
    from calibrate.server.sent_fit import fit_rounds, with_price_of

    found = fit_rounds(scenario, with_price_of(scenario, profile, lone), rounds)
    if doubted := doubt(found.production, {}):
        warnings.warn(doubted, stacklevel=2)
    return found.scenario, found.production.profile


def _tell(run: ServedRun) -> None:
    from calibrate.judge.validation_output import print_compared
    from calibrate.server.served_run import lateness
    from sim.metrics.compared import STATISTICS, THROUGHPUT

    first = next(iter(run.errors.values()))
    rows = [
        ((f"{TITLES[name]} (ms)" if statistic == "mean" else "", statistic), first[name][statistic])
        for name in TITLES
        for statistic in STATISTICS
    ]
    lines = [
        f"{part}: " + ", ".join(f"{TITLES[name]} {_percent(errors[name]['mean'])}" for name in TITLES)
        for part, errors in run.errors.items()
    ]
    failed = [each.failed for each in run.sent if each.failed]
    if failed:
        lines.append(f"{len(failed)} failed: {failed[0]}")
    print_compared(
        f"{run.profile['name']}, predicted {run.predicted_at}",
        ("metric", ""),
        [*rows, (("output (tok/s)", ""), first[THROUGHPUT])],
        [lateness(run.sent), *lines],
    )


def _percent(each: dict[str, float | None]) -> str:
    return "-" if each["error_pct"] is None else f"{each['error_pct']:+.1f} %"
