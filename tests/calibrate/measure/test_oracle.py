# ruff: noqa: E402
"""What is measured on a device whose truth is known comes back within 2 %, though its clock drifts and rounds, launches
come late, and whoever waits wakes up late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

torch = pytest.importorskip("torch")

from calibrate.fit.grid import Limits, coruns_within, grid
from calibrate.fit.point_works import TimedPass, work_of
from calibrate.measure.fits.overlap_fit import fit_overlap
from calibrate.measure.rates import measure
from calibrate.measure.timing import HOLD_S, WARM_RUNS, Bench
from realrun.host.executor import ExecutorLane, Handle, SubmittedWork
from realrun.kernels.device_passes import PassShape
from realrun.kernels.issuer import Issuer
from realrun.kernels.pair_kernels import PairKernels
from realrun.replay.machine_speed import DECODED, probe
from realrun.replay.pair_executor import PairExecutor
from sim.costs.forms.build import build_costs
from sim.costs.profile import Overlap
from sim.costs.profile_files import load
from sim.devices.contention import Contention, Regime
from sim.interface.host import Stream
from sim.interface.work import Chunk, Kind, Model, Work
from tests.properties import assert_refused, some
from tests.realrun.support import tiny_model, tiny_options
from tests.realrun.timed_device import (
    COPY_S,
    GRAPH_CALL_S,
    KERNEL_CALL_S,
    WAKE_S,
    Lasts,
    TimedDevice,
)
from tests.sim.support import request

TOLERANCE = 0.02
PROFILE = msgspec.structs.replace(load("h100-sxm/llama-2-7b+tinyllama-1.1b"), overlap=Overlap(demand_floor=0.0))
COSTS = build_costs(PROFILE)
LIMITS = Limits(rows=8, slot_tokens=2048, pass_tokens=2048, draft_tokens=4, has_draft=True, has_graphs=True)
ANYTHING = Lasts(1e-4)
"""Of passes that are only there to warm up."""


def truth_of(timed: TimedPass) -> Lasts:
    """What the profile says of the pass."""
    work = work_of(timed)
    cost = COSTS.cost(work)
    return Lasts(cost.device_s, cost.num_kernels, tuple(COSTS.demands(work)))


class Measured:
    """A bench on a timed device, whose passes compute nothing and last what the profile says."""

    def __init__(self, device: TimedDevice) -> None:
        model = tiny_model(layers=1, kv_heads=1, heads=1, max_context=4096)
        draft = tiny_model(seed=1, layers=1, kv_heads=1, heads=1, max_context=4096)
        options = tiny_options(slots=LIMITS.rows, max_tokens=LIMITS.slot_tokens)
        self.device, self.kernels = device, PairKernels(model, draft, options, runs_on=device)
        self.truth: dict[tuple[PassShape, int], Lasts] = {}
        """By shape and tokens in KV before the pass."""
        self.kernels.passes.run = self._run
        self.bench = Bench(self.kernels)

    def _run(self, shape: PassShape, inputs: Any) -> Any:
        decoder = self.kernels.target if shape.model is Model.TARGET else self.kernels.draft_model
        held = int(decoder.kv.lengths[int(inputs[0, 0])])
        self.device.launch(self.truth.get((shape, held), ANYTHING))
        # As passes do: one that is not set back is another one the next time.
        decoder.kv.lengths[inputs[:, 0]] += 1
        return inputs.new_zeros((shape.num_rows, 1 + shape.width if shape.model is Model.TARGET else 0))

    def knows(self, timed: TimedPass) -> Lasts:
        """Make the pass's truth known."""
        pass_, truth = self.bench.ready(timed), truth_of(timed)
        self.truth[pass_.shape, pass_.kv_tokens] = truth
        return truth


@pytest.mark.parametrize("drift_ppm", [-50.0, 20.0, 50.0])
def test_device_times_come_back_whatever_the_clock_and_the_launches(drift_ppm: float) -> None:
    measured = Measured(TimedDevice(drift_ppm=drift_ppm, start_s=5000.0))
    for timed in grid(LIMITS)[::3]:
        truth = measured.knows(timed)
        sample = measured.bench.timer(timed)()
        assert sample.device_s == pytest.approx(truth.device_s + 2 * COPY_S, rel=TOLERANCE), timed
        issue_s = GRAPH_CALL_S if timed.launch == "graphed" else KERNEL_CALL_S * truth.num_kernels
        assert sample.host_s == pytest.approx(issue_s, rel=TOLERANCE, abs=6e-6), timed


def test_the_held_pass_counts_as_the_first_begins_below_its_clocks() -> None:
    """And each begins with the slots set back: the truth is of a pass with just so many tokens in KV."""
    measured = Measured(TimedDevice())
    truth, launch = measured.knows(VERIFY), measured.device.launch

    launches = 0

    def cold(lasts: Lasts) -> None:
        nonlocal launches
        launches += 1
        launch(lasts._replace(device_s=2.0 * lasts.device_s) if launches <= WARM_RUNS else lasts)

    run = measured.bench.timer(VERIFY)
    measured.device.launch = cold  # type: ignore[method-assign]
    sample = run()
    assert sample.device_s == pytest.approx(truth.device_s + 2 * COPY_S, rel=TOLERANCE)
    # More than one launch of a graph that has not run yet would wait for the hold.
    assert measured.device.max_held_launches == 1


@contextmanager
def host_kept(
    measured: Measured, before_s: Callable[[Issuer], float], after_s: Callable[[bool], float]
) -> Iterator[None]:
    """The host is kept for so long from each launch, and behind it where the stream was held."""
    issue = Issuer.issue

    def issued(issuer: Issuer, *args: Any) -> Any:
        measured.device.host_s += before_s(issuer)
        is_held = measured.device.held_launches is not None
        pending = issue(issuer, *args)
        measured.device.host_s += after_s(is_held)
        return pending

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Issuer, "issue", issued)
        yield


VERIFY = TimedPass("verify", "target", 2, 5, 64, "graphed")


def test_a_pass_that_is_issued_slower_than_its_stream_is_held_is_timed_again() -> None:
    """Once; a launch that blocks until its hold is over counts as the host is ahead; a host always too busy is told."""
    measured = Measured(TimedDevice())
    truth, run = measured.knows(VERIFY), measured.bench.timer(VERIFY)
    delays_s = [3.0 * HOLD_S]
    with host_kept(measured, lambda issuer: delays_s.pop() if delays_s and issuer._graphs else 0.0, lambda _: 0.0):
        assert run().device_s == pytest.approx(truth.device_s, rel=TOLERANCE)
    assert delays_s == []
    with host_kept(measured, lambda _: 0.0, lambda is_held: 1.5 * measured.bench._hold_s if is_held else 0.0):
        sample = run()
    assert sample.device_s == pytest.approx(truth.device_s + 2 * COPY_S, rel=TOLERANCE)
    assert sample.host_s == pytest.approx(GRAPH_CALL_S, rel=TOLERANCE, abs=6e-6)
    with host_kept(measured, lambda _: 1.0, lambda _: 0.0):
        assert_refused(run, "the host is too busy to measure")


@pytest.mark.parametrize("delay_s", [0.0, 0.01])
def test_a_probe_on_a_gpu_sees_who_slows_the_device_and_not_who_slows_the_host(delay_s: float) -> None:
    measured = Measured(TimedDevice())
    issuers = [measured.kernels.issuer(name) for name in ("prefill", "decode")]
    assert probe(measured.kernels, issuers) == ()
    issuers[1].warm(DECODED, measured.kernels.sequences.scratch, capture=True)
    launch = measured.device.launch
    with host_kept(measured, lambda _: delay_s, lambda _: 0.0):
        for device_s in (0.02, 0.03):
            measured.device.launch = lambda _: launch(Lasts(device_s))  # type: ignore[method-assign]  # noqa: B023
            (probed_s,) = probe(measured.kernels, issuers)
            assert probed_s == pytest.approx(device_s + 2 * COPY_S, rel=TOLERANCE)


@pytest.mark.parametrize("phi", [0.05, 0.2])
def test_what_passes_do_to_each_other_comes_back(phi: float) -> None:
    measured = Measured(TimedDevice(contention=Contention(regime=Regime.LEFTOVER, phi=phi)))
    rates = []
    for corun in coruns_within(LIMITS):
        for timed in corun.passes:
            measured.knows(timed)
        rates.append(measure(measured.bench, corun, 0.0))
    fitted = fit_overlap(PROFILE, rates)
    assert some(fitted.overlap.phi).value == pytest.approx(phi, abs=0.01)
    three = fitted.errors["overlap_three"]
    assert three.points == 3
    assert three.max_error_pct is not None
    assert three.max_error_pct < 100.0 * TOLERANCE


class HostClock:
    is_virtual = False

    def __init__(self, device: TimedDevice) -> None:
        self._device, self._zero_s = device, device.host_s

    @property
    def now_s(self) -> float:
        return self._device.host_s - self._zero_s


def prefilled(measured: Measured, executor: PairExecutor, lane: ExecutorLane) -> tuple[Handle, Lasts]:
    """A prefill that is over, and what its pass lasts."""
    timed = TimedPass("prefill", "target", 1, 100, 0, "eager")
    measured.truth[measured.bench.ready(timed).shape, 0] = truth = Lasts(0.02, 200)
    work = Work(kind=Kind.PREFILL, requests=(request(0, prompt=100, output=3),), chunks=(Chunk(100, 0),), head_rows=1)
    job = SubmittedWork(work, (0,), (0,), None)
    executor.submitted(job)
    handle = lane.issue(job, ())
    handle.finish()
    return handle, truth


def test_a_request_has_its_slot_before_an_issuer_sees_its_first_work() -> None:
    """What an issuer does counts as the pass's launch."""
    measured = Measured(TimedDevice())
    executor = PairExecutor(measured.kernels, seed=3)
    first, second = request(0, prompt=100, output=3), request(1, prompt=70, output=3)
    host = SubmittedWork(Work(kind=Kind.HOST, requests=(second,)), (0,), (0,), None)
    work = Work(kind=Kind.PREFILL, requests=(first,), chunks=(Chunk(100, 0),), head_rows=1)
    for job in (host, SubmittedWork(work, (0,), (0,), None)):
        executor.submitted(job)
    measured.device.synchronize()
    assert {100, 70} & set(measured.kernels.sequences.lengths.tolist()) == {100}


def test_no_work_ends_after_its_result_was_there() -> None:
    """A look at two clocks nine seconds ago is wrong by more than a result's way."""
    measured = Measured(TimedDevice(drift_ppm=-50.0))
    executor = PairExecutor(measured.kernels, seed=3)
    clock: Any = HostClock(measured.device)
    lane = executor.lane(Stream(name="prefill", device=0), clock)
    measured.device.host_s += 9.0
    handle, _ = prefilled(measured, executor, lane)
    over_s = clock.now_s
    assert handle.times_s()[1] <= over_s
    executor.ran()
    assert handle.times_s()[1] == pytest.approx(over_s - WAKE_S, abs=2e-5)


def test_a_work_starts_with_its_pass_and_its_issuer_waits_for_no_admission() -> None:
    """Whatever the host runs and waits for takes 30 ms."""
    measured = Measured(TimedDevice(drift_ppm=30.0, start_s=900.0))
    measured.device.run_now_s = 0.03
    executor = PairExecutor(measured.kernels, seed=3)
    clock: Any = HostClock(measured.device)
    lane = executor.lane(Stream(name="prefill", device=0), clock)
    handle, truth = prefilled(measured, executor, lane)
    executor.ran()
    start_s, end_s = handle.times_s()
    assert clock.now_s < measured.device.run_now_s
    assert end_s - start_s == pytest.approx(truth.device_s, rel=TOLERANCE)
    assert 0.0 < clock.now_s - end_s < 5e-4
