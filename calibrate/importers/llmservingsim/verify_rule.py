"""The verify rule of a profile from LLMServingSim's mixed passes, whatever the profile's form.

Not here: the fit (calibrate.fit.verify).
"""

from __future__ import annotations

from functools import lru_cache

import msgspec
import numpy as np

from calibrate.fit.verify import MixedPoints, VerifyFit, fit_verify_rule
from calibrate.importers.llmservingsim.files import Attention
from sim.costs.forms.build import build_costs
from sim.costs.kernels import CompactKernels, VerifyAttention
from sim.costs.passes import ModelPasses
from sim.costs.profile import Profile
from sim.interface.work import Model


def fit_rule(profile: Profile, attention: Attention, query_tile: int) -> VerifyFit | None:
    """The rule with which `profile` predicts the mixed passes of `attention`, its target's, best."""

    @lru_cache(maxsize=1)
    def passes(rule: VerifyAttention) -> ModelPasses:
        return build_costs(_by_rule(profile, rule)).passes(Model.TARGET)

    def added_s(rule: VerifyAttention, rows: int, kv_tokens: int) -> float:
        return passes(rule).rows_s(rows, rows, kv_tokens, beside_chunks=True)

    return fit_verify_rule(mixed_points(attention), added_s, query_tile)


def with_rule(profile: Profile, rule: VerifyAttention) -> Profile:
    kernels = profile.kernels
    if isinstance(kernels, CompactKernels):
        return msgspec.structs.replace(profile, kernels=msgspec.structs.replace(kernels, verify_attention=rule))
    return msgspec.structs.replace(profile, kernels=msgspec.structs.replace(kernels, verify_rule=rule))


def _by_rule(profile: Profile, rule: VerifyAttention) -> Profile:
    """`profile` without its points of rows beside chunks, so that the rule stands in."""
    ruled = with_rule(profile, rule)
    if isinstance(ruled.kernels, CompactKernels):
        return ruled
    target = msgspec.structs.replace(ruled.kernels.target, rows_beside_chunks=None)
    return msgspec.structs.replace(ruled, kernels=msgspec.structs.replace(ruled.kernels, target=target))


def mixed_points(attention: Attention) -> MixedPoints:
    """Mixed passes whose chunk and whose rows were also measured alone."""
    decode, prefill, mixed = attention.decode(), attention.prefill(), attention.mixed()
    rows_s = _by_shape(decode.rows, decode.context, decode.seconds)
    chunk_s = _by_shape(prefill.chunk, prefill.history, prefill.seconds)
    chunks = list(zip(mixed.chunk.tolist(), mixed.history.tolist(), strict=True))
    rows = list(zip(mixed.rows.tolist(), mixed.context.tolist(), strict=True))
    known = np.array([a in chunk_s and b in rows_s for a, b in zip(chunks, rows, strict=True)], dtype=bool)
    use = mixed.where(known)
    return MixedPoints(
        rows=use.rows,
        context=use.context,
        chunk_s=np.array([chunk_s[key] for key, is_known in zip(chunks, known, strict=True) if is_known]),
        rows_alone_s=np.array([rows_s[key] for key, is_known in zip(rows, known, strict=True) if is_known]),
        seconds=use.seconds,
    )


def _by_shape(first: np.ndarray, second: np.ndarray, seconds: np.ndarray) -> dict[tuple[int, int], float]:
    return {(int(one), int(other)): float(value) for one, other, value in zip(first, second, seconds, strict=True)}
