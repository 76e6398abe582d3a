"""The profile file: strict schema, names, shipped files, and what fits in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sim.cli import main as cli
from sim.costs.datasheets import DATASHEETS
from sim.costs.engine_costs import own_engine
from sim.costs.memory import kv_capacity_tokens
from sim.costs.profile import UNLOADED, Profile
from sim.costs.profile_files import encode, load, shipped
from tests.sim.costs.table_points import HOLES, table

PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"
TARGETS = ("tinyllama-1.1b", "llama-2-7b", "codellama-34b", "llama-3.2-1b", "llama-3.1-8b")
DRAFTED = (
    "llama-2-7b+tinyllama-1.1b",
    "codellama-34b+tinyllama-1.1b",
    "tinyllama-1.1b+tinyllama-1.1b",
    "llama-3.1-8b+llama-3.2-1b",
    "llama-3.1-8b+eagle3",
)


QUOTED = ("a100-pdverify/", "rtx-3070-laptop/")
"""Profiles of figures quoted in reports."""


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_profile_loads_under_its_name_and_says_where_it_comes_from_and_its_error(name: str) -> None:
    profile = load(name)
    errors = profile.errors
    assert profile.name == name
    assert profile.source
    assert profile.date
    assert {"body", "decode", "prefill", "verify"} <= set(errors)
    assert kv_capacity_tokens(profile) > 10_000
    if profile.conditions is None:
        assert name.startswith(("cpu/", *QUOTED)), "what a GPU that was measured did meanwhile"
    if name.startswith(QUOTED):
        assert profile.source.startswith("figures quoted in a report, not measured by lanesim")
        assert profile.linear.attention_implementation
        assert all(error.points == 0 for error in errors.values())
        engine = own_engine(profile)
        assert engine is not None
        assert engine.name == profile.host.engine
    elif "casys-kaist/LLMServingSim@" in profile.source:
        assert "MIT" in profile.source
        is_measured = f"nothing was measured with {profile.target.name}" not in profile.source
        assert (errors["body"].points >= 3) is (errors["decode"].points >= 3) is is_measured
    elif profile.conditions == UNLOADED:
        assert "ai-dynamo/aiconfigurator@" in profile.source
        assert "Apache-2.0" in profile.source
        assert (profile.overlap.measured, profile.overlap.demand_floor) == (False, 1.0)
        for kind in ("body", "decode", "prefill", "lm_head", "verify_body"):
            assert errors[kind].points >= 3
            assert errors[kind].mean_error_pct is not None


def test_every_promised_profile_is_shipped() -> None:
    promised = {f"{gpu}/{models}" for gpu in ("a100-sxm", "h100-sxm") for models in TARGETS + DRAFTED}
    assert promised | {"cpu/tiny"} <= set(shipped())


def test_the_tiny_cpu_pair_says_that_it_is_illustrative() -> None:
    profile = load("cpu/tiny")
    assert "illustrative" in profile.source
    assert all(error.mean_error_pct is None for error in profile.errors.values())
    assert profile.draft is not None
    assert profile.target.vocab == profile.draft.vocab


@pytest.mark.parametrize("profile", [load(PAIR), table(HOLES)], ids=["compact", "table"])
def test_a_profile_survives_writing_and_reading(tmp_path: Path, profile: Profile) -> None:
    path = tmp_path / "copy.json"
    path.write_bytes(encode(profile))
    assert load(path) == load(str(path)) == profile


def test_kv_capacity_is_what_the_weights_leave() -> None:
    profile = load(PAIR)
    left = 0.9 * profile.gpu.memory_bytes - profile.weight_bytes
    assert kv_capacity_tokens(profile, 0.9) == int(left / profile.kv_bytes_per_token)
    alone = kv_capacity_tokens(profile, 0.9, with_draft=False)
    assert alone == kv_capacity_tokens(load("h100-sxm/llama-2-7b"), 0.9)
    assert alone > kv_capacity_tokens(profile, 0.9)


def test_loading_imports_nothing_heavy() -> None:
    code = (
        "import sys; from sim.costs.profile_files import load; from sim.costs.forms.build import build_costs;"
        "build_costs(load('cpu/tiny'));"
        "print([m for m in ('numpy', 'scipy', 'pandas', 'torch', 'yaml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_field_of_the_schema_is_in_the_file() -> None:
    assert list(json.loads(encode(load(PAIR)))) == list(Profile.__struct_fields__)


def test_profiles_are_listed_of_gpus_a_part_of_whose_name_begins_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["profiles", "list", "6000"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "/" in line]
    assert {name.partition("/")[0] for name in names} == {"rtx-pro-6000-server"}


def test_chips_of_one_name_but_other_kernels_are_two_families() -> None:
    assert DATASHEETS["b200-sxm"].family != DATASHEETS["rtx-5090"].family


def test_memory_is_that_of_profiles_of_the_same_gpu() -> None:
    sheets = {name: (load(name).gpu.memory_bytes, DATASHEETS.get(load(name).gpu.name)) for name in shipped()}
    known = {name: memory / sheet.gpu.memory_bytes for name, (memory, sheet) in sheets.items() if sheet is not None}
    assert "l40s/qwen3-8b" in known
    assert list(known.values()) == pytest.approx([1.0] * len(known), rel=0.01)
