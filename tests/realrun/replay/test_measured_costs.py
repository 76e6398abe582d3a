"""Times of a measured work: what is its issuer's, and what is the device's."""

from __future__ import annotations

import msgspec
import pytest

from realrun.replay.measured_costs import MeasuredWork
from tests.sim.report.test_timelines import WORK


@pytest.mark.parametrize(
    ("start_s", "prepare_s", "launch_s"),
    [
        # The device waited: inputs were put together up to 1.3.
        (1.3, 0.5, 0.7),
        # It was busy with another work until after the launch.
        (2.5, 0.2, 1.0),
    ],
)
def test_the_host_has_a_work_up_to_its_first_kernel_where_the_device_waited_for_it(
    start_s: float, prepare_s: float, launch_s: float
) -> None:
    times = {"submitted_s": 0.7, "issue_start_s": 1.0, "issued_s": 2.0, "start_s": start_s, "end_s": 4.0}
    record = msgspec.structs.replace(WORK, kind="verify", ready_s=4.0, **times)
    cost = MeasuredWork(record=record, eligible_s=0.8, reacted_s=4.1, padded_tokens=1, emitted=(1,)).cost
    assert tuple(cost)[:3] == pytest.approx((prepare_s, launch_s, 4.0 - start_s))
