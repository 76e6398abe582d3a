"""Importing LLMServingSim's tables: a known law is found again, and every defect is one line that names its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from calibrate.datasheets import datasheet
from calibrate.importers.llmservingsim import GEMMS, import_llmservingsim
from sim.costs import build_costs, load
from sim.models import MODELS
from sim.work import Kind, Work
from tests.calibrate.support import published
from tests.calibrate.test_commands import calibrate, refusal

SHAPE = MODELS["llama-3.1-8b"]
GPU = datasheet("rtx-4090").gpu
KV_BYTES = 2.0 * SHAPE.kv_heads * SHAPE.head_dim * SHAPE.dtype_bytes
SLOWDOWN = 1.5


def gemm_us(tokens: int, columns: int, depth: int) -> float:
    """60 % of the peak and 80 % of the bandwidth, whichever is longer, and 4 us."""
    compute_s = 2.0 * tokens * columns * depth / (0.6 * GPU.peak_flops)
    memory_s = 2.0 * (columns * depth + tokens * (columns + depth)) / (0.8 * GPU.bandwidth_bytes_per_s)
    return 1e6 * (max(compute_s, memory_s) + 4e-6)


def decode_us(rows: int, context: int) -> float:
    return 12.0 + 1e6 * rows * context * KV_BYTES / (0.75 * GPU.bandwidth_bytes_per_s)


def chunk_us(tokens: int) -> float:
    flops = 2.0 * SHAPE.heads * SHAPE.head_dim * tokens * tokens
    return 9.0 + 1e6 * (flops / (0.5 * GPU.peak_flops) + tokens * KV_BYTES / (0.4 * GPU.bandwidth_bytes_per_s))


def write_tables(folder: Path) -> Path:
    """Tables of Llama-3.1-8B on an RTX 4090 that follow the laws above."""
    dense = ["layer,tokens,time_us"]
    for tokens in sorted({*range(1, 17), *range(24, 257, 24), *range(320, 2049, 64)}):
        for name, (columns, depth) in zip(GEMMS, SHAPE.gemms(), strict=True):
            dense.append(f"{name},{tokens},{gemm_us(tokens, columns, depth)}")
        dense += [f"{name},{tokens},{2.0 + 0.01 * tokens}" for name in ("layernorm", "rotary_emb", "act_fn")]
    rows = [(1 << i) for i in range(9)]
    head = [f"lm_head,{count},{gemm_us(count, SHAPE.vocab, SHAPE.hidden)}" for count in rows]
    head += [f"sampler,{count},{20.0 + 2.0 * count}" for count in rows]
    attention = ["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"]
    contexts, chunks = [16 << i for i in range(10)], [16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048]
    for context in contexts:
        attention += [f"0,0,{count},{context},{decode_us(count, context)}" for count in rows]
    for tokens in chunks:
        attention.append(f"{tokens},0,0,0,{chunk_us(tokens)}")
        attention += [
            f"{tokens},0,{count},{context},{chunk_us(tokens) + SLOWDOWN * decode_us(count, context)}"
            for context in contexts
            for count in rows
        ]
    folder.mkdir(exist_ok=True)
    (folder / "dense.csv").write_text("\n".join(dense) + "\n")
    (folder / "per_sequence.csv").write_text("\n".join(["layer,sequences,time_us", *head]) + "\n")
    (folder / "attention.csv").write_text("\n".join(attention) + "\n")
    return folder


def test_the_law_behind_the_tables_is_found_again(tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    flags = ("--gpu", "rtx-4090", "--target", "llama-3.1-8b", "--revision", "abc", "--out", out)
    calibrate("import", "llmservingsim", write_tables(tmp_path / "tp1"), *flags)
    profile = load(out)
    assert profile.name == "rtx-4090/llama-3.1-8b"
    assert "casys-kaist/LLMServingSim@abc (MIT)" in profile.source
    for kind in ("body", "decode_attention", "prefill_attention", "lm_head"):
        mean_error_pct = profile.errors[kind].mean_error_pct
        assert mean_error_pct is not None
        assert mean_error_pct < 5.0, kind
    assert profile.errors["verify"].points == 0
    assert f"kv_slowdown {SLOWDOWN}" in profile.errors["verify"].held_out
    rows, context = 32, 1024
    layer_us = sum(gemm_us(rows, *size) for size in SHAPE.gemms()) + decode_us(rows, context)
    layer_us += 4 * (2.0 + 0.01 * rows)
    expected_s = 1e-6 * (SHAPE.layers * layer_us + gemm_us(rows, SHAPE.vocab, SHAPE.hidden) + 20.0 + 2.0 * rows)
    work = Work(kind=Kind.STEP, rows=rows, row_tokens=rows, context_tokens=rows * (context - 1), head_rows=rows)
    assert build_costs(profile).cost(work).device_s == pytest.approx(expected_s, rel=0.05)


Change = Callable[[str], str]


@pytest.mark.parametrize(
    ("table", "change", "message"),
    [
        ("dense", lambda text: text.replace("time_us", "time_ms", 1), "dense.csv: no column 'time_us'"),
        ("dense", lambda text: text.replace("o_proj", "out_proj"), "dense.csv: no rows of 'o_proj'"),
        ("dense", lambda text: text + "o_proj,1,-3\n", "time_us=-3 must be positive"),
        ("dense", lambda text: text + "o_proj,1,nan\n", "must be finite"),
        ("dense", lambda text: text + "o_proj,1,1e-6\n", "is it in other units?"),
        ("dense", lambda text: text + "o_proj,17", "time_us=None must be a number"),
        ("dense", lambda text: text + "o_proj,17,5\n", "other token counts"),
        ("attention", lambda text: text + "0,0,1,9.3,16\n", "are columns swapped?"),
        ("attention", lambda text: text.partition("\n")[0] + "\n", "has no rows"),
        ("attention", lambda text: "".join(text.splitlines(keepends=True)[:4]), "3 decode points are too few"),
        ("per_sequence", lambda text: text.replace("sampler", "softmax"), "no rows of 'sampler'"),
    ],
)
def test_a_defect_is_one_line_that_names_its_place(tmp_path: Path, table: str, change: Change, message: str) -> None:
    folder = write_tables(tmp_path / "tp1")
    path = folder / f"{table}.csv"
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError) as caught:
        import_llmservingsim(folder, "rtx-4090", SHAPE)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    folder = write_tables(tmp_path / "tp1")
    (folder / "per_sequence.csv").unlink()
    with pytest.raises(ValueError, match=r"no table per_sequence\.csv in"):
        import_llmservingsim(folder, "rtx-4090", SHAPE)


def test_what_the_tables_do_not_hold_is_refused(tmp_path: Path) -> None:
    flags = ("--gpu", "rtx-4090", "--target", "llama-3.1-8b", "--out", tmp_path / "p.json")
    assert "hold one model" in refusal("import", "llmservingsim", tmp_path, *flags, "--draft", "llama-3.2-1b")
    assert "no all-reduce" in refusal("import", "llmservingsim", tmp_path, *flags, "--tp", 2)


@pytest.mark.parametrize(
    ("folder", "gpu", "slowdown"), [("RTX4090", "rtx-4090", 1.8), ("RTXPRO6000", "rtx-pro-6000-server", 1.4)]
)
def test_published_tables_give_small_errors_and_the_known_slowdown(folder: str, gpu: str, slowdown: float) -> None:
    path = published("llmservingsim/profiler/perf") / folder / "meta-llama" / "Llama-3.1-8B" / "bf16" / "tp1"
    profile = import_llmservingsim(path, gpu, SHAPE)
    for kind, most in (("body", 3.0), ("decode_attention", 8.0), ("prefill_attention", 13.0), ("lm_head", 8.0)):
        mean_error_pct = profile.errors[kind].mean_error_pct
        assert mean_error_pct is not None
        assert mean_error_pct < most, kind
    verify = profile.errors["verify"].held_out
    assert float(verify.split("kv_slowdown ")[1].split()[0]) == pytest.approx(slowdown, abs=0.1)
