"""Output of `lanesim calibrate`: the profile's file and words on it. Heavy imports inside the functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sim.cli.console import claim
from sim.names import install_line

if TYPE_CHECKING:
    from sim.costs.profile import Profile


def needs_analysis(error: ImportError) -> ValueError:
    """Refusal that names the extra, in case the libraries that read tables are not installed."""
    return ValueError(f"importing tables needs other packages: {install_line('analysis')} ({error})")


def check_out(
    out: Path | None,
    inputs: Iterable[str | Path | None] = (),
    *,
    json_path: str | None = None,
    others: Mapping[str, Path | None] = {},
) -> None:
    """Hold `out`, `json_path` and `others`, by their flags, until the command ends. Raises ValueError, before any work,
    where the first cannot be a profile file, or one is among the `inputs` or is another."""
    if out is not None and out.suffix != ".json":
        raise ValueError(f"--out {str(out)!r} must end with .json: profiles are known by it")
    claim(files={"--out": out, "--json": json_path, **others}, inputs=inputs)


def write(profile: Profile, out: Path) -> None:
    """Save the profile and print its errors."""
    save(profile, out)
    print_saved(profile, out)


def save(profile: Profile, out: Path) -> None:
    """Write the profile, whole or not at all. Raises ValueError, and writes nothing, where every command would refuse
    the file."""
    from sim.costs.forms.physics import check_physics
    from sim.costs.profile_files import save_profile

    check_physics(profile)
    save_profile(profile, out)


def print_saved(profile: Profile, out: Path) -> None:
    print_errors(profile)
    print(f"profile {profile.name} in {out}")


def print_errors(profile: Profile) -> None:
    from calibrate.judge.validation_output import print_columns

    kinds_by_reason: dict[str, list[str]] = {}
    rows = []
    for kind, error in profile.errors.items():
        kinds_by_reason.setdefault(error.held_out, []).append(kind)
        figures = ["–" if value is None else f"{value:.1f}" for value in (error.mean_error_pct, error.max_error_pct)]
        rows.append([kind, *figures, str(error.points)])
    reasons = (f"{', '.join(kinds)}: {reason}" for reason, kinds in kinds_by_reason.items())
    print_columns(f"{profile.name}: error of costs", ["kind"], ["mean %", "max %", "points"], rows, reasons)
