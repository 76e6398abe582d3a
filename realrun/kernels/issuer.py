"""One stream's private things: staging buffers, captured graphs.

Each stream of a host has one issuer, used by one thread at a time. Issuers of one pair share nothing that a pass
writes but the rows' own state. Inputs and results travel through pinned buffers made beforehand. Not here: what a pass
computes (realrun.kernels.device_passes), which passes to run (realrun.kernels.pair_kernels).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from realrun.host.device import DeviceStream, Event, RealDevice
from realrun.kernels.device_passes import NOT_FORCED, InputColumn, PassShape
from sim.interface.work import Model

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

    __slots__ = ("_results", "_values", "end", "is_graph", "start")

    def __init__(self, results: torch.Tensor, start: Event, end: Event, is_graph: bool) -> None:
        self.start, self.end = start, end
        """Events before its inputs and after its results have travelled: nothing of the host's lies between."""
        self.is_graph = is_graph
        """Replayed from a captured graph rather than launched kernel by kernel."""
        self._results = results
        self._values: list[list[int]] | None = None

    def values(self) -> list[list[int]]:
        """Results [rows][1 + width]; blocks until they are on the host."""
        if self._values is None:
            self.end.synchronize()
            numbers = self._results.tolist()
            # If another thread has them by now, the issuer may have used the buffer again before they were read here.
            if self._values is None:
                self._values = numbers
        return self._values


class Issuer:
    """Issues passes on its own `stream`. `rows_max` bounds rows of a pass, `width_max` tokens of a verify row."""

    def __init__(
        self,
        name: str,
        program: Program,
        device: torch.device,
        runs_on: RealDevice,
        stream: DeviceStream,
        *,
        rows_max: int,
        width_max: int,
    ) -> None:
        self.name, self.program, self.runs_on = name, program, runs_on
        self.stream = stream
        self._graphs: dict[PassShape, Callable[[], torch.Tensor]] = {}
        self._inputs = torch.zeros(rows_max, len(InputColumn), dtype=torch.int64, device=device)
        self._staging = [
            _Staging(runs_on.pinned(rows_max, len(InputColumn)), runs_on.pinned(rows_max * (1 + width_max)))
            for _ in range(STAGING_DEPTH)
        ]
        self._users: list[Pending | None] = [None] * STAGING_DEPTH
        self._turn = 0
        self.warmed: set[PassShape] = set()
        """Shapes that have run on this stream before; a first run is not to be timed."""
        # The buffers above were filled on another stream.
        runs_on.synchronize()

    def issue(self, shape: PassShape, rows: Sequence[Sequence[int]]) -> Pending:
        """Issue one pass; `rows` holds one tuple of InputColumn values per row of the shape."""
        assert len(rows) == shape.num_rows, (len(rows), shape)
        turn, self._turn = self._turn, (self._turn + 1) % STAGING_DEPTH
        former = self._users[turn]
        if former is not None:
            former.values()
        staging = self._staging[turn]
        staging.inputs[: len(rows)] = torch.tensor(rows, dtype=torch.int64)
        graph = self._graphs.get(shape)
        # Drafts stay on the device until they are verified.
        width = 1 + shape.width if shape.model is Model.TARGET else 0
        on_host = staging.results[: len(rows) * width].view(len(rows), width)

        def work() -> None:
            inputs = self._inputs[: len(rows)]
            inputs.copy_(staging.inputs[: len(rows)], non_blocking=True)
            results = self.program(shape, inputs) if graph is None else graph()
            on_host.copy_(results, non_blocking=True)

        start = self.stream.record()
        self.stream.run(work)
        self.warmed.add(shape)
        pending = Pending(on_host, start, self.stream.record(), is_graph=graph is not None)
        self._users[turn] = pending
        return pending

    def is_captured(self, shape: PassShape) -> bool:
        return shape in self._graphs

    def wait_for(self, pending: Pending) -> None:
        """Passes issued here from now on start after `pending` has ended on the device."""
        self.stream.wait(pending.end)

    def warm(self, shape: PassShape, scratch: int, *, capture: bool, again: bool = False) -> None:
        """Run `shape` with absent rows, then capture it if asked. What has run is left alone, or runs `again`."""
        absent = [(scratch, 0, NOT_FORCED)] * shape.num_rows
        is_to_be_captured = capture and shape not in self._graphs
        is_new = shape not in self.warmed or is_to_be_captured
        for _ in range(WARM_UP_RUNS if is_new else int(again)):
            self.issue(shape, absent).values()
        if is_to_be_captured:
            self.runs_on.synchronize()
            inputs = self._inputs[: shape.num_rows]
            self._graphs[shape] = self.stream.capture(lambda: self.program(shape, inputs))
            self.issue(shape, absent).values()
