"""The cost model of a profile, whatever its form. Not here: the forms (compact, table)."""

from __future__ import annotations

from sim.costs.forms.compact import CompactCosts
from sim.costs.forms.table import TableCosts
from sim.costs.points import TableKernels
from sim.costs.profile import Profile


def build_costs(profile: Profile, *, cuda_graph: bool = True, strict: bool = False) -> CompactCosts | TableCosts:
    """The cost model of the form that `profile` has."""
    form = TableCosts if isinstance(profile.kernels, TableKernels) else CompactCosts
    return form(profile, cuda_graph=cuda_graph, strict=strict)
