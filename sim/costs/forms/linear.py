"""LinearPasses: the cost of a work where a report gives a few times of whole passes, and nothing of their kernels.

Eager launches, graphs and the engine's constants act on these lines as on every form.
Not here: the constants (sim.costs.compact_kernels.LinearKernels), what all forms share (passes, work_costs).
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.costs.passes import ModelPasses, bounds_of
from sim.costs.profile import Profile
from sim.interface.work import TARGET, Chunk, Model


class LinearPasses(ModelPasses):
    """Passes of one model along its line."""

    has_row_parts = False

    def __init__(self, profile: Profile, model: Model, graph_sizes: Sequence[int]) -> None:
        super().__init__(profile, model, graph_sizes)
        kernels = profile.linear
        line = kernels.target if model is TARGET else kernels.draft
        assert line is not None
        self._line, self.bounds = line, bounds_of(kernels.measured)
        self.compute_roof = profile.gpu.peak_flops
        self.bandwidth_roof = profile.gpu.bandwidth_bytes_per_s
        if line.launches is not None:
            self.num_kernels = line.launches

    def layer_s(self, tokens: int) -> float:
        return (self._line.pass_s + self._line.token_s * tokens) / self.layers

    def fused_s(self, tokens: int) -> float:
        """Is part of the line."""
        return 0.0

    def logits_s(self, rows: int) -> float:
        return self._line.row_s * rows

    def rows_s(self, rows: int, row_tokens: int, kv_tokens: int, *, beside_chunks: bool) -> float:
        line = self._line
        seen_s = line.seen_s(rows) - line.pass_s - line.token_s * row_tokens if line.by_rows else 0.0
        return (seen_s + line.kv_token_s * kv_tokens) / self.layers

    def chunks_attention_s(self, chunks: Sequence[Chunk]) -> float:
        return self._line.kv_token_s * sum(new + history for new, history in chunks) / self.layers
