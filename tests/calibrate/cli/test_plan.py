"""`lanesim plan`: what it refuses, and how a model is split over the GPUs of a replica."""

from __future__ import annotations

import msgspec
import pytest
from click.exceptions import UsageError
from click.testing import CliRunner

from calibrate.cli.plan.command import plan_command
from calibrate.cli.plan.planning import disputed_step
from calibrate.importers.aiconfigurator.deployment import in_kernel_format
from calibrate.importers.plan_candidates import deployments
from sim.costs.profile_files import load
from sim.costs.shapes import Formats, model
from sim.run.scenario import Scenario
from sim.studies.plan.candidate_ranking import Candidate
from sim.studies.plan.search import plan

LENGTHS = ("--rate", "2", "--input-len", "64", "--output-len", "8")
QUESTION = (*LENGTHS, "--goodput", "ttft:1000")


@pytest.mark.parametrize("text", ["3.5", "3.5/h", "7/replica-h", "-1/gpu-h", "x/gpu-h"])
def test_a_price_says_that_it_is_of_one_gpu(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be dollars per hour of .*such as 3.5/gpu-h"):
        CliRunner().invoke(plan_command, ["Qwen/Qwen3-32B", *QUESTION, "--price", text], catch_exceptions=False)


def planned(*flags: str) -> str:
    """The one line that the command ends with."""
    with pytest.raises((ValueError, UsageError)) as refused:
        CliRunner().invoke(plan_command, flags, catch_exceptions=False, standalone_mode=False)
    return str(refused.value)


def test_another_name_of_a_gpu_is_understood_in_capitals() -> None:
    """What is refused then is the next thing that is wrong, with the drafters that there are."""
    line = planned("Qwen/Qwen3-32B", "--gpu", "RTX-PRO-6000", "--draft", "eagle", *QUESTION)
    known = "dspark, eagle3, mtp, ngram, none, or a model"
    assert line == f"unknown drafter 'eagle'. Did you mean 'eagle3'? Choose from {known}"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--goodput", "ttft=1000"), "--goodput 'ttft=1000' must be NAME:MILLISECONDS, such as ttft:1000"),
        (("--goodput", "ttft"), "--goodput 'ttft' must be ttft:MILLISECONDS"),
        (("--rate", "-3"), "-3.0 is not in the range 0.0<x<=1000000.0"),
        ((), "no limit on latency is given"),
    ],
)
def test_flags_are_checked_before_any_table_is_read(flags: tuple[str, ...], says: str) -> None:
    """A model that is not known would be refused first otherwise."""
    assert says in planned("no/model", "--gpu", "h200-sxm", *LENGTHS, *flags)


@pytest.mark.parametrize(
    "flags", [("--profile", "h100-sxm/qwen3-32b"), ("--set", "policy=pd"), ("--serve", "vllm serve m")]
)
def test_a_search_over_separate_servers_takes_no_deployment_that_is_given(flags: tuple[str, ...]) -> None:
    line = planned("no/model", "--gpu", "h200", *QUESTION, "--disaggregate", *flags)
    assert line.startswith("--disaggregate needs MODEL --gpu GPU --rate R")


def test_a_deployment_that_is_given_takes_no_more_gpus_than_asked_for() -> None:
    asked = "--profile", "a100-sxm/llama-3.1-70b-tp4", *LENGTHS, "--goodput", "tpot:50", "--gpus", "1"
    assert planned(*asked) == "a100-sxm/llama-3.1-70b-tp4 takes 4 GPUs, more than --gpus 1"


def test_a_profile_by_its_name_is_the_one_candidate() -> None:
    line = planned("h100-sxm/qwen3-32b", *LENGTHS, "--goodput", "tpot:1")
    assert line.startswith("no deployment meets TPOT 1 ms. Nearest is TP1: one request alone has")


def test_dense_models_are_split_by_tensor_alone_and_experts_in_three_ways() -> None:
    dense, sparse = model("qwen3-32b"), load("h100-sxm/qwen3-30b-a3b").target
    assert [each[:3] for each in deployments(dense, 4, ("vllm", "0.24"), None, None, None)] == [
        (1, None, 1), (2, None, 1), (4, None, 1),
    ]  # fmt: skip
    assert [each[:3] for each in deployments(sparse, 2, ("vllm", None), None, None, None)] == [
        (1, None, 1), (2, None, 1), (2, 2, 1), (1, 2, 2),
    ]  # fmt: skip
    assert [each[:3] for each in deployments(sparse, 8, ("vllm", None), 4, 4, None)] == [(4, 4, 1)]


def test_mxfp4_runs_in_the_kernels_of_its_gpu() -> None:
    shape = msgspec.structs.replace(load("h100-sxm/gpt-oss-20b").target, formats=Formats(experts="mxfp4"))
    by_gpu = {gpu: in_kernel_format(shape, gpu).formats for gpu in ("h100-sxm", "b200-sxm", "l40s")}
    assert [None if each is None else each.experts for each in by_gpu.values()] == [
        "mxfp4-marlin", "mxfp4-fp8", "mxfp4",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("profile", "says"),
    [
        (
            "h100-sxm/gpt-oss-20b",
            "not from vllm's own tables: experts scaled from 384 of 7168 x 2048, top 8, cut 1, spread 1: "
            "this layout was never measured",
        ),
        ("h100-sxm/llama-3.1-8b", None),
    ],
)
def test_kernels_that_stand_in_are_told_where_the_tables_own_package_says_nothing(
    profile: str, says: str | None
) -> None:
    """It knows no model of that name."""
    pytest.importorskip("aiconfigurator_core")
    given = Scenario.of(
        profile=profile, policy="continuous", input_len=256, output_len=2, num_prompts=50, num_speculative_tokens=0,
        **{"goodput.ttft_ms": 1000.0},
    )  # fmt: skip
    answer = plan(given, [Candidate(profile, load(profile))], rate_per_s=1.0, draws=0, workers=1)
    assert disputed_step(answer, given, load(profile), "no/model", "vllm-0.24") == (says, None)
