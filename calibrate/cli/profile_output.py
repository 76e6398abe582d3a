"""Output of commands of this package: tables, and the profile's file. Heavy imports inside the functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sim.cli.console import claim
from sim.names import install_line

if TYPE_CHECKING:
    from rich.table import Table

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
    """Name and errors of a profile that was written."""
    from sim.report.said import SURE
    from sim.report.tables import new_table

    reasons = dict.fromkeys(error.held_out for error in profile.errors.values())
    rows = []
    for kind, error in profile.errors.items():
        figures = ["–" if value is None else f"{value:.1f}" for value in (error.mean_error_pct, error.max_error_pct)]
        rows.append([kind, *figures, str(error.points)])
    doubt = f"{'. '.join(reasons)}." if len(reasons) == 1 else "Errors are of measurements that the fit did not use."
    table = new_table(["error of GPU times"], ["mean %", "max %", "points"], rows, padding=(0, 1))
    more = f"lanesim profiles show {out}"
    print_answer(f"{profile.name} is in {out}.", [("", table)], [(SURE, doubt)], more)


def print_answer(
    answer: str, tables: Sequence[tuple[str, Table]], lines: Iterable[tuple[str, str]], more: str = ""
) -> None:
    """Print an answer of this package, whose texts have no markup."""
    from rich.console import Console

    from sim.report.said import IN_JSON, Said, print_said

    print_said(Console(markup=False), Said(answer, tables, list(lines), more=more or IN_JSON))


def compared_table(headings: Sequence[str], rows: Iterable[tuple[Sequence[str], Compared]]) -> Table:
    """What was measured beside what was simulated, each row with its texts under `headings`, the first of which may
    fold."""
    from sim.report.tables import new_table, number, percent

    cells = [
        (*texts, number(each["real"]), number(each["simulated"]), percent(each["error_pct"])) for texts, each in rows
    ]
    return new_table(headings, ("measured", "simulated", "error"), cells, fold=headings[:1], padding=(0, 1, 0, 0))
