"""How wrong a profile is: its own held-out errors, or its constants against other measurements.

Against a points file or a measured profile, of these models or of others, every pass there is compared; against
published kernel tables, GEMMs, attention and the passes composed of them.
Not here: drawing (calibrate.judge.profile_figure), fitting (calibrate.fit).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from calibrate.fit.fit_errors import Check, compare_points, summary
from calibrate.judge.published_constants import check_tables
from calibrate.points.points_file import MAY_CHANGE, read
from sim.costs.compact_kernels import CompactKernels
from sim.costs.profile import KindError, MeasuredPoint, Profile
from sim.costs.profile_files import load
from sim.files.json_values import Json


def check(profile: Profile, against: Path | None = None) -> Check:
    """Raises ValueError where `against` holds nothing that this profile can be compared with."""
    if against is None:
        held_out = [point for point in profile.points if point.is_held_out]
        return Check(profile.errors, compare_points(profile, held_out))
    if against.is_dir():
        return check_tables(profile, against)
    profile, points, how = _other(profile, against)
    used = [point for point in points if point.model == "target" or profile.draft is not None]
    if not used:
        raise ValueError(f"{str(against)!r} holds no points to compare {profile.name!r} with")
    comparisons = compare_points(profile, used)
    return Check(summary(comparisons, how), comparisons)


def _other(profile: Profile, against: Path) -> tuple[Profile, Sequence[MeasuredPoint], str]:
    """`profile` as it predicts the models of `against`, the points there, and what that error is one of.

    Another model's measured profile judges the constants on a model that their fit never saw.
    """
    how = f"points of {against.name}, all of them"
    if against.suffix == ".jsonl":
        held = read(against)
        for role, shape in (("target", profile.target), ("draft", profile.draft)):
            theirs = held.options.get(role)
            if theirs is not None and shape is not None and theirs != shape.name:
                raise ValueError(
                    f"{str(against)!r} was measured with {role} {theirs!r}, profile {profile.name!r} has "
                    f"{shape.name!r}; give the measured profile (.json), which has that model's dimensions"
                )
        return profile, held.points, how
    other = load(against)
    if not other.points:
        raise ValueError(f"profile {str(against)!r} carries no points; want one that `lanesim calibrate measure` wrote")
    if other.gpu.name != profile.gpu.name:
        raise ValueError(
            f"{str(against)!r} was measured on {other.gpu.name!r}, {profile.name!r} is of {profile.gpu.name!r}"
        )
    differs = _machines_differ(profile, other)
    how += f"; measured on another machine ({differs})" if differs else ""
    has_same_draft = other.draft == profile.draft or None in (other.draft, profile.draft)
    if other.target == profile.target and has_same_draft:
        return profile, other.points, how
    if not isinstance(profile.kernels, CompactKernels):
        raise ValueError(f"profile {profile.name!r} is a table of its own model's points; want constants (compact)")
    names = " and ".join(shape.name for shape in other.models if shape not in profile.models)
    how += f"; {names} left out of the fit, constants of {profile.name}"
    return msgspec.structs.replace(profile, target=other.target, draft=other.draft), other.points, how


def _machines_differ(profile: Profile, other: Profile) -> str:
    """The first difference of two fingerprints; empty where there is none, or one profile was not measured."""
    if profile.fingerprint is None or other.fingerprint is None:
        return ""
    for key in sorted({*profile.fingerprint, *other.fingerprint}):
        theirs, ours = other.fingerprint.get(key), profile.fingerprint.get(key)
        if theirs != ours and not key.startswith(MAY_CHANGE):
            return f"{key} {theirs}, not {ours}"
    return ""


def check_json(profile: Profile, errors: dict[str, KindError], against: str | None) -> dict[str, Json]:
    """The machine-readable result (design, section 10)."""
    kinds = {
        kind: {
            "mean_error_pct": error.mean_error_pct,
            "max_error_pct": error.max_error_pct,
            "points": error.points,
            "held_out": error.held_out,
        }
        for kind, error in errors.items()
    }
    return {"schema": 1, "profile": profile.name, "against": against, "kinds": kinds}
