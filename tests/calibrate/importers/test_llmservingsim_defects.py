"""LLMServingSim's tables with a defect, or of something else: one line that names the place, and exit 2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from calibrate.importers.llmservingsim.layer_profile import import_llmservingsim
from sim.costs.shapes import MODELS, eagle3_head
from tests.calibrate.cli.test_commands import refusal
from tests.calibrate.importers.layer_tables import SHAPE, write_layer_tables, write_meta

Change = Callable[[str], str]
FLAGS = ("--gpu", "rtx-4090", "--target", "llama-3.1-8b")


def scaled(factor: float) -> Change:
    """Every time of a file multiplied, as in another unit."""

    def change(text: str) -> str:
        header, *lines = text.splitlines()
        scaled_lines = [f"{line.rsplit(',', 1)[0]},{factor * float(line.rsplit(',', 1)[1])}" for line in lines]
        return "\n".join([header, *scaled_lines]) + "\n"

    return change


def swapped(first: int, second: int) -> Change:
    """The values of two columns exchanged, the header kept."""

    def change(text: str) -> str:
        header, *lines = text.splitlines()
        rows = [line.split(",") for line in lines]
        for row in rows:
            row[first], row[second] = row[second], row[first]
        return "\n".join([header, *(",".join(row) for row in rows)]) + "\n"

    return change


@pytest.mark.parametrize(
    ("table", "change", "message"),
    [
        ("dense", lambda text: text.replace("time_us", "time_ms", 1), "dense.csv: no column 'time_us'"),
        ("dense", lambda text: text.replace("o_proj", "out_proj"), "dense.csv: no rows of 'o_proj'"),
        ("dense", lambda text: text.replace("embedding", "embed"), "dense.csv: no rows of 'embedding'"),
        ("dense", lambda text: text + "o_proj,1,-3\n", "time_us=-3 must be positive"),
        ("dense", lambda text: text + "o_proj,1,nan\n", "must be finite"),
        ("dense", lambda text: text + "o_proj,1,1e-6\n", "is it in other units?"),
        ("dense", scaled(1e-3), "is it in other units?"),
        ("dense", scaled(1e3), "or the unit?"),
        ("attention", scaled(1e-3), "is it in other units?"),
        ("dense", swapped(1, 2), "are columns swapped?"),
        ("attention", swapped(2, 3), "n_decode up to 8192, kv_decode to 256; are columns swapped?"),
        ("attention", swapped(0, 1), "history without a chunk; are columns swapped?"),
        ("attention", swapped(1, 2), "are columns swapped?"),
        ("dense", lambda text: text + "o_proj,17", "2 fields, and the header has 3"),
        ("dense", lambda text: text[:-4], "its last line has no end; is the file cut short?"),
        ("dense", lambda text: text + "o_proj,17,5\n", "other tokens counts"),
        ("dense", lambda text: text + "o_proj,1,5\n", "each there once"),
        ("attention", lambda text: text + "0,0,1,9.3,16\n", "are columns swapped?"),
        ("attention", lambda text: text + "0,0,1,16,16\n", "the point (0, 0, 1, 16) is there twice"),
        ("attention", lambda text: text.partition("\n")[0] + "\n", "has no rows"),
        ("attention", lambda text: "".join(text.splitlines(keepends=True)[:4]), "3 decode points are too few"),
        (
            "attention",
            lambda text: text.partition("\n768,")[0] + "\n",
            "chunks up to 512 tokens, dense.csv up to 2048; is",
        ),
        ("per_sequence", lambda text: text.replace("sampler", "softmax"), "no rows of 'sampler'"),
    ],
)
def test_a_defect_is_one_line_that_names_its_place(tmp_path: Path, table: str, change: Change, message: str) -> None:
    folder = write_layer_tables(tmp_path / "tp1")
    path = folder / f"{table}.csv"
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError) as caught:
        import_llmservingsim(folder, "rtx-4090", SHAPE)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    folder = write_layer_tables(tmp_path / "tp1")
    (folder / "per_sequence.csv").unlink()
    with pytest.raises(ValueError, match=r"no table per_sequence\.csv in"):
        import_llmservingsim(folder, "rtx-4090", SHAPE)


def test_the_folder_above_says_where_the_tables_are(tmp_path: Path) -> None:
    write_layer_tables(tmp_path / "tp1")
    line = refusal("import", "llmservingsim", tmp_path, *FLAGS, "--out", tmp_path / "p.json")
    assert "no table dense.csv in" in line
    assert "its folder 'tp1' has one" in line


def test_a_folder_of_another_degree_is_refused(tmp_path: Path) -> None:
    folder = write_layer_tables(tmp_path / "tp1")
    line = refusal("import", "llmservingsim", folder, *FLAGS, "--tp", 2, "--out", tmp_path / "p.json")
    assert "--tp 2: tp1 holds shards of --tp 1" in line


def test_a_folder_that_names_no_degree_is_taken_at_its_word_and_the_profile_says_so(tmp_path: Path) -> None:
    profile = import_llmservingsim(write_layer_tables(tmp_path / "tables"), "rtx-4090", SHAPE)
    assert "the folder names no degree, taken as tp1" in profile.source
    assert "no meta.yaml beside the folder" in profile.source


def test_experts_of_a_dense_target_are_refused(tmp_path: Path) -> None:
    folder = write_layer_tables(tmp_path / "tp1")
    (folder / "moe.csv").write_text("tokens,activated_experts,time_us\n1,2,3\n")
    line = refusal("import", "llmservingsim", folder, *FLAGS, "--out", tmp_path / "p.json")
    assert "moe.csv is a mixture of experts, and --target 'llama-3.1-8b' has none" in line


def test_ranks_of_a_dense_target_are_refused(tmp_path: Path) -> None:
    folder = write_layer_tables(tmp_path / "tp1")
    line = refusal("import", "llmservingsim", folder, *FLAGS, "--dp", "2", "--out", tmp_path / "p.json")
    assert "--dp 2 with --tp 1" in line


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("llama-2-7b", "attention.csv: the largest decode runs at 3 times the peak bandwidth"),
        ("qwen2.5-0.5b", "times the peak FLOP/s and"),
    ],
)
def test_a_model_that_the_times_cannot_be_of_is_refused(tmp_path: Path, target: str, message: str) -> None:
    folder = write_layer_tables(tmp_path / "tp1")
    with pytest.raises(ValueError) as caught:
        import_llmservingsim(folder, "rtx-4090", MODELS[target])
    assert message in str(caught.value)
    assert f"is --target '{target}' or --tp 1 or --gpu 'rtx-4090' wrong" in str(caught.value)


def test_a_gpu_too_slow_for_the_times_is_refused(tmp_path: Path) -> None:
    folder = write_layer_tables(tmp_path / "tp1")
    with pytest.raises(ValueError, match=r"GEMMs of 1 token run at .* times the peak bandwidth; .* --gpu 'l4' wrong"):
        import_llmservingsim(folder, "l4", SHAPE)


def test_another_model_than_meta_yaml_names_is_refused(tmp_path: Path) -> None:
    folder = write_layer_tables(tmp_path / "tp1")
    write_meta(folder)
    with pytest.raises(ValueError, match=r"intermediate_size is 11008, but meta.yaml's meta-llama/Llama-3.1-8B has"):
        import_llmservingsim(folder, "rtx-4090", MODELS["llama-2-7b"])


def test_another_gpu_than_meta_yaml_names_is_refused(tmp_path: Path) -> None:
    folder = write_layer_tables(tmp_path / "tp1")
    write_meta(folder)
    with pytest.raises(ValueError, match=r"--gpu 'l4': meta.yaml says 'NVIDIA GeForce RTX 4090', which is 'rtx-4090'"):
        import_llmservingsim(folder, "l4", SHAPE)


def test_a_meta_yaml_that_is_none_is_refused(tmp_path: Path) -> None:
    folder = write_layer_tables(tmp_path / "tp1")
    (tmp_path / "meta.yaml").write_text("gpu: [\n")
    with pytest.raises(ValueError, match=r"meta.yaml. line 2: not valid YAML"):
        import_llmservingsim(folder, "rtx-4090", SHAPE)


def test_a_model_that_does_not_fit_or_split_is_refused(tmp_path: Path) -> None:
    folder = write_layer_tables(tmp_path / "tp1")
    with pytest.raises(ValueError, match="weights of codellama-34b need"):
        import_llmservingsim(folder, "rtx-4090", MODELS["codellama-34b"])
    with pytest.raises(ValueError, match=r"tensor_parallel=3 must divide llama-3.1-8b's 32 heads"):
        import_llmservingsim(folder, "rtx-4090", SHAPE, None, 3)


def test_a_degree_whose_all_reduce_is_not_known_is_refused(tmp_path: Path) -> None:
    folder = write_layer_tables(tmp_path / "tp2", degree=2)
    with pytest.raises(
        ValueError, match=r"no all-reduce of 2 GPUs is known for 'rtx-4090' with vLLM of an unrecorded version; known: "
    ):
        import_llmservingsim(folder, "rtx-4090", SHAPE, None, 2)


def test_the_all_reduce_of_another_engine_version_must_be_asked_for(tmp_path: Path) -> None:
    folder = write_layer_tables(tmp_path / "tp2", degree=2)
    write_meta(folder, version="0.24.0", gpu="NVIDIA RTX PRO 6000 Blackwell Server Edition", degree=2)
    with pytest.raises(ValueError, match=r"'rtx-pro-6000-server' with vLLM 0.24.0; known: rtx-pro-6000-server"):
        import_llmservingsim(folder, "rtx-pro-6000", SHAPE, None, 2)
    profile = import_llmservingsim(folder, "rtx-pro-6000", SHAPE, None, 2, engine_version="0.19")
    assert "constants of vLLM 0.19" in profile.source


def test_a_draft_that_cannot_come_from_these_tables_is_refused(tmp_path: Path) -> None:
    folder = write_layer_tables(tmp_path / "tp1")
    draft = MODELS["llama-3.2-1b"]
    with pytest.raises(ValueError, match="give the draft's own folder with --draft-path"):
        import_llmservingsim(folder, "rtx-4090", SHAPE, draft)
    with pytest.raises(ValueError, match="leave --draft-path out"):
        import_llmservingsim(folder, "rtx-4090", SHAPE, eagle3_head(SHAPE), draft_path=folder)
    with pytest.raises(ValueError, match="--draft-path without --draft"):
        import_llmservingsim(folder, "rtx-4090", SHAPE, draft_path=folder)
