"""What is refused, a table for each format: a mistake, and what the one line of its error names.

Not here: mistakes of a command line (tests/sim/cli/test_main.py, tests/sim/test_bounds.py), JSON, YAML and CSV as such
(tests/sim/files/test_read.py), impossible times (tests/sim/costs/test_physics.py).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sim.acceptance.forms import parse_quoted
from sim.acceptance.quoted import synthetic_rates
from sim.costs.compact_kernels import LinearPass
from sim.costs.engine_costs import ENGINES, load_engine
from sim.costs.layer_kinds import Experts, Linear
from sim.costs.memory import kv_capacity_tokens
from sim.costs.profile import Phi
from sim.costs.profile_files import UnknownProfile, decode, encode, load
from sim.costs.shapes import MODELS, Formats, ModelShape
from sim.devices.link import link_of
from sim.engine.adaptive_length import Band, SglangAdaptive
from sim.engine.controllers import build_controller
from sim.engine.draft_length import ByBatch
from sim.policies.registry import PolicyOptions
from sim.run.resolve import resolve, resolve_all
from sim.run.scenario import Scenario
from sim.run.simulate import simulate
from sim.studies.attainment import usd_per_gpu_h
from sim.workload.content import read_prompts, reblocked
from sim.workload.generate import TraceArrivals, Workload, build_requests
from sim.workload.sessions import Sharing
from sim.workload.traces import read_trace
from tests.properties import assert_refused
from tests.sim.costs.table_points import POINTS, VERIFY, table

PAIR, HEAD = "h100-sxm/llama-2-7b+tinyllama-1.1b", "h100-sxm/llama-3.1-8b+eagle3"
replaced = msgspec.structs.replace


FORMS = [
    ("idd:0.7", "unknown acceptance model 'idd'. Did you mean 'iid'?"),
    ("code:0.9", "acceptance 'code' takes no numbers"),
    ("iid", "nothing after 'iid'. Write iid:0.7"),
    ("iid:high", "'high' is not a number. Write iid:0.7"),
    ("iid:1.01", "iid rate=1.01 must be a number from 0 to 1"),
    ("iid:.5,.6", "got 2 numbers. Write iid:0.7"),
    ("iid:2.6", "must be a number from 0 to 1. Write length:2.6@K if this is an acceptance length"),
    ("per-position:.8,1.5", "per-position rate 2=1.5 must be"),
    ("length:0.9", "acceptance length 0.9 must be from 1 to 5"),
    ("length:5@3", "length 5.0 must be from 1 to 4 (num_speculative_tokens=3, and the target's own token). Write "),
    ("length:.6@3", "If 0.6 is accepted / drafted tokens, that is a length of 2.8"),
    ("length:2.6@", "'' after @ must be the draft length that was measured"),
    ("length:2.6@0", "'0' after @ must be the draft length that was measured, a whole number in 1..126. Write"),
    ("length:@3", "'' is not a number. Write length:2.6@3"),
    ("beta:13", "got 1 numbers. Write beta:13,8"),
    ("beta:0,8", "beta a=0.0 must be"),
    ("beta:13,8~1", "only iid, length, vllm, per-position take a spread of requests"),
    ("markov:.1,.2,.3", "got 3 numbers. Write markov:"),
    ("markov:.9,.1,.8,.3", "must be above 0 and at most 1"),
    ("markov:.8,.2", "must have FIRST <= AFTER"),
    ("tape:absent.jsonl", "acceptance tape 'absent.jsonl' cannot be read: No such file"),
    ("vllm:.49,.74", "rate 2=0.74 must not be above the one before, 0.49. Write per-position:0.49,0.74 if these are"),
    ("vllm:.74,1.2", "unconditional rate 2=1.2 must be a number from 0 to 1. Write vllm:.74,.49,.37"),
    ("vllm:.5~-1", "must be from 0 to 10"),
    ("vllm:.5~.9...4", "Write the smaller one first"),
    ("vllm:.5~.2..11", "must be from 0 to 10"),
    ("vllm:.5~.2..", "'' is not a number"),
    ("vllm:.3,.5~1", "Write per-position:"),
]


@pytest.mark.parametrize(("spec", "named"), FORMS)
def test_a_bad_form_of_acceptance_is_one_line_with_the_nearest_one(spec: str, named: str) -> None:
    assert_refused(lambda: parse_quoted(spec).model(4), named)


QUOTES = ["iid:.7", "length:1.9", "length:2.6@3", "vllm:.74,.49,.37", "per-position:.8,.6", "beta:13,8", "markov:.1,.8"]


@pytest.mark.parametrize("text", QUOTES)
def test_no_quote_has_a_model_of_drafts_of_nothing(text: str) -> None:
    assert_refused(lambda: parse_quoted(text).model(0), "num_speculative_tokens=0 must be in")


TAPES = [
    ("", "", "no request in it"),
    ("[1, 2\n", "", "line 1: not valid JSON"),
    ("[1, 2]\n[1, 0]\n", "", "line 2 must be a list of whole numbers from 1"),
    ("[1]\n", "", "line 1: 1 positions, and at least 2 are needed"),
    ('{"a": [1, 2], "b": [1, 2]}\n', "", "2 list fields (a, b). Name one as FILE#FIELD"),
    ('{"eagle": [1, 2], "ngram": [1, 2]}\n', "#eagel", "Did you mean 'eagle'"),
]


@pytest.mark.parametrize(("text", "field", "named"), TAPES)
def test_a_bad_tape_names_its_file_and_line(tmp_path: Path, text: str, field: str, named: str) -> None:
    tape = tmp_path / "tape.jsonl"
    tape.write_text(text)
    assert_refused(lambda: parse_quoted(f"tape:{tape}{field}").model(4), named, str(tape))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ((0.5, 0.4, 0.3), "has 3 rates and must have num_speculative_tokens=2"),
        ((0.5, 0.6), "must not be above the one before"),
    ],
)
def test_synthetic_rates_that_cannot_be_are_refused(values: tuple[float, ...], named: str) -> None:
    assert_refused(lambda: synthetic_rates(values, 2), named)


GONE = object()
"""A key that is taken away."""
PROFILES: list[tuple[str, Any, str]] = [
    ("host.step_seconds", 1.0, "step_seconds"),
    ("kernels.gemm.compute_shar", 1.0, "Did you mean 'compute_share'?"),
    ("schema", 2, "newer"),
    ("schema", GONE, "schema=None must be 1"),
    ("gpu.peak_flops", 0, "peak_flops"),
    ("host.graph_small_sizes", [4, 2], "graph_small_sizes"),
    ("host.inflation_eager", [], "inflation_eager"),
    ("host.inflation_graphed", [1.0, 0.5], "inflation_graphed"),
    ("host.served", {"decoding": 1.1}, "served"),
    ("host.step_s", 1e300, "host: step_s=1e+300 must be"),
    ("overlap.demand_floor", 1.5, "demand_floor"),
    ("target.layers", 0, "layers"),
    ("kernels.gemm.sharpness", 0.5, "sharpness"),
    ("kernels.gemm.tile_share", 0.99, "tile_share"),
    ("kernels.gemm.long_kernel_change", -1.0, "long_kernel_change"),
    ("tensor_parallel", 2, "all_reduce"),
    ("errors.verify.points", 0, "points"),
    ("errors.body.mean_error_pct", -1.0, "mean_error_pct=-1.0 must be"),
    ("errors.body.mean_error_pct", 1e6, "must not be above"),
    ("name", "\x1b[31mred", "'name' holds the control character"),
]
TABLES: list[tuple[str, Any, str]] = [
    ("target.body.tokens", [1, 11, 11], "tokens=[1, 11, 11] must rise"),
    ("target.body.tokens", [2, 11, 101], "must begin with 1"),
    ("target.body.seconds", [1.0, 0.5, 2.0], "seconds must not fall along tokens"),
    ("target.head.seconds", [0.0, 1.0], "must be finite and positive"),
    ("draft.decode_attention.seconds", [[1.0, 2.0]], "[rows][context_tokens], 2 x 2 numbers"),
    ("draft.decode_attention.seconds", [[1.0, 2.0], [None, None]], "only nulls at one value of rows"),
    ("draft.decode_attention.seconds", [[1.0, 2.0], [0.9, 3.0]], "must not fall along rows or context"),
    ("target.prefill_attention.history_tokens", [5], "history_tokens=[5] must begin with 0"),
    ("target.verify_attention.queries", [1, 5], "queries=[1, 5] must be at least 2"),
    ("target.decode_attention.seconds", ["fast", [1.0, 2.0]], ": kernels.target.decode_attention.seconds[0]"),
    ("draft", None, "lacks kernels.draft"),
]


@pytest.mark.parametrize(
    ("place", "value", "named"), [*PROFILES, *((f"kernels.{at}", *more) for at, *more in TABLES), ("draft", None, "")]
)
def test_an_impossible_profile_is_refused_by_the_name_of_its_key(place: str, value: Any, named: str) -> None:
    is_table = (place, value, named) not in PROFILES
    points = replaced(POINTS, verify_attention=VERIFY)
    content: Any = json.loads(encode(table(points) if is_table else load(PAIR)))
    *way, last = place.split(".")
    inner = content
    for key in way:
        inner = inner[key]
    inner[last] = value
    if value is GONE:
        del inner[last]
    assert_refused(lambda: decode(json.dumps(content).encode(), "p.json"), named or "kernels.draft = null", "p.json")


@pytest.mark.parametrize("content", [b"[]", b"{"])
def test_what_is_no_profile_is_named(content: bytes) -> None:
    assert_refused(lambda: decode(content, "p.json"), "p.json")


@pytest.mark.parametrize("name", ["../profiles/cpu/tiny", "cpu", "", "/", "cpu/tiny/", f"{PAIR[:20]}+tinylama-1.1b"])
def test_a_name_is_not_a_way_into_the_file_system_and_the_nearest_one_is_proposed(name: str) -> None:
    assert_refused(lambda: load(name), f"Did you mean {PAIR!r}" if "+" in name else "")
    with pytest.raises(UnknownProfile):
        load(name)


TINY, LINEAR = MODELS["tinyllama-1.1b"], Linear(layers=99, key_heads=2, key_dim=2, value_heads=4, value_dim=2)
VLLM_12: dict[str, Any] = json.loads((ENGINES / "vllm-0.12.json").read_text())
ENGINE_FILES: list[tuple[dict[str, Any], str]] = [
    ({"schema": 2}, "schema=2 must be 1"),
    ({"caps": []}, "must hold on every GPU"),
    ({"constants": []}, "for all other GPUs"),
    ({"constants": [VLLM_12["constants"][-1] | {"tensor_parallel": [8]}]}, "for any number of GPUs"),
    ({"constant": []}, "unknown field `constant`"),
]


@pytest.mark.parametrize(("change", "named"), ENGINE_FILES)
def test_a_defect_of_an_engines_file_is_one_line(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(VLLM_12 | change))
    assert_refused(lambda: load_engine(str(path), "h100-sxm"), named, "mine.json")


def test_an_unknown_engine_is_one_line_with_the_nearest_name() -> None:
    assert_refused(lambda: load_engine("vllm-0.42", "h100-sxm"), "unknown engine 'vllm-0.42'. Did you mean 'vllm-0.")


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:51.68059,10,1\n"
MOONCAKE = '{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": []}\n'
CSV = "arrival_s,prompt_tokens,output_tokens\n"
ROW = {"arrival_s": 0, "prompt_tokens": 20, "output_tokens": 5}
TURNS = '[{"conversations": [{"value": "hi"}]}, {"conversations": [{"value": "hi"}, {"value": "ho"}]}]'
BENCHES = json.dumps({"benchmarks": [{"requests": {"successful": []}}] * 2})
TRACES = [
    ("trace-azure", "", "", "is empty. Give a header line"),
    ("trace-azure", "TIMESTAMP,ContextToken,GeneratedTokens\n", "", "line 1: no column 'ContextTokens'. Did you mean "),
    ("trace-azure", AZURE + "2023-11-16 18:15:52,18\n", "", "line 4: 2 fields, and the header has 3"),
    ("trace-azure", AZURE + "2023-11-16 18:15:52,ten,4\n", "", "line 4: ContextTokens='ten' must be a whole number of"),
    ("trace-azure", AZURE + "2023-11-16 18:15:52,0,4\n", "", "line 4: ContextTokens='0' must be a whole number of "),
    ("trace-azure", AZURE + "2023-11-16 18:15:50,5,4\n", "", "line 4: arrival is 1.68059 s before the row above"),
    ("trace-azure", AZURE + "yesterday,5,4\n", "", "line 4: TIMESTAMP='yesterday' must be an ISO 8601 date and time"),
    ("mooncake", MOONCAKE + '{"timestamp": 1, "input_length": 5', "", "line 2: not valid JSON"),
    ("mooncake", MOONCAKE.replace("input_length", "input_len"), "", "no field 'input_length'. Did you mean"),
    ("mooncake", MOONCAKE.replace(": 0", ': "x"'), "", "timestamp='x' must be a number (ms)"),
    ("mooncake", MOONCAKE.replace(": 0", ": NaN"), "", "'timestamp' NaN is no number"),
    ("mooncake", MOONCAKE.replace(": 5", ": 5.5", 1), "", "input_length=5.5 must be"),
    ("mooncake", MOONCAKE.replace("[]", '["a"]'), "", "hash_ids=['a'] must be a list"),
    ("mooncake", MOONCAKE + MOONCAKE.replace(": 0", ": -1"), "", "line 2: arrival is 0.001 s"),
    ("csv", CSV + "0,1,1\n", "#arival=x", "unknown trace option 'arival'. Did you mean 'arrival'?"),
    ("csv", "when,prompt_tokens,output_tokens\n0,1,1\n", "#arrival=when", "does not end in its unit. Add unit="),
    ("csv", CSV + "0,1,1\n", "#prompt=inn", "no column 'inn'"),
    ("csv", CSV + "-1.7e308,10,3\n1.7e308,12,3\n", "", "line 3: arrival is inf s after the first one"),
    ("csv", CSV + "1700000000000,10,2\n", "", "line 2: arrival_s='1700000000000' is a Unix time in ms, not in s"),
    ("csv", "arrival_time,prompt_tokens,output_tokens\n1700000000,10,2\n1700000000000000000,10,2\n", "",
     "is a Unix time in ns"),
    ("jsonl", json.dumps(ROW | {"prefix_blocks": [1, 2, 3]}), "", "line 1: prefix_blocks has 3 blocks, and 20 prompt "),
    ("jsonl", json.dumps(ROW | {"prefix_blocks": [1, "x"]}), "", "line 1: prefix_blocks=[1, 'x'] must be a list of"),
    ("sharegpt", "", "", "not valid JSON"),
    ("sharegpt", '[{"prompt_tokens": 5}]', "", "entry 1: output_tokens=None must be"),
    ("sharegpt", '[{"conversations": [1, 2]}]', "", "entry 1: its first two turns must have a text"),
    ("sharegpt", TURNS, "", "texts without lengths. Name a tokenizer"),
    ("sharegpt", TURNS, "#tokenizer=absent", "must be a local directory"),
    ("guidellm", BENCHES, "", "2 benchmarks in it. Say which: FILE#benchmark=0 to 1"),
    ("guidellm", BENCHES, "#benchmark=2", "benchmark=2 must be 0 to 1"),
]  # fmt: skip


@pytest.mark.parametrize(("dataset", "text", "options", "named"), TRACES)
def test_a_bad_trace_is_one_line_with_file_place_and_field(
    tmp_path: Path, dataset: str, text: str, options: str, named: str
) -> None:
    path = tmp_path / "trace.txt"
    path.write_text(text)
    assert_refused(lambda: read_trace(dataset, f"{path}{options}"), named, str(path) if not options else "")


@pytest.mark.parametrize("dataset", ["trace-azure", "mooncake", "sharegpt", "csv", "jsonl"])
def test_an_absent_or_binary_trace_or_a_broken_archive_is_one_line(tmp_path: Path, dataset: str) -> None:
    path = str(tmp_path / "absent")
    assert_refused(lambda: read_trace(dataset, path), "No such file", path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x9f" * 10)
    assert_refused(lambda: read_trace(dataset, str(tmp_path / "binary")), "binary")
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(b'{"arrival_s": 0}' * 999)[:-9])
    if dataset == "jsonl":
        assert_refused(lambda: read_trace(dataset, str(tmp_path / "t.jsonl.gz")), "line 1: damaged archive")


FILES: list[tuple[Callable[[Path], object], Any, str]] = [
    (lambda path: read_prompts(path, 16), {"x": 1}, "no prefix_blocks, hash_ids, input_tok_ids, prompt_token_ids"),
    (
        lambda path: read_prompts(path, 16),
        '{"prefix_blocks": []}\n{"input_tok_ids": []}',
        "line 2: no prefix_blocks",
    ),
]


@pytest.mark.parametrize(("read", "content", "named"), FILES)
def test_a_bad_file_of_a_benchmark_names_its_field(
    read: Callable[[Path], object], content: Any, named: str, tmp_path: Path
) -> None:
    path = tmp_path / "r.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    assert_refused(lambda: read(path), named, "r.json")


WORKLOADS: list[tuple[dict[str, Any], str]] = [
    ({"num_prompts": 200, "num_warmups": 150, "num_cooldowns": 50}, "must be below num_prompts=200 together"),
    ({"dataset_name": "azure-cone"}, "unknown workload.dataset_name 'azure-cone'. Did you mean 'azure-conv'?"),
    ({"dataset_name": "mooncake"}, "dataset_name='mooncake' reads a file: name it with workload.dataset_path"),
    ({"dataset_path": "x.csv"}, "dataset_name='sharegpt-long' reads no file"),
    ({"dataset_name": "csv", "dataset_path": "x", "input_len": 2}, "workload.input_len=2: the file of"),
    ({"dataset_name": "csv", "dataset_path": "x", "sharing": Sharing(num_forks=2)}, "workload.sharing=Sharing"),
    ({"dataset_name": "azure-code", "random_range_ratio": 0.1}, "'azure-code' draws lengths of its own"),
    ({"dataset_name": "fixed", "random_range_ratio": 1.0}, "random_range_ratio=1.0 must be at least 0 and below 1"),
    *(({"dataset_name": "fixed", "random_range_ratio": ratio}, f"random_range_ratio={ratio}")
      for ratio in (-0.1, nan, (1.0, 0.8), (0.0, 1.0), (0.5, inf))),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "named"), WORKLOADS)
def test_a_workload_that_cannot_be_is_one_line(changes: dict[str, Any], named: str) -> None:
    assert_refused(lambda: build_requests(Workload(**changes), 0), named)


CHAT = {"name": "chat", "share": 0.25, "priority": 1, "ttft_ms": 400.0}
OTHER_VOCABULARY = [{"draft": "llama-3.2-1b", "acceptance": "iid:0.5"}]
SMALL_DRAFT = [{"draft": "llama-68m", "acceptance": "iid:0.35", "num_speculative_tokens": 2}]
TABLE_KEY = "speculation.num_speculative_tokens_per_batch_size"
OF_HEAD = {"profile": HEAD, "policy": "pipelined", "num_speculative_tokens": 7, "acceptance": "length:4.35@7"}
SCENARIOS: list[tuple[dict[str, Any], str]] = [
    ({"slo_classes": [CHAT]}, "shares sum to 0.25 and must sum to 1"),
    ({"slo_classes": [CHAT, {**CHAT, "share": 0.75}]}, "chat, chat names one twice"),
    ({"slo_classes": [{"name": "x", "share": 1.0, "ttft_ms": -1.0}]}, "slo_classes.x.ttft_ms=-1.0 must be above 0"),
    ({"policy": "continuous", "speculation.drafts": SMALL_DRAFT}, "policy 'continuous' has one draft model"),
    ({"speculation.drafts": SMALL_DRAFT, "speculation.controller": "feedback"}, "each has a length of its own"),
    ({"speculation.drafts": OTHER_VOCABULARY}, "128256 tokens in its vocabulary"),
    ({"policy_options.lanes": {"decod": {"max_num_seqs": 5}}}, "Did you mean 'decode'"),
    ({"policy": "pdv", "devices.overlap": "processes"}, "a process of each lane of pd. Those of 'pdv' share one"),
    (OF_HEAD, "speculation.stale_acceptance must say what is accepted then"),
    ({"speculation.controller": "goodput", TABLE_KEY: [[1, 8, 2]]}, "none by goodput"),
    ({"speculation.controller": "by_batch"}, "by_batch needs"),
    ({"speculation.controller": "by_batch", TABLE_KEY: [[2, 8, 2]]}, "must start at batch size 1"),
    ({"speculation.controller": "adaptive_verification"}, "is for continuous"),
]


@pytest.mark.parametrize(("changes", "named"), SCENARIOS)
def test_a_scenario_that_makes_no_sense_is_one_line(changes: dict[str, Any], named: str) -> None:
    given = {"profile": PAIR, "policy": "pd", **changes}
    assert_refused(lambda: resolve_all(Scenario.of(**given), load(given["profile"])), named)


MEASURED = "{}-sxm/llama-3.1-8b+llama-3.2-1b-measured"
IDEAL = {"profile": PAIR, "policy": "pd", "engine.name": "ideal", "engine.async_scheduling": False}
BEYOND_THE_REFERENCE: list[tuple[dict[str, Any], str]] = [
    ({"policy": "disaggregated"}, "no policy 'disaggregated'"),
    ({"num_speculative_tokens": 0}, "no draft length of 0"),
    ({"policy": "continuous", "engine.num_gpu_blocks": 300}, "no short memory"),
    ({"max_concurrency": 4, "request_rate": inf}, "no closed loop"),
    ({"engine.async_scheduling": True}, "no lanes that plan ahead"),
    ({"policy_options.poll_s": 0.0}, "no lanes that do not poll"),
    ({"profile": MEASURED.format("h200"), "engine.name": None}, "no work that polling or service slows down"),
    ({"profile": MEASURED.format("h100"), "engine.name": None, "policy": "pdv"}, "launched kernel by kernel"),
]


@pytest.mark.parametrize(("changes", "named"), BEYOND_THE_REFERENCE)
def test_the_reference_refuses_what_it_does_not_know(changes: dict[str, Any], named: str) -> None:
    scenario = Scenario.of(**(IDEAL | changes))
    resolved = resolve(scenario, load(scenario.profile), scenario.policy[0])
    assert_refused(lambda: simulate(replace(resolved, form="simpy"), 0), named)


OF_REPLAYS: list[tuple[dict[str, Any], str]] = [
    ({"energy": True}, "energy is simulated only: a replay reads no power. Leave it out"),
    ({"speculation.controller": "adaptive_verification"}, "simulated only"),
]


@pytest.mark.parametrize(("changes", "named"), OF_REPLAYS)
def test_a_replay_refuses_what_is_simulated_only(changes: dict[str, Any], named: str) -> None:
    scenario = Scenario.of(profile=HEAD, policy="continuous", **changes)
    assert_refused(lambda: resolve(scenario, load(HEAD), "continuous", num_slots=8), named)


def tiny(**changes: object) -> ModelShape:
    return msgspec.convert(msgspec.to_builtins(MODELS["tinyllama-1.1b"]) | msgspec.to_builtins(changes), ModelShape)


def compact(**changes: Any) -> object:
    return replaced(load(PAIR).compact, **changes)


LINEAR = Linear(layers=99, key_heads=2, key_dim=2, value_heads=4, value_dim=2)
VALUES: list[tuple[Callable[..., object], dict[str, Any], str]] = [
    (tiny, {"layers": 0}, "layers"),
    (tiny, {"vocab": -1}, "vocab"),
    (tiny, {"kv_heads": 3}, "kv_heads"),
    (tiny, {"bias": True}, "bias"),
    (tiny, {"linear": LINEAR}, "linear.layers=99"),
    (tiny, {"window_layers": 2}, "window=0 goes with window_layers=2"),
    (Formats, {"mlp": "fp7"}, "mlp='fp7' must be one of bf16, fp8"),
    (Experts, {"num": 6, "per_token": 7, "intermediate": 4}, "per_token=7 must be in 1..num=6"),
    *((LinearPass, {"pass_s": 1.0, "by_rows": rows}, "by_rows")
      for rows in (((2, 1.0), (1, 2.0)), ((0, 1.0),), ((1, -1.0),))),
    *((compact, {"body_ratios": ratios}, "rising tokens from 1 on and positive ratios")
      for ratios in (((8, 1.0), (8, 1.1)), ((0, 1.0),), ((1, 0.0),))),
    *((Phi, {"value": 0.1, "low": 0.0, "high": 0.2, "source": "x"} | phi, "must be in order within")
      for phi in ({"low": 0.2}, {"high": 0.05}, {"low": -0.1}, {"high": 1.5}, {"value": nan})),
    *((kv_capacity_tokens, {"profile": load("cpu/tiny"), "gpu_memory_utilization": share}, "gpu_memory_utilization")
      for share in (0.0, 1.01, -1.0, nan)),
    *((link_of, {"name": name}, "link") for name in ("tpc", "1:", "-1:5", "1:0", "a:b", "nan:1")),
    (PolicyOptions, {"poll_s": 1e-12}, "poll_s=1e-12 must be 0 or at least"),
    (PolicyOptions, {"stream_priorities": "high"}, "stream_priorities='high' must be true, false or preemptive"),
    *((PolicyOptions, {"adaptive_table": rows}, named) for rows, named in (
        (((2, "pd"),), "rows begin at [2]. The first must be 1, and they must rise"),
        (((1, "pd"), (1, "pdv")), "they must rise"),
        ((), "The first must be 1"),
        (((1, "continuous"),), "'continuous' is none of baseline, pd, pdv, unified"),
    )),
    *((ByBatch, {"table": rows, "draft_tokens_max": 4}, named) for rows, named in (
        ((), "at least one"),
        (((2, 16, 3),), "start at batch size 1"),
        (((1, 16, 3), (16, 20, 1)), "above 16"),
        (((1, 16, 3), (21, 20, 1)), "above 16"),
        (((1, 16, 5),), "in 0..4, num_speculative_tokens"),
        (((1, 16, -1),), "in 0..4"),
        (((1, 16),), "draft length"),
    )),
    *((SglangAdaptive, {"start": 1, "bands": {key: Band(candidate_steps=(1,))}}, "batch size")
      for key in ("0", "x", "")),
    (build_controller, {"name": "goodput", "draft_tokens": 4}, "needs a profile"),
    *((usd_per_gpu_h, {"text": text}, f"--price {text!r} must be dollars per hour of one GPU, such as 3.5/gpu-h")
      for text in ("", "cheap", "-1/gpu-h", "inf/gpu-h", "nan/gpu-h", "3.5", "3.5/h", "7/replica-h", "3.5/GPU-h")),
    (build_requests, {"workload": Workload(), "seed": -1}, "seed=-1 must be at least 0"),
    (Sharing, {"num_prefixes": 2}, "num_prefixes=2: prompts without prefix_len have none"),
    (reblocked, {"contents": [(0,)], "content_tokens": 16, "block_tokens": 24, "source": "t"},
     "blocks of 16 tokens, which engine.block_size=24 neither"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "given", "named"), VALUES)
def test_values_that_cannot_be_are_refused_by_their_name(
    make: Callable[..., object], given: dict[str, Any], named: str
) -> None:
    assert_refused(lambda: make(**given), named)


def test_a_trace_has_as_many_requests_as_are_asked_for_and_times_where_they_are_replayed(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(AZURE)
    assert_refused(lambda: read_trace("trace-azure", str(path), 4), "2 requests, num_prompts=4")
    path.write_text('[{"prompt_tokens": 5, "output_tokens": 7}]')
    replayed = Workload(
        dataset_name="sharegpt", dataset_path=str(path), num_prompts=1, trace_arrivals=TraceArrivals.RECORDED
    )
    assert_refused(lambda: build_requests(replayed, 0), "no arrival times to replay")
