"""An opt-in build: `LANESIM_COMPILE=1 pip install .` compiles (mypyc) where a simulation spends its time.

The results are the same to the last bit, in half to two thirds of the CPU time; `lanesim --version` tells the builds
apart. Left out is what mypyc cannot compile: async generators (sim.policies.rounds) and msgspec structs. A class that
others extend elsewhere says so (`mypyc_attr`). All else about the build stands in pyproject.toml.
"""

import os
import sys

from setuptools import setup

HOT = [
    "sim/costs/forms/compact.py",
    "sim/costs/forms/linear.py",
    "sim/costs/forms/table.py",
    "sim/costs/passes.py",
    "sim/costs/work_costs.py",
    "sim/devices/contention.py",
    "sim/devices/op.py",
    "sim/devices/partition.py",
    "sim/devices/shared.py",
    "sim/devices/solo.py",
    "sim/devices/ticket.py",
    "sim/engine/intake.py",
    "sim/engine/time_series.py",
    "sim/engine/kv.py",
    "sim/engine/paged.py",
    "sim/engine/serving.py",
    "sim/hosts/clock.py",
    "sim/hosts/simulated.py",
    "sim/interface/request.py",
    "sim/interface/request_queue.py",
    "sim/interface/wait.py",
    "sim/policies/adaptive.py",
    "sim/policies/baseline.py",
    "sim/policies/choices.py",
    "sim/policies/continuous/loop.py",
    "sim/policies/continuous/plan.py",
    "sim/policies/continuous/totals.py",
    "sim/policies/pd.py",
    "sim/policies/pdv.py",
    "sim/policies/unified.py",
    "sim/policies/works.py",
]

NEEDED = ["mypy==2.4.1", "msgspec", "numpy", "simpy", "types-PyYAML"]
"""The compiler, and what it reads types from."""
BUILDS = {"build_ext", "bdist_wheel", "editable_wheel"}
"""Commands that compile; the others only ask what is needed, before it is there."""

if not os.environ.get("LANESIM_COMPILE"):
    setup()
elif BUILDS.isdisjoint(sys.argv):
    setup(setup_requires=NEEDED)
else:
    from mypyc.build import mypycify

    setup(ext_modules=mypycify([*HOT], opt_level="3", group_name="lanesim"))
