"""A scenario's requests as a server served them, beside what was predicted before they were sent.

One JSON file holds it all: the scenario, the prediction with the moment when it was made, every request that was sent,
and the errors. It names no address, prompt, answer or key, so that it can be shown to others. The error is taken apart
by simulating again with one thing more of what was seen: the requests as they were sent (when, and how long), and then
the acceptance that the server counted; what is left is how long the server takes. Not here: sending
(calibrate.server.open_loop), the command (calibrate.cli.validate_server).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median
from typing import Any

import msgspec

from calibrate.server.as_sent import as_served, metrics, simulated
from calibrate.server.levels import Accepted
from calibrate.server.open_loop import Sent
from sim.costs.profile import Profile
from sim.files.json_values import convert, read_json
from sim.files.read import MIB
from sim.files.write import write_text
from sim.interface.request import Request
from sim.metrics import compared
from sim.run.resolve import resolve_all
from sim.run.scenario import Scenario, parse_scenario, to_plain

SCHEMA = 1
MAX_BYTES = 256 * MIB
"""Ten thousand requests of a thousand tokens."""
DRAWS = 5
"""Simulations of the same requests with other draws of acceptance: their spread is told."""
LATE_S = 0.01
"""A request sent this much after it was due is late."""
PARTS = ("predicted", "as sent", "as accepted")


class ServedRun(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The file. `predicted_at` is before any of `sent` was sent."""

    schema: int = SCHEMA
    kind: str = "served run"
    scenario: dict[str, Any]
    seed: int
    profile: dict[str, str]
    intake: list[Sent] = []
    """Requests sent beforehand, about one at a time, that tell what a request spends before the engine has it."""
    frontend_s: float
    """That time, as predicted with."""
    predicted_at: str
    predicted: dict[str, float | None]
    """Metrics of the requests in question, under the simulator's keys, means over draws of acceptance."""
    spread: dict[str, float]
    """Largest less smallest value over the draws; empty without speculation."""
    sent: list[Sent] = []
    accepted: Accepted | None = None
    """Drafts by the server's own count, if it has one."""
    errors: dict[str, Any] = {}
    """Real, simulated and error in percent, by part and metric."""

    @property
    def in_words(self) -> str:
        profile, failed = self.profile["name"], sum(bool(each.failed) for each in self.sent)
        return f"{len(self.sent)} requests sent, {failed} failed; {profile}, predicted {self.predicted_at}"


def predict(scenario: Scenario, profile: Profile, requests: Sequence[Request]) -> ServedRun:
    """Metrics that `requests` will come to. Raises ValueError for what cannot run."""
    resolved, *_ = resolve_all(scenario, profile)
    runs = [metrics(simulated(resolved, draw, requests)) for draw in _draws(scenario)]
    known = {name: [value for run in runs if (value := run[name]) is not None] for name in runs[0]}
    return ServedRun(
        scenario={**to_plain(scenario), "profile": profile.name},
        seed=scenario.seed,
        profile={"name": profile.name, "source": profile.source},
        frontend_s=resolved.engine.frontend_s,
        predicted_at=datetime.now(UTC).isoformat(timespec="seconds"),
        predicted={name: fmean(values) if values else None for name, values in known.items()},
        spread={name: max(values) - min(values) for name, values in known.items() if len(values) > 1},
    )


def _draws(scenario: Scenario) -> range:
    return range(scenario.seed, scenario.seed + (DRAWS if scenario.speculation.num_speculative_tokens else 1))


def judge(run: ServedRun, profile: Profile, planned: Sequence[Request]) -> None:
    """Fill `run.errors`. Raises ValueError where nothing was answered."""
    requests, gaps = as_served(run.sent, planned)
    real = metrics((requests, gaps))
    scenario = parse_scenario(run.scenario)
    sides: dict[str, Mapping[str, float | None]] = {PARTS[0]: run.predicted}
    sides[PARTS[1]] = metrics(simulated(resolve_all(scenario, profile)[0], run.seed, requests))
    if run.accepted is not None and run.accepted.drafts:
        seen = parse_scenario(
            msgspec.to_builtins(run.scenario)
            | {"speculation": {**run.scenario["speculation"], "acceptance": run.accepted.quote}}
        )
        sides[PARTS[2]] = metrics(simulated(resolve_all(seen, profile)[0], run.seed, requests))
    run.errors = {part: compared.errors(real, side) for part, side in sides.items()}


def lateness(sent: Sequence[Sent]) -> str:
    """How well the client kept time, as a clause.

    >>> lateness([Sent(index=0, due_s=0.0, sent_s=0.001), Sent(index=1, due_s=1.0, sent_s=1.025)])
    '2 sent, 1 of them over 10 ms late, median 13.0 ms'
    """
    lates_s = [each.sent_s - each.due_s for each in sent]
    num_late = sum(late_s > LATE_S for late_s in lates_s)
    told = f"{len(sent)} sent, {num_late} of them over {1e3 * LATE_S:.0f} ms late"
    return f"{told}, median {1e3 * median(lates_s):.1f} ms"


def read_run(path: Path) -> ServedRun:
    """Raises ValueError, naming the file, for what is none."""
    where = f"served run {str(path)!r}"
    run = convert(read_json(path, "served run", max_bytes=MAX_BYTES), ServedRun, where)
    if run.schema != SCHEMA:
        raise ValueError(f"{where}: schema={run.schema!r} must be {SCHEMA}")
    return run


def write_run(path: Path, run: ServedRun) -> None:
    write_text(path, msgspec.json.format(msgspec.json.encode(run), indent=1).decode() + "\n")
