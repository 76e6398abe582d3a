"""Flags of `lanesim plan`. Not here: the command (command), what they make of it (planning)."""

from __future__ import annotations

from typing import Annotated

from sim.cli.flags import Draws, Gpus, JsonFile, Overwrite, Price, Rate, Share, Verbose
from sim.cli.options import ServedFlags


class PlanFlags(ServedFlags, frozen=True, kw_only=True):
    """Flags of `lanesim plan`. A MODEL that ends in -tpN, -epN or -dpN has that degree; others are searched."""

    rate: Annotated[Rate | None, "Requests per second to rent GPUs for."] = None
    attainment: Annotated[Share, "Share of the requests that meets all SLOs."] = 0.95
    price: Price = None
    gpus: Annotated[Gpus, "GPUs of a replica at most."] = 8
    weights: Annotated[str | None, "bf16, fp8, fp8-block, nvfp4, mxfp4, int4. [default: the checkpoint's]"] = None
    kv_dtype: Annotated[str | None, "bf16 or fp8. [default: the checkpoint's]"] = None
    draws: Annotated[Draws | None, "Variations of costs and acceptance; 0: as given. [default: 20]"] = None
    verbose: Verbose = False
    json: JsonFile = None
    overwrite: Overwrite = False
