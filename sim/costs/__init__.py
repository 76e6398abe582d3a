"""Costs of works: the protocol (cost), the profile file (profile), and the models made from it (compact, constant)."""

from __future__ import annotations

from sim.costs.compact import CompactCosts, OutsideProfile, OutsideProfileWarning
from sim.costs.cost import CostModel
from sim.costs.profile import Profile, UnknownProfile, kv_capacity_tokens, load, shipped

__all__ = [
    "CompactCosts",
    "CostModel",
    "OutsideProfile",
    "OutsideProfileWarning",
    "Profile",
    "UnknownProfile",
    "build_costs",
    "kv_capacity_tokens",
    "load",
    "shipped",
]


def build_costs(profile: Profile, *, cuda_graph: bool = True, strict: bool = False) -> CostModel:
    """The cost model of the form that `profile` has."""
    return CompactCosts(profile, cuda_graph=cuda_graph, strict=strict)
