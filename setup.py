"""An opt-in build: `LANESIM_COMPILE=1 pip install .` compiles the modules that a simulation spends its time in (mypyc).

Everything else about the build stands in pyproject.toml. The results are the same to the last bit, in about two thirds of
the time; `lanesim --version` says which build runs.
"""

import os

from setuptools import setup

HOT = [
    "sim/costs/forms/compact.py",
    "sim/costs/forms/table.py",
    "sim/costs/passes.py",
    "sim/costs/works.py",
    "sim/devices/contention.py",
    "sim/devices/op.py",
    "sim/devices/partition.py",
    "sim/devices/shared.py",
    "sim/devices/solo.py",
    "sim/devices/ticket.py",
    "sim/engine/gauge.py",
    "sim/engine/kv.py",
    "sim/engine/paged.py",
    "sim/engine/serving.py",
    "sim/hosts/clock.py",
    "sim/hosts/simulated.py",
    "sim/interface/request.py",
    "sim/interface/request_queue.py",
    "sim/interface/wait.py",
    "sim/policies/continuous/loop.py",
    "sim/policies/continuous/plan.py",
    "sim/policies/continuous/totals.py",
]

if os.environ.get("LANESIM_COMPILE"):
    from mypyc.build import mypycify

    setup(ext_modules=mypycify([*HOT], opt_level="3", group_name="lanesim"), setup_requires=["mypy==2.4.1", "numpy", "simpy", "msgspec", "types-PyYAML"])
else:
    setup()
