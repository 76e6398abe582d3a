# ruff: noqa: E402
"""Measuring a small pair on this CPU: what is written, resuming after a kill, refusals. Structure only, no seconds."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from transformers import LlamaConfig, LlamaForCausalLM

from calibrate.fit import points_file
from calibrate.fit.grid import coruns_within
from calibrate.fit.point_works import VISITS, Corun, timed_pass_of
from calibrate.measure.fits.serving_costs import ServingCosts, Waits
from calibrate.measure.pair import PairSpec, build, limits, pair_spec
from calibrate.measure.session import Session
from sim.costs.forms.build import build_costs
from sim.costs.profile_files import load
from sim.interface.work import Kind, Work
from tests.calibrate.catalogue.test_model_configs import write_config
from tests.calibrate.cli.test_commands import ROOT, calibrate, refusal
from tests.calibrate.measure.co_runs import ran

SMALL: dict[str, Any] = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "head_dim": 8}
RUN = "import sys; from calibrate.cli.main import calibrate_command; calibrate_command(sys.argv[1:])"


def sized(**keys: int) -> list[str]:
    return [word for name, value in keys.items() for word in ("--set", f"measure.{name}={value}")]


def flags(folder: Path, *more: object) -> list[str]:
    target = write_config(folder / "t" / "config.json", **SMALL)
    draft = write_config(folder / "d" / "config.json", **{**SMALL, "num_hidden_layers": 1})
    given = ("--device", "cpu", "--target", target, "--draft", draft, *sized(rows=4, context=256, budget_s=15))
    return [str(flag) for flag in ("measure", *given, *more)]


def spec_of(folder: Path) -> PairSpec:
    target, draft = (str(folder / model / "config.json") for model in "td")
    return pair_spec("cpu", target, draft, 4, 256)


def _num_passes(content: str) -> int:
    """Passes of the plan, once its line is whole; 0 where each is visited only once."""
    plans = [json.loads(line)["plan"] for line in content.split("\n")[:-1] if line.startswith('{"plan"')]
    return sum(len(plan["passes"]) for plan in plans if plan["visits"] > 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A measurement that was killed in the middle and run again."""
    path = tmp_path_factory.mktemp("measure")
    points = path / "p.points.jsonl"
    command = [sys.executable, "-c", RUN, *flags(path, "--out", path / "p.json")]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline_s = time.monotonic() + 120.0
    while not points.exists() or (content := points.read_text()).count("\n") < 12 + _num_passes(content):
        assert process.poll() is None, "the measurement ended before it could be killed"
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not (path / "p.json").exists()
    (path / "killed.jsonl").write_bytes(points.read_bytes())
    calibrate(*flags(path, "--out", path / "p.json"))
    return path


@pytest.mark.slow
def test_a_killed_measurement_ends_with_the_points_it_began_with(folder: Path) -> None:
    killed, found = (points_file.read(folder / name) for name in ("killed.jsonl", "p.points.jsonl"))
    if killed.num_visits > 1:
        # Killed in the second round: some passes have been visited twice.
        assert {1, 2} <= {len(visits) for visits in killed.visits.values()}
    assert killed.left
    assert found.passes == killed.passes
    assert all(found.visits[timed][: len(visits)] == visits for timed, visits in killed.visits.items())
    measured = [timed_pass_of(point) for point in found.points]
    assert len(measured) == len(set(measured))
    assert set(measured) == set(found.passes)
    assert {len(visits) for visits in found.visits.values()} == {found.num_visits} <= {*range(1, VISITS["cpu"] + 1)}
    assert found.left == []


@pytest.mark.slow
def test_the_profile_has_points_errors_fingerprint_and_costs(folder: Path) -> None:
    profile = load(folder / "p.json")
    assert profile.name == "cpu/t+d"
    assert profile.fingerprint is not None
    assert {"device", "cpu", "torch", "cuda", "threads"} <= set(profile.fingerprint)
    assert {"prefill", "decode", "draft", "verify", "overlap", "overlap_three"} <= set(profile.errors)
    assert all(profile.errors[kind].points for kind in ("draft", "verify", "overlap"))
    assert profile.errors["overlap_three"].points == 3
    assert sum(point.is_held_out for point in profile.points) >= len(profile.points) // 6
    assert profile.overlap.measured
    assert profile.overlap.demand_floor == 0.0
    assert profile.host.inflation_eager[0] == 1.0
    assert len(profile.host.inflation_eager) == 3
    verify = Work(kind=Kind.VERIFY, rows=2, row_tokens=8, context_tokens=64, head_rows=8)
    assert build_costs(profile).cost(verify).device_s > 0.0


@pytest.mark.slow
def test_running_it_again_measures_nothing_and_gives_the_same_profile(folder: Path) -> None:
    points, before = folder / "p.points.jsonl", load(folder / "p.json")
    content = points.read_bytes()
    calibrate(*flags(folder, "--out", folder / "p.json", "--overwrite"))
    assert points.read_bytes() == content
    assert load(folder / "p.json") == before


@pytest.mark.slow
def test_points_of_another_machine_or_other_options_are_refused(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "p.points.jsonl").read_text().splitlines(keepends=True)
    header = json.loads(lines[0])
    header["fingerprint"]["cpu"] = "another one"
    (tmp_path / "q.points.jsonl").write_text(json.dumps(header) + "\n" + "".join(lines[1:]))
    assert "of another machine: cpu was 'another one'" in refusal(*flags(folder, "--out", tmp_path / "q.json"))
    (tmp_path / "r.points.jsonl").write_text("".join(lines))
    other = flags(folder, "--out", tmp_path / "r.json", "--set", "measure.rows=2")
    assert "of other options: rows was 4, is now 2" in refusal(*other)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama as the library saves it."""
    path = tmp_path_factory.mktemp("weights") / "tiny-llama-on-disk"
    sizes = {**SMALL, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(1)
    LlamaForCausalLM(LlamaConfig(**sizes, max_position_embeddings=512)).save_pretrained(path)
    return path


def test_real_weights_from_a_directory_are_those_that_run(weights: Path) -> None:
    kernels = build(pair_spec("cpu", str(weights), None, 2, 256))
    saved = LlamaForCausalLM.from_pretrained(weights, dtype=torch.float32)
    assert torch.equal(kernels.target.embedding.weight, saved.model.embed_tokens.weight)
    assert torch.equal(kernels.target.head.weight, saved.lm_head.weight)
    for ours, theirs in zip(kernels.target.layers, saved.model.layers, strict=True):
        attention, mlp = theirs.self_attn, theirs.mlp
        assert torch.equal(
            ours.qkv, torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
        )
        assert torch.equal(ours.gate_up, torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]))
        assert torch.equal(ours.down.weight, mlp.down_proj.weight)


@pytest.mark.slow
def test_a_pair_with_real_weights_is_measured_and_says_so(weights: Path, tmp_path: Path) -> None:
    given = ("--device", "cpu", "--target", weights, *sized(rows=2, context=256, budget_s=5))
    calibrate("measure", *given, "--out", tmp_path / "p.json")
    profile = load(tmp_path / "p.json")
    assert profile.name == "cpu/tiny-llama-on-disk"
    assert "of real weights" in profile.source
    assert profile.target.layers == 2
    assert profile.errors["verify"].points > 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--set", "measure.budget_s=3"), "measure.budget_s 3 must be at least 5"),
        (("--set", "measure.context=100"), "must be in 256..512"),
        (("--target", "tiny-target"), "must share vocabulary"),
        (("--target", "BIG"), "big and d in float32 with KV of 4 slots of 256 tokens needs"),
    ],
)
def test_flags_that_cannot_be_are_one_line(tmp_path: Path, more: tuple[object, ...], message: str) -> None:
    big = {"hidden_size": 1 << 17, "intermediate_size": 1 << 19, "num_hidden_layers": 99}
    path = write_config(tmp_path / "big" / "config.json", **{**SMALL, "head_dim": None, **big})
    more = tuple(path if word == "BIG" else word for word in more)
    assert message in refusal(*flags(tmp_path, "--out", tmp_path / "p.json", *more))
    assert not [path for path in tmp_path.glob("*.json*") if path.suffix != ".lock"]


def test_a_budget_without_a_decode_leaves_no_plan_that_a_second_call_would_keep(tmp_path: Path) -> None:
    write_config(tmp_path / "t" / "config.json", **SMALL)
    spec = pair_spec("cpu", str(tmp_path / "t" / "config.json"), None, 4, 256)
    with pytest.raises(ValueError, match="too small to time a single decode pass"):
        Session(spec, tmp_path / "p.points.jsonl").measure(0.0)
    assert not (tmp_path / "p.points.jsonl").exists()


def test_cuda_is_refused_where_there_is_none(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    line = refusal(*flags(tmp_path, "--out", tmp_path / "p.json", "--device", "cuda"))
    assert "torch finds no CUDA device" in line


def test_pairs_and_three_passes_run_on_slots_of_their_own_as_far_as_there_are_some() -> None:
    spec = pair_spec("cpu", "tiny-target", "tiny-draft", 4, 256)

    def planned(**changes: Any) -> list[Corun]:
        found = coruns_within(limits(spec)._replace(**changes))
        assert all(corun.num_rows <= changes.get("rows", 4) for corun in found)
        return found

    kinds = {"prefill beside decode", "draft beside verify"}
    assert {corun.kinds for corun in planned()} == kinds | {"prefill beside draft beside verify"}
    assert {timed.launch for corun in planned() for timed in corun.passes} == {"eager"}
    captured = planned(has_graphs=True)
    beside = [corun for corun in captured if not corun.is_captured]
    assert {corun.kinds for corun in captured if corun.is_captured} == {corun.kinds for corun in planned()}
    launched = [[(timed.kind, timed.launch) for timed in corun.passes] for corun in beside]
    assert launched == [[("prefill", "eager"), (kind, "graphed")] for kind in ("draft", "verify")]
    assert {corun.kinds for corun in planned(has_draft=False)} == {"prefill beside decode"}
    assert {corun.kinds for corun in planned(rows=2)} == kinds
    assert planned(rows=1) == []


@pytest.mark.slow
def test_what_was_rated_before_is_not_rated_again(folder: Path, tmp_path: Path) -> None:
    spec = spec_of(folder)
    lines = (folder / "p.points.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "q.jsonl").write_text("".join(line for line in lines if not line.startswith('{"rates"')))
    planned = coruns_within(limits(spec))
    before = [ran(corun, (1.0, 1.0), (0.5, 0.5)) for corun in (planned[0]._replace(favoured=1), planned[0])]
    for each in before:
        points_file.append(tmp_path / "q.jsonl", "rates", each)
    for _ in range(2):
        Session(spec, tmp_path / "q.jsonl").measure_beside(15.0)
        held = points_file.read(tmp_path / "q.jsonl").rates
        assert held[: len(before)] == before
        assert [ran.corun for ran in held[len(before) :]] == planned[1:]


@pytest.mark.slow
def test_what_serving_adds_is_kept(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement that was killed behind it does not serve again."""
    spec = spec_of(folder)
    lines = (folder / "p.points.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "q.jsonl").write_text("".join(line for line in lines if not line.startswith('{"serving"')))
    costs = ServingCosts(
        works=Waits(1e-5, 2e-5), look_s=0.0, probed_s=(1e-3, 2e-3), served={"verify": 1.5}, how="made up"
    )
    asked: list[str] = []
    monkeypatch.setattr(
        "calibrate.measure.session.measure_serving", lambda profile, *_: asked.append(profile.name) or costs
    )
    session = Session(spec, tmp_path / "q.jsonl")
    profiles = []
    for _ in range(2):
        session.serve(60.0)
        profiles.append(session.profile())
    assert len(asked) == 1
    assert profiles[0] == profiles[1]
    assert {profile.host.result_s for profile in profiles} == {2e-5}
    assert profiles[0].host.is_synchronous
    assert "made up" in profiles[1].host.source
