"""`lanesim calibrate production`: constants and acceptance from what a running server exports. No GPU needed here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from calibrate.cli.profile_output import A_PATH, check_out
from sim.cli.options import DRAFT_TOKENS, OVERWRITE, SECONDS, TOKENS

if TYPE_CHECKING:
    from calibrate.production.engine_fit import Production
    from calibrate.production.levels import Served
    from sim.files.json_values import Json

EXAMPLE = (
    "\b\nExample:\n  lanesim calibrate production --bench-json c8.json --bench-json c32.json \\\n"
    "    --profile h100-sxm/llama-3.1-8b --out mine.json"
)


class ProductionFlags(TypedDict):
    """Flags about the sources and the fit, by parameter."""

    metrics_before: Path | None
    metrics_after: Path | None
    duration_s: float | None
    bench_json: tuple[Path, ...]
    log_path: Path | None
    input_len: int | None
    output_len: int | None
    num_speculative_tokens: int | None
    engine_name: str | None
    constants: str | None


@click.command("production", epilog=EXAMPLE)
@click.option("--metrics-before", type=A_PATH, default=None, help="A saved look at /metrics.")
@click.option("--metrics-after", type=A_PATH, default=None, help="Another, later one of the same server.")
@click.option(
    "--duration-s", type=SECONDS, default=None, help="Seconds between the looks; where the server counts no steps."
)
@click.option(
    "--bench-json",
    type=A_PATH,
    multiple=True,
    help="Result of `vllm bench serve --save-result`, GuideLLM, AIPerf or inference-perf; repeat.",
)
@click.option("--log", "log_path", type=A_PATH, default=None, help="The server's log; with --input-len, --output-len.")
@click.option("--input-len", type=TOKENS, default=None, help="Mean prompt tokens of what the log saw.")
@click.option(
    "--output-len", type=click.IntRange(2, TOKENS.max), default=None, help="Mean output tokens of what the log saw."
)
@click.option("--num-speculative-tokens", type=DRAFT_TOKENS, default=None, help="Where the source has no rates.")
@click.option("--profile", "profile_name", required=True, help="Profile of the GPU and models: a name or a path.")
@click.option("--engine", "engine_name", default=None, help="Engine to start from [as in compare].")
@click.option(
    "--constants",
    default=None,
    help="step_s,row_s,draft_pass_s,draft_phase_s,gap_s,frontend_s [those that the levels can tell].",
)
@click.option("--out", type=A_PATH, default=None, help="Profile to write, with the server's constants as its own.")
@click.option("--json", "json_path", default=None, metavar="FILE", help="Write the result as JSON; - = stdout.")
@OVERWRITE
def production_command(
    profile_name: str, out: Path | None, json_path: str | None, **flags: Unpack[ProductionFlags]
) -> None:
    """Fit the engine's constants and read the acceptance from a server that runs: two looks at /metrics, results of its
    benchmark, or its log. Each source is one or more levels of load; each level is predicted from the others, too."""
    from calibrate.judge.cells import Setup
    from calibrate.production.engine_fit import fit_served
    from sim.cli.console import progress, write_json
    from sim.costs.profile_files import load

    paths = [flags["metrics_before"], flags["metrics_after"], *flags["bench_json"], flags["log_path"], profile_name]
    check_out(out, paths, json_path=json_path)
    duration_s = flags["duration_s"]
    if duration_s is not None and not 0.0 < duration_s < float("inf"):
        raise ValueError(f"--duration-s {duration_s:g} must be positive and finite")
    served = read_served(flags)
    profile = load(profile_name)
    constants = None if flags["constants"] is None else flags["constants"].split(",")
    engine = {} if flags["engine_name"] is None else {"name": flags["engine_name"]}
    with progress() as on_step:
        on_step("fitting", 0, 1)
        found = fit_served(profile, served, Setup(engine=engine), constants)
    if out is not None:
        from calibrate.cli.profile_output import write

        write(found.profile, out)
    if write_json(json_path, plain(found)):
        show(found)


def read_served(flags: ProductionFlags) -> list[Served]:
    """The levels of all sources. Raises ValueError where there is none, or one lacks what it needs."""
    from calibrate.production.level_files import levels, read_bench
    from calibrate.production.metrics import between

    before, after, log_path = flags["metrics_before"], flags["metrics_after"], flags["log_path"]
    if (before is None) != (after is None):
        raise ValueError(
            "--metrics-before and --metrics-after belong together: one look says nothing of the time between"
        )
    num_tokens = flags["num_speculative_tokens"]
    served = [level for path in flags["bench_json"] for level in read_bench(path, num_speculative_tokens=num_tokens)]
    if before is not None and after is not None:
        served.append(between(before, after, duration_s=flags["duration_s"]))
    if log_path is not None:
        if flags["input_len"] is None or flags["output_len"] is None:
            raise ValueError("--log does not tell how long requests are: add --input-len and --output-len")
        served += levels(
            log_path,
            prompt_tokens=flags["input_len"],
            output_tokens=flags["output_len"],
            num_speculative_tokens=num_tokens,
        )
    if not served:
        raise ValueError("nothing to read: give --metrics-before and --metrics-after, --bench-json, or --log")
    return served


def plain(found: Production) -> dict[str, Json]:
    """What was found, as `--json` writes it."""
    return {
        "constants": [
            {"constant": name, "value_s": value_s, "half_width_s": fit.half_widths_s[name], "is_told": fit.told[name]}
            for fit in found.fits
            for name, value_s in fit.values_s.items()
        ],
        "unfitted": dict(found.unfitted),
        "error_pct": found.fits[0].error_pct,
        "acceptance": None if found.accepted is None else found.accepted.quote,
        "acceptance_length": None if found.accepted is None else found.accepted.length,
        "levels": [
            {
                "source": level.served.source,
                "concurrency": level.served.concurrency,
                "input_len": level.served.prompt_tokens,
                "output_len": level.served.output_tokens,
                "errors_pct": level.errors_pct,
                "left_out_error_pct": level.predicted_pct.get(level.fitted_metric),
                "left_out_errors_pct": level.predicted_pct or None,
            }
            for level in found.levels
        ],
    }


def show(found: Production) -> None:
    """Constants, acceptance, and the error left at each level."""
    from calibrate.judge.validation_output import print_columns

    rows = [
        [
            level.served.source,
            f"{level.served.concurrency:.1f}",
            f"{level.served.prompt_tokens:.0f}",
            f"{level.served.output_tokens:.0f}",
            _signed(level.errors_pct),
            _signed(level.predicted_pct) or "–",
        ]
        for level in found.levels
    ]
    lines = list(map(str, found.fits))
    if found.unfitted:
        names_by_reason: dict[str, list[str]] = {}
        for name, reason in found.unfitted.items():
            names_by_reason.setdefault(reason, []).append(name)
        why = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in names_by_reason.items())
        lines.append(f"left as they were: {why}")
    if found.accepted is not None:
        lines.append(f"acceptance: --acceptance {found.accepted.quote}")
    headings = ["in flight", "prompt", "output", "errors left %", "predicted from the others %"]
    print_columns("levels of load, simulated with the fitted constants", ["source"], headings, rows, lines)


def _signed(errors_pct: dict[str, float]) -> str:
    return ", ".join(f"{name} {error:+.1f}" for name, error in errors_pct.items())
