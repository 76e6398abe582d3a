"""Separate prefill and decode servers as candidates of a plan: which are tried, when they pay, and how they start."""

from __future__ import annotations

import re
import warnings
from functools import cache
from pathlib import Path

import msgspec
import pytest

from sim.costs.profile_files import load
from sim.policies.disaggregated import DevicePools
from sim.run.scenario import Scenario
from sim.studies.evidence import separate_servers_errors
from sim.studies.plan.candidate_ranking import APART, LANES, POLICY, Candidate
from sim.studies.plan.pools import apart, pays_from, with_pools
from sim.studies.plan.search import PlannedDeployment, Rental, plan
from tests.properties import printed

TP1, TP2 = "h100-sxm/qwen3-32b", "h100-sxm/qwen3-32b-tp2"
PROMPT_KV_BYTES = 2000 * 64 * 2 * 8 * 128 * 2
"""64 layers of 8 KV heads of 128, in bf16."""


def scenario(engine: str = "vllm-0.32") -> Scenario:
    return Scenario.of(
        profile=TP1, policy=POLICY, input_len=2000, output_len=32, num_prompts=60, num_speculative_tokens=0,
        **{"goodput.ttft_ms": 2000.0, "goodput.tpot_ms": 60.0, "engine.name": engine},
    )  # fmt: skip


@cache
def planned(engine: str) -> Rental:
    given, plain = scenario(engine), [Candidate(name, load(name)) for name in (TP1, TP2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        candidates = [*plain, *apart(given, plain, 4)]
        return with_pools(plan(given, candidates, rate_per_s=10.0, draws=0, workers=1), candidates, 4)


def row(policy: str, gpus: int, rate: float) -> PlannedDeployment:
    """A replica of so many GPUs that holds so many requests a second."""
    first = planned("vllm-0.32").deployments[0]
    changed = {"policy": policy, "gpus": gpus, "replicas": 1, "rate_per_replica": rate, "rate_interval": None}
    return msgspec.structs.replace(first, **changed)


def test_ratios_fit_the_gpus_and_decode_servers_are_no_smaller_than_prefill_servers() -> None:
    found = apart(scenario(), [Candidate(name, load(name)) for name in (TP1, TP2)], 4)
    pooled = [each for each in found if each.policy == APART]
    assert {each.label for each in pooled} == {"3P TP1 1D TP1", "2P TP1 1D TP2", "1P TP2 1D TP2"}
    assert max(each.gpus for each in pooled) == 4
    assert [each.label for each in found if each.policy == LANES] == ["TP1 pd", "TP2 pd"]


def test_two_servers_need_two_gpus() -> None:
    with pytest.raises(ValueError, match=r"two servers do not fit on 1 GPUs\. Raise --gpus"):
        apart(scenario(), [Candidate(TP1, load(TP1))], 1)


def test_separate_servers_pay_from_where_the_others_need_a_third_replica() -> None:
    """4 GPUs hold 2 requests/s, 8 in two pools 6: above 4 requests/s it is 12 GPUs or 8. Pools of 3 requests/s never
    take fewer."""
    together = [row(POLICY, 4, 2.0)]
    assert pays_from([row(APART, 8, 6.0)], together, 16) == pytest.approx(4.0, abs=0.04)
    assert pays_from([row(APART, 8, 3.0)], together, 16) is None
    assert pays_from([], together, 16) is None
    assert pays_from([], [], 16) is None


def test_each_gpu_of_the_smaller_server_sends_its_part_of_a_prompt() -> None:
    """1 ms, and a third of a billion bytes a second over each of two links."""
    pools = DevicePools(prefill=1, decode=1, link="1:0.3")
    num_bytes, seconds = Candidate(TP2, load(TP2), APART, pools, 2).sent(2000)
    assert num_bytes == PROMPT_KV_BYTES
    assert seconds == pytest.approx(0.001 + PROMPT_KV_BYTES / 2 / 0.3e9)
    assert Candidate(TP2, load(TP2)).sent(2000) == (0, 0.0)


def test_the_answer_says_when_separate_servers_pay_and_what_lanes_on_one_gpu_hold() -> None:
    found = planned("vllm-0.32")
    lines = printed(found, 200).splitlines()
    assert lines[0].startswith("Rent ")
    assert lines[2].startswith("Separate prefill and decode servers pay from ")
    assert lines[3] == ""
    assert {row.policy for row in found.deployments if not row.is_first_pass} == {POLICY, APART, LANES}
    assert found.deployments[0].policy != LANES
    assert any("5 replays on GPUs" in note for note in found.notes)
    assert found.pays_from_per_s is not None


@pytest.mark.parametrize(
    ("engine", "says"), [("vllm-0.32", "--kv-transfer-config"), ("sglang-0.5", "--disaggregation-mode")]
)
def test_every_server_and_a_router_have_a_line(engine: str, says: str) -> None:
    found = planned(engine)
    *servers, router = found.start.splitlines()
    assert found.deployments[0].policy == APART
    assert [line.count(says) for line in servers] == [1, 1]
    assert router.count("http://") == sum(int(line.rpartition("# ")[2].split()[0]) for line in servers)
    assert "--set policy=disaggregated" in found.check


def test_the_error_that_is_quoted_is_that_of_the_measured_loads_on_the_page() -> None:
    """The page has a row for each engine, GPU and format: its loads, and their error of the time per token."""
    errors = separate_servers_errors()
    page = (Path(__file__).parents[3] / errors.page).read_text().partition("## Disaggregated servers beside")[2]
    rows = [list(map(float, pair)) for pair in re.findall(r"^\|[^|]+\| (\d+) \| ([\d.]+) \|", page, re.MULTILINE)]
    assert errors.cells == sum(cells for cells, _ in rows)
    assert errors.tpot_mean_abs_pct == pytest.approx(sum(cells * pct for cells, pct in rows) / errors.cells, abs=0.1)
    assert f"TPOT {errors.tpot_mean_abs_pct:g} %, TTFT {errors.ttft_mean_abs_pct:g} %." in page
    (said,) = [note for note in planned("vllm-0.32").notes if note.startswith("separate servers: time per token")]
    figures = round(errors.tpot_mean_abs_pct), round(errors.ttft_mean_abs_pct), errors.cells
    assert tuple(map(int, re.findall(r"(\d+)(?= %| measured)", said))) == figures


def test_the_first_line_names_the_servers_and_the_row_their_label() -> None:
    found = planned("sglang-0.5")
    row = found.deployments[0]
    prefill, decode = re.fullmatch(r"(\d)P TP\d (\d)D TP\d", row.deployment).groups()  # type: ignore[union-attr]
    assert f" as {prefill} prefill (TP" in found.verdict
    assert f" and {decode} decode servers (TP{row.tp}) without a drafter." in found.verdict
    assert row.deployment not in found.verdict
