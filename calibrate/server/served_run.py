"""A scenario's requests as a server served them, beside what was predicted before they were sent: one JSON file.

It names no address, prompt, answer, key or folder, so that it can be shown to others, who can simulate it again. The
error is taken apart by simulating again with one thing more of what was seen: the requests as they were sent (when, and
how long), then the acceptance that they show, and where the server's passes are a line, how much longer they took than
before; what is left is the line. Not here: sending (calibrate.server.endpoint), the command
(calibrate.cli.validate_server).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from itertools import takewhile
from math import exp, log
from pathlib import Path
from statistics import NormalDist, fmean, median, stdev
from typing import Any, NamedTuple

import msgspec

from calibrate.served.as_sent import GOODPUT, as_served, fresh, metrics, quote_of, simulated
from calibrate.served.line import pace_of, steps_of, with_pace
from calibrate.served.load import Accepted, ServedRequest
from sim.compare.pool import OnDone
from sim.costs.compact_kernels import LinearKernels
from sim.costs.profile import Profile
from sim.engine.time_series import GapSamples
from sim.files.json_values import convert, read_json
from sim.files.read import MIB
from sim.files.write import write_text
from sim.interface.request import Request
from sim.metrics import compared
from sim.metrics.stats import t_975
from sim.run.experiment import Experiment
from sim.run.resolve import resolve_all
from sim.run.scenario import Scenario, parse_scenario, to_plain
from sim.workload.generate import num_requests

SCHEMA = 2
MAX_BYTES = 256 * MIB
"""Ten thousand requests of a thousand tokens."""
MAX_TOKENS, MAX_PER_OUTPUT = 100_000_000, 10
"""Tokens of a file that is simulated again when it is checked; one of an answer counts as so many of a prompt."""
DRAWS = 20
"""Simulations of the same requests with other draws, and at other paces."""
LATE_S = 0.01
"""A request sent this much after it was due is late."""
PARTS = ("predicted", "as sent", "as accepted", "at its pace")
PARTS_SAID = ("before the load", "+ times of sending", "+ drafts accepted", "+ the server's speed")
SPED_UP = ("e2el", "tpot")
"""Latencies whose means say what speculation does."""
DISAGREE = "But the load itself gained, so another program used the machine. Measure again."
STRIDE, INTAKE_STRIDE, INTAKE_FIRST = 7, 3, 8
"""Steps through the acceptances and the times before the engine, coprime to DRAWS, and where the latter begin: paces,
acceptances and these rise and fall together by less than 0.05 (correlation)."""
TAPE = "tape:"


class Doubt(NamedTuple):
    """Sources of a prediction's error."""

    pace: float = 0.0
    """Standard deviation of how much slower or faster the server is than its looks, relative."""
    acceptances: tuple[str, ...] = ()
    """Others that are as likely as the one that is predicted with; none where that is given."""
    intake_s: float = 0.0
    """Standard error of what a request spends before the engine."""


NO_DOUBT = Doubt()
BEFORE_LOAD: dict[str, Any] = {"sent_at": "", "sent": [], "preempted": None, "accepted": None, "errors": {}}
"""What the load fills of a file."""


class Shorter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Percent of the plain server's mean by which a latency is shorter with drafts; below 0: longer."""

    measured: float
    predicted: float


class InFlight(Shorter, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same of mean E2EL in closed loops of so many requests, which both servers were looked at with; predicted by
    what was fitted to them."""

    at_once: int
    low: float
    """Least and most that was measured over rounds."""
    high: float


class ServedRun(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The file. `predicted_at` is before `sent_at`, and `predicted_sha256` that of the file as it was before."""

    schema: int = SCHEMA
    kind: str = "served run"
    scenario: dict[str, Any]
    seed: int
    profile: dict[str, str]
    fitted: Profile | None = None
    """The profile as predicted with, without the fingerprint of the machine that its tables are of."""
    intake: list[ServedRequest] = []
    """Requests sent beforehand, about one at a time, that tell what a request spends before the engine has it."""
    frontend_s: float
    """That time, as predicted with."""
    predicted_at: str
    predicted: dict[str, float | None]
    """Metrics of the requests in question, under the simulator's keys, means over draws of acceptance."""
    intervals: dict[str, tuple[float, float]]
    """95 % of what is likely, by errors on looks left out, how the machine drifted, and draws of acceptance."""
    preemptions: float | None = None
    """Preemptions that were predicted."""
    predicted_sha256: str = ""
    sent_at: str = ""
    sent: list[ServedRequest] = []
    preempted: float | None = None
    """Preemptions that the server counted."""
    accepted: Accepted | None = None
    """Drafts by the server's own count, if it has one."""
    errors: dict[str, Any] = {}
    """Real, simulated and error in percent, by part and metric."""
    plain: ServedRun | None = None
    """The same load on a server that differs in nothing but that it does not draft."""
    shorter: dict[str, Shorter] = {}
    """What drafts do, by mean latency."""
    in_flight: list[InFlight] | msgspec.UnsetType = msgspec.UNSET
    """The same by requests in flight; not there where there were no looks at a pair."""

    @property
    def in_words(self) -> str:
        """Contents in words, and the errors of the means, simulated again with the run's profile."""
        failed = sum(bool(each.failed) for each in self.sent)
        sent = f"{len(self.sent)} requests sent, {failed} failed"
        told = f"Predicted {self.predicted_at} with {self.profile['name']}"
        told = ". ".join(
            [sent, told, *(f"Errors {part}: {means(errors)}" for part, errors in self.judged_again().items())]
        )
        if self.plain is None:
            return told
        return " ".join([*self.verdict, f"{told}. Without speculation: {self.plain.in_words}"])

    @property
    def verdict(self) -> list[str]:
        """Effect of drafts, in sentences; none where that is not known."""
        told, e2el = sped_up(self.shorter), self.shorter.get("e2el")
        if self.in_flight:
            is_odd = e2el is not None and self.in_flight[0].measured < 0.0 < e2el.measured
            told.append(up_to(self.in_flight) + f" {DISAGREE}" * is_odd)
        return told

    def judged_again(self) -> dict[str, Any]:
        """`errors` by what the file holds alone; none where they are not known, or a trace or a tape is elsewhere."""
        scenario = parse_scenario(self.scenario)
        tokens = sum(each.prompt_tokens + MAX_PER_OUTPUT * each.output_tokens for each in self.sent)
        is_large = tokens > MAX_TOKENS or num_requests(scenario.workload) > len(self.sent)
        is_elsewhere = scenario.workload.dataset_path or scenario.speculation.acceptance.startswith(TAPE)
        if self.fitted is None or not self.errors or is_elsewhere or is_large:
            return {}
        planned = Experiment(resolve_all(scenario, self.fitted)[0], self.seed).requests()
        again = msgspec.structs.replace(self)
        judge(again, scenario, self.fitted, planned)
        return again.errors


def predict(
    scenario: Scenario,
    profile: Profile,
    requests: Sequence[Request],
    doubt: Doubt = NO_DOUBT,
    on_step: OnDone = lambda stage, done, total: None,
) -> ServedRun:
    """Metrics that `requests` will come to: means over draws of acceptance, and intervals by draws of all that is in
    `doubt`. Raises ValueError for what cannot run."""
    resolved, *_ = resolve_all(scenario, profile)
    is_drafting, slo_ms = scenario.speculation.num_speculative_tokens > 0, scenario.goodput.bounds_ms
    draws = range(scenario.seed, scenario.seed + (DRAWS if is_drafting else 1))
    served: list[tuple[list[Request], GapSamples]] = []
    for draw in draws:
        on_step("predicting", len(served), len(draws) + DRAWS)
        served.append(simulated(scenario, profile, requests, draw))
    runs = [metrics(each, slo_ms) for each in served]
    known = {name: [value for run in runs if (value := run[name]) is not None] for name in runs[0]}
    predicted = {name: fmean(values) if values else None for name, values in known.items()}
    doubted = []
    for drawn in _doubted(scenario, profile, requests, doubt):
        doubted.append(metrics(drawn, slo_ms))
        on_step("predicting", len(draws) + len(doubted), len(draws) + DRAWS)
    return ServedRun(
        scenario=shown(scenario, profile),
        seed=scenario.seed,
        profile={"name": profile.name, "source": profile.source},
        fitted=msgspec.structs.replace(profile, fingerprint=None),
        frontend_s=resolved.engine.frontend_s,
        predicted_at=now(),
        predicted=predicted,
        intervals={
            name: _interval(value, [each for run in doubted if (each := run[name]) is not None])
            for name, value in predicted.items()
            if value is not None
        },
        preemptions=fmean(sum(each.num_preemptions for each in requests) for requests, _ in served),
    )


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _doubted(
    scenario: Scenario, profile: Profile, requests: Sequence[Request], doubt: Doubt
) -> Iterator[tuple[list[Request], GapSamples]]:
    """The requests served with other draws, other acceptances and at other paces, evenly spread over what is likely."""
    for draw in range(DRAWS):
        # A server that is slower by some factor is one whose requests come sooner by it, on a slower clock.
        pace = exp(doubt.pace * _quantile(draw))
        more_s = doubt.intake_s * _quantile((draw * INTAKE_STRIDE + INTAKE_FIRST) % DRAWS)
        sooner = fresh(requests)
        for each in sooner:
            each.arrival_s /= pace
        speculation = scenario.speculation
        if doubt.acceptances:
            # In another order than paces, which rise.
            acceptance = doubt.acceptances[draw * STRIDE % len(doubt.acceptances)]
            speculation = msgspec.structs.replace(speculation, acceptance=acceptance)
        drawn = msgspec.structs.replace(scenario, speculation=speculation)
        done, gaps = simulated(drawn, profile, sooner, scenario.seed + DRAWS + draw)
        for each in done:
            each.arrival_s *= pace
            each.first_token_s = max(each.arrival_s, each.first_token_s * pace + more_s)
            each.last_token_s = max(each.first_token_s, each.last_token_s * pace + more_s)
        slower = GapSamples()
        for gap_s, count in zip(gaps.gaps_s, gaps.counts, strict=True):
            slower.add(pace * gap_s, count)
        yield done, slower


def _quantile(draw: int) -> float:
    """Of the normal distribution, in the middle of the part that is the draw's of DRAWS."""
    return NormalDist().inv_cdf((draw + 0.5) / DRAWS)


def _interval(value: float, drawn: Sequence[float]) -> tuple[float, float]:
    """95 % of what is likely about a `value`, as one more draw differs from DRAWS of them, by ratios."""
    if min(value, *drawn) <= 0.0:
        return min(value, *drawn), max(value, *drawn)
    width = float(t_975(len(drawn) - 1)) * stdev(map(log, drawn)) * (1.0 + 1.0 / len(drawn)) ** 0.5
    return value * exp(-width), value * exp(width)


def shown(scenario: Scenario, profile: Profile) -> dict[str, Any]:
    """The scenario, files by their names alone."""
    shown: dict[str, Any] = {**to_plain(scenario), "profile": profile.name}
    speculation, workload = shown["speculation"], shown["workload"]
    if workload["dataset_path"]:
        path, hash_, options = workload["dataset_path"].partition("#")
        workload["dataset_path"] = Path(path).name + hash_ + options
    for name in ("acceptance", "stale_acceptance"):
        if (speculation[name] or "").startswith(TAPE):
            speculation[name] = TAPE + Path(speculation[name].removeprefix(TAPE)).name
    return shown


def judge(run: ServedRun, scenario: Scenario, profile: Profile, planned: Sequence[Request]) -> None:
    """Fill `run.errors`. Raises ValueError where nothing was answered."""
    requests, gaps = as_served(run.sent, planned)
    slo_ms = scenario.goodput.bounds_ms
    real = metrics((requests, gaps), slo_ms)
    sides: dict[str, Mapping[str, float | None]] = {PARTS[0]: run.predicted}

    def simulate_again(part: str, scenario: Scenario, profile: Profile) -> None:
        sides[part] = metrics(simulated(scenario, profile, requests, run.seed), slo_ms)

    simulate_again(PARTS[1], scenario, profile)
    if run.accepted is not None and run.accepted.drafts:
        acceptance = quote_of(run.accepted, run.sent)
        speculation = msgspec.structs.replace(scenario.speculation, acceptance=acceptance)
        scenario = msgspec.structs.replace(scenario, speculation=speculation)
        simulate_again(PARTS[2], scenario, profile)
    if isinstance(profile.kernels, LinearKernels):
        simulate_again(PARTS[3], scenario, with_pace(profile, pace_of(profile, steps_of(run.sent))))
    run.errors = {part: compared.errors(real, side) for part, side in sides.items()}
    if GOODPUT in real:
        for part, side in sides.items():
            run.errors[part][GOODPUT] = compared.compared(real[GOODPUT], side.get(GOODPUT))


def shorter_pct(drafting: float, plain: float) -> float:
    return 100.0 * (1.0 - drafting / plain)


def compare_pair(run: ServedRun) -> None:
    """Fill `run.shorter` from its errors and those of `run.plain`."""
    assert run.plain is not None
    for name in SPED_UP:
        drafting, plain = (each.errors[PARTS[0]][name]["mean"] for each in (run, run.plain))
        if None not in (*drafting.values(), *plain.values()):
            measured, predicted = (shorter_pct(drafting[side], plain[side]) for side in ("real", "simulated"))
            run.shorter[name] = Shorter(measured=measured, predicted=predicted)


def sped_up(shorter: Mapping[str, Shorter]) -> list[str]:
    """The effect of speculation on each latency.

    >>> sped_up({"e2el": Shorter(measured=12.0, predicted=9.0)})
    ['Speculation makes E2EL 12 % shorter (predicted: 9 % shorter).']
    """
    return [
        f"Speculation makes {name.upper()} {_in_words(each.measured)} (predicted: {_in_words(each.predicted)})."
        for name, each in shorter.items()
    ]


def up_to(loads: Sequence[InFlight]) -> str:
    """Up to how many requests in flight drafts gain. Loads rise.

    >>> some = [(1, 30.0, 28.0), (4, 8.0, 9.0), (8, -5.0, -2.0)]
    >>> up_to([InFlight(at_once=n, measured=m, predicted=p, low=m - 6.0, high=m + 6.0) for n, m, p in some])
    'Turn speculation on up to 4 requests in flight. Rounds disagree at 8.'
    """
    gains = list(takewhile(lambda each: each.measured > 0.0, loads))
    count = gains[-1].at_once if gains else 0
    most = (
        f"Turn speculation on up to {count} request{'s' * (count > 1)} in flight" if gains else "Leave speculation off"
    )
    if loads[0].low < 0.0 < loads[0].high:
        most = "Speculation may help or harm"
    elif len(gains) == len(loads):
        most += ", the most that were tried"
    unsure = ", ".join(str(each.at_once) for each in loads if each.low < 0.0 < each.high)
    return f"{most}." + (f" Rounds disagree at {unsure}." if unsure else "")


def _in_words(shorter_pct: float) -> str:
    return f"{abs(shorter_pct):.0f} % {'shorter' if shorter_pct > 0.0 else 'longer'}"


def means(errors: Mapping[str, Any]) -> str:
    """Errors of the mean latencies, as a clause."""
    known = {name: errors[name]["mean"]["error_pct"] for name in compared.LATENCIES}
    return ", ".join(f"{name.upper()} {'-' if pct is None else f'{pct:+.1f} %'}" for name, pct in known.items())


def lateness(sent: Sequence[ServedRequest]) -> str:
    """Punctuality of the client.

    >>> lateness([ServedRequest(index=0, due_s=0.0, sent_s=0.001), ServedRequest(index=1, due_s=1.0, sent_s=1.025)])
    '1 of 2 requests were sent over 10 ms late (median 13.0 ms).'
    """
    lates_s = [each.sent_s - each.due_s for each in sent]
    num_late = sum(late_s > LATE_S for late_s in lates_s)
    late = f"{num_late} of {len(sent)} requests were sent over {1e3 * LATE_S:.0f} ms late"
    return f"{late} (median {1e3 * median(lates_s):.1f} ms)."


def read_run(path: Path) -> ServedRun:
    """Raises ValueError, naming the file, for what is none."""
    where = f"served run {str(path)!r}"
    run = convert(read_json(path, "served run", max_bytes=MAX_BYTES), ServedRun, where)
    if run.schema != SCHEMA:
        raise ValueError(f"{where}: schema={run.schema!r} must be {SCHEMA}")
    if any("name" not in each.profile for each in (run, run.plain) if each is not None):
        raise ValueError(f"{where}: profile has no name")
    return run


def write_run(path: Path, run: ServedRun) -> None:
    write_text(path, _text(run))


def write_prediction(path: Path, run: ServedRun) -> None:
    """Write what was predicted before it is sent, and keep the file's hash, which `as_predicted` gives again."""
    write_run(path, run)
    run.predicted_sha256 = sha256(_text(run).encode()).hexdigest()


def as_predicted(told: Mapping[str, Any]) -> str:
    """Hash of a run's file as it was before its load, of the JSON that the file holds: a later lanesim may know other
    keys. A plain run that has such a hash of its own was over."""
    bare = {**told, **BEFORE_LOAD, "predicted_sha256": "", "shorter": {}}
    if told["plain"] and not told["plain"]["predicted_sha256"]:
        bare["plain"] = {**told["plain"], **BEFORE_LOAD}
    return sha256(msgspec.json.encode(bare) + b"\n").hexdigest()


def _text(run: ServedRun) -> str:
    return msgspec.json.encode(run).decode() + "\n"
