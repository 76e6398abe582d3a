"""Whether times can be true of a GPU: none is shorter than its datasheet allows, nor are they far too long.

That is how other units and swapped columns show. Not here: reading tables (calibrate.importers.aiconfigurator.files).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from calibrate.fit.errors import Array
from sim.costs.profile import Gpu

ABOVE_ROOF = 1.05
"""A kernel may seem this much faster than the compute roof: clocks boost."""
RESOLUTION_S = 1e-6
"""Of the coarsest published tables: a time may be rounded down by as much."""
CACHED = 4.0
"""What is read over and over may come from the L2 cache, up to so many times faster than from memory: three times is
the most in any published table here."""
FAR = 100.0
"""A kernel that takes so many times its roofs is in other units: twice is usual, but some rows of every table go
astray."""
LAUNCH_S = 1e-5
"""Added to the roofs before: small kernels take their launch."""


def check_all(where: Callable[[int], str], what: str, seconds: Array, flops: Array, num_bytes: Array, gpu: Gpu) -> None:
    """Raises ValueError for the first time shorter than it can be, or where most times together are far too long (some
    tables have rows that are); `where` names a row."""
    roof_s = _least_s(flops, num_bytes, gpu)
    _refuse_first(where, what, seconds, roof_s, "less than", (seconds + RESOLUTION_S) * ABOVE_ROOF < roof_s)
    ratios = seconds / (roof_s + LAUNCH_S)
    if len(ratios) and float(np.median(ratios)) > 0.5 * FAR:
        _refuse_first(where, what, seconds, roof_s, f"over {0.5 * FAR:g} times", ratios > 0.5 * FAR)


def _least_s(flops: Array, num_bytes: Array, gpu: Gpu) -> Array:
    return np.maximum(flops / gpu.peak_flops, num_bytes / (CACHED * gpu.bandwidth_bytes_per_s))


def _refuse_first(
    where: Callable[[int], str], what: str, seconds: Array, roof_s: Array, how: str, is_wrong: np.ndarray
) -> None:
    if is_wrong.any():
        i = int(np.argmax(is_wrong))
        raise ValueError(
            f"{where(i)}: {what} takes {1e3 * seconds[i]:.4g} ms, {how} the {1e3 * roof_s[i]:.3g} ms of the datasheet; "
            "are times not in milliseconds, or columns swapped?"
        )
