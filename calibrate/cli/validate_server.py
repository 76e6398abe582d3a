"""`lanesim validate URL`: predict a scenario on a running server, send it, and say how far off the prediction was."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, structs

from calibrate.cli.probe import key_of
from sim.cli.console import claim, progress
from sim.cli.flags import ARGUMENT, Overwrite, command
from sim.cli.options import MaxConcurrency, RequestRate, WorkloadFlags, gather, inputs_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from calibrate.server.open_loop import Sent
    from calibrate.server.served_run import ServedRun
    from sim.interface.request import Request

EXAMPLE = (
    "lanesim validate http://localhost:8000 --profile mine.json --request-rate 4 --num-prompts 200 \\\n"
    "    --input-len 128 --output-len 64 --set workload.random_range_ratio=0.5"
)
TITLES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL"}
MAX_REQUESTS = 10_000


class ServerFlags(WorkloadFlags, frozen=True, kw_only=True):
    """Flags of a server's address."""

    url: Annotated[str, ARGUMENT, Meta(title="URL")]
    scenario: Annotated[Path | None, "Scenario file; flags win."] = None
    profile: Annotated[str, "Profile of the GPU and models: a name or a path."]  # type: ignore[assignment]
    request_rate: RequestRate = None
    max_concurrency: MaxConcurrency = None
    model: Annotated[str | None, "Model, as the server names it. [its only one]"] = None
    max_requests: Annotated[int, Meta(ge=1, le=MAX_REQUESTS), "Most requests that may be sent."] = 1000
    intake_requests: Annotated[
        int, Meta(ge=0, le=1000), "Sent first, about one at a time: time before the engine. 0: as in the profile."
    ] = 20
    timeout_s: Annotated[float, Meta(gt=0.0, le=86_400.0), "Longest that one answer may take, to its last byte."] = (
        300.0
    )
    api_key_env: Annotated[str | None, Meta(title="NAME"), "Environment variable that holds the server's key."] = None
    out: Annotated[Path, "File of the prediction, what was sent and the errors."] = Path("served-run.json")
    overwrite: Overwrite = False


@command("server", ServerFlags, example=EXAMPLE)
def server_command(flags: ServerFlags) -> None:
    """Predict the scenario's requests, send them to the server, and say how far off the prediction was.

    The profile is best one that `validate URL --fit-only --out` fitted to this server. The prediction is in the file
    before a request is sent; the file names no address, prompt or key.
    """
    from calibrate.server.network import Client
    from calibrate.server.open_loop import send, tokens_per_word
    from calibrate.server.probe import base_of, drafts_between, find, look
    from calibrate.server.served_run import judge, one_at_a_time, predict, with_intake, write_run
    from sim.costs.profile_files import load
    from sim.run.experiment import Experiment
    from sim.run.resolve import resolve_all
    from sim.run.scenario import parse_scenario

    base, key = base_of(flags.url), key_of(flags.api_key_env)
    raw = gather(structs.replace(flags, profile=(flags.profile,)))
    raw.setdefault("policy", "continuous")
    scenario = parse_scenario(raw)
    if len(scenario.policy) > 1:
        raise ValueError(f"a server has one scheduler; policy names {', '.join(scenario.policy)}")
    claim(files={"--out": flags.out}, inputs=inputs_of(flags.scenario, scenario))
    profile = load(scenario.profile)
    planned = Experiment(resolve_all(scenario, profile)[0], scenario.seed).requests()
    if len(planned) + flags.intake_requests > flags.max_requests:
        raise ValueError(
            f"{len(planned)} requests would be sent, --max-requests is {flags.max_requests}; give --num-prompts"
        )
    with Client(base, timeout_s=flags.timeout_s, key=key) as client, progress() as on_step:
        endpoint = find(client, flags.model)
        words = 1.0 / tokens_per_word(client, endpoint)

        def sent_of(requests: Sequence[Request], stage: str, sent: list[Sent]) -> None:
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
                max_concurrency=scenario.workload.max_concurrency,
                on_sent=on_sent,
            )

        intake: list[Sent] = []
        if flags.intake_requests:
            light = one_at_a_time(scenario, profile, flags.intake_requests)
            sent_of(light, "one at a time", intake)
            profile = with_intake(scenario, profile, intake, light)
        run = predict(scenario, profile, planned)
        run.intake = intake
        write_run(flags.out, run)
        before = look(client)
        try:
            sent_of(planned, "sending", run.sent)
            run.accepted = drafts_between(before, look(client), base)
        finally:
            write_run(flags.out, run)
    judge(run, profile, planned)
    write_run(flags.out, run)
    _tell(run)
    print(f"prediction, requests and errors in {flags.out}")


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
