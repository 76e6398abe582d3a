"""Costs of works: the protocol (cost), the profile file (profile), models of it (compact, table), constants."""

from __future__ import annotations

from sim.costs.compact import CompactCosts
from sim.costs.cost import CostModel
from sim.costs.memory import kv_capacity_tokens
from sim.costs.profile import Profile
from sim.costs.profile_files import UnknownProfile, load, shipped
from sim.costs.table import TableCosts
from sim.costs.table_kernels import TableKernels
from sim.costs.works import OutsideProfile, OutsideProfileWarning

__all__ = [
    "CompactCosts",
    "CostModel",
    "OutsideProfile",
    "OutsideProfileWarning",
    "Profile",
    "TableCosts",
    "UnknownProfile",
    "build_costs",
    "kv_capacity_tokens",
    "load",
    "shipped",
]


def build_costs(profile: Profile, *, cuda_graph: bool = True, strict: bool = False) -> CompactCosts | TableCosts:
    """The cost model of the form that `profile` has."""
    form = TableCosts if isinstance(profile.kernels, TableKernels) else CompactCosts
    return form(profile, cuda_graph=cuda_graph, strict=strict)
