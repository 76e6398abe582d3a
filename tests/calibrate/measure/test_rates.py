# ruff: noqa: E402
"""Rates on a device whose truth is known: works that take turns, that share, and that do not meet."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from calibrate.fit.point_works import Corun, TimedPass
from calibrate.fit.points_file import Ran
from calibrate.measure import rates
from calibrate.measure.rates import MIN_PASSES, ROUNDS, measure, periods, steady
from calibrate.measure.timing import Bench
from realrun.kernels.issuer import Issuer
from realrun.kernels.pair_kernels import PairKernels
from sim.devices.contention import Contention, Regime
from sim.interface.work import Kind
from tests.realrun.support import tiny_model, tiny_options
from tests.realrun.timed_device import Lasts, TimedDevice

TOLERANCE = 0.02
LONG_S, SHORT_S = 0.02, 0.005
PREFILL = TimedPass("prefill", "target", 2, 16, 0, "graphed")
DECODE = TimedPass("decode", "target", 3, 1, 32, "graphed")
DRAFT = TimedPass("draft", "draft", 2, 2, 32, "graphed")
VERIFY = TimedPass("verify", "target", 2, 3, 32, "graphed")


def measured(
    corun: Corun,
    demands: dict[str, tuple[float, float]],
    device: TimedDevice | None = None,
    kernels: tuple[int, int] = (1, 1),
) -> Ran:
    """Of passes that compute nothing: the target's prefill lasts LONG_S, as a draft does; all others SHORT_S. `kernels`
    are those of a long and a short one."""
    runs_on = device or TimedDevice()
    sizes: dict[str, Any] = {"layers": 1, "kv_heads": 1, "heads": 1, "max_context": 512}
    options = tiny_options(slots=8, max_tokens=128)
    pair = PairKernels(tiny_model(**sizes), tiny_model(seed=1, **sizes), options, runs_on=runs_on)

    first, second = corun.passes
    others = range(first.rows, first.rows + second.rows)

    def run(shape: Any, inputs: Any) -> Any:
        is_long = shape.kind in (Kind.PREFILL, Kind.DRAFT)
        side = first if is_long else second
        slots = set(inputs[:, 0].tolist())
        assert slots == {pair.sequences.scratch} or slots == set(range(side.rows) if is_long else others)
        runs_on.launch(Lasts(LONG_S if is_long else SHORT_S, kernels[0 if is_long else 1], demands[side.kind]))
        return inputs.new_zeros((shape.num_rows, 1 + shape.width if side.model == "target" else 0))

    pair.passes.run = run  # type: ignore[method-assign]
    return measure(Bench(pair), corun, 0.1)


@pytest.mark.parametrize(
    "corun", [Corun((PREFILL, DECODE)), Corun((PREFILL._replace(launch="eager"), DECODE)), Corun((DRAFT, VERIFY))]
)
def test_two_works_that_want_the_same_whole_device_have_half_of_it_each(corun: Corun) -> None:
    device = TimedDevice()
    found = measured(corun, {timed.kind: (1.0, 0.0) for timed in corun.passes}, device)
    assert device.max_waiting == 2
    for side, alone_s in zip(found.sides, (LONG_S, SHORT_S), strict=True):
        assert side.alone_s == pytest.approx(alone_s, rel=TOLERANCE)
        assert side.rates == pytest.approx([0.5] * ROUNDS, rel=TOLERANCE)


def test_works_that_take_turns_kernel_by_kernel_run_by_the_lengths_of_their_kernels() -> None:
    """Kernels of 80 us in the prefill and of 40 us in the decode."""
    device = TimedDevice(contention=Contention(regime=Regime.SERIAL))
    demands = {"prefill": (1.0, 0.0), "decode": (1.0, 0.0)}
    found = measured(Corun((PREFILL, DECODE)), demands, device, kernels=(250, 125))
    for side, rate in zip(found.sides, (2 / 3, 1 / 3), strict=True):
        assert side.rates == pytest.approx([rate] * ROUNDS, rel=TOLERANCE)


def test_the_sides_take_turns_in_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []

    def seen(starts_s: Sequence[float], ends_s: Sequence[Sequence[float]]) -> list[list[float]]:
        found.extend("ab"[starts_s[0] > starts_s[1]] for _ in starts_s[1:])
        return periods(starts_s, ends_s)

    monkeypatch.setattr(rates, "periods", seen)
    measured(Corun((PREFILL, DECODE)), {"prefill": (1.0, 0.0), "decode": (1.0, 0.0)})
    assert "".join(found) == "abab"


def test_two_works_on_different_roofs_do_not_slow_each_other_down() -> None:
    found = measured(Corun((PREFILL, DECODE)), {"prefill": (1.0, 0.0), "decode": (0.0, 1.0)})
    assert [rate for side in found.sides for rate in side.rates] == pytest.approx([1.0] * 2 * ROUNDS, rel=TOLERANCE)


def test_unequal_demands_come_back_as_the_rates_that_fill_the_roof() -> None:
    """Both at 1 / 1.6 of their own speed use the compute roof up."""
    found = measured(Corun((PREFILL, DECODE)), {"prefill": (1.0, 0.0), "decode": (0.6, 0.0)})
    assert [rate for side in found.sides for rate in side.rates] == pytest.approx([0.625] * 2 * ROUNDS, rel=TOLERANCE)


def test_works_that_take_turns_pass_by_pass_have_their_shares_of_the_time() -> None:
    """Shares of 0.2 and 0.8: r = s + phi (1 - s) with phi 0."""
    turn_s = LONG_S + SHORT_S
    ends_a = [turn_s * number + LONG_S for number in range(10)]
    ends_b = [turn_s * (number + 1) for number in range(10)]
    found = periods([0.0, LONG_S], [ends_a, ends_b])
    assert [len(each) for each in found] == [9, 8]
    for each, alone_s, share in zip(found, (LONG_S, SHORT_S), (0.8, 0.2), strict=True):
        assert steady([[alone_s] * 9], [each]).rates == pytest.approx((share,))


def test_a_side_that_hardly_ran_beside_the_other_is_refused() -> None:
    with pytest.raises(ValueError, match="hardly ran while the others did"):
        periods([0.0, 10.0], [[1.0, 2.0, 11.0], [12.0, 13.0]])


@pytest.mark.parametrize("num_busy", [2, 3])
def test_a_window_in_which_a_side_hardly_ran_is_taken_again_twice_as_long(
    num_busy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread may be kept from its core for one window; a host that is always busy is told."""
    kept: list[int] = []

    def busy(starts_s: Sequence[float], ends_s: Sequence[Sequence[float]]) -> list[list[float]]:
        found = periods(starts_s, ends_s)
        if len(starts_s) == 2 and len(kept) < num_busy:
            kept.append(min(map(len, found)))
            raise rates.Starved("one pass hardly ran")
        return found

    monkeypatch.setattr(rates, "periods", busy)
    demands = {"prefill": (1.0, 0.0), "decode": (1.0, 0.0)}
    if num_busy == rates.WINDOWS:
        with pytest.raises(ValueError, match="hardly ran"):
            measured(Corun((PREFILL, DECODE)), demands)
    else:
        found = measured(Corun((PREFILL, DECODE)), demands)
        assert found.sides[0].rates == pytest.approx([0.5] * ROUNDS, rel=TOLERANCE)
    assert [number >= 2**window * (MIN_PASSES - 1) for window, number in enumerate(kept)] == [True] * num_busy
    assert [number < 3 * 2**window * MIN_PASSES for window, number in enumerate(kept)] == [True] * num_busy


def test_a_side_that_fails_ends_the_other_one_too() -> None:
    """Which would wait for its passes for ever."""
    issue, count = Issuer.issue, [0]

    def failing(issuer: Issuer, *args: Any) -> Any:
        is_second = threading.current_thread() is not threading.main_thread() and issuer.name.endswith("1")
        count[0] += is_second
        if is_second and count[0] > 2:
            raise RuntimeError("an illegal memory access was encountered")
        return issue(issuer, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Issuer, "issue", failing)
        with pytest.raises(RuntimeError, match="illegal memory access"):
            measured(Corun((PREFILL, DECODE)), {"prefill": (1.0, 0.0), "decode": (1.0, 0.0)})
