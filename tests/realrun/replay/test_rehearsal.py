# ruff: noqa: E402
"""What is rehearsed before a measured run: by an allocator that counts, nothing is allocated in the run itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from realrun.host.device import DeviceStream, RealDevice, _CpuStream
from realrun.kernels.device_passes import ChunkShape, PassShape
from realrun.kernels.host_slots import PairOptions
from realrun.kernels.issuer import Issuer
from realrun.kernels.pair_kernels import PairKernels
from realrun.replay import replays
from realrun.replay.pair_executor import PairExecutor
from realrun.replay.replays import REHEARSAL_REQUESTS, Replay, largest_passes, replay, result_of
from realrun.replay.testbed import SPARE_SLOTS, build_kernels, sizes_for
from sim.costs.profile_files import load
from sim.interface.work import Kind, Model
from sim.policies.continuous.loop import continuous
from sim.policies.registry import register
from sim.run.experiment import Experiment, PolicyStalled
from sim.run.resolve import resolve
from sim.run.scenario import Scenario

CONCURRENCY = 12
assert max(REHEARSAL_REQUESTS, SPARE_SLOTS) < CONCURRENCY


class CountingCpu(RealDevice):
    """Goes to the driver whenever a stream's pass is larger than all before it, as an allocator that keeps its blocks
    does; a capture gives back what all streams have, and a graph's own memory is another."""

    def __init__(self) -> None:
        self.count = 0
        self.held: list[list[int]] = []
        """Tokens and rows of the largest pass so far, by stream."""
        self.is_graph = False

    def num_allocations(self) -> int:
        return self.count

    def stream(self, priority: int = 0) -> DeviceStream:
        return CapturingStream(self)

    def ran(self, held: list[int], *sizes: int) -> None:
        for number, needed in enumerate(sizes if not self.is_graph else ()):
            self.count += needed > held[number]
            held[number] = max(held[number], needed)


class CapturingStream(_CpuStream):
    def __init__(self, device: CountingCpu) -> None:
        self.device = device

    def capture(self, work: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        for held in self.device.held:
            held[:] = [0, 0]

        def replay() -> torch.Tensor:
            self.device.is_graph = True
            try:
                return work()
            finally:
                self.device.is_graph = False

        return replay


def counted(kernels: PairKernels) -> CountingCpu:
    """An allocator that sees what the streams of `kernels` run."""
    device, new = CountingCpu(), kernels.new_issuer

    def new_issuer(name: str, stream: DeviceStream) -> Issuer:
        issuer = new(name, stream)
        program, held = issuer.program, [0, 0]
        device.held.append(held)

        def run(shape: PassShape, inputs: torch.Tensor) -> torch.Tensor:
            device.ran(held, shape.num_tokens, shape.num_rows)
            return program(shape, inputs)

        issuer.program = run
        return issuer

    kernels.new_issuer, kernels.runs_on = new_issuer, device  # type: ignore[method-assign]
    return device


def runs(policies: Sequence[str], *, has_graphs: bool) -> tuple[list[Replay], CountingCpu]:
    """One after the other on the same kernels, each of more requests than are rehearsed."""
    scenario = Scenario.of(
        profile="cpu/tiny",
        policy=policies[0],
        request_rate="inf",
        max_concurrency=CONCURRENCY,
        num_prompts=15,
        input_len=20,
        output_len=6,
    )
    profile = load("cpu/tiny")
    planned = Experiment(resolve(scenario, profile, policies[0], num_slots=1), 0)
    sizes = sizes_for([planned], torch.device("cpu"))
    kernels = build_kernels(profile, sizes, torch.device("cpu"), seed=0)
    slots = sizes.slots - SPARE_SLOTS
    if has_graphs:
        # Nothing is really captured here.
        object.__setattr__(kernels.options, "cuda_graphs", True)
        object.__setattr__(kernels.options, "batch_buckets", (slots,))
    device, executor = counted(kernels), PairExecutor(kernels, seed=0)
    experiments = [Experiment(resolve(scenario, profile, policy, num_slots=slots), 0) for policy in policies]
    return [replay(experiment, executor) for experiment in experiments], device


@pytest.fixture(scope="module", params=["pdv", "continuous"])
def twice(request: pytest.FixtureRequest) -> tuple[list[Replay], CountingCpu]:
    return runs([request.param, request.param], has_graphs=False)


def test_a_run_of_more_requests_than_were_rehearsed_allocates_nothing(twice: tuple[list[Replay], CountingCpu]) -> None:
    """The first run's mixed passes are of the kinds that the second one's rehearsal knows of: as many rows, and as many
    prompts, as fit the buffers together."""
    done, device = twice
    assert [each.num_allocations for each in done] == [0, 0]
    assert device.count > 0


def test_a_policy_that_follows_others_allocates_nothing_although_its_captures_emptied_the_allocator() -> None:
    done, _ = runs(["pdv", "continuous"], has_graphs=True)
    assert [each.num_allocations for each in done] == [0, 0]


def test_runs_of_which_one_went_to_the_driver_once_are_called_disturbed(
    twice: tuple[list[Replay], CountingCpu],
) -> None:
    (quiet, other), _ = twice
    for count in (0, 1):
        both = [quiet, replace(other, num_allocations=count)]
        about = result_of(quiet.experiment.scenario, both, {})["replay"]
        assert about["num_device_allocations"] == count
        assert about["is_disturbed_by_allocations"] is (count == 1)


def test_every_draft_length_that_a_hook_may_choose_is_captured_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    drafts: list[tuple[int, bool]] = []
    issue, measured = Issuer.issue, replays.run

    def watched(self: Issuer, shape: PassShape, rows: Any) -> Any:
        pending = issue(self, shape, rows)
        if shape.kind is Kind.DRAFT and not shape.chunks:
            drafts.append((shape.draft_tokens, pending.is_graph))
        return pending

    def begun(*given: Any) -> Any:
        monkeypatch.setattr(Issuer, "issue", watched)
        return measured(*given)

    monkeypatch.setattr(replays, "run", begun)
    changing = continuous(name="changing", draft_length=lambda request, tokens, step: 1 + step.num_rows % tokens)
    runs([register(changing).name], has_graphs=True)
    assert len({draft_tokens for draft_tokens, _ in drafts}) > 1
    assert all(is_graph for _, is_graph in drafts)


def test_a_policy_that_stops_with_requests_unserved_is_named_at_its_rehearsal() -> None:
    stuck = register(continuous(name="stuck", admit=lambda waiting: None)).name
    with pytest.raises(PolicyStalled, match="policy 'stuck' stopped with 4 of 4 requests unfinished"):
        runs([stuck], has_graphs=False)


def test_the_largest_passes_fit_buffers_of_as_many_rows_as_are_served_at_once() -> None:
    """Whoever prefills beside the others has a slot in which nobody decodes."""
    given = Scenario.of(
        profile="cpu/tiny", policy="continuous", request_rate="inf", max_concurrency=4, num_prompts=4, input_len=20
    )
    experiment = Experiment(resolve(given, load("cpu/tiny"), "continuous", num_slots=4), 0)
    seen = [
        PassShape(Kind.VERIFY, Model.TARGET, 2, 3),
        PassShape(Kind.PREFILL, Model.TARGET, chunks=(ChunkShape(1, 20, True),)),
    ]
    for slots in (1, 4):
        options = PairOptions(slots=slots, max_tokens=64)
        assert max(shape.num_rows for shape in largest_passes(seen, experiment, options)) <= slots
