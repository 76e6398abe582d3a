"""The command lines that start a server: what they ask for is what was simulated."""

from __future__ import annotations

import shlex
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from sim.costs.profile import Profile
from sim.costs.profile_files import load, shipped
from sim.costs.shapes import Formats
from sim.drafters.drafter import Drafter
from sim.drafters.mtp import layer as mtp_layer
from sim.drafters.registry import DRAFTERS
from sim.run.scenario import Scenario
from sim.studies.serve_commands import ServeLines, deployment
from tests.sim.studies.server_flags import (
    SGLANG_ALGORITHMS,
    SGLANG_LAUNCH_SERVER,
    VLLM_METHODS,
    VLLM_SERVE,
    VLLM_SPECULATIVE_CONFIG,
)

HEAD = "h100-sxm/llama-3.1-8b+eagle3"
ROWS = [[1, 16, 3], [17, 64, 1]]
SGLANG = "sglang-0.5"


def flags_of(line: str) -> dict[str, str]:
    return {flag: value for flag, value in pairwise(shlex.split(line)) if flag.startswith("--")}


def scenario(profile: str = HEAD, **changes: Any) -> Scenario:
    given = {"policy": "continuous", "input_len": 64, "output_len": 16, "request_rate": 2, "num_speculative_tokens": 3}
    return Scenario.of(profile=profile, **given | changes)


def sparse(**changes: Any) -> Profile:
    """Experts in mxfp4 and KV in 8 bits, on ranks of two devices."""
    profile = load("h200-sxm/gpt-oss-120b+eagle3")
    formats = msgspec.structs.replace(profile.target.formats or Formats(), kv="fp8")
    target = msgspec.structs.replace(profile.target, formats=formats)
    return msgspec.structs.replace(profile, target=target, **changes)


def with_mtp() -> Profile:
    profile = load(HEAD)
    return msgspec.structs.replace(profile, draft=mtp_layer(profile.target))


def deployed(profile: Profile, table: list[list[int]] = ROWS, **changes: Any) -> ServeLines:
    return deployment(scenario(**changes), profile, table, {})


def check_known(found: ServeLines) -> None:
    """Every flag, key and method is one that the servers know, and every model one that can exist."""
    serve = shlex.split(found.vllm_serve)
    assert {word for word in serve if word.startswith("--")} <= VLLM_SERVE
    config = found.speculative_config
    if config is not None:
        assert set(config) <= VLLM_SPECULATIVE_CONFIG
        assert config["method"] in VLLM_METHODS
    sglang = shlex.split(found.sglang_flags)
    assert {word for word in sglang if word.startswith("--")} <= SGLANG_LAUNCH_SERVER
    flags = dict(pairwise(sglang))
    assert flags.get("--speculative-algorithm", "EAGLE") in SGLANG_ALGORITHMS
    models = [
        serve[2] if serve else flags.get("--model-path"),
        (config or {}).get("model"),
        flags.get("--speculative-draft-model-path"),
    ]
    for model in models:
        assert model is None or model.count("/") == 1 or model in ("<target>", "<draft>"), model


@pytest.mark.parametrize("name", shipped())
def test_every_flag_and_key_is_one_that_the_servers_know(name: str) -> None:
    profile = load(name)
    for k, given in ((3 if profile.draft is not None else 0, profile), (0, profile)):
        asked = scenario(name, num_speculative_tokens=k, burstiness=0.5, max_concurrency=8)
        found = deployment(asked, given, [[1, 16, k], [17, 64, k and 1]], {})
        check_known(found)
        sglang = scenario(name, num_speculative_tokens=k, engine=SGLANG)
        check_known(deployment(sglang, given, [[1, 16, k], [17, 64, k and 1]], {}))


@pytest.mark.parametrize("method", DRAFTERS.values(), ids=str)
def test_every_method_is_spelt_as_the_servers_spell_it(method: Drafter) -> None:
    asked = scenario(
        "cpu/tiny", **{"speculation.method": method.name, "engine.cuda_graph": False, "num_gpu_blocks": 99}
    )
    check_known(deployment(asked, load("cpu/tiny"), ROWS, {}))
    if method.sglang is not None:
        sglang = msgspec.structs.replace(asked, engine=msgspec.structs.replace(asked.engine, name=SGLANG))
        check_known(deployment(sglang, load("cpu/tiny"), ROWS, {}))


def test_mtp_names_no_model() -> None:
    found, sglang = deployed(with_mtp()), deployed(with_mtp(), engine=SGLANG)
    assert found.speculative_config == {
        "method": "mtp",
        "num_speculative_tokens": 3,
        "num_speculative_tokens_per_batch_size": ROWS,
    }
    assert "--speculative-draft-model-path" not in sglang.sglang_flags
    assert "--speculative-algorithm NEXTN" in sglang.sglang_flags
    check_known(found)
    check_known(sglang)


def test_weights_that_no_known_repository_holds_are_a_placeholder_with_a_note() -> None:
    four_bits = deployed(load("b200-sxm/llama-3.1-8b-nvfp4"), [[1, 64, 0]])
    assert four_bits.vllm_serve.startswith("vllm serve '<target>' ")
    assert four_bits.notes == ["<target> stands for a checkpoint of llama-3.1-8b with nvfp4 weights"]
    eight_bits = load("h100-sxm/llama-3.1-8b-fp8")
    for engine in ("vllm-0.24", SGLANG):
        line = deployed(eight_bits, [[1, 64, 0]], engine=engine).start
        assert "meta-llama/Llama-3.1-8B " in line
        assert "--quantization fp8" in line
    assert (deployed(load(HEAD)).speculative_config or {})["model"] == "<draft>"
    published = load("h100-sxm/gpt-oss-120b")
    assert deployed(published, [[1, 64, 0]]).vllm_serve.startswith("vllm serve openai/gpt-oss-120b ")
    unpacked = msgspec.structs.replace(published.target, formats=None)
    assert "<target>" in deployed(msgspec.structs.replace(published, target=unpacked), [[1, 64, 0]]).vllm_serve


def test_ranks_experts_and_kv_formats_of_the_profile_are_in_the_lines() -> None:
    ranks = sparse(tensor_parallel=2, data_parallel=4, expert_parallel=None)
    found, other = deployed(ranks), deployed(ranks, engine=SGLANG, max_num_seqs=1024)
    vllm, sglang = flags_of(found.vllm_serve), flags_of(other.sglang_flags)
    assert (vllm["--tensor-parallel-size"], vllm["--data-parallel-size"], vllm["--kv-cache-dtype"]) == ("2", "4", "fp8")
    assert "--enable-expert-parallel" in found.vllm_serve
    assert (sglang["--tp-size"], sglang["--attn-dp-size"], sglang["--ep-size"]) == ("8", "4", "8")
    assert sglang["--kv-cache-dtype"] == "fp8_e4m3"
    assert sglang["--max-running-requests"] == str(4 * 1024)
    assert other.sglang_adaptive_config is None
    assert any(note.startswith("vLLM turns the table off") for note in found.notes)
    check_known(found)
    check_known(other)


@pytest.mark.parametrize(("spread", "is_parallel"), [(None, False), (1, False), (4, True)])
def test_experts_are_spread_where_the_profile_says_so(spread: int | None, is_parallel: bool) -> None:
    found = sparse(tensor_parallel=4, expert_parallel=spread)
    assert ("--enable-expert-parallel" in deployed(found).vllm_serve) is is_parallel
    assert ("--ep-size 4" in deployed(found, engine=SGLANG).sglang_flags) is is_parallel


def test_a_line_is_of_the_engine_that_was_simulated_alone() -> None:
    profile = load(HEAD)
    vllm, sglang, trtllm, ideal = (
        deployed(profile, engine=name) for name in ("vllm-0.24", SGLANG, "trtllm-1.1", "ideal")
    )
    assert (vllm.sglang_flags, vllm.sglang_adaptive_config) == ("", None)
    assert (sglang.vllm_serve, sglang.speculative_config) == ("", None)
    assert sglang.start == f"python -m sglang.launch_server {sglang.sglang_flags}"
    assert trtllm.start == ""
    assert "no line starts trtllm-1.1 as it was simulated" in trtllm.notes
    assert ideal.start.startswith("vllm serve ")
    assert "engine 'ideal' is no server's: the line is vLLM's, with its limits" in ideal.notes


def test_a_line_has_the_limits_and_switches_that_were_simulated() -> None:
    given = {"num_gpu_blocks": 2000, "max_num_seqs": 48, "max_num_batched_tokens": 4096}
    switches = {"engine.rules.enable_prefix_caching": False, "engine.rules.enable_chunked_prefill": True}
    serve = deployed(load(HEAD), **given, **switches, **{"engine.async_scheduling": False}).vllm_serve
    for flag in ("--no-enable-prefix-caching", "--enable-chunked-prefill", "--no-async-scheduling"):
        assert flag in serve.split()
    mixed = {"engine.rules.enable_mixed_chunk": True, "engine.rules.scheduler_recv_interval": 10}
    flags = flags_of(deployed(load(HEAD), engine=SGLANG, **given, **mixed).start)
    assert (flags["--max-running-requests"], flags["--chunked-prefill-size"]) == ("48", "4096")
    assert (flags["--max-total-tokens"], flags["--scheduler-recv-interval"]) == ("32000", "10")
    assert "--enable-mixed-chunk" in flags
    newest = deployed(load(HEAD), engine="sglang-0.5.23", **{"engine.rules.prefill_decode_interval": 4}).start
    assert flags_of(newest)["--prefill-decode-interval"] == "4"


def test_a_pool_smaller_than_the_longest_context_is_no_reason_not_to_start() -> None:
    assert "--max-model-len auto" in deployed(load("rtx-4090/llama-3.1-8b"), [[1, 64, 0]]).vllm_serve
    assert "--max-model-len" not in deployed(load("h100-sxm/llama-3.1-8b"), [[1, 64, 0]]).vllm_serve
