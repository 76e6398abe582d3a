"""Writes docs/unprepared.md: deployments that nobody prepared, a profile and a comparison of each by two commands.

    python -m validation unprepared [--out docs/unprepared.md]

Seven models' config.json, typed in from their public shapes, on GPUs and in formats as they come; then models and
deployments that are refused, each with its line. Needs the kernel tables (`pip install 'lanesim[tables]'`). Fails where
a profile takes MAX_S of CPU or more, or where anything is refused that should not be.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import yaml

from validation.tables import markdown_table

PAGE = Path(__file__).parents[2] / "docs" / "unprepared.md"
ASKED = Path(__file__).with_suffix(".yaml")
MAX_S = 5.0
CONCURRENCIES = (4, 64)
RUN = "import sys; from sim.cli.main import main; sys.argv[0] = 'lanesim'; main()"


class Outcome(NamedTuple):
    code: int
    stdout: str
    stderr: str
    cpu_s: float


def lanesim(*arguments: str) -> Outcome:
    """The installed command, as a process of its own."""
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", RUN, *arguments], capture_output=True, text=True)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime
    return Outcome(done.returncode, done.stdout, done.stderr, cpu_s)


def import_profile(folder: Path, model: str, gpu: str, flags: str) -> tuple[Outcome, Path]:
    """The import of `model` by its config.json in the folder, and where its profile is."""
    out = folder / "imported" / f"{model}-{gpu}-{flags.replace(' ', '')}.json"
    arguments = ("--gpu", gpu, "--target", str(folder / f"{model}.json"), *flags.split(), "--out", str(out))
    return lanesim("calibrate", "import", "aiconfigurator", *arguments), out


def compared(profile: Path, concurrency: int) -> str:
    """Output tokens a second and mean TPOT of a closed loop."""
    result = lanesim(
        "compare", "--policy", "autoregressive", "--profile", str(profile), "--input-len", "1024", "--output-len",
        "256", "--request-rate", "inf", "--max-concurrency", str(concurrency), "--num-prompts", str(6 * concurrency),
        "--num-speculative-tokens", "0", "--json", "-",
    )  # fmt: skip
    if result.code:
        raise SystemExit(f"{profile.name}: {result.stderr}")
    run = json.loads(result.stdout)["runs"][0]
    return f"{run['output_throughput']:,.0f} tok/s, {run['mean_tpot_ms']:.1f} ms"


def made(folder: Path, model: str, gpu: str, flags: str) -> list[str]:
    """The table's line of one deployment."""
    outcome, path = import_profile(folder, model, gpu, flags)
    if outcome.code or outcome.cpu_s >= MAX_S:
        raise SystemExit(
            f"{model} {gpu} {flags}: {outcome.cpu_s:.1f} s of CPU, want less than {MAX_S:g}; {outcome.stderr}"
        )
    profile = json.loads(path.read_text())
    errors = profile["errors"]
    interpolation = ", ".join(f"{kind} {errors[kind]['mean_error_pct']:.1f}" for kind in ("body", "decode", "prefill"))
    notes = profile["source"].partition("not from the engine's own tables: ")[2] or "–"
    size = f"{len(path.read_bytes()) / 1024:.0f} kB"
    cells = [compared(path, concurrency) for concurrency in CONCURRENCIES]
    return [model, gpu, f"`{flags}`", size, interpolation, *cells, notes]


def refused(folder: Path, model: str, gpu: str, flags: str) -> list[str]:
    outcome, _ = import_profile(folder, model, gpu, flags)
    lines = outcome.stderr.strip().splitlines()
    if outcome.code != 2 or len(lines) != 1:
        raise SystemExit(f"{model} {gpu} {flags}: want exit code 2 and one line, got {outcome.code}: {outcome.stderr}")
    return [model, gpu, f"`{flags}`", lines[0].replace(f"{folder}/", "")]


def page(folder: Path) -> str:
    asked = yaml.safe_load(ASKED.read_text())
    for model, config in asked["models"].items():
        (folder / f"{model}.json").write_text(json.dumps(config))
    (folder / "imported").mkdir()
    titles = ["model", "GPU", "flags", "profile", "interpolation error, %"]
    titles += [f"compare at {concurrency}" for concurrency in CONCURRENCIES]
    titles.append("what stands in where vLLM has no table")
    tables = [[of(folder, *each) for each in asked[of.__name__]] for of in (made, refused)]
    return f"{HEAD}\n{markdown_table(titles, tables[0], left=len(titles))}\n{REFUSALS}\n" + markdown_table(
        ["model", "GPU", "flags", "message"], tables[1], left=4
    )


HEAD = f"""# Deployments that nobody prepared

Can you simulate a model that nobody has prepared? Here are twelve deployments of seven models, made from nothing but a
config.json that was typed in from the model's public shape. Each took two commands:

    lanesim calibrate import aiconfigurator --gpu GPU --target CONFIG.json ... --out p.json
    lanesim compare --policy autoregressive --profile p.json --input-len 1024 --output-len 256 --request-rate inf \\
        --max-concurrency C --num-speculative-tokens 0

The error in the table is that of interpolation between the points of the kernel tables. How right the tables are is
known from served cells (ADR 018): TPOT within 6 % for dense models under vLLM, within 12 % for mixtures of experts.
Generated by `python -m validation unprepared`, which stops if a profile takes {MAX_S:g} s of CPU or more.
"""
REFUSALS = """## Refused, with the reason
"""


def main(out: Path = PAGE) -> None:
    with tempfile.TemporaryDirectory() as folder:
        out.write_text(page(Path(folder)))
