"""Links between GPUs by name, with the constants that somebody measured. A link is a device of its own: copies in one
FIFO, a fixed latency and the bytes over a rate each (sim.costs.cost.Link).

Not here: who sends what (sim.policies.disaggregated).
"""

from __future__ import annotations

from math import inf

from sim.costs.cost import Link
from sim.names import unknown

LINKS = {
    "tcp": Link(latency_s=0.01533, bytes_per_s=350.9e6),
    "cuda-ipc": Link(latency_s=0.001, bytes_per_s=inf),
    "nvlink": Link(latency_s=0.0001, bytes_per_s=200e9),
    "pcie": Link(latency_s=0.0001, bytes_per_s=25e9),
}
"""tcp is the line through two transfers of report 003: KV of Qwen2.5-7B, 512 tokens in 99 ms and 2048 in 350 ms.
A token has 57,344 bytes there. cuda-ipc passes a handle, so its time is constant. The report gives no figure, and 1 ms
is assumed. nvlink and pcie are assumed: round values below an A100's datasheet."""
DEFAULT_LINK = "cuda-ipc"


def link_of(name: str | None) -> Link:
    """The link called `name`, or LATENCY_MS:GB_PER_S as in `0.5:25`; None is the default.

    >>> link = link_of("tcp")
    >>> [round(link.latency_s + tokens * 57344 / link.bytes_per_s, 3) for tokens in (512, 2048)]
    [0.099, 0.35]
    >>> [(link.latency_s, link.bytes_per_s) for link in map(link_of, (None, "0.5:25"))]
    [(0.001, inf), (0.0005, 25000000000.0)]

    Raises ValueError with the nearest name.
    """
    if name is None:
        return LINKS[DEFAULT_LINK]
    if name in LINKS:
        return LINKS[name]
    latency, colon, rate = name.partition(":")
    if not colon:
        raise ValueError(f"{unknown('link', name, LINKS)}, or LATENCY_MS:GB_PER_S, such as 0.5:25")
    try:
        latency_ms, gb_per_s = float(latency), float(rate)
    except ValueError:
        raise ValueError(f"link {name!r} must be LATENCY_MS:GB_PER_S, such as 0.5:25") from None
    if not 0.0 <= latency_ms < inf or not gb_per_s > 0.0:
        raise ValueError(f"link {name!r} must have a latency of at least 0 ms and more than 0 GB/s")
    return Link(latency_s=latency_ms * 1e-3, bytes_per_s=gb_per_s * 1e9)
