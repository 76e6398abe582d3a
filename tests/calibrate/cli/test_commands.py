"""`lanesim calibrate` as a user meets it: profiles written whole or not at all, bad input in one line."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from calibrate.cli.check_files import check_file
from calibrate.cli.main import calibrate_command
from sim.cli.main import run
from sim.costs.profile_files import load
from tests.calibrate.support import write_tables
from tests.properties import some

ROOT = Path(__file__).parents[3]
PROFILE = "h100-sxm/llama-3.1-8b"


def calibrate(*args: object) -> None:
    calibrate_command.main(args=[str(arg) for arg in args], prog_name="calibrate", standalone_mode=False)


def refusal(*args: object) -> str:
    """The one line that bad input gets."""
    with pytest.raises(ValueError) as caught:
        calibrate(*args)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_an_imported_profile_is_written_and_its_errors_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "p.json"
    tables = write_tables(tmp_path)
    calibrate("import", "aiconfigurator", tables, "--gpu", "a100-sxm", "--target", "llama-3.1-8b", "--out", out)
    assert load(out).name == "a100-sxm/llama-3.1-8b"
    printed = capsys.readouterr().out
    assert "verify_body" in printed
    assert "Errors are of measurements that the fit did not use." in " ".join(printed.split())


def test_a_table_of_results_is_checked_by_its_rows(tmp_path: Path) -> None:
    workload = ("--num-prompts", "3", "--output-len", "4", "--out", str(tmp_path / "r"))
    assert run(["compare", "--profile", "cpu/tiny", "--policy", "pd", *workload]) == 0
    assert check_file(tmp_path / "r" / "requests.parquet") == ("results table", "3 rows")


def test_an_output_that_is_no_json_file_is_refused_before_any_work(tmp_path: Path) -> None:
    flags = ("--gpu", "a100-sxm", "--target", "llama-3.1-8b", "--out", tmp_path / "p.yaml")
    assert "must end with .json" in refusal("import", "aiconfigurator", tmp_path / "absent", *flags)


def test_a_derived_profile_keeps_the_shares_and_owns_no_error(tmp_path: Path) -> None:
    out = tmp_path / "h200.json"
    calibrate("derive", "--from", PROFILE, "--gpu", "h200-sxm", "--out", out)
    origin, derived = load(PROFILE), load(out)
    assert derived.name == "h200-sxm/llama-3.1-8b"
    assert derived.gpu.bandwidth_bytes_per_s == 4.8e12
    assert derived.kernels == origin.kernels
    assert {error.mean_error_pct for error in derived.errors.values()} == {None}
    assert all("datasheet transfer" in error.held_out for error in derived.errors.values())
    assert derived.source.startswith("derived from h100-sxm/llama-3.1-8b")


def test_constants_carry_to_other_models_and_own_no_error(tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    models = ("--target", "apertus-8b", "--draft", "eagle3")
    calibrate("derive", "--from", PROFILE, "--gpu", "gh200", *models, "--out", out)
    origin, derived = load(PROFILE), load(out)
    assert derived.name == "gh200/apertus-8b+eagle3"
    assert (derived.target.name, derived.target.is_gated) == ("apertus-8b", False)
    assert some(derived.draft).vocab == 131072
    assert derived.kernels == origin.kernels
    assert {error.mean_error_pct for error in derived.errors.values()} == {None}
    assert "nothing was measured with apertus-8b+eagle3" in derived.source


def test_a_profile_is_split_over_gpus_whose_all_reduce_is_known(tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    calibrate("derive", "--from", "gh200/apertus-8b", "--tp", "4", "--out", out)
    origin, group = load("gh200/apertus-8b"), load(out)
    assert (group.name, group.tensor_parallel) == ("gh200/apertus-8b-tp4", 4)
    reduce = some(group.compact.all_reduce)
    assert (reduce.fixed_s, reduce.bytes_per_s) == (1.27e-5, 1.276e11)
    assert msgspec.structs.replace(group.compact, all_reduce=None) == origin.compact
    assert {error.mean_error_pct for error in group.errors.values()} == {None}
    assert "gh200/apertus-8b split over 4 GPUs, all-reduces in service" in group.source
    assert "is of 4 GPU(s)" in refusal("derive", "--from", out, "--tp", "2", "--out", tmp_path / "q.json")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "no change is named"),
        (("--tp", "8", "--gpu", "gh200"), "no all-reduce of 8 GPUs is known for 'gh200'"),
        (("--tp", "3"), "must divide llama-3.1-8b's 32 heads"),
        (("--gpu", "h200-sxm", "--draft", "eagle3"), "--draft eagle3 needs --target"),
    ],
)
def test_a_derivation_of_nothing_or_half_a_pair_is_one_line(
    tmp_path: Path, flags: tuple[str, ...], message: str
) -> None:
    assert message in refusal("derive", "--from", PROFILE, *flags, "--out", tmp_path / "p.json")
