"""TablePasses: the cost of a work from measured points, interpolated, and the rules where nothing was measured.

Rows between measured counts are interpolated at equal context per row, in which fixed + a x rows + b x KV is exact.
Chunks in one pass cost what each costs alone, the shortest measured chunk's time counted once: it is the kernel's fixed
time. Without measured history, a chunk's query-key pairs cost the rate of the longest chunk, and its KV that of the
largest decode. Verify rows, and rows beside chunks, that were not measured: TableKernels.verify_rule.
Not here: interpolation itself (interpolation), points (sim.costs.table_kernels), what all forms share (passes).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

from sim.costs.forms.interpolation import curve_at, filled, middle, power_curve_at, value_at
from sim.costs.passes import ModelPasses, RowPart
from sim.costs.profile import Profile
from sim.costs.table_kernels import DecodeGrid
from sim.interface.work import TARGET, Chunk, Model


class Line(NamedTuple):
    """One layer's attention of certain rows: `seconds` at each of the rising `kv_tokens`, read by all rows together."""

    kv_tokens: list[int]
    seconds: list[float]


class TableRows(RowPart):
    """Seconds at some counts of KV tokens, the first of which is 0, and the slope after each of them."""

    def __init__(self, rest_s: float, layers: int, line: Line, *, launch_s: float, max_context_tokens: int) -> None:
        """Attention of a layer along `line`, and `rest_s` once."""
        seconds = [rest_s + layers * attention_s for attention_s in line.seconds]
        points = list(zip(line.kv_tokens, seconds, strict=True))
        pairs = [*pairwise(points), (points[middle(line.kv_tokens)], points[-1])]
        slopes = [(high_s - low_s) / (high - low) if high > low else 0.0 for (low, low_s), (high, high_s) in pairs]
        self._kv_tokens = [0, *line.kv_tokens]
        self._seconds = [seconds[0], *seconds]
        self._slopes = [0.0, *slopes]
        self.launch_s = launch_s
        self.max_context_tokens = max_context_tokens

    @property
    def numbers(self) -> tuple[float, ...]:
        return 0.0, 0.0, float(len(self._kv_tokens)), *self._kv_tokens, *self._seconds, *self._slopes

    def device_s(self, kv_tokens: int) -> float:
        i = bisect_right(self._kv_tokens, kv_tokens) - 1
        return self._seconds[i] + self._slopes[i] * (kv_tokens - self._kv_tokens[i])

    def later_s(self, before_s: float, kv_tokens: int, rows: int, count: int) -> float:
        points, seconds, slopes = self._kv_tokens, self._seconds, self._slopes
        for _ in range(count):
            kv_tokens += rows
            i = bisect_right(points, kv_tokens) - 1
            before_s += seconds[i] + slopes[i] * (kv_tokens - points[i])
        return before_s


class TablePasses(ModelPasses):
    """Passes of one model from its measured points."""

    history_name = "history_tokens"

    def __init__(self, profile: Profile, model: Model, graph_sizes: Sequence[int]) -> None:
        super().__init__(profile, model, graph_sizes)
        kernels, shape = profile.table, self._shape
        table = kernels.target if model is TARGET else kernels.draft
        assert table is not None
        self._table = table
        self._rule = kernels.verify_rule
        self._ranks = profile.data_parallel
        decode, prefill, verify = table.decode_attention, table.prefill_attention, table.verify_attention
        most, queries = table.measured, inf if verify is None else verify.queries[-1]
        history = prefill.history_tokens[-1] or most.row_context_tokens
        self.bounds = most.tokens, table.head.tokens[-1], most.rows, most.chunk_tokens, history, queries
        self._decode = filled(decode.context_tokens, decode.seconds)
        self._prefill = filled(prefill.history_tokens, prefill.seconds)
        self._verify = [] if verify is None else [filled(verify.context_tokens, grid) for grid in verify.seconds]
        beside = table.rows_beside_chunks
        self._beside = [] if beside is None else filled(beside.context_tokens, beside.seconds)
        self._pair_s = _pair_s(prefill.chunk_tokens, [curve[0] for curve in self._prefill])
        """Seconds per layer and query-key pair in a long chunk."""
        latent = None if shape.indexer is not None else shape.latent
        self._verify_pair_s = self._pair_s * (1.0 if latent is None else latent.absorbed_ratio)
        """The same of a further query of a row, which reads the latent vectors as they are."""
        self._kv_token_s = _kv_token_s(decode)
        """Seconds per layer and token of KV in the largest decode."""
        points = list(zip(table.body.tokens, table.body.seconds, strict=True))
        weights = shape.active_layer_weights / profile.tensor_parallel
        self.compute_roof = max(2.0 * weights * tokens / seconds for tokens, seconds in points)
        self.bandwidth_roof = shape.read_bytes(1) / (shape.layers * profile.tensor_parallel * points[0][1])
        self._ratio = kernels.body_ratio
        self._max_contexts = [
            max(context for context, value in zip(decode.context_tokens, curve, strict=True) if value is not None)
            for curve in decode.seconds
        ]
        self._lines: dict[tuple[int, int, bool], Line] = {}
        self._chunks: dict[int, list[float]] = {}

    def layer_s(self, tokens: int) -> float:
        return value_at(self._table.body.tokens, self._table.body.seconds, tokens) * self._ratio(tokens)

    def fused_s(self, tokens: int) -> float:
        """Seconds of the fusion, by its share of a layer's weights: the projection itself is not among the points."""
        return self.layer_s(tokens) * self._shape.fusion_weights / self._shape.layer_weights

    def logits_s(self, rows: int) -> float:
        return value_at(self._table.head.tokens, self._table.head.seconds, rows)

    def shared_s(self, tokens: int, group_tokens: int) -> float:
        """Experts and gathers see the mean of the ranks."""
        curve = self._table.experts
        if curve is None:
            return 0.0
        mean = group_tokens / self._ranks
        own_s = value_at(curve.tokens, curve.seconds, self.padded_tokens(tokens))
        return self.layers * (value_at(curve.tokens, curve.seconds, mean) - own_s)

    def rows_s(self, rows: int, row_tokens: int, kv_tokens: int, *, beside_chunks: bool) -> float:
        line = self._line(rows, row_tokens, beside_chunks)
        attention_s = value_at(line.kv_tokens, line.seconds, kv_tokens)
        if not beside_chunks or (self._beside and row_tokens == rows):
            return attention_s
        return attention_s - self._decode[0][0]

    def _line(self, rows: int, row_tokens: int, beside_chunks: bool) -> Line:
        key = rows, row_tokens, beside_chunks
        known = self._lines.get(key)
        if known is None:
            grid = self._table.rows_beside_chunks
            if row_tokens == rows and not beside_chunks:
                known = self._decode_line(rows)
            elif row_tokens == rows and grid is not None:
                known = _row_line(grid, self._beside, rows)
            elif row_tokens > rows and self._verify:
                known = self._verify_line(rows, row_tokens / rows)
            else:
                known = self._rule_line(rows, row_tokens)
            self._lines[key] = known
        return known

    def _decode_line(self, rows: int) -> Line:
        return _row_line(self._table.decode_attention, self._decode, rows)

    def _rule_line(self, rows: int, row_tokens: int) -> Line:
        kv_tokens, seconds = self._decode_line(rows)
        rule, min_s = self._rule, seconds[0]
        slowed = [min_s + rule.kv_slowdown * (value - min_s) for value in seconds]
        if rule.query_tile > 1:
            tile_s = rule.tile_kv_token_s(row_tokens / rows, self._head_size, self._gpu.peak_flops)
            return Line(
                kv_tokens, [max(value, min_s + kv * tile_s) for value, kv in zip(slowed, kv_tokens, strict=True)]
            )
        query_s = (row_tokens - rows) / rows * self._verify_pair_s
        return Line(kv_tokens, [value + kv * query_s for value, kv in zip(slowed, kv_tokens, strict=True)])

    def _verify_line(self, rows: int, queries: float) -> Line:
        """The line between the two measured counts of queries per row next to the mean one; one query is a decode."""
        grid = self._table.verify_attention
        assert grid is not None
        decode = self._decode_line(rows)
        measured = [rows * context for context in grid.context_tokens]
        kv_tokens = sorted({*decode.kv_tokens, *measured})
        curves = [[value_at(*decode, kv) for kv in kv_tokens]]
        for seconds in self._verify:
            curve = curve_at(grid.rows, seconds, rows)
            at_kv = (value_at(measured, curve, kv) for kv in kv_tokens)
            curves.append(list(map(max, at_kv, curves[-1])))
        return Line(kv_tokens, curve_at((1, *grid.queries), curves, queries))

    def chunks_attention_s(self, chunks: Sequence[Chunk]) -> float:
        seconds = 0.0
        for chunk in chunks:
            seconds += self._chunk_s(chunk)
        return seconds - (len(chunks) - 1) * self._prefill[0][0]

    def _chunk_s(self, chunk: Chunk) -> float:
        tokens, history = chunk
        curve = self._chunk_curve(tokens)
        if len(curve) == 1:
            return curve[0] + (self._pair_s * tokens + self._kv_token_s) * history
        return value_at(self._table.prefill_attention.history_tokens, curve, history)

    def _chunk_curve(self, tokens: int) -> list[float]:
        """Seconds of a chunk of `tokens` by its history."""
        curve = self._chunks.get(tokens)
        if curve is None:
            axis = self._table.prefill_attention.chunk_tokens
            curve = self._chunks[tokens] = power_curve_at(axis, self._prefill, tokens)
        return curve

    def max_row_context_tokens(self, rows: int) -> int:
        """The longest context that was measured with at least `rows` rows, or with the most rows there were."""
        grid = self._table.decode_attention
        return self._max_contexts[min(bisect_left(grid.rows, rows), len(grid.rows) - 1)]

    def row_part(self, rows: int, row_tokens: int, head_rows: int, launch_s: float) -> RowPart:
        rest_s = self.padded_body_s(row_tokens, rows, row_tokens) + self.head_s(head_rows) + self.extra_s
        line = self._line(rows, row_tokens, False)
        most = rows * self.max_row_context_tokens(rows)
        return TableRows(rest_s, self.layers, line, launch_s=launch_s, max_context_tokens=most)

    # -- as slots (sim.costs.forms.slots)

    @property
    def widths(self) -> tuple[int, int, int]:
        table = self._table
        grids = (table.decode_attention, table.verify_attention, table.rows_beside_chunks)
        points = len({tokens for grid in grids if grid is not None for tokens in grid.context_tokens})
        return 3 + 3 * (points + 1), 3 + 2 * points, 1 + 2 * len(table.prefill_attention.history_tokens)

    @property
    def constants(self) -> tuple[float, ...]:
        return self._prefill[0][0], *([0.0] * 11), self._pair_s, self._kv_token_s

    def beside(self, rows: int, row_tokens: int) -> tuple[float, ...]:
        """`rows_s` of rows that run beside chunks."""
        line = self._line(rows, row_tokens, True)
        has_own = bool(self._beside) and row_tokens == rows
        return 0.0, 0.0 if has_own else self._decode[0][0], float(len(line.seconds)), *line.kv_tokens, *line.seconds

    def chunk(self, tokens: int) -> tuple[float, ...]:
        histories = self._table.prefill_attention.history_tokens
        return float(len(histories)), *histories, *self._chunk_curve(tokens)


def _row_line(grid: DecodeGrid, filled_seconds: Sequence[Sequence[float]], rows: int) -> Line:
    return Line([rows * context for context in grid.context_tokens], curve_at(grid.rows, filled_seconds, rows))


def _pair_s(chunk_tokens: Sequence[int], seconds: Sequence[float]) -> float:
    """Slope between the two longest chunks over their causal pairs, tokens^2 / 2."""
    if len(chunk_tokens) == 1:
        return 2.0 * seconds[0] / chunk_tokens[0] ** 2
    return 2.0 * (seconds[-1] - seconds[-2]) / (chunk_tokens[-1] ** 2 - chunk_tokens[-2] ** 2)


def _kv_token_s(decode: DecodeGrid) -> float:
    """Seconds per KV token of the measured point that reads the most KV; of several, of the fastest."""
    points = [
        (rows * context, seconds)
        for rows, line in zip(decode.rows, decode.seconds, strict=True)
        for context, seconds in zip(decode.context_tokens, line, strict=True)
        if seconds is not None
    ]
    most = max(kv_tokens for kv_tokens, _ in points)
    return min(seconds for kv_tokens, seconds in points if kv_tokens == most) / most
