"""The linear form: passes along a line, summed by hand, eager and under CUDA graphs."""

from __future__ import annotations

import msgspec
import pytest

from sim.costs.compact_kernels import LinearPass
from sim.costs.engine_costs import load_engine, with_engine
from sim.costs.forms.build import build_costs
from sim.costs.profile import Profile
from sim.costs.profile_files import decode, encode, load
from sim.interface.work import Chunk, Kind, Model, Work

PDVERIFY = load("a100-pdverify/codellama-34b+tinyllama-1.1b")


def pair(*, target: LinearPass, draft: LinearPass, **host: object) -> Profile:
    kernels = msgspec.structs.replace(PDVERIFY.linear, target=target, draft=draft)
    return msgspec.structs.replace(
        PDVERIFY, kernels=kernels, host=msgspec.structs.replace(PDVERIFY.host, max_graph_tokens=0, **host)
    )


def verify(rows: int, row_tokens: int, context_tokens: int) -> Work:
    return Work(kind=Kind.VERIFY, rows=rows, row_tokens=row_tokens, context_tokens=context_tokens, head_rows=row_tokens)


def test_a_pass_is_its_line() -> None:
    """1 s + 0.1 s x 8 tokens + 0.01 s x 8 rows that sample + 0.001 s x (200 + 8) of KV."""
    line = LinearPass(pass_s=1.0, token_s=0.1, row_s=0.01, kv_token_s=0.001)
    costs = build_costs(pair(target=line, draft=line), cuda_graph=False)
    assert costs.cost(verify(2, 8, 200)).device_s == pytest.approx(1.0 + 0.8 + 0.08 + 0.208)
    chunk = Work(kind=Kind.PREFILL, chunks=(Chunk(30, 100),), head_rows=1)
    assert costs.cost(chunk).device_s == pytest.approx(1.0 + 3.0 + 0.01 + 0.13)


def test_rows_whose_passes_were_seen_take_that_and_prompts_beside_them_their_tokens() -> None:
    """2 rows of 8 tokens in 3 s; 30 tokens of a prompt beside them 3 s more; that prompt alone 1 + 3 s."""
    line = LinearPass(pass_s=1.0, token_s=0.1, by_rows=((1, 2.0), (2, 3.0)))
    costs = build_costs(pair(target=line, draft=line), cuda_graph=False)
    assert costs.cost(verify(2, 8, 200)).device_s == pytest.approx(3.0)
    both = Work(kind=Kind.STEP, rows=2, row_tokens=8, context_tokens=200, chunks=(Chunk(30, 0),), head_rows=3)
    assert costs.cost(both).device_s == pytest.approx(6.0)
    assert costs.cost(Work(kind=Kind.PREFILL, chunks=(Chunk(30, 0),), head_rows=1)).device_s == pytest.approx(4.0)


def test_a_draft_is_one_pass_after_the_other() -> None:
    """Four passes of 2 rows; KV grows by 2 tokens each: 22, 24, 26, 28."""
    line = LinearPass(pass_s=1.0, kv_token_s=0.01)
    costs = build_costs(pair(target=line, draft=line), cuda_graph=False)
    draft = Work(kind=Kind.DRAFT, model=Model.DRAFT, rows=2, row_tokens=2, context_tokens=20, draft_tokens=4)
    assert costs.cost(draft).device_s == pytest.approx(4.0 + 1.0)


def test_launches_are_counted_or_told() -> None:
    """48 layers of one kernel and six outside them; a pass may say its own number; a graph is launched at once."""
    told = pair(target=LinearPass(pass_s=1.0, launches=1000), draft=LinearPass(pass_s=1.0), eager_kernel_s=0.001)
    costs = build_costs(told, cuda_graph=False)
    one = verify(1, 1, 0)
    assert costs.cost(one).launch_s == pytest.approx(1.0)
    draft = Work(kind=Kind.DRAFT, model=Model.DRAFT, rows=1, row_tokens=1, draft_tokens=1)
    assert costs.cost(draft).launch_s == pytest.approx(0.028)
    graphed = msgspec.structs.replace(told, host=msgspec.structs.replace(told.host, max_graph_tokens=8))
    assert build_costs(graphed).cost(one).launch_s == 0.0


def test_another_form_is_refused_by_name_and_a_missing_draft_too() -> None:
    with pytest.raises(ValueError, match=r"has a line per model .*, and this needs constants"):
        _ = PDVERIFY.compact
    with pytest.raises(ValueError, match=r"has a line per model .*, and this needs points"):
        _ = PDVERIFY.table
    with pytest.raises(ValueError, match=r"this needs a line per model"):
        _ = load("cpu/tiny").linear
    raw = encode(PDVERIFY).decode().replace('"draft": {"pass_s"', '"draft": null, "x": {"pass_s"', 1)
    with pytest.raises(ValueError, match="unknown field `x`"):
        decode(raw.encode(), "mine")
    with pytest.raises(ValueError, match=r"lacks kernels.draft, times of its draft"):
        msgspec.structs.replace(PDVERIFY, kernels=msgspec.structs.replace(PDVERIFY.linear, draft=None))


def test_dispecs_launch_bound_pair_comes_back() -> None:
    """Eager: target 31.9 ms for 1 token and 32.0 for 5, draft 20.2; under CUDA graphs the draft is its 3 ms."""
    profile = load("rtx-3070-laptop/qwen2.5-7b-int4+qwen2.5-0.5b")
    draft = Work(kind=Kind.DRAFT, model=Model.DRAFT, rows=1, row_tokens=1, draft_tokens=1)
    eager, graphed = build_costs(profile, cuda_graph=False), build_costs(profile, cuda_graph="draft")
    for tokens in (1, 5):
        cost = eager.cost(verify(1, tokens, 100))
        assert max(cost.launch_s, cost.device_s) == pytest.approx(0.0319, rel=2e-3)
        assert graphed.cost(verify(1, tokens, 100)) == cost
    assert eager.cost(draft).launch_s == pytest.approx(0.0202, rel=2e-3)
    assert (graphed.cost(draft).launch_s, graphed.cost(draft).device_s) == (0.0, 0.003)


def test_where_decoding_alone_is_captured_a_step_with_prompts_takes_its_launches() -> None:
    """Each kernel 40 us of the host, whatever the prompt; rows are replayed. Not measured: as any eager kernel."""
    profile = load("h100-sxm/llama-3.1-8b")
    slow = msgspec.structs.replace(profile, host=msgspec.structs.replace(profile.host, prompt_kernel_s=4e-5))
    chunk = Work(kind=Kind.STEP, chunks=(Chunk(100, 0),), head_rows=1)
    decode, always, eager = (build_costs(slow, cuda_graph=graphs) for graphs in ("decode", True, False))
    assert decode.cost(chunk).launch_s == pytest.approx(decode.passes(chunk.model).num_kernels * 4e-5)
    assert always.cost(chunk).launch_s < eager.cost(chunk).launch_s < decode.cost(chunk).launch_s
    assert decode.cost(verify(4, 4, 100)) == always.cost(verify(4, 4, 100))
    assert build_costs(profile, cuda_graph="decode").cost(chunk).launch_s == eager.cost(chunk).launch_s


def test_an_engine_that_captures_no_prompts_launches_each_of_their_kernels() -> None:
    """Rows alone are replayed as ever."""
    profile = load("h100-sxm/llama-3.1-8b")
    chunk = Work(kind=Kind.STEP, chunks=(Chunk(100, 0),), head_rows=1)
    trtllm, sglang, vllm = (
        build_costs(with_engine(profile, load_engine(name, "h100-sxm")))
        for name in ("trtllm-1.1", "sglang-0.5", "vllm-0.19")
    )
    for costs, kernel_s in ((trtllm, 3.6e-5), (sglang, profile.host.eager_kernel_s)):
        assert costs.cost(chunk).launch_s == pytest.approx(costs.passes(chunk.model).num_kernels * kernel_s)
    assert vllm.cost(chunk).launch_s < sglang.cost(chunk).launch_s
    assert trtllm.cost(verify(4, 4, 100)).launch_s == vllm.cost(verify(4, 4, 100)).launch_s


def test_shipped_calls_of_report_002_add_up_to_its_rounds_and_prefills() -> None:
    """A round is four draft and two target calls, a prefill one call of each."""
    kernels = load("a100-pdverify/codellama-34b+tinyllama-1.1b").linear
    assert kernels.draft is not None
    target_s, draft_s = kernels.target.pass_s, kernels.draft.pass_s
    assert (4 * draft_s + 2 * target_s, draft_s + target_s) == pytest.approx((0.113, 0.0475))


def test_shipped_lines_of_report_003_give_its_tokens_per_second() -> None:
    target = load("rtx-3070-laptop/qwen2.5-1.5b").linear.target
    found = [rows / (target.pass_s + rows * target.row_s) for rows in (1, 6, 16, 32)]
    assert found == pytest.approx([68.0, 373.0, 858.0, 1426.0], rel=0.02)
