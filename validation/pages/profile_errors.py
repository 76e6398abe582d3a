"""Error of a profile on its held-out points, per kind: a table, JSON and a figure of measured against fitted.

    python -m validation profile_errors h100-sxm/llama-3.1-8b+llama-3.2-1b --json errors.json --out folder

Not here: how a fit leaves points out (calibrate.measure.fits.pass_fit).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from calibrate.cli.profile_output import print_errors
from calibrate.fit.fit_errors import PointError, compare_points
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.files.write import write_figure, write_text
from sim.report.pictures.panels import DPI, set_log_scale, set_theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIGURE = "check.png"
PANEL = (3.4, 3.0)
"""Width and height of one panel, inches."""
MEASURED, FITTED, ROOF = "#4c72b0", "#c44e52", "#555555"
RATIO_SPAN = (0.5, 2.0)


def main(profile: str, json: Path | None = None, out: Path | None = None) -> int:
    """`json`: a file for `kinds.{...}.{mean_error_pct,max_error_pct,points,held_out}`; `out`: a folder for the figure.
    Raises ValueError where a figure is wanted of a profile that carries no points."""
    loaded = load(profile)
    if json is not None:
        kinds = {kind: msgspec.to_builtins(error) for kind, error in loaded.errors.items()}
        content = {"schema": 1, "profile": loaded.name, "kinds": kinds}
        write_text(json, msgspec.json.format(msgspec.json.encode(content), indent=1).decode() + "\n")
    if out is not None:
        comparisons = compare_points(loaded, [point for point in loaded.points if point.is_held_out])
        if not comparisons:
            raise ValueError(f"--out draws measured points and profile {loaded.name!r} carries none")
        draw(out / FIGURE, loaded, comparisons)
    print_errors(loaded)
    return 0


def draw(path: Path, profile: Profile, comparisons: Sequence[PointError]) -> None:
    """Writes `path`. Above: achieved FLOP/s by arithmetic intensity, measured and fitted, with the compute and the
    bandwidth roof; below: fitted over measured by duration. Raises ValueError without the plotting libraries."""
    set_theme(font_scale=0.75)
    import matplotlib.pyplot as plt

    kinds = list(dict.fromkeys(comparison.kind for comparison in comparisons))
    size = (PANEL[0] * len(kinds), 2 * PANEL[1])
    figure, axes = plt.subplots(2, len(kinds), figsize=size, squeeze=False, sharey="row", layout="constrained")
    for column, kind in enumerate(kinds):
        of_kind = [comparison for comparison in comparisons if comparison.kind == kind]
        _draw_roofs(axes[0][column], profile, of_kind, comparisons)
        _draw_ratio(axes[1][column], of_kind)
        axes[0][column].set_title(f"{kind} ({len(of_kind)} points)")
    axes[0][0].set_ylabel("FLOP/s")
    axes[1][0].set_ylabel("fitted / measured")
    axes[0][0].legend(loc="lower right", frameon=True)
    figure.suptitle(f"{profile.name}\nmeasured and fitted, {profile.gpu.name} roofs", fontsize="medium")
    write_figure(path, lambda scratch: figure.savefig(scratch, dpi=DPI))
    plt.close(figure)


def _draw_roofs(axis: Axes, profile: Profile, of_kind: Sequence[PointError], everything: Sequence[PointError]) -> None:
    intensities = np.array([comparison.flops / comparison.num_bytes for comparison in everything])
    span = np.geomspace(0.5 * intensities.min(), 2.0 * intensities.max(), 100)
    axis.plot(span, span * profile.gpu.bandwidth_bytes_per_s, color=ROOF, linewidth=1, label="bandwidth roof")
    axis.axhline(profile.gpu.peak_flops, color=ROOF, linewidth=1, linestyle="--", label="compute roof")
    intensity = [comparison.flops / comparison.num_bytes for comparison in of_kind]
    measured = [comparison.flops / comparison.measured_s for comparison in of_kind]
    fitted = [comparison.flops / comparison.fitted_s for comparison in of_kind]
    axis.scatter(intensity, measured, s=18, color=MEASURED, label="measured")
    axis.scatter(intensity, fitted, s=18, color=FITTED, marker="x", linewidth=1, label="fitted")
    set_log_scale(axis, "x")
    set_log_scale(axis, "y")
    axis.set_ylim(top=3.0 * profile.gpu.peak_flops)
    axis.set_xlabel("FLOP per byte")


def _draw_ratio(axis: Axes, of_kind: Sequence[PointError]) -> None:
    measured_ms = [1e3 * comparison.measured_s for comparison in of_kind]
    ratio = np.clip([comparison.fitted_s / comparison.measured_s for comparison in of_kind], *RATIO_SPAN)
    axis.axhspan(0.9, 1.1, color="#dddddd", zorder=0)
    axis.axhline(1.0, color=ROOF, linewidth=1)
    axis.scatter(measured_ms, ratio, s=18, color=FITTED)
    set_log_scale(axis, "x")
    axis.set_yscale("log")
    axis.set_ylim(*RATIO_SPAN)
    ticks = (0.5, 0.7, 0.9, 1.0, 1.1, 1.4, 2.0)
    axis.set_yticks(ticks, [str(tick) for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel("measured (ms)")
