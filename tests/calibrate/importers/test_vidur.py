"""Importing Vidur's mlp.csv: a known law is found again, the bar on A100 is met, every defect is one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from calibrate.hardware.datasheets import datasheet
from calibrate.importers.tables.vidur import DIMENSIONS, ELEMENTWISE, GEMMS, import_vidur
from sim.costs.forms.build import build_costs
from sim.costs.profile_files import load
from sim.costs.shapes import MODELS, ModelShape
from sim.seam.work import Chunk, Kind, Work
from tests.calibrate.cli.test_commands import calibrate, refusal
from tests.calibrate.support import published

SHAPE = MODELS["llama-2-7b"]
GPU = datasheet("a100-sxm").gpu
FLAGS = ("--gpu", "a100-sxm", "--target", "llama-2-7b")


def gemm_ms(tokens: int, columns: int, depth: int) -> float:
    """60 % of the peak and 80 % of the bandwidth, whichever is longer, and 4 us; in steps of 1 us."""
    compute_s = 2.0 * tokens * columns * depth / (0.6 * GPU.peak_flops)
    memory_s = 2.0 * (columns * depth + tokens * (columns + depth)) / (0.8 * GPU.bandwidth_bytes_per_s)
    return round(1e3 * (max(compute_s, memory_s) + 4e-6), 3)


def elementwise_ms(tokens: int) -> float:
    return 0.003 + 2e-5 * tokens


def write_mlp(file: Path, shape: ModelShape = SHAPE, degrees: tuple[int, ...] = (1, 2), gated: str = "True") -> Path:
    """A file of `shape` that follows the laws above; returns it."""
    operations = [*GEMMS, *ELEMENTWISE]
    lines = [",".join([*(f"time_stats.{name}.median" for name in operations), *DIMENSIONS])]
    lines[0] += ",use_gated_mlp,num_tokens,num_tensor_parallel_workers"
    dimensions = f"{shape.heads},{shape.kv_heads},{shape.hidden},{shape.intermediate}"
    for degree in degrees:
        for tokens in [1, *range(8, 257, 8), *range(320, 4097, 64)]:
            times = [gemm_ms(tokens, *size) for size in shape.gemms(degree)]
            times += [elementwise_ms(tokens)] * len(ELEMENTWISE)
            lines.append(f"{','.join(map(str, times))},{dimensions},{gated},{tokens},{degree}")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")
    return file


def test_the_law_behind_the_file_is_found_again(tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    calibrate("import", "vidur", write_mlp(tmp_path / "mlp.csv"), *FLAGS, "--revision", "abc", "--out", out)
    profile = load(out)
    assert profile.name == "a100-sxm/llama-2-7b"
    assert "microsoft/vidur@abc (MIT)" in profile.source
    for kind, most in (("body", 4.0), ("elementwise", 1.0)):
        mean_error_pct = profile.errors[kind].mean_error_pct
        assert mean_error_pct is not None
        assert mean_error_pct < most, kind
    tokens = 1000
    layer_ms = sum(gemm_ms(tokens, *size) for size in SHAPE.gemms()) + 6 * elementwise_ms(tokens)
    work = Work(kind=Kind.PREFILL, chunks=(Chunk(tokens, 0),))
    attention_s = SHAPE.layers * build_costs(profile).passes(work.model).chunks_attention_s(work.chunks)
    body_s = build_costs(profile, cuda_graph=False).cost(work).device_s - attention_s
    assert body_s == pytest.approx(1e-3 * SHAPE.layers * layer_ms, rel=0.06)


def test_what_the_file_lacks_is_the_shipped_profiles_and_says_so(tmp_path: Path) -> None:
    profile = import_vidur(write_mlp(tmp_path / "mlp.csv"), "a100-sxm", SHAPE)
    shipped = load("a100-sxm/llama-2-7b")
    assert profile.compact.prefill_attention == shipped.compact.prefill_attention
    assert profile.compact.multi_head_decode_attention == shipped.compact.multi_head_decode_attention
    assert profile.compact.gemm != shipped.compact.gemm
    assert profile.host == shipped.host
    assert "attention, sampler and host from the shipped a100-sxm/llama-2-7b" in profile.source
    assert profile.errors["decode_attention"].mean_error_pct == shipped.errors["decode_attention"].mean_error_pct
    for kind in ("decode_attention", "prefill_attention", "verify"):
        assert "shipped a100-sxm/llama-2-7b" in profile.errors[kind].held_out
    for kind in ("decode", "prefill", "lm_head", "verify"):
        assert profile.errors[kind].points == 0


def test_several_devices_take_the_all_reduce_of_the_shipped_tables(tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    calibrate("import", "vidur", write_mlp(tmp_path / "mlp.csv"), *FLAGS, "--tp", 2, "--out", out)
    profile = load(out)
    assert profile.name == "a100-sxm/llama-2-7b-tp2"
    assert profile.tensor_parallel == 2
    assert profile.compact.all_reduce is not None
    assert "all-reduce" in profile.source


def test_other_models_in_the_folder_give_the_error_of_the_model_left_out(tmp_path: Path) -> None:
    for name in ("llama-2-7b", "llama-3.1-8b", "codellama-34b"):
        write_mlp(tmp_path / "all" / name / "mlp.csv", MODELS[name])
    profile = import_vidur(tmp_path / "all", "a100-sxm", SHAPE)
    left_out = profile.errors["body_model_left_out"]
    assert "fitted on codellama-34b, llama-3.1-8b alone" in left_out.held_out
    assert left_out.points == 93
    alone = import_vidur(tmp_path / "all" / "llama-2-7b", "a100-sxm", SHAPE)
    assert "body_model_left_out" not in alone.errors
    assert alone.kernels == profile.kernels


Change = Callable[[str], str]


def with_line(**changes: object) -> Change:
    """The file with one more line: the last one with some columns changed."""

    def change(text: str) -> str:
        header, *lines = text.splitlines()
        names = header.split(",")
        values = lines[-1].split(",")
        for name, value in changes.items():
            column = name if name in names else f"time_stats.{name}.median"
            values[names.index(column)] = str(value)
        return f"{text}{','.join(values)}\n"

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("mlp_up_proj.median", "mlp_up.median", 1), "no column 'time_stats.mlp_up_proj"),
        (lambda text: text.replace(",num_tokens", ",tokens", 1), "no column 'num_tokens'"),
        (lambda text: text.partition("\n")[0] + "\n", "mlp.csv: has no rows"),
        (lambda text: text + "0.1,0.2", "fields, and the header has"),
        (lambda text: "".join(text.splitlines(keepends=True)[:12]), "11 token counts are too few to fit; want 20"),
        (with_line(attn_pre_proj=-0.3), "must not be negative"),
        (with_line(attn_pre_proj="nan"), "must be finite"),
        (with_line(attn_pre_proj="inf"), "must be finite"),
        (with_line(mlp_down_proj=0.0, num_tensor_parallel_workers=1), "must be positive"),
        (with_line(num_tokens=7.5), "must be a whole number of at least 0; are columns swapped?"),
        (with_line(n_head=64), "n_head must be the same in all rows"),
        (with_line(mlp_up_proj=1e6), "must be at most 10000 milliseconds"),
        (with_line(mlp_up_proj=3300.0, num_tensor_parallel_workers=1), "takes 3300 ms, over 100 times the"),
        (with_line(mlp_up_proj=0.0033, num_tensor_parallel_workers=1), "are times not in milliseconds"),
        (lambda text: swapped(text, "mlp_up_proj", "attn_post_proj"), "mlp_up_proj takes"),
    ],
)
def test_a_defect_is_one_line_that_names_its_place(tmp_path: Path, change: Change, message: str) -> None:
    file = write_mlp(tmp_path / "mlp.csv", degrees=(1,))
    file.write_text(change(file.read_text()))
    line = refusal("import", "vidur", file, *FLAGS, "--out", tmp_path / "p.json")
    assert message in line
    assert "mlp.csv" in line
    assert not (tmp_path / "p.json").exists()


def swapped(text: str, one: str, other: str) -> str:
    header, rest = text.split("\n", 1)
    header = header.replace(f".{one}.", ".?.").replace(f".{other}.", f".{one}.").replace(".?.", f".{other}.")
    return f"{header}\n{rest}"


def test_what_is_not_there_or_not_of_this_model_is_one_line(tmp_path: Path) -> None:
    file = write_mlp(tmp_path / "mlp.csv", degrees=(1,))
    out = ("--out", tmp_path / "p.json")
    assert "does not exist" in refusal("import", "vidur", tmp_path / "absent.csv", *FLAGS, *out)
    (tmp_path / "empty").mkdir()
    assert "no table mlp.csv in" in refusal("import", "vidur", tmp_path / "empty", *FLAGS, *out)
    assert "no rows of num_tensor_parallel_workers=4; it has 1" in refusal(
        "import", "vidur", file, *FLAGS, "--tp", 4, *out
    )
    assert "no all-reduce of 3 GPUs is known for 'a100-sxm'" in refusal(
        "import", "vidur", file, *FLAGS, "--tp", 3, *out
    )
    of_another = ("--gpu", "a100-sxm", "--target", "llama-3.1-8b")
    assert "no mlp.csv of llama-3.1-8b" in refusal("import", "vidur", file, *of_another, *out)
    no_profile = ("--gpu", "l40s", "--target", "llama-2-7b")
    assert "no shipped profile" in refusal("import", "vidur", file, *no_profile, *out)


def test_a_model_without_a_gated_mlp_is_refused(tmp_path: Path) -> None:
    file = write_mlp(tmp_path / "mlp.csv", degrees=(1,), gated="False")
    assert "MLP 11008 not gated" in refusal("import", "vidur", file, *FLAGS, "--out", tmp_path / "p.json")
    phi = ("--gpu", "a100-sxm", "--target", "phi-2", "--out", tmp_path / "p.json")
    assert "unknown model 'phi-2'" in refusal("import", "vidur", file, *phi)


def test_files_of_several_gpus_are_never_mixed(tmp_path: Path) -> None:
    write_mlp(tmp_path / "a100" / "Llama-2-7b-hf" / "mlp.csv")
    write_mlp(tmp_path / "h100" / "Llama-2-7b-hf" / "mlp.csv")
    write_mlp(tmp_path / "h100" / "CodeLlama" / "mlp.csv", MODELS["codellama-34b"])
    out = ("--out", tmp_path / "p.json")
    assert "'h100' is of another GPU" in refusal("import", "vidur", tmp_path / "h100", *FLAGS, *out)
    of_h100 = ("--gpu", "a100-sxm", "--target", "codellama-34b")
    assert "no mlp.csv of codellama-34b" in refusal("import", "vidur", tmp_path, *of_h100, *out)
    assert "body_model_left_out" not in import_vidur(tmp_path, "a100-sxm", SHAPE).errors
    write_mlp(tmp_path / "a100" / "again" / "mlp.csv")
    assert "2 files below" in refusal("import", "vidur", tmp_path, *FLAGS, *out)


def test_a_model_that_does_not_fit_the_gpu_is_refused(tmp_path: Path) -> None:
    flags = ("--gpu", "a100-sxm-40gb", "--target", "codellama-34b", "--out", tmp_path / "p.json")
    assert "weights of codellama-34b need 67.5 GB and 1 x a100-sxm-40gb has" in refusal(
        "import", "vidur", tmp_path, *flags
    )


def test_published_a100_files_meet_the_bar() -> None:
    """Body at most 4 %: on points that the fit did not use for each model, and with the model left out on average."""
    folder = published("vidur/compute") / "a100"
    names = ("llama-2-7b", "llama-3.1-8b", "codellama-34b")
    errors = [import_vidur(folder, "a100-sxm", MODELS[name]).errors for name in names]
    left_out = [error["body_model_left_out"].mean_error_pct or 100.0 for error in errors]
    assert sum(left_out) / len(left_out) <= 4.0
    assert all((error["body"].mean_error_pct or 100.0) <= 4.0 for error in errors)


def test_published_phi_2_is_refused() -> None:
    folder = published("vidur/compute") / "a100" / "microsoft" / "phi-2"
    with pytest.raises(ValueError, match="not gated"):
        import_vidur(folder, "a100-sxm", SHAPE)
