"""Series that an engine keeps: a quantity over time, and the gaps between emissions. Not here: metrics of them."""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray


class Gauge:
    """A step function of time, integrated as it changes. `peak` counts values that lasted, not those of an instant.

    3 for 2 s, 5 for 3 s and 1 for 5 s are 26 in 10 s:

    >>> gauge = Gauge()
    >>> for time_s, change in ((0.0, 3), (2.0, 9), (2.0, -7), (5.0, -4)):
    ...     gauge.add(change, time_s)
    >>> gauge.mean(10.0), gauge.value, gauge.peak, gauge.mean(5.0), Gauge().mean(0.0)
    (2.6, 1, 5, 4.2, 0.0)
    """

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

    def restore(self, integral: float, since_s: float, value: int, peak: int) -> None:
        """Go on from where another kept the account: its integral until the last change, and when that was."""
        self._integral, self._since_s, self.value, self.peak = integral, since_s, value, peak

    def mean(self, end_s: float) -> float:
        """Time average over 0..`end_s`, which is not before the last change."""
        return (self._integral + self.value * (end_s - self._since_s)) / end_s if end_s > 0.0 else 0.0


class GaugePart(Gauge):
    """One of several parts of a total, which changes with each of them.

    >>> total = Gauge()
    >>> parts = [GaugePart(total), GaugePart(total)]
    >>> for time_s, part, value in ((0.0, 0, 3), (1.0, 1, 2), (2.0, 0, 1), (4.0, 1, 0)):
    ...     parts[part].set(value, time_s)
    >>> total.value, total.peak, total.mean(4.0), [part.mean(4.0) for part in parts]
    (1, 5, 3.5, [2.0, 1.5])
    """

    def __init__(self, total: Gauge) -> None:
        super().__init__()
        self._total = total

    def set(self, value: int, now_s: float) -> None:
        self._total.add(value - self.value, now_s)
        super().set(value, now_s)


class GapSamples:
    """Gaps between emissions (ITL samples), equal neighbours counted once with their number.

    >>> gaps = GapSamples()
    >>> for gap_s in (0.25, 0.25, 0.5, 0.25):
    ...     gaps.add(gap_s)
    >>> list(gaps.gaps_s), list(gaps.counts)
    ([0.25, 0.5, 0.25], [2, 1, 1])
    >>> more = [(0.25, 3), (0.25, 1), (0.5, 1), (0.75, 2), (0.75, 4)]
    >>> gaps.extend(np.array(more, [("gap_s", "f8"), ("count", "i8")]))
    >>> list(gaps.gaps_s), list(gaps.counts)
    ([0.25, 0.5, 0.25, 0.5, 0.75], [2, 1, 5, 1, 6])
    """

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
