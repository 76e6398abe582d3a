"""One of the servers of a served run: looked at, sent the load, and what is kept of the looks.

Not here: requests and their times (calibrate.server.endpoint), fits (calibrate.served.line), predictions and the
verdict (calibrate.server.served_run).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

from calibrate.served.as_sent import closed_loop, quote_of, spread_of, step_rates
from calibrate.served.line import (
    as_now,
    e2el_s,
    lone_requests,
    look_seed,
    one_at_a_time,
    round_requests,
)
from calibrate.served.load import Accepted, ServedLoad, ServedRequest, pooled
from calibrate.served.metrics import Growth, told_by
from calibrate.served.readers import ServerLooks, read_looks, write_looks
from calibrate.server.endpoint import find, look, send, slots, tokens_per_word
from calibrate.server.network import Client
from calibrate.server.served_run import DRAWS, NO_DOUBT, InFlight, ServedRun, judge, now, predict, shorter_pct
from sim.costs.profile import Profile
from sim.files.json_values import Json, value_at
from sim.interface.request import Request
from sim.names import DRAFT_KEY
from sim.run.experiment import Experiment
from sim.run.resolve import resolve_all
from sim.run.scenario import Scenario, parse_scenario

PLAIN: dict[str, Json] = {"num_speculative_tokens": 0}
WARM_UP_WAVES, WARM_UP_ROUND = 2, 10_000
"""Requests of each stream before anything counts, and the number of their round, which no other has."""
DRAWN_ROUNDS = 2
"""Rounds of a draw, about a third of a load's requests: what a load's own prompts accept and what all rounds told vary
by about so much together."""


class Side:
    """A server under its own name of the scenario."""

    planned: list[Request]
    run: ServedRun

    def __init__(
        self,
        client: Client,
        model: str | None,
        raw: dict[str, Json],
        profile: Profile,
        path: Path,
        words_drawn: str,
        prefix: str,
        on_step: Callable[[str, int, int], None],
        *,
        is_fresh: bool = False,
    ) -> None:
        """The server that answers; if `is_fresh` nothing that is kept in `path` counts. `words_drawn` is part of every
        prompt's seed, the same for servers that are compared. `prefix` stands before what is said while it works.

        Raises ValueError for one that does not answer, or for looks at another.
        """
        self.looks = ServerLooks(url=client.url) if is_fresh else read_looks(path, client.url)
        self.client, self.endpoint = client, find(client, model)
        self.words_per_token = 1.0 / tokens_per_word(client, self.endpoint)
        self.raw, self.scenario, self.profile = raw, parse_scenario(raw), profile
        self.path, self.words_drawn, self.prefix, self.on_step = path, words_drawn, prefix, on_step
        self.doubt = NO_DOUBT
        self.light: list[ServedRequest] = []

    def send(
        self, requests: Sequence[Request], stage: str, sent: list[ServedRequest], at_once: int | None, seed: int
    ) -> Growth | None:
        """Add each that has ended to `sent`, with prompts of `seed`; what the server counted meanwhile."""

        def on_sent(each: ServedRequest) -> None:
            sent.append(each)
            self.on_step(self.prefix + stage, len(sent), len(requests))

        before = look(self.client)
        send(
            self.client,
            self.endpoint,
            requests,
            words_per_token=self.words_per_token,
            block_tokens=self.scenario.engine.block_size,
            seed=f"{self.words_drawn} {seed}",
            max_concurrency=at_once,
            on_sent=on_sent,
        )
        after, told = look(self.client), value_at(self.raw, DRAFT_KEY)
        if before is None or after is None:
            return None
        flag = f"lanesim validate URL --set {DRAFT_KEY}=K"
        return Growth(before, after, f"{self.client.url}/metrics", told if isinstance(told, int) else None, flag)

    def warm_up(self, at_once: int) -> None:
        """Requests before anything counts: servers compile, allocate and fill caches while they answer their first."""
        requests = round_requests(self.scenario, self.profile, at_once, WARM_UP_ROUND)[: WARM_UP_WAVES * at_once]
        self.send(requests, "warming up", [], at_once, look_seed(self.scenario, at_once, WARM_UP_ROUND))

    def look_alone(self, prompt_tokens: Sequence[int]) -> None:
        """Requests one after the other, unless they are kept."""
        if not self.looks.lone:
            lone: list[ServedRequest] = []
            self.send(lone_requests(prompt_tokens), "one by one", lone, 1, look_seed(self.scenario, 0, 0))
            self.looks.lone = lone
            write_looks(self.path, self.looks)

    def look_light(self, count: int) -> None:
        """So many requests about one at a time, always anew: the profile as the machine is now."""
        self.looks.lights += 1
        number = self.looks.lights
        write_looks(self.path, self.looks)
        requests = one_at_a_time(self.scenario, self.profile, count, number)
        self.send(requests, "about one at a time", self.light, None, look_seed(self.scenario, 0, number))
        self.profile = as_now(self.scenario, self.profile, self.light)

    def ask_engine(self) -> None:
        """Add what the server says of its KV cache and its slots to its engine, where the scenario does not."""
        engine, at_once = self.raw.get("engine", {}), slots(self.client)
        told = told_by(look(self.client)) | ({} if at_once is None else {"max_num_seqs": at_once})
        if isinstance(engine, dict):
            self.raw["engine"] = told | engine

    def look_at(self, at_once: int, number: int) -> None:
        """A round, unless it is kept."""
        if all((at_once, number) != (each.concurrency, each.number) for each in self.looks.rounds):
            sent: list[ServedRequest] = []
            requests = round_requests(self.scenario, self.profile, at_once, number)
            seed = look_seed(self.scenario, at_once, number)
            counted = self.send(requests, f"{at_once} at once", sent, at_once, seed)
            accepted = None if counted is None else counted.accepted
            self.looks.rounds.append(closed_loop(at_once, number, sent, accepted))
            write_looks(self.path, self.looks)

    def predict(self) -> None:
        """Plan the load and say what it will come to."""
        resolved = resolve_all(self.scenario, self.profile)[0]
        self.planned = Experiment(resolved, self.scenario.seed).requests().objects()
        self.run = predict(self.scenario, self.profile, self.planned, self.doubt, self.on_step)
        self.run.intake = self.light

    def send_load(self) -> None:
        most = self.scenario.workload.max_concurrency
        self.run.sent_at = now()
        counted = self.send(self.planned, "sending", self.run.sent, most, self.scenario.seed)
        if counted is not None:
            self.run.accepted, self.run.preempted = counted.accepted, counted.total("num_preemptions")

    def judge(self) -> None:
        judge(self.run, self.scenario, self.profile, self.planned)

    def rounds(self, levels: Sequence[int], count: int) -> list[ServedLoad]:
        """Those of the looks that count."""
        return [each for each in self.looks.rounds if each.concurrency in levels and each.number < count]


def as_counted(raw: dict[str, Json], rounds: Sequence[ServedLoad]) -> tuple[Scenario, tuple[str, ...]]:
    """The scenario with the draft length and the acceptance that `rounds` show, where it does not say them; and the
    acceptance in draws of a few rounds, by which it is unsure."""
    speculation = raw.get("speculation", {})
    drafted = [each for each in rounds if each.accepted is not None]
    accepted, sent = _together(drafted)
    if not isinstance(speculation, dict) or accepted is None:
        return parse_scenario({**raw, "speculation": PLAIN | speculation if isinstance(speculation, dict) else {}}), ()
    spread = spread_of(step_rates(accepted, sent), sent)
    counted: dict[str, Json] = {
        "num_speculative_tokens": accepted.draft_tokens,
        "acceptance": quote_of(accepted, sent, spread),
    }
    drawn = [_together(random.Random(f"rounds {draw}").choices(drafted, k=DRAWN_ROUNDS)) for draw in range(DRAWS)]
    quotes = tuple(quote_of(part, sent, spread) for part, sent in drawn if part is not None)
    return parse_scenario({**raw, "speculation": counted | speculation}), () if "acceptance" in speculation else quotes


def _together(rounds: Sequence[ServedLoad]) -> tuple[Accepted | None, list[ServedRequest]]:
    parts = [each.accepted for each in rounds if each.accepted is not None]
    return pooled(parts, "the server"), [one for each in rounds for one in each.requests]


def check_drafts(rounds: Sequence[ServedLoad], *, is_plain: bool) -> None:
    """Raise ValueError unless a server of two that differ in drafting drafts, or does not, by its own count."""
    drafted = [each for each in rounds if each.accepted is not None]
    if is_plain and drafted:
        raise ValueError("the server without speculation drafts, too. Start it without a speculative config")
    if not is_plain and not drafted:
        raise ValueError("URL counts no drafts in its /metrics. With --pair, give the server that speculates first")


def in_flight(drafting: Side, plain: Side, levels: Sequence[int], count: int) -> list[InFlight]:
    """Effect of drafts on the closed loops that both were looked at with, measured and simulated."""
    found = []
    for at_once in levels:
        pairs = [
            [e2el_s(side.scenario, side.profile, each) for each in side.rounds([at_once], count)]
            for side in (drafting, plain)
        ]
        rounds = [shorter_pct(one[0], other[0]) for one, other in zip(*pairs, strict=True)]
        measured, predicted = (shorter_pct(*(fmean(each[part] for each in side) for side in pairs)) for part in (0, 1))
        found.append(
            InFlight(at_once=at_once, measured=measured, predicted=predicted, low=min(rounds), high=max(rounds))
        )
    return found
