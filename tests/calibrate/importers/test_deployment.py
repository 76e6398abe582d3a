"""Layers composed of kernels: from tables with a known law the sums come out by hand; the installed tables, where they
are, give a profile of any model."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest

from calibrate.catalogue.model_configs import with_formats
from calibrate.catalogue.published_tables import published_tables
from calibrate.importers import plan_candidates
from calibrate.importers.aiconfigurator.composed import ASSUMED_ELEMENTWISE, kernels_per_layer
from calibrate.importers.aiconfigurator.deployment import Deployment, import_deployment
from calibrate.importers.aiconfigurator.kernel_files import KernelFiles
from calibrate.importers.aiconfigurator.lookups import (
    QUANTISE_S,
    REDUCE_RATIO,
    REDUCE_SKEW_S,
    STREAM_SHARE,
    SUSTAINED_RATIO,
    Lookups,
)
from sim.costs.forms.build import build_costs
from sim.costs.layer_kinds import Compressed, Experts, Indexer, Latent, Linear
from sim.costs.passes import layer_rest_s
from sim.costs.profile import Profile
from sim.costs.profile_files import decode, encode
from sim.costs.shapes import MODELS, Formats, ModelShape
from sim.interface.work import Chunk, Kind, Model, Work
from tests.calibrate.support import decode_attention_ms, gemm_ms, write_tables
from tests.properties import assert_refused, some

LLAMA = MODELS["llama-3.1-8b"]
EXPERTS = Experts(num=8, per_token=2, intermediate=2048, shared_intermediate=1024)
SPARSE = msgspec.structs.replace(LLAMA, name="sparse", experts=EXPERTS)


def served_ms(tokens: int, columns: int, depth: int) -> float:
    """A GEMM in service."""
    return gemm_ms(tokens, columns, depth) * in_service(tokens)


def expert_ms(tokens: int) -> float:
    return 0.05 + 0.002 * tokens


def in_service(tokens: int) -> float:
    """Times as long as in the tables: SUSTAINED_RATIO from 2,048 tokens on, half as much more (in logs) at 512."""
    share = {1: 0.0, 64: 0.0, 512: 0.5, 1024: 0.75, 2048: 1.0}[tokens]
    return 1.0 + (SUSTAINED_RATIO - 1.0) * share


def sparse_tables(root: Path, **changes: Any) -> Path:
    """The tables of one GPU with experts of one layout, cut once or spread over two devices, which takes half."""
    write_tables(root, **changes)
    layout = {"hidden_size": 4096, "inter_size": 2048, "topk": 2, "num_experts": 8, "moe_tp_size": 1}
    rows = [
        {"moe_dtype": "bfloat16", "num_tokens": tokens, "moe_ep_size": spread, "distribution": "balanced"}
        | {"latency": expert_ms(tokens) / spread}
        | layout
        for tokens in (1, 16, 512, 8192)
        for spread in (1, 2)
    ]
    pd.DataFrame(rows).to_parquet(root / "a100_sxm" / "moe__vllm__0.14.0__moe_perf.parquet")
    gathers = [
        {"op_name": name, "nccl_dtype": "half", "kernel_source": "NCCL", "num_gpus": 2}
        | {"message_size": size, "latency": 0.02 + 2e-9 * size}
        for name in ("all_gather", "reduce_scatter", "all_reduce")
        for size in (1024, 1 << 26)
    ]
    pd.DataFrame(gathers).to_parquet(root / "a100_sxm" / "comm__nccl__2.27__nccl_perf.parquet")
    return root


def imported(path: Path, shape: ModelShape, deployment: Deployment | None = None) -> Profile:
    return import_deployment(path, "a100-sxm", shape, None, deployment or Deployment(), source="abc")


def body_ms(profile: Profile, tokens: int) -> float:
    body = profile.table.target.body
    return 1e3 * body.seconds[body.tokens.index(tokens)]


def attention_ms(profile: Profile, rows: int = 64, context_tokens: int = 4096) -> float:
    """Decode attention of a layer."""
    grid = profile.table.target.decode_attention
    seconds = some(grid.seconds[grid.rows.index(rows)][grid.context_tokens.index(context_tokens)])
    return 1e3 * seconds


def lookups_in(root: Path, engine: str = "vllm") -> Lookups:
    return Lookups(KernelFiles(root, "a100-sxm"), engine)


def rest_ms(profile: Profile, shape: ModelShape, tokens: int) -> float:
    return 1e3 * layer_rest_s(ASSUMED_ELEMENTWISE, None, profile.gpu, shape, profile.tensor_parallel, tokens)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sparse_tables(tmp_path_factory.mktemp("tables"))


@pytest.mark.parametrize("tokens", [1, 64, 512])
def test_a_dense_layer_is_its_gemms_and_its_element_wise_kernels(tables: Path, tokens: int) -> None:
    profile = imported(tables, LLAMA)
    gemms = sum(served_ms(tokens, columns, depth) for columns, depth in LLAMA.gemms())
    assert body_ms(profile, tokens) == pytest.approx(gemms + rest_ms(profile, LLAMA, tokens), rel=2e-3)


@pytest.mark.parametrize("tokens", [1, 512])
def test_a_sparse_layer_is_attention_router_routed_and_shared_experts(tables: Path, tokens: int) -> None:
    profile = imported(tables, SPARSE)
    gemms = (*SPARSE.attention_gemms(), (8, 4096), *SPARSE.mlp_gemms(1024))
    expected = sum(served_ms(tokens, columns, depth) for columns, depth in gemms) + expert_ms(tokens) * in_service(
        tokens
    )
    assert body_ms(profile, tokens) == pytest.approx(expected + rest_ms(profile, SPARSE, tokens), rel=2e-3)


def test_kernels_of_a_prompt_are_counted_by_what_a_layer_is_made_of(tables: Path) -> None:
    """Dense: two norms, two matrices of attention and three kernels beside, two of the MLP and its activation. Experts
    and a shared MLP: six of routing, two matrices, four of the shared one, instead of the MLP's three. Formats with
    scales quantise before each matrix; several devices reduce twice."""
    latent = Latent(query_rank=64, kv_rank=64, nope_dim=16, rope_dim=16, value_dim=16)
    fp8 = Formats(projections="fp8", mlp="fp8", experts="fp8")
    shapes = {
        LLAMA: 10,
        SPARSE: 7 + 12,
        msgspec.structs.replace(LLAMA, name="latent", latent=latent): 2 + 7 + 4 + 3,
        msgspec.structs.replace(LLAMA, name="fp8", formats=fp8): 10 + 4,
    }
    assert [kernels_per_layer(shape, 1) for shape in shapes] == list(shapes.values())
    assert kernels_per_layer(LLAMA, 2) == 12
    assert imported(tables, SPARSE).host.kernels_per_layer == 19


def test_ranks_of_their_own_send_their_tokens_to_the_experts_of_all(tables: Path) -> None:
    one = imported(tables, SPARSE)
    two = imported(tables, SPARSE, Deployment(expert_parallel=2, data_parallel=2))
    assert (two.name, two.data_parallel) == ("a100-sxm/sparse-ep2-dp2", 2)
    message = 2 * 512 * 4096
    gathered_ms = 2 * (0.02 + 2e-9 * message)
    experts_ms = expert_ms(1024) * in_service(1024) / 2 - expert_ms(512) * in_service(512)
    expected = body_ms(one, 512) + experts_ms + gathered_ms
    assert body_ms(two, 512) == pytest.approx(expected, rel=2e-3)
    assert two.weight_bytes == SPARSE.weight_bytes - SPARSE.expert_bytes // 2


LINEAR = Linear(layers=24, key_heads=4, key_dim=128, value_heads=8, value_dim=128)


def linear_ms(phase: str, tokens: int) -> float:
    """Both kernels of the synthetic table together."""
    return 0.01 + (0.002 if phase == "generation" else 0.0001) * tokens


def linear_tables(root: Path) -> Path:
    """With linear attention of LINEAR's heads, of which two models were measured, the second one slower."""
    write_tables(root)
    head = {"num_k_heads": 4, "num_v_heads": 8, "head_k_dim": 128, "head_v_dim": 128}
    rows = [
        {**head, "phase": phase, "kernel_source": kernel, "batch_size": rows, "seq_len": length, "latency": latency}
        for phase, places in (
            ("generation", [(n, 1) for n in (1, 64, 256, 1024)]),
            ("context", [(b, n) for b in (1, 8) for n in (1, 512, 8192)]),
        )
        for rows, length in places
        for kernel, share in (("conv", 0.25), ("delta", 0.75))
        for latency in (share * linear_ms(phase, rows if phase == "generation" else length), 9.0)
    ]
    pd.DataFrame(rows).to_parquet(root / "a100_sxm" / "linear_attention__vllm__0.14.0__gdn_perf.parquet")
    return root


def test_linear_attention_goes_by_rows_that_decode_and_by_tokens_of_a_prompt(tmp_path: Path) -> None:
    tables = linear_tables(tmp_path)
    lookups = lookups_in(tables)
    found = 1e3 * lookups.linear_s(LINEAR, 1, np.array([1.0, 160.0, 256.0, 512.0, 8192.0, 16384.0]))
    decode, prompt = (lambda n: linear_ms("generation", n)), (lambda n: linear_ms("context", n))
    assert found == pytest.approx([decode(1), decode(160), decode(256), decode(256), prompt(8192), 2 * prompt(8192)])
    with pytest.raises(ValueError, match="no linear attention of 2 key and 4 value heads in the tables"):
        lookups.linear_s(LINEAR, 2, np.array([1.0]))


def test_layers_of_linear_attention_are_in_the_body_and_not_in_the_attention(tmp_path: Path) -> None:
    mixed = msgspec.structs.replace(LLAMA, linear=LINEAR)
    plain, own = imported(linear_tables(tmp_path), LLAMA), imported(tmp_path, mixed)
    matrices = [sum(served_ms(64, *each) for each in of) for of in (LLAMA.attention_gemms(), LINEAR.gemms(4096))]
    expected = body_ms(plain, 64) + 0.75 * (matrices[1] + linear_ms("generation", 64) - matrices[0])
    assert body_ms(own, 64) == pytest.approx(expected, rel=2e-3)
    of_plain, of_own = (profile.table.target.decode_attention.seconds[0][0] for profile in (plain, own))
    assert of_plain is not None
    assert of_own == pytest.approx(of_plain / 4, rel=2e-3)
    prompts = [profile.table.target.prefill_attention.seconds[-1][1] for profile in (plain, own)]
    assert prompts[1] == pytest.approx(prompts[0] / 4, rel=2e-3)
    with pytest.raises(ValueError, match="--tp 8 must divide the 4 key heads of linear attention"):
        imported(tmp_path, mixed, Deployment(8))


def test_experts_of_an_unmeasured_layout_are_scaled_by_what_they_read_and_say_so(tables: Path) -> None:
    half = msgspec.structs.replace(SPARSE, experts=Experts(num=8, per_token=2, intermediate=1024))
    lookups = lookups_in(tables)
    assert half.experts is not None
    at = np.array([4.0])
    seconds = float(lookups.experts_s(half, half.experts, "bf16", (1, 1), at)[0])
    unique = half.experts.unique(4)
    read_s = [3 * 4096 * wide * unique * 2 / 2e12 + 1e-5 for wide in (1024, 2048)]
    assert seconds == pytest.approx(1e-3 * expert_ms(4) * read_s[0] / read_s[1])
    assert "never measured" in lookups.notes[0]


def test_tokens_of_one_sequence_activate_fewer_experts_than_unrelated_ones(tables: Path) -> None:
    """Eight tokens of two rows read as many experts as 2 + 0.6 x 6 = 5.6; beyond 11 tokens all eight are read."""
    passes = build_costs(imported(tables, SPARSE), cuda_graph=False).passes(Model.TARGET)
    assert passes.padded_body_s(8, 2, 8) == passes.body_s(6)
    assert passes.padded_body_s(8, 8, 8) == passes.body_s(8)
    assert passes.padded_body_s(512, 128, 512) == passes.body_s(512)
    beside_a_prompt = passes.body_s(256) - passes.body_s(11) + passes.body_s(11)
    assert passes.padded_body_s(256, 2, 8) == pytest.approx(beside_a_prompt)


def test_verify_widens_the_experts_read_about_as_reported() -> None:
    """1.3, 3.2 and 6.1 times with 1, 4 and 8 drafted tokens at a batch of one (gpt-oss-120b's experts here)."""
    experts = Experts(num=128, per_token=4, intermediate=2880)
    wider = [experts.unique(experts.unrelated(1, 1 + drafted)) / experts.unique(1) for drafted in (1, 4, 8)]
    assert wider == pytest.approx([1.3, 3.2, 6.1], rel=0.25)


def test_heads_that_were_not_measured_cost_what_fewer_of_the_same_groups_do_as_many_times_over(tables: Path) -> None:
    """Of 4 query heads on each KV head, 2 and 6 of them stand between 4 and 8, which were measured."""
    shapes = {
        kv_heads: msgspec.structs.replace(LLAMA, name=f"of-{kv_heads}", heads=4 * kv_heads, kv_heads=kv_heads)
        for kv_heads in (2, 4, 6)
    }
    made = {kv_heads: imported(tables, shape) for kv_heads, shape in shapes.items()}
    for kv_heads, times in ((2, 0.5), (6, 1.5)):
        for phase in ("context", "generation"):
            stood_in = f"{phase}_attention_perf: 16 heads on 4 KV heads of 128 stand for"
            assert f"{stood_in} {4 * kv_heads} on {kv_heads} of 128, {times:g} times" in made[kv_heads].source
        of_rows_ms = decode_attention_ms(4.0 * 128 * 4096 * kv_heads * 128)
        assert attention_ms(made[kv_heads], 128) == pytest.approx(of_rows_ms, rel=1e-3)
        prompts, of_four = (made[each].table.target.prefill_attention for each in (kv_heads, 4))
        assert prompts.chunk_tokens == of_four.chunk_tokens
        for mine, four in zip(prompts.seconds, of_four.seconds, strict=True):
            assert mine[0] == pytest.approx(max(1.0, times) * four[0], rel=1e-3)


def test_a_chunk_after_history_costs_its_pairs_at_the_rate_of_the_whole_prompt(tables: Path) -> None:
    grid = imported(tables, LLAMA).table.target.prefill_attention
    chunk, history = grid.chunk_tokens.index(1024), grid.history_tokens.index(1024)
    whole = grid.seconds[grid.chunk_tokens.index(2048)][0]
    measured = grid.seconds[chunk][history]
    assert whole is not None
    assert measured == pytest.approx(whole * (1024 * 1536) / (2048**2 / 2), rel=2e-3)


def test_a_window_bounds_what_its_layers_read(tables: Path) -> None:
    for name in ("generation", "context"):
        file = tables / "a100_sxm" / f"attention__vllm__0.14.0__{name}_attention_perf.parquet"
        frame = pd.read_parquet(file).assign(window_size=0)
        narrow = frame.assign(window_size=128, latency=frame.latency.min())
        pd.concat([frame, narrow]).to_parquet(file)
    full, half = (
        imported(tables, msgspec.structs.replace(LLAMA, window=window, window_layers=layers)).table.target
        for window, layers in ((0, 0), (128, 16))
    )
    longest, least = full.decode_attention.seconds[3][-1], full.decode_attention.seconds[0][0]
    assert longest is not None
    assert least is not None
    assert half.decode_attention.seconds[3][-1] == pytest.approx(0.5 * longest + 0.5 * least, rel=2e-2)


def test_a_window_that_no_table_has_costs_what_attention_over_so_many_tokens_does(tmp_path: Path) -> None:
    tables = sparse_tables(tmp_path)
    full = imported(tables, LLAMA)
    near = imported(tables, msgspec.structs.replace(LLAMA, window=1024, window_layers=LLAMA.layers))
    assert "attention over a window of 1024 by rule" in near.source
    of_all, of_window = full.table.target.decode_attention, near.table.target.decode_attention
    at = of_all.context_tokens.index(1024)
    assert [line[-1] for line in of_window.seconds] == [line[at] for line in of_all.seconds]
    whole, windowed = full.table.target.prefill_attention, near.table.target.prefill_attention
    short, long = windowed.chunk_tokens.index(1024), windowed.chunk_tokens.index(8192)
    of_1024 = some(whole.seconds[short][0])
    assert windowed.seconds[short][0] == of_1024
    assert windowed.seconds[long][0] == pytest.approx(15.0 * of_1024, rel=1e-3)
    assert windowed.seconds[short][-1] == pytest.approx(2.0 * of_1024, rel=1e-3)


def test_a_format_that_no_table_has_is_refused_and_one_of_4_bits_goes_by_rule(tables: Path) -> None:
    with pytest.raises(ValueError, match="no GEMMs with weights in nvfp4"):
        imported(tables, with_formats(LLAMA, "nvfp4", None))
    with pytest.raises(ValueError, match="no rows with fp8 KV"):
        imported(tables, with_formats(LLAMA, None, "fp8"))
    four = imported(tables, with_formats(LLAMA, "int4", None))
    assert "int4 GEMMs by rule from bf16" in four.source
    assert body_ms(four, 1) < 0.45 * body_ms(imported(tables, LLAMA), 1)


def test_a_table_that_was_timed_with_its_launches_is_not_used(tmp_path: Path) -> None:
    tables = write_tables(tmp_path, gemm_perf=lambda frame: frame.assign(latency=frame.latency + 0.05))
    with pytest.raises(ValueError, match="no GEMMs with weights in bf16"):
        imported(tables, LLAMA)


def test_a_slip_of_a_table_is_replaced_by_more_tokens_or_a_larger_matrix(tmp_path: Path) -> None:
    def slip(frame: Any) -> Any:
        is_slip = (frame.m == 64) & (frame.n == 4096) & (frame.k == 4096) & (frame.gemm_dtype == "bfloat16")
        return frame.assign(latency=frame.latency.where(~is_slip, 5.0))

    lookups = Lookups(KernelFiles(write_tables(tmp_path, gemm_perf=slip), "a100-sxm"))
    seconds = float(lookups.gemm_s(4096, 4096, np.array([64.0]))[0])
    assert seconds == pytest.approx(1e-3 * min(gemm_ms(64, 4096, 8192), gemm_ms(128, 4096, 4096)), rel=1e-6)


def test_a_gemm_is_interpolated_between_measured_token_counts_and_goes_on_in_proportion(tables: Path) -> None:
    """2048 and 8192 are the last two of the tables."""
    lookups = lookups_in(tables)
    low_s, middle_s, high_s, beyond_s = lookups.gemm_s(4096, 4096, np.array([2048.0, 4096.0, 8192.0, 16384.0]))
    assert middle_s == pytest.approx(low_s + (high_s - low_s) / 3.0)
    assert beyond_s == pytest.approx(2.0 * high_s)


def test_tensorrt_llm_norms_within_the_all_reduce_unless_that_is_nccls(tables: Path) -> None:
    ways = (Deployment(2), Deployment(2, engine="trtllm"), Deployment(engine="trtllm"), Deployment())
    two, fused, alone, plain = (body_ms(imported(tables, LLAMA, way), 64) for way in ways)
    assert two - fused == pytest.approx(2e-3, rel=0.05)
    assert alone == plain
    assert not Lookups(KernelFiles(tables, "a100-sxm"), "trtllm", has_nccl_alone=True).fuses_norms


def test_twice_as_many_devices_as_were_measured_take_as_much_more_as_those_over_half_of_them(tmp_path: Path) -> None:
    def with_four(frame: Any) -> Any:
        return pd.concat([frame, frame.assign(num_gpus=4, latency=frame.latency + 0.004)])

    lookups = Lookups(KernelFiles(write_tables(tmp_path, custom_allreduce_perf=with_four), "a100-sxm"))
    message = np.array([1e6])
    two, four, eight = (float(lookups.reduce_s(n, message)[0]) - REDUCE_SKEW_S * np.log2(n) for n in (2, 4, 8))
    assert eight - four == pytest.approx(four - two)
    assert eight - two == pytest.approx(REDUCE_RATIO * 8e-6)
    assert "all-reduces of 8 by rule from 4 and 2" in lookups.notes
    for devices in (6, 16):
        with pytest.raises(ValueError, match=f"no all-reduce of {devices} devices"):
            lookups.reduce_s(devices, message)


def test_activations_of_block_scaled_formats_are_quantised_by_a_kernel_of_their_own(tables: Path) -> None:
    lookups = lookups_in(tables)
    tokens = np.array([1000.0])
    moved_s = 1000 * 4096 * 3.0 / (STREAM_SHARE * 2e12)
    assert float(lookups.quantise_s(4096, tokens, "fp8-block")[0]) == pytest.approx(QUANTISE_S + moved_s)
    assert float(lookups.quantise_s(4096, tokens, "fp8")[0]) == 0.0


def gemms_of(engine: str, name: str, root: Path, extra_ms: float, times: float = 1.0) -> None:
    """The synthetic GEMMs as `engine` would have timed them in format `name`."""
    folder = root / "a100_sxm"
    frame = pd.read_parquet(folder / "gemm__vllm__0.14.0__gemm_perf.parquet")
    frame = frame[frame.gemm_dtype == "bfloat16"]
    frame = frame.assign(gemm_dtype=name, latency=times * frame.latency + extra_ms)
    frame.to_parquet(folder / f"gemm__{engine}__1.0__gemm_perf.parquet")


def test_gemms_timed_with_the_search_for_their_scales_lose_it(tmp_path: Path) -> None:
    gemms_of("trtllm", "fp8", write_tables(tmp_path), extra_ms=0.010)
    for part, latency in (("computescale", 0.008), ("scale_matrix", 0.002)):
        rows = [{"m": m, "k": k, "quant_dtype": "fp8", "latency": latency} for m in (1, 8192) for k in (512, 65536)]
        pd.DataFrame(rows).to_parquet(tmp_path / "a100_sxm" / f"quantize__trtllm__1.0__{part}_perf.parquet")
    seconds = lookups_in(tmp_path, "trtllm").gemm_s(4096, 4096, np.array([64.0]), "fp8")
    assert seconds == pytest.approx(1e-3 * gemm_ms(64, 4096, 4096), rel=1e-6)


def test_of_an_untuned_table_and_the_kernels_that_tuning_finds_the_faster_stands(tmp_path: Path) -> None:
    gemms_of("trtllm", "nvfp4", write_tables(tmp_path), extra_ms=0.0, times=1.5)
    gemms_of("sglang", "nvfp4", tmp_path, extra_ms=0.0)
    seconds = lookups_in(tmp_path, "trtllm").gemm_s(4096, 4096, np.array([64.0]), "nvfp4")
    assert seconds == pytest.approx(1e-3 * gemm_ms(64, 4096, 4096), rel=1e-6)


def test_a_dent_in_the_experts_a_draw_of_the_router_is_filled(tmp_path: Path) -> None:
    file = sparse_tables(tmp_path) / "a100_sxm" / "moe__vllm__0.14.0__moe_perf.parquet"
    frame = pd.read_parquet(file)
    extra = frame[(frame.num_tokens == 16) & (frame.moe_ep_size == 1)].assign(num_tokens=8, latency=0.001)
    pd.concat([frame, extra]).to_parquet(file)
    seconds = lookups_in(tmp_path).experts_s(SPARSE, EXPERTS, "bf16", (1, 1), np.array([8.0]))
    assert seconds == pytest.approx(1e-3 * expert_ms(8))


@pytest.mark.parametrize(("engine", "times"), [("vllm", SUSTAINED_RATIO), ("trtllm", 1.0)])
def test_an_engine_that_tunes_its_experts_makes_up_for_sustained_clocks(
    engine: str, times: float, tables: Path
) -> None:
    seconds = lookups_in(tables, engine).experts_s(SPARSE, EXPERTS, "bf16", (1, 1), np.array([2048.0]))
    assert seconds == pytest.approx(1e-3 * expert_ms(2048) * times)


def moe_table(root: Path, engine: str, name: str, **changes: Any) -> None:
    """The synthetic experts as `engine` would have timed them in format `name`, with columns changed."""
    frame = pd.read_parquet(root / "a100_sxm" / "moe__vllm__0.14.0__moe_perf.parquet")
    frame.assign(moe_dtype=name, **changes).to_parquet(root / "a100_sxm" / f"moe__{engine}__1.0__moe_perf.parquet")


def test_experts_that_tensorrt_llm_never_timed_cut_take_what_as_many_spread_ones_do(tmp_path: Path) -> None:
    """Another engine's cut ones, a hundred times as fast, are other kernels."""
    moe_table(sparse_tables(tmp_path), "trtllm", "bfloat16")
    moe_table(tmp_path, "sglang", "bfloat16", moe_tp_size=2, moe_ep_size=1, latency=0.001)
    for engine, latency_s in (("sglang", 0.001e-3), ("trtllm", 0.041e-3)):
        lookups = lookups_in(tmp_path, engine)
        seconds = lookups.experts_s(SPARSE, EXPERTS, "bf16", (2, 1), np.array([16.0]))
        assert float(seconds[0]) == pytest.approx(latency_s)
    assert "experts scaled from spread ones" in lookups.notes[0]


def test_sglang_routes_deepseeks_shared_expert_with_the_others_where_none_is_spread(tmp_path: Path) -> None:
    """Its matrices take no time then, and the faster of two engines' tables of one kernel counts."""
    root = sparse_tables(tmp_path)
    moe_table(root, "vllm", "bfloat16", num_experts=256, topk=8)
    moe_table(root, "sglang", "bfloat16", num_experts=256, topk=8, latency=9.0)
    same = {"batch_size": 1, "num_heads": 32, "kv_cache_dtype": "bfloat16", "latency": 0.1}
    places = pd.DataFrame({"isl": [16, 8192], "step": [0, 0]})
    for phase in ("context", "generation"):
        places.assign(**same).to_parquet(root / "a100_sxm" / f"mla__sglang__0.5__{phase}_mla_perf.parquet")

    def body(engine: str, shared: int) -> float:
        experts = Experts(num=256, per_token=8, intermediate=2048, shared_intermediate=shared)
        shape = msgspec.structs.replace(SPARSE_ATTENTION, layers=4, indexer=None, experts=experts)
        return body_ms(imported(root, shape, Deployment(engine=engine)), 64)

    assert body("sglang", 2048) == pytest.approx(body("sglang", 1024), rel=2e-3)
    assert body("sglang", 2048) < 9.0
    assert body("vllm", 2048) > 1.05 * body("vllm", 1024)


def test_mxfp4_experts_of_a_shape_that_was_never_timed_are_refused(tmp_path: Path) -> None:
    moe_table(sparse_tables(tmp_path), "sglang", "w4a16_mxfp4")
    lookups = lookups_in(tmp_path)
    wider = msgspec.structs.replace(EXPERTS, intermediate=4096)
    with pytest.raises(ValueError, match="no mxfp4 experts of 4096 x 4096 in the tables of 'a100-sxm'"):
        lookups.experts_s(SPARSE, wider, "mxfp4", (1, 1), np.array([16.0]))


@pytest.mark.parametrize(
    ("shape", "deployment", "message"),
    [
        (LLAMA, Deployment(tensor_parallel=3), "--tp 3 must divide llama-3.1-8b's 32 heads"),
        (LLAMA, Deployment(tensor_parallel=2, expert_parallel=2), "has no experts"),
        (SPARSE, Deployment(tensor_parallel=4, expert_parallel=3), "-ep3 must divide the 4 devices"),
        (SPARSE, Deployment(tensor_parallel=16, expert_parallel=16), "must divide sparse's 8 experts"),
        (SPARSE, Deployment(data_parallel=0), "must be at least 1"),
    ],
)
def test_a_split_that_cannot_be_is_one_line(
    tables: Path, shape: ModelShape, deployment: Deployment, message: str
) -> None:
    assert_refused(lambda: imported(tables, shape, deployment), message)


SPARSE_ATTENTION = msgspec.structs.replace(
    LLAMA,
    name="sparse-attention",
    latent=Latent(query_rank=1024, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128),
    indexer=Indexer(heads=32, dim=128, tokens=2048),
)


SHARED_PART = 0.75
"""Of a synthetic module's time, without an indexer."""


def module_ms(rows: int, queries: int, history: int) -> float:
    """Of the synthetic modules: far more than their matrices, and attention beyond."""
    return 10.0 + 0.02 * rows * queries + 1e-4 * rows * (queries + history)


def module_tables(root: Path, engine: str = "sglang", min_ms: float = 0.0) -> Path:
    if not (root / "a100_sxm").exists():
        write_tables(root)
    same = {"num_heads": 32, "tp_size": 1, "gemm_type": "bfloat16", "kv_cache_dtype": "bfloat16"}
    same["architecture"] = "GlmMoeDsaForCausalLM"
    for phase, places in (
        ("generation", [(rows, 1, step) for rows in (1, 64, 256) for step in (1, 4095, 65535)]),
        ("context", [(1, queries, step) for queries in (16, 1024, 8192) for step in (0, 4096, 65536)]),
    ):
        name = f"dsa_{phase}_module"
        frame = pd.DataFrame(places, columns=["batch_size", "isl", "step"]).assign(op_name=name, **same)
        frame["latency"] = [min_ms + module_ms(*place) for place in places]
        shared = frame.assign(op_name=f"{name}_skip_indexer", latency=SHARED_PART * frame.latency)
        frame = pd.concat([frame, shared, frame.assign(architecture="DeepseekV32ForCausalLM", latency=1.0)])
        if phase == "generation":
            frame = pd.concat(
                [frame, frame.assign(num_heads=1, latency=0.09), frame.assign(op_name="other", latency=0.09)]
            )
        frame.to_parquet(root / "a100_sxm" / f"sparse_attention__{engine}__0.5__{name}_perf.parquet")
    return root


def test_matrices_and_attention_of_sparse_attention_make_up_the_measured_module(tmp_path: Path) -> None:
    profile = imported(module_tables(tmp_path), SPARSE_ATTENTION)
    own = SPARSE_ATTENTION.kinds()[0].gemms
    matrices = sum(served_ms(64, *each) for each in own)
    rest = sum(served_ms(64, *each) for each in SPARSE_ATTENTION.mlp_gemms(LLAMA.intermediate))
    rest += rest_ms(profile, SPARSE_ATTENTION, 64)
    beside_ms = attention_ms(profile)
    assert body_ms(profile, 64) + beside_ms == pytest.approx(rest + module_ms(64, 1, 4095), rel=2e-3)
    assert beside_ms == pytest.approx(module_ms(64, 1, 4095) - matrices, rel=2e-3)
    prompts = profile.table.target.prefill_attention
    chunk, history = prompts.chunk_tokens.index(1024), prompts.history_tokens.index(4096)
    body = sum(gemm_ms(1024, *each) for each in own)
    assert 1e3 * prompts.seconds[chunk][history] == pytest.approx(module_ms(1, 1024, 4096) - body, rel=0.02)
    assert prompts.seconds[-1][0] == pytest.approx(2 * prompts.seconds[-2][0], rel=1e-3)


def test_layers_that_share_an_indexer_are_modules_without_it_and_have_none_of_its_matrices(tmp_path: Path) -> None:
    tables, indexer = module_tables(tmp_path), Indexer(heads=32, dim=1024, tokens=2048)
    own, shares = (
        msgspec.structs.replace(SPARSE_ATTENTION, indexer=msgspec.structs.replace(indexer, shared_layers=num))
        for num in (0, LLAMA.layers // 4)
    )
    profiles = [imported(tables, shape) for shape in (own, shares)]
    full, mixed = (profile.table.target for profile in profiles)

    own_ms, shares_ms = (body_ms(profile, 64) + attention_ms(profile) for profile in profiles)
    assert own_ms - shares_ms == pytest.approx(0.25 * (1.0 - SHARED_PART) * module_ms(64, 1, 4095), rel=0.01)
    matrices = sum(served_ms(64, *each) for each in shares.indexer_gemms)
    assert body_ms(profiles[0], 64) - body_ms(profiles[1], 64) == pytest.approx(0.25 * matrices, rel=0.01)
    chunk, history = full.prefill_attention.chunk_tokens.index(1024), full.prefill_attention.history_tokens.index(4096)
    less = [each.prefill_attention.seconds[chunk][history] for each in (full, mixed)]
    saved = 0.25 * (
        (1.0 - SHARED_PART) * module_ms(1, 1024, 4096) - sum(gemm_ms(1024, *g) for g in shares.indexer_gemms)
    )
    assert 1e3 * (less[0] - less[1]) == pytest.approx(saved, rel=0.05)


def test_kinds_of_compressed_kv_and_the_mixing_of_streams_make_up_what_was_timed(tmp_path: Path) -> None:
    parts = Compressed(
        query_rank=1024, rope_dim=64, output_groups=8, output_rank=512, window=128, chosen_layers=8, window_layers=4
    )
    formats = Formats(kv="fp8")
    shape = msgspec.structs.replace(
        SPARSE_ATTENTION, latent=None, compressed=parts, formats=formats, hyper_streams=4, name="compressed"
    )
    module_tables(tmp_path)
    for kind, factor in (("csa", 2.0), ("hca", 1.0)):
        for phase in ("context", "generation"):
            folder = tmp_path / "a100_sxm"
            frame = pd.read_parquet(folder / f"sparse_attention__sglang__0.5__dsa_{phase}_module_perf.parquet")
            frame = frame[(frame.op_name == f"dsa_{phase}_module") & (frame.latency >= 10.0)]
            name = f"dsv4_{kind}_{phase}_module"
            own = frame.assign(op_name=name, kv_cache_dtype="fp8_e4m3", latency=factor * frame.latency)
            quick = own.assign(num_heads=1, latency=0.09)  # None was timed with its launches.
            pd.concat([own, quick]).to_parquet(folder / f"sparse_attention__sglang__0.5__{name}_perf.parquet")
    same = {"hc_mult": 4, "hidden_size": shape.hidden}
    rows = [{**same, "op_name": op, "num_tokens": n, "latency": 0.5} for op in ("pre", "post") for n in (1, 4096)]
    pd.DataFrame(rows).to_parquet(folder / "mhc__sglang__0.5__mhc_module_perf.parquet")
    profile = imported(tmp_path, shape)
    rest = sum(served_ms(64, *each) for each in shape.mlp_gemms(LLAMA.intermediate)) + rest_ms(profile, shape, 64)
    share = (2.0 * 8 + 1.0 * (shape.layers - 8)) / shape.layers
    together = body_ms(profile, 64) + attention_ms(profile) - rest
    assert together == pytest.approx(2 * 0.5 + share * module_ms(64, 1, 4095), rel=2e-3)


def test_a_step_of_linear_attention_is_one_kernel_where_there_is_one(tmp_path: Path) -> None:
    write_tables(tmp_path)
    heads = {"num_k_heads": 16, "num_v_heads": 16, "head_k_dim": 128, "head_v_dim": 128, "batch_size": 1}
    step = [("fused_kda_decode", 0.01), ("causal_conv1d_update", 0.004), ("fused_recurrent_kda", 0.02)]
    frame = pd.DataFrame(
        [
            {**heads, "kernel_source": name, "phase": "generation", "batch_size": rows, "seq_len": 1, "latency": ms}
            for name, ms in step
            for rows in (1, 256)
        ]
    )
    prompts = [
        pd.DataFrame(
            [
                {**heads, "kernel_source": name, "phase": "context", "seq_len": tokens, "latency": launch_ms + 0.01}
                for name in ("conv", "scan")
                for tokens in (1, 4096)
            ]
        )
        for launch_ms in (0.4, 0.04)
    ]
    folder = tmp_path / "a100_sxm"
    pd.concat([frame, prompts[0]]).to_parquet(folder / "kda__vllm__0.5__kda_perf.parquet")
    prompts[1].to_parquet(folder / "kda__sglang__0.5__kda_perf.parquet")
    linear = Linear(layers=1, key_heads=16, key_dim=128, value_heads=16, value_dim=128, decay_rank=128)
    lookups = lookups_in(tmp_path)
    assert lookups.linear_s(linear, 1, np.array([1.0, 4096.0])) == pytest.approx([1e-5, 1e-4])
    assert "linear attention (context): sglang's" in lookups.notes


def test_modules_that_were_timed_with_their_launches_are_passed_over(tmp_path: Path) -> None:
    write_tables(tmp_path)
    module_tables(tmp_path, "vllm", min_ms=1.0)
    place = tmp_path / "a100_sxm" / "sparse_attention__vllm__0.5__dsa_generation_module_perf.parquet"
    frame = pd.read_parquet(place)
    frame[(frame.latency >= 1.0) | (frame.op_name == "other")].to_parquet(place)
    with pytest.raises(
        ValueError,
        match=r"no sparse attention \(dsa, generation\) of 32 heads on one of 1 devices with bf16 matrices",
    ):
        imported(tmp_path, SPARSE_ATTENTION)
    module_tables(tmp_path, "sglang")
    assert "sparse attention (dsa, generation): sglang's" in imported(tmp_path, SPARSE_ATTENTION).source


def installed() -> Path:
    pytest.importorskip("aiconfigurator_core", reason="the tables are an extra: pip install 'lanesim[tables]'")
    return published_tables()[0]


@pytest.mark.parametrize(
    ("gpu", "weights", "kv", "degree"),
    [
        ("h200-sxm", "fp8", "fp8", 1),
        ("b200-sxm", "nvfp4", "fp8", 2),
        ("l40s", None, None, 1),
        ("a100-sxm", "int4", None, 1),
    ],
)
def test_the_published_tables_give_a_small_profile_with_its_own_errors(
    gpu: str, weights: str | None, kv: str | None, degree: int
) -> None:
    shape = with_formats(LLAMA, weights, kv)
    profile = import_deployment(installed(), gpu, shape, None, Deployment(tensor_parallel=degree), source="x")
    assert decode(encode(profile), "copy") == profile
    assert len(encode(profile)) < 15_000
    assert (profile.errors["body"].mean_error_pct or 100.0) < 15.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        work = Work(kind=Kind.STEP, rows=8, row_tokens=8, context_tokens=8000, chunks=(Chunk(512, 512),), head_rows=9)
        assert 1e-3 < build_costs(profile).cost(work).device_s < 0.2


def test_a_profile_in_the_cache_is_found_only_by_the_code_that_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    code_hash = plan_candidates._code_hash.__wrapped__
    today = code_hash()
    monkeypatch.setattr(plan_candidates, "MADE_FROM", plan_candidates.MADE_FROM[1:])
    assert code_hash() != today
