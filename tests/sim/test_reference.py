"""The fast simulator against the one in SimPy's idiom: every request's times are equal, with constants and profiles."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lanesim
from sim import reference
from sim.compare.point_runs import UNKNOWN_IN_SIMPY
from sim.costs.cost import Cost
from sim.costs.profile_files import load
from sim.interface.request import Request
from sim.interface.work import Kind, Work
from sim.metrics.summary import Run
from sim.run.compiled import FORMS, SIMPY, is_on
from sim.run.resolve import Resolved, resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate
from tests.properties import examples
from tests.sim.constant_costs import ConstantCosts

TOLERANCE_S = 1e-9
"""Times are sums of thousands of others, in another order here and there."""
MEASURED = "{}-sxm/llama-3.1-8b+llama-3.2-1b-measured"
PROFILES = ("h100-sxm/llama-2-7b+tinyllama-1.1b", "a100-sxm/llama-3.1-8b+llama-3.2-1b")


def drawn_requests(draw: random.Random, rate_per_s: float) -> list[Request]:
    """Poisson arrivals, few: where lanes contend a difference in the last bit grows tenfold in a second."""
    arrival_s, requests = 0.0, []
    for index in range(draw.randint(1, 12)):
        arrival_s += draw.expovariate(rate_per_s)
        prompt, output = draw.randint(1, 700), draw.randint(1, 40)
        requests.append(Request(index, f"r{index}", arrival_s, prompt_tokens=prompt, output_tokens=output))
    return requests


def drawn_engine(draw: random.Random, policy: str) -> Resolved:
    """A server that batches continuously, with memory for all."""
    name = draw.choice((*PROFILES, MEASURED.format("h100")))
    engines = (None,) if name not in PROFILES else ("ideal", "vllm-0.12", "vllm-0.24", "vllm-0.32", "vllm-0.33")
    scenario = Scenario.of(
        profile=name,
        policy=policy,
        acceptance=f"iid:{draw.uniform(0.1, 0.95):.3f}",
        num_speculative_tokens=draw.randint(0, 6),
        **{
            "engine.name": draw.choice(engines),
            "engine.async_scheduling": draw.choice((False, True)),
            "engine.max_num_seqs": draw.choice((1, 2, 5, 24)),
            "engine.max_num_batched_tokens": draw.choice((256, 512, 2048)),
            "engine.num_gpu_blocks": 2000,
            "engine.cuda_graph": draw.choice((True, False)),
        },
    )
    return resolve(scenario, load(name), policy)


@pytest.mark.parametrize("policy", ["continuous", "autoregressive"])
@given(seed=st.integers(0, 2**32))
def test_continuous_batching_serves_as_in_simpys_idiom(policy: str, seed: int) -> None:
    draw = random.Random(seed)
    resolved = drawn_engine(draw, policy)
    requests, again = (drawn_requests(random.Random(seed), rate_per_s=40.0) for _ in range(2))
    simulate(replace(resolved, form=SIMPY), seed, requests=requests)
    simulate(resolved, seed, requests=again)
    for one, other in zip(requests, again, strict=True):
        assert one.first_token_s == pytest.approx(other.first_token_s, rel=0.0, abs=TOLERANCE_S), one.id
        assert one.last_token_s == pytest.approx(other.last_token_s, rel=0.0, abs=TOLERANCE_S), one.id


class DrawnCosts(ConstantCosts, frozen=True, kw_only=True):
    """Constants of each kind's own. Works with equally many kernels, or equal launches, that begin together would end
    together, and the last bit of a sum would say whose lane looks first."""

    tail_share: float

    def cost(self, work: Work) -> Cost:
        prepare_s, launch_s, device_s, num_kernels, _ = ConstantCosts.cost(self, work)
        nth = (Kind.PREFILL, Kind.DRAFT, Kind.VERIFY).index(work.kind)
        return Cost(prepare_s, launch_s * (1.0 + 0.1 * nth), device_s, num_kernels + nth, self.tail_share * device_s)


def drawn_costs(draw: random.Random) -> DrawnCosts:
    return DrawnCosts(
        device_s={kind: draw.uniform(0.001, 0.08) for kind in (Kind.PREFILL, Kind.DRAFT, Kind.VERIFY)},
        prepare_s=draw.choice((0.0, draw.uniform(0.0, 0.004))),
        launch_s=draw.choice((0.0, draw.uniform(0.0, 0.05))),
        result_s=draw.choice((0.0, draw.uniform(0.0, 0.001))),
        num_kernels=draw.randint(1, 500),
        tail_share=draw.choice((0.0, draw.random())),
        inflation_per_issuer=draw.choice((0.0, draw.uniform(0.0, 1.5))),
    )


def drawn_server(draw: random.Random, policy: str) -> Resolved:
    name, is_graphed = draw.choice(PROFILES), draw.choice((True, False))
    scenario = Scenario.of(
        profile=name,
        policy=policy,
        acceptance=f"iid:{draw.uniform(0.1, 0.95):.3f}",
        # A prompt and a round of one draft launch equally many kernels: begun together, they would end together.
        num_speculative_tokens=draw.randint(1 if is_graphed else 2, 6),
        **{
            "engine.name": "ideal",
            "engine.async_scheduling": False,
            "engine.max_num_seqs": draw.randint(1, 24),
            "engine.max_num_batched_tokens": draw.choice((128, 512, 2048)),
            "engine.num_gpu_blocks": draw.choice((48, 100, 2000)),
            "engine.cuda_graph": is_graphed,
            "devices.phi": draw.choice((0.0, 0.07, 0.25, 1.0)),
            "policy_options.workers": draw.randint(1, 6),
            "policy_options.decode_batch": draw.choice((None, 1, 3, 6)),
            "policy_options.verify_batch": draw.choice((None, 1, 4, 12)),
            "policy_options.poll_s": draw.uniform(0.0005, 0.01),
            "policy_options.hybrid_requests": draw.randint(0, 3),
        },
    )
    return resolve(scenario, load(name), policy)


@pytest.mark.parametrize("policy", reference.POLICIES[:4])
@given(seed=st.integers(0, 2**32), is_constant=st.booleans())
@examples(0.5)
def test_a_scheduler_serves_as_in_simpys_idiom(policy: str, seed: int, is_constant: bool) -> None:
    draw = random.Random(seed)
    resolved = drawn_server(draw, policy)
    if is_constant:
        resolved = replace(resolved, host_costs=drawn_costs(draw))  # type: ignore[arg-type]
    requests, again = (drawn_requests(random.Random(seed), rate_per_s=20.0) for _ in range(2))
    simulate(replace(resolved, form=SIMPY), seed, requests=requests)
    simulate(resolved, seed, requests=again)
    for one, other in zip(requests, again, strict=True):
        assert one.first_token_s == pytest.approx(other.first_token_s, rel=0.0, abs=TOLERANCE_S), one.id
        assert one.last_token_s == pytest.approx(other.last_token_s, rel=0.0, abs=TOLERANCE_S), one.id


@pytest.mark.filterwarnings("ignore")
def test_a_comparison_is_the_same_in_every_form_and_names_the_one_that_ran() -> None:
    forms = FORMS if is_on() else FORMS[:2]
    given = {"profile": PROFILES[0], "policy": ("continuous", "pd", "pdv"), "request_rate": 4, "num_prompts": 12}
    keys = {"engine.name": "ideal", "engine.async_scheduling": False, "output_len": 20, "replications": 2}
    answers = {form: lanesim.compare(**given, **keys, form=form, draws=0, workers=1) for form in forms}
    assert [[row.ran_in for row in answers[form].policies] for form in forms] == [[[form]] * 3 for form in forms]
    assert len({answer.verdict for answer in answers.values()}) == 1
    for one, other, *more in zip(*(map(flat, answers[form].runs) for form in forms), strict=True):
        assert more == [other] * len(more)
        unknown = {key for key in other if one[key] is None is not other[key]}
        assert {name for name, _ in unknown} == set(UNKNOWN_IN_SIMPY)
        times = {key: value for key, value in other.items() if isinstance(value, float) and key not in unknown}
        assert {key: one[key] for key in times} == pytest.approx(times, rel=1e-8)
        assert all(one[key] == other[key] for key in other.keys() - unknown - times.keys())


def flat(run: Run) -> dict[tuple[str, str], Any]:
    """Metrics of a run, and their parts by name."""
    parts = ((key, value if isinstance(value, dict) else {"": value}) for key, value in run.items())
    return {(key, name): value for key, named in parts for name, value in named.items()}
