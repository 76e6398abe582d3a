"""`lanesim calibrate import vidur` and `import frontier`: tables that lack parts of a profile, which the shipped one
of the same GPU fills in.

Importing this module imports click alone. Not here: the imports themselves (importers).
"""

from __future__ import annotations

from pathlib import Path

import click

A_PATH = click.Path(path_type=Path)


@click.command(
    "vidur",
    epilog="Example: lanesim calibrate import vidur profiling/compute/a100/meta-llama/Llama-2-7b-hf/mlp.csv "
    "--gpu a100-sxm --target llama-2-7b --out p.json",
)
@click.argument("path", type=A_PATH)
@click.option("--gpu", required=True, help="GPU, such as a100-sxm: one with a shipped profile.")
@click.option("--target", required=True, help="The model of the file: a known name or a config.json.")
@click.option("--tp", default=1, show_default=True, help="Devices that share the model (tensor parallel).")
@click.option("--revision", default="unrecorded revision", help="Revision of the tables, for the record.")
@click.option("--out", type=A_PATH, required=True, help="Profile to write.")
def vidur_command(path: Path, gpu: str, target: str, tp: int, revision: str, out: Path) -> None:
    """Vidur's mlp.csv at PATH, or in a folder PATH: the layers without attention; attention, sampler and host are the
    shipped profile's. Other models' mlp.csv below PATH give the error with the target left out of the fit."""
    from calibrate.commands import check_out, needs_analysis, write
    from calibrate.shapes import source_of

    check_out(out)
    shape = source_of(target).shape
    try:
        from calibrate.importers.vidur import import_vidur

        profile = import_vidur(path, gpu, shape, tp, revision=revision)
    except ImportError as error:
        raise needs_analysis(error) from None
    write(profile, out)


@click.command(
    "frontier",
    epilog="Example: lanesim calibrate import frontier profiling/a800/meta-llama/Llama-2-7b-hf/attention.csv "
    "--gpu a800-sxm --target llama-2-7b --out p.json",
)
@click.argument("path", type=A_PATH)
@click.option("--gpu", required=True, help="GPU, such as a800-sxm: one like a GPU with a shipped profile.")
@click.option("--target", required=True, help="The model of the tables: a known name or a config.json.")
@click.option("--revision", default="unrecorded revision", help="Revision of the tables, for the record.")
@click.option("--out", type=A_PATH, required=True, help="Profile to write.")
def frontier_command(path: Path, gpu: str, target: str, revision: str, out: Path) -> None:
    """Frontier's attention*.csv at PATH, or in a folder PATH: decode rows and prompt chunks with history; GEMMs,
    element-wise kernels, sampler and host are the shipped profile's."""
    from calibrate.commands import check_out, needs_analysis, write
    from calibrate.shapes import source_of

    check_out(out)
    shape = source_of(target).shape
    try:
        from calibrate.importers.frontier import import_frontier

        profile = import_frontier(path, gpu, shape, revision=revision)
    except ImportError as error:
        raise needs_analysis(error) from None
    write(profile, out)
