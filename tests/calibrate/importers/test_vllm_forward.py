"""A known law comes back from the results that `vllm bench forward` writes for our cases."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from calibrate.cli.imports import cases_command, import_command
from calibrate.fit.point_works import TimedPass, work_of
from sim.costs.forms.build import build_costs
from sim.costs.profile_files import load
from tests.properties import assert_refused

PAIR = "h100-sxm/llama-3.1-8b+eagle3"
WORDS = ["llama-3.1-8b", "--gpu", "h100-sxm", "--draft", "eagle3"]
REQUEST = re.compile(r"(?:(\d+)\*)?(\d+)(?:@(\d+))?(c)?(?::(\d+))?")
"""vllm/benchmarks/forward/shapes.py."""


def requests_of(text: str) -> list[dict[str, Any]]:
    """As vLLM 0.33 reads a case."""
    found = []
    for item in text.split(","):
        match = REQUEST.fullmatch(item)
        assert match is not None, text
        count, query, kv, chunked, drafts = match.groups()
        request = {"query_len": int(query), "kv_len": int(kv or query), "num_draft_tokens": int(drafts or 0)}
        found += [request | {"chunked": bool(chunked)}] * int(count or 1)
    return found


def result_of(case: str, seconds: float, scope: str) -> dict[str, Any]:
    """As vLLM 0.33 writes a case (vllm/benchmarks/forward/main.py)."""
    name, _, batch = case.partition("=")
    latency = {"median": seconds * 1e6, "sample_spread_pct": 0.1, "count": 100}
    return {
        "case": name,
        "requests": requests_of(batch),
        "median_us": seconds * 1e6,
        "ranks": [{"timing_scope": scope, "latency_us": latency, "num_tokens": 1}],
    }


def law(name: str) -> Callable[[list[dict[str, Any]], int], float]:
    """Seconds of a batch of the target, and of a draft of so many tokens after it."""
    costs = build_costs(load(name))

    def seconds(requests: list[dict[str, Any]], length: int) -> float:
        first, rows = requests[0], len(requests)
        prefix = first["kv_len"] - first["query_len"]
        is_decode = prefix > 0 and first["query_len"] == first["num_draft_tokens"] + 1
        kind: Any = "prefill" if not is_decode else "verify" if first["num_draft_tokens"] else "decode"
        timed = TimedPass(kind, "target", rows, first["query_len"], prefix, "graphed")
        drafted = TimedPass("draft", "draft", rows, length, prefix, "graphed")
        if kind == "prefill":
            drafted = timed._replace(model="draft")
        return costs.cost(work_of(timed)).device_s + (costs.cost(work_of(drafted)).device_s if length else 0.0)

    return seconds


def test_a_law_comes_back_from_the_cases_that_are_printed(tmp_path: Path) -> None:
    printed = CliRunner().invoke(cases_command, WORDS, catch_exceptions=False).stdout
    seconds, files = law(PAIR), []
    for line in printed.replace("\\\n", "").splitlines()[:-1]:
        length = int(found[1]) if (found := re.search(r"draft(\d)\.json", line)) else 0
        scope = "target_and_drafter" if length else "target_only"
        cases = [case for case in re.findall(r"--case (\S+)", line) if not case.startswith("mixed")]
        results = [result_of(case, seconds(requests_of(case.partition("=")[2]), length), scope) for case in cases]
        files.append(tmp_path / f"{length}.json")
        files[-1].write_text(json.dumps(results))
    out = tmp_path / "p.json"
    words = ["vllm-forward", *map(str, files), "--gpu", "h100-sxm", "--target", "llama-3.1-8b", "--draft", "eagle3"]
    CliRunner().invoke(import_command, [*words, "--out", str(out)], catch_exceptions=False)
    fitted = load(str(out))
    assert fitted.draft == load(PAIR).draft
    errors = {kind: error.mean_error_pct for kind, error in fitted.errors.items()}
    assert {kind for kind, error in errors.items() if error is not None and error < 1.5} == {
        "prefill", "decode", "draft", "verify", "draft_prefill",
    }  # fmt: skip


DECODE = "decode-2x1-99=2*1@100"


@pytest.mark.parametrize(
    ("results", "names"),
    [
        ([], "no case"),
        ([result_of("x=2*1@100,1*1@200", 1.0, "target_only")], "mixes"),
        ([result_of(DECODE, 1.0, "target_and_drafter")], "draft length"),
        ([result_of(f"draft3-{DECODE}", 1.0, "target_and_drafter")], "without the drafter"),
        (
            [result_of(f"draft3-{DECODE}", s, k) for s, k in ((2.0, "target_only"), (1.0, "target_and_drafter"))],
            "faster",
        ),
        ([result_of(DECODE, 1.0, "target_only") | {"median_us": -1.0}], "median_us"),
        ([result_of(DECODE, 1.0, "target_only") | {"ranks": []}], "ranks"),
    ],
)
def test_results_that_are_not_sound_are_refused(tmp_path: Path, results: list[dict[str, Any]], names: str) -> None:
    from calibrate.importers.vllm_forward import points_of

    path = tmp_path / "r.json"
    path.write_text(json.dumps(results))
    assert_refused(lambda: points_of([path]), names)
