"""A host as one of several sees it who share it: streams and links under names that are its alone, GPUs counted from 0.

Replicas of a policy have separate GPUs (sim.run.experiment), parts of one policy the same
(sim.policies.adaptive). Not here: which request goes to whom.
"""

from __future__ import annotations

from sim.interface.host import Host, Stream


class HostView:
    """`host` for whoever is called `label`: stream and link names end in it, GPUs are counted from `first_gpu`."""

    def __init__(self, host: Host, label: str, *, first_gpu: int = 0) -> None:
        self._host = host
        self._label = label
        self._first_gpu = first_gpu
        self.run = host.run
        self.first = host.first
        self.sleep = host.sleep
        self.sleep_until = host.sleep_until
        self.wait = host.wait
        self.notify = host.notify

    @property
    def now_s(self) -> float:
        return self._host.now_s

    @property
    def streams(self) -> dict[str, Stream]:
        """Streams of this view, by the names that it gave them."""
        ending = f".{self._label}"
        return {name[: -len(ending)]: each for name, each in self._host.streams.items() if name.endswith(ending)}

    def stream(self, name: str, *, device: int | str = 0, priority: int = 0, sm_share: float | None = None) -> Stream:
        actual = f"{device}.{self._label}" if isinstance(device, str) else device + self._first_gpu
        return self._host.stream(f"{name}.{self._label}", device=actual, priority=priority, sm_share=sm_share)
