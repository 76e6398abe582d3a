"""Twins of what is read: cost tables and their ends, checkpoints, results of benchmarks, engines that run.

Issue 41: A2, A3, A5, A6, A9.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import assume
from hypothesis import strategies as st

import lanesim
from calibrate.catalogue.model_configs import source_of
from sim.costs.engine_costs import engine_of
from sim.costs.extrapolation import collecting
from sim.costs.forms.build import build_costs
from sim.costs.profile import Profile
from sim.costs.table_kernels import TableKernels
from sim.interface.work import Chunk, Kind, Model, Work
from sim.workload.bench import bench_rows
from tests.twins.drawn import LINEAR, PAIR, TABLE, TINY, constants, questions
from tests.twins.twin import Asked, Pair, flat, folder, or_refused, runs, said, twin

TABLES = [name for name in lanesim.profile_names() if isinstance(lanesim.load_profile(name).kernels, TableKernels)]
tables = st.sampled_from(TABLES)


# -- beyond the end of a table


def prompt_s(profile: Profile, tokens: int) -> float:
    """Device seconds of a pass over one prompt."""
    costs = build_costs(profile, engine_of(None, profile))
    work = Work(kind=Kind.PREFILL, model=Model.TARGET, requests=(), chunks=(Chunk(tokens, 0),))
    with collecting():
        return costs.cost(work).device_s


def with_body(profile: Profile, points: list[tuple[int, float]]) -> Profile:
    """`profile` with other points of its layers, which were measured up to the last of them."""
    table = profile.table
    tokens, seconds = zip(*points, strict=True)
    target = msgspec.structs.replace(table.target, body=lanesim.Curve(tokens=tokens, seconds=seconds))
    return msgspec.structs.replace(profile, kernels=msgspec.structs.replace(table, target=target))


def body(profile: Profile) -> list[tuple[int, float]]:
    curve = profile.table.target.body
    return list(zip(curve.tokens, curve.seconds, strict=True))


@twin(tables, st.integers(2, 4), rel=0.15)
def test_a_point_more_beside_the_last_one_changes_little_beyond_it(name: str, times: int) -> Pair:
    """A2: kernels take as long for 16 tokens fewer, a stair."""
    profile = lanesim.load_profile(name)
    points = body(profile)
    (before, _), (last, last_s) = points[-2:]
    assume(last - 16 > before)
    step = [*points[:-1], (last - 16, last_s), (last, last_s)]
    return Pair(prompt_s(profile, times * last), prompt_s(with_body(profile, step), times * last))


@twin(tables, rel=0.3)
def test_half_of_a_table_says_what_the_other_half_holds(name: str) -> Pair:
    """A2."""
    profile = lanesim.load_profile(name)
    points = body(profile)
    last = points[-1][0]
    half = [point for point in points if point[0] <= last // 2]
    assume(len(half) > 3)
    return Pair(prompt_s(profile, last), prompt_s(with_body(profile, half), last))


# -- n-grams


@twin(questions(profiles=(TINY, PAIR, TABLE, LINEAR), policy=st.just("continuous"), acceptance="iid:0"), rel=0.02)
def test_each_lookup_of_an_ngram_takes_its_time_in_every_form(asked: Asked) -> Pair:
    """A3: the engine proposes after it has sampled, so that nothing hides it."""
    profile, lookup_s = lanesim.load_profile(asked["profile"]), 0.01
    own = {key: value for key, value in flat(asked).items() if key != "profile"}
    own |= {"request_rate": "inf", "max_concurrency": 1, "output_len": 12, "speculation.method": "ngram"}
    found = []
    for more in (0.0, lookup_s):
        host = msgspec.structs.replace(profile.host, ngram_row_s=more)
        found.append(lanesim.compare(profile=msgspec.structs.replace(profile, host=host), **own).runs[0])
    # One behind the prompt, and one behind each round, the last included: it is made before the token is out.
    lookups = 1 + found[0]["spec_decode_num_drafts"] / found[0]["completed"]
    return Pair(found[1]["mean_e2el_ms"] - found[0]["mean_e2el_ms"], 1e3 * lookup_s * lookups)


@twin(questions(profiles=(TINY, PAIR, TABLE, LINEAR), policy=st.just("continuous"), acceptance="iid:0"))
def test_a_lookup_takes_none_of_the_device(asked: Asked) -> Pair:
    """A3."""
    profile = lanesim.load_profile(asked["profile"])
    run = lanesim.compare(**flat(asked) | {"profile": profile, "speculation.method": "ngram"}).runs[0]
    busy = run["kind_utilization"]
    return Pair({kind: share for kind, share in busy.items() if kind in ("host", "draft") and share}, {})


# -- checkpoints

CONFIG = {
    "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 512, "intermediate_size": 1408,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 32000, "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
sizes = st.fixed_dictionaries(
    {
        "num_hidden_layers": st.integers(1, 40),
        "num_key_value_heads": st.sampled_from((1, 2, 4, 8)),
        "intermediate_size": st.sampled_from((1024, 1408, 2816)),
    }
)


def shape_of(config: dict[str, Any]) -> Any:
    """The shape that a config.json has, or that it is refused."""
    with folder() as place:
        path = place / "model.json"
        path.write_text(json.dumps(CONFIG | config))
        return or_refused(lambda: msgspec.to_builtins(source_of(str(path)).shape))


@twin(sizes)
def test_the_two_names_of_a_dtype_are_one(config: dict[str, Any]) -> Pair:
    return Pair(shape_of(config), shape_of({**config, "torch_dtype": None, "dtype": "bfloat16"}))


@twin(sizes)
def test_heads_that_are_not_said_to_share_keys_have_their_own(config: dict[str, Any]) -> Pair:
    own = {**config, "num_key_value_heads": CONFIG["num_attention_heads"]}
    return Pair(shape_of(own), shape_of({**config, "num_key_value_heads": None}))


NO_CHECKPOINTS = (
    {"num_key_value_heads": 0},
    *({"torch_dtype": dtype} for dtype in ("int7", "float99", "bf32")),
    *({"quantization_config": given} for given in ({"quant_method": "none"}, "fp8", [])),
)


@twin(sizes, st.sampled_from(NO_CHECKPOINTS))
def test_what_no_engine_loads_is_refused(config: dict[str, Any], given: dict[str, Any]) -> Pair:
    """A5: no heads of keys, a dtype that nobody knows, a quantisation that is no object; null is none."""
    return Pair(
        ["refused", shape_of(config)], [shape_of(config | given), shape_of({**config, "quantization_config": None})]
    )


@twin(sizes, st.sampled_from(({"quant_method": "fp8"}, {"quant_method": "awq", "bits": 4})))
def test_a_model_inside_another_config_is_the_model(config: dict[str, Any], quantised: dict[str, Any]) -> Pair:
    inner = CONFIG | config
    outer = {"model_type": "some_vl", "text_config": inner, "quantization_config": quantised}
    return Pair(shape_of({**config, "quantization_config": quantised}), shape_of(outer))


@twin(sizes, st.sampled_from(("gptq", "awq")), st.sampled_from((2, 3, 8)))
def test_weights_of_other_bits_are_not_those_of_four(config: dict[str, Any], method: str, bits: int) -> Pair:
    """A5: eight bits take twice the bytes, and what is not understood is refused."""
    given = {"quant_method": method, "group_size": 128}
    four, other = (shape_of({**config, "quantization_config": {**given, "bits": each}}) for each in (4, bits))
    return Pair(True, other == "refused" or other != four)


GROUPS = st.permutations(({"type": "int", "num_bits": 4}, {"type": "float", "num_bits": 8}))


@twin(sizes, GROUPS)
def test_groups_of_a_checkpoint_are_all_read(config: dict[str, Any], groups: list[dict[str, Any]]) -> Pair:
    """A5: which of them stands first says nothing."""
    found = []
    for order in (groups, groups[::-1]):
        held = {f"group_{place}": {"weights": each, "targets": ["Linear"]} for place, each in enumerate(order)}
        quantised = {"quant_method": "compressed-tensors", "config_groups": held}
        found.append(shape_of({**config, "quantization_config": quantised}))
    return Pair(*found)


@twin(sizes)
def test_float32_is_served_in_16_bits_or_refused(config: dict[str, Any]) -> Pair:
    """A5: engines bring such a checkpoint to 16 bits as they load it."""
    wide = shape_of({**config, "torch_dtype": "float32"})
    return Pair(True, wide == "refused" or wide == shape_of(config))


# -- results of benchmarks


@twin(st.integers(1, 8), st.floats(1.0, 1e4), st.integers(1, 512))
def test_a_row_per_gpu_is_the_same_whoever_splits_it(tp: int, per_gpu: float, conc: int) -> Pair:
    """A6: rows of several nodes name their GPUs otherwise, and one of no number at all says nothing of the whole."""
    row = {"hw": "b200", "conc": conc, "tput_per_gpu": 2 * per_gpu, "output_tput_per_gpu": per_gpu,
           "mean_ttft": 0.5, "mean_tpot": 0.01, "isl": 1024, "osl": 128}  # fmt: skip

    def throughput(more: dict[str, Any]) -> Any:
        with folder() as place:
            path = place / "row.json"
            path.write_text(json.dumps([row | more]))
            return or_refused(lambda: bench_rows(Path(path))[0].get("output_throughput"))

    one_node = throughput({"tp": tp})
    spread = {"is_multinode": True, "num_prefill_gpu": 2 * tp, "num_decode_gpu": tp, "decode_tp": tp, "prefill_tp": tp}
    several = throughput(spread)
    return Pair(
        True, several in (one_node, "refused", None) or (isinstance(several, float) and several > 1.9 * one_node)
    )


# -- engines that run


@twin(constants(row_s=st.floats(1e-4, 2e-3)), rel=0.03, share=0.025)
def test_an_engine_that_was_fitted_to_a_server_is_that_server(profile: Profile) -> Pair:
    """A9: the server is a simulated one, whose steps are planned after each other and take a time per row."""
    levels = (1, 3, 8)
    bare = msgspec.structs.replace(
        profile, host=msgspec.structs.replace(profile.host, engine=None, step_s=0.0, row_s=0.0)
    )
    with folder() as place:
        lanesim.save_profile(profile, place / "server.json")
        lanesim.save_profile(bare, place / "bare.json")
        benches = []
        for level in levels:
            (run,) = runs(at_level(place / "server.json", level))
            path = place / f"c{level}.json"
            path.write_text(json.dumps(run | {"request_rate": "inf", "max_concurrency": level}))
            benches.append(str(path))
        flags = ["--profile", str(place / "bare.json"), "--out", str(place / "fitted.json")]
        said("calibrate", "production", *benches, *flags)
        tpots = [
            [runs(at_level(place / f"{name}.json", level))[0]["mean_tpot_ms"] for level in (*levels, 6)]
            for name in ("server", "fitted")
        ]
    return Pair(*tpots)


def at_level(profile: Path, concurrency: int) -> dict[str, Any]:
    return {
        "profile": profile, "policy": "autoregressive", "num-prompts": 2 * concurrency, "request-rate": "inf",
        "max-concurrency": concurrency, "input-len": 8, "output-len": 12,
    }  # fmt: skip
