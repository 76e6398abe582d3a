"""A profile fitted to a running server by requests that were sent to it, each simulated again when it was sent.

None of the looks is the load that is predicted. Some numbers of requests at once, with the scenario's lengths, tell
what a step takes: without a profile by the steps that their tokens came in (calibrate.server.server_line), with one by
its engine's constants (calibrate.production.engine_fit). Requests one after the other tell the price of a prompt; a
light open loop, sent right before the load, how fast the machine is at the moment, and what a request spends before the
engine has it. Closed loops of equal lengths would go in step, and whether a newcomer meets its neighbours' step is then
a matter of microseconds. No prompt of a look shares a prefix with another.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt
from pathlib import Path
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

import msgspec
from msgspec import structs

from calibrate.judge.cell import Cell
from calibrate.judge.cells import CellSetup, scenario_of
from calibrate.production.engine_fit import Production, fit_served
from calibrate.production.levels import Accepted, ServedLevel, middling
from calibrate.server.as_sent import as_requests, as_served, metrics, simulated
from calibrate.server.open_loop import Sent
from calibrate.server.server_line import (
    PromptPrice,
    SeenStep,
    pace_of,
    price_of,
    steps_of,
    with_pace,
    with_price,
    with_steps,
)
from sim.costs.compact_kernels import LinearKernels
from sim.costs.engine_costs import engine_of, with_engine
from sim.costs.profile import Profile
from sim.files.json_values import convert, parse_json
from sim.files.read import read_text
from sim.files.write import write_text
from sim.interface.request import Request
from sim.metrics.stats import t_975
from sim.metrics.summary import latencies_s
from sim.run.experiment import Experiment
from sim.run.resolve import resolve_all
from sim.run.scenario import Scenario, to_plain

SCHEMA = 1
REQUESTS_PER_STREAM, MIN_REQUESTS = 4, 12
"""Requests of a round: the first and the last of a stream have fewer neighbours, which is simulated, too."""
ENGINES_OWN = ("step_s", "row_s", "gap_s", "draft_pass_s", "draft_phase_s", "frontend_s", "frontend_token_s")
"""Times of an engine that are part of the steps as they are seen."""
TWO_PACES = 2.0**0.5
"""The pace of the light loop is as far off as that of the load is: their difference, over what one round is off."""
MAX_OFF = 0.2
"""Relative error of a round's mean E2EL beyond which steps by rows and prompts do not describe the server."""
FIRST_SEED, NEXT_SEED = 7919, 104_729
"""Seeds of rounds' lengths and prompts, beyond the scenario's: none of its own requests is sent for the fit."""


class Round(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests of the scenario's lengths, so many at once."""

    at_once: int
    number: int
    sent: list[Sent]
    accepted: Accepted | None = None
    """Drafts by the server's own count."""

    @property
    def level(self) -> ServedLevel:
        """Means over all of its requests. Raises ValueError where none was answered."""
        requests, gaps = as_served(self.sent)
        told = metrics((requests, gaps))
        ttft_ms, tpot_ms = told["mean_ttft_ms"], told["mean_tpot_ms"]
        drafting = "" if self.accepted is None else ", drafting"
        return ServedLevel(
            source=f"{self.at_once} at once{drafting}, round {self.number + 1}",
            concurrency=float(self.at_once),
            prompt_tokens=fmean(each.prompt_tokens for each in requests),
            output_tokens=fmean(each.output_tokens for each in requests),
            ttft_s=None if ttft_ms is None else ttft_ms / 1e3,
            tpot_s=None if tpot_ms is None else tpot_ms / 1e3,
            accepted=self.accepted,
            num_requests=len(requests),
            sent=len(self.sent),
        )


class ServerLooks(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The file beside a served run's: what was sent for the fit, kept as it comes. It stays on this machine: it holds
    the server's address."""

    schema: int = SCHEMA
    kind: str = "looks at a server"
    url: str
    lone: list[Sent] = []
    rounds: list[Round] = []
    lights: int = 0
    """Light loops that were sent: the next one has other prompts."""


def read_looks(path: Path, url: str) -> ServerLooks:
    """The looks kept in `path`, none yet where there is no such file. Raises ValueError where they are no looks, or
    of another server."""
    if not path.exists():
        return ServerLooks(url=url)
    where = f"looks at a server {str(path)!r}"
    looks = convert(parse_json(read_text(path, "looks at a server"), where), ServerLooks, where)
    if looks.url != url:
        raise ValueError(f"{where} are of another server: choose another --out")
    return looks


def write_looks(path: Path, looks: ServerLooks) -> None:
    """Replace `path`. Raises ValueError where it cannot be written."""
    write_text(path, msgspec.json.encode(looks).decode() + "\n")


def of_a_round(at_once: int) -> int:
    """Requests of a round."""
    return max(MIN_REQUESTS, REQUESTS_PER_STREAM * at_once)


def round_requests(scenario: Scenario, profile: Profile, at_once: int, number: int) -> list[Request]:
    """The scenario's lengths drawn anew, all of them there from the start."""
    return _drawn(scenario, profile, look_seed(scenario, at_once, number), of_a_round(at_once), inf)


def look_seed(scenario: Scenario, at_once: int, number: int) -> int:
    """Seed of a look's lengths and prompts; `at_once` 0: of a light loop."""
    return scenario.seed + FIRST_SEED * (at_once + 1) + NEXT_SEED * number


def _drawn(scenario: Scenario, profile: Profile, seed: int, count: int, rate: float) -> list[Request]:
    """So many requests of the scenario's lengths, none of which has content in common with another."""
    workload = structs.replace(scenario.workload, num_prompts=count, request_rate=rate, max_concurrency=None)
    resolved = resolve_all(structs.replace(scenario, workload=workload), profile)[0]
    requests = Experiment(resolved, seed).requests().objects()
    for each in requests:
        each.content = ()
    return requests


class Fit(NamedTuple):
    """A line and how far it is off rounds that it is not of."""

    profile: Profile
    off: list[float]
    """Relative errors of the steps of each round, by those of all others, times TWO_PACES."""
    doubt: str
    """A warning where it does not describe the server; else empty."""


def fit_line(scenario: Scenario, profile: Profile, rounds: Sequence[Round], lone: Sequence[Sent]) -> Fit:
    """A line by the steps of `rounds`, drafts and verification included, whatever the engine itself would add.
    Raises ValueError where there are none."""
    engine = engine_of(scenario.engine.name, profile)
    plain = with_engine(profile, structs.replace(engine, **dict.fromkeys(ENGINES_OWN, 0.0)))
    alone = _first_tokens(as_requests(lone))
    steps = [steps_of(each.sent) for each in rounds]

    def of(parts: Sequence[Sequence[SeenStep]]) -> Profile:
        return with_steps(plain, [step for part in parts for step in part], alone)

    fitted = of(steps)
    others = [[other for other in steps if other is not part] for part in steps]
    off = [TWO_PACES * (pace_of(of(rest), part) - 1.0) for part, rest in zip(steps, others, strict=True) if rest]
    e2els_s = {each.level.source: e2el_s(scenario, fitted, each) for each in rounds}
    errors = {source: ours_s / real_s - 1.0 for source, (real_s, ours_s) in e2els_s.items()}
    source, worst = max(errors.items(), key=lambda error: abs(error[1]))
    doubt = f"Steps do not tell how this server serves: {worst:+.0%} in E2EL, {source}." if abs(worst) > MAX_OFF else ""
    if doubt and max(step.rows for part in steps for step in part) == 1 < max(each.at_once for each in rounds):
        doubt += " None of its steps served two requests: it does not batch, as simulated engines do."
    return Fit(fitted, off, doubt)


def e2el_s(scenario: Scenario, profile: Profile, looked: Round) -> tuple[float, float]:
    """Mean E2EL of a round in seconds, measured and simulated."""
    workload = structs.replace(scenario.workload, request_rate=inf, max_concurrency=looked.at_once)
    real = as_requests(looked.sent)
    ours, _ = simulated(resolve_all(structs.replace(scenario, workload=workload), profile)[0], scenario.seed, real)
    real_s, ours_s = (fmean(latencies_s(side)["e2el"]) for side in (real, ours))
    return real_s, ours_s


def fit_rounds(scenario: Scenario, profile: Profile, rounds: Sequence[Round]) -> Production:
    """Constants of a profile's engine. Rounds may be of two servers that differ in drafting alone: what they have in
    common is fitted to both. Raises ValueError."""
    by_load: dict[tuple[int, bool], list[tuple[ServedLevel, list[Request]]]] = {}
    for each in rounds:
        requests = as_requests(each.sent, round_requests(scenario, profile, each.at_once, each.number))
        by_load.setdefault((each.at_once, each.accepted is None), []).append((each.level, requests))
    levels, sent = [], {}
    for same in by_load.values():
        noise = middling([level for level, _ in same])
        level, requests = sorted(same, key=lambda one: one[0].tpot_s or 0.0)[(len(same) - 1) // 2]
        levels.append(structs.replace(level, spreads_pct=noise.spreads_pct, repeats_pct=noise.repeats_pct))
        sent[level.source] = requests
    plain = to_plain(scenario)
    setup = CellSetup(engine=plain["engine"], speculation={"method": plain["speculation"]["method"]})

    def as_simulated(cell: Cell, priced: Profile) -> dict[str, float]:
        loop = scenario_of(cell, priced, setup)
        run = metrics(simulated(resolve_all(loop, priced)[0], loop.seed, sent[cell.label]))
        return {name: value for name, value in run.items() if value is not None}

    return fit_served(profile, levels, setup, as_simulated)


def one_at_a_time(scenario: Scenario, profile: Profile, count: int, number: int) -> list[Request]:
    """So many requests of the scenario's lengths, as many in flight as one in the mean."""
    resolved, *_ = resolve_all(scenario, profile)
    alone, _ = simulated(resolved, scenario.seed, Experiment(resolved, scenario.seed).requests()[:1])
    rate = 1.0 / (alone[0].last_token_s - alone[0].arrival_s)
    return _drawn(scenario, profile, look_seed(scenario, 0, number), count, rate)


def with_price_of(scenario: Scenario, profile: Profile, lone: Sequence[Sent]) -> Profile:
    """`profile` with the price of prompts that `lone` requests, served one after the other, tell
    (calibrate.server.server_line). Raises ValueError where they tell none."""
    requests = as_requests(lone)

    def as_simulated(priced: Profile) -> PromptPrice:
        served, _ = simulated(resolve_all(scenario, priced)[0], scenario.seed, requests)
        return price_of(_first_tokens(served))

    return with_price(profile, price_of(_first_tokens(requests)), as_simulated)


def _first_tokens(requests: Sequence[Request]) -> list[tuple[int, float]]:
    return [(each.prompt_tokens, each.first_token_s - each.arrival_s) for each in requests]


def as_now(scenario: Scenario, profile: Profile, light: Sequence[Sent]) -> Profile:
    """`profile` as the machine is while `light` was sent: a line by the pace of its steps; and requests that spend as
    much more before the engine as first tokens came later than simulated, which closed loops, whose newcomers meet a
    step's end, do not tell. Raises ValueError where nothing was answered."""
    if isinstance(profile.kernels, LinearKernels):
        profile = with_pace(profile, pace_of(profile, steps_of(light)))
    engine = engine_of(scenario.engine.name, profile)
    frontend_s = max(0.0, engine.frontend_s + fmean(_late_s(scenario, profile, light)))
    return with_engine(profile, structs.replace(engine, frontend_s=frontend_s))


def intake_error_s(scenario: Scenario, profile: Profile, light: Sequence[Sent]) -> float:
    """Standard error of what `as_now` says that requests spend before the engine, as that of a normal distribution
    which is as wide at 95 % as few requests leave it. Raises ValueError where fewer than two were answered."""
    late_s = _late_s(scenario, profile, light)
    return stdev(late_s) / sqrt(len(late_s)) * t_975(len(late_s) - 1) / NormalDist().inv_cdf(0.975)


def _late_s(scenario: Scenario, profile: Profile, light: Sequence[Sent]) -> list[float]:
    """By how much first tokens came later than simulated, by request."""
    requests = as_requests(light)
    ours, _ = simulated(resolve_all(scenario, profile)[0], scenario.seed, requests)
    real_s, ours_s = (latencies_s(side)["ttft"].tolist() for side in (requests, ours))
    return [real - simulated_s for real, simulated_s in zip(real_s, ours_s, strict=True)]
