"""A GPU by CUDA: the only module that touches torch.cuda. Not here: its interface and rules (realrun.host.device)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import torch

from realrun.host.device import DeviceStream, Event, RealDevice

OutOfMemory = torch.cuda.OutOfMemoryError
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
MAX_CONNECTIONS, USUAL_CONNECTIONS = 32, 8
"""Hardware queues of a process: at most, and by default. Further streams wait for each other; torch has 32 in turn."""
CYCLES_PER_S = 2.0e9
"""Cycles of a kernel that holds a stream: no GPU's clock is faster, and slower ones hold longer."""


def find(where: str | torch.device) -> RealDevice:
    """The device called cpu or cuda. Raises ValueError if this machine has none."""
    where = torch.device(where)
    if where.type == "cpu":
        return RealDevice()
    if not torch.cuda.is_initialized():
        os.environ.setdefault(CONNECTIONS, str(MAX_CONNECTIONS))
    if not torch.cuda.is_available():
        built = torch.version.cuda
        why = f"torch's CUDA is {built}: is the driver as new?" if built else "this torch was built without CUDA"
        raise ValueError(f"--device cuda: torch finds no CUDA device on this machine ({why}). Use --device cpu")
    return Cuda(where)


def properties() -> Any:
    """Those of the first GPU, under torch's names."""
    return torch.cuda.get_device_properties(0)


class Cuda(RealDevice):
    is_async = True

    def __init__(self, where: torch.device) -> None:
        self._where = where

    def stream(self, priority: int = 0) -> DeviceStream:
        connections = int(os.environ.get(CONNECTIONS, USUAL_CONNECTIONS))
        for _ in range(MAX_CONNECTIONS if len(_STREAMS) < connections else 0):
            # torch counts the other way round: lower is served first.
            raw = torch.cuda.Stream(self._where, priority=-priority)
            if raw.cuda_stream not in _STREAMS:
                made = _STREAMS[raw.cuda_stream] = _CudaStream(raw)
                return made
        raise ValueError(
            f"{len(_STREAMS)} streams are in use and {CONNECTIONS} is {connections}: one more would queue behind them. "
            f"Use fewer, or set {CONNECTIONS}={MAX_CONNECTIONS}, the most there are"
        )

    def run_now(self, work: Callable[[], object]) -> None:
        with torch.inference_mode():
            work()
        torch.cuda.current_stream(self._where).synchronize()

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._where)

    def pinned(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int64, pin_memory=True)

    def free_bytes(self) -> int:
        # What torch has and nobody holds counts as well: it gives it back before it runs out.
        idle = torch.cuda.memory_reserved(self._where) - torch.cuda.memory_allocated(self._where)
        return int(torch.cuda.mem_get_info(self._where)[0]) + int(idle)

    def num_allocations(self) -> int:
        return int(torch.cuda.memory_stats(self._where).get("num_device_alloc", 0))


class _CudaStream:
    def __init__(self, raw: torch.cuda.Stream) -> None:
        self._raw, self._pool = raw, torch.cuda.graph_pool_handle()

    def run(self, work: Callable[[], object]) -> None:
        with torch.inference_mode(), torch.cuda.stream(self._raw):
            work()

    def capture(self, work: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        graph = torch.cuda.CUDAGraph()
        # On the stream that replays it, as libraries keep a workspace per stream; other threads may issue meanwhile.
        with (
            torch.inference_mode(),
            torch.cuda.graph(graph, pool=self._pool, stream=self._raw, capture_error_mode="thread_local"),
        ):
            results = work()

        def replay() -> torch.Tensor:
            graph.replay()
            return results

        return replay

    def record(self) -> Event:
        raw = torch.cuda.Event(enable_timing=True)
        raw.record(self._raw)
        return _CudaEvent(raw)

    def wait(self, event: Event) -> None:
        assert isinstance(event, _CudaEvent)
        self._raw.wait_event(event.raw)

    def hold(self, seconds: float) -> None:
        with torch.cuda.stream(self._raw):
            torch.cuda._sleep(int(seconds * CYCLES_PER_S))


_STREAMS: WeakValueDictionary[int, _CudaStream] = WeakValueDictionary()
"""Streams in use in this process, by CUDA's handle."""


class _CudaEvent:
    def __init__(self, raw: torch.cuda.Event) -> None:
        self.raw = raw

    def synchronize(self) -> None:
        self.raw.synchronize()

    def seconds_after(self, earlier: Event) -> float:
        assert isinstance(earlier, _CudaEvent)
        return 1e-3 * float(earlier.raw.elapsed_time(self.raw))
