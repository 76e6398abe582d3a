"""One stream's private things: staging buffers, captured graphs and their memory pool.

Each stream of a host has one issuer, used by one thread at a time; issuers of one pair share nothing that a pass
writes but the rows' own state. Inputs travel through pinned buffers made beforehand, results come back the same way.
Not here: what a pass computes (realrun.kernels.passes), which passes to run (realrun.kernels.pair_kernels).

On the CPU a pass runs at once and its result is there; streams, events and graphs exist on CUDA only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch

from realrun.kernels.passes import NOT_FORCED, Column, PassShape

STAGING_DEPTH = 4
"""Passes in flight per stream before a buffer is used again; reuse waits for the pass that had it."""
WARM_UP_RUNS = 3
"""Eager runs before a capture: libraries pick algorithms and allocate workspaces in the first ones."""

Program = Callable[[PassShape, torch.Tensor], torch.Tensor]


class _Staging(NamedTuple):
    inputs: torch.Tensor
    results: torch.Tensor


class Pending:
    """A pass that was issued. `values` gives its results once the device is done."""

    __slots__ = ("_event", "_results", "_values", "is_graph", "shape")

    def __init__(self, shape: PassShape, results: torch.Tensor, event: Any, is_graph: bool) -> None:
        self.shape = shape
        self.is_graph = is_graph
        """Replayed from a captured graph rather than launched kernel by kernel."""
        self._results, self._event = results, event
        self._values: list[list[int]] | None = None

    @property
    def is_done(self) -> bool:
        return self._event is None or bool(self._event.query())

    @property
    def event(self) -> Any:
        """The CUDA event at the end of the pass, its copy to the host included; None on the CPU."""
        return self._event

    def values(self) -> list[list[int]]:
        """Results [rows][1 + width]; blocks until they are on the host."""
        if self._values is None:
            if self._event is not None:
                self._event.synchronize()
            found = self._results.tolist()
            # If another thread has them by now, the issuer may have used the buffer again before they were read here.
            if self._values is None:
                self._values = found
        return self._values


class Issuer:
    """Issues passes on one stream. `rows_max` bounds the rows of a pass, `width_max` the tokens of a verify row."""

    def __init__(
        self, name: str, program: Program, device: torch.device, *, rows_max: int, width_max: int, priority: int = 0
    ) -> None:
        self.name, self.program = name, program
        self.is_cuda = device.type == "cuda"
        # torch counts the other way round: lower is served first.
        self.stream = torch.cuda.Stream(device, priority=-priority) if self.is_cuda else None
        self._capture_stream = torch.cuda.Stream(device) if self.is_cuda else None
        self._pool = torch.cuda.graph_pool_handle() if self.is_cuda else None
        self._graphs: dict[PassShape, tuple[Any, torch.Tensor]] = {}
        self._inputs = torch.zeros(rows_max, len(Column), dtype=torch.int64, device=device)
        self._staging = [
            _Staging(
                torch.zeros(rows_max, len(Column), dtype=torch.int64, pin_memory=self.is_cuda),
                torch.zeros(rows_max * (1 + width_max), dtype=torch.int64, pin_memory=self.is_cuda),
            )
            for _ in range(STAGING_DEPTH)
        ]
        self._users: list[Pending | None] = [None] * STAGING_DEPTH
        self._turn = 0
        self.warmed: set[PassShape] = set()
        """Shapes that have run on this stream before; a first run is not to be timed."""
        if self.is_cuda:
            # The buffers above were filled on another stream.
            torch.cuda.synchronize(device)

    def issue(self, shape: PassShape, rows: Sequence[Sequence[int]]) -> Pending:
        """Issue one pass; `rows` holds one tuple of Column values per row of the shape."""
        assert len(rows) == shape.num_rows, (len(rows), shape)
        turn, self._turn = self._turn, (self._turn + 1) % STAGING_DEPTH
        former = self._users[turn]
        if former is not None:
            former.values()
        staging = self._staging[turn]
        staging.inputs[: len(rows)] = torch.tensor(rows, dtype=torch.int64)
        # Issuing is what a launch-bound pass costs: no tensor here is ever differentiated.
        with torch.inference_mode(), self._on_stream():
            inputs = self._inputs[: len(rows)]
            inputs.copy_(staging.inputs[: len(rows)], non_blocking=True)
            graph = self._graphs.get(shape)
            if graph is None:
                results = self.program(shape, inputs)
            else:
                graph[0].replay()
                results = graph[1]
            on_host = staging.results[: results.numel()].view(results.shape)
            on_host.copy_(results, non_blocking=True)
            event = None
            if self.is_cuda:
                event = torch.cuda.Event()
                event.record()
        self.warmed.add(shape)
        pending = Pending(shape, on_host, event, is_graph=graph is not None)
        self._users[turn] = pending
        return pending

    def wait_for(self, pending: Pending) -> None:
        """Passes issued here from now on start after `pending` has ended on the device."""
        if self.stream is not None and pending.event is not None:
            self.stream.wait_event(pending.event)

    def warm(self, shape: PassShape, scratch: int, *, capture: bool) -> None:
        """Run `shape` with absent rows only, then capture it as a graph if asked; no request's state changes.

        What has run and is captured already is left alone.
        """
        absent = [(scratch, 0, NOT_FORCED, 0)] * shape.num_rows
        for _ in range(WARM_UP_RUNS if shape not in self.warmed or (capture and shape not in self._graphs) else 0):
            self.issue(shape, absent).values()
        if capture and shape not in self._graphs:
            assert self.is_cuda, "graphs exist on CUDA only"
            self._graphs[shape] = self._capture(shape)
            self.issue(shape, absent).values()

    def _capture(self, shape: PassShape) -> tuple[Any, torch.Tensor]:
        """Record the pass over this issuer's own input buffer; other threads may go on issuing meanwhile."""
        assert self._capture_stream is not None
        torch.cuda.synchronize(self._inputs.device)
        graph = torch.cuda.CUDAGraph()
        inputs = self._inputs[: shape.num_rows]
        with (
            torch.inference_mode(),
            torch.cuda.graph(graph, pool=self._pool, stream=self._capture_stream, capture_error_mode="thread_local"),
        ):
            results = self.program(shape, inputs)
        return graph, results

    def _on_stream(self) -> Any:
        return torch.cuda.stream(self.stream) if self.is_cuda else nullcontext()
