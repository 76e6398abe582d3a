"""The compiled core serves as Python does, to the last bit, over everything that it takes; the rest goes to Python."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import struct
import subprocess
import sys
import tracemalloc
from dataclasses import fields, replace
from functools import cache
from itertools import product
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import structs

from sim.acceptance.draws import AcceptanceDraws
from sim.acceptance.models import IidAcceptance
from sim.costs.extrapolation import collecting
from sim.costs.forms.slots import ROW_BITS, ROWS, TOKENS
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.drafters.drafter import Drafter
from sim.drafters.registry import DRAFTERS
from sim.interface.request_columns import Requests
from sim.metrics.records import RunRecord
from sim.metrics.summary import summarise
from sim.policies.options import EngineLimits
from sim.run import compiled
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate
from tests.properties import assert_refused, examples
from tests.sim.support import request, serve

pytestmark = pytest.mark.skipif(not compiled.is_on(), reason="the core is not built, or switched off")
PROFILES = (
    "h100-sxm/llama-3.1-8b+llama-3.2-1b",
    "a100-sxm/llama-3.1-8b+llama-3.2-1b",
    "gh200/apertus-8b+eagle3",
    "h200-sxm/qwen3-32b+eagle3",
    "h200-sxm/gpt-oss-120b+eagle3",
    "rtx-4090/llama-3.1-8b",
    "h100-sxm/llama-3.1-8b+llama-3.2-1b-measured",
)
"""Compact constants and tables, draft models and heads, windows and experts, prompts measured beside rows, and prompts
that are launched kernel by kernel."""
LANE_PROFILES = (
    PROFILES[0],
    PROFILES[6],
    "h200-sxm/llama-3.1-8b+llama-3.2-1b-measured",
    "a100-sxm/llama-2-7b+tinyllama-1.1b",
    *PROFILES[2:4],
)
"""Overlap that was measured, two models of a table, and heads."""
LANE_ENGINES = (None, "ideal", "vllm-0.12", "vllm-0.32", "vllm-0.33")
SGLANG = ("sglang-0.5", "sglang-0.5.23")
ENGINES = ("ideal", "vllm-0.12", "vllm-0.19", "vllm-0.24", "vllm-0.32", "vllm-0.33", "trtllm-1.0", *SGLANG)


@cache
def profile_of(name: str) -> Profile:
    profile = load(name)
    if name != PROFILES[0]:
        return profile
    served = {"prefill": 1.02, "decode": 1.1, "verify": 1.2, "draft": 1.3, "draft_prefill": 1.4}
    return structs.replace(profile, host=structs.replace(profile.host, served=served))


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    name = draw(st.sampled_from(PROFILES))
    is_lookup = profile_of(name).draft is None or draw(st.integers(0, 4)) == 0
    settings: dict[str, Any] = {
        "num_speculative_tokens": draw(st.integers(0, 6)),
        "speculation.method": "ngram" if is_lookup else "draft_model",
        "request_rate": draw(st.sampled_from((0.5, 4.0, 12.0, inf))),
        "max_concurrency": draw(st.sampled_from((None, None, 1, 2, 7, 40))),
        "max_num_seqs": draw(st.sampled_from((None, 1, 2, 8, 100))),
        "max_num_batched_tokens": draw(st.sampled_from((None, 16, 64, 512, 4096))),
        "num_prompts": draw(st.sampled_from((1, 2, 20, 60))),
        "engine.name": None if name == PROFILES[6] else draw(st.sampled_from(ENGINES)),
        "engine.async_scheduling": draw(st.booleans()),
        "engine.num_gpu_blocks": draw(st.sampled_from((None, None, 60, 150, 400))),
        "engine.block_size": draw(st.sampled_from((16, 16, 1, 32))),
        "engine.rules.long_prefill_token_threshold": draw(st.sampled_from((0, 0, 8, 300))),
        "devices.count": draw(st.sampled_from((1, 1, 2, 5))),
        "acceptance": draw(st.sampled_from(("iid:0.7", "iid:0.2", "vllm:.6,.4,.3~1.1"))),
    }
    if draw(st.booleans()):
        lengths = st.sampled_from((1, 2, 17, 300, 700, 20_000))
        settings |= {
            "dataset_name": "fixed",
            "input_len": draw(lengths),
            "output_len": draw(st.sampled_from((1, 2, 60))),
        }
    else:
        settings["dataset_name"] = "azure-conv"
    if settings["engine.name"] == "vllm-0.33":
        settings["engine.rules.prefill_schedule_interval"] = draw(st.sampled_from((1, 2, 5)))
    if settings["engine.name"] == SGLANG[1]:
        settings["engine.rules.prefill_decode_interval"] = draw(st.sampled_from((0, 1, 4)))
    if settings["num_speculative_tokens"] and draw(st.booleans()):
        first, then = (draw(st.integers(0, settings["num_speculative_tokens"])) for _ in range(2))
        key = "speculation.num_speculative_tokens_per_batch_size"
        settings |= {"speculation.controller": "by_batch", key: [[1, 3, first], [4, 9, then], [30, 99, 1]]}
    return Scenario.of(profile=name, policy="continuous", **settings)


@st.composite
def lanes(draw: st.DrawFn) -> Scenario:
    """Policies with lanes, whose works share a device."""
    name = draw(st.sampled_from(LANE_PROFILES))
    policy = draw(st.sampled_from(compiled.LANE_POLICIES))
    is_baseline, has_draft = policy == "baseline", profile_of(name).draft is not None
    settings: dict[str, Any] = {
        "num_speculative_tokens": draw(st.sampled_from((0, 1, 2, 4, 7))) if has_draft else 0,
        "request_rate": draw(st.sampled_from((0.5, 4.0, 12.0, inf))),
        "max_concurrency": draw(st.sampled_from((None, None, 1, 2, 7, 40))),
        "max_num_seqs": draw(st.sampled_from((None, 1, 2, 8, 100))),
        "max_num_batched_tokens": draw(st.sampled_from((None, 64, 512, 4096))),
        "num_prompts": draw(st.sampled_from((2, 3, 20, 40))),
        "engine.name": draw(st.sampled_from(LANE_ENGINES)),
        "engine.async_scheduling": draw(st.booleans()),
        "engine.num_gpu_blocks": draw(st.sampled_from((None, None, 400))),
        "acceptance": draw(st.sampled_from(("iid:0.7", "iid:0.2", "vllm:.6,.4,.3~1.1"))),
        "num_warmups": draw(st.sampled_from((0, 1))),
    }
    if not is_baseline:
        settings["devices.phi"] = draw(st.sampled_from((None, 0.0, 0.07, 0.25)))
        settings["policy_options.decode_batch"] = draw(st.sampled_from((None, 1, 2, 5)))
        settings["policy_options.poll_s"] = draw(st.sampled_from((None, 0.0, 0.0005, 0.003)))
    if policy == "pdv":
        settings["policy_options.hybrid_requests"] = draw(st.sampled_from((0, 1, 3)))
        settings["policy_options.verify_batch"] = draw(st.sampled_from((None, 3)))
    if is_baseline:
        settings["policy_options.workers"] = draw(st.sampled_from((1, 4, 9)))
    if draw(st.booleans()):
        settings |= {
            "dataset_name": "fixed",
            "input_len": draw(st.sampled_from((1, 2, 17, 700, 3000))),
            "output_len": draw(st.sampled_from((1, 2, 60))),
        }
    else:
        settings["dataset_name"] = "azure-conv"
    return Scenario.of(profile=name, policy=policy, **settings)


def served(scenario: Scenario, seed: int) -> tuple[RunRecord, str]:
    """The run, by costs that nobody has used, and what it extrapolated."""
    with collecting() as extrapolation:
        record = simulate(resolve(scenario, profile_of(str(scenario.profile)), scenario.policy[0]), seed)
    return record, str(extrapolation)


def values(of: Any, *, but: tuple[str, ...] = ()) -> dict[str, str]:
    """Fields as texts, in which nan equals nan and no bit is lost."""
    return {field.name: repr(getattr(of, field.name)) for field in fields(of) if field.name not in but}


def assert_same_in_python(scenario: Scenario, seed: int) -> None:
    num_before = compiled.told["core"]
    try:
        ours, told = served(scenario, seed)
    except ValueError:
        assume(False)
    assume(compiled.told["core"] > num_before)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(compiled.SWITCH, "off")
        theirs, told_in_python = served(scenario, seed)
    assert [values(request) for request in ours.requests] == [values(request) for request in theirs.requests]
    assert (ours.gaps.gaps_s, ours.gaps.counts) == (theirs.gaps.gaps_s, theirs.gaps.counts)
    assert values(ours, but=("requests", "gaps", "form")) == values(theirs, but=("requests", "gaps", "form"))
    assert repr(summarise(ours)) == repr(summarise(theirs))
    assert told == told_in_python


@pytest.mark.filterwarnings("ignore")
@given(scenarios(), st.integers(0, 99))
@examples(1.0, deadline=None)
def test_the_core_serves_as_python_does_to_the_last_bit(scenario: Scenario, seed: int) -> None:
    assert_same_in_python(scenario, seed)


@pytest.mark.filterwarnings("ignore")
@given(lanes(), st.integers(0, 99))
@examples(1.0, deadline=None)
def test_the_core_serves_lanes_as_python_does_to_the_last_bit(scenario: Scenario, seed: int) -> None:
    assert_same_in_python(scenario, seed)


TWICE_PREEMPTED = {
    "profile": "gh200/apertus-8b+eagle3",
    "engine.name": "vllm-0.32",
    "num_speculative_tokens": 2,
    "engine.num_gpu_blocks": 100,
    "engine.block_size": 1,
    "request_rate": inf,
    "input_len": 17,
    "output_len": 60,
    "dataset_name": "fixed",
}
"""A request loses its memory twice, and an EAGLE head wants the last block that is found computed again."""
ENGINE_RULES = (
    {"engine.name": "sglang-0.5", "num_prompts": 200, "input_len": 900, "output_len": 2, "dataset_name": "fixed"},
    {"engine.name": "sglang-0.5", "engine.rules.scheduler_recv_interval": 4, "engine.num_gpu_blocks": 1500},
    {"engine.name": "sglang-0.5", "engine.rules.enable_chunked_prefill": False, "max_num_batched_tokens": 512},
    {"engine.name": "trtllm-1.0", "engine.rules.batch_wait_timeout_iters": 6},
    {
        "profile": "rtx-pro-6000-server/qwen3-30b-a3b-dp2",
        "num_speculative_tokens": 0,
        "engine.name": "trtllm-1.1",
        "engine.rules.attention_dp_timeout_iters": 9,
    },
    {"profile": PROFILES[6], "num_speculative_tokens": 3, "max_num_batched_tokens": 64, "request_rate": inf},
)
"""The last one has draft passes that go on behind their launch."""


@pytest.mark.parametrize("rules", ENGINE_RULES)
@pytest.mark.filterwarnings("ignore")
def test_what_engines_wait_for_is_the_same_in_the_core(rules: dict[str, Any]) -> None:
    given = {"profile": PROFILES[0], "dataset_name": "azure-conv", "num_prompts": 40, "request_rate": 12}
    assert_same_in_python(Scenario.of(policy="continuous", **given | rules), 0)


@pytest.mark.filterwarnings("ignore")
def test_gaps_of_replicas_that_end_a_step_at_the_same_instant_are_the_same_in_the_core() -> None:
    given = {"num_prompts": 300, "request_rate": inf, "input_len": 1, "output_len": 60, "dataset_name": "fixed"}
    given |= {"engine.name": "ideal", "max_num_seqs": 8, "max_num_batched_tokens": 512, "devices.count": 3}
    given |= {"engine.async_scheduling": False, "num_speculative_tokens": 2}
    assert_same_in_python(Scenario.of(profile="h200-sxm/gpt-oss-120b+eagle3", policy="continuous", **given), 180)


@pytest.mark.parametrize(
    ("reason", "settings"),
    [
        ("replicas that depend on each other", {"devices.count": 2, "devices.routing": "least-outstanding"}),
        ("works that are recorded, or a window that closes", {"window.stop_s": 0.5}),
        ("costs of another form", {"profile": "a100-pdverify/codellama-34b+tinyllama-1.1b"}),
        ("memory is short", TWICE_PREEMPTED),
        ("draft lengths that change", {"speculation.controller": "feedback", "num_speculative_tokens": 4}),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_the_rest_goes_to_python_which_says_why(reason: str, settings: dict[str, Any]) -> None:
    given = {"profile": PROFILES[0], "dataset_name": "azure-conv", "num_prompts": 20, "request_rate": 8} | settings
    scenario = Scenario.of(policy="continuous", **given)
    num_before = compiled.told[reason]
    served(scenario, 0)
    assert compiled.told[reason] == num_before + 1
    in_core = replace(resolve(scenario, load(scenario.profile), "continuous"), form=compiled.CORE)
    assert_refused(lambda: simulate(in_core, 0), f"({reason})", f"Use --in {compiled.PYTHON}")


@pytest.mark.filterwarnings("ignore")
def test_a_drafter_whose_passes_the_core_does_not_price_goes_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    window = Drafter(name="window", passes=lambda rows, verified, tokens: (verified, rows * tokens, 2))
    monkeypatch.setitem(DRAFTERS, "window", window)
    scenario = Scenario.of(profile=PROFILES[0], policy="continuous", num_prompts=5, **{"speculation.method": "window"})
    num_before = compiled.told["drafts of window"]
    served(scenario, 0)
    assert compiled.told["drafts of window"] == num_before + 1


@pytest.mark.filterwarnings("ignore")
def test_what_sequences_keep_beside_their_tokens_holds_others_back_in_the_core_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Blocks for 40 requests at once, of which states take all but a few."""
    given = {"input_len": 64, "output_len": 64, "num_prompts": 40, "request_rate": inf, "num_speculative_tokens": 0}
    scenario = Scenario.of(
        profile=PROFILES[-1],
        policy="continuous",
        **given,
        **{"engine.name": "trtllm-1.0", "engine.num_gpu_blocks": 400},
    )
    mean_s = {}
    for kept, switch in product((0, 70), ("", "off")):
        monkeypatch.setattr("sim.run.resolve.kept_blocks", lambda *_, kept=kept, **__: kept)
        monkeypatch.setenv(compiled.SWITCH, switch)
        num_before = compiled.told["core"]
        record, _ = served(scenario, 0)
        assert (compiled.told["core"] > num_before) is (switch == "")
        mean_s[kept, switch] = sum(request.last_token_s for request in record.requests)
    assert mean_s[0, ""] == mean_s[0, "off"]
    assert mean_s[70, ""] == mean_s[70, "off"] > 2 * mean_s[0, ""]


def buffers(num_requests: int = 1, output: int = 1, draft_tokens: int = 0, num_blocks: int = 0) -> tuple[Any, ...]:
    """What the core reads for requests of one token, served all at once, whose costs are all a second; with
    `num_blocks` of two tokens memory is short."""
    requests = np.zeros(num_requests, dtype=compiled.REQUESTS)
    requests["prompt_tokens"], requests["output_tokens"] = 1, output
    requests["first_round"] = output * np.arange(num_requests)
    widths = (12, 12, 12, 12, 12, 12)
    constants = np.array([0.0, 1.0, *[1.0] * 18, *[1.0] * 6, *widths])
    model = (constants, *[np.zeros((2, width)) for width in widths])
    budget = 2 * num_requests * (draft_tokens + 1)
    limits = (draft_tokens, num_requests, budget, 0, 0, 0, num_blocks or budget * output, *[0] * 5, budget, 0)
    memory = (draft_tokens, 0, 999, 2, 0, 1, 0, 0, 1) if num_blocks else (0, 0, 999, 16, *[0] * 5)
    settings = bytearray(compiled.SETTINGS.pack(*limits, *memory, *[0] * 19, *[0.0] * 15, *[1.0] * 5))
    lengths = np.array([draft_tokens], np.int8)
    return settings, requests, np.zeros(output * num_requests, dtype=np.int8), lengths, *model, *model


def served_by_hand(given: tuple[Any, ...], asked: list[tuple[int, ...]] | None = None) -> Any:
    """What the core gives for these buffers; the slots that it lacked go to `asked`."""
    from sim.run import core

    def ask(model: int, kind: int, place: int, *key: int) -> None:
        most_context = np.inf if kind == ROWS else 1.0
        given[5 + 7 * model + kind][place] = (*key, 1.0, most_context, *[1.0] * 8)
        if asked is not None:
            asked.append((kind, *key))

    return core.serve(ask, lambda *_: None, lambda _: None, None, given)


def test_structs_of_another_size_are_refused() -> None:
    """Settings and constants are read as they are."""
    given = buffers()
    assert served_by_hand(given) is not None
    for place in (0, 4):
        short = bytearray(bytes(given[place])[:-8])
        with pytest.raises(ValueError, match="want a struct of"):
            served_by_hand((*given[:place], short, *given[place + 1 :]))
    with pytest.raises(IndexError):
        served_by_hand(given[:-1])


@pytest.mark.parametrize("change", [{"prompt_tokens": 0}, {"output_tokens": 0}, {"arrival_s": float("nan")}])
def test_the_core_never_sees_requests_that_none_can_serve(change: dict[str, Any]) -> None:
    """It would read beyond its arrays, or wait for ever."""
    requests = [request(0), request(1)]
    serving = serve(None, "continuous", requests, 0, limits=EngineLimits(max_num_seqs=4, max_num_batched_tokens=16))
    draws = AcceptanceDraws(IidAcceptance(0.7), 0)
    assert len(compiled._table(Requests.of(requests), serving, draws)[0]) == 2
    for name, value in change.items():
        setattr(requests[1], name, value)
    with pytest.raises(AssertionError):
        compiled._table(Requests.of(requests), serving, draws)


def test_a_run_whose_costs_are_no_numbers_ends() -> None:
    given = buffers(2)
    given[1]["arrival_s"] = 0.0, 9.0
    given[0][-96:] = struct.pack("12d", *[np.nan] * 12)
    assert served_by_hand(given) is None


def test_an_error_of_a_cost_model_comes_through() -> None:
    from sim.run import core

    def ask(*key: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        core.serve(ask, None, None, None, buffers())


def test_a_step_of_more_than_a_million_tokens_has_a_slot_that_is_no_other_steps() -> None:
    num_requests, asked = 8300, list[tuple[int, ...]]()
    given = buffers(num_requests, output=3, draft_tokens=126)
    given[1]["arrival_s"][-1] = 1e-9
    served_by_hand(given, asked)
    rows = {second >> ROW_BITS: second % (1 << ROW_BITS) for kind, _, second in asked if kind == TOKENS}
    assert max(rows) == num_requests
    assert rows[num_requests - 1] == 127 * (num_requests - 1)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no such timer")
def test_ctrl_c_is_heard_within_a_few_steps_however_large() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    given, whole = buffers(5000, output=900), buffers(5000, output=900)
    served_by_hand(whole)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.03)
        with pytest.raises(KeyboardInterrupt):
            served_by_hand(given)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert given[1]["last_token_s"].max() < whole[1]["last_token_s"].max()


IN_CHILD = """
import pickle, struct, sys
from sim.run import core
given = tuple(map(bytearray, pickle.load(sys.stdin.buffer)))
def ask(model, kind, place, *key):
    struct.pack_into("12d", given[5 + 7 * model + kind], 96 * place, *key, *[1.0] * 10)
assert core.serve(ask, lambda *_: None, lambda _: None, lambda place, emitted: bytes(90 - emitted), given)
print(struct.unpack_from("6dq6i", given[1], len(given[1]) // 2)[-1] > 3)
"""


def test_a_request_that_is_preempted_again_and_again_stays_within_the_arrays_of_the_core() -> None:
    """It finds its memory again before any of it is taken. Python's debug allocator ends a process that has written
    behind an array."""
    given = pickle.dumps([bytes(each) for each in buffers(2, output=90, draft_tokens=12, num_blocks=60)])
    command, env = [sys.executable, "-c", IN_CHILD], os.environ | {"PYTHONMALLOC": "debug"}
    done = subprocess.run(command, env=env, input=given, capture_output=True, check=False)
    assert done.stdout.split() == [b"True"], done.stderr.decode()


def test_no_memory_is_kept_from_run_to_run() -> None:
    tracemalloc.start()
    try:
        for _ in range(50):
            served_by_hand(buffers())
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(500):
            served_by_hand(buffers())
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 20_000
