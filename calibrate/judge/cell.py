"""One cell: an operating point that somebody measured, with what was measured there; and the same cell judged.

Everything that is held against the simulator is of this form: closed and open loops, pairs with and without drafts,
what other simulators predict. Not here: reading tables of cells (calibrate.judge.cell_table), simulating them
(calibrate.judge.cells).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Self

import msgspec

from sim.metrics.compared import Compared, compared

MEASURED = {
    "ttft_ms": "mean_ttft_ms",
    "tpot_ms": "mean_tpot_ms",
    "itl_ms": "mean_itl_ms",
    "e2el_ms": "mean_e2el_ms",
    "output_throughput": "output_throughput",
    "ttft_p50_ms": "median_ttft_ms",
    "ttft_p95_ms": "p95_ttft_ms",
    "ttft_p99_ms": "p99_ttft_ms",
    "tpot_p50_ms": "median_tpot_ms",
    "tpot_p95_ms": "p95_tpot_ms",
    "tpot_p99_ms": "p99_tpot_ms",
    "itl_p50_ms": "median_itl_ms",
    "itl_p95_ms": "p95_itl_ms",
    "itl_p99_ms": "p99_itl_ms",
    "e2el_p50_ms": "median_e2el_ms",
    "e2el_p95_ms": "p95_e2el_ms",
    "e2el_p99_ms": "p99_e2el_ms",
    "power_w": "power_w",
}
"""Metric, a column of that name -> the simulator's key for it (sim.metrics.summary): means and percentiles over
requests, milliseconds; output tokens per second; watts of one GPU."""
Whole = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
"""No count or length of any cell is near the most."""
Positive = Annotated[float, msgspec.Meta(ge=1e-6, le=1e12)]
"""Nor any measured value near these: errors against smaller ones have no bound."""
JUDGED, FITTED = "judged", "fitted"
"""Roles of a cell: nothing was fitted on it, or a constant was, so that it judges nothing."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One measured operating point; empty texts and None where a source does not say."""

    line: int = 0
    """Line of its table, the header being line 1."""
    id: str = ""
    source: str = ""
    """Repository or paper; `commit` of it, `licence` and `day` of the measurement as the source has them."""
    commit: str = ""
    licence: str = ""
    day: str = ""
    role: str = JUDGED

    gpu: str = ""
    num_gpus: Whole = 1
    engine: str = ""
    engine_version: str = ""
    target: str = ""
    draft: str = ""
    weights: str | None = None
    kv: str | None = None
    """Formats of the weights and of the KV cache; None: as the checkpoint has them."""
    tp: Whole = 1
    ep: Whole | None = None
    dp: Whole = 1
    """Degrees of tensor, expert and data parallelism."""
    max_num_seqs: Whole | None = None
    max_num_batched_tokens: Whole | None = None
    num_gpu_blocks: Annotated[int, msgspec.Meta(ge=2, le=10**9)] | None = None
    """Blocks that vLLM logs: one more than is used."""

    method: str = ""
    num_speculative_tokens: Annotated[int, msgspec.Meta(ge=0, le=10**9)] = 0
    """The column `k`, too."""
    topk: Whole = 1
    """Branches of a drafted tree; 1 = a chain."""
    acceptance: str | None = None
    """Acceptance in --acceptance's notation; None without speculation."""

    concurrency: Annotated[int, msgspec.Meta(ge=0, le=10**9)] = 0
    """Requests in flight of a closed loop; 0 = an open one."""
    request_rate: Positive | None = None
    """Arrivals per second of an open loop; None in a closed one."""
    num_prompts: Whole | None = None
    input_len: Whole | None = None
    output_len: Whole | None = None
    """Tokens of every output, or their mean; both lengths None where a list of requests has them."""
    output_len_std: Annotated[float, msgspec.Meta(ge=0.0, le=1e12)] = 0.0
    """Standard deviation of the outputs' tokens; 0 = all the same."""
    output_len_max: Whole | None = None
    """Tokens at which the engine cut outputs off."""
    random_range_ratio: float | tuple[float, float] | None = None
    """As the scenario's workload.random_range_ratio: 0.2, or shares such as [0.8, 1.0]; `length_range`, too."""
    shared_prefix: Annotated[int, msgspec.Meta(ge=0, le=10**9)] = 0
    """Tokens that prompts of one group begin with; `num_prefixes` is the number of groups."""
    num_prefixes: Whole = 1

    label: str = ""
    arm: str = ""
    pair_id: str = ""
    """Shared by cells of one set-up with and without drafts, or on one stream and on two."""
    measured: Mapping[str, float] = {}
    """Metric of MEASURED -> its value."""
    peer: str = ""
    """Another simulator, and its `predicted` values by metric."""
    predicted: Mapping[str, float] = {}
    texts: Mapping[str, str] = {}
    """Every column as it stands in the file, under its name after renaming."""

    @property
    def name(self) -> str:
        what = "/".join(filter(None, (self.label, self.arm)))
        return " ".join(filter(None, (what, self.point, f"k={self.num_speculative_tokens}")))

    @property
    def point(self) -> str:
        """Load, and lengths where the cell has them."""
        load = f"c={self.concurrency}" if self.request_rate is None else f"{self.request_rate:g}/s"
        return load if self.input_len is None else f"{load} {self.input_len}->{self.output_len}"


class JudgedCell(msgspec.Struct, frozen=True, kw_only=True):
    """A cell with what was measured beside what was simulated."""

    cell: Cell
    metrics: Mapping[str, Compared]
    """Values by metric of the cell."""
    peer: Mapping[str, Compared] = {}
    """The same for another simulator."""

    @classmethod
    def beside(cls, cell: Cell, simulated: Mapping[str, float | None]) -> Self:
        """`simulated` has values by metric of MEASURED; one that is missing is not known."""
        metrics = {name: compared(real, simulated.get(name)) for name, real in cell.measured.items()}
        peer = {name: compared(cell.measured.get(name), value) for name, value in cell.predicted.items()}
        return cls(cell=cell, metrics=metrics, peer=peer)

    @property
    def is_fit(self) -> bool:
        """A constant was fitted on it, so that it judges nothing."""
        return self.cell.role == FITTED

    def error_pct(self, metric: str) -> float | None:
        """Error in percent of the real value; None where one side has none."""
        return self.metrics[metric]["error_pct"] if metric in self.metrics else None


def judged_errors(judged: Iterable[JudgedCell], metric: str) -> list[float]:
    """Errors of the cells that judge, percent."""
    errors = [each.error_pct(metric) for each in judged if not each.is_fit]
    return [error for error in errors if error is not None]
