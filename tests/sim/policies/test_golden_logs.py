"""Event logs that can be summed by hand: prefill 10 s, draft 2 s, verify and step 5 s, every draft accepted.

Request 0 arrives at 0 s and wants 6 tokens (prefill 1, one round of 5), request 1 at 1 s and wants 4. First tokens
leave with all that their step computes: the target's pass and then the draft model's. Streams share the device's time:
from 20 s on draft and verify of request 0 run at half their rate beside the prefill of request 1.
"""

from __future__ import annotations

import pytest

from sim.costs.cost import Demands
from sim.devices.contention import Contention
from sim.policies.registry import PolicyOptions
from tests.sim.constant_costs import ConstantCosts
from tests.sim.devices.test_partition import PLAIN
from tests.sim.support import SECONDS, AlwaysAccept, SimRun, request

STEPS = [
    (0.0, 5.0, "gpu", "step", (0,)),
    (5.0, 10.0, "gpu", "step", (0, 1)),
    (10.0, 15.0, "gpu", "step", (0, 1)),
    (15.0, 20.0, "gpu", "step", (0, 1)),
    (20.0, 25.0, "gpu", "step", (0, 1)),
    (25.0, 30.0, "gpu", "step", (0,)),
]
LANES = [
    (0.0, 10.0, "prefill", "prefill", (0,)),
    (10.0, 20.0, "prefill", "prefill", (0,)),
    (20.0, 24.0, "decode", "draft", (0,)),
    (24.0, 34.0, "verify", "verify", (0,)),
    (20.0, 37.0, "prefill", "prefill", (1,)),
    (37.0, 47.0, "prefill", "prefill", (1,)),
    (47.0, 49.0, "decode", "draft", (1,)),
    (49.0, 54.0, "verify", "verify", (1,)),
]
GOLDEN = {
    "autoregressive": (STEPS, [(5.0, 30.0), (10.0, 25.0)]),
    "continuous": (
        [
            (0.0, 5.0, "gpu", "step", (0,)),
            (5.0, 7.0, "gpu", "draft", (0, 0)),
            (7.0, 12.0, "gpu", "step", (0, 1)),
            (12.0, 14.0, "gpu", "draft", (0, 1, 1)),
            (14.0, 19.0, "gpu", "step", (1,)),
            (19.0, 21.0, "gpu", "draft", (1,)),
        ],
        [(7.0, 14.0), (14.0, 21.0)],
    ),
    "baseline": (
        [
            (0.0, 10.0, "gpu", "prefill", (0,)),
            (10.0, 20.0, "gpu", "prefill", (0,)),
            (20.0, 30.0, "gpu", "prefill", (1,)),
            (30.0, 40.0, "gpu", "prefill", (1,)),
            (40.0, 42.0, "gpu", "draft", (0,)),
            (42.0, 47.0, "gpu", "verify", (0,)),
            (47.0, 49.0, "gpu", "draft", (1,)),
            (49.0, 54.0, "gpu", "verify", (1,)),
        ],
        [(20.0, 47.0), (40.0, 54.0)],
    ),
    "pd": (
        [
            (start, end, "decode" if stream == "verify" else stream, kind, rows)
            for start, end, stream, kind, rows in LANES
        ],
        [(20.0, 34.0), (47.0, 54.0)],
    ),
    "pdv": (LANES, [(20.0, 34.0), (47.0, 54.0)]),
    "unified": (
        [
            (start, end, "draft" if stream == "decode" else stream, kind, rows)
            for start, end, stream, kind, rows in LANES
        ],
        [(20.0, 34.0), (47.0, 54.0)],
    ),
}


def two_requests() -> list:
    return [request(0, output=6), request(1, arrival_s=1.0, output=4)]


@pytest.mark.parametrize("policy", GOLDEN)
def test_two_requests_take_the_times_summed_by_hand(policy: str) -> None:
    works, tokens = GOLDEN[policy]
    run = SimRun(policy, two_requests(), draws=AlwaysAccept())
    assert run.works == works
    assert [(r.first_token_s, r.last_token_s) for r in run.serving.requests] == tokens


@pytest.mark.parametrize(
    ("policy", "partition", "streams", "round_s"),
    [
        ("pd", {"prefill": 0.5, "decode": 0.5}, ("decode", "decode"), (4.0, 10.0)),
        ("pdv", {"prefill": 0.5, "decode": 0.25, "verify": 0.25}, ("decode", "verify"), (8.0, 20.0)),
        ("unified", {"prefill": 0.5, "draft": 0.125, "verify": 0.25}, ("draft", "verify"), (16.0, 20.0)),
        # Draft and verify take turns, so each has all that is left while it runs.
        ("unified", {"prefill": 0.5}, ("draft", "verify"), (4.0, 10.0)),
    ],
)
def test_lanes_on_shares_neither_help_nor_disturb_each_other(
    policy: str, partition: dict[str, float], streams: tuple[str, str], round_s: tuple[float, float]
) -> None:
    """Works that only compute take 1 / share as long: prefills 20 s on half a device, of target and draft in turn."""
    draft, verify = streams
    draft_s, verify_s = round_s
    run = SimRun(
        policy,
        two_requests(),
        draws=AlwaysAccept(),
        options=PolicyOptions(poll_s=0.0, partition=partition),
        costs=ConstantCosts(device_s=SECONDS, demand=Demands(1.0, 0.0)),
        contention=Contention(curve=PLAIN),
    )
    assert run.works == sorted(
        [
            (0.0, 20.0, "prefill", "prefill", (0,)),
            (20.0, 40.0, "prefill", "prefill", (0,)),
            (40.0, 60.0, "prefill", "prefill", (1,)),
            (60.0, 80.0, "prefill", "prefill", (1,)),
            (40.0, 40.0 + draft_s, draft, "draft", (0,)),
            (40.0 + draft_s, 40.0 + draft_s + verify_s, verify, "verify", (0,)),
            (80.0, 80.0 + draft_s, draft, "draft", (1,)),
            (80.0 + draft_s, 80.0 + draft_s + verify_s, verify, "verify", (1,)),
        ],
        key=lambda work: work[1],
    )
    assert [(r.first_token_s, r.last_token_s) for r in run.serving.requests] == [
        (40.0, 40.0 + sum(round_s)),
        (80.0, 80.0 + sum(round_s)),
    ]


def test_an_idle_worker_wakes_on_its_own_polling_grid() -> None:
    """Polls every 4 s from 0: one of 1 s is seen at 4 s, its prompt, through both models at 24 s, then."""
    run = SimRun("pd", [request(0, arrival_s=1.0)], draws=AlwaysAccept(), options=PolicyOptions(poll_s=4.0))
    starts = [work[0] for work in run.works]
    assert starts == [4.0, 14.0, 24.0, 26.0]
    assert run.host.num_polls == 1 + 6
