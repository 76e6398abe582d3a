"""`lanesim calibrate`: measure, import published tables, check a profile, derive one from another.

Mounted through the entry-point group `lanesim.commands`; importing this module imports click alone.
Not here: what the sub-commands do.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from calibrate.measure_command import measure_command
from calibrate.time_stats_commands import frontier_command, vidur_command

if TYPE_CHECKING:
    from sim.costs.profile import KindError, Profile

A_PATH = click.Path(path_type=Path)
IMPORT_EXAMPLE = (
    "Example: lanesim calibrate import aiconfigurator systems/ --gpu h100-sxm --target llama-3.1-8b --out p.json"
)
PAIR = "h100-sxm/llama-3.1-8b+llama-3.2-1b"
GAP_OPTION = click.option(
    "--gap-ms",
    type=float,
    default=None,
    help="Device time of every target pass beyond its kernels; default: the engine's, 0 where it was not measured.",
)


@click.group(
    "calibrate", epilog="Example: lanesim calibrate derive --from h100-sxm/llama-2-7b --gpu h200-sxm --out p.json"
)
def calibrate_command() -> None:
    """Cost profiles: measure, import, derive, check."""


calibrate_command.add_command(measure_command)


@calibrate_command.group(
    "import",
    epilog=IMPORT_EXAMPLE,
)
def import_group() -> None:
    """Make a profile from published kernel tables."""


import_group.add_command(vidur_command)
import_group.add_command(frontier_command)


@import_group.command(
    "aiconfigurator",
    epilog=IMPORT_EXAMPLE,
)
@click.argument("path", type=A_PATH)
@click.option("--gpu", required=True, help="GPU, such as h100-sxm.")
@click.option("--target", required=True, help="Target model: a known name or a config.json.")
@click.option("--draft", default=None, help="Draft model, likewise.")
@click.option("--tp", default=1, show_default=True, help="Devices that share the models (tensor parallel).")
@click.option(
    "--form",
    type=click.Choice(["compact", "table"]),
    default="compact",
    show_default=True,
    help="Fitted constants, or the models' own measured points.",
)
@GAP_OPTION
@click.option("--revision", default="unrecorded revision", help="Revision of the tables, for the record.")
@click.option("--out", type=A_PATH, required=True, help="Profile to write.")
def aiconfigurator_command(
    path: Path,
    gpu: str,
    target: str,
    draft: str | None,
    tp: int,
    form: Literal["compact", "table"],
    gap_ms: float | None,
    revision: str,
    out: Path,
) -> None:
    """NVIDIA aiconfigurator's tables below PATH, which holds GPU folders and their YAML datasheets."""
    from calibrate.shapes import shapes_of

    check_out(out)
    shapes = shapes_of(target, draft)
    try:
        from calibrate.importers.aiconfigurator import import_aiconfigurator

        profile = import_aiconfigurator(
            path, gpu, shapes[0], shapes[1], tp, revision=revision, form=form, gap_s=_gap_s(gap_ms)
        )
    except ImportError as error:
        raise needs_analysis(error) from None
    except OSError as error:
        raise ValueError(f"{path}: a table cannot be read: {error}") from error
    write(profile, out)


@import_group.command(
    "llmservingsim",
    epilog="Example: lanesim calibrate import llmservingsim perf/RTX4090/meta-llama/Llama-3.1-8B/bf16/tp1 "
    "--gpu rtx-4090 --target llama-3.1-8b --out p.json",
)
@click.argument("path", type=A_PATH)
@click.option("--gpu", required=True, help="GPU, such as rtx-4090.")
@click.option("--target", required=True, help="The model of the tables: a known name or a config.json.")
@click.option(
    "--draft", default=None, help="Draft model, likewise, with --draft-path; or eagle3, the target's own head."
)
@click.option("--draft-path", type=A_PATH, default=None, help="The draft's folder of tables, same GPU and degree.")
@click.option("--tp", default=1, show_default=True, help="Devices that share the models: PATH's own degree, tpN.")
@click.option(
    "--form",
    type=click.Choice(["table", "compact"]),
    default="table",
    show_default=True,
    help="The model's own measured points, or constants fitted to them.",
)
@click.option("--engine-version", default=None, help="vLLM version of all-reduces and gap; default: PATH's meta.yaml.")
@GAP_OPTION
@click.option("--revision", default="unrecorded revision", help="Revision of the tables, for the record.")
@click.option("--out", type=A_PATH, required=True, help="Profile to write.")
def llmservingsim_command(
    path: Path,
    gpu: str,
    target: str,
    draft: str | None,
    draft_path: Path | None,
    tp: int,
    form: Literal["table", "compact"],
    engine_version: str | None,
    gap_ms: float | None,
    revision: str,
    out: Path,
) -> None:
    """LLMServingSim's dense, per_sequence and attention tables in PATH, the folder of one GPU, model and degree."""
    from calibrate.shapes import shapes_of

    check_out(out)
    target_shape, draft_shape = shapes_of(target, draft)
    try:
        from calibrate.importers.llmservingsim import import_llmservingsim

        profile = import_llmservingsim(
            path,
            gpu,
            target_shape,
            draft_shape,
            tp,
            draft_path=draft_path,
            revision=revision,
            form=form,
            engine_version=engine_version,
            gap_s=_gap_s(gap_ms),
        )
    except ImportError as error:
        raise needs_analysis(error) from None
    write(profile, out)


def _gap_s(gap_ms: float | None) -> float | None:
    """Raises ValueError for what is no time."""
    if gap_ms is None:
        return None
    if not 0.0 <= gap_ms < float("inf"):
        raise ValueError(f"--gap-ms {gap_ms:g} must be finite and not negative")
    return 1e-3 * gap_ms


@calibrate_command.command(
    "derive", epilog="Example: lanesim calibrate derive --from h100-sxm/llama-2-7b --gpu h200-sxm --out p.json"
)
@click.option("--from", "origin", required=True, help="Profile to start from: a name or a path.")
@click.option("--gpu", required=True, help="GPU of the same family, such as h200-sxm.")
@click.option("--out", type=A_PATH, required=True, help="Profile to write.")
def derive_command(origin: str, gpu: str, out: Path) -> None:
    """Transfer a profile to another GPU of its family by their datasheets; the result is marked as not measured."""
    from calibrate.derive import derive
    from sim.costs import load

    check_out(out)
    write(derive(load(origin), gpu), out)


@calibrate_command.command("check", epilog=f"Example: lanesim calibrate check {PAIR}")
@click.argument("profile")
@click.option(
    "--against",
    type=A_PATH,
    default=None,
    help="Measured profile, points file (.jsonl) or folder of aiconfigurator tables; default: its held-out errors.",
)
@click.option("--json", "json_path", default=None, metavar="FILE", help="Write the result as JSON; - = stdout.")
@click.option("--out", type=A_PATH, default=None, help="Directory for the figure check.png.")
def check_command(profile: str, against: Path | None, json_path: str | None, out: Path | None) -> None:
    """Error of PROFILE (a name or a path) per kind: a table, and a figure of measured against fitted."""
    from calibrate.check import check, check_json
    from sim.costs import load

    loaded = load(profile)
    if against is not None and not against.exists():
        raise ValueError(f"--against {str(against)!r} does not exist")
    errors, comparisons = check(loaded, against)
    if out is not None and not comparisons:
        raise ValueError(
            f"--out draws measured points and profile {loaded.name!r} carries none; add --against PATH with some"
        )
    if json_path is not None:
        from sim.results import to_json, write_atomically

        text = to_json(check_json(loaded, errors, against.name if against is not None else None))
        if json_path == "-":
            sys.stdout.write(text)
        else:
            write_atomically(Path(json_path), text)
    if out is not None:
        from calibrate.figures import draw_check

        out.mkdir(parents=True, exist_ok=True)
        draw_check(out / "check.png", loaded, comparisons)
    if json_path != "-":
        _print_errors(loaded, errors)


def needs_analysis(error: ImportError) -> ValueError:
    """What to say where the libraries that read tables are not installed."""
    return ValueError(f"importing tables needs the analysis extra: pip install 'lanesim[analysis]' ({error})")


def check_out(out: Path) -> None:
    """Raise ValueError before any work where `out` cannot be a profile file."""
    if out.suffix != ".json":
        raise ValueError(f"--out {str(out)!r} must end with .json: profiles are found by it")
    if out.is_dir():
        raise ValueError(f"--out {str(out)!r} is a directory; want a file")


def write(profile: Profile, out: Path) -> None:
    """Write the profile, whole or not at all, and print its errors."""
    from sim.costs.profile_files import encode
    from sim.results import write_atomically

    write_atomically(out, encode(profile).decode())
    _print_errors(profile, profile.errors)
    print(f"profile {profile.name} in {out}")


def _print_errors(profile: Profile, errors: dict[str, KindError]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, title=f"{profile.name}: error of costs", title_justify="left")
    table.add_column("kind", no_wrap=True)
    for title in ("mean %", "max %", "points"):
        table.add_column(title, justify="right", no_wrap=True)
    kinds_by_reason: dict[str, list[str]] = {}
    for kind, error in errors.items():
        kinds_by_reason.setdefault(error.held_out, []).append(kind)
        figures = ["–" if value is None else f"{value:.1f}" for value in (error.mean_error_pct, error.max_error_pct)]
        table.add_row(kind, *figures, str(error.points))
    console = Console()
    console.print(table)
    for reason, kinds in kinds_by_reason.items():
        console.print(f"{', '.join(kinds)}: {reason}", style="dim", highlight=False)
