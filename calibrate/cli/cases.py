"""`lanesim calibrate cases`: the commands that time a model's passes with vLLM's own kernels.

Not here: which passes, and reading the results (calibrate.importers.vllm_forward).
"""

from __future__ import annotations

import json
import shlex
from typing import Annotated

from msgspec import Meta, Struct

from sim.cli.flags import ARGUMENT, DraftTokens, command

EXAMPLE = (
    "lanesim calibrate cases meta-llama/Llama-3.1-8B-Instruct --gpu h100-sxm \\\n"
    "    --draft yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"
)
MODEL_LEN, MOST = 4400, 7
"""Tokens of the longest case with room for drafts, and of the longest verify."""
METHODS = ("eagle3", "eagle", "mtp", "dspark", "dflash")
"""Drafters that vLLM 0.33 can time."""


class CasesFlags(Struct, frozen=True, kw_only=True):
    """Flags of `lanesim calibrate cases`."""

    model: Annotated[str, ARGUMENT, Meta(title="MODEL")]
    gpu: Annotated[str, "GPU that the commands will run on, such as h100-sxm."]
    draft: Annotated[str | None, f"Drafter's repository, or {METHODS[2]}; vLLM times {', '.join(METHODS)}."] = None
    num_speculative_tokens: Annotated[DraftTokens, "Longest draft."] = 3


@command("cases", CasesFlags, example=EXAMPLE)
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
