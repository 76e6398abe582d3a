"""`lanesim plan`: what it refuses, and how a model is split over the GPUs of a replica."""

from __future__ import annotations

import msgspec
import pytest
from click.testing import CliRunner

from calibrate.cli.plan.command import plan_command
from calibrate.importers.candidates import deployments, in_kernel_format
from sim.costs.profile_files import load
from sim.costs.shapes import Formats, model

QUESTION = ("--input-len", "64", "--output-len", "8", "--goodput", "ttft:1000")


@pytest.mark.parametrize("text", ["3.5", "3.5/h", "7/replica-h", "-1/gpu-h", "x/gpu-h"])
def test_a_price_says_that_it_is_of_one_gpu(text: str) -> None:
    with pytest.raises(ValueError, match=r"want dollars per hour of .*such as 3.5/gpu-h"):
        CliRunner().invoke(plan_command, ["Qwen/Qwen3-32B", *QUESTION, "--price", text], catch_exceptions=False)


def test_a_model_without_a_gpu_is_refused() -> None:
    with pytest.raises(ValueError, match="--gpu is missing"):
        CliRunner().invoke(plan_command, ["Qwen/Qwen3-32B", *QUESTION], catch_exceptions=False)


def test_an_unknown_gpu_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"unknown GPU 'h200'; did you mean 'h200-sxm'"):
        CliRunner().invoke(plan_command, ["Qwen/Qwen3-32B", "--gpu", "h200", *QUESTION], catch_exceptions=False)


def test_dense_models_are_split_by_tensor_alone_and_experts_in_three_ways() -> None:
    dense, sparse = model("qwen3-32b"), load("h100-sxm/qwen3-30b-a3b").target
    assert [each[:3] for each in deployments(dense, 4, "vllm", None, None, None)] == [
        (1, None, 1), (2, None, 1), (4, None, 1),
    ]  # fmt: skip
    assert [each[:3] for each in deployments(sparse, 2, "vllm", None, None, None)] == [
        (1, None, 1), (2, None, 1), (2, 2, 1), (1, 2, 2),
    ]  # fmt: skip
    assert [each[:3] for each in deployments(sparse, 8, "vllm", 4, 4, None)] == [(4, 4, 1)]


def test_mxfp4_runs_in_the_kernels_of_its_gpu() -> None:
    shape = msgspec.structs.replace(load("h100-sxm/gpt-oss-20b").target, formats=Formats(experts="mxfp4"))
    by_gpu = {gpu: in_kernel_format(shape, gpu).formats for gpu in ("h100-sxm", "b200-sxm", "l40s")}
    assert [None if each is None else each.experts for each in by_gpu.values()] == [
        "mxfp4-marlin", "mxfp4-fp8", "mxfp4",
    ]  # fmt: skip
