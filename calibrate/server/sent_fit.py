"""A profile fitted to a running server by requests that were sent to it, each simulated again when it was sent.

Three looks, none of them the load that is predicted. Requests one after the other tell the price of a prompt
(calibrate.server.server_line); some numbers of them at once, with the scenario's lengths, what a step takes and what a
row adds (calibrate.server.engine_fit); a light open loop what a request spends before the engine has it. Closed loops
of equal lengths would go in step, and whether a newcomer meets its neighbours' step is then a matter of microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import msgspec
from msgspec import structs

from calibrate.judge.cell import Cell
from calibrate.judge.cells import CellSetup, scenario_of
from calibrate.server.as_sent import as_requests, as_served, metrics, simulated
from calibrate.server.engine_fit import Form, Production, fit_served
from calibrate.server.levels import Accepted, ServedLevel, middling
from calibrate.server.open_loop import Sent
from calibrate.server.server_line import PromptPrice, price_of, with_price, with_rows
from sim.costs.compact_kernels import LinearKernels
from sim.costs.engine_costs import engine_of, with_engine
from sim.costs.profile import Profile
from sim.files.json_values import convert, parse_json
from sim.files.read import read_text
from sim.files.write import write_text
from sim.interface.request import Request
from sim.metrics.summary import latencies_s
from sim.run.experiment import Experiment
from sim.run.resolve import resolve_all
from sim.run.scenario import Scenario, to_plain

SCHEMA = 1
REQUESTS_PER_STREAM, MIN_REQUESTS = 4, 12
"""Requests of a round: the first and the last of a stream have fewer neighbours, which is simulated, too."""
ROW_SHARES = (0.0, 0.125, 0.25, 0.375, 0.5, 0.75, 1.0)
"""Times of a position that samples, over that of a prompt's token, that are tried."""
FIRST_SEED = 7919
"""Seed of the first round's lengths, beyond the scenario's: none of its own requests is sent for the fit."""


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
    light: list[Sent] = []


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
    workload = structs.replace(
        scenario.workload, num_prompts=of_a_round(at_once), request_rate=inf, max_concurrency=None
    )
    resolved = resolve_all(structs.replace(scenario, workload=workload), profile)[0]
    return Experiment(resolved, scenario.seed + FIRST_SEED + number).requests()


class Fit(NamedTuple):
    """A profile's constants, and the scenario with the scheduling that the server shows."""

    production: Production
    scenario: Scenario
    late_s: float
    """Root of the mean square of what first tokens of single requests are off, rounds of the fit."""


class _Level(NamedTuple):
    """Rounds of as many requests at once, with drafts or without."""

    served: ServedLevel
    """Means of the middle round, with the spread of all."""
    requests: list[Request]
    """As they were sent in the middle round."""


def fit_rounds(scenario: Scenario, profile: Profile, rounds: Sequence[Round]) -> Fit:
    """Constants of a step, and whether it is planned while the one before it runs where the scenario does not say: a
    newcomer waits for a step more then, so the scheduling with which single first tokens are less off. A server's own
    line gets the time of a position that samples as well, as a share of a token's in a prompt: the one with which the
    levels' times per token are least off. Rounds may be of two servers that differ in drafting alone: what they have in
    common is fitted to both. Raises ValueError."""
    sent = [as_requests(each.sent, round_requests(scenario, profile, each.at_once, each.number)) for each in rounds]
    levels = _levels(rounds, sent)
    asked = scenario.engine.async_scheduling
    fits = []
    for plans_ahead in (False, True) if asked is None else (asked,):
        scheduled = structs.replace(scenario, engine=structs.replace(scenario.engine, async_scheduling=plans_ahead))
        if isinstance(profile.kernels, LinearKernels):
            form = Form(is_async=plans_ahead, has_rows=False)
            tried = [_fit_levels(scheduled, with_rows(profile, share), levels, form) for share in ROW_SHARES]
            production = min(tried, key=_off)
        else:
            production = _fit_levels(scheduled, profile, levels)
        fits.append(Fit(production, scheduled, _late_s(scheduled, production.profile, rounds, sent)))
    return min(fits, key=lambda fit: fit.late_s)


def _levels(rounds: Sequence[Round], sent: Sequence[list[Request]]) -> list[_Level]:
    """The middle round by time per token of each number at once; `sent` are the rounds' requests."""
    by_load: dict[tuple[int, bool], list[_Level]] = {}
    for each, requests in zip(rounds, sent, strict=True):
        by_load.setdefault((each.at_once, each.accepted is None), []).append(_Level(each.level, requests))
    levels = []
    for same in by_load.values():
        noise = middling([each.served for each in same])
        served, requests = sorted(same, key=lambda each: each.served.tpot_s or 0.0)[(len(same) - 1) // 2]
        served = structs.replace(served, spreads_pct=noise.spreads_pct, repeats_pct=noise.repeats_pct)
        levels.append(_Level(served, requests))
    return levels


def _off(production: Production) -> float:
    """Mean square of the levels' errors in time per token."""
    return fmean(level.errors_pct[level.fitted_metric] ** 2 for level in production.levels)


def _late_s(scenario: Scenario, profile: Profile, rounds: Sequence[Round], sent: Sequence[list[Request]]) -> float:
    squares: list[float] = []
    for each, real in zip(rounds, sent, strict=True):
        workload = structs.replace(scenario.workload, request_rate=inf, max_concurrency=each.at_once)
        speculation = scenario.speculation
        if each.accepted is None:
            speculation = structs.replace(speculation, num_speculative_tokens=0)
        as_looked = structs.replace(scenario, workload=workload, speculation=speculation)
        ours, _ = simulated(resolve_all(as_looked, profile)[0], scenario.seed, real)
        squares += [
            (one.first_token_s - one.arrival_s - other.first_token_s + other.arrival_s) ** 2
            for one, other in zip(real, ours, strict=True)
        ]
    return sqrt(fmean(squares))


def _fit_levels(scenario: Scenario, profile: Profile, levels: Sequence[_Level], form: Form | None = None) -> Production:
    requests = {each.served.source: each.requests for each in levels}
    plain = to_plain(scenario)
    setup = CellSetup(engine=plain["engine"], speculation={"method": plain["speculation"]["method"]})

    def as_simulated(cell: Cell, priced: Profile) -> dict[str, float]:
        loop = scenario_of(cell, priced, setup)
        run = metrics(simulated(resolve_all(loop, priced)[0], loop.seed, requests[cell.label]))
        return {name: value for name, value in run.items() if value is not None}

    return fit_served(profile, [each.served for each in levels], setup, as_simulated, form)


def one_at_a_time(scenario: Scenario, profile: Profile, count: int) -> list[Request]:
    """So many requests of the scenario's lengths, as many in flight as one in the mean."""
    resolved, *_ = resolve_all(scenario, profile)
    alone, _ = simulated(resolved, scenario.seed, Experiment(resolved, scenario.seed).requests()[:1])
    rate = 1.0 / (alone[0].last_token_s - alone[0].arrival_s)
    workload = structs.replace(scenario.workload, num_prompts=count, request_rate=rate, max_concurrency=None)
    light = structs.replace(scenario, workload=workload)
    return Experiment(resolve_all(light, profile)[0], scenario.seed).requests()


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


def with_intake(scenario: Scenario, profile: Profile, sent: Sequence[Sent], planned: Sequence[Request]) -> Profile:
    """`profile` whose requests spend as much more before the engine as first tokens came later than simulated: closed
    loops, whose newcomers meet a step's end, do not tell it. Raises ValueError where nothing was answered."""
    requests, _ = as_served(sent, planned)
    ours, _ = simulated(resolve_all(scenario, profile)[0], scenario.seed, requests)
    real_s, ours_s = (fmean(latencies_s(side)["ttft"]) for side in (requests, ours))
    engine = engine_of(scenario.engine.name, profile)
    frontend_s = max(0.0, engine.frontend_s + real_s - ours_s)
    return with_engine(profile, structs.replace(engine, frontend_s=frontend_s))
