"""The profile of a points file: starting constants of the device, then the fits. Imports no torch.

Not here: measuring (calibrate.measure), the fits (calibrate.fit.pass_fit, calibrate.measure.fits.overlap_fit).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import msgspec

from calibrate.fit.pass_fit import fit_passes, start_constants
from calibrate.fit.points_file import MeasuredSession
from calibrate.measure.fits.overlap_fit import fit_overlap
from calibrate.measure.fits.serving_costs import ServingCosts, completed
from sim.costs.engine_costs import MEASURED_HERE
from sim.costs.passes import HEAD_KERNELS
from sim.costs.profile import IN_A_LOOP, SCHEMA, Gpu, HostCosts, MeasuredPoint, Overlap, Profile
from sim.costs.profile_files import round_constant
from sim.costs.shapes import ModelShape
from sim.files.json_values import convert


def profile_of(held: MeasuredSession, target: ModelShape, draft: ModelShape | None) -> Profile:
    """What serving adds is in it, if that was measured. Raises ValueError where the file has too little to fit."""
    if not held.host:
        raise ValueError("too little was measured for a profile. Run the same command again to continue")
    points, gpu = held.points, msgspec.convert(held.host["gpu"], Gpu)
    shapes = {"target": target, "draft": draft or target}
    is_cpu = bool(held.host["is_cpu"])
    name = target.name if draft is None else f"{target.name}+{draft.name}"
    start = Profile(
        schema=SCHEMA,
        name=f"{gpu.name}/{name}",
        gpu=gpu,
        target=target,
        draft=draft,
        kernels=start_constants(
            is_cpu, int(held.host["multiprocessors"]), str(held.options["attention"]), str(held.host["kv_layout"])
        ),
        host=host_costs(points, held.host, {role: shape.layers for role, shape in shapes.items()}),
        overlap=Overlap(),
        errors={},
        conditions=IN_A_LOOP,
        source=_source(points, str(held.options.get("target_weights", "random"))),
        fingerprint=held.fingerprint,
        date=str(held.host["date"]),
    )
    fitted = fit_passes(start, points)
    profile = fit_overlap(fitted, held.rates, cores=_cores(held.fingerprint) if is_cpu else None)
    if not held.serving:
        return profile
    return completed(profile, convert(held.serving, ServingCosts, "points file: serving"), is_cpu=is_cpu)


def refit(held: MeasuredSession, shipped: Profile) -> Profile:
    """`shipped`, made anew of its points file. Its phi stays, which is pooled over GPUs. So does its curve of shares of
    the multiprocessors, whose fit is in the history, and its source, which names clocks that are read no more."""
    fresh = profile_of(held, shipped.target, shipped.draft)
    overlap = msgspec.structs.replace(fresh.overlap, phi=shipped.overlap.phi, partition=shipped.overlap.partition)
    errors = fresh.errors | {kind: error for kind, error in shipped.errors.items() if kind not in fresh.errors}
    return msgspec.structs.replace(
        fresh, name=shipped.name, overlap=overlap, errors=errors, source=shipped.source, points=()
    )


def _cores(fingerprint: Mapping[str, str]) -> float:
    """Cores of a CPU per thread of a pass, at least 1."""
    threads = int(fingerprint.get("threads", 1))
    return max(1.0, int(fingerprint.get("cpu_cores", threads)) / threads)


def _source(points: Sequence[MeasuredPoint], weights: str) -> str:
    num_noisy = sum(point.is_noisy for point in points)
    return f"lanesim calibrate measure: {len(points)} passes of {weights} weights, {num_noisy} of them noisy"


def host_costs(points: Sequence[MeasuredPoint], measured: dict[str, Any], layers: Mapping[str, int]) -> HostCosts:
    """Host constants of points and of what `measured` holds. On a CPU issuing is executing, so launching is free."""
    eager = [point for point in points if point.launch == "eager"]
    graphed = [point for point in points if point.launch == "graphed"]
    kernels_per_layer = int(measured["kernels_per_layer"])
    is_cpu = bool(measured["is_cpu"])
    per_kernel = [
        point.host_s
        / ((point.tokens if point.kind == "draft" else 1) * (layers[point.model] * kernels_per_layer + HEAD_KERNELS))
        for point in eager
    ]
    largest = max((p.rows * (1 if p.kind == "draft" else p.tokens) for p in graphed), default=0)
    single = [point.host_s / (point.tokens if point.kind == "draft" else 1) for point in graphed]
    eager_factors = tuple(measured["inflation_eager"])
    return HostCosts(
        eager_kernel_s=0.0 if is_cpu or not per_kernel else round_constant(median(per_kernel)),
        graph_launch_s=round_constant(median(single)) if single else 0.0,
        kernels_per_layer=max(1, kernels_per_layer),
        max_graph_tokens=largest,
        graph_small_sizes=(1,),
        graph_size_step=1,
        result_s=0.0,
        engine=MEASURED_HERE,
        step_s=round_constant(measured["step_s"]),
        row_s=round_constant(measured["row_s"]),
        inflation_eager=eager_factors,
        inflation_graphed=tuple(measured.get("inflation_graphed", eager_factors)),
        source="measured here: step_s and row_s are the real passes' own bookkeeping, without any engine; "
        + (
            "on a CPU a pass runs while it is issued, so launching costs nothing beside it and the slowdown of several "
            "issuing threads contains their contention for cores"
            if is_cpu
            else "launch times of captured passes while their stream was held, of eager ones on an idle device"
        ),
    )
