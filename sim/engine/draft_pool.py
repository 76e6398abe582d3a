"""A pool of GPUs that draft: which one a request belongs to, and how many of them take new ones.

Source of the scaling: report 003's draft-pool controller, whose thresholds its report does not state. Not here: the
rounds (sim.policies.disaggregated).
"""

from __future__ import annotations

from sim.interface.request import Request


class DraftPool:
    """Requests are pinned to a GPU, where their draft KV is, until they are through. Scaled, the number of GPUs that
    take new requests follows the load by one at a time, with a pause between two changes.

    Two requests per GPU, at most three, one second between changes:

    >>> pool = DraftPool(3, is_scaled=True, requests_per_gpu=2, cooldown_s=1.0)
    >>> requests = [Request(i, f"r{i}", arrival_s=0.0, prompt_tokens=1, output_tokens=1) for i in range(5)]
    >>> [pool.join(request, now_s=0.5 * i) for i, request in enumerate(requests)]
    [0, 0, 1, 1, 2]
    >>> [pool.leave(request, now_s=4.0 + i) for i, request in enumerate(requests)] and pool.changes
    [(0.0, 1), (1.0, 2), (2.0, 3), (4.0, 2), (6.0, 1)]
    """

    def __init__(self, num_gpus: int, *, is_scaled: bool, requests_per_gpu: int, cooldown_s: float) -> None:
        self.num_gpus = num_gpus
        self.num_active = 1 if is_scaled else num_gpus
        """GPUs that take new requests."""
        self.changes = [(0.0, self.num_active)]
        """(time, GPUs that take new requests)."""
        self._is_scaled = is_scaled
        self._requests_per_gpu = requests_per_gpu
        self._cooldown_s = cooldown_s
        self._homes: dict[int, int] = {}
        self._loads = [0] * num_gpus

    def join(self, request: Request, now_s: float) -> int:
        """The GPU that drafts for `request` from now on: of those that take new ones the one with the fewest."""
        self._scale(len(self._homes) + 1, now_s)
        gpu = min(range(self.num_active), key=lambda index: (self._loads[index], index))
        self._homes[request.index] = gpu
        self._loads[gpu] += 1
        return gpu

    def leave(self, request: Request, now_s: float) -> None:
        self._loads[self._homes.pop(request.index)] -= 1
        self._scale(len(self._homes), now_s)

    def home(self, request: Request) -> int:
        return self._homes[request.index]

    def by_gpu(self, requests: list[Request]) -> list[tuple[int, list[Request]]]:
        """`requests` by the GPU that drafts for them, in order of the GPUs."""
        found: dict[int, list[Request]] = {}
        for request in requests:
            found.setdefault(self._homes[request.index], []).append(request)
        return sorted(found.items())

    def _scale(self, num_requests: int, now_s: float) -> None:
        """One GPU more or less, if the load wants it and the last change is long enough ago."""
        if not self._is_scaled:
            return
        wanted = min(self.num_gpus, max(1, -(-num_requests // self._requests_per_gpu)))
        is_first = len(self.changes) == 1
        if wanted == self.num_active or (not is_first and now_s - self.changes[-1][0] < self._cooldown_s):
            return
        self.num_active += 1 if wanted > self.num_active else -1
        self.changes.append((now_s, self.num_active))
