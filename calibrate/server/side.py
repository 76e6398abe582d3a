"""One of the servers of a served run: looked at, sent the load, and what is kept of the looks.

Not here: requests and their times (calibrate.server.open_loop), fits (calibrate.server.sent_fit), predictions and the
verdict (calibrate.server.served_run).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from calibrate.server.levels import Accepted, pooled
from calibrate.server.metrics import told_by
from calibrate.server.network import Client
from calibrate.server.open_loop import Sent, send, tokens_per_word
from calibrate.server.probe import Endpoint, drafts_between, find, look
from calibrate.server.sent_fit import Round, ServerLooks, read_looks, round_requests, write_looks
from calibrate.server.served_run import ServedRun, judge, predict
from calibrate.server.server_line import lone_requests
from sim.costs.profile import Profile
from sim.files.json_values import Json
from sim.interface.request import Request
from sim.run.experiment import Experiment
from sim.run.resolve import resolve_all
from sim.run.scenario import Scenario, parse_scenario

PLAIN: dict[str, Json] = {"num_speculative_tokens": 0}


@dataclass(slots=True, kw_only=True)
class Side:
    """A server under its own name of the scenario."""

    client: Client
    endpoint: Endpoint
    words_per_token: float
    raw: dict[str, Json]
    """The scenario as it was given, and as far as the server tells it."""
    scenario: Scenario
    profile: Profile
    path: Path
    """File of the looks."""
    looks: ServerLooks
    prefix: str
    """Stands before what is said while it works; empty where there is one server."""
    on_step: Callable[[str, int, int], None]
    planned: list[Request] = field(init=False)
    run: ServedRun = field(init=False)

    @classmethod
    def of(
        cls,
        client: Client,
        model: str | None,
        raw: dict[str, Json],
        profile: Profile,
        path: Path,
        prefix: str,
        on_step: Callable[[str, int, int], None],
    ) -> Side:
        """The server that answers. Raises ValueError for one that does not, or for looks at another."""
        looks = read_looks(path, client.url)
        endpoint = find(client, model)
        return cls(
            client=client,
            endpoint=endpoint,
            words_per_token=1.0 / tokens_per_word(client, endpoint),
            raw=raw,
            scenario=parse_scenario(raw),
            profile=profile,
            path=path,
            looks=looks,
            prefix=prefix,
            on_step=on_step,
        )

    def send(self, requests: Sequence[Request], stage: str, sent: list[Sent], at_once: int | None) -> Accepted | None:
        """Add each that has ended to `sent`; drafts by the server's own count."""

        def on_sent(each: Sent) -> None:
            sent.append(each)
            self.on_step(self.prefix + stage, len(sent), len(requests))

        before = look(self.client)
        send(
            self.client,
            self.endpoint,
            requests,
            words_per_token=self.words_per_token,
            block_tokens=self.scenario.engine.block_size,
            seed=self.scenario.seed,
            max_concurrency=at_once,
            on_sent=on_sent,
        )
        return drafts_between(before, look(self.client), self.client.url)

    def look_alone(self, prompt_tokens: Sequence[int]) -> None:
        """Requests one after the other, unless they are kept."""
        if not self.looks.lone:
            lone: list[Sent] = []
            self.send(lone_requests(prompt_tokens), "one by one", lone, 1)
            self.looks.lone = lone
            write_looks(self.path, self.looks)

    def look_light(self, light: Sequence[Request]) -> None:
        """Requests about one at a time, unless they are kept."""
        if not self.looks.light:
            sent: list[Sent] = []
            self.send(light, "about one at a time", sent, None)
            self.looks.light = sent
            write_looks(self.path, self.looks)

    def ask_cache(self) -> None:
        """Add what the server says of its KV cache to its engine, where the scenario does not."""
        engine = self.raw.get("engine", {})
        if isinstance(engine, dict):
            self.raw["engine"] = told_by(look(self.client)) | engine

    def look_at(self, at_once: int, number: int) -> None:
        """A round, unless it is kept."""
        if all((at_once, number) != (each.at_once, each.number) for each in self.looks.rounds):
            sent: list[Sent] = []
            requests = round_requests(self.scenario, self.profile, at_once, number)
            accepted = self.send(requests, f"{at_once} at once", sent, at_once)
            self.looks.rounds.append(Round(at_once=at_once, number=number, sent=sent, accepted=accepted))
            write_looks(self.path, self.looks)

    def predict(self) -> None:
        """Plan the load and say what it will come to."""
        resolved = resolve_all(self.scenario, self.profile)[0]
        self.planned = Experiment(resolved, self.scenario.seed).requests()
        self.run = predict(self.scenario, self.profile, self.planned)

    def send_load(self) -> None:
        most = self.scenario.workload.max_concurrency
        self.run.accepted = self.send(self.planned, "sending", self.run.sent, most)

    def judge(self) -> None:
        judge(self.run, self.scenario, self.profile, self.planned)

    def rounds(self, levels: Sequence[int], count: int) -> list[Round]:
        """Those of the looks that count."""
        return [each for each in self.looks.rounds if each.at_once in levels and each.number < count]


def as_counted(raw: dict[str, Json], rounds: Sequence[Round]) -> Scenario:
    """The scenario with the draft length and the acceptance that the server counted, where it does not say them."""
    accepted = pooled([each.accepted for each in rounds if each.accepted is not None], "the server")
    speculation = raw.get("speculation", {})
    if isinstance(speculation, dict):
        counted: dict[str, Json] = {"num_speculative_tokens": 0 if accepted is None else accepted.draft_tokens}
        if accepted is not None:
            counted["acceptance"] = accepted.quote
        speculation = counted | speculation
    return parse_scenario({**raw, "speculation": speculation})


def check_pair(drafting: Sequence[Round], plain: Sequence[Round]) -> None:
    """Raise ValueError unless the first server drafts and the second does not, by their own count."""
    if all(each.accepted is None for each in drafting):
        raise ValueError("URL counts no drafts in its /metrics: it is the server that speculates, --pair the other one")
    if any(each.accepted is not None for each in plain):
        raise ValueError("the server of --pair drafts, too: it is the one without speculation")
