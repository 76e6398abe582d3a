"""Flags of `validate vllm` and `validate cells` that say how the real engine was set up, and the scenario they make.

Not here: the checks of the values (sim.run.scenario).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypedDict, TypeVar

import click

from sim.cli.options import UP_TO_BILLION

if TYPE_CHECKING:
    from sim.files.json_values import Json

F = TypeVar("F", bound=Callable[..., None])

POLICIES = ("continuous", "autoregressive")
"""The engines that are vLLM's; `autoregressive` drafts nothing."""


class EngineFlags(TypedDict, total=False):
    """Flags of both commands about the engine, by parameter; None where not given."""

    engine_name: str | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    num_gpu_blocks: int | None
    block_size: int | None
    async_scheduling: bool | None
    enable_prefix_caching: bool | None
    long_prefill_token_threshold: int | None
    method: str | None


def engine_options(function: F) -> F:
    """Add the flags that both commands share."""
    decorators = [
        click.option("--engine", "engine_name", default=None, help="Engine and version that it was, such as vllm-0.12 "
                     "(`lanesim compare --help` has them); default: the profile's own, else vllm-0.32."),
        click.option("--num-gpu-blocks", type=UP_TO_BILLION, help="KV blocks as vLLM logs them; one is its null "
                     "block, never used, so N - 1 are simulated. Default: what fits beside the weights."),
        click.option("--block-size", type=UP_TO_BILLION, default=None, help="Tokens of a KV block [16]."),
        click.option("--async-scheduling/--no-async-scheduling", "async_scheduling", default=None,
                     help="Schedule the next step before this one's tokens are out [as the engine does by itself]."),
        click.option("--prefix-caching/--no-prefix-caching", "enable_prefix_caching", default=None,
                     help="Find blocks again that another request, or the preempted one itself, computed [on]."),
        click.option("--long-prefill-token-threshold", type=UP_TO_BILLION, help="Longest chunk of one prompt."),
        click.option("--method", default=None, help="Speculation: draft_model, eagle3, ngram."),
    ]  # fmt: skip
    for decorate in reversed(decorators):
        function = decorate(function)
    return function


def engine_block(flags: EngineFlags) -> dict[str, Json]:
    """The scenario's `engine` block. Raises ValueError where no usable KV block is left."""
    num_blocks = flags.get("num_gpu_blocks")
    if num_blocks is not None and num_blocks < 2:
        raise ValueError(
            f"--num-gpu-blocks {num_blocks} must be at least 2: vLLM counts a null block that is never used"
        )
    longest = flags.get("long_prefill_token_threshold")
    block: dict[str, Json] = {
        "name": flags.get("engine_name"),
        "max_num_seqs": flags.get("max_num_seqs"),
        "max_num_batched_tokens": flags.get("max_num_batched_tokens"),
        "block_size": flags.get("block_size"),
        "rules": None if longest is None else {"long_prefill_token_threshold": longest},
        "async_scheduling": flags.get("async_scheduling"),
        "enable_prefix_caching": flags.get("enable_prefix_caching"),
        "num_gpu_blocks": num_blocks,
    }
    return {name: value for name, value in block.items() if value is not None}
