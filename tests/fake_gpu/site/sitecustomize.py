"""Runs in every Python of a rehearsal: what a device that computes nothing cannot give is made up, and what a process
took is written down when it ends.

Results of passes are those that a tape dictates; attention is not compared with its reference; a campaign is shorter.
On the path of a rehearsal's processes alone (tests/fake_gpu/__main__.py).
"""

from __future__ import annotations

import atexit
import ctypes
import importlib.machinery
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

COUNTS = "FAKE_COUNTS"
"""Names the file that gets a JSON line per process."""
planned: list[int] = []
"""Bytes that ledgers came to; the last one is what was gone by."""


def issuer(module: ModuleType) -> None:
    class MadeUp(module.Pending):  # type: ignore[misc,name-defined]
        __slots__ = ("made_up",)

        def values(self) -> list[list[int]]:
            self.end.synchronize()
            return self.made_up

    issue = module.Issuer.issue

    def issued(self: Any, shape: Any, rows: Sequence[Sequence[int]]) -> Any:
        pending = issue(self, shape, rows)
        pending.made_up = results(shape, rows)
        return pending

    module.Pending, module.Issuer.issue = MadeUp, issued  # type: ignore[attr-defined]


def results(shape: Any, rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """As realrun.kernels.device_passes gives them [rows][1 + width], every token the same."""
    if shape.model.value != "target":
        return []
    is_sampled = [chunk.is_sampled for chunk in shape.chunks for _ in range(chunk.rows)]
    found = []
    for number, (_, count, forced) in enumerate(rows):
        if number < shape.rows:
            accepted = min(max(forced, 0), max(count - 1, 0))
            tokens = [1] * (accepted + 1)
        else:
            accepted, tokens = 0, [1] if is_sampled[number - shape.rows] else []
        found.append([accepted, *tokens, *[-1] * (shape.width - len(tokens))])
    return found


def smoke(module: ModuleType) -> None:
    module._difference = lambda *_: 0.0  # type: ignore[attr-defined]


def plan(module: ModuleType) -> None:
    """Every step, in a few minutes."""
    for name, campaign in module.CAMPAIGNS.items():
        module.CAMPAIGNS[name] = campaign._replace(
            job=campaign.job._replace(budget_s=40.0),
            loads=tuple(load._replace(num_prompts=16, replications=1) for load in campaign.loads),
            patience=10.0,
        )


def pair_kernels(module: ModuleType) -> None:
    """What building the models left behind is nobody's, and no part of the most that passes had reserved."""
    build = module.PairKernels.__init__

    def built(self: Any, *args: Any, **more: Any) -> None:
        import torch

        build(self, *args, **more)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    module.PairKernels.__init__ = built  # type: ignore[attr-defined]


def noting(module: ModuleType) -> None:
    ledger = module.ledger

    def noted(*args: Any, **more: Any) -> Any:
        found = ledger(*args, **more)
        planned.append(found.total)
        return found

    module.ledger = noted  # type: ignore[attr-defined]


CHANGES: dict[str, Callable[[ModuleType], None]] = {
    "realrun.kernels.issuer": issuer,
    "realrun.kernels.pair_kernels": pair_kernels,
    "calibrate.measure.campaign.smoke": smoke,
    "calibrate.measure.campaign.plan": plan,
    "realrun.replay.testbed": noting,
    "calibrate.measure.pair": noting,
}


class Changing(MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in CHANGES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            CHANGES[name](module)

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


def tell() -> None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    runtime = ctypes.CDLL("libcudart.so.13")
    runtime.fake_stats.restype = ctypes.c_char_p
    counts = json.loads(runtime.fake_stats())
    reserved = torch.cuda.max_memory_reserved()
    line = {"process": sys.argv[1:], "planned": planned[-1:], "reserved": reserved, **counts}
    with open(os.environ[COUNTS], "a") as file:
        file.write(json.dumps(line) + "\n")


if COUNTS in os.environ:
    sys.meta_path.insert(0, Changing())
    atexit.register(tell)
