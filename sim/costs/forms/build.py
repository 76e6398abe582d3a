"""The cost model of a profile, whatever its form. Not here: the forms (compact, table, linear)."""

from __future__ import annotations

from collections.abc import Sequence

from sim.costs.compact_kernels import CompactKernels, LinearKernels
from sim.costs.engine_costs import EngineCosts, with_engine
from sim.costs.forms.compact import CompactPasses
from sim.costs.forms.linear import LinearPasses
from sim.costs.forms.table import TablePasses
from sim.costs.profile import Profile
from sim.costs.table_kernels import TableKernels
from sim.costs.work_costs import PassesOf, WorkCosts

PASSES: dict[type, PassesOf] = {
    CompactKernels: CompactPasses,
    TableKernels: TablePasses,
    LinearKernels: LinearPasses,
}
"""Passes by the form of a profile's kernels."""


def build_costs(
    profile: Profile,
    engine: EngineCosts | None = None,
    *,
    cuda_graph: bool | str = True,
    graphed_queries: int | None = None,
    graph_sizes: Sequence[int] | None = None,
) -> WorkCosts:
    """The cost model of the form that `profile` has, with what `engine` adds; None: the engine that it was measured
    with, if any. The rest: WorkCosts."""
    if engine is not None:
        profile = with_engine(profile, engine)
    passes_of = PASSES[type(profile.kernels)]
    return WorkCosts(
        profile, passes_of, cuda_graph=cuda_graph, graphed_queries=graphed_queries, graph_sizes=graph_sizes
    )
