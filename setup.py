"""The compiled core (sim/run/core.c), for every Python from 3.11 on. Without a C compiler the package is pure Python:
the same results, more slowly (docs/adr/037). All else about the build stands in pyproject.toml."""

import os

from setuptools import Extension, setup

CORE = Extension(
    "sim.run.core",
    ["sim/run/core.c"],
    depends=[f"sim/run/core_{part}.h" for part in ("costs", "device", "lanes")],
    optional=True,
    py_limited_api=True,
    # A fused multiply-add rounds once where Python rounds twice.
    extra_compile_args=[] if os.name == "nt" else ["-O3", "-ffp-contract=off", "-fwrapv"],
)

setup(ext_modules=[CORE], options={"bdist_wheel": {"py_limited_api": "cp311"}})
