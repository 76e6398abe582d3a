"""A host as one of several replicas sees it: its own GPUs and links, counted from 0, on a clock that all share.

Not here: which request goes to which replica (sim.engine.fleet).
"""

from __future__ import annotations

from sim.seam.host import Host, Stream


class ReplicaHost:
    """`host` for replica `index` of `num_gpus` GPUs: stream names end in the replica's number, devices are offset."""

    def __init__(self, host: Host, index: int, num_gpus: int) -> None:
        self._host = host
        self._index = index
        self._num_gpus = num_gpus
        self.run = host.run
        self.first = host.first
        self.sleep = host.sleep
        self.sleep_until = host.sleep_until
        self.wait = host.wait
        self.notify = host.notify

    @property
    def now_s(self) -> float:
        return self._host.now_s

    def stream(self, name: str, *, device: int | str = 0, priority: int = 0, sm_share: float | None = None) -> Stream:
        own = f"{device}.{self._index}" if isinstance(device, str) else device + self._index * self._num_gpus
        return self._host.stream(f"{name}.{self._index}", device=own, priority=priority, sm_share=sm_share)
