"""Output of commands of this package: tables, and the profile's file. Heavy imports inside the functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.cli.console import claim
from sim.names import install_line

if TYPE_CHECKING:
    from sim.costs.profile import Profile
    from sim.metrics.compared import Compared


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
    kinds_by_reason: dict[str, list[str]] = {}
    rows = []
    for kind, error in profile.errors.items():
        kinds_by_reason.setdefault(error.held_out, []).append(kind)
        figures = ["–" if value is None else f"{value:.1f}" for value in (error.mean_error_pct, error.max_error_pct)]
        rows.append([kind, *figures, str(error.points)])
    reasons = (f"{', '.join(kinds)}: {reason}" for reason, kinds in kinds_by_reason.items())
    print_columns(f"{profile.name}: error of costs", ["kind"], ["mean %", "max %", "points"], rows, reasons)


def print_compared(
    title: str, headings: Sequence[str], rows: Iterable[tuple[Sequence[str], Compared]], lines: Iterable[str]
) -> None:
    """A table of what was measured beside what was simulated, each row with its texts under `headings`, the first of
    which may fold; `lines` below it."""
    from sim.report.tables import percent, significant

    print_columns(
        title,
        headings,
        ("real", "simulated", "error"),
        (
            (*texts, significant(each["real"]), significant(each["simulated"]), percent(each["error_pct"]))
            for texts, each in rows
        ),
        lines,
    )


def print_columns(
    title: str, left: Sequence[str], right: Sequence[str], rows: Iterable[Sequence[str]], lines: Iterable[str]
) -> None:
    """A table on the terminal with columns to the left, the first of which may fold, and to the right; `lines` below
    it."""
    from rich.console import Console

    from sim.report.tables import new_table, print_table

    console = Console(markup=False)
    look: dict[str, Any] = {"title": title, "title_justify": "left", "padding": (0, 1)}
    print_table(console, new_table(left, right, rows, fold=left[:1], **look))
    for line in lines:
        console.print(line, highlight=False)
