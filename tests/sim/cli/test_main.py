"""The command line as a user meets it: results, determinism, bad input in one line, nothing half-written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sim.cli.main import run
from sim.draws import child_seed

PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"
SMALL = ["--num-prompts", "12", "--input-len", "64", "--output-len", "16", "--request-rate", "4"]


def compare(*flags: str) -> list[str]:
    return ["compare", *(() if "--profile" in flags else ("--profile", PAIR)), *SMALL, *flags]


def result_of(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert run(compare(*flags, "--json", "-")) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_compare_prints_only_json_and_repeats_bit_for_bit(capsys: pytest.CaptureFixture[str]) -> None:
    flags = compare("--policy", "pd", "--policy", "pdv", "--replications", "2", "--json", "-")
    outputs = []
    for _ in range(2):
        assert run(flags) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    result = json.loads(outputs[0])
    assert [(r["policy"], r["replication"]) for r in result["runs"]] == [("pd", 0), ("pd", 1), ("pdv", 0), ("pdv", 1)]
    assert [r["seed"] for r in result["runs"]] == 2 * [child_seed(0, 0), child_seed(0, 1)]
    pair = next(row for row in result["paired"] if row["metric"] == "mean_e2el_ms")
    assert (pair["a"], pair["b"]) == ("pdv", "pd")
    assert pair["ci95"][0] <= pair["difference"] <= pair["ci95"][1]


def test_the_help_has_a_line_for_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    lines = capsys.readouterr().out.partition("Commands:")[2].partition("Example:")[0].splitlines()
    named = {line.split()[0]: line.split()[1:] for line in lines if line.startswith("  ") and line[2:3].strip()}
    assert {"compare", "plan", "replay", "validate", "calibrate"} <= set(named)
    assert not [name for name, words in named.items() if not words]


def test_every_run_has_every_key_and_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    result = result_of(capsys, "--policy", "autoregressive", "--policy", "pd", "--output-len", "1")
    keys = [set(r) for r in result["runs"]]
    assert keys[0] == keys[1]
    assert result["runs"][0]["mean_tpot_ms"] is None
    assert {"request_throughput", "p99_itl_ms", "censored", "unstable", "rejected_token_share"} <= keys[0]


def test_flags_override_the_file_and_set_comes_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        f"profile: {PAIR}\npolicy: pd\nworkload: {{num_prompts: 3, input_len: 32, output_len: 4}}\nseed: 5\n"
    )
    assert run(["compare", str(path), "--num-prompts", "4", "--seed", "6", "--set", "seed=7", "--json", "-"]) == 0
    scenario = json.loads(capsys.readouterr().out)["scenario"]
    assert (scenario["workload"]["num_prompts"], scenario["seed"]) == (4, 7)
    assert scenario["workload"]["dataset_name"] == "fixed"


def test_a_table_is_printed_with_intervals_and_notes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(compare("--policy", "pd", "--policy", "unified", "--replications", "2")) == 0
    out = capsys.readouterr().out
    assert "against pd" in out
    assert "overlap of streams" in out
    assert "in 19 of 20 cases" in " ".join(out.split())


def test_results_hold_scenario_summary_tables_trace_and_pictures(tmp_path: Path) -> None:
    out = tmp_path / "results"
    assert run(compare("--policy", "pd", "--policy", "continuous", "--out", str(out), "--plots")) == 0
    assert sorted(path.name for path in out.iterdir()) == [
        "latency_cdf.png",
        "requests.parquet",
        "scenario.yaml",
        "summary.json",
        "timeline.png",
        "trace.json",
        "work.parquet",
    ]
    import pyarrow.parquet as pq

    requests = pq.read_table(out / "requests.parquet").to_pylist()
    assert len(requests) == 4 * 24
    assert all(row["arrival_s"] <= row["first_token_s"] <= row["last_token_s"] for row in requests)
    works = pq.read_table(out / "work.parquet").to_pylist()
    assert {row["kind"] for row in works if row["policy"] == "pd"} == {"prefill", "draft", "verify"}
    assert list(tmp_path.iterdir()) == [out]


BAD = {
    "unknown policy": (["--policy", "pvd"], "pdv"),
    "unknown profile": (["--policy", "pd", "--profile", "h100-sxm/llama-2-7b+tinylama-1.1b"], PAIR),
    "nan rate": (["--policy", "pd", "--request-rate", "nan"], "request_rate=nan"),
    "method of a lane": (["--policy", "pd", "--set", "speculation.method=ngram"], "continuous only"),
    "head that is none": (["--policy", "continuous", "--set", "speculation.method=eagle3"], "+eagle3"),
    "threshold below zero": (
        ["--policy", "pd", "--set", "engine.rules.long_prefill_token_threshold=-1"],
        "must be int from 0",
    ),
    "acceptance model": (["--policy", "pd", "--acceptance", "idd:0.5"], "iid"),
    "no draft for pdv": (["--policy", "pdv", "--num-speculative-tokens", "0"], "needs a draft"),
    "prompt beyond the context": (["--policy", "pd", "--input-len", "9000000"], "every request is rejected"),
    "unknown key": (["--policy", "pd", "--set", "engine.max_num_seq=3"], "engine.max_num_seqs"),
    "model without a gpu": (["meta-llama/Llama-3.1-8B"], "meta-llama/Llama-3.1-8B --gpu h200"),
    "gpu without a model": (["--gpu", "h200"], "--gpu h200 goes with MODEL"),
    "lengths beside a trace": (
        ["--policy", "pd", "--set", "workload.dataset_name=mooncake", "--set", "workload.dataset_path=absent.jsonl"],
        "input_len=64: the file of dataset_name='mooncake' says that",
    ),
    "pair needed": (
        ["--profile", "h100-sxm/llama-2-7b", "--num-speculative-tokens", "2", "--policy", "pd"],
        "draft model",
    ),
    "plots without out": (["--policy", "pd", "--plots"], "--out"),
    "unknown flag": (["--polcy", "pd"], "--policy"),
    "seed below 0": (["--policy", "pd", "--seed", "-1"], "seed=-1 must be at least 0"),
    "base sixty": (["--policy", "pd", "--set", "workload.request_rate=1:30"], "workload.request_rate"),
    "tag": (["--policy", "pd", "--set", "seed=!!int\t1"], "want plain values without tags"),
    "unwritable json": (["--policy", "pd", "--json", "/proc/result.json"], "/proc"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line_and_exit_code_2(
    case: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags, named = BAD[case]
    out = tmp_path / "out"
    arguments = compare(*flags) if "--plots" in flags else compare(*flags, "--out", str(out))
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("lanesim: ")
    assert captured.err.count("\n") == 1
    assert named in captured.err
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["comapre"]) == 2
    assert "'compare'" in capsys.readouterr().err


def test_several_values_of_a_flag_begin_with_a_sentence_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(compare("--policy", "continuous", "--num-speculative-tokens", "0,2")) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("num_speculative_tokens=2")


@pytest.mark.parametrize("place", ["sim.names:absent", "absent_package:command", "sim.names:unknown"])
def test_the_help_is_there_whatever_an_installed_command_turns_out_to_be(
    place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from importlib import metadata

    mine = metadata.EntryPoint("mine", place, "lanesim.commands")
    monkeypatch.setattr(metadata, "entry_points", lambda *, group: metadata.EntryPoints([mine]))
    assert run(["--help"]) == 0
    assert "\n  mine" in capsys.readouterr().out
