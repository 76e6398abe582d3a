# ruff: noqa: E402
"""No two accesses to what passes share are unordered, whatever order CUDA's rules allow; and the checker that says so
finds every wait, record and buffer that is taken away.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from realrun.kernels.issuer import Issuer, Pending
from realrun.kernels.pair_kernels import PairKernels
from realrun.model.weights import tied_pair
from realrun.replay.pair_executor import PairExecutor, PairHandle, PairLane
from sim.policies.options import EngineLimits, PolicyOptions
from sim.policies.registry import find_policy
from sim.seam.request import Request
from tests.realrun.late_device import Accesses, LateDevice
from tests.realrun.late_host import LateHost
from tests.realrun.support import greedy_text, tiny_model, tiny_options
from tests.sim.support import ON_ONE_GPU, request, serve

NUM_REQUESTS = 4
SLOTS = 3


def requests() -> list[Request]:
    return [request(i, arrival_s=0.3 * i, prompt=5 + 2 * i, output=3 + 2 * i) for i in range(NUM_REQUESTS)]


TARGET, DRAFT = tied_pair(tiny_model(layers=2), 1, 0.2)


def watched_pair(device: LateDevice) -> PairKernels:
    kernels = PairKernels(TARGET, DRAFT, tiny_options(slots=SLOTS, max_tokens=48), runs_on=device)
    for name, kv in (("target", kernels.target.kv), ("draft", kernels.draft_model.kv)):
        device.watch(f"{name} keys", kv.keys, slot_dim=1)
        device.watch(f"{name} values", kv.values, slot_dim=1)
        device.watch(f"{name} lengths", kv.lengths, slot_dim=0)
    for name in ("tokens", "lengths", "keys"):
        device.watch(f"sequence {name}", getattr(kernels.sequences, name), slot_dim=0)
    make = kernels.issuer

    def watched(name: str, *, priority: int = 0) -> Issuer:
        issuer = make(name, priority=priority)
        if device.watched(issuer._inputs) is None:
            device.watch(f"inputs of {name}", issuer._inputs)
        return issuer

    kernels.issuer = watched
    return kernels


def run(policy: str, seed: int, change: Callable[[PairExecutor], AbstractContextManager[None]] | None = None) -> None:
    """Serve a few requests; raises Race, or AssertionError where a text is not the target's own."""
    device = LateDevice(seed)
    with Accesses(device):
        executor = PairExecutor(watched_pair(device), seed=3)
        with change(executor) if change else _nothing():
            host = LateHost(executor, device)
            limits = EngineLimits(max_num_batched_tokens=16, max_num_seqs=2)
            serving = serve(host, policy, requests(), draft_tokens=2, max_concurrency=2, limits=limits)
            for task in [*find_policy(policy).build(serving, PolicyOptions(poll_s=0.0), limits), serving.arrivals()]:
                host.spawn(task)
            host.run_until()
            device.check()
            assert serving.num_finished == NUM_REQUESTS
            executor.reset()
    device.check()
    assert device.num_checked > 500
    for each in requests():
        expected = greedy_text(TARGET, executor.prompt(each), each.output_tokens)
        assert executor.outputs[each.index][: each.output_tokens] == expected


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("policy", ON_ONE_GPU)
def test_passes_of_a_policy_are_ordered_where_they_meet(policy: str, seed: int) -> None:
    run(policy, seed)


class Bug(NamedTuple):
    """One line of a function taken away or changed."""

    of: type
    function: str
    old: str
    new: str = "pass"

    def __str__(self) -> str:
        return f"{self.of.__name__}.{self.function}: {self.old} -> {self.new}"

    def mutated(self) -> Any:
        """The function with the bug in it."""
        function = getattr(self.of, self.function)
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(self.old) == 1, self
        names = dict(function.__globals__)
        exec(compile("from __future__ import annotations\n" + source.replace(self.old, self.new), "bug", "exec"), names)
        return names[self.function]


BUGS = [
    Bug(Issuer, "wait_for", "self.stream.wait(pending.end)"),
    Bug(Issuer, "wait_for", "pending.end", "pending.start"),
    Bug(Issuer, "issue", "former.values()"),
    Bug(Issuer, "issue", "self._users[turn] = pending"),
    Bug(Issuer, "issue", "self._users[turn]\n", "self._users[turn - 1]\n"),
    Bug(Issuer, "issue", "self._staging[turn]", "self._staging[0]"),
    Bug(Issuer, "issue", "start, self.stream.record(), is_graph", "start, start, is_graph"),
    Bug(Issuer, "issue", "self.stream.run(work)", "self.runs_on.stream().run(work)"),
    Bug(Issuer, "issue", "self.stream.run(work)", "work()"),
    Bug(
        Issuer,
        "issue",
        "inputs.copy_(staging.inputs[: len(rows)], non_blocking=True)",
        "self.runs_on.stream().run(lambda: inputs.copy_(staging.inputs[: len(rows)]))",
    ),
    Bug(
        Issuer,
        "issue",
        "on_host.copy_(results, non_blocking=True)",
        "self.runs_on.stream().run(lambda: on_host.copy_(results))",
    ),
    Bug(Pending, "values", "self.end.synchronize()"),
    Bug(Pending, "values", "self.end.synchronize()", "self.start.synchronize()"),
    Bug(PairKernels, "admit", "self.runs_on.run_now(admit)", "self.runs_on.stream().run(admit)"),
    Bug(PairLane, "issue", "self.issuer.wait_for(handle.passes[-1].pending)"),
    Bug(PairLane, "issue", "self.issuer.wait_for(handle", "handle.lane.issuer.wait_for(handle"),
    Bug(PairLane, "issue", "in after:", "in after[1:]:"),
    Bug(PairHandle, "finish", "self.passes[-1].pending.end.synchronize()"),
    Bug(PairExecutor, "_take_back", " and not self._num_in_flight.get(index)", ""),
    Bug(PairExecutor, "submitted", "self._num_in_flight.get(index, 0) + 1", "0"),
    Bug(PairExecutor, "settle", "submitted.result() for submitted", "submitted for submitted"),
]
