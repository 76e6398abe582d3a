"""The cost model of a profile, whatever its form. Not here: the forms (compact, table, linear)."""

from __future__ import annotations

from collections.abc import Sequence

from sim.costs.compact_kernels import LinearKernels
from sim.costs.engine_costs import EngineCosts, with_engine
from sim.costs.forms.compact import CompactCosts
from sim.costs.forms.linear import LinearCosts
from sim.costs.forms.table import TableCosts
from sim.costs.profile import Profile
from sim.costs.table_kernels import TableKernels

ShippedCosts = CompactCosts | TableCosts | LinearCosts
"""Cost models of every form that a profile can have."""


def build_costs(
    profile: Profile,
    engine: EngineCosts | None = None,
    *,
    cuda_graph: bool | str = True,
    strict: bool = False,
    graphed_queries: int | None = None,
    graph_sizes: Sequence[int] | None = None,
) -> ShippedCosts:
    """The cost model of the form that `profile` has, with what `engine` adds.

    None adds nothing to what is in the profile: the engine that it was measured with, if any. `graphed_queries`: the
    one count of queries per row that has full CUDA graphs; None: every one. `graph_sizes`: token counts that the engine
    captures, as far as the profile's host does; None: the profile's.
    """
    if engine is not None:
        profile = with_engine(profile, engine)
    form: type[ShippedCosts] = TableCosts if isinstance(profile.kernels, TableKernels) else CompactCosts
    if isinstance(profile.kernels, LinearKernels):
        form = LinearCosts
    return form(profile, cuda_graph=cuda_graph, strict=strict, graphed_queries=graphed_queries, graph_sizes=graph_sizes)
