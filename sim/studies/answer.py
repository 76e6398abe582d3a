"""The answer to a question about deployments: figures of one, of its replicas, or rows of several.

`tune` answers for one engine, `capacity` for its replicas, `plan` has a row per deployment, `tune
--contexts` one per prompt length. A figure that a question does not ask for keeps its default and is left out of the
JSON. Not here: how figures are made (tune, attainment, plan), how they are shown (sim.report.say).
"""

from __future__ import annotations

import msgspec

from sim.compare.side_by_side import CostSource
from sim.files.json_values import Json
from sim.run.scenario import PlainScenario

ANSWER_SCHEMA = 1


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    k_table: list[list[int]] = []
    """[first batch size, last one, draft length], as vLLM has it; empty where lengths were not searched."""
    break_even_concurrency: float | None = None
    """Requests in flight of one engine from which on drafting gains nothing; None: not searched, or at none tried."""
    attainment_by_draw: list[float] = []
    """[draws] share of requests that meet all SLOs with these replicas; empty where no rate was given."""
    replicas: int | None = None
    utilisation: float | None = None
    """The rate over the highest load of these replicas, as given."""
    usd_per_million_tokens: float | None = None
    """Output tokens."""
    joules_per_output_token: float | None = None
    """Energy with costs as given; None: not wanted, or the power of that GPU is not known."""
    evidence: list[str] = []


class Stated(Answer, frozen=True, kw_only=True, rename={"costs": "profile"}):
    """An answer as a command states it, with the question and what it rests on."""

    scenario: PlainScenario
    costs: CostSource | None = None
    """The profile that was asked about; None where each row has one."""
    draws: int
    covers: str
    """Errors that the draws are of; empty without any."""
    verdict: str = ""
    notes: list[str] = []

    @property
    def plain(self) -> dict[str, Json]:
        return {"schema": ANSWER_SCHEMA, **msgspec.to_builtins(self)}
