"""Tests marked nightly run only where `-m nightly` asks for them; how many examples properties are given.

Properties take the profile `ci`, or that of `--hypothesis-profile`; tests.properties has multiples of it. `ci` draws
the same examples every time, so that nobody's change fails by what it did not touch; `nightly` looks for others.

Tests run in as many processes as there are cores: each computes in one thread, and so does what it starts. Processes
of a pool begin with what any of them would import. Code that freezes the heap before it times something walks what a
test has made, and not torch and all test modules each time.
"""

from __future__ import annotations

import gc
import multiprocessing
import os

import pytest
from hypothesis import settings

EXAMPLES = {"fast": 10, "ci": 40, "nightly": 400}

for name, max_examples in EXAMPLES.items():
    # No deadline: an example's time is the machine's, and says nothing of the property.
    settings.register_profile(name, max_examples=max_examples, deadline=None, print_blob=True, derandomize=name == "ci")
settings.load_profile("ci")
# Read where torch and numpy are first imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
multiprocessing.set_forkserver_preload(["numpy", "sim.cli.main", "sim.compare.point_runs", "sim.studies.tune"])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "nightly" not in config.option.markexpr:
        for item in items:
            if item.get_closest_marker("nightly"):
                item.add_marker(pytest.mark.skip(reason="nightly: ask for it with -m nightly"))


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.collect()
    gc.freeze()
