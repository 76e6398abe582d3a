"""Twins of requests that an engine serves otherwise than they were asked: cut at a length, refused, or too many.

Issue 41, A1; and what follows from the served lengths: rates, tokens per second, money.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from sim.costs.engine_costs import engine_names
from tests.twins.drawn import ENGINE, FEW, PAIR, TINY, questions
from tests.twins.twin import Asked, Pair, answer, folder, or_refused, runs, twin, with_set, write_lines

BEYOND = st.integers(1, 400)
"""Tokens that are asked beyond what is served."""
ASKED_ALONE = ("scenario", "scenario_hash", "notes")
"""Parts of an answer that repeat the question."""


def cut(asked: Asked, beyond: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same served work under engine.max_model_len: asked for longer, and as long as it is."""
    served = with_set(
        {**asked, "engine": ENGINE}, engine__max_model_len=int(asked["input-len"]) + int(asked["output-len"])
    )
    return {**served, "output-len": int(asked["output-len"]) + beyond}, served


def figures(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key not in ASKED_ALONE}


RATES = st.sampled_from((1.0, 10.0, 30.0, 100.0))
"""Up to saturation and beyond it."""


@twin(questions(), BEYOND, RATES)
def test_answers_that_max_model_len_ends_are_compared_as_answers_of_that_length(
    asked: Asked, beyond: int, rate: float
) -> Pair:
    """A1."""
    return Pair(*(figures(answer("compare", each)) for each in cut({**asked, "request-rate": rate}, beyond)))


CAPACITY = {
    "goodput": ["ttft:2000", "tpot:400"],
    "max-num-seqs": 4,
    "draws": 0,
    "price": "2/gpu-h",
    "request-rate": None,
}


LENGTHS = st.lists(st.tuples(st.integers(4, 60), st.integers(2, 30)), min_size=3, max_size=8)


def recorded(pairs: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """A request every 50 ms."""
    return [
        {"arrival_s": 0.05 * place, "input_len": prompt, "output_len": output}
        for place, (prompt, output) in enumerate(pairs)
    ]


LONGEST = 64
ON_A_TRACE = {
    "request-rate": None, "num-prompts": None, "input-len": None, "output-len": None, "engine": ENGINE,
    "dataset-name": "jsonl", "set": {"engine.max_model_len": LONGEST},
}  # fmt: skip


@twin(questions(profiles=(TINY,), **ON_A_TRACE), LENGTHS, st.sampled_from((None, *engine_names())))
def test_a_trace_is_served_as_what_of_it_fits_into_the_context(
    asked: Asked, lengths: list[tuple[int, int]], engine: str | None
) -> Pair:
    """vLLM and TensorRT-LLM cut an answer. SGLang and an engine without a rule, such as the profile's own loop (None),
    reject its request."""
    ends = (engine or "").startswith(("vllm", "trtllm"))
    rows = [{**row, "input_len": row["input_len"] + 2} for row in recorded(lengths)]
    fit = [row for row in rows if row["input_len"] + (1 if ends else row["output_len"]) <= LONGEST]
    fit = [{**row, "output_len": min(row["output_len"], LONGEST - row["input_len"])} for row in fit]
    with folder() as place:
        found = []
        for name, each, limit in (("sent", rows, LONGEST), ("fit", fit, 4096)):
            path = write_lines(place / f"{name}.jsonl", each)
            own = {**asked, "dataset-path": path, "acceptance": "iid:0", "engine": engine}
            own["set"] = {"engine.max_model_len": limit}
            found.append(or_refused(lambda own=own: runs(own, "--verbose")[0]["e2els"]))  # type: ignore[misc]
    return Pair(*found)


@twin(questions(profiles=(TINY, PAIR), policy=FEW, **CAPACITY), BEYOND, rel=1e-9, share=0.05)
def test_capacity_times_the_tokens_of_a_served_request_is_its_throughput_and_that_the_price(
    asked: Asked, beyond: int
) -> Pair:
    """A1. Dollars per token times tokens per second are dollars per second."""
    longer, _ = cut(asked, beyond)
    (highest,) = answer("plan", longer)["highest"]
    if highest["load"] is None:
        return Pair(None, None)
    own = {name: value for name, value in longer.items() if name not in ("draws", "price", "goodput")}
    (run,) = runs({**own, "request-rate": highest["load"]})
    tokens_per_s = highest["output_tokens_per_s"]
    usd_per_h = highest["usd_per_million_tokens"] * tokens_per_s * 3600 / 1e6
    return Pair([tokens_per_s / highest["load"], usd_per_h], [run["total_output_tokens"] / run["completed"], 2.0])
