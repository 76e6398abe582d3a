"""Errors of levels and speed-ups of served cells, as one model of what was measured, and what it says of a new cell.

The logarithm of a simulated level over the measured one is a bias, a part that an engine, GPU and model have in common,
a part of the set-up (degrees, formats) and one of the load; that of a speed-up has one part. Every part follows
Student's t. A set-up counts once, however many cells it has. Fitted on judged cells by `python -m validation evidence`;
how often its intervals hold is in docs/real-gpus.md. Not here: cells near a question (evidence), draws (cost_draws).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np

from sim.acceptance.quoted import Synthetic
from sim.costs.shapes import ModelShape
from sim.draws import Floats
from sim.run.resolve import Resolved

ERRORS = Path(__file__).parent.parent / "evidence" / "errors.json"
GRID: Floats = np.linspace(-2.0, 2.0, 801)
"""Logarithms of simulated over measured that a distribution has chances of."""
LOW_95, HIGH_95 = 0.025, 0.975
SCALED_EXPERTS = "experts scaled from"
"""In the source of a profile whose experts' kernels have another shape's times (calibrate.importers.aiconfigurator)."""


class ErrorPart(msgspec.Struct, frozen=True, array_like=True):
    """Student's t around 0."""

    scale: float
    degrees: float

    def density(self, around: Floats | float = 0.0) -> Floats:
        """[GRID] up to a factor."""
        return (1.0 + ((GRID - around) / self.scale) ** 2 / self.degrees) ** (-0.5 * (self.degrees + 1.0))


class SetUp(msgspec.Struct, frozen=True, array_like=True):
    """Cells that differ in load and lengths alone."""

    engine: str
    """Without its version."""
    gpu: str
    model: str
    error: float
    """Mean logarithm of simulated over measured TPOT."""
    cells: int


class ErrorChances(msgspec.Struct, frozen=True):
    """Chances [GRID] of the error of a cell."""

    shares: Floats

    def at(self, chance: float) -> float:
        """The logarithm that is not exceeded with this chance."""
        return float(np.interp(chance, np.cumsum(self.shares), GRID))

    def chance(self, error: float) -> float:
        """Probability that the logarithm is below `error`."""
        return float(np.interp(error, GRID, np.cumsum(self.shares)))

    def and_also(self, part: ErrorPart) -> ErrorChances:
        """The sum with an independent error."""
        return _normalised(np.convolve(self.shares, _normalised(part.density()).shares, "same"))


class ServedErrors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: int
    bias: float
    """Median logarithm of simulated over measured."""
    group: ErrorPart
    """What an engine, GPU and model have in common."""
    set_up: ErrorPart
    cell: ErrorPart
    speedup: ErrorPart
    """Errors of the throughput with drafts over that without."""
    layers: dict[str, tuple[int, ...]] = {}
    """Measured model -> its `layers_of`."""
    set_ups: tuple[SetUp, ...]

    def known(self, engine: str, gpu: str, model: str) -> list[float]:
        """Errors of set-ups of this engine, of whatever version, GPU and model (`measured_name`)."""
        asked = engine.partition("-")[0], gpu, model
        return [each.error for each in self.set_ups if (each.engine, each.gpu, each.model) == asked]

    def level(self, known: Sequence[float], *, drafts: bool = False, unmeasured: int = 0) -> ErrorChances:
        """Errors of a cell whose engine, GPU and model had the errors `known` in other set-ups. A mechanism that no
        server of the engine had is as unsure as another model."""
        common = self.group.density(self.bias)
        for error in known:
            common = common * self.set_up.density(error)
        chances = _normalised(common).and_also(self.set_up).and_also(self.cell)
        for _ in range(unmeasured):
            chances = chances.and_also(self.group)
        return chances.and_also(self.speedup) if drafts else chances


def _normalised(density: Floats) -> ErrorChances:
    return ErrorChances(density / density.sum())


@lru_cache(maxsize=1)
def served_errors() -> ServedErrors:
    return msgspec.json.decode(ERRORS.read_bytes(), type=ServedErrors)


def layers_of(shape: ModelShape) -> tuple[int, ...]:
    """Dimensions that models of the same layers share, whatever their names and formats."""
    kinds = shape.window_layers, getattr(shape.linear, "layers", 0), getattr(shape.indexer, "tokens", 0)
    experts = getattr(shape.experts, "num", 0), getattr(shape.experts, "intermediate", 0)
    widths = shape.hidden, shape.intermediate, shape.heads, shape.kv_heads, shape.vocab
    return shape.layers, *kinds, *widths, *experts


def measured_name(shape: ModelShape) -> str:
    """The measured model of the same layers, whatever this one is called; empty where none was."""
    layers = layers_of(shape)
    return next((name for name, measured in served_errors().layers.items() if measured == layers), "")


def unmeasured(resolved: Resolved) -> list[str]:
    """What an answer rests on and no server of the engine was measured with, in words."""
    errors, profile = served_errors(), resolved.profile
    family, reasons = resolved.engine.name.partition("-")[0], []
    hybrids = {name for name, layers in errors.layers.items() if layers[2]}
    if profile.target.linear and not any(each.engine == family and each.model in hybrids for each in errors.set_ups):
        reasons.append(f"no hybrid model was measured under {family}")
    if resolved.policy.is_speculative and isinstance(resolved.quoted, Synthetic):
        reasons.append("no server was measured with a pinned acceptance")
    known = errors.known(resolved.engine.name, profile.gpu.name, measured_name(profile.target))
    if SCALED_EXPERTS in profile.source and not known:
        reasons.append("the experts' kernels are scaled from another shape")
    return reasons


def level_errors(resolved: Resolved, *, drafts: bool) -> ErrorChances:
    """Errors of a level of this engine, GPU and model."""
    profile, more = resolved.profile, len(unmeasured(resolved))
    return _level_errors(resolved.engine.name, profile.gpu.name, measured_name(profile.target), drafts, more)


@lru_cache(maxsize=64)
def _level_errors(engine: str, gpu: str, model: str, drafts: bool, more: int) -> ErrorChances:
    errors = served_errors()
    return errors.level(errors.known(engine, gpu, model), drafts=drafts, unmeasured=more)


@lru_cache(maxsize=1)
def speedup_errors() -> ErrorChances:
    return _normalised(served_errors().speedup.density())
