"""What every study of a deployment answers: draft lengths, replicas, price, how it holds in draws, on what evidence.

`tune` answers for one engine, `capacity` for its replicas, `plan` for a search over deployments; what a question does
not ask for is None or empty. Not here: how it is found.
"""

from __future__ import annotations

import msgspec

from sim.files.json_values import Json


class Stated(msgspec.Struct, frozen=True, kw_only=True):
    """All that a study says."""

    @property
    def plain(self) -> dict[str, Json]:
        """The answer as plain values, ready for JSON."""
        found: dict[str, Json] = msgspec.to_builtins(self)
        return found


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One deployment's."""

    k_table: list[list[int]]
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
    """The nearest measured cells and the simulator's errors there."""
