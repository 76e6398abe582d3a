"""Corrections of a pass's parts from the ratios of whole passes, measured over predicted.

A pass is a sum of parts, each at a point on the logs of its axes. The log correction of each kind of part is a
Gaussian process over its points (Rasmussen and Williams 2006, eq. 2.23 to 2.26, exponential covariance), a pass's log
ratio the mean of its parts' corrections by their shares, and noise. How large corrections are beside the noise and how
far they reach is chosen by leaving each point out once (eq. 5.12): on a noisy machine they nearly vanish, on a quiet
one the corrected passes go through the points.
Not here: what the parts are (calibrate.measure.fits.measured_table).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.spatial.distance import cdist

from calibrate.fit.fit_errors import Array

SPREADS = (0.0, 0.003, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
"""Standard deviations of a correction to choose from. Only their ratio to the points' deviations matters."""
REACHES = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Distances at which covariance has fallen to 1/e, to choose from: 0.7 is a factor of two in one count."""
OUTLIER = 3.0
"""A point further than so many standard deviations from what the others say of it is trusted less in proportion."""
NORMAL_MEDIAN = 0.6745
"""Median distance of a normal variable from its mean, in standard deviations."""
REWEIGHTINGS = 4

Key = tuple[str, tuple[float, ...]]
"""A kind of part, and a point on the logs of its axes."""


class PartKind(NamedTuple):
    """The parts of one kind: `points` [parts, axes], `shares` [passes, parts] of the pass's time."""

    points: Array
    shares: Array


class Corrections:
    """Log corrections by part."""

    def __init__(
        self, parts: Sequence[Mapping[Key, float]], predicted_s: Array, measured_s: Array, deviations: Array
    ) -> None:
        """Every pass: seconds of its parts, of itself as predicted and as measured, and the standard deviation of
        the log of the latter."""
        self._ratios = np.log(measured_s / predicted_s)
        self._kinds = _kinds(parts, predicted_s)
        self._choose(deviations)

    def _choose(self, deviations: Array) -> None:
        """Spread, reach and the noise of each point, by what the other points say of it."""
        by_reach = {reach: _covariance(self._kinds, reach) for reach in REACHES}
        noise = deviations
        for _ in range(REWEIGHTINGS + 1):
            tried = [
                (_mean_miss(spread**2 * covariance, noise, self._ratios, deviations), spread, reach)
                for reach, covariance in by_reach.items()
                for spread in SPREADS
            ]
            _, self.spread, self.reach = min(tried)
            self._factor = cho_factor(self.spread**2 * by_reach[self.reach] + np.diag(noise**2))
            self._solved, precisions = _solve(self._factor, self._ratios)
            known = np.maximum(0.0, 1.0 / precisions - noise**2)
            far = np.abs(self._solved / precisions) / np.sqrt(known + deviations**2)
            usual = float(np.median(far)) / NORMAL_MEDIAN
            noise = deviations * np.maximum(1.0, far / (OUTLIER * usual)) if usual > 0.0 else deviations

    def at(self, keys: Sequence[Key]) -> tuple[Array, Array]:
        """Log corrections of parts of one kind and their standard deviations."""
        name, points = keys[0][0], np.array([point for _, point in keys])
        kind = self._kinds.get(name)
        if kind is None:
            return np.zeros(len(keys)), np.full(len(keys), self.spread)
        covariance = self.spread**2 * _alike(points, kind.points, self.reach) @ kind.shares.T
        explained = np.sum(covariance * cho_solve(self._factor, covariance.T).T, axis=1)
        return covariance @ self._solved, np.sqrt(np.maximum(0.0, self.spread**2 - explained))


def _kinds(parts: Sequence[Mapping[Key, float]], predicted_s: Array) -> dict[str, PartKind]:
    listed: dict[str, list[tuple[int, tuple[float, ...], float]]] = {}
    for index, (of_pass, pass_s) in enumerate(zip(parts, predicted_s, strict=True)):
        for (name, point), seconds in of_pass.items():
            listed.setdefault(name, []).append((index, point, seconds / pass_s))
    kinds = {}
    for name, entries in listed.items():
        shares = np.zeros((len(parts), len(entries)))
        for column, (index, _, share) in enumerate(entries):
            shares[index, column] = share
        kinds[name] = PartKind(np.array([point for _, point, _ in entries]), shares)
    return kinds


def _alike(points: Array, others: Array, reach: float) -> Array:
    """Correlation of corrections [points, others]."""
    return np.asarray(np.exp(-cdist(points, others) / reach))


def _covariance(kinds: Mapping[str, PartKind], reach: float) -> Array:
    """Covariance of the passes' log ratios [passes, passes], noise left out, for corrections of spread 1."""
    total = np.zeros((len(next(iter(kinds.values())).shares),) * 2)
    for kind in kinds.values():
        total += kind.shares @ _alike(kind.points, kind.points, reach) @ kind.shares.T
    return total


def _mean_miss(covariance: Array, noise: Array, ratios: Array, deviations: Array) -> float:
    """Mean distance of a ratio from what the others make of it, in its standard deviations; a mean of distances
    forgives outliers."""
    solved, precisions = _solve(cho_factor(covariance + np.diag(noise**2)), ratios)
    return float(np.mean(np.abs(solved / precisions) / deviations))


def _solve(factor: tuple[Array, bool], ratios: Array) -> tuple[Array, Array]:
    """K^-1 `ratios` of the factored covariance K of the points, and the diagonal of K^-1, the precision with which the
    others predict each point."""
    return cho_solve(factor, ratios), np.diag(cho_solve(factor, np.eye(len(ratios))))
