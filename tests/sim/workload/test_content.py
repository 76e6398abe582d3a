"""Content of prompts: ids by chains, blocks of other sizes, what files say of it, and what the generator makes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from sim.interface.request_columns import Requests
from sim.workload.content import read_prompts
from sim.workload.generate import Workload, build_requests
from sim.workload.served import Served
from sim.workload.sessions import Sessions, Sharing, requests_of
from sim.workload.traces import read_trace
from tests.sim.workload.conftest import Write


def lines(rows: list[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def row(prompt: int, at_s: float = 0.0, output: int = 5, **more: Any) -> dict[str, Any]:
    return {"arrival_s": at_s, "prompt_tokens": prompt, "output_tokens": output, **more}


def test_mooncakes_hashes_are_content_without_the_last_block_in_part(write: Write) -> None:
    rows = [
        {"timestamp": 0, "input_length": 1300, "output_length": 5, "hash_ids": [5, 6, 7]},
        {"timestamp": 1, "input_length": 1536, "output_length": 5, "hash_ids": [5, 6, 7]},
    ]
    trace = read_trace("mooncake", write(lines(rows), "t.jsonl"))
    assert (trace.contents, trace.content_tokens) == (((0, 1), (0, 1)), 512)


def test_a_trace_packed_with_gzip_is_the_same(write: Write, tmp_path: Path) -> None:
    path = write(lines([row(40, prefix_blocks=[4, 5]), row(40, prefix_blocks=[4, 6])]), "t.jsonl")
    packed = tmp_path / "t.jsonl.gz"
    packed.write_bytes(gzip.compress(Path(path).read_bytes()))
    assert read_trace("jsonl", str(packed)).contents == read_trace("jsonl", path).contents == ((0,), (0,))


def test_tokens_are_cut_into_the_engines_blocks(write: Write) -> None:
    tokens = list(range(40))
    path = write(lines([row(40, input_tok_ids=tokens), row(39, input_tok_ids=tokens[:20] + tokens[:19])]), "t.jsonl")
    assert read_trace("jsonl", path).contents == ((0,), (0,))
    assert read_trace("jsonl", path, block_tokens=10).contents == ((0, 1), (0, 1))
    assert read_trace("jsonl", path, block_tokens=21).contents == ((), ())


def test_a_csv_column_lists_blocks_between_blanks(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('arrival_s,prompt_tokens,output_tokens,mine\n0,70,5,3 4\n1,70,5,"[3, 9]"\n')
    trace = read_trace("csv", f"{path}#blocks=mine,block_tokens=32")
    assert (trace.contents, trace.content_tokens) == (((0,), (0,)), 32)


def test_a_sessions_next_prompt_goes_on_from_the_answer(write: Write) -> None:
    """20 + 14 tokens are two blocks, and the next prompt of 40 begins with them."""
    path = write(
        lines([row(20, output=14, chat="a"), row(33, 1.0, chat="b"), row(40, 2.0, output=9, chat="a")]), "t.jsonl"
    )
    assert read_trace("jsonl", path + "#session=chat").contents == ((0, 1), (), (0, 1))


def test_prompts_beside_a_run_say_their_content_line_by_line(write: Write) -> None:
    blocks = write(
        lines([{"input_toks": 40, "prefix_blocks": [9, 8]}, {"input_toks": 33, "prefix_blocks": [9, 1]}]), "t.jsonl"
    )
    assert read_prompts(Path(blocks), 16) == [((0,), 40), ((0,), 33)]
    tokens = write(lines([{"input_tok_ids": [1] * 5}, {"input_tok_ids": [1] * 9}]), "p.jsonl")
    assert read_prompts(Path(tokens), 4) == [((0,), 5), ((0,), 9)]


def generated(**workload: Any) -> list[Any]:
    told = {"dataset_name": "fixed", "input_len": 20, "output_len": 12, "num_prompts": 6, "request_rate": 1.0}
    sharing = Sharing(**{key: workload.pop(key) for key in Sharing.__struct_fields__ if key in workload})
    return build_requests(Workload(**(told | workload), sharing=sharing), 3)


def test_system_prompts_come_before_every_prompt() -> None:
    requests = generated(prefix_len=40, num_prefixes=2, num_prompts=40)
    assert {request.prompt_tokens for request in requests} == {60}
    assert {len(request.content) for request in requests} == {2}
    assert len({request.content for request in requests}) == 2


def test_a_turn_has_all_that_was_said_before_in_its_prompt() -> None:
    requests = generated(num_turns=3, turn_gap_s=1e-4, num_prompts=3)
    assert [r.prompt_tokens for r in requests] == [20, 52, 84]
    assert [len(r.content) for r in requests] == [2, 4, 6]
    assert requests[2].content[:2] == requests[0].content
    assert np.diff([r.arrival_s for r in requests]) == pytest.approx([1e-4, 1e-4])


def test_forks_ask_the_same_at_once_and_have_answers_of_their_own() -> None:
    requests = generated(dataset_name="azure-conv", input_len=None, output_len=None, num_forks=3)
    assert requests[0].arrival_s == requests[2].arrival_s < requests[3].arrival_s
    assert requests[0].content == requests[2].content != requests[3].content
    assert len(requests[0].content) == requests[0].prompt_tokens // 16
    assert len({request.output_tokens for request in requests[:3]}) > 1


def test_a_longer_run_begins_with_the_same_requests() -> None:
    more = {"dataset_name": "azure-conv", "input_len": None, "output_len": None, "prefix_len": 30, "num_turns": 3}
    few, many = (generated(num_prompts=count, turn_gap_s=2.0, num_forks=2, **more) for count in (7, 50))
    for ours, theirs in zip(few, many, strict=False):
        assert (ours.arrival_s, ours.prompt_tokens, ours.output_tokens) == (
            theirs.arrival_s,
            theirs.prompt_tokens,
            theirs.output_tokens,
        )
        assert [i % (1 << 32) for i in ours.content] == [i % (1 << 32) for i in theirs.content]


def test_requests_come_at_the_rate_that_was_asked_for() -> None:
    requests = generated(num_turns=4, num_forks=2, turn_gap_s=1.0, request_rate=8.0, num_prompts=4000)
    assert 4000 / requests[-1].arrival_s == pytest.approx(8.0, rel=0.1)


@pytest.mark.parametrize("num_prompts", [50, 1000])
def test_a_run_of_sessions_has_the_rate_and_the_lengths_of_a_long_one_from_its_start(num_prompts: int) -> None:
    """Sessions of 90 s: a run of 50 requests at 4 a second ends long before the second turn of those that begin."""
    asked = Workload(dataset_name="fixed", input_len=20, output_len=12, num_prompts=num_prompts, request_rate=4.0)
    asked = msgspec.structs.replace(asked, sharing=Sharing(num_turns=4, turn_gap_s=30.0))
    runs = [build_requests(asked, seed) for seed in range(30)]
    assert np.mean([num_prompts / run[-1].arrival_s for run in runs]) == pytest.approx(4.0, rel=0.1)
    assert np.mean([r.prompt_tokens for run in runs for r in run]) == pytest.approx(20 + 1.5 * 32, rel=0.03)


@pytest.mark.parametrize("max_concurrency", [8, None])
def test_requests_without_a_rate_are_of_all_turns_each_behind_its_last_by_as_many_as_there_are_clients(
    max_concurrency: int | None,
) -> None:
    requests = generated(num_turns=4, request_rate=float("inf"), num_prompts=600, max_concurrency=max_concurrency)
    assert {r.arrival_s for r in requests} == {0.0}
    assert np.mean([r.prompt_tokens for r in requests]) == pytest.approx(20 + 1.5 * 32, rel=0.05)
    places: dict[int, list[int]] = {}
    for place, request in enumerate(requests):
        places.setdefault(request.content[0], []).append(place)
    behind = [gap for each in places.values() for gap in np.diff(each)]
    if max_concurrency is None:
        assert len(behind) < 0.6 * 600
    else:
        assert np.mean(behind) == pytest.approx(8, rel=0.1)


def test_mean_lengths_count_the_conversation_so_far() -> None:
    sharing = Sharing(prefix_len=100, num_turns=2, turn_gap_s=0.0)
    told = Workload(dataset_name="fixed", input_len=20, output_len=12, sharing=sharing)
    assert Served(told).mean_tokens(0)[:2] == (100 + 20 + 32 / 2, 12.0)


BLOCK = 16


def arrivals(num_turns: int, num_forks: int) -> Requests:
    """One session after a system prompt of 32 tokens: every turn says 48 tokens and is answered with 64."""
    answered = np.full((1, num_turns, num_forks), 64)
    sessions = Sessions(np.zeros(1), np.zeros(1, int), np.full((1, num_turns), 48), answered)
    sharing = Sharing(prefix_len=32, num_turns=num_turns, num_forks=num_forks)
    return requests_of(sessions, sharing, num_turns * num_forks, BLOCK)


def test_a_session_goes_on_from_its_first_fork_alone() -> None:
    """5 blocks of the first prompt; with 4 of the first answer and 3 of what is said next it is the second prompt."""
    first, second, *later = arrivals(2, 2)
    assert [each.prompt_tokens for each in later] == [32 + 48 + 64 + 48] * 2
    assert len(first.content) == 5 + 4
    assert len(second.content) == 5
    assert set(first.content) & set(second.content) == set(second.content)
    assert all(each.content[: len(first.content)] == first.content for each in later)
