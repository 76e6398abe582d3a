"""The table form of kernel costs: measured points of one GPU, engine and pair of models, as a profile stores them.

All times are seconds on one device; those of attention and body are per layer. Axes rise; times never fall along an
axis, so that no interpolated cost does (importers smooth noise out and say by how much). null marks a shape that was
not measured; it is interpolated along its row.
Not here: interpolation (sim.costs.forms.interpolation), what a work costs (sim.costs.forms.table).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import isfinite

import msgspec

from sim.costs.compact_kernels import KernelsUnderLoad, Measured, VerifyAttention
from sim.plugins import shown

Grid = tuple[tuple[float | None, ...], ...]
Time = float | int | None


class Points(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the groups of measured points; made in Python, they are checked as files are."""


class Curve(Points, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`seconds` at each of `tokens`, the first of which is 1.

    >>> import lanesim
    >>> lanesim.Curve(tokens=(1, 64), seconds=(2e-4, 1e-4))
    Traceback (most recent call last):
    ValueError: seconds must not fall along tokens, as it does to 0.0001 s. Smooth it first
    """

    tokens: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_axis("tokens", self.tokens, first=1)
        _check_grid("seconds", ("tokens",), (1, len(self.tokens)), (self.seconds,))


class DecodeGrid(Points, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Attention of `rows` sequences with one query each. Each reads `context_tokens` tokens of KV, with the token of
    the query: `seconds[rows][context_tokens]`. The first count of sequences is 1.

    >>> import lanesim
    >>> grid = lanesim.DecodeGrid(rows=(1, 8), context_tokens=(128, 4096), seconds=((2e-5, 4e-5), (3e-5, 2e-4)))
    >>> grid.seconds[1][0]  # eight rows that read 128 tokens each
    3e-05
    """

    rows: tuple[int, ...]
    context_tokens: tuple[int, ...]
    seconds: Grid

    def __post_init__(self) -> None:
        _check_axis("rows", self.rows, first=1)
        _check_axis("context_tokens", self.context_tokens)
        _check_grid("seconds", ("rows", "context_tokens"), (len(self.rows), len(self.context_tokens)), self.seconds)


class PrefillGrid(Points, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Causal attention of one chunk of `chunk_tokens` after `history_tokens`: `seconds[chunk_tokens][history_tokens]`.
    The first history is 0. Where it is the only one, TablePasses has a rule for the others.

    >>> import lanesim
    >>> lanesim.PrefillGrid(chunk_tokens=(64, 2048), history_tokens=(0, 1024), seconds=((2e-5, 3e-5), (7e-4, None)))
    PrefillGrid(chunk_tokens=(64, 2048), history_tokens=(0, 1024), seconds=((2e-05, 3e-05), (0.0007, None)))
    """

    chunk_tokens: tuple[int, ...]
    history_tokens: tuple[int, ...]
    seconds: Grid

    def __post_init__(self) -> None:
        _check_axis("chunk_tokens", self.chunk_tokens)
        _check_axis("history_tokens", self.history_tokens, first=0)
        size = len(self.chunk_tokens), len(self.history_tokens)
        _check_grid("seconds", ("chunk_tokens", "history_tokens"), size, self.seconds)
        if any(curve[0] is None for curve in self.seconds):
            raise ValueError("seconds must not be null where history_tokens is 0")


class VerifyGrid(Points, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Attention of `rows` sequences with `queries` queries each (2 or more). Each reads `context_tokens` tokens of KV,
    with the tokens of the queries: `seconds[queries][rows][context_tokens]`.

    >>> import lanesim
    >>> grid = lanesim.VerifyGrid(queries=(5,), rows=(1, 8), context_tokens=(128,), seconds=(((2e-5,), (6e-5,)),))
    >>> grid.seconds[0][1][0]  # eight rows of five queries
    6e-05
    """

    queries: tuple[int, ...]
    rows: tuple[int, ...]
    context_tokens: tuple[int, ...]
    seconds: tuple[Grid, ...]

    def __post_init__(self) -> None:
        _check_axis("queries", self.queries)
        if self.queries[0] < 2:
            raise ValueError(f"queries={list(self.queries)} must be at least 2: rows of one query are a decode")
        _check_axis("rows", self.rows, first=1)
        _check_axis("context_tokens", self.context_tokens)
        if len(self.seconds) != len(self.queries):
            raise ValueError(
                f"seconds has {len(self.seconds)} grids and queries {len(self.queries)} values. Give as many"
            )
        for grid in self.seconds:
            _check_grid("seconds", ("rows", "context_tokens"), (len(self.rows), len(self.context_tokens)), grid)


class ModelTable(Points, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything measured of one model.

    >>> import lanesim
    >>> target = lanesim.load_profile("a100-sxm/llama-3.1-8b").table.target
    >>> isinstance(target, lanesim.ModelTable), len(target.body.tokens) == len(target.body.seconds)
    (True, True)
    """

    body: Curve
    """One layer without attention, by tokens of the pass: GEMMs, elementwise kernels, all-reduces."""
    head: Curve
    """LM head and sampler of the pass, by token positions that sample."""
    decode_attention: DecodeGrid
    prefill_attention: PrefillGrid
    verify_attention: VerifyGrid | None = None
    """null where verify shapes were not measured; `verify_rule` then stands in, and the profile's errors say so."""
    rows_beside_chunks: DecodeGrid | None = None
    """Seconds that rows of one query add to a pass with prefill chunks; null where mixed passes were not measured."""
    experts: Curve | None = None
    """The part of `body` that data-parallel ranks do together, by tokens of each: experts and their traffic."""

    @property
    def measured(self) -> Measured:
        decode, prefill = self.decode_attention, self.prefill_attention
        return Measured(
            tokens=self.body.tokens[-1],
            rows=decode.rows[-1],
            row_context_tokens=decode.context_tokens[-1],
            chunk_tokens=prefill.chunk_tokens[-1],
        )


class TableKernels(
    KernelsUnderLoad, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="form", tag="table"
):
    """All measured points of one GPU, engine, attention implementation and pair of models. The measured ranges are the
    ends of the axes.

    >>> import lanesim
    >>> isinstance(lanesim.load_profile("a100-sxm/llama-3.1-8b").kernels, lanesim.TableKernels)
    True
    """

    target: ModelTable
    draft: ModelTable | None
    verify_rule: VerifyAttention
    """The rule for rows beside prefill chunks where `rows_beside_chunks` is null, and for verify rows where
    `verify_attention` is: what context adds to decode attention grows by kv_slowdown, or padded query tiles compute;
    without a tile, further queries compute at the rate of the longest measured prefill."""
    attention_implementation: str
    kv_layout: str


def _check_axis(name: str, axis: Sequence[int], first: int | None = None) -> None:
    if not isinstance(axis, tuple) or not all(type(count) is int for count in axis):
        raise ValueError(f"{name}={shown(axis)} must be a tuple of whole numbers")
    is_rising = bool(axis) and all(low < high for low, high in pairwise(axis))
    if not is_rising or axis[0] < 0 or (axis[0] == 0 and first != 0):
        raise ValueError(f"{name}={list(axis)} must rise and hold counts")
    if first is not None and axis[0] != first:
        raise ValueError(f"{name}={list(axis)} must begin with {first}")


def _check_grid(name: str, axes: Sequence[str], size: tuple[int, int], grid: Grid) -> None:
    """`grid` has `size`, holds times that never fall along `axes`, and no curve of nulls alone."""
    if not all(isinstance(curve, tuple) and all(isinstance(each, Time) for each in curve) for curve in grid):
        raise ValueError(f"{name}={shown(grid)} must be tuples of numbers")
    if len(grid) != size[0] or any(len(curve) != size[1] for curve in grid):
        raise ValueError(f"{name} must be [{']['.join(axes)}], {' x '.join(map(str, size[-len(axes) :]))} numbers")
    for curve in grid:
        known = [value for value in curve if value is not None]
        if not known:
            raise ValueError(f"{name} has only nulls at one value of {axes[0]}. Leave that value out")
        if wrong := [value for value in known if not isfinite(value) or value <= 0.0]:
            raise ValueError(f"{name} must be finite and positive, got {wrong[0]!r}")
    where = falls(grid)
    if where is not None:
        value = grid[where[0]][where[1]]
        raise ValueError(f"{name} must not fall along {' or '.join(axes)}, as it does to {value!r} s. Smooth it first")


def falls(grid: Sequence[Sequence[float | None]]) -> tuple[int, int] | None:
    """Indices of a measured point below one that is no larger in either axis; None where there is none."""
    most = [0.0] * len(grid[0])
    for i, curve in enumerate(grid):
        known = [0.0 if value is None else value for value in curve]
        most = list(accumulate(map(max, known, most), max))
        for j, value in enumerate(curve):
            if value is not None and value < most[j]:
                return i, j
    return None
