"""`lanesim calibrate import`: profiles from published tables, and from what vLLM measured.

`lanesim calibrate cases` prints the commands of such a measurement. Importing this module imports click alone.
Not here: the import itself, and which passes are timed (calibrate.importers).
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import click
from msgspec import Meta, Struct

from calibrate.cli.profile_output import check_out, needs_analysis, write
from sim.cli.flags import ARGUMENT, DraftTokens, Overwrite, command
from sim.cli.lazy import SOURCE
from sim.model_names import DEGREE

TABLE_ENGINES = ("vllm", "sglang", "trtllm")
SOURCE_NAME, FORWARD = "aiconfigurator", "vllm-forward"
EXAMPLE = "lanesim calibrate import aiconfigurator --gpu h200-sxm --target llama-3.1-8b-fp8 --out p.json"


CASES_EXAMPLE = (
    "lanesim calibrate cases meta-llama/Llama-3.1-8B-Instruct --gpu h100-sxm \\\n"
    "    --draft yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"
)
MODEL_LEN, MOST = 4400, 7
"""Tokens of the longest case with room for drafts, and of the longest verify."""
METHODS = ("eagle3", "eagle", "mtp", "dspark", "dflash")
"""Drafters that vLLM 0.33 can time."""


class ImportFlags(Struct, frozen=True, kw_only=True):
    """Flags of `lanesim calibrate import`."""

    words: Annotated[tuple[str, ...], ARGUMENT, Meta(title="aiconfigurator [PATH] | vllm-forward RESULT...")] = ()
    gpu: Annotated[str, "GPU, such as h200-sxm."]
    target: Annotated[str, "Target: a Hugging Face name or a config.json. -fp8, -kv8, -tp8, -ep8, -dp8 may follow."]
    draft: Annotated[str | None, "Draft model, likewise."] = None
    engine: Annotated[str, "Whose kernels: vllm, sglang or trtllm[-VERSION]."] = "vllm"
    out: Annotated[Path, "Profile to write."]
    overwrite: Overwrite = False


@command("import", ImportFlags, example=EXAMPLE)
def import_command(flags: ImportFlags) -> None:
    """Make a profile from NVIDIA's kernel tables, or from what vLLM measured.

    The tables are those of the installed package aiconfigurator-core, which `pip install '.[tables]'` installs in a
    clone. LANESIM_TABLES may name a wheel instead, and PATH a wheel or a folder of GPU folders.

    vllm-forward reads the results of `vllm bench forward` for the commands that `lanesim calibrate cases` prints."""
    from calibrate.catalogue.published_tables import published_tables, tables_of_wheel

    if flags.words[:1] == (FORWARD,):
        _import_forward(flags)
        return
    words = flags.words[1:] if flags.words[:1] == (SOURCE_NAME,) else flags.words
    if len(words) > 1:
        raise ValueError(f"calibrate import {' '.join(flags.words)} must be {SOURCE_NAME} and at most one PATH")
    path, revision = Path(words[0]) if words else None, "unrecorded revision"
    files: list[Path] = []
    if path is not None:
        click.get_current_context().meta[SOURCE] = str(path)
        files = [path, *(file for ending in ("yaml", "parquet") for file in path.rglob(f"*.{ending}"))]
    check_out(flags.out, [flags.target, flags.draft, *files])
    name, _, version = flags.engine.partition("-")
    if name not in TABLE_ENGINES:
        raise ValueError(
            f"--engine {flags.engine!r}: there are kernel tables of {', '.join(TABLE_ENGINES)}. A -VERSION may follow"
        )
    try:
        from calibrate.importers.aiconfigurator.deployment import Deployment, import_deployment
        from calibrate.importers.plan_candidates import pair_named

        target, draft, _ = pair_named(DEGREE.sub("", flags.target), flags.draft)
        degrees = {"tp": 1} | {kind: int(count) for kind, count in DEGREE.findall(flags.target)}
        if path is None or path.is_file():
            path, revision = published_tables() if path is None else tables_of_wheel(path)
        profile = import_deployment(
            path,
            flags.gpu,
            target,
            draft,
            Deployment(degrees["tp"], degrees.get("ep"), degrees.get("dp", 1), name, version or None),
            source=revision,
        )
    except ImportError as error:
        raise needs_analysis(error) from None
    except OSError as error:
        raise ValueError(f"{path}: a table cannot be read: {error}") from error
    write(profile, flags.out)


def _import_forward(flags: ImportFlags) -> None:
    """Results of `vllm bench forward`."""
    paths = [Path(word) for word in flags.words[1:]]
    if not paths:
        raise ValueError(f"calibrate import {FORWARD} needs results, such as {FORWARD} target.json draft1.json")
    check_out(flags.out, [flags.target, flags.draft, *paths])
    try:
        from calibrate.importers.aiconfigurator.deployment import ASSUMED_HOST
        from calibrate.importers.plan_candidates import pair_named
        from calibrate.importers.vllm_forward import profile_of
    except ImportError as error:
        raise needs_analysis(error) from None
    from sim.costs.datasheets import datasheet

    target, draft, _ = pair_named(flags.target, flags.draft)
    write(profile_of(paths, datasheet(flags.gpu), target, draft, ASSUMED_HOST), flags.out)


class CasesFlags(Struct, frozen=True, kw_only=True):
    """Flags of `lanesim calibrate cases`."""

    model: Annotated[str, ARGUMENT, Meta(title="MODEL")]
    gpu: Annotated[str, "GPU that the commands will run on, such as h100-sxm."]
    draft: Annotated[str | None, f"Drafter's repository, or {METHODS[2]}. vLLM times {', '.join(METHODS)}."] = None
    num_speculative_tokens: Annotated[DraftTokens, "Longest draft."] = 3


@command("cases", CasesFlags, example=CASES_EXAMPLE)
def cases_command(flags: CasesFlags) -> None:
    """Print the `vllm bench forward` commands that a profile needs, and the one that reads their results.

    They need vLLM 0.33 or later on one GPU, and no weights: vLLM makes random ones. Each command takes one to three
    minutes.
    """
    from calibrate.importers.vllm_forward import case_text, mixed_passes, mixed_text, passes

    found = passes(None if flags.draft is None else flags.num_speculative_tokens)
    files = {length: f"draft{length}.json" if length else "target.json" for length in found}
    for length, timed in found.items():
        line = f"vllm bench forward --model {flags.model} --max-model-len {MODEL_LEN} --kv-len-jitter 0"
        if flags.draft is not None:
            line += f" --speculative-config {shlex.quote(_config(flags.draft, length or MOST))}"
            line += "" if length else " --exclude-drafter"
        texts = [case_text(each) for each in timed]
        texts += [mixed_text(each) for each in mixed_passes()] if not length and flags.draft is not None else []
        cases = [f"  --case {text}" for text in texts]
        print(" \\\n".join([line, *cases, f"  --output-json {files[length]}"]))
    draft = "" if flags.draft is None else f" --draft {flags.draft}"
    read = f"lanesim calibrate import vllm-forward {' '.join(files.values())} --target {flags.model}{draft}"
    print(f"{read} --gpu {flags.gpu} --out profile.json")


def _config(draft: str, length: int) -> str:
    """vLLM's speculative config."""
    from sim.drafters.registry import drafter_named

    named = drafter_named(draft)
    method = named if named in METHODS else "eagle3"
    model = {} if draft == method else {"model": draft}
    return json.dumps({"method": method, **model, "num_speculative_tokens": length})
