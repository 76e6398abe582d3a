"""Costs of a model pair as rows of numbers, which the compiled core keeps and asks for where it lacks one.

Not here: the core (sim/run/core.c), which runs it takes (sim.run.compiled), the numbers of each form (compact, table).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.costs.forms.table import TablePasses
from sim.costs.passes import RowPart
from sim.costs.work_costs import WorkCosts
from sim.interface.work import STEP, Chunk, Model, Work

ROWS, LATER, BESIDE, CHUNK, TOKENS, HEAD = range(6)
"""Kinds of slots: a pass of rows alone, a later pass of a draft, rows beside chunks, one chunk, the rest of a pass with
chunks by its tokens, and the LM head by its rows."""
NUM_SLOTS = (4096, 1024, 2048, 8192, 16384, 4096)
"""Slots of each kind; more keys than these push each other out."""
ROW_BITS = 32
"""Low bits of a second key of TOKENS hold row tokens, the rest rows."""

CHUNKS = np.dtype([("new_tokens", "i8"), ("history", "i8"), ("request", "i8")])
"""A chunk of a prompt, as the core has it."""

Numbers = tuple[float, ...]


class PairSlots:
    """Slots of target and draft.

    Passes of either form have `widths` (numbers of a pass of rows, of rows beside chunks, and of one chunk),
    `constants` of prefill attention, `bounds` (largest measured tokens, head rows, rows, chunk, history and queries),
    and the numbers themselves: `row_parts`, `beside(rows, row_tokens)`, `chunk(tokens)`.
    """

    def __init__(self, costs: WorkCosts) -> None:
        self._costs = costs
        models = (Model.TARGET, Model.DRAFT if costs.profile.draft is not None else Model.TARGET)
        self._passes: list[Any] = [costs.passes(model) for model in models]
        self.models = [self._arrays(passes) for passes in self._passes]
        """[2] constants, and slots by kind, as the core reads them."""

    def _arrays(self, passes: Any) -> tuple[NDArray[np.float64], ...]:
        part, beside, chunk = passes.widths
        widths = [2 + width for width in (3 + part, 3 + part, 1 + beside, chunk, 4, 1)]
        numbers = (
            isinstance(passes, TablePasses),
            passes.has_experts or self._costs.drafts_apart,
            passes.layers,
            passes.extra_s,
            passes.phase_s,
            passes.max_row_tokens,
            *passes.constants,
            *passes.bounds,
            *widths,
        )
        slots = [np.zeros((num, width)) for num, width in zip(NUM_SLOTS, widths, strict=True)]
        return np.array(numbers, dtype=np.float64), *slots

    def ask(self, model: int, kind: int, place: int, first: int, second: int) -> None:
        """Write the slot at `place`, which the core lacks."""
        numbers = self._numbers(model, kind, first, second)
        self.models[model][1 + kind][place, : 2 + len(numbers)] = first, second, *numbers

    def _numbers(self, model: int, kind: int, first: int, second: int) -> Numbers:
        passes = self._passes[model]
        if kind == ROWS:
            # The core has row tokens below 0 for a pass without the LM head.
            return self._rows(model, (first, abs(second), 0 if second < 0 else first if model else second))
        if kind == LATER:
            return self._rows(model, (first, first, first))
        if kind == BESIDE:
            return (float(passes.max_row_context_tokens(first)), *passes.beside(first, second))
        if kind == CHUNK:
            numbers: Numbers = passes.chunk(first)
            return numbers
        if kind == HEAD:
            return (passes.head_s(first),)
        rows, row_tokens = divmod(second, 1 << ROW_BITS)
        launch_s = self._costs._launch_s(passes, rows, first, has_chunks=True)
        turns = self._costs.turns(passes, first)
        return passes.padded_body_s(first, rows, row_tokens), launch_s, passes.fusion_s(first), turns

    def _rows(self, model: int, key: tuple[int, int, int]) -> Numbers:
        passes, costs = self._passes[model], self._costs
        rows, row_tokens, head_rows = key
        part: RowPart | None = passes.row_parts.get(key)
        if part is None:
            work = Work(kind=STEP, rows=rows, row_tokens=row_tokens, head_rows=head_rows)
            part = costs._new_row_part(passes, key, work)
        fusion_s = passes.fusion_s(row_tokens) if passes.reads_features else 0.0
        return part.launch_s, float(part.max_context_tokens), fusion_s, *part.numbers

    def check(self, model: int, rows: int, row_tokens: int, context_tokens: int, head_rows: int, chunks: bytes) -> None:
        """A pass has a size beyond what was measured and told before; `chunks` are CHUNKS."""
        work = Work(
            kind=STEP,
            rows=rows,
            row_tokens=row_tokens,
            context_tokens=context_tokens,
            head_rows=head_rows,
            chunks=tuple([Chunk(new, history) for new, history, _ in np.frombuffer(chunks, CHUNKS).tolist()]),
        )
        self._costs._check_range(self._passes[model], work)


@lru_cache(maxsize=32)
def slots_of(costs: WorkCosts) -> PairSlots:
    """The slots of `costs`, kept from run to run."""
    return PairSlots(costs)
