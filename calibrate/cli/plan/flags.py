"""Flags of `lanesim plan`. Not here: the command (command), what they make of it (planning)."""

from __future__ import annotations

from typing import Annotated

from sim.cli.flags import Draws, Gpus, JsonFile, Overwrite, Price, Rate, Verbose
from sim.cli.options import ServedFlags


class PlanFlags(ServedFlags, frozen=True, kw_only=True):
    """Flags of `lanesim plan`. A MODEL that ends in -tpN, -epN or -dpN has that degree; others are searched. One that
    ends in -fp8 or another format has such weights, and in -kv8 its KV cache in FP8."""

    rate: Annotated[Rate | None, "Requests per second to rent GPUs for."] = None
    price: Price = None
    gpus: Annotated[Gpus | None, "Most GPUs of a replica. [default: 8 with --rate]"] = None
    disaggregate: Annotated[bool, "Also try separate prefill and decode servers, with 6 variations."] = False
    draws: Annotated[Draws | None, "How often to vary GPU times and acceptance. [default: 20]"] = None
    verbose: Verbose = False
    json: JsonFile = None
    overwrite: Overwrite = False
