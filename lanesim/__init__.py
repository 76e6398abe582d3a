"""lanesim: simulate speculative-decoding serving, and check the simulation against real GPU runs.

The public door: everything here is re-exported, nothing is computed here. The import packages behind it are `sim`,
`calibrate` and `realrun` (docs/adr/014); import this module, since they may be rearranged. How to add a policy, an
acceptance model or a cost table of one's own: docs/extending.md.

>>> import lanesim
>>> result = lanesim.compare(profile="cpu/tiny", policy=("continuous", "pd"), num_prompts=30, request_rate=8)
>>> result.frame().groupby("policy")["completed"].sum().to_dict()  # four runs of each
{'continuous': 120, 'pd': 120}
"""

from calibrate.doors import plan, validate_url
from sim import reference
from sim.acceptance.forms import AcceptanceForm, parse_quoted, register_acceptance
from sim.acceptance.models import Acceptance, run_lengths
from sim.acceptance.quoted import Quoted
from sim.costs.engine_costs import InstalledEngine
from sim.costs.profile import Profile
from sim.costs.profile_files import changed, save_profile
from sim.costs.profile_files import load as load_profile
from sim.costs.profile_files import shipped as profile_names
from sim.costs.table_kernels import Curve, DecodeGrid, ModelTable, PrefillGrid, TableKernels, VerifyGrid
from sim.draws import thresholds
from sim.engine.serving import Serving
from sim.interface.host import Host
from sim.interface.request import Request
from sim.interface.request_queue import RequestQueue
from sim.interface.work import Chunk, Kind, Model, Work
from sim.policies import rounds
from sim.policies.continuous.loop import continuous
from sim.policies.options import EngineLimits
from sim.policies.registry import Policy, PolicyOptions, policy_names, register
from sim.report.notebook import (
    Simulation,
    capacity,
    compare,
    load,
    simulate,
    sweep,
    tune,
)
from sim.report.shown import ShownComparison as Comparison
from sim.report.shown import ShownVaried as Varied
from sim.run.scenario import Scenario

__all__ = [
    "Acceptance",
    "AcceptanceForm",
    "Chunk",
    "Comparison",
    "Curve",
    "DecodeGrid",
    "EngineLimits",
    "Host",
    "InstalledEngine",
    "Kind",
    "Model",
    "ModelTable",
    "Policy",
    "PolicyOptions",
    "PrefillGrid",
    "Profile",
    "Quoted",
    "Request",
    "RequestQueue",
    "Scenario",
    "Serving",
    "Simulation",
    "TableKernels",
    "Varied",
    "VerifyGrid",
    "Work",
    "capacity",
    "changed",
    "compare",
    "continuous",
    "load",
    "load_profile",
    "parse_quoted",
    "plan",
    "policy_names",
    "profile_names",
    "reference",
    "register",
    "register_acceptance",
    "rounds",
    "run_lengths",
    "save_profile",
    "simulate",
    "sweep",
    "thresholds",
    "tune",
    "validate_url",
]
