"""Flags of `lanesim plan`. Not here: the command (command), what they make of it (planning)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from sim.cli.flags import (
    ARGUMENT,
    MAX_DRAWS,
    DraftTokens,
    Gpus,
    JsonFile,
    Overwrite,
    Price,
    Rate,
    Share,
    Tokens,
)
from sim.cli.options import Goodput


class PlanFlags(Struct, frozen=True, kw_only=True):
    """Flags of `lanesim plan`. A MODEL that ends in -tpN, -epN or -dpN has that degree; others are searched."""

    model: Annotated[str, ARGUMENT, Meta(title="MODEL")]
    gpu: Annotated[str | None, "GPU, such as h200-sxm; a profile's name has its own."] = None
    rate: Annotated[Rate | None, "Requests per second; without: the most of one replica."] = None
    input_len: Annotated[Tokens, "Prompt tokens."]
    output_len: Annotated[Tokens, "Output tokens."]
    goodput: Goodput = ()
    attainment: Annotated[Share, "Share that meets all SLOs."] = 0.95
    draft: Annotated[str | None, "Drafter: eagle3, mtp, dspark, ngram, a model, or none. [default: none]"] = None
    acceptance: Annotated[
        str | None, "Acceptance of its drafts, such as length:2.6@3. [default: assumed by drafter]"
    ] = None
    num_speculative_tokens: Annotated[DraftTokens | None, "Longest to try."] = None
    engine: Annotated[str, "Whose kernels and overheads."] = "vllm-0.32"
    price: Price = None
    gpus: Annotated[Gpus, "GPUs of a replica at most."] = 8
    weights: Annotated[str | None, "bf16, fp8, fp8-block, nvfp4, mxfp4, int4. [default: the checkpoint's]"] = None
    kv_dtype: Annotated[str | None, "bf16 or fp8. [default: the checkpoint's]"] = None
    draws: Annotated[int, Meta(ge=1, le=MAX_DRAWS), "Draws of costs and acceptance."] = 20
    json: JsonFile = None
    overwrite: Overwrite = False
