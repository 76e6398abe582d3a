"""WorkCosts: from the passes of a model pair to the cost of a work, whatever form the kernel costs have.

Every work costs its engine the same preparation (step_s, row_s); it is hidden where the device is busy meanwhile.
Not here: one pass (passes), the forms (sim.costs.forms).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import msgspec

from sim.costs.cost import Cost, Demands
from sim.costs.engine_costs import MEASURED_HERE
from sim.costs.extrapolation import Largest, OutsideProfileWarning, collected, outside
from sim.costs.passes import ModelPasses, PassUse, RowPart
from sim.costs.profile import HostCosts, Profile
from sim.interface.work import HOST, TARGET, Kind, Model, Work

PIECE_KERNELS = 2
"""Kernels per layer of a captured pass with chunks that stay eager: attention, KV write (vLLM's piecewise graphs)."""
MIXED_LAUNCHES = 720 / 601
"""Launches of our pass of prompts and rows over those of prompts alone, counted (docs/validation/host.md)."""
GRAPHED_DRAFT = "draft"
"""`cuda_graph`: passes of the draft model are captured, the target's are launched eagerly."""
GRAPHED_DECODE = "decode"
"""`cuda_graph`: passes with prompt chunks are launched eagerly, the others are captured (vLLM's FULL_DECODE_ONLY)."""
PassesOf = Callable[[Profile, Model, Sequence[int]], ModelPasses]
"""Makes the passes of target or draft, with CUDA graphs of so many tokens."""


class WorkCosts:
    """CostModel over `profile`, whose passes are `passes_of`. Outside the measured range it adds to what is collected
    (extrapolation), or warns once per size.

    `graphed_queries` is the one count of queries per row that full graphs of the target were captured for (vLLM: the
    longest draft and the newest token); None: every count. `graph_sizes` are the token counts that the engine captures,
    rising, of which a host has no more than it may; None: as many as the host has.
    """

    def __init__(
        self,
        profile: Profile,
        passes_of: PassesOf,
        *,
        cuda_graph: bool | str = True,
        graphed_queries: int | None = None,
        graph_sizes: Sequence[int] | None = None,
    ) -> None:
        self.profile = profile
        self.cuda_graph = cuda_graph
        self.graphed_queries = graphed_queries
        self.result_s = profile.host.result_s
        self.host = profile.host
        self.drafts_apart = profile.host.engine == MEASURED_HERE and not profile.host.captures_chunks
        """Prompts go through the draft model in a pass of their own, which is not captured; the draft follows it."""
        self._pads_rows = self.drafts_apart and cuda_graph is True
        """Rows of captured passes are padded to 1, 2, 4, ..., all of one length (realrun.kernels.host_slots)."""
        self._has_pieces = profile.host.captures_chunks and cuda_graph != GRAPHED_DECODE
        self._step_s, self._row_s = profile.host.step_s, profile.host.row_s
        self._is_synchronous = profile.host.is_synchronous
        inflation = (
            profile.host.inflation_graphed if cuda_graph in (True, GRAPHED_DECODE) else profile.host.inflation_eager
        )
        self._inflation = (1.0,) if self._is_synchronous else inflation
        sizes = captured_sizes(profile.host)
        if graph_sizes is not None:
            sizes = [size for size in graph_sizes if size <= profile.host.max_graph_tokens]
        self._max_graph_tokens = max(sizes, default=0)
        self._target = passes_of(profile, Model.TARGET, sizes if cuda_graph in (True, GRAPHED_DECODE) else ())
        self._target.extra_s = profile.host.gap_s
        self.has_row_parts = self._target.has_row_parts
        self._draft: ModelPasses | None = None
        if profile.draft is not None:
            self._draft = passes_of(profile, Model.DRAFT, sizes if cuda_graph else ())
            self._draft.extra_s = profile.host.draft_pass_s
            self._draft.phase_s = profile.host.draft_phase_s
        self._warned: set[str] = set()

    def cost(self, work: Work) -> Cost:
        """Solo cost of `work`. Hot path: a pass of rows alone takes one look into a dict and a few multiplications."""
        if work.group_tokens:
            alone = self.cost(msgspec.structs.replace(work, group_tokens=0))
            tokens = work.row_tokens + sum(chunk.new_tokens for chunk in work.chunks)
            return alone._replace(device_s=alone.device_s + self.passes(work.model).shared_s(tokens, work.group_tokens))
        rows = work.rows
        if work.chunks or not rows or work.kind is HOST or not self.has_row_parts:
            return self._any_cost(work)
        passes = self._target if work.model is TARGET else self.passes(work.model)
        row_tokens = work.row_tokens
        key = rows, row_tokens, work.head_rows
        part = passes.row_parts.get(key) or self._new_row_part(passes, key, work)
        if work.context_tokens > part.max_context_tokens:
            self._check_range(passes, work)
        kv_tokens = work.context_tokens + row_tokens
        if passes.max_row_tokens:
            kv_tokens = min(work.context_tokens, rows * passes.max_row_tokens) + row_tokens
        device_s, launch_s, num_kernels = part.device_s(kv_tokens), part.launch_s, passes.num_kernels
        num_later = work.draft_tokens - 1
        if passes.projects_context:
            device_s += passes.slots_s(work)
        if not work.goes_on:
            if passes.reads_features:
                device_s += passes.fusion_s(row_tokens)
            device_s += passes.phase_s
        if num_later > 0:
            key = rows, rows, rows
            later = passes.row_parts.get(key) or self._new_row_part(passes, key, work)
            device_s = later.later_s(device_s, kv_tokens, rows, num_later)
            launch_s += num_later * later.launch_s
            num_kernels *= work.draft_tokens
        if self._is_synchronous:
            launch_s = device_s
        prepare_s = self._step_s + self._row_s * rows
        if work.ahead_s:
            prepare_s = max(0.0, prepare_s - work.ahead_s)
        return Cost(prepare_s, launch_s, device_s, num_kernels)

    def _new_row_part(self, passes: ModelPasses, key: tuple[int, int, int], work: Work) -> RowPart:
        self._check_range(passes, work)
        rows, row_tokens, head_rows = key
        launch_s = self._launch_s(passes, rows, row_tokens)
        if not self._pads_rows:
            part = passes.row_parts[key] = passes.row_part(*key, launch_s)
            return part
        padded = 1 << (rows - 1).bit_length()
        tokens, heads = (-(-count // rows) * padded for count in (row_tokens, head_rows))
        part = passes.row_parts[key] = passes.row_part(padded, tokens, heads, launch_s)
        part.max_context_tokens = part.max_context_tokens // padded * rows
        return part

    def _any_cost(self, work: Work) -> Cost:
        """Any work, by the general sum of its passes."""
        kind = work.kind
        if kind is HOST:
            return Cost(work.host_s + self.host.ngram_row_s * work.rows, 0.0, 0.0, 0)
        host = self.host
        if kind is Kind.COPY:
            return Cost(0.0, host.eager_kernel_s, work.num_bytes / self.profile.gpu.bandwidth_bytes_per_s, 1)
        if self.drafts_apart and kind is Kind.DRAFT and work.rows and work.chunks:
            _, launch_s, device_s, num_kernels, _ = self._any_cost(_prompts_of(work))
            _, then_launch_s, then_s, then_kernels, _ = self.cost(msgspec.structs.replace(work, chunks=()))
            return Cost(
                self._prepare_s(work),
                launch_s + then_launch_s,
                device_s + then_s,
                num_kernels + then_kernels,
                max(0.0, then_s - then_launch_s),
            )
        passes, rows, row_tokens, chunks = self.passes(work.model), work.rows, work.row_tokens, work.chunks
        self._check_range(passes, work)
        tokens = row_tokens
        for chunk in chunks:
            tokens += chunk.new_tokens
        device_s = passes.pass_s(rows, row_tokens, work.context_tokens, chunks, work.head_rows)
        launch_s = self._launch_s(passes, rows, tokens, has_chunks=bool(chunks))
        num_kernels = self.turns(passes, tokens) if chunks else passes.num_kernels
        device_s += passes.extra_s + (0.0 if work.goes_on else passes.fusion_s(tokens))
        if rows and not work.goes_on:
            device_s += passes.phase_s
        if passes.projects_context:
            device_s += passes.slots_s(work)
        if work.draft_tokens > 1 and rows:
            _, later_launch_s, later_s, later_kernels, _ = self.cost(_later_passes(work))
            launch_s += later_launch_s
            device_s += later_s - passes.fusion_s(rows) - passes.phase_s
            num_kernels += later_kernels
        return Cost(self._prepare_s(work), device_s if self._is_synchronous else launch_s, device_s, num_kernels)

    def _prepare_s(self, work: Work) -> float:
        prepare_s = self._step_s + self._row_s * (work.rows + len(work.chunks))
        if work.chunks and self.host.eager_step_s is not None:
            prepare_s += self.host.eager_step_s - self._step_s
        return max(0.0, prepare_s - work.ahead_s) if work.ahead_s else prepare_s

    def use(self, work: Work) -> PassUse:
        """Computation and traffic of all passes of `work` on one device."""
        if work.kind in (Kind.HOST, Kind.COPY):
            return PassUse(0.0, float(work.num_bytes))
        if self.drafts_apart and work.kind is Kind.DRAFT and work.rows and work.chunks:
            prompts, draft = self.use(_prompts_of(work)), self.use(msgspec.structs.replace(work, chunks=()))
            return PassUse(prompts.flops + draft.flops, prompts.num_bytes + draft.num_bytes)
        passes = self.passes(work.model)
        flops, num_bytes = passes.use(work.rows, work.row_tokens, work.context_tokens, work.chunks, work.head_rows)
        if work.draft_tokens > 1 and work.rows:
            # A pass's use is linear in its context, so the mean one stands for all.
            num_later = work.draft_tokens - 1
            context_tokens = work.context_tokens + work.row_tokens + 0.5 * (num_later - 1) * work.rows
            later = passes.use(work.rows, work.rows, context_tokens, (), work.rows)
            flops += num_later * later.flops
            num_bytes += num_later * later.num_bytes
        return PassUse(flops, num_bytes)

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
        flops, num_bytes = self.use(work)
        device_s = self.cost(work).device_s
        if device_s <= 0.0:
            return Demands(floor, floor)
        compute = flops / (device_s * passes.compute_roof)
        bandwidth = num_bytes / (device_s * passes.bandwidth_roof)
        return Demands(max(floor, min(1.0, compute)), max(floor, min(1.0, bandwidth)))

    def host_inflation(self, num_issuers: int) -> float:
        """The last measured factor holds beyond the list."""
        return self._inflation[min(num_issuers, len(self._inflation)) - 1]

    def passes(self, model: Model) -> ModelPasses:
        """The passes of target or draft; raises ValueError where the profile has no draft."""
        if model is TARGET:
            return self._target
        if self._draft is None:
            raise ValueError(f"profile {self.profile.name!r} has no draft model. Name a pair (target+draft)")
        return self._draft

    def turns(self, passes: ModelPasses, tokens: int) -> float:
        """Kernels of a pass with prompts: beside captured ones, those launched singly have shorter turns (Phi.turn)."""
        is_beside_captured = self.cuda_graph in (True, GRAPHED_DECODE) and not self._is_synchronous
        is_captured = self._has_pieces and tokens <= self._max_graph_tokens
        return passes.num_kernels / (self.profile.phi.turn if is_beside_captured and not is_captured else 1.0)

    def _launch_s(self, passes: ModelPasses, rows: int, tokens: int, *, has_chunks: bool = False) -> float:
        host = self.host
        is_graphed = self.cuda_graph is True or (self.cuda_graph == GRAPHED_DRAFT and passes is self._draft)
        if has_chunks and not self._has_pieces:
            own = MIXED_LAUNCHES if rows and self.drafts_apart else 1.0
            return passes.num_kernels * max(host.prompt_kernel_s, host.eager_kernel_s) * own
        if self.cuda_graph == GRAPHED_DECODE:
            is_graphed = True
        if not is_graphed or tokens > self._max_graph_tokens:
            return passes.num_kernels * host.eager_kernel_s
        if has_chunks:
            return host.graph_launch_s + PIECE_KERNELS * passes.layers * host.eager_kernel_s
        is_even = self.graphed_queries is None or tokens == rows * self.graphed_queries
        if host.uneven_launch_s and passes is self._target and not is_even:
            return host.uneven_launch_s
        return host.graph_launch_s

    def _check_range(self, passes: ModelPasses, work: Work) -> None:
        name, around = self.profile.name, collected()
        for size, got, most in passes.beyond(work):
            if around is not None:
                around.add(name, size, Largest(got, most, work.rows))
            elif size not in self._warned:
                self._warned.add(size)
                warnings.warn(outside(name, size), OutsideProfileWarning, stacklevel=3)


def captured_sizes(host: HostCosts) -> list[int]:
    """Token counts that are captured as CUDA graphs, rising."""
    step = host.graph_size_step
    regular = range(step, host.max_graph_tokens + 1, step)
    return [size for size in host.graph_small_sizes if size < step] + list(regular)


def _prompts_of(work: Work) -> Work:
    """The prompts of a DRAFT work, without its rows."""
    return msgspec.structs.replace(work, rows=0, row_tokens=0, context_tokens=0, head_rows=0, draft_tokens=0)


def _later_passes(work: Work) -> Work:
    """The second and later passes of a DRAFT work: one token per row, nothing to prefill any more."""
    return Work(
        kind=work.kind,
        model=work.model,
        rows=work.rows,
        row_tokens=work.rows,
        context_tokens=work.context_tokens + work.row_tokens,
        head_rows=work.rows,
        draft_tokens=work.draft_tokens - 1,
    )
