"""DFlash: a parallel drafter on the target's features, with a query of its own for the token that was sampled.

Not here: what its pass has, which is what any parallel drafter's has (parallel).
"""

from dataclasses import replace

from sim.drafters.parallel import DRAFTER as PARALLEL

DRAFTER = replace(
    PARALLEL,
    name="dflash",
    spellings=(),
    extra_slots=1,
    on_heads={"eagle3": "dflash"},
    vllm_method=None,
    vllm_note=None,
)
