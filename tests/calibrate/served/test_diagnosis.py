"""Faults that are planted in simulated servers, and pairs of real ones, are diagnosed."""

from __future__ import annotations

import csv
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from calibrate.cli.diagnose import diagnose_command
from calibrate.served.diagnosis import Arm, Diagnosis, Pair, diagnose
from calibrate.served.judge import LoadSetup
from calibrate.served.load import Accepted, ServedLoad
from sim.costs.profile_files import load
from tests.properties import some

PROFILE = "h100-sxm/llama-3.1-8b+eagle3"
NOISE = (1.02, 0.98)
"""Of the server without and the one with drafts."""
REAL = Path(__file__).parents[3] / "docs" / "validation" / "diagnosed-pairs.csv"


def pair_of(length: float | None, k: int = 3, *, profile: str = PROFILE, engine: Any = None, **fields: Any) -> Pair:
    """Two servers as somebody describes them; acceptance `length` None: the results do not say it."""
    base = {
        "concurrency": 8.0,
        "input_len": 512.0,
        "output_len": 256.0,
        "num_prompts": 64,
        "num_requests": 64,
        **fields,
    }
    setup, costs = LoadSetup(engine=engine or {}, speculation={"method": "eagle3"}), load(profile)
    counted = None if length is None else Accepted(drafts=1.0, draft_tokens=k, rates=(), mean_length=length)
    drafting = {"num_speculative_tokens": k, "acceptance": f"length:{length or 2.0}@{k}", "accepted": counted}
    return Pair(Arm(ServedLoad(**base), setup, costs), Arm(ServedLoad(**base, **drafting), setup, costs))


def diagnosed(told: Pair, real: Pair | None = None) -> Diagnosis:
    """Of what `real` does, described as `told`."""
    arms = []
    for arm, as_told, noise in zip(real or told, told, NOISE, strict=True):
        values = arm.values()
        measured = {name: noise * values[name] for name in ("ttft_ms", "tpot_ms", "output_throughput")}
        arms.append(as_told.changed(measured=measured))
    return diagnose(Pair(*arms))


HEALTHY = pair_of(2.6)
BUSY = pair_of(2.6, concurrency=64.0, num_prompts=256, num_requests=256)
PLANTED = {
    "steps are launched without CUDA graphs": (HEALTHY, HEALTHY.both(partial(Arm.graphs, most_tokens=0))),
    "steps are larger than the largest captured CUDA graph": (BUSY, BUSY.both(partial(Arm.graphs, most_tokens=64))),
    "acceptance is low for these prompts": (pair_of(1.35), None),
    "drafts are too long for this load": (pair_of(2.9, 5, concurrency=256.0, input_len=200.0, num_prompts=1024), None),
    "max_num_seqs is too small": (BUSY, BUSY.one(partial(Arm.changed, max_num_seqs=16))),
    "KV memory is short": (
        pair_of(2.6, engine={"num_gpu_blocks": 3000}, concurrency=64.0, input_len=2000.0, output_len=500.0),
        None,
    ),
    "prompts interrupt decoding": (pair_of(2.6, concurrency=32.0, input_len=8000.0, output_len=100.0), None),
    "the host is the limit": (HEALTHY, HEALTHY.both(partial(Arm.host, step_s=0.02))),
    "requests wait in a queue": (
        pair_of(2.6, concurrency=0.0, request_rate=40.0, input_len=1000.0, num_prompts=400),
        None,
    ),
    "answers with drafts end early": (pair_of(2.6).one(partial(Arm.changed, output_len=100.0)), None),
    "all requests are sent at once": (pair_of(2.6, is_burst=True, num_requests=400, num_prompts=400), None),
}


@pytest.mark.parametrize("cause", PLANTED)
def test_a_planted_fault_is_named(cause: str) -> None:
    found = diagnosed(*PLANTED[cause])
    assert cause in [each.cause for each in found.likely]


def test_acceptance_that_the_results_do_not_say_is_found_low() -> None:
    told = pair_of(None)
    found = diagnosed(told, told.one(partial(Arm.changed, acceptance="length:1.2@3")))
    assert some(found.cause).cause == "acceptance is low for these prompts"


@pytest.mark.parametrize(
    ("length", "fields"),
    [(2.6, {}), (2.8, {"concurrency": 16.0, "output_len": 400.0}), (2.5, {"concurrency": 2.0, "input_len": 100.0})],
)
def test_nothing_is_wrong_with_a_healthy_pair(length: float, fields: dict[str, float]) -> None:
    found = diagnosed(pair_of(length, **fields))
    assert found.is_expected
    assert found.cause is None


def test_a_server_that_is_faster_than_expected_is_not_wrong() -> None:
    quick = {"ttft_ms": 1.0, "tpot_ms": 1.0, "output_throughput": 9e3}
    found = diagnose(HEALTHY.both(partial(Arm.changed, measured=quick)), (True, True))
    assert {value.metric for value in found.values if not value.is_better} == {"speed-up"}


def test_the_command_says_what_is_normal(tmp_path: Path) -> None:
    rows = {"without": (1164.0, 6.6, None), "with": (1210.0, 6.4, 2.6)}
    for name, (tokens_per_s, tpot_ms, length) in rows.items():
        result = {
            "completed": 200, "total_input_tokens": 102400, "total_output_tokens": 51200, "max_concurrency": 8,
            "output_throughput": tokens_per_s, "mean_ttft_ms": 40.0, "mean_tpot_ms": tpot_ms,
            "spec_decode_acceptance_length": length,
        }  # fmt: skip
        (tmp_path / f"{name}.json").write_text(json.dumps(result))
    files = [str(tmp_path / f"{name}.json") for name in rows]
    flags = ["--profile", PROFILE, "--set", "num_speculative_tokens=3", "--json", "-"]
    found = json.loads(CliRunner().invoke(diagnose_command, [*files, *flags], catch_exceptions=False).stdout)
    assert found["speedup"] == pytest.approx(1210 / 1164)
    assert not found["is_expected"]
    assert found["likely"][0] == "steps are launched without CUDA graphs"
    assert (found["profile"]["name"], found["scenario"]["seed"]) == (PROFILE, 0)
    lengths = [found[server]["speculation"]["num_speculative_tokens"] for server in ("without", "scenario")]
    assert lengths == [0, 3]


@pytest.mark.parametrize("missing", ["without.json", "without"])
def test_a_missing_file_is_named_and_the_model_is_not(missing: str) -> None:
    with pytest.raises(ValueError, match=rf"^'{missing}' is no file. Give"):
        CliRunner().invoke(diagnose_command, [missing, "Qwen/Qwen3-8B", "--gpu", "h100"], catch_exceptions=False)


def test_a_short_closed_loop_is_simulated_as_short() -> None:
    """16 at once, prompts of 2,000 tokens: those of the first wave wait for each other, later ones hardly."""
    given: dict[str, Any] = {"concurrency": 16.0, "input_len": 2000.0, "num_prompts": None}
    whole, short = (pair_of(2.6, num_requests=count, **given).drafting.values()["ttft_ms"] for count in (160, 16))
    assert short > 1.5 * whole


def real_pair(row: dict[str, str]) -> Diagnosis:
    """Of a row, where only tokens per second were told; an arm without them was not measured."""
    setup, costs = LoadSetup(engine={"name": row["engine"]}), load(row["profile"])
    lengths = {name: float(row[name]) for name in ("concurrency", "input_len", "output_len")}
    base: dict[str, Any] = lengths | {"num_prompts": 8, "num_requests": 8}
    without = ServedLoad(**base, measured={"output_throughput": float(row["without_tok_s"])})
    if not row["with_tok_s"]:
        return diagnose(Pair(Arm(without, setup, costs), Arm(without, setup, costs)), (True, False))
    k, length = int(row["num_speculative_tokens"]), float(row["acceptance_length"])
    drafting = ServedLoad(
        **base,
        measured={"output_throughput": float(row["with_tok_s"])},
        num_speculative_tokens=k,
        acceptance=f"length:{length}@{k}",
        accepted=Accepted(drafts=1.0, draft_tokens=k, rates=(), mean_length=length),
    )
    return diagnose(Pair(Arm(without, setup, costs), Arm(drafting, setup, costs)))


@pytest.mark.parametrize("row", list(csv.DictReader(REAL.open())), ids=lambda row: row["source"])
def test_real_pairs_have_the_answers_of_the_record(row: dict[str, str]) -> None:
    found = real_pair(row)
    assert ("; ".join(each.cause for each in found.likely) or "nothing") == row["answer"]
