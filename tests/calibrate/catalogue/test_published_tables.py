"""Kernel tables by the wheel that holds them and by what is installed."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import msgspec
import pytest

from calibrate.catalogue.published_tables import published_tables
from calibrate.cli.main import calibrate_command
from calibrate.importers.aiconfigurator.deployment import Deployment, tables_of
from calibrate.importers.plan_candidates import own_decode_ms
from sim.costs.profile import Profile
from sim.costs.profile_files import UnknownProfile, load
from tests.calibrate.support import write_tables
from tests.properties import assert_refused


def imported(out: Path, *words: object) -> Profile:
    """The profile that a user's command writes."""
    flags = (*words, "--gpu", "a100-sxm", "--out", out)
    calibrate_command.main(args=["import", *map(str, flags)], prog_name="calibrate", standalone_mode=False)
    return load(out)


def wheel_at(path: Path, module: str = "aisimulate_core") -> Path:
    """A wheel with the tables of one GPU and files that nobody wants."""
    tables = write_tables(path.parent)
    with ZipFile(path, "w") as wheel:
        wheel.write(tables / "a100_sxm.yaml", f"{module}/systems/a100_sxm.yaml")
        for table in (tables / "a100_sxm").iterdir():
            wheel.write(table, f"{module}/systems/data/a100_sxm/{table.name}")
        wheel.writestr(f"{module}/_native.so", "code")
        wheel.writestr(f"{module}/systems/data/../../../../out.parquet", "outside")
    return path


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = wheel_at(tmp_path / "aisimulate-0.13.0.dev7-cp311-abi3-linux.whl")
    monkeypatch.setenv("LANESIM_TABLES", str(path))
    return path


def test_a_named_wheel_is_read_without_being_installed(wheel: Path, tmp_path: Path) -> None:
    tables, revision = published_tables()
    assert revision == "aisimulate 0.13.0.dev7"
    assert [path.name for path in tables.parent.iterdir()] == ["systems"]
    profile = imported(tmp_path / "p.json", "--target", "meta-llama/Llama-3.1-8B")
    assert "ai-dynamo/aisimulate@aisimulate 0.13.0.dev7 (Apache-2.0): vllm 0.14.0;" in profile.source
    assert tables_of(profile, "vllm") == "aisimulate 0.13.0.dev7, vllm 0.14.0"
    assert tables_of(profile, "sglang") == "aisimulate 0.13.0.dev7"
    assert tables_of(load("cpu/tiny"), "vllm") is None
    several = msgspec.structs.replace(profile, source=profile.source.replace("0.14.0", "0.14.0, vllm 0.25.0"))
    assert tables_of(several, "vllm") == "aisimulate 0.13.0.dev7, vllm 0.14.0, 0.25.0"


def test_a_models_name_on_a_gpu_without_tables_is_scaled_from_the_nearest_and_says_how_far_off(wheel: Path) -> None:
    model = "deepseek-ai/DeepSeek-R1-Distill-Llama-8B"
    with pytest.warns(UserWarning, match="a100-sxm's times scaled by data sheets, which was off by 13 %"):
        near = load(f"a100-pcie/{model}")
    with pytest.warns(UserWarning, match="profile a100-sxm/deepseek-r1-distill-llama-8b: NVIDIA's kernel tables"):
        origin = load(f"A100/{model}")
    assert (near.gpu.name, near.tensor_parallel, near.errors["decode"].mean_error_pct) == ("a100-pcie", 1, 13.0)
    one, two = (each.table.target.decode_attention.seconds[-1][-1] for each in (near, origin))
    assert one is not None
    assert two is not None
    slower = origin.gpu.bandwidth_bytes_per_s / near.gpu.bandwidth_bytes_per_s
    assert 1.0 < one / two < slower, "a launch takes as long on both"
    assert load(f"a100-pcie/{model}") == near


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mi300x/llama-3.1-8b", "unknown GPU 'mi300x'. Choose from a100-sxm, a100-sxm-40gb, a100-pcie"),
        ("b100/llama-3.1-8b", "unknown GPU 'b100'. Did you mean 'b200-sxm'?"),
        ("a100-pcie/no/Model-9B", "`hf download no/Model-9B config.json --local-dir Model-9B`"),
        ("a100-pcie/nvidia/Nemotron-H-56B-Base-8K", "no cost form here for state-space layers"),
    ],
)
def test_what_cannot_be_made_says_why_and_suggests_no_other_maker(wheel: Path, name: str, says: str) -> None:
    with pytest.raises(UnknownProfile) as refused:
        load(name)
    assert says in str(refused.value)


def test_a_wheel_is_unpacked_once_into_the_cache_folder_alone(wheel: Path, tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())
    tables, _ = published_tables()
    assert set(tmp_path.iterdir()) - before == {tmp_path / "cache"}
    assert list((tmp_path / "cache").iterdir()) == [tmp_path / "cache" / "lanesim"]
    unpacked = tables.stat().st_ino
    assert published_tables()[0] == tables
    assert tables.stat().st_ino == unpacked
    assert tables.is_relative_to(tmp_path / "cache" / "lanesim" / "tables")


def test_a_wheel_may_be_the_path_of_an_import(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LANESIM_TABLES")
    profile = imported(tmp_path / "p.json", "aiconfigurator", wheel, "--target", "llama-3.1-8b")
    assert "@aisimulate 0.13.0.dev7 " in profile.source


def test_a_package_beside_the_wheel_has_no_say_about_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed aiconfigurator-core would answer for Llama on an A100 by its own tables."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = wheel_at(tmp_path / "aiconfigurator_core-0.11-py3-none-any.whl", "aiconfigurator_core")
    monkeypatch.setenv("LANESIM_TABLES", str(path))
    assert own_decode_ms("meta-llama/Meta-Llama-3.1-8B", "a100-sxm", Deployment(), 1024) is None


WANTED = "must be a wheel of aisimulate or aiconfigurator-core: "


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("text.whl", "not a zip file"),
        ("bare.whl", "it holds no kernel tables"),
        ("absent.whl", "No such file"),
        ("..", "'..'"),
        (".", "'.'"),
        ("/dev/zero", "'/dev/zero'"),
    ],
)
def test_what_is_no_wheel_with_tables_is_refused(
    name: str, named: str, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device once filled the memory, and the folder above was taken for a wheel that had been unpacked."""
    published_tables()
    monkeypatch.chdir(tmp_path)
    Path("text.whl").write_text("no zip")
    with ZipFile("bare.whl", "w") as bare:
        bare.writestr("a/b.py", "")
    monkeypatch.setenv("LANESIM_TABLES", name)
    assert_refused(published_tables, WANTED, named)


def test_of_two_wheels_of_one_name_each_gives_its_own_tables(wheel: Path) -> None:
    tables, _ = published_tables()
    with ZipFile(wheel, "a") as other:
        other.writestr("aisimulate_core/systems/new_gpu.yaml", "{}")
    assert not (tables / "new_gpu.yaml").exists()
    assert (published_tables()[0] / "new_gpu.yaml").exists()


def test_a_wheel_that_unfolds_into_more_than_tables_take_is_refused(
    wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calibrate.catalogue.published_tables.MAX_BYTES", 1000)
    with pytest.raises(ValueError, match=r"its tables take [\d,]+ bytes, over 1,000"):
        published_tables()


def test_an_installed_successor_comes_before_aiconfigurator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, distribution in (("aiconfigurator_core", "aiconfigurator_core"), ("aisimulate_core", "aisimulate")):
        info = tmp_path / f"{distribution}-9.1.dist-info"
        (tmp_path / module).mkdir()
        info.mkdir()
        (tmp_path / module / "__init__.py").touch()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 9.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert published_tables() == (tmp_path / "aisimulate_core" / "systems", "aisimulate 9.1")
