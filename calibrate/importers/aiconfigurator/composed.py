"""One model's layers composed of kernels, as the points that a profile stores, and the errors of interpolating them.

Body (per layer, mean over all layers): attention's matrices, linear attention, dense and shared MLPs, router, experts,
element-wise kernels, all-reduces. Rows that a pass verifies go through it together with all others, so that more
drafted tokens activate more experts by themselves. Attention (likewise the mean): every layer over its window or over
all. Chunks with history: the measured whole prompt's rate at that length.
Errors: of interpolation, against sums of raw times at measured counts that the profile leaves out.
Not here: single kernels (lookups), the profile (deployment).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

import msgspec
import numpy as np

from calibrate.fit.fit_errors import Array, kind_error
from calibrate.importers.aiconfigurator.grids import (
    CHUNKS,
    CONTEXTS,
    HISTORIES,
    ROWS,
    Modules,
    attention_grid,
    axes,
    bounded,
    bounded_prompts,
    chunk_curve,
    counts,
    every_second,
    pair_s,
    smooth,
    window_pairs,
)
from calibrate.importers.aiconfigurator.kernel_files import AttentionTable
from calibrate.importers.aiconfigurator.lookups import Lookups
from sim.costs.compact_kernels import Elementwise, Head
from sim.costs.forms.interpolation import curve_at, filled, power_curve_at, value_at
from sim.costs.layer_kinds import FULL, INDEXED, LATENT, LINEAR, SHARED, WINDOW, LayerKind
from sim.costs.passes import layer_rest_s, sampler_s
from sim.costs.profile import KindError
from sim.costs.shapes import Formats, ModelShape
from sim.costs.table_kernels import Curve, DecodeGrid, ModelTable, PrefillGrid

TOKENS = (
    1, 2, 4, 8, 16, 17, 32, 33, 48, 64, 65, 96, 128, 129, 192, 256, 257, 384, 512, 513, 768, 1024, 1536, 2048, 3072,
    4096, 6144, 8192, 16384,
)  # fmt: skip
"""Tokens of a pass at which body and head are given: both sides of the steps that GEMMs take."""
CHECKED_TOKENS = (3, 6, 12, 80, 112, 160, 224, 1280, 1792, 2560, 3328, 3840)
"""Measured in the finer tables, and in no profile: what interpolation is judged by."""
MIN_CHECKED = 3
AROUND_MATRICES = {FULL: 3, WINDOW: 3, LATENT: 7, LINEAR: 20, INDEXED: 17, SHARED: 7}
"""Kernels of attention beside its matrices when a prompt is launched operator by operator: rotation, writing KV,
attention; latent attention has two norms, a copy of the queries and the keys' concatenation as well; an indexer a norm,
rotation, two Hadamard transforms, two quantisations, writing keys, scores and the choice; linear attention two more
matrices, six copies, its convolution, gates, norms of queries and keys, seven kernels of the delta rule and a gated
norm. Counted in SGLang 0.5.9's models; other kinds of modules were not counted, and count as INDEXED."""
QUANTISED = ("fp8", "fp8-block", "nvfp4", "mxfp4-fp8")
"""Formats before whose GEMMs activations are quantised."""
V3_EXPERTS = 256
"""Experts of DeepSeek-V3 and R1: with these alone SGLang routes the shared expert."""
OF_ROUTING, OF_SHARED = 6, 2
"""Router, choice of experts, sorting (two), activation, sum of a token's experts; activation and sum of shared ones."""
NORMS = 2
"""Norms of a layer, each behind an all-reduce."""
WIDE_NORM_S = 1e-5
"""Kernels of a norm over all heads of queries and keys, in fp32; assumed."""
NORM_BYTES = 8.0
"""Two sums per token."""
DIGITS = 4
HOW = "every second point of each axis left out and interpolated"
VERIFY_TOKENS = (2, 1024)
"""Token counts of verify passes: 1..128 rows of 2..8 tokens."""
ASSUMED_ELEMENTWISE = Elementwise(bandwidth_share=0.72, kernel_s=1e-6, kernels_per_layer=4)
"""0.72 is fitted to the element-wise columns of Vidur's A100 tables; 1 us per kernel under CUDA graphs closes the gap
between kernel sums and published batch-1 times of Llama-3.1-8B on H100 (5.9 ms, arXiv 2601.11580)."""
ASSUMED_HEAD = Head(sampler_s=2e-5, sampler_passes=3.0)


def kernels_per_layer(shape: ModelShape, degree: int) -> int:
    """Kernels that launching a prompt operator by operator takes, mean over the layers, rounded.

    >>> from sim.costs.shapes import MODELS
    >>> kernels_per_layer(MODELS["llama-3.1-8b"], 1)
    10
    """
    formats, experts = shape.formats or Formats(), shape.experts

    def matrices(count: int, weights: str) -> int:
        return count * (2 if weights in QUANTISED else 1)

    total = float(shape.layers * (NORMS + (NORMS if degree > 1 else 0)))
    for kind in shape.kinds(degree):
        around = AROUND_MATRICES.get(kind.name, AROUND_MATRICES[INDEXED])
        total += kind.layers * (around + matrices(len(kind.gemms), formats.projections))
    mlp = matrices(len(shape.mlp_gemms(1)), formats.mlp)
    sparse = 0 if experts is None else shape.layers - experts.dense_layers
    total += (shape.layers - sparse) * (mlp + 1)
    if experts is not None:
        shared = mlp + OF_SHARED if experts.shared_intermediate else 0
        total += sparse * (OF_ROUTING + matrices(2, formats.experts) + shared)
    return round(total / shape.layers)


class Composed:
    """One model's points, raw: `body` and `head` [tokens], `decode` [rows, contexts] (nan where not measured),
    `prompts` [chunks, histories], `prefill` [chunks] those without history; per layer, mean over the layers."""

    def __init__(
        self, lookups: Lookups, l2_bytes: float, shape: ModelShape, degree: int, ranks: int, split: tuple[int, int]
    ) -> None:
        """`degree` devices share the attention of each of `ranks`; `split` as in Lookups.experts_s."""
        self._lookups, self._l2_bytes, self._shape = lookups, l2_bytes, shape
        self._degree, self._ranks, self._split = degree, ranks, split
        self._formats = shape.formats or Formats()
        self._kinds = [(kind, kind.layers / shape.layers) for kind in shape.kinds(degree)]
        self.tokens = np.array(TOKENS, dtype=float)
        self.checked = np.array([], dtype=int)
        self.body = self._body_s(self.tokens)
        self.head = self._head_s(self.tokens)
        self.decode = self._attention(self._decode_grid)
        self.prompts = self._attention(self._prompt_grid)
        self.prefill = self.prompts[:, 0]

    def _body_s(self, tokens: Array) -> Array:
        shape, formats = self._shape, self._formats
        degree = self._degree
        total = sum(share * self._matrices_s(kind, tokens) for kind, share in self._kinds)
        if shape.linear is not None:
            total = total + self._lookups.linear_s(shape.linear, degree, tokens) * shape.linear.layers / shape.layers
        if shape.hyper_streams:
            total = total + self._lookups.mixing_s(shape.hidden, shape.hyper_streams, tokens)
        dense_s = self._gemms_s(shape.mlp_gemms(shape.intermediate, degree), tokens, formats.mlp)
        reduce_s = self._lookups.reduce_s(degree, tokens * shape.hidden * shape.dtype_bytes)
        if shape.input_features:
            projection_s = self._lookups.gemm_s(shape.hidden // degree, shape.input_features * shape.hidden, tokens)
            total = total + projection_s / shape.layers
        if shape.has_wide_qk_norm:
            total = total + WIDE_NORM_S + self._lookups.reduce_s(degree, tokens * NORM_BYTES)
        experts = shape.experts
        if experts is None:
            total = total + dense_s + 2.0 * reduce_s
        else:
            dense_share = experts.dense_layers / shape.layers
            total = total + reduce_s + dense_share * (dense_s + reduce_s) + self._sparse_s(tokens, reduce_s)
        kernels = ASSUMED_ELEMENTWISE
        if degree > 1 and self._lookups.fuses_norms:
            kernels = msgspec.structs.replace(kernels, kernels_per_layer=kernels.kernels_per_layer - NORMS)
        rest = [layer_rest_s(kernels, None, self._lookups.gpu, shape, degree, int(n)) for n in tokens]
        return np.asarray(total + np.array(rest))

    def _sparse_s(self, tokens: Array, reduce_s: Array) -> Array:
        """Experts of one layer, mean over all, tokens brought to them and back."""
        experts = self._shape.experts
        assert experts is not None
        share = 1.0 - experts.dense_layers / self._shape.layers
        return np.asarray(share * (self._experts_s(tokens) + self._gather_s(tokens, reduce_s)))

    def _experts_s(self, tokens: Array) -> Array:
        """Router, routed and shared experts of one layer with projections. A shared expert routed with them takes the
        faster of SGLang's and vLLM's tables: SGLang timed 256 with other tiles than it serves 257 with."""
        shape, experts = self._shape, self._shape.experts
        assert experts is not None
        tables, num, per_token = [self._lookups], experts.num, experts.per_token
        is_v3 = num == V3_EXPERTS and experts.shared_intermediate and shape.latent and not shape.indexer
        if is_v3 and self._lookups.routes_shared and self._split[1] == 1:
            experts = msgspec.structs.replace(experts, num=num + 1, per_token=per_token + 1, shared_intermediate=0)
            tables.append(Lookups(self._lookups.files))
        of = (shape, experts, self._formats.experts, self._split, tokens * self._ranks)
        routed_s: Array = np.min([each.experts_s(*of) for each in tables], axis=0)
        router_s = self._lookups.gemm_s(num, shape.hidden, tokens)
        if experts.hidden:
            for columns, depth in ((experts.hidden, shape.hidden), (shape.hidden, experts.hidden)):
                router_s = router_s + self._lookups.gemm_s(columns, depth, tokens)
        if not experts.shared_intermediate:
            return routed_s + router_s
        gemms = shape.mlp_gemms(experts.shared_intermediate, self._degree)
        return routed_s + router_s + self._gemms_s(gemms, tokens, self._formats.mlp)

    def _gather_s(self, tokens: Array, reduce_s: Array) -> Array:
        """Tokens to the experts and sums back: an all-reduce within a rank, gather and scatter among several."""
        if self._ranks == 1:
            return reduce_s
        experts = self._shape.experts
        hidden = (experts and experts.hidden) or self._shape.hidden
        message_bytes = tokens * self._ranks * hidden * self._shape.dtype_bytes
        return self._lookups.gather_s(self._ranks, message_bytes)

    def _gemms_s(self, gemms: Sequence[tuple[int, int]], tokens: Array, weights: str) -> Array:
        each = [self._lookups.gemm_s(columns, depth, tokens, weights) for columns, depth in gemms]
        is_fused = self._lookups.fuses_quantising and self._degree > 1
        each += [self._lookups.quantise_s(depth, tokens, weights) for _, depth in gemms[is_fused:]]
        return np.asarray(np.sum(each, axis=0))

    def _head_s(self, tokens: Array) -> Array:
        shape = self._shape
        lm_head_s = self._lookups.gemm_s(shape.vocab // self._degree, shape.hidden, tokens)
        sampled_s = [sampler_s(ASSUMED_HEAD, self._lookups.gpu, shape, int(n)) for n in tokens]
        return np.asarray(lm_head_s + np.array(sampled_s))

    def _attention(self, of: Callable[[LayerKind], Array]) -> Array:
        """Mean over the layers; linear attention is in the body."""
        return np.asarray(sum(share * of(kind) for kind, share in self._kinds if kind.name != LINEAR))

    def _lacks(self, table: str, window: int) -> bool:
        """True where no table has attention over so many tokens: it costs as much as attention over no more."""
        if not window:
            return False
        try:
            self._lookups.attention(table, self._formats.kv, window)
        except ValueError:
            self._lookups.note(f"attention over a window of {window} by rule from attention over all")
            return True
        return False

    def _modules(self, phase: str, kind: LayerKind) -> Modules:
        formats, indexer = self._formats, self._shape.indexer
        assert indexer is not None
        heads = (self._shape.heads // self._degree, self._degree)
        return self._lookups.modules(phase, kind.name, indexer.heads, heads, formats.projections, formats.kv)

    def _matrices_s(self, kind: LayerKind, tokens: Array) -> Array:
        return self._gemms_s(kind.gemms, tokens, self._formats.projections)

    def _decode_grid(self, kind: LayerKind) -> Array:
        if kind.is_module:
            points = self._modules("generation", kind).decode_points(partial(self._matrices_s, kind))
            return attention_grid(points, 1.0)
        if kind.name == LATENT:
            return attention_grid(self._latent_points("generation"), 1.0)
        window = self._shape.window if kind.name == WINDOW else 0
        if self._lacks("generation_attention_perf", window):
            return bounded(self._decode_grid(kind._replace(name=FULL)), window)
        points, factor = self._points("generation_attention_perf", window)
        if not window:
            points = points.where(points.outside_l2(self._l2_bytes, self._lookups.gpu.bandwidth_bytes_per_s))
        return attention_grid(points, factor)

    def _prompt_grid(self, kind: LayerKind) -> Array:
        """[chunks, histories]: a chunk after history has the pairs of query and key of a longer prompt's end, at the
        rate of a prompt that long; layers with a window pay for their window. Modules were timed after history."""
        if kind.is_module:
            return self._modules("context", kind).prompt_grid(partial(self._matrices_s, kind))
        window = self._shape.window if kind.name == WINDOW else 0
        is_bounded = self._lacks("context_attention_perf", window)
        whole = self._prompt_curve(0 if is_bounded else window)
        if window and not is_bounded:
            return np.tile(whole[:, None], len(HISTORIES))
        near = bounded_prompts(whole, window) if is_bounded else whole
        grid = np.empty((len(CHUNKS), len(HISTORIES)))
        for (i, chunk), (j, history) in product(enumerate(CHUNKS), enumerate(HISTORIES)):
            pairs = window_pairs(chunk, history, window or history + chunk)
            grid[i, j] = max(near[i], pairs * pair_s(whole, min(window or history + chunk, history + chunk)))
        return grid

    def _prompt_curve(self, window: int) -> Array:
        if self._shape.latent is not None:
            points = self._latent_points("context")
        else:
            points, _ = self._points("context_attention_perf", window)
        return chunk_curve(points.where((points.sequences == 1) & (points.tokens >= CHUNKS[0])))

    def _latent_points(self, phase: str) -> AttentionTable:
        return self._lookups.latent(phase, self._shape.heads // self._degree, self._formats.kv)

    def _points(self, table: str, window: int) -> tuple[AttentionTable, float]:
        """Points of the heads on one device, and rows there for one here, where rows of fewer KV heads stand for it."""
        shape, degree = self._shape, self._degree
        points = self._lookups.attention(table, self._formats.kv, window)
        exact = points.of(shape, degree)
        if exact.any():
            return points.where(exact), 1.0
        heads, kv_heads = shape.heads // degree, max(1, shape.kv_heads // degree)
        group = heads // kv_heads
        known = points.where(points.head_dim == _nearest(points.head_dim, shape.head_dim))
        groups = known.heads / known.kv_heads
        same = known.where(groups == _nearest(groups, group))
        fewer = same.kv_heads[same.kv_heads <= kv_heads]
        of = float(fewer.max()) if len(fewer) else float(same.kv_heads.min())
        stand_in = same.where(same.kv_heads == of)
        units = kv_heads * group * shape.head_dim / float(stand_in.heads[0] * stand_in.head_dim[0])
        self._lookups.note(
            f"{table}: {int(stand_in.heads[0])} heads on {int(of)} KV heads of {int(stand_in.head_dim[0])} stand for "
            f"{heads} on {kv_heads} of {shape.head_dim}, {units:g} times"
        )
        if table.startswith("context"):
            return stand_in._replace(seconds=stand_in.seconds * max(1.0, units)), 1.0
        return stand_in, units

    def table(self) -> ModelTable:
        decode = smooth(self.decode)
        use_rows, use_contexts = axes(decode)
        shared = None
        if self._shape.experts is not None and self._ranks > 1:
            seconds = self._sparse_s(self.tokens, np.zeros(len(self.tokens)))
            shared = Curve(tokens=counts(self.tokens), seconds=_rounded(smooth(seconds)))
        return ModelTable(
            body=Curve(tokens=counts(self.tokens), seconds=_rounded(smooth(self.body))),
            experts=shared,
            head=Curve(tokens=counts(self.tokens), seconds=_rounded(smooth(self.head))),
            decode_attention=DecodeGrid(
                rows=tuple(ROWS[i] for i in use_rows),
                context_tokens=tuple(CONTEXTS[i] for i in use_contexts),
                seconds=tuple(_rounded_or_none(decode[i, use_contexts]) for i in use_rows),
            ),
            prefill_attention=PrefillGrid(
                chunk_tokens=CHUNKS,
                history_tokens=HISTORIES,
                seconds=tuple(_rounded(line) for line in smooth(self.prompts)),
            ),
        )

    def _token_errors(self, raw: Array, of: Callable[[Array], Array]) -> tuple[Callable[[int], float], Array, str]:
        """The curve to judge by, its relative errors, and where: at measured token counts that the profile does not
        have; where a coarse table has too few of those, at every second one of its own, left out."""
        checked = [count for count in CHECKED_TOKENS if self._lookups.is_measured(count)]
        if len(checked) >= MIN_CHECKED:
            curve = _curve_through(TOKENS, raw)
            measured = of(np.array(checked, dtype=float))
            predicted = np.array([curve(count) for count in checked])
            self.checked = np.array(checked)
            return curve, predicted / measured - 1.0, f"{len(checked)} measured token counts between the profile's own"
        keep = every_second(len(TOKENS))
        curve = _curve_through([TOKENS[i] for i in keep], raw[keep])
        out = [i for i in range(len(TOKENS)) if i not in keep]
        self.checked = np.array([TOKENS[i] for i in out])
        return curve, np.array([curve(TOKENS[i]) for i in out]) / raw[out] - 1.0, HOW

    def errors(self) -> dict[str, KindError]:
        """Errors of interpolation at the points left out, and of whole passes there."""
        layers = self._shape.layers
        body, body_errors, how = self._token_errors(self.body, self._body_s)
        in_verify = (self.checked >= VERIFY_TOKENS[0]) & (self.checked <= VERIFY_TOKENS[1])
        _, head_errors, _ = self._token_errors(self.head, self._head_s)
        rows, contexts = axes(self.decode)
        grid = self.decode[np.ix_(rows, contexts)]
        row_axis, context_axis = [ROWS[i] for i in rows], [CONTEXTS[i] for i in contexts]
        keep_rows, keep_contexts = every_second(len(rows)), every_second(len(contexts))
        thin = smooth(grid[np.ix_(keep_rows, keep_contexts)])
        lines = filled(
            [context_axis[j] for j in keep_contexts],
            [[None if np.isnan(value) else float(value) for value in line] for line in thin],
        )
        at = dict(zip(TOKENS, self.body, strict=True))
        attention, whole = [], []
        for i, count in enumerate(row_axis):
            line = curve_at([row_axis[k] for k in keep_rows], lines, count)
            for j, context in enumerate(context_axis):
                raw = grid[i, j]
                if np.isnan(raw) or (i in keep_rows and j in keep_contexts):
                    continue
                predicted = value_at([context_axis[k] for k in keep_contexts], line, context)
                attention.append(predicted / raw - 1.0)
                whole.append((predicted + body(count)) / (raw + at[count]) - 1.0)
        kept = every_second(len(CHUNKS))
        curves = [[float(value)] for value in smooth(self.prefill)[kept]]
        prompt, prompt_pass = [], []
        for i, chunk in enumerate(CHUNKS):
            if i not in kept:
                predicted = power_curve_at([CHUNKS[k] for k in kept], curves, chunk)[0]
                prompt.append(predicted / self.prefill[i] - 1.0)
                measured_body = at.get(chunk, body(chunk))
                prompt_pass.append((predicted + body(chunk)) / (self.prefill[i] + measured_body) - 1.0)
        return {
            "body": kind_error(body_errors, f"{how}; one layer's kernels but attention, {layers} layers alike"),
            "verify_body": kind_error(
                body_errors[in_verify], f"{how}; body at {VERIFY_TOKENS[0]}..{VERIFY_TOKENS[1]} tokens"
            ),
            "lm_head": kind_error(head_errors, how),
            "decode_attention": kind_error(np.array(attention), HOW),
            "decode": kind_error(np.array(whole), f"{HOW}; layers of whole passes"),
            "prefill_attention": kind_error(np.array(prompt), HOW),
            "prefill": kind_error(np.array(prompt_pass), f"{HOW}; layers of whole passes"),
        }


def _curve_through(axis: Sequence[int], raw: Array) -> Callable[[int], float]:
    values = [float(value) for value in smooth(raw)]
    return lambda tokens: value_at(axis, values, tokens)


def _nearest(values: Array, wanted: float) -> float:
    unique = np.unique(values)
    return float(unique[int(np.argmin(np.abs(np.log(unique / wanted))))])


def _rounded(values: Array) -> tuple[float, ...]:
    return tuple(float(f"{value:.{DIGITS}g}") for value in values)


def _rounded_or_none(values: Array) -> tuple[float | None, ...]:
    return tuple(None if np.isnan(value) else float(f"{value:.{DIGITS}g}") for value in values)
