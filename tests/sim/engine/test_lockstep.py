"""Data-parallel ranks that share their experts: steps begin together, and cost what the tokens of all ranks cost."""

from __future__ import annotations

import msgspec
import pytest

from sim.costs.forms.build import build_costs
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.costs.table_kernels import Curve
from sim.interface.request import Request
from sim.interface.work import Chunk, Kind, Work
from sim.metrics.records import RunRecord
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate


def ranks(share: float = 0.5) -> Profile:
    """One of two ranks, of whose bodies `share` is the experts'."""
    profile = load("rtx-pro-6000-server/qwen3-30b-a3b")
    body = profile.table.target.body
    experts = Curve(tokens=body.tokens, seconds=tuple(share * value for value in body.seconds))
    target = msgspec.structs.replace(profile.table.target, experts=experts)
    kernels = msgspec.structs.replace(profile.table, target=target)
    return msgspec.structs.replace(profile, data_parallel=2, kernels=kernels)


def served(profile: Profile, requests: list[Request], count: int = 2) -> RunRecord:
    given = {"profile": profile.name, "policy": "autoregressive", "num_prompts": len(requests), "request_rate": 1}
    scenario = Scenario.of(**given, **{"devices.count": count})
    return simulate(resolve(scenario, profile, "autoregressive"), 0, requests=requests, record_works=True)


def request(index: int, arrival_s: float, prompt_tokens: int, output_tokens: int) -> Request:
    return Request(index, str(index), arrival_s, prompt_tokens, output_tokens)


def long_beside_short() -> list[Request]:
    """Decode on rank 0; a long prompt comes to rank 1."""
    return [request(0, 0.0, 64, 200), request(1, 0.5, 8000, 20)]


def test_a_step_of_one_rank_begins_when_that_of_the_other_is_over() -> None:
    record = served(ranks(), long_beside_short())
    steps: dict[str, list[tuple[float, float]]] = {}
    for work in record.works:
        steps.setdefault(work.stream, []).append((work.start_s, work.end_s))
    first, second = steps.values()
    met = [(a, b) for a in first for b in second if a[0] < b[1] and b[0] < a[1]]
    assert len(met) == len(second) == 20
    assert all(abs(a[0] - b[0]) < 2e-3 for a, b in met), "no more than the hosts' preparation apart"


def test_a_long_prompt_on_one_rank_holds_up_the_other() -> None:
    lockstep, alone = (served(profile, long_beside_short()) for profile in (ranks(), load(ranks().name)))
    prompt_s = lockstep.requests[1].first_token_s - lockstep.requests[1].arrival_s
    late_s = lockstep.requests[0].last_token_s - alone.requests[0].last_token_s
    assert late_s > 0.5 * prompt_s


def test_experts_cost_what_the_tokens_of_all_ranks_cost() -> None:
    costs = build_costs(ranks(0.5), cuda_graph=False)
    body_s = build_costs(load(ranks().name), cuda_graph=False).passes(Work(kind=Kind.STEP).model).body_s

    def device_s(group_tokens: int) -> float:
        return costs.cost(Work(kind=Kind.STEP, chunks=(Chunk(512, 0),), group_tokens=group_tokens)).device_s

    assert device_s(1024) == pytest.approx(device_s(0))
    assert device_s(512 + 1536) - device_s(0) == pytest.approx(0.5 * (body_s(1024) - body_s(512)))
    assert device_s(512) < device_s(0)


def test_ranks_of_a_profile_that_does_not_say_what_they_share_are_refused() -> None:
    profile = msgspec.structs.replace(load("rtx-pro-6000-server/qwen3-30b-a3b"), data_parallel=2)
    with pytest.raises(ValueError, match=r"does not say what its 2 ranks do together"):
        served(profile, long_beside_short())


def test_a_rank_that_was_idle_joins_between_two_steps() -> None:
    """Its prompt is begun when the step under way ends, and no request is lost."""
    requests = [request(i, 0.013 * i, 100, 5 + 40 * (i % 2)) for i in range(12)]
    record = served(ranks(), requests)
    assert all(each.is_finished for each in record.requests)
