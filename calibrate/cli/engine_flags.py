"""Flags that forms of `lanesim validate` share: how the real engine was set up, and where results go.

Not here: the checks of the values (sim.run.scenario), writing results (calibrate.judge.validation_output).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from sim.cli.flags import COUNT, JsonFile, Overwrite
from sim.cli.options import Overrides

UpToBillion = Annotated[int, Meta(le=10**9)]
Seats = Annotated[int, Meta(le=COUNT), "The server's [the engine's]; of cells without such a column."]
Budget = Annotated[UpToBillion, "Likewise."]
Requests = Annotated[
    Path,
    Meta(title="FILE"),
    "vllm: JSON lines of request_id, input_toks, output_toks, arrival_time, queued_ts, scheduled_ts, first_token_ts, "
    "last_token_ts. cells: a CSV of prompt_tokens, output_tokens, which every cell goes through in whole passes.",
]


class JudgingFlags(Struct, frozen=True, kw_only=True):
    """Flags of cells and vllm; None where not given."""

    profile: Annotated[str, "Cost profile: gpu/target[+draft], or a path."]
    engine: Annotated[
        str | None, "Engine and version that served, such as vllm-0.12 [the profile's own, else vllm-0.32]."
    ] = None
    set: Overrides = ()
    json: JsonFile = None
    out: Annotated[
        Path | None, "Directory for validation.json and figures; of a server: the profile to write, with its constants."
    ] = None
    plots: Annotated[bool, "Draw figures into --out."] = False
    overwrite: Overwrite = False


def set_up(flags: JudgingFlags, max_num_seqs: int | None, max_num_batched_tokens: int | None) -> dict[str, Any]:
    """The raw scenario of the flags: the `engine` block and what --set says."""
    from sim.run.scenario_file import parse_override, set_dotted

    block = {
        "name": flags.engine,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
    }
    raw: dict[str, Any] = {"engine": {name: value for name, value in block.items() if value is not None}}
    for text in flags.set:
        set_dotted(raw, *parse_override(text))
    return raw
