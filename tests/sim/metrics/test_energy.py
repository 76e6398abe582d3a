"""Energy of runs in closed form: idle GPUs, full ones, works side by side; and where results have it."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import pytest

from sim.cli.main import run as command
from sim.costs.cost import Demands
from sim.costs.datasheets import DATASHEETS, POWER, Power
from sim.costs.forms.build import build_costs
from sim.costs.passes import PassUse
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.hosts.simulated import SimHost
from sim.interface.work import Kind, Model, Work
from sim.metrics.energy import EXPONENT, PowerMeter, PowerTrace, power_of
from sim.metrics.records import RunRecord
from sim.metrics.summary import number, summarise
from sim.run.resolve import resolve
from sim.run.scenario import Scenario, to_plain
from sim.run.simulate import simulate
from sim.studies.sweeps.store_rows import scenario_columns
from tests.sim.constant_costs import ConstantCosts
from tests.sim.support import SECONDS, AlwaysAccept, SimRun, request

IDLE_W, LIMIT_W = POWER["a100-sxm"]
A100 = "a100-sxm/llama-3.1-8b"


class ByShare(ConstantCosts, frozen=True, kw_only=True):
    """Works that use so much of both roofs of an A100 together while they run at full rate."""

    share: float

    def use(self, work: Work) -> PassUse:
        return PassUse(self.share * DATASHEETS["a100-sxm"].gpu.peak_flops * self.cost(work).device_s, 0.0)


def trace(*works: tuple[float, float, float], num_gpus: int = 1) -> PowerTrace:
    """Of one device; works are start, end, utilisation."""
    flat = array("d", [value for work in works for value in work])
    return PowerTrace(powers=[Power(IDLE_W, LIMIT_W)], num_gpus=[num_gpus], works=[flat])


def watts(utilisation: float) -> float:
    return IDLE_W + (LIMIT_W - IDLE_W) * utilisation**EXPONENT


def record(**changes: Any) -> RunRecord:
    asked = {"profile": A100, "policy": "autoregressive", "input_len": 64, "output_len": 16, "num_prompts": 30}
    scenario = Scenario.of(**(asked | {"request_rate": 20.0, "energy": True} | changes))
    return simulate(resolve(scenario, load(scenario.profile), scenario.policy[0]), 0)


@pytest.mark.parametrize(
    ("works", "stretch", "joules"),
    [
        ([], (2.0, 12.0), 10.0 * IDLE_W),
        ([(0.0, 10.0, 1.0)], (0.0, 10.0), 10.0 * LIMIT_W),
        # A work counts while it runs inside the stretch.
        ([(1, 5, 0.25), (8, 14, 0.5)], (3.0, 10.0), 2.0 * watts(0.25) + 3.0 * IDLE_W + 2.0 * watts(0.5)),
        # Side by side works add their use up to the limit.
        ([(0, 6, 0.3), (4, 10, 0.2), (5, 6, 0.9)], (0, 10), 4 * watts(0.3) + watts(0.5) + LIMIT_W + 4 * watts(0.2)),
    ],
)
def test_a_gpu_draws_by_what_its_works_use(
    works: list[tuple[float, float, float]], stretch: tuple[float, float], joules: float
) -> None:
    for num_gpus in (1, 4):
        assert trace(*works, num_gpus=num_gpus).joules(*stretch) == pytest.approx(num_gpus * joules)


def test_energy_is_not_known_where_the_power_of_one_gpu_is_not() -> None:
    one = trace((0.0, 6.0, 0.3))
    two = PowerTrace(powers=[*one.powers, None], num_gpus=[1, 1], works=[*one.works, array("d")])
    assert two.joules(0.0, 9.0) is None


@pytest.mark.parametrize("policy", ["autoregressive", "pd", "unified"])
def test_a_policys_works_at_the_roofs_draw_the_limit_while_the_gpu_is_busy(policy: str) -> None:
    costs = ByShare(device_s=SECONDS, demand=Demands(0.0, 0.0), share=1.0)
    run = SimRun(
        policy, [request(0), request(1, arrival_s=100.0)], costs=costs, draft_tokens=0 if policy[0] == "a" else 4
    )
    meter = PowerMeter([costs], [load(A100)])
    for ticket in run.tickets:
        meter.hear(ticket)
    busy_s, end_s = run.host.device_busy_s, run.host.now_s
    assert 0.0 < busy_s < end_s
    found = meter.trace.joules(0.0, end_s)
    assert found == pytest.approx(LIMIT_W * busy_s + IDLE_W * (end_s - busy_s))


def test_a_work_that_is_cut_draws_no_more_than_whole() -> None:
    costs = ByShare(device_s={Kind.DRAFT: 4.0}, share=0.5)
    meter = PowerMeter([costs], [load(A100)])
    host = SimHost(costs, AlwaysAccept(), on_work=meter.hear)
    stream = host.stream("draft")

    async def cut() -> None:
        ticket = host.run(Work(kind=Kind.DRAFT, model=Model.DRAFT, rows=1, row_tokens=1, draft_tokens=4), stream)
        await host.sleep(0.5)
        ticket.cancel()
        await ticket

    host.spawn(cut())
    host.run_until()
    (start_s, end_s, used) = meter.trace.works[0]
    assert (start_s, end_s) == (0.0, 1.0)
    assert used == pytest.approx(0.5)


def test_a_draft_uses_what_its_passes_do_one_by_one() -> None:
    costs = build_costs(load("h100-sxm/llama-2-7b+tinyllama-1.1b"))

    def draft(draft_tokens: int, context_tokens: int) -> PassUse:
        return costs.use(
            Work(
                kind=Kind.DRAFT, model=Model.DRAFT, rows=4, row_tokens=4, context_tokens=context_tokens, head_rows=4,
                draft_tokens=draft_tokens,
            )
        )  # fmt: skip

    passes = [draft(1, 100 + 4 * index) for index in range(3)]
    assert draft(3, 100) == pytest.approx([sum(values) for values in zip(*passes, strict=True)])
    assert costs.use(Work(kind=Kind.HOST, host_s=1.0)) == (0.0, 0.0)


def test_rows_as_totals_use_as_much_energy_as_row_by_row() -> None:
    """A window keeps a run from being accounted in totals; this one ends after all requests."""
    changes = {
        "policy": "continuous",
        "profile": "h100-sxm/llama-3.1-8b+eagle3",
        "request_rate": 50.0,
        "output_len": 60,
    }
    totals, rows = (summarise(record(**changes, **more)) for more in ({}, {"window.stop_s": 1e3}))
    assert totals["duration"] == pytest.approx(rows["duration"], rel=1e-9)
    assert totals["joules_per_output_token"] == pytest.approx(rows["joules_per_output_token"], rel=1e-9)


def test_a_server_that_hardly_works_draws_little_more_than_idle() -> None:
    watts = number(summarise(record(request_rate=0.001, num_prompts=3)), "power_w") or 0.0
    assert IDLE_W < watts < 1.01 * IDLE_W


def test_what_is_recorded_has_the_same_energy() -> None:
    scenario = Scenario.of(profile=A100, policy="pd", num_speculative_tokens=0, num_prompts=8, energy=True)
    resolved = resolve(scenario, load(A100), "pd")
    plain, recorded = simulate(resolved, 0), simulate(resolved, 0, record_works=True)
    assert recorded.works
    assert recorded.power == plain.power


def test_power_is_not_known_of_other_gpus_and_of_ranks_that_share_experts() -> None:
    ranks: Profile = msgspec.structs.replace(load(A100), data_parallel=2)
    assert [power_of(each) for each in (load(A100), ranks, load("cpu/tiny"))] == [POWER["a100-sxm"], None, None]
    run = summarise(record(profile="cpu/tiny"))
    assert (run["power_w"], run["joules_per_output_token"]) == (None, None)


def test_nothing_says_energy_unless_it_was_asked_for() -> None:
    plain = Scenario.of(profile="cpu/tiny", policy="pd")
    asked = Scenario.of(profile="cpu/tiny", policy="pd", energy=True)
    assert "energy" not in to_plain(plain)
    assert "energy" not in dict(scenario_columns(plain))
    assert Scenario.of(to_plain(asked)) == asked
    assert asked.digest != plain.digest
    assert not {"power_w", "joules_per_output_token"} & set(summarise(record(energy=False)))


def test_compare_has_watts_and_joules_as_columns(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["compare", "--policy", "autoregressive", "--request-rate", "9", "--num-prompts", "20", "--output-len", "8"]
    for profile, said in ((A100, "W a GPU  J a token"), ("cpu/tiny", "Power of cpu was never measured.")):
        assert command([*flags, "--profile", profile, "--set", "energy=true"]) == 0
        assert said in capsys.readouterr().out
    assert command([*flags, "--profile", A100]) == 0
    assert "W a GPU" not in capsys.readouterr().out


def test_gpus_that_prefill_in_larger_groups_count_and_draw_power_one_by_one() -> None:
    """Hardly anything but idle power: two requests in 2,000 s."""
    pools: dict[str, Any] = {"policy_options.pools.prefill_profile": "h100-sxm/qwen3-32b-tp2", "devices.count": 2}
    pools["num_speculative_tokens"] = 0
    found = record(profile="h100-sxm/qwen3-32b", policy="disaggregated", num_prompts=2, request_rate=1e-3, **pools)
    assert found.num_gpus == 2 * (2 + 1)
    assert found.power is not None
    assert (found.power.joules(0.0, found.end_s) or 0.0) / found.end_s == pytest.approx(6 * 70.0, rel=0.01)


def test_joules_are_over_all_tokens_that_come_while_they_are_drawn() -> None:
    """Those of requests that a window cuts, and of warm-ups that go on beside what is measured, too."""
    cut = record(request_rate=200.0, output_len=100, **{"window.stop_s": 0.5})
    joules = cut.power.joules(0.0, cut.end_s) if cut.power else None
    tokens = sum(each.emitted_tokens for each in cut.requests)
    assert joules is not None
    assert not any(each.is_finished for each in cut.requests)
    assert summarise(cut)["joules_per_output_token"] == pytest.approx(joules / tokens)
    whole = record(request_rate=200.0, output_len=100)
    first, rest = (number(summarise(whole, num_warmups=count), "joules_per_output_token") for count in (0, 29))
    assert rest == pytest.approx(first, rel=0.25)
