"""CompactCosts: the cost of a work from a profile's compact constants.

Regimes of attention, by composition of the pass: decode (every row one query; linear in the summed context once it
exceeds the blocks' time), prefill chunk with history, verify and mixed passes (a row with several queries, or rows
beside chunks: KV is streamed once, `kv_slowdown` times slower, plus the further queries' compute; no public table has
this shape, so profiles mark it as not validated).
`cost` is the simulator's hot path: a pass of rows alone takes one dict lookup and a few multiplications.
Every work costs its engine the same preparation (step_s, row_s); it is hidden where the device is busy meanwhile.
Not here: the kernels' formulas (kernels), passes (passes), the file (profile).
"""

from __future__ import annotations

import warnings

from sim.costs.cost import Cost, Demands
from sim.costs.passes import ModelPasses, RowPart
from sim.costs.profile import HostCosts, Profile
from sim.work import Kind, Model, Work

PIECE_KERNELS = 2
"""Kernels per layer that a captured pass with prompt chunks still launches eagerly: attention and KV write (vLLM's
piecewise graphs)."""


class OutsideProfile(ValueError):
    """A work larger than anything measured, and the model is strict."""


class OutsideProfileWarning(UserWarning):
    """A cost was extrapolated beyond the measured range."""


class CompactCosts:
    """CostModel over `profile`. Outside the measured range it warns once per bound; `strict` makes it refuse."""

    def __init__(self, profile: Profile, *, cuda_graph: bool = True, strict: bool = False) -> None:
        self.profile = profile
        self.cuda_graph = cuda_graph
        self.strict = strict
        self.result_s = profile.host.result_s
        self._host = profile.host
        self._inflation = profile.host.inflation_graphed if cuda_graph else profile.host.inflation_eager
        sizes = graph_sizes(profile.host) if cuda_graph else ()
        self._target = ModelPasses(profile, profile.target, sizes)
        self._draft = ModelPasses(profile, profile.draft, sizes) if profile.draft is not None else None
        self._max_graph_tokens = profile.host.max_graph_tokens if cuda_graph else -1
        self._warned: set[str] = set()

    def cost(self, work: Work) -> Cost:
        """Solo cost of `work`."""
        rows = work.rows
        if work.chunks or not rows:
            return self._any_cost(work)
        passes = self._target if work.model is Model.TARGET else self.passes(work.model)
        row_tokens = work.row_tokens
        key = rows, row_tokens, work.head_rows
        part = passes.row_parts.get(key) or self._new_row_part(passes, key)
        if work.context_tokens > part.most_context_tokens:
            self._check_range(work)
        kv_tokens = work.context_tokens + row_tokens
        power, root, layers = passes.sharpness, passes.inverse_sharpness, passes.layers
        attention_s = layers * (part.blocks_power + (kv_tokens * part.kv_token_s) ** power) ** root
        device_s = part.device_s + attention_s + kv_tokens * part.query_s
        launch_s = part.launch_s
        num_kernels = passes.num_kernels
        num_later = work.draft_tokens - 1
        if num_later > 0:
            key = rows, rows, rows
            later = passes.row_parts.get(key) or self._new_row_part(passes, key)
            blocks_power, kv_token_s = later.blocks_power, later.kv_token_s
            device_s += num_later * later.device_s
            launch_s += num_later * later.launch_s
            num_kernels *= work.draft_tokens
            for _ in range(num_later):
                kv_tokens += rows
                device_s += layers * (blocks_power + (kv_tokens * kv_token_s) ** power) ** root
        host = self._host
        return Cost(host.step_s + host.row_s * rows, launch_s, device_s, num_kernels)

    def _new_row_part(self, passes: ModelPasses, key: tuple[int, int, int]) -> RowPart:
        rows, row_tokens, head_rows = key
        measured = self.profile.kernels.measured
        for bound, got, most in (("rows", rows, measured.rows), ("tokens", row_tokens, measured.tokens)):
            if got > most:
                self._outside(bound, got, most)
        launch_s = self._launch_s(passes, row_tokens, False)
        part = passes.row_part(rows, row_tokens, head_rows, launch_s, rows * measured.row_context_tokens)
        passes.row_parts[key] = part
        return part

    def _any_cost(self, work: Work) -> Cost:
        """Works with chunks, and those that are no pass."""
        kind = work.kind
        if kind is Kind.HOST:
            return Cost(work.host_s, 0.0, 0.0, 0)
        host = self._host
        if kind is Kind.COPY:
            return Cost(0.0, host.eager_kernel_s, work.num_bytes / self.profile.gpu.bandwidth_bytes_per_s, 1)
        self._check_range(work)
        passes = self.passes(work.model)
        tokens = work.row_tokens + sum(chunk.new_tokens for chunk in work.chunks)
        device_s = passes.pass_s(work.rows, work.row_tokens, work.context_tokens, work.chunks, work.head_rows)
        launch_s = self._launch_s(passes, tokens, bool(work.chunks))
        num_passes = 1
        if work.draft_tokens > 1:
            num_passes = work.draft_tokens
            launch_s += (num_passes - 1) * self._launch_s(passes, work.rows, False)
            device_s += sum(
                passes.pass_s(work.rows, work.rows, context_tokens, (), work.rows)
                for context_tokens in _later_contexts(work)
            )
        prepare_s = host.step_s + host.row_s * (work.rows + len(work.chunks))
        return Cost(prepare_s, launch_s, device_s, num_passes * passes.num_kernels)

    def demands(self, work: Work) -> Demands:
        """Share of the achieved roofs, clipped to 0..1 and no less than the profile's floor."""
        if work.kind is Kind.HOST:
            return Demands(0.0, 0.0)
        floor = self.profile.overlap.demand_floor
        if work.kind is Kind.COPY:
            return Demands(floor, 1.0)
        if floor >= 1.0:
            return Demands(1.0, 1.0)
        passes = self.passes(work.model)
        flops, num_bytes = passes.use(work.rows, work.row_tokens, work.context_tokens, work.chunks, work.head_rows)
        if work.draft_tokens > 1:
            for context_tokens in _later_contexts(work):
                later = passes.use(work.rows, work.rows, context_tokens, (), work.rows)
                flops += later.flops
                num_bytes += later.num_bytes
        device_s = self.cost(work).device_s
        if device_s <= 0.0:
            return Demands(floor, floor)
        gpu, gemm = self.profile.gpu, self.profile.kernels.gemm
        compute = flops / (device_s * gemm.compute_share * gpu.peak_flops)
        bandwidth = num_bytes / (device_s * gemm.bandwidth_share * gpu.bandwidth_bytes_per_s)
        return Demands(max(floor, min(1.0, compute)), max(floor, min(1.0, bandwidth)))

    def host_inflation(self, num_issuers: int) -> float:
        """The last measured factor holds beyond the list."""
        return self._inflation[min(num_issuers, len(self._inflation)) - 1]

    def passes(self, model: Model) -> ModelPasses:
        """The passes of target or draft; raises ValueError where the profile has no draft."""
        if model is Model.TARGET:
            return self._target
        if self._draft is None:
            raise ValueError(f"profile {self.profile.name!r} has no draft model; name a pair (target+draft)")
        return self._draft

    def _launch_s(self, passes: ModelPasses, tokens: int, has_chunks: bool) -> float:
        host = self._host
        if tokens > self._max_graph_tokens:
            return passes.num_kernels * host.eager_kernel_s
        pieces = PIECE_KERNELS * passes.layers * host.eager_kernel_s if has_chunks else 0.0
        return host.graph_launch_s + pieces

    def _check_range(self, work: Work) -> None:
        measured = self.profile.kernels.measured
        tokens = work.row_tokens
        longest_chunk = history = 0
        for chunk in work.chunks:
            tokens += chunk.new_tokens
            longest_chunk = max(longest_chunk, chunk.new_tokens)
            history = max(history, chunk.history_tokens)
        if tokens > measured.tokens:
            self._outside("tokens", tokens, measured.tokens)
        if work.rows > measured.rows:
            self._outside("rows", work.rows, measured.rows)
        if longest_chunk > measured.chunk_tokens:
            self._outside("chunk_tokens", longest_chunk, measured.chunk_tokens)
        row_context_tokens = max(history, work.context_tokens // work.rows if work.rows else 0)
        if row_context_tokens > measured.row_context_tokens:
            self._outside("row_context_tokens", row_context_tokens, measured.row_context_tokens)

    def _outside(self, bound: str, got: int, most: int) -> None:
        if not self.strict and bound in self._warned:
            return
        message = (
            f"profile {self.profile.name!r}: {bound}={got} is {got / most:.1f} times the largest measured ({most})"
        )
        if self.strict:
            raise OutsideProfile(f"{message}; a strict cost model refuses")
        self._warned.add(bound)
        warnings.warn(f"{message}; costs there are extrapolated", OutsideProfileWarning, stacklevel=4)


def graph_sizes(host: HostCosts) -> list[int]:
    """Token counts that are captured as CUDA graphs, rising."""
    step = host.graph_size_step
    regular = range(step, host.max_graph_tokens + 1, step)
    return [size for size in host.graph_small_sizes if size < step] + list(regular)


def _later_contexts(work: Work) -> range:
    """Context before the second and every later pass of a DRAFT work: one token per row more each time."""
    first = work.context_tokens + work.row_tokens
    return range(first, first + (work.draft_tokens - 1) * work.rows, work.rows) if work.rows else range(0)
