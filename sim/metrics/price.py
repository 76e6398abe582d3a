"""Prices per hour as people quote them: of a GPU or of a replica.

Not here: what tokens cost at them (sim.studies.attainment).
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

GPU, REPLICA = "gpu-h", "replica-h"
WANTED = f"want dollars per hour of a GPU or of a replica, such as 3.5/{GPU} or 7/{REPLICA}"


class Price(NamedTuple):
    """Dollars per hour."""

    usd_per_h: float
    of: str | None
    """GPU or REPLICA; None where it does not say."""

    @classmethod
    def of_text(cls, text: str) -> Price:
        """`3.5/gpu-h`, `7/replica-h`, and `3.5/h` where both are the same. Raises ValueError.

        >>> Price.of_text("3.5/gpu-h").of_replica(2), Price.of_text("$7/replica-h").of_replica(2)
        (7.0, 7.0)
        """
        value, slash, unit = text.strip().removeprefix("$").partition("/")
        try:
            usd = float(value)
        except ValueError:
            usd = -1.0
        if not 0.0 <= usd < inf or (slash and unit not in (GPU, REPLICA, "h")):
            raise ValueError(f"--price {text!r}: {WANTED}")
        return cls(usd, unit if unit in (GPU, REPLICA) else None)

    def of_replica(self, num_gpus: int) -> float:
        """Dollars per hour of a replica of so many GPUs. Raises ValueError where there are several, and the price does
        not say whose it is."""
        if self.of is None and num_gpus > 1:
            usd = f"{self.usd_per_h:g}"
            raise ValueError(
                f"--price {usd}/h: a replica has {num_gpus} GPUs here; write {usd}/{GPU} or {usd}/{REPLICA}"
            )
        return self.usd_per_h * (num_gpus if self.of == GPU else 1)

    def of_gpu(self) -> float:
        """Dollars per hour of one GPU. Raises ValueError for a price of replicas."""
        if self.of == REPLICA:
            raise ValueError(f"--price {self.usd_per_h:g}/{REPLICA}: want it per GPU here, such as 3.5/{GPU}")
        return self.usd_per_h
