"""Engines: what is known of each is in its file, by GPU; what is not is pooled and says so."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from sim.costs.engine_costs import (
    CONSTANTS,
    DEFAULT_ENGINE,
    ENGINES,
    UNNAMED,
    EngineCosts,
    engine_names,
    engine_of,
    load_engine,
    own_engine,
    with_engine,
)
from sim.costs.forms.build import build_costs
from sim.costs.profile import Profile
from sim.costs.profile_files import decode, encode, load, shipped
from sim.interface.work import Kind, Model, Work
from tests.properties import assert_refused

PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"
DECODE = Work(kind=Kind.STEP, rows=8, row_tokens=8, context_tokens=800, head_rows=8)
DRAFT = Work(kind=Kind.DRAFT, model=Model.DRAFT, rows=8, row_tokens=8, context_tokens=800, head_rows=8, draft_tokens=4)


@pytest.mark.parametrize("name", engine_names())
def test_an_engine_has_constants_a_source_and_limits_on_every_gpu(name: str) -> None:
    for gpu in {load(profile).gpu.name: load(profile).gpu for profile in shipped()}.values():
        engine = load_engine(name, gpu.name)
        assert engine.name == name
        assert engine.source
        assert engine.source.startswith("pooled: ") is engine.is_pooled
        assert engine.error_pct is None or engine.is_pooled
        assert engine.cap_rule(gpu).max_num_seqs >= 256


def test_a_pair_that_was_never_measured_gets_the_mean_and_half_the_range() -> None:
    """vLLM on H100, synchronous: SpecDecode-Bench's 1.207 ms and vLLM 0.12's."""
    one_s, other_s = 1.207e-3, load_engine("vllm-0.12", "h100-sxm", 2).step_s
    for name, gpu in (("vllm-0.24", "h100-sxm"), ("vllm-0.12", "l40s"), ("vllm-0.9", "a100-sxm")):
        engine = load_engine(name, gpu)
        assert engine.is_pooled
        assert engine.step_s == pytest.approx((one_s + other_s) / 2, rel=1e-3)
        assert engine.error_pct == pytest.approx(100 * abs(other_s - one_s) / (other_s + one_s), abs=0.5)


@pytest.mark.parametrize(
    ("name", "methods"),
    [
        ("vllm-0.19", {"none", "eagle3", "mtp"}),
        ("vllm-0.12", set()),
        ("trtllm-1.1", {"none", "eagle3", "mtp"}),
        ("sglang-0.5", {"none"}),
        ("ideal", {"none", "eagle3", "mtp", "draft_model", "ngram"}),
    ],
)
def test_scheduling_follows_version_and_method(name: str, methods: set[str]) -> None:
    engine = load_engine(name, "h100-sxm")
    known = ("none", "eagle3", "mtp", "draft_model", "ngram")
    assert {method for method in known if engine.plans_ahead(method)} == methods


@pytest.mark.parametrize("is_async", [False, True])
def test_a_profile_says_how_its_server_schedules_whatever_the_engines_default(is_async: bool) -> None:
    profile = with_engine(load(PAIR), load_engine("vllm-0.24", "h100-sxm"))
    profile = msgspec.structs.replace(profile, host=msgspec.structs.replace(profile.host, is_async=is_async))
    for same in (profile, with_engine(profile, engine_of(None, profile))):
        own = engine_of("vllm-0.24", same)
        assert [*map(own.plans_ahead, ("none", "eagle3", "draft_model"))] == [is_async] * 3
    other = with_engine(profile, load_engine("vllm-0.12", "h100-sxm"))
    assert not engine_of(None, other).plans_ahead("none")
    assert engine_of(None, with_engine(other, load_engine("vllm-0.24", "h100-sxm"))).plans_ahead("none")


@pytest.mark.parametrize(
    ("gpu", "memory_gib", "caps"),
    [
        ("h100-sxm", 80, (1024, 8192)),
        ("a100-sxm", 80, (256, 2048)),
        ("rtx-4090", 24, (256, 2048)),
        ("cpu", 1, (256, 2048)),
    ],
)
def test_limits_are_those_of_vllms_server_on_that_gpu(gpu: str, memory_gib: int, caps: tuple[int, int]) -> None:
    sheet = msgspec.structs.replace(load(PAIR).gpu, name=gpu, memory_bytes=memory_gib * 2**30)
    rule = load_engine(DEFAULT_ENGINE, gpu).cap_rule(sheet)
    assert (rule.max_num_seqs, rule.max_num_batched_tokens) == caps


@pytest.mark.parametrize("name", [name for name in shipped() if load(name).host.engine in (None, "measured here")])
def test_a_shipped_profile_says_what_the_gpu_takes_or_whose_constants_it_has(name: str) -> None:
    profile = load(name)
    if profile.host.engine == "measured here":
        own = own_engine(profile)
        assert own is not None
        assert (own.name, own.step_s, own.plans_ahead("none")) == ("measured here", profile.host.step_s, False)
        return
    assert own_engine(profile) is None
    assert [getattr(profile.host, constant) for constant in CONSTANTS] == [0.0] * len(CONSTANTS)
    assert "an engine adds them" in profile.host.source
    assert engine_of(None, profile).name == DEFAULT_ENGINE


def engine(**changes: float) -> EngineCosts:
    zero = load_engine("ideal", "h100-sxm")
    return msgspec.structs.replace(zero, name="mine", source="made up", **changes)


def test_the_four_constants_take_the_place_of_the_profiles() -> None:
    profile = load(PAIR)
    bare = build_costs(profile)
    for own in (profile, with_engine(profile, engine(step_s=1.0, row_s=1.0, gap_s=1.0, draft_pass_s=1.0))):
        costs = build_costs(own, engine(step_s=1e-3, row_s=1e-5, gap_s=2e-3, draft_pass_s=3e-3))
        for work, device_s in ((DECODE, 2e-3), (DRAFT, 4 * 3e-3)):
            assert costs.cost(work).prepare_s == pytest.approx(1e-3 + 8e-5)
            assert costs.cost(work).device_s == pytest.approx(bare.cost(work).device_s + device_s)


def fitted() -> Profile:
    """vLLM 0.12 with a step of 3 ms, as a fit on cells leaves it."""
    of_version = load_engine("vllm-0.12", "h100-sxm")
    return with_engine(load(PAIR), msgspec.structs.replace(of_version, step_s=3e-3))


@pytest.mark.parametrize(
    ("asked", "name", "step_s"),
    [
        (None, "vllm-0.12", 3e-3),
        ("vllm-0.12", "vllm-0.12", 3e-3),
        ("vllm-0.9", "vllm-0.9", 0.737e-3),
        ("ideal", "ideal", 0),
    ],
)
def test_a_profile_fitted_with_an_engine_stands_for_it_and_for_no_other(
    asked: str | None, name: str, step_s: float
) -> None:
    found = engine_of(asked, decode(encode(fitted()), "fitted"))
    assert (found.name, found.step_s) == (name, step_s)
    assert found.plans_ahead("none") is (name == "ideal")


def test_a_profile_from_before_engines_keeps_its_constants() -> None:
    profile = load(PAIR)
    older = msgspec.structs.replace(profile, host=msgspec.structs.replace(profile.host, step_s=1.2e-3))
    found = engine_of(None, older)
    assert (found.name, found.step_s, found.plans_ahead("none")) == (UNNAMED, 1.2e-3, False)


def test_constants_act_only_where_they_were_measured() -> None:
    def gap_s(gpu: str, tensor_parallel: int) -> float:
        return load_engine("sglang-0.5", gpu, tensor_parallel).gap_s

    assert gap_s("b200-sxm", 4) == 0.0
    assert gap_s("b200-sxm", 1) == gap_s("h200-sxm", 8) == gap_s("h100-sxm", 8) == 0.635e-3
    assert load_engine("sglang-0.5", "b300-sxm", 8).scope == "sglang-0.5 on b200-sxm, b300-sxm, tensor parallel 2, 4, 8"
    assert load_engine("sglang-0.5", "a100-sxm").scope == "sglang-0.5 on any GPU not measured"


def test_a_profile_gets_the_constants_of_as_many_gpus_as_share_its_model() -> None:
    profile = load("h100-sxm/qwen3-32b-tp2")
    held = json.loads((ENGINES / "sglang-0.5.json").read_text())
    entry = held["constants"][-1] | {"gpus": ["h100-sxm"], "step_s": 0.007, "tensor_parallel": [2]}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "mine.json"
        path.write_text(json.dumps(held | {"constants": [entry, *held["constants"]]}))
        assert engine_of(str(path), profile).step_s == 0.007
        assert engine_of(str(path), load(PAIR)).step_s != 0.007


def test_an_engine_of_ones_own_is_a_file(tmp_path: Path) -> None:
    held = json.loads((ENGINES / "vllm-0.12.json").read_text())
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(held | {"name": "mine"}))
    assert load_engine(str(path), "h100-sxm").step_s == load_engine("vllm-0.12", "h100-sxm").step_s
    assert engine_of(str(path), load(PAIR)).name == "mine"


def test_an_engine_file_says_where_it_differs_from_the_one_that_it_inherits_from(tmp_path: Path) -> None:
    """Its own rules stand beside the inherited ones, and everything else is the other file's."""
    path = tmp_path / "mine.json"
    path.write_text('{"schema": 1, "name": "mine", "inherits": "vllm-0.33", "rules": {"null_blocks": 7}}')
    mine, newest = load_engine(str(path), "h100-sxm"), load_engine("vllm-0.33", "h100-sxm")
    assert mine.rules == msgspec.structs.replace(newest.rules, null_blocks=7)
    assert (mine.step_s, mine.caps, mine.async_methods) == (newest.step_s, newest.caps, newest.async_methods)
    assert "not measured with this version, as vllm-0.33" in mine.source
    (tmp_path / "other.json").write_text('{"schema": 1, "name": "other", "inherits": "vllm-0.3"}')
    assert_refused(lambda: load_engine(str(tmp_path / "other.json"), "h100-sxm"), "inherits", "vllm-0.3")
