"""Requests' own counts of their drafts: what is read of each engine's, and the spread that they are drawn with."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from calibrate.cli.fit import source_command
from calibrate.served.request_counts import RequestCounts, acceptance_of, read_requests
from sim.acceptance.draws import AcceptanceDraws
from sim.acceptance.forms import parse_quoted
from sim.acceptance.spread import SpreadAcceptance

RATES = (0.74, 0.49, 0.37)


def counted(spread: float, seed: int, *, requests: int = 60, output_tokens: int = 150) -> list[RequestCounts]:
    """Requests drawn one by one: indexes far apart have shifts that are not spread evenly."""
    draws = AcceptanceDraws(SpreadAcceptance(RATES, spread), seed)
    indexes = np.random.default_rng(seed).choice(10**6, requests, replace=False).tolist()
    rounds = [draws.rounds(index, 1, output_tokens, len(RATES)) for index in indexes]
    return [
        RequestCounts(
            steps=len(each),
            accepted=int(each.sum()),
            drafted=3 * len(each),
            histogram=tuple(np.bincount(each, minlength=4).tolist()),
        )
        for each in rounds
    ]


def written(path: Path, lines: Sequence[object]) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def vllm(each: RequestCounts) -> dict[str, object]:
    told = {"num_spec_steps": each.steps, "num_accepted_draft_tokens": each.accepted, "num_draft_tokens": each.drafted}
    return {"choices": [], "metrics": {"speculative_decoding": told | {"acceptance_histogram": each.histogram}}}


def sglang(each: RequestCounts) -> dict[str, object]:
    names = ("spec_verify_ct", "spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_correct_drafts_histogram")
    values = (each.steps, each.accepted, each.drafted, each.histogram)
    return {"request_parameters": "{}", "id": "a", "completion_tokens": 9, **dict(zip(names, values, strict=True))}


def sglang_logged(each: RequestCounts) -> dict[str, object]:
    return {"event": "request.finished", "out": {"meta_info": sglang(each)}}


def aiperf(each: RequestCounts) -> dict[str, object]:
    names = ("spec_decode_steps", "spec_decode_accepted_draft_tokens", "spec_decode_draft_tokens")
    values = (each.steps, each.accepted, each.drafted)
    metrics = {name: {"value": value, "unit": "tokens"} for name, value in zip(names, values, strict=True)}
    return {"metadata": {"session_num": 1}, "metrics": metrics, "error": None}


@pytest.mark.parametrize("line_of", [vllm, sglang, sglang_logged, aiperf])
def test_a_requests_counts_are_the_same_whoever_wrote_them(line_of: object, tmp_path: Path) -> None:
    assert callable(line_of)
    given = counted(0.4, 0, requests=20)
    undrafted = {"metrics": {"request_latency": {"value": 1.0, "unit": "ms"}}}
    counts, others = read_requests(written(tmp_path / "r.jsonl", [undrafted, *map(line_of, given)]))
    assert others == 1
    assert [(each.steps, each.accepted, each.drafted) for each in counts] == [
        (each.steps, each.accepted, each.drafted) for each in given
    ]
    accepted, _ = acceptance_of(counts, "r.jsonl")
    assert accepted.draft_tokens == 3
    assert accepted.length == pytest.approx(1.0 + sum(e.accepted for e in given) / sum(e.steps for e in given))
    assert accepted.quote.startswith("length:" if line_of is aiperf else "vllm:")


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 0.4, 0.9, 1.5])
def test_the_interval_holds_the_spread_that_requests_were_drawn_with(spread: float) -> None:
    """At 90 %, in 12 draws each: 8 and more hold with a chance of 99.6 %."""
    found = []
    for seed in range(12):
        counts = counted(spread, seed)
        _, each = acceptance_of(counts, "")
        found.append(each)
    assert sum(each.low - 0.01 <= spread <= each.high + 0.01 for each in found) >= 8
    assert np.mean([each.value for each in found]) == pytest.approx(spread, abs=0.12)
    assert max(each.high - each.low for each in found) < 0.3 + 0.4 * spread


def test_the_quote_has_the_interval_and_its_draws_are_within_it(tmp_path: Path) -> None:
    path, out = written(tmp_path / "r.jsonl", list(map(vllm, counted(0.9, 3)))), tmp_path / "out.json"
    words = ["requests", str(path), "--profile", "h100-sxm/llama-3.1-8b+eagle3"]
    told = CliRunner().invoke(source_command, [*words, "--json", str(out)])
    assert told.exit_code == 0, told.output
    result = json.loads(out.read_text())
    low, high = result["spread_90"]
    quoted, rng = parse_quoted(result["acceptance"]), np.random.default_rng(0)
    spreads = [quoted.draw(rng).model(3).spread for _ in range(50)]  # type: ignore[attr-defined]
    assert low <= min(spreads) < low + 0.1 < high - 0.1 < max(spreads) <= high
    assert quoted.model(3).expected_length(3) == pytest.approx(result["acceptance_length"], rel=1e-3)
    said = CliRunner().invoke(source_command, words).output
    assert "60 requests accept 2.6" in said
    assert result["acceptance"] in said


COUNTED = {
    "num_spec_steps": 5,
    "num_accepted_draft_tokens": 8,
    "num_draft_tokens": 15,
    "acceptance_histogram": [1, 1, 2, 1],
}


@pytest.mark.parametrize(
    ("lines", "words", "message"),
    [
        ([{"metrics": {}}], [], "0 lines count a request's drafts and 1 do not"),
        ([{"spec_verify_ct": 5}] * 12, [], "line 1"),
        ([{"spec_verify_ct": 10**12, "spec_num_correct_drafts": 4}], [], "line 1: steps: expected `int` <= 1000000000"),
        ([{"spec_verify_ct": 5, "spec_num_correct_drafts": 4}] * 12, [], "Add --set num_speculative_tokens"),
        (
            [{"spec_verify_ct": 5, "spec_num_correct_drafts": 25}] * 12,
            ["--set", "num_speculative_tokens=3"],
            "length 6",
        ),
        ([{"spec_verify_ct": 5, "spec_num_correct_drafts": 4}] * 12, ["--set", "seed=1"], "requests tell acceptance"),
        ([COUNTED] * 12, ["--set", "num_speculative_tokens=2"], "drafts of 3 tokens, not num_speculative_tokens=2"),
        ([COUNTED] * 12, ["--set", "num_speculative_tokens=5"], "drafts of 3 tokens, not num_speculative_tokens=5"),
        ([COUNTED | {"num_accepted_draft_tokens": 16}] * 12, [], "line 1: 16 tokens accepted of 15 drafted"),
        ([COUNTED | {"acceptance_histogram": [4, 0, 1, 0]}] * 12, [], "length 1.40 by position and 2.60 by its counts"),
    ],
)
def test_requests_that_tell_nothing_are_refused_in_a_line(
    lines: list[object], words: list[str], message: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "r.jsonl", lines)
    told = CliRunner().invoke(source_command, ["requests", str(path), "--profile", "cpu/tiny", *words])
    assert isinstance(told.exception, ValueError)
    assert message in str(told.exception)


def test_an_interval_that_ends_where_the_search_does_has_no_upper_end_and_says_so() -> None:
    """Requests that accept everything or nothing differ by more than is tried; the drawn ones do not."""
    alike = counted(0.4, 0, requests=20)
    apart = [RequestCounts(steps=50, accepted=accepted, drafted=150) for accepted in (0, 150) * 10]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        acceptance_of(alike, "")
    with pytest.warns(UserWarning, match="do not tell how much at most"):
        acceptance_of(apart, "")
