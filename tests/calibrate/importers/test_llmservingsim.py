"""Importing LLMServingSim's tables: a known law is found again, and what they lack is added."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from calibrate.catalogue.host_costs import all_reduce_of, engine_of
from calibrate.cli.profile_output import write
from calibrate.importers.llmservingsim.layer_profile import import_llmservingsim
from sim.costs.forms.build import build_costs
from sim.costs.profile import Profile
from sim.costs.profile_files import decode, encode, load
from sim.costs.shapes import MODELS, Experts, eagle3_head
from sim.interface.work import Chunk, Kind, Model, Work
from tests.calibrate.cli.test_commands import calibrate
from tests.calibrate.importers.layer_tables import (
    CONTEXTS,
    SHAPE,
    SLOWDOWN,
    TOKENS,
    chunk_us,
    decode_us,
    elementwise_us,
    experts_us,
    gemm_us,
    layer_us,
    lm_head_us,
    once_us,
    sampler_us,
    write_experts,
    write_layer_tables,
    write_meta,
)
from tests.calibrate.support import published

DRAFT = MODELS["llama-3.2-1b"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_layer_tables(tmp_path_factory.mktemp("bf16") / "tp1")


@pytest.fixture(scope="module")
def profile(folder: Path) -> Profile:
    return import_llmservingsim(folder, "rtx-4090", SHAPE)


def device_s(profile: Profile, work: Work) -> float:
    return build_costs(profile, cuda_graph=False).cost(work).device_s


def decode_work(rows: int, kv_decode: int) -> Work:
    return Work(kind=Kind.STEP, rows=rows, row_tokens=rows, context_tokens=rows * kv_decode, head_rows=rows)


def test_the_command_writes_the_points_of_the_tables(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    flags = ("--gpu", "rtx-4090", "--target", "llama-3.1-8b", "--revision", "abc", "--out", out)
    calibrate("import", "llmservingsim", folder, *flags)
    profile = load(out)
    assert profile.name == "rtx-4090/llama-3.1-8b"
    assert "casys-kaist/LLMServingSim@abc (MIT)" in profile.source
    assert profile.table.draft is None
    assert decode(encode(profile), "copy") == profile


def by_tiles(folder: Path, tile: int = 128) -> None:
    """dense.csv with points 16 tokens apart and the times of whole tiles, as published tables have them."""
    path = folder / "dense.csv"
    header, *lines = path.read_text().splitlines()
    times = {(name, int(tokens)): time for name, tokens, time in (line.split(",") for line in lines)}
    points = [
        (tokens, tokens if tokens <= 16 else -(-tokens // tile) * tile)
        for tokens in (*TOKENS[:16], *range(32, 2049, 16))
    ]
    names = dict.fromkeys(name for name, _ in times)
    rows = [f"{name},{tokens},{times[name, charged]}" for name in names for tokens, charged in points]
    path.write_text("\n".join([header, *rows, ""]))


def test_every_command_takes_the_file_of_tables_whose_kernels_go_by_tiles(tmp_path: Path) -> None:
    folder, out = write_layer_tables(tmp_path / "tp1"), tmp_path / "p.json"
    by_tiles(folder)
    calibrate("import", "llmservingsim", folder, "--gpu", "rtx-4090", "--target", "llama-3.1-8b", "--out", out)
    prompt = Work(kind=Kind.STEP, chunks=(Chunk(8192, 0),), head_rows=1)
    shape_us = SHAPE.layers * (layer_us(8192) + chunk_us(8192)) + lm_head_us(1) + sampler_us(1)
    assert device_s(load(out), prompt) == pytest.approx(1e-6 * shape_us, rel=0.03)


def test_what_every_command_would_refuse_is_not_written(profile: Profile, tmp_path: Path) -> None:
    body = profile.table.target.body
    faster = msgspec.structs.replace(body, seconds=tuple(seconds / 10.0 for seconds in body.seconds))
    target = msgspec.structs.replace(profile.table.target, body=faster)
    kernels = msgspec.structs.replace(profile.table, target=target)
    with pytest.raises(ValueError, match="by the roofs of the data sheet of rtx-4090"):
        write(msgspec.structs.replace(profile, kernels=kernels), tmp_path / "p.json")
    assert not list(tmp_path.iterdir())


def test_a_decode_pass_costs_what_the_law_says(profile: Profile) -> None:
    rows, context = 48, 1500
    expected_us = SHAPE.layers * (layer_us(rows) + decode_us(rows, context)) + lm_head_us(rows) + sampler_us(rows)
    assert device_s(profile, decode_work(rows, context)) == pytest.approx(1e-6 * expected_us, rel=0.01)


def test_a_row_reads_its_own_token_beside_kv_decode(profile: Profile) -> None:
    assert profile.table.target.decode_attention.context_tokens == tuple(context + 1 for context in CONTEXTS)
    at_a_point = SHAPE.layers * (layer_us(32) + decode_us(32, 1024)) + lm_head_us(32) + sampler_us(32)
    assert device_s(profile, decode_work(32, 1024)) == pytest.approx(1e-6 * at_a_point, rel=1e-4)


def test_a_chunk_after_a_history_costs_what_the_law_says(profile: Profile) -> None:
    work = Work(kind=Kind.PREFILL, chunks=(Chunk(512, 2000),), head_rows=1)
    expected_us = SHAPE.layers * (layer_us(512) + chunk_us(512, 2000)) + lm_head_us(1) + sampler_us(1)
    assert device_s(profile, work) == pytest.approx(1e-6 * expected_us, rel=0.01)


def test_rows_beside_a_chunk_cost_what_mixed_passes_say(profile: Profile) -> None:
    chunk, rows, context = 256, 64, 512
    work = Work(
        kind=Kind.STEP,
        rows=rows,
        row_tokens=rows,
        context_tokens=rows * context,
        chunks=(Chunk(chunk, 0),),
        head_rows=rows + 1,
    )
    attention_us = chunk_us(chunk) + SLOWDOWN * decode_us(rows, context)
    expected_us = SHAPE.layers * (layer_us(chunk + rows) + attention_us) + lm_head_us(rows + 1) + sampler_us(rows + 1)
    assert device_s(profile, work) == pytest.approx(1e-6 * expected_us, rel=0.01)


SPARSE = msgspec.structs.replace(SHAPE, experts=Experts(num=16, per_token=2, intermediate=1024))


@pytest.fixture(scope="module")
def sparse_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert SPARSE.experts is not None
    return write_experts(write_layer_tables(tmp_path_factory.mktemp("sparse") / "tp1"), SPARSE.experts)


@pytest.fixture(scope="module")
def of_experts(sparse_folder: Path) -> dict[int, Profile]:
    """By ranks."""
    gpu = "rtx-pro-6000-server"
    return {
        ranks: import_llmservingsim(sparse_folder, gpu, SPARSE, None, 1, ranks, engine_version="0.19")
        for ranks in (1, 2)
    }


@pytest.mark.parametrize("tokens", [1, 4, 24, 1024])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_layer_of_experts_costs_what_those_that_are_activated_do(
    of_experts: dict[int, Profile], tokens: int, ranks: int
) -> None:
    """Those of all ranks' tokens, drawn uniformly, at least the fewest that were measured; of two ranks a device has
    half of them, and moves all tokens."""
    profile = of_experts[ranks]
    assert SPARSE.experts is not None
    shared_us = experts_us(tokens, max(2.0, SPARSE.experts.unique(ranks * tokens) / ranks))
    if ranks == 2:
        shared_us += 1e6 * (1.249e-5 + 2 * tokens * SHAPE.hidden * 2 / 2.926e10)
        assert (profile.data_parallel, profile.expert_parallel) == (2, 2)
        experts = profile.table.target.experts
        assert experts is not None
        assert 1e6 * experts.seconds[experts.tokens.index(tokens)] == pytest.approx(shared_us, rel=1e-3)
    dense_us = sum(gemm_us(tokens, *size) for size in SHAPE.attention_gemms()) + 3 * elementwise_us(tokens)
    layer = profile.table.target.body
    expected_us = dense_us + 2 * once_us(tokens) / SHAPE.layers + shared_us
    assert 1e6 * layer.seconds[layer.tokens.index(tokens)] == pytest.approx(expected_us, rel=1e-3)


def test_every_kind_has_its_error_on_points_left_out(profile: Profile) -> None:
    for kind in ("body", "lm_head", "decode_attention", "prefill_attention", "mixed_attention", "decode", "mixed"):
        error = profile.errors[kind]
        assert error.mean_error_pct is not None
        assert error.mean_error_pct < 2.0, kind
        assert error.points > 10
    assert profile.errors["smoothing"].mean_error_pct == 0.0
    assert profile.errors["verify"].points == 0


def test_verify_rows_cost_what_rows_beside_a_chunk_do(profile: Profile) -> None:
    assert "by the rule of rows beside a chunk" in profile.errors["verify"].held_out
    rows, context, queries = 64, 2048, 4
    work = Work(
        kind=Kind.VERIFY, rows=rows, row_tokens=rows * queries, context_tokens=rows * context, head_rows=rows * queries
    )
    attention_us = SLOWDOWN * decode_us(rows, context)
    tokens = rows * queries
    expected_us = SHAPE.layers * (layer_us(tokens) + attention_us) + lm_head_us(tokens) + sampler_us(tokens)
    assert device_s(profile, work) == pytest.approx(1e-6 * expected_us, rel=0.1)


def test_noise_is_smoothed_until_no_time_falls_and_the_profile_says_by_how_much(tmp_path: Path) -> None:
    folder = write_layer_tables(tmp_path / "tp1")
    path = folder / "attention.csv"
    point = f"0,0,64,1024,{decode_us(64, 1024)}"
    assert point in path.read_text()
    path.write_text(path.read_text().replace(point, f"0,0,64,1024,{2.5 * decode_us(64, 1024)}"))
    profile = import_llmservingsim(folder, "rtx-4090", SHAPE)
    error = profile.errors["smoothing"]
    low_us, high_us = decode_us(64, 2048), 2.5 * decode_us(64, 1024)
    assert error.max_error_pct == pytest.approx(100.0 * (0.5 * (low_us + high_us) / low_us - 1.0), abs=0.01)
    line = profile.table.target.decode_attention.seconds[6]
    assert line[6] == line[7] == pytest.approx(0.5e-6 * (low_us + high_us), rel=1e-4)


def test_two_grids_in_one_file_leave_nulls_and_lone_values_go(tmp_path: Path) -> None:
    folder = write_layer_tables(tmp_path / "tp1")
    path = folder / "attention.csv"
    text = path.read_text()
    text += "".join(f"0,0,{rows},700,{decode_us(rows, 700)}\n" for rows in (1, 16, 256))
    text += f"0,0,3,3000,{decode_us(3, 3000)}\n"
    path.write_text(text)
    grid = import_llmservingsim(folder, "rtx-4090", SHAPE).table.target.decode_attention
    column = grid.context_tokens.index(701)
    assert [grid.seconds[i][column] is None for i, _ in enumerate(grid.rows)].count(False) == 3
    assert 3001 not in grid.context_tokens
    assert 3 not in grid.rows


def test_lengths_that_differ_are_an_error_of_the_profile_and_no_cost(folder: Path, tmp_path: Path) -> None:
    skewed = write_layer_tables(tmp_path / "tp1")
    skewed.joinpath("skew.csv").write_text(
        "regime,n,kv_mean,t_mean_us,t_skew_us\npure,2,100,80,100\npure,4,100,100,100\nmixed,4,100,90,120\n"
    )
    profile = import_llmservingsim(skewed, "rtx-4090", SHAPE)
    pure, mixed = profile.errors["skew_pure"], profile.errors["skew_mixed"]
    assert (pure.mean_error_pct, pure.max_error_pct, pure.points) == (10.0, 20.0, 2)
    assert (mixed.mean_error_pct, mixed.points) == (25.0, 1)
    assert profile.kernels == import_llmservingsim(folder, "rtx-4090", SHAPE).kernels


def test_a_degree_brings_its_shards_and_the_all_reduces_of_its_engine(tmp_path: Path) -> None:
    folder = write_layer_tables(tmp_path / "tp2", degree=2)
    write_meta(folder, gpu="NVIDIA RTX PRO 6000 Blackwell Server Edition", degree=2)
    profile = import_llmservingsim(folder, "rtx-pro-6000", SHAPE, None, 2)
    assert profile.name == "rtx-pro-6000-server/llama-3.1-8b-tp2"
    assert "vLLM 0.19 on rtx-pro-6000-server" in profile.source
    reduce = all_reduce_of(engine_of("rtx-pro-6000-server", "0.19"), 2)
    assert reduce is not None
    tokens = 64
    message_s = reduce.fixed_s + tokens * SHAPE.hidden * 2 / reduce.bytes_per_s
    body = profile.table.target.body
    expected_s = 1e-6 * layer_us(tokens, degree=2) + (2 + 1 / SHAPE.layers) * message_s
    assert body.seconds[body.tokens.index(tokens)] == pytest.approx(expected_s, rel=1e-4)
    head = profile.table.target.head
    gathered_s = reduce.fixed_s + tokens * SHAPE.vocab / 2 * 2 / reduce.bytes_per_s
    expected_s = 1e-6 * (lm_head_us(tokens, degree=2) + sampler_us(tokens)) + gathered_s
    assert head.seconds[head.tokens.index(tokens)] == pytest.approx(expected_s, rel=1e-4)


def test_the_norms_of_queries_and_keys_count_where_a_model_has_them(folder: Path, tmp_path: Path) -> None:
    normed = write_layer_tables(tmp_path / "tp1")
    dense = (normed / "dense.csv").read_text()
    norms = "".join(
        line.replace("rotary_emb", "qk_norm") for line in dense.splitlines(keepends=True) if "rotary" in line
    )
    (normed / "dense.csv").write_text(dense + norms)
    bodies = [import_llmservingsim(path, "rtx-4090", SHAPE).table.target.body for path in (folder, normed)]
    assert bodies[1].seconds[0] - bodies[0].seconds[0] == pytest.approx(2.01e-6, rel=0.01)


def test_a_draft_comes_from_its_own_folder(folder: Path, tmp_path: Path) -> None:
    own = write_layer_tables(tmp_path / "draft" / "tp1", DRAFT)
    profile = import_llmservingsim(folder, "rtx-4090", SHAPE, DRAFT, draft_path=own)
    assert profile.name == "rtx-4090/llama-3.1-8b+llama-3.2-1b"
    assert profile.errors["draft"].points > 10
    work = Work(
        kind=Kind.DRAFT, model=Model.DRAFT, rows=8, row_tokens=8, context_tokens=8 * 512, head_rows=8, draft_tokens=1
    )
    expected_us = DRAFT.layers * (layer_us(8, DRAFT) + decode_us(8, 512, DRAFT)) + lm_head_us(8, DRAFT) + sampler_us(8)
    assert device_s(profile, work) == pytest.approx(1e-6 * expected_us, rel=0.01)


def test_an_eagle3_head_is_composed_of_the_targets_own_kernels(folder: Path) -> None:
    head = eagle3_head(SHAPE)
    profile = import_llmservingsim(folder, "rtx-4090", SHAPE, head)
    assert "composed, not measured" in profile.source
    assert profile.errors["draft"].points == 0
    draft = profile.table.draft
    assert draft is not None
    tokens = 16
    target_us = sum(gemm_us(tokens, *size) for size in SHAPE.gemms()) + 4 * (2.0 + 0.01 * tokens)
    expected_us = target_us + gemm_us(tokens, *SHAPE.gemms()[0]) + 2 * (3.0 + 0.005 * tokens)
    assert draft.body.seconds[draft.body.tokens.index(tokens)] == pytest.approx(1e-6 * expected_us, rel=1e-4)
    share = head.vocab / SHAPE.vocab
    assert draft.head.seconds[0] == pytest.approx(1e-6 * share * (lm_head_us(1) + sampler_us(1)), rel=1e-4)
    assert draft.decode_attention == profile.table.target.decode_attention


PUBLISHED = (
    ("RTX4090", "meta-llama/Llama-3.1-8B", "rtx-4090", "llama-3.1-8b", 1),
    ("RTXPRO6000", "meta-llama/Llama-3.1-8B", "rtx-pro-6000-server", "llama-3.1-8b", 1),
    ("RTXPRO6000", "meta-llama/Llama-3.1-8B", "rtx-pro-6000", "llama-3.1-8b", 2),
    ("RTXPRO6000", "Qwen/Qwen3-32B", "rtx-pro-6000", "qwen3-32b", 2),
)


@pytest.mark.parametrize(("folder_name", "model", "gpu", "target", "degree"), PUBLISHED)
def test_published_tables_give_small_errors(folder_name: str, model: str, gpu: str, target: str, degree: int) -> None:
    path = published("llmservingsim/profiler/perf") / folder_name / model / "bf16" / f"tp{degree}"
    profile = import_llmservingsim(path, gpu, MODELS[target], None, degree)
    limits = {"body": 2.0, "lm_head": 1.0, "decode_attention": 5.0, "prefill_attention": 4.0, "smoothing": 0.2}
    for kind, most in (limits | {"decode": 1.5, "prefill": 5.0, "mixed": 5.0, "mixed_attention": 14.0}).items():
        mean_error_pct = profile.errors[kind].mean_error_pct
        assert mean_error_pct is not None
        assert mean_error_pct < most, kind
    assert len(encode(profile)) < 20_000
    assert profile.table.verify_rule.query_tile == 64
