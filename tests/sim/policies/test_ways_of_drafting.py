"""What each way of drafting runs and costs, against sums made by hand."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from sim.costs.forms.build import build_costs
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.drafters.drafter import Drafter
from sim.drafters.registry import DRAFTERS, draft_model
from sim.interface.work import Chunk, Kind, Work

PAIR = load("h100-sxm/llama-3.1-8b+eagle3")
CHUNKS = (Chunk(100, 0),)


def with_drafter(name: str) -> Profile:
    return msgspec.structs.replace(PAIR, draft=draft_model(name, PAIR.target))


def sizes(method: Drafter, draft_tokens: int) -> tuple[int, ...]:
    """Of the draft after 4 rows verified 16 tokens: rows, row tokens, tokens of chunks, LM head, passes, projected."""
    work = method.draft(4, 16, 4000, CHUNKS, draft_tokens)
    chunk_tokens = sum(chunk.new_tokens for chunk in work.chunks)
    return (work.rows, work.row_tokens, chunk_tokens, work.head_rows, work.draft_tokens, work.projected_tokens)


@pytest.mark.parametrize(
    ("method", "draft_tokens", "expected"),
    [
        (DRAFTERS["draft_model"], 3, (4, 8, 100, 4, 3, 0)),
        (DRAFTERS["eagle3"], 3, (4, 16, 100, 4, 3, 0)),
        (DRAFTERS["mtp"], 3, (4, 16, 100, 4, 3, 0)),
        (DRAFTERS["parallel"], 3, (4, 16 + 4 * 2, 100, 4 * 3, 1, 0)),
        (DRAFTERS["dspark"], 3, (4, 4 * 3, 0, 4 * 3, 1, 16 + 100)),
        # A round without drafts brings the drafter's KV up to date.
        (DRAFTERS["eagle3"], 0, (4, 16, 100, 0, 0, 0)),
        (DRAFTERS["parallel"], 0, (4, 16, 100, 0, 0, 0)),
        (DRAFTERS["dspark"], 0, (0, 0, 0, 0, 0, 116)),
    ],
)
def test_what_a_draft_runs(method: Drafter, draft_tokens: int, expected: tuple[int, ...]) -> None:
    assert sizes(method, draft_tokens) == expected


def seconds(profile: Profile, method: Drafter, draft_tokens: int, verified: int = 1) -> float:
    return build_costs(profile).cost(method.draft(1, verified, 1000, (), draft_tokens)).device_s


def test_every_further_token_of_an_mtp_layer_is_one_pass_of_it() -> None:
    mtp = with_drafter("mtp")
    passes = build_costs(mtp)
    one = Work(kind=Kind.DRAFT, model="draft", rows=1, row_tokens=1, context_tokens=1001, head_rows=1, draft_tokens=1)
    further_s = seconds(mtp, DRAFTERS["mtp"], 2) - seconds(mtp, DRAFTERS["mtp"], 1)
    assert further_s == pytest.approx(passes.cost(one).device_s, rel=1e-6)


def test_a_parallel_drafter_takes_one_pass_whatever_the_draft_length() -> None:
    pair = load("h100-sxm/llama-3.1-8b+llama-3.2-1b")
    one_s, many_s = (seconds(pair, DRAFTERS["parallel"], draft_tokens) for draft_tokens in (1, 7))
    serial_s = seconds(pair, DRAFTERS["draft_model"], 7)
    assert many_s < 1.3 * one_s
    assert serial_s > 5 * many_s


def test_dspark_is_its_block_the_projection_of_context_and_a_serial_head() -> None:
    """From 3 to 7 slots only rows and slots grow: within one tile and one bucket, 4 x 40 us and the head's rows."""
    pair = with_drafter("dspark")
    costs = build_costs(pair, cuda_graph=False)
    assert pair.draft is not None
    passes = costs.passes(DRAFTERS["dspark"].draft(1, 4, 1000, (), 3).model)
    work = DRAFTERS["dspark"].draft(1, 4, 1000, (), 3)
    block = msgspec.structs.replace(work, projected_tokens=0)
    projected_s = costs.cost(work).device_s - costs.cost(block).device_s
    assert projected_s == pytest.approx(passes.fused_s(4) + passes.keys_s(4))
    pass_s = passes.pass_s(1, 3, 1000, (), 3) + passes.extra_s
    assert costs.cost(block).device_s == pytest.approx(pass_s + 3 * pair.draft.serial_slot_s)


def test_the_context_of_a_drafter_with_windows_ends_to_cost_more_at_its_window() -> None:
    pair = with_drafter("dspark")
    costs = build_costs(pair)

    def at(context: int) -> float:
        return costs.cost(DRAFTERS["dspark"].draft(8, 8, 8 * context, (), 3)).device_s

    assert at(1000) < at(2048) == at(9000)


WINDOW = """
from sim.drafters.drafter import Drafter

DRAFTER = Drafter(name="window", passes=lambda rows, verified, tokens: (verified, rows * tokens, 2), sglang="WINDOW")
"""
SERVE = """
import sys, sim.drafters
sim.drafters.__path__.append(sys.argv[1])
from sim.cli.main import run
from tests.sim.studies.server_flags import serving
serve = ["compare", "--profile", "h100-sxm/llama-3.1-8b+llama-3.2-1b", "--policy", "continuous", "--method", "window"]
sys.exit(run([*serve, "--num-prompts", "8", "--acceptance", "iid:0.7", "--draws", "2"]) or print(serving(*serve[1:])))
"""


def test_a_new_way_of_drafting_is_one_file(tmp_path: Path) -> None:
    (tmp_path / "window.py").write_text(WINDOW)
    done = subprocess.run([sys.executable, "-c", SERVE, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert '"method": "window"' in done.stdout


@pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=str)
def test_another_process_has_the_same_drafter(drafter: Drafter) -> None:
    assert pickle.loads(pickle.dumps(drafter)) is drafter
