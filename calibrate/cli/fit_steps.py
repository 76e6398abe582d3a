"""`lanesim calibrate fit-steps`: constants of a served GPU from an engine's steps by batch tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from calibrate.cli.profile_output import A_PATH, check_out, needs_analysis, write
from sim.cli.lazy import SOURCE
from sim.cli.options import OVERWRITE

if TYPE_CHECKING:
    from calibrate.fit.step_times import StepFit
    from sim.files.json_values import Json


@click.command(
    "fit-steps",
    epilog="Example: lanesim calibrate fit-steps steps.csv --profile h100-sxm/llama-3.1-8b --out served.json",
)
@click.argument("path", metavar="CURVE.csv", type=A_PATH)
@click.option("--profile", "name", required=True, help="Profile of that GPU and model to start from: a name or a path.")
@click.option("--source", default=None, help="Where the curve comes from, for the record [its file's name].")
@click.option("--json", "json_path", default=None, metavar="FILE", help="Write the fit as JSON; - = stdout.")
@OVERWRITE
@click.option("--out", type=A_PATH, required=True, help="Profile to write.")
def fit_steps_command(path: Path, name: str, source: str | None, json_path: str | None, out: Path) -> None:
    """Fit a profile's roofs, sharpness and launch to CURVE.csv, steps of a serving engine.

    Columns: batch_tokens, step_ms: one forward pass over so many tokens with short contexts, without LM head and
    drafts, as engines time it when they profile themselves. What the fitted law misses is kept as a ratio by tokens.
    """
    from calibrate.fit.step_times import fit_steps, read_curve
    from sim.cli.console import write_json
    from sim.costs.profile_files import load

    check_out(out, [path, name], json_path=json_path)
    click.get_current_context().meta[SOURCE] = str(path)
    profile, curve = load(name), read_curve(path)
    try:
        fit = fit_steps(profile, curve, source or path.name)
    except ImportError as error:
        raise needs_analysis(error) from None
    if write_json(json_path, _plain(fit)):
        _print(fit)
        write(fit.profile, out)
    else:
        from sim.costs.profile_files import save_profile

        save_profile(fit.profile, out)


def _plain(fit: StepFit) -> dict[str, Json]:
    """What `--json` holds."""
    return {
        "profile": fit.profile.name,
        "constants": {
            name: {"value": each.value, "half_width": each.half_width} for name, each in fit.constants.items()
        },
        "piecewise_launch_s": fit.piecewise_launch_s,
        "steps": [
            {
                "tokens": step.tokens,
                "measured_s": step.seconds,
                "law_s": step.law_s,
                "is_launch": step.is_launch,
                "predicted_s": step.predicted_s,
                "left_out_s": step.left_out_s,
            }
            for step in fit.steps
        ],
        "notes": list(fit.notes),
    }


def _print(fit: StepFit) -> None:
    from calibrate.judge.validation_output import print_columns

    rows = []
    for step in fit.steps:
        left_out = ("–", "–") if step.left_out_s is None else _against(step.left_out_s, step.seconds)
        law = ("launch", "–") if step.is_launch else _against(step.law_s, step.seconds)
        rows.append([str(step.tokens), f"{1e3 * step.seconds:.3f}", *law, *left_out])
    lines = []
    for name, each in fit.constants.items():
        scale, unit = (1e3, " ms") if name.endswith("_s") else (1.0, "")
        lines.append(f"{name}: {scale * each.value:.4g} ± {scale * each.half_width:.2g}{unit}")
    lines.append(f"a captured pass beside prompt chunks: at least {1e3 * fit.piecewise_launch_s:.3g} ms to launch")
    headings = ["tokens", "measured", "law", "error", "without its ratio", "error"]
    title = f"{fit.profile.name}: steps of a served GPU, ms"
    print_columns(title, [], headings, rows, [*lines, *fit.notes])


def _against(predicted_s: float, seconds: float) -> tuple[str, str]:
    return f"{1e3 * predicted_s:.3f}", f"{100.0 * (predicted_s / seconds - 1.0):+.1f} %"
