"""Several draft models beside one target: their profiles, and a cost model that asks each for its works.

Not here: which of them drafts (sim.engine.draft_choice), their acceptance (sim.acceptance).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sim.costs.compact_kernels import CompactKernels
from sim.costs.cost import Cost, CostModel, Demands
from sim.costs.passes import PassUse
from sim.costs.profile import HostCosts, Profile
from sim.costs.profile_files import load
from sim.costs.shapes import MODELS, ModelShape, model
from sim.costs.work_costs import WorkCosts
from sim.interface.work import Work


class DrafterCosts:
    """Works of each draft model by the cost model of its pair, all others by the first."""

    def __init__(self, by_drafter: Sequence[CostModel]) -> None:
        self._by_drafter = tuple(by_drafter)
        first = self._by_drafter[0]
        self.result_s = first.result_s
        self.host_inflation = first.host_inflation
        self.host: HostCosts | None = getattr(first, "host", None)

    def cost(self, work: Work) -> Cost:
        return self._by_drafter[work.drafter].cost(work)

    def demands(self, work: Work) -> Demands:
        return self._by_drafter[work.drafter].demands(work)

    def use(self, work: Work) -> PassUse:
        costs = self._by_drafter[work.drafter]
        assert isinstance(costs, WorkCosts), "costs of a profile"
        return costs.use(work)


def pair_with(profile: Profile, name: str) -> Profile:
    """The target of `profile` with another draft model: a known one of that name, priced by the constants of the
    profile's GPU, or the draft of a profile of that name with the same GPU and target.

    Raises ValueError for another GPU, target or vocabulary, for a profile without a draft, and for a known model where
    the profile has times of its own models only.

    >>> pair = pair_with(load("h100-sxm/llama-2-7b+tinyllama-1.1b"), "llama-68m")
    >>> pair.target.name, pair.draft.name
    ('llama-2-7b', 'llama-68m')
    """
    where = f"speculation.drafts: {name!r}"
    if name in MODELS:
        if not isinstance(profile.kernels, CompactKernels):
            raise ValueError(f"{where}: {profile.name!r} has times of its own models only. Name a profile of the pair")
        pair = msgspec.structs.replace(profile, draft=model(name))
    else:
        pair = load(name)
        if pair.gpu.name != profile.gpu.name or pair.tensor_parallel != profile.tensor_parallel:
            raise ValueError(
                f"{where} is of {pair.gpu.name}, TP {pair.tensor_parallel}. Give those of {profile.name!r}"
            )
        if pair.draft is None or pair.target != profile.target:
            raise ValueError(f"{where} must be a profile {profile.target.name}+draft, or one of {', '.join(MODELS)}")
    if draft_shape(pair).vocab != profile.target.vocab:
        raise ValueError(
            f"{where} has {draft_shape(pair).vocab} tokens in its vocabulary, {profile.target.name} "
            f"{profile.target.vocab}. Its drafts cannot be verified"
        )
    return pair


def draft_shape(pair: Profile) -> ModelShape:
    """The draft model of a pair."""
    assert pair.draft is not None, pair.name
    return pair.draft
