# ruff: noqa: E402
"""The checks of the smoke step that a CPU cannot fail, on a device whose times are virtual."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from calibrate.measure.campaign import smoke
from calibrate.measure.campaign.plan import CAMPAIGNS
from calibrate.measure.campaign.smoke import Ground, run_check
from realrun.host.device import DeviceStream, RealDevice
from realrun.model.attention import GatheringAttention
from tests.realrun.timed_device import TimedDevice


class Gpu(TimedDevice):
    """So many queues of hardware, which streams beyond them share."""

    def __init__(self, num_queues: int) -> None:
        super().__init__()
        self.num_queues, self.numbers = num_queues, count()

    def stream(self, priority: int = 0) -> DeviceStream:
        number = next(self.numbers)
        return super().stream(priority) if number < self.num_queues else self.streams[number % self.num_queues]


def ground(device: RealDevice, name: str = "cpu") -> Ground:
    return Ground(name, device, CAMPAIGNS["cpu"].job)


def test_streams_that_share_a_queue_are_red() -> None:
    """Eight on two queues: four held one after the other."""
    free, shared = (run_check(smoke.streams, ground(Gpu(number))) for number in (32, 2))
    assert (free["is_ok"], free["said"]) == (True, "8 held at once took 1.00 times as long as one")
    assert (shared["is_ok"], shared["said"]) == (
        False,
        "8 streams held at once took 4.0 times as long as one: they queue",
    )


def test_attention_that_is_not_the_references_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that sees one token too few of every row."""
    (shape,) = {source.shape for source in (ground(RealDevice()).spec.target,)}
    where = torch.device("cpu")
    assert smoke._difference(shape, where) == 0.0

    class Short(GatheringAttention):
        def plan(self, rectangles: Any) -> Any:
            return super().plan([each._replace(starts=each.starts - 1) for each in rectangles])

    monkeypatch.setattr(smoke, "make_attention", Short)
    with pytest.raises(smoke.Red, match="off the reference for tiny-target"):
        smoke._difference(shape, where)


def test_a_check_that_raises_is_red_and_says_why() -> None:
    def out_of_memory(_: Ground) -> str:
        raise RuntimeError("CUDA out of memory.\nTried to allocate 2 GiB")

    check = run_check(out_of_memory, ground(RealDevice()))
    assert (check["name"], check["is_ok"]) == ("out_of_memory", False)
    assert check["said"] == "CUDA out of memory. Tried to allocate 2 GiB"
