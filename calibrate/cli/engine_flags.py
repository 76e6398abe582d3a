"""Flags of `validate vllm` and `validate cells`: how the real engine was set up, and where results go.

Not here: the checks of the values (sim.run.scenario), writing results (calibrate.judge.validation_output).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta, Struct

from sim.cli.flags import COUNT, JsonFile, Overwrite, Seed

if TYPE_CHECKING:
    from sim.files.json_values import Json

UpToBillion = Annotated[int, Meta(le=10**9)]
Seats = Annotated[int, Meta(le=COUNT)]


class JudgingFlags(Struct, frozen=True, kw_only=True):
    """Flags that both commands share; None where not given."""

    shared: ClassVar[tuple[str, ...]] = ()
    """Flags that the help lists as those of every scenario: none."""
    profile: Annotated[str, "Cost profile: gpu/target[+draft], or a path."]
    engine: Annotated[
        str | None,
        "Engine and version that it was, such as vllm-0.12 (`lanesim compare --help` has them); default: the profile's "
        "own, else vllm-0.32.",
    ] = None
    num_gpu_blocks: Annotated[
        UpToBillion | None,
        "KV blocks as vLLM logs them; one is its null block, never used, so N - 1 are simulated. Default: what fits "
        "beside the weights.",
    ] = None
    block_size: Annotated[UpToBillion | None, "Tokens of a KV block [16]."] = None
    async_scheduling: Annotated[
        bool | None, "Schedule the next step before this one's tokens are out [as the engine does by itself]."
    ] = None
    prefix_caching: Annotated[
        bool | None, "Find blocks again that another request, or the preempted one itself, computed [on]."
    ] = None
    long_prefill_token_threshold: Annotated[UpToBillion | None, "Longest chunk of one prompt."] = None
    method: Annotated[str | None, "Speculation: draft_model, eagle3, ngram."] = None
    seed: Annotated[Seed, "Seed of the acceptance draws."] = 0
    json: JsonFile = None
    out: Annotated[Path | None, "Directory for validation.json and figures."] = None
    plots: Annotated[bool, "Draw figures into --out."] = False
    overwrite: Overwrite = False


def engine_block(flags: JudgingFlags, max_num_seqs: int | None, max_num_batched_tokens: int | None) -> dict[str, Json]:
    """The scenario's `engine` block. Raises ValueError where no usable KV block is left."""
    if flags.num_gpu_blocks is not None and flags.num_gpu_blocks < 2:
        raise ValueError(
            f"--num-gpu-blocks {flags.num_gpu_blocks} must be at least 2: vLLM counts a null block that is never used"
        )
    block = {
        "name": flags.engine,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "block_size": flags.block_size,
        "long_prefill_token_threshold": flags.long_prefill_token_threshold,
        "async_scheduling": flags.async_scheduling,
        "enable_prefix_caching": flags.prefix_caching,
        "num_gpu_blocks": flags.num_gpu_blocks,
    }
    return {name: value for name, value in block.items() if value is not None}
