# ruff: noqa: E402
"""What is rehearsed before a measured run: by an allocator that counts, nothing is allocated in the run itself."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from realrun.host.device import Cpu
from realrun.kernels.issuer import Issuer
from realrun.kernels.pair_kernels import PairKernels
from realrun.replay.pair_executor import PairExecutor
from realrun.replay.run import REHEARSAL_REQUESTS, replay
from realrun.replay.testbed import SPARE_SLOTS, build_kernels, sizes_for
from sim.costs.profile_files import load
from sim.run.experiment import Experiment
from sim.run.resolve import resolve
from sim.run.scenario import Scenario

CONCURRENCY = 12
assert max(REHEARSAL_REQUESTS, SPARE_SLOTS) < CONCURRENCY


class CountingCpu(Cpu):
    """Goes to the driver whenever a stream's pass is larger than all before it, as an allocator that keeps its blocks
    does."""

    def __init__(self) -> None:
        self.count = 0

    def num_allocations(self) -> int:
        return self.count


def counted(kernels: PairKernels) -> CountingCpu:
    """An allocator that sees what the streams of `kernels` run."""
    device, new = CountingCpu(), kernels._new_issuer

    def new_issuer(name: str, priority: int) -> Issuer:
        issuer = new(name, priority)
        program, held = issuer.program, [0, 0]

        def run(shape: object, inputs: torch.Tensor) -> torch.Tensor:
            for number, needed in enumerate((shape.num_tokens, shape.num_rows)):  # type: ignore[attr-defined]
                device.count += needed > held[number]
                held[number] = max(held[number], needed)
            return program(shape, inputs)  # type: ignore[arg-type]

        issuer.program = run
        return issuer

    kernels._new_issuer, kernels.runs_on = new_issuer, device  # type: ignore[method-assign]
    return device


@pytest.mark.parametrize("policy", ["pdv", "continuous"])
def test_a_run_of_more_requests_than_were_rehearsed_allocates_nothing(policy: str) -> None:
    scenario = Scenario.of(
        profile="cpu/tiny",
        policy=policy,
        request_rate="inf",
        max_concurrency=CONCURRENCY,
        num_prompts=15,
        input_len=20,
        output_len=6,
    )
    profile = load("cpu/tiny")
    planned = Experiment(resolve(scenario, profile, policy, num_slots=1), 0)
    sizes = sizes_for([planned], torch.device("cpu"))
    kernels = build_kernels(profile, sizes, torch.device("cpu"), temperature=0.0, seed=0)
    device = counted(kernels)
    slots = sizes.slots - SPARE_SLOTS
    experiment = Experiment(resolve(scenario, profile, policy, num_slots=slots), 0)
    executor = PairExecutor(kernels, seed=0)
    # The first run's mixed passes are of the kinds that the second one's rehearsal knows of: as many rows, and as many
    # prompts, as fit the buffers together.
    assert [replay(experiment, executor).num_allocations for _ in range(2)] == [0, 0]
    assert device.count > 0
