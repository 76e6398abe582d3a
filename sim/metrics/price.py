"""Prices of a GPU as people quote them. Not here: what tokens cost at them (sim.studies.attainment)."""

from __future__ import annotations

from math import inf

UNIT = "/gpu-h"


def usd_per_gpu_h(text: str | None) -> float | None:
    """Dollars per hour of one GPU; None where no price is given. Raises ValueError.

    >>> usd_per_gpu_h("3.5/gpu-h"), usd_per_gpu_h("$2/gpu-h"), usd_per_gpu_h(None)
    (3.5, 2.0, None)
    """
    if text is None:
        return None
    try:
        usd = float(text.strip().removeprefix("$").removesuffix(UNIT))
    except ValueError:
        usd = -1.0
    if not 0.0 <= usd < inf or not text.strip().endswith(UNIT):
        raise ValueError(f"--price {text!r}: want dollars per hour of one GPU, such as 3.5{UNIT}")
    return usd
