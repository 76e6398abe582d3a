"""A profile's constants against published kernel tables of its GPU.

Not here: reading them (calibrate.importers.aiconfigurator).
"""

from __future__ import annotations

from pathlib import Path

from calibrate.fit.fit_errors import Check, Comparison, errors_of_draft, not_judged
from calibrate.fit.held_out import Fitted, Tables, errors_of
from calibrate.fit.kernel_fit import body_s
from calibrate.importers.aiconfigurator.compact_profile import DEVICES, read_tables
from calibrate.importers.aiconfigurator.kernel_files import KernelFiles
from sim.costs.profile import Profile
from sim.costs.shapes import ModelShape
from sim.names import unknown


def check_tables(profile: Profile, path: Path) -> Check:
    """Errors on aiconfigurator's tables below `path`; the comparisons are one layer's GEMMs.

    Raises ValueError where no tables of the profile's GPU are there.
    """
    if profile.gpu.name not in DEVICES:
        raise ValueError(unknown("GPU of published tables", profile.gpu.name, DEVICES))
    tables = read_tables(KernelFiles(path, profile.gpu.name), DEVICES[profile.gpu.name])
    kernels, tensor_parallel = profile.compact, profile.tensor_parallel
    fitted = Fitted(
        kernels.gemm, kernels.decode_attention, kernels.multi_head_decode_attention, kernels.prefill_attention
    )
    how = f"the profile's constants on kernel tables in {path.name}, which it may have been fitted on"
    errors = errors_of(tables, fitted, profile.target, tensor_parallel, how)
    comparisons = _bodies(tables, fitted, profile.target, tensor_parallel, is_target=True)
    if profile.draft is not None:
        errors |= errors_of_draft(errors_of(tables, fitted, profile.draft, tensor_parallel, how))
        comparisons += _bodies(tables, fitted, profile.draft, tensor_parallel, is_target=False)
    errors["verify"] = not_judged("no public table has attention of 2..8 queries on a long history")
    return Check(errors, comparisons)


def _bodies(
    tables: Tables, fitted: Fitted, shape: ModelShape, tensor_parallel: int, *, is_target: bool
) -> list[Comparison]:
    body = tables.gemm.body(shape, tensor_parallel)
    weights = sum(columns * depth for columns, depth in body.gemms)
    edges = sum(columns + depth for columns, depth in body.gemms)
    predicted = body_s(fitted.gemm, tables.gpu, body)
    kind = "body" if is_target else "draft_body"
    return [
        Comparison(
            kind,
            is_target,
            2.0 * tokens * weights,
            shape.dtype_bytes * (weights + tokens * edges),
            float(measured_s),
            float(fitted_s),
        )
        for tokens, measured_s, fitted_s in zip(body.tokens, body.seconds, predicted, strict=True)
    ]
