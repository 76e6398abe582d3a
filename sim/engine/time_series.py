"""Series that an engine keeps: a quantity over time, and the gaps between emissions. Not here: metrics of them."""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray


class Gauge:
    """A step function of time, integrated as it changes. `peak` counts values that lasted, not those of an instant."""

    __slots__ = ("_integral", "_since_s", "peak", "value")

    def __init__(self) -> None:
        self.value = 0
        self.peak = 0
        self._integral = 0.0
        self._since_s = 0.0

    def add(self, change: int, now_s: float) -> None:
        self.set(self.value + change, now_s)

    def set(self, value: int, now_s: float) -> None:
        if now_s > self._since_s:
            self._integral += self.value * (now_s - self._since_s)
            self._since_s = now_s
            if self.value > self.peak:
                self.peak = self.value
        self.value = value

    def mean(self, end_s: float) -> float:
        """Time average over 0..`end_s`, which is not before the last change."""
        return (self._integral + self.value * (end_s - self._since_s)) / end_s if end_s > 0.0 else 0.0


class GaugePart(Gauge):
    """One of several parts of a total, which changes with each of them."""

    __slots__ = ("_total",)

    def __init__(self, total: Gauge) -> None:
        super().__init__()
        self._total = total

    def set(self, value: int, now_s: float) -> None:
        self._total.add(value - self.value, now_s)
        super().set(value, now_s)


class GapSamples:
    """Gaps between emissions (ITL samples), equal neighbours counted once with their number."""

    __slots__ = ("counts", "gaps_s")

    def __init__(self) -> None:
        self.gaps_s = array("d")
        self.counts = array("I")

    def add(self, gap_s: float, count: int = 1) -> None:
        if self.gaps_s and self.gaps_s[-1] == gap_s:
            self.counts[-1] += count
        else:
            self.gaps_s.append(gap_s)
            self.counts.append(count)

    def extend(self, gaps: NDArray[np.void]) -> None:
        """Add all of these, which have a `gap_s` and a `count`."""
        if not len(gaps):
            return
        starts = np.flatnonzero(np.diff(gaps["gap_s"], prepend=np.nan))
        gaps_s, counts = gaps["gap_s"][starts], np.add.reduceat(gaps["count"], starts)
        self.add(float(gaps_s[0]), int(counts[0]))
        self.gaps_s.frombytes(gaps_s[1:].tobytes())
        self.counts.frombytes(counts[1:].astype(self.counts.typecode).tobytes())
