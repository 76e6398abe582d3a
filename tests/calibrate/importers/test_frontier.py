"""Importing Frontier's attention tables: known laws are found again, launch gaps are told, every defect is one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from calibrate.hardware.datasheets import datasheet
from calibrate.importers.tables.frontier import import_frontier
from sim.costs.forms.build import build_costs
from sim.costs.profile_files import load
from sim.costs.shapes import MODELS
from sim.seam.work import Chunk, Model
from tests.calibrate.cli.test_commands import calibrate, refusal
from tests.calibrate.support import published

SHAPE = MODELS["llama-2-7b"]
GPU = datasheet("a800-sxm").gpu
KV_BYTES = 2.0 * SHAPE.kv_heads * SHAPE.head_dim * SHAPE.dtype_bytes
FLAGS = ("--gpu", "a800-sxm", "--target", "llama-2-7b")
OPERATIONS = ("attn_prefill", "attn_decode", "attn_kv_cache_save", "attn_output_reshape")
HEADER = [f"time_stats.{name}.median" for name in OPERATIONS] + [
    *("n_q_head", "n_kv_head", "n_embd", "num_tensor_parallel_workers", "batch_size", "prefill_chunk_size"),
    *("kv_cache_size", "is_prefill", "attention_backend", "measurement_type", "mode"),
    *("prefill_seq_lens", "prefill_kv_cache_sizes", "decode_kv_cache_sizes"),
]
WRITE_MS = 0.003


def decode_ms(rows: int, context: int) -> float:
    """80 % of the bandwidth and 9 us."""
    return 1e3 * (9e-6 + rows * context * KV_BYTES / (0.8 * GPU.bandwidth_bytes_per_s))


def chunk_ms(tokens: int, history: int) -> float:
    """Half of the peak, history read at 80 % of the bandwidth, and 10 us."""
    flops = 4.0 * SHAPE.heads * SHAPE.head_dim * tokens * (history + 0.5 * tokens)
    read_s = history * KV_BYTES / (0.8 * GPU.bandwidth_bytes_per_s)
    return 1e3 * (10e-6 + flops / (0.5 * GPU.peak_flops) + read_s)


def line(
    prefill_ms: float,
    decode_ms_: float,
    rows: int,
    chunk: int,
    context: int,
    *,
    gap_ms: float = 0.0,
    mode: str = "even",
    lists: tuple[str, str, str] = ("", "", ""),
) -> str:
    times = (prefill_ms + gap_ms, decode_ms_ + gap_ms, WRITE_MS + gap_ms, gap_ms)
    kind = "CUDA_EVENT" if gap_ms else "KERNEL_ONLY"
    sizes = (SHAPE.heads, SHAPE.kv_heads, SHAPE.hidden, 1, rows, chunk, context)
    texts = (str(chunk > 0), "AttentionBackend.FLASHINFER", kind, mode, *(f'"{text}"' for text in lists))
    return ",".join(map(str, (*times, *sizes, *texts)))


def write_attention(file: Path, *, gap_ms: float = 0.0, has_mixed: bool = False) -> Path:
    """A file that follows the laws above; returns it."""
    lines = [",".join(HEADER)]
    for rows in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128):
        for context in (32, 64, 128, 256, 512, 1024, 2048, 4032):
            lines.append(line(0.0, decode_ms(rows, context), rows, 0, context, gap_ms=gap_ms))
    for tokens in range(64, 4097, 64):
        for history in (0, *range(512, 4096 - tokens, 512)):
            lines.append(line(chunk_ms(tokens, history), 0.0, 1, tokens, history, gap_ms=gap_ms))
    if has_mixed:
        prefill_ms = 2 * chunk_ms(512, 0) - 0.01
        lists = ("[512, 512]", "[0, 0]", "[1024, 1024, 1024, 1024]")
        lines.append(line(prefill_ms, decode_ms(4, 1024), 6, 0, 0, gap_ms=gap_ms, mode="true_mixed", lists=lists))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")
    return file


def test_the_laws_behind_the_file_are_found_again(tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    file = write_attention(tmp_path / "attention.csv")
    calibrate("import", "frontier", file, *FLAGS, "--revision", "abc", "--out", out)
    profile = load(out)
    assert profile.name == "a800-sxm/llama-2-7b"
    assert profile.compact.attention_implementation == "FLASHINFER"
    assert "NetX-lab/Frontier@abc (MIT), attention.csv" in profile.source
    assert "kernel times" in profile.source
    for kind, most in (("decode_attention", 2.0), ("prefill_attention", 2.0), ("chunk_attention", 2.0)):
        mean_error_pct = profile.errors[kind].mean_error_pct
        assert mean_error_pct is not None
        assert mean_error_pct < most, kind
        assert "launch gaps" not in profile.errors[kind].held_out
    passes = build_costs(profile).passes(Model.TARGET)
    assert passes.rows_s(20, 20, 20 * 1500, beside_chunks=False) == pytest.approx(
        1e-3 * (decode_ms(20, 1500) + WRITE_MS), rel=0.03
    )
    assert passes.chunks_attention_s([Chunk(1000, 1000)]) == pytest.approx(
        1e-3 * (chunk_ms(1000, 1000) + WRITE_MS), rel=0.05
    )


def test_what_the_tables_lack_is_the_shipped_profiles_and_says_so(tmp_path: Path) -> None:
    profile = import_frontier(write_attention(tmp_path / "attention.csv"), "a800-sxm", SHAPE)
    shipped = load("a100-sxm/llama-2-7b")
    assert profile.compact.gemm == shipped.compact.gemm
    assert profile.compact.decode_attention == shipped.compact.decode_attention
    assert profile.host == shipped.host
    assert profile.errors["body"].mean_error_pct == shipped.errors["body"].mean_error_pct
    for kind in ("body", "lm_head", "verify", "decode", "prefill"):
        assert "shipped a100-sxm/llama-2-7b" in profile.errors[kind].held_out
    for kind in ("decode", "prefill", "verify"):
        assert profile.errors[kind].points == 0


def test_only_kernel_times_count_where_there_are_some(tmp_path: Path) -> None:
    write_attention(tmp_path / "both" / "attention.csv", gap_ms=0.02)
    kernels = write_attention(tmp_path / "both" / "attention_kernel_only.csv")
    both = import_frontier(tmp_path / "both", "a800-sxm", SHAPE)
    assert both.kernels == import_frontier(kernels, "a800-sxm", SHAPE).kernels
    assert "attention_kernel_only.csv: attention" in both.source


def test_launch_gaps_are_told_where_there_are_only_events(tmp_path: Path) -> None:
    profile = import_frontier(write_attention(tmp_path / "attention.csv", gap_ms=0.02), "a800-sxm", SHAPE)
    assert "launch gaps included" in profile.source
    for kind in ("decode_attention", "prefill_attention", "chunk_attention"):
        assert "launch gaps of 5 to 30 us" in profile.errors[kind].held_out


def test_a_file_without_the_column_is_judged_by_what_launches_no_kernel(tmp_path: Path) -> None:
    for name, gap_ms, expected in (("kernels", 0.0, "kernel times"), ("events", 0.02, "launch gaps included")):
        file = write_attention(tmp_path / name / "attention.csv", gap_ms=gap_ms)
        file.write_text(file.read_text().replace("measurement_type", "unknown", 1))
        assert expected in import_frontier(file, "a800-sxm", SHAPE).source


def test_mixed_batches_are_in_no_fit_and_have_their_own_error(tmp_path: Path) -> None:
    profile = import_frontier(write_attention(tmp_path / "attention.csv", has_mixed=True), "a800-sxm", SHAPE)
    without = import_frontier(write_attention(tmp_path / "b" / "attention.csv"), "a800-sxm", SHAPE)
    assert profile.kernels == without.kernels
    assert profile.errors["mixed_attention"].points == 1
    assert "mixed_attention" not in without.errors


def test_a_kv_write_that_no_engine_does_is_left_out_and_told(tmp_path: Path) -> None:
    file = write_attention(tmp_path / "attention.csv")
    slow = write_attention(tmp_path / "slow" / "attention.csv")
    lines = slow.read_text().splitlines()
    at = HEADER.index("is_prefill")
    for i, text in enumerate(lines[1:], 1):
        values = text.split(",")
        if values[at] == "True":
            lines[i] = ",".join([*values[:2], "2.0", *values[3:]])
    slow.write_text("\n".join(lines) + "\n")
    told = import_frontier(slow, "a800-sxm", SHAPE)
    assert "without the KV write" in told.errors["prefill_attention"].held_out
    assert "without the KV write" not in import_frontier(file, "a800-sxm", SHAPE).errors["prefill_attention"].held_out
    assert build_costs(told).passes(Model.TARGET).chunks_attention_s([Chunk(1000, 0)]) < 1e-3


Change = Callable[[list[str]], list[str]]


def with_line(**changes: object) -> Change:
    """The decode row of 128 rows on 4032 tokens once more, with some columns changed."""

    def change(lines: list[str]) -> list[str]:
        values = next(text for text in lines if ",128,0,4032," in text).split(",")
        for name, value in changes.items():
            column = name if name in HEADER else f"time_stats.{name}.median"
            values[HEADER.index(column)] = str(value)
        return [*lines, ",".join(values)]

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [lines[0].replace("attn_decode", "decode"), *lines[1:]], "no column 'time_stats.attn_decode"),
        (lambda lines: [lines[0].replace("kv_cache_size,", "context,"), *lines[1:]], "no column 'kv_cache_size'"),
        (lambda lines: lines[:1], "attention.csv: has no rows"),
        (lambda lines: [*lines, lines[1][:30]], "fields, and the header has"),
        (with_line(attn_decode=-1.0), "must not be negative"),
        (with_line(attn_decode="nan"), "must be finite"),
        (with_line(attn_decode=0.0), "must be positive"),
        (with_line(attn_decode=4700.0), "takes 4700 ms, over 100 times the"),
        (with_line(attn_decode=0.0047), "takes 0.0047 ms, less than the"),
        (with_line(batch_size=0), "batch_size=0 must be at least 1"),
        (with_line(batch_size=1.5), "must be a whole number of at least 0"),
        (with_line(is_prefill="maybe"), "is_prefill='maybe' must be True or False"),
        (with_line(mode="true_mixed"), "must be a list of counts"),
        (lambda lines: lines[:60], "59 decode points"),
        (lambda lines: [text for text in lines if ",True," not in text], "0 prompts of at most 0 tokens"),
    ],
)
def test_a_defect_is_one_line_that_names_its_place(tmp_path: Path, change: Change, message: str) -> None:
    file = write_attention(tmp_path / "attention.csv")
    file.write_text("\n".join(change(file.read_text().splitlines())) + "\n")
    text = refusal("import", "frontier", file, *FLAGS, "--out", tmp_path / "p.json")
    assert message in text
    assert "attention.csv" in text
    assert not (tmp_path / "p.json").exists()


def test_what_is_not_there_or_not_of_this_model_is_one_line(tmp_path: Path) -> None:
    file = write_attention(tmp_path / "attention.csv")
    out = ("--out", tmp_path / "p.json")
    (tmp_path / "empty").mkdir()
    assert "does not exist" in refusal("import", "frontier", tmp_path / "absent", *FLAGS, *out)
    assert "no table attention*.csv" in refusal("import", "frontier", tmp_path / "empty", *FLAGS, *out)
    of_another = ("--gpu", "a800-sxm", "--target", "llama-3.1-8b")
    assert "no rows of 32 heads on 8" in refusal("import", "frontier", file, *of_another, *out)
    no_profile = ("--gpu", "rtx-pro-6000-server", "--target", "llama-2-7b")
    assert "there are a100-sxm, gh200, h100-sxm" in refusal("import", "frontier", file, *no_profile, *out)
    assert "did you mean 'a800-sxm'" in refusal(
        "import", "frontier", file, "--gpu", "a800", "--target", "llama-2-7b", *out
    )


def test_tables_of_several_folders_are_never_mixed(tmp_path: Path) -> None:
    for folder in ("one", "other"):
        write_attention(tmp_path / folder / "attention.csv")
    line_ = refusal("import", "frontier", tmp_path, *FLAGS, "--out", tmp_path / "p.json")
    assert "attention*.csv lie in 2 folders" in line_


def test_the_published_a800_table_is_kernel_time_with_stated_errors() -> None:
    profile = import_frontier(published("frontier/a800"), "a800-sxm", SHAPE)
    assert "kernel times" in profile.source
    for kind, most in (("decode_attention", 6.0), ("prefill_attention", 20.0), ("chunk_attention", 21.0)):
        mean_error_pct = profile.errors[kind].mean_error_pct
        assert mean_error_pct is not None
        assert mean_error_pct < most, kind


def test_the_published_h800_grid_is_too_small_and_says_by_how_much() -> None:
    with pytest.raises(ValueError, match=r"20 decode points of at most 13 MB .* 3 prompts of at most 96 .* want 40"):
        import_frontier(published("frontier/h800"), "h800-sxm", SHAPE)
