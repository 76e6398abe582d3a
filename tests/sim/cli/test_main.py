"""The command line as a user meets it: results, determinism, bad input in one line, nothing half-written."""

from __future__ import annotations

import json
import shlex
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


def test_results_hold_scenario_summary_tables_trace_and_pictures(tmp_path: Path) -> None:
    out = tmp_path / "results"
    assert run(compare("--policy", "pd", "--policy", "continuous", "--out", str(out), "--plots")) == 0
    names = "requests.parquet scenario.yaml summary.json timeline.png trace.json work.parquet"
    assert sorted(path.name for path in out.iterdir()) == names.split()
    import pyarrow.parquet as pq

    requests = pq.read_table(out / "requests.parquet").to_pylist()
    assert len(requests) == 4 * 24
    assert all(row["arrival_s"] <= row["first_token_s"] <= row["last_token_s"] for row in requests)
    works = pq.read_table(out / "work.parquet").to_pylist()
    assert {row["kind"] for row in works if row["policy"] == "pd"} == {"prefill", "draft", "verify"}
    assert list(tmp_path.iterdir()) == [out]


SHORT = f"compare --profile {PAIR} {' '.join(SMALL)}"
TINY, VARY = "compare --profile cpu/tiny --policy pd", "compare --profile h100-sxm/llama-3.1-8b --vary"
CONFIG = """--speculative-config '{"method": "draft_model", "model": "m", "num_speculative_tokens": 3}'"""
TWICE = "is given as well: leave one out"
REFUSED = {
    f"{SHORT} --policy pvd": "pdv",
    f"compare {' '.join(SMALL)} --policy pd --profile h100-sxm/llama-2-7b+tinylama-1.1b": PAIR,
    f"{SHORT} --policy pd --request-rate nan": "request_rate=nan",
    f"{SHORT} --policy pd --set speculation.method=ngram": "or --policy continuous",
    f"{SHORT} --policy continuous --set speculation.method=eagle3": "+eagle3",
    f"{SHORT} --policy pd --set engine.rules.long_prefill_token_threshold=-1": "must be int from 0",
    f"{SHORT} --policy pd --acceptance idd:0.5": "iid",
    f"{SHORT} --policy pdv --num-speculative-tokens 0": "needs a draft",
    f"{SHORT} --policy pd --input-len 9000000": "every request is rejected",
    f"{SHORT} --policy pd --set engine.max_num_seq=3": "engine.max_num_seqs",
    f"{SHORT} meta-llama/Llama-3.1-8B": "meta-llama/Llama-3.1-8B --gpu h200",
    f"{SHORT} --gpu h200": "--gpu h200 goes with MODEL",
    f"{SHORT} --policy pd --set workload.dataset_name=mooncake --set workload.dataset_path=absent.jsonl": (
        "input_len=64: the file of dataset"
    ),
    f"compare {' '.join(SMALL)} --profile h100-sxm/llama-2-7b --num-speculative-tokens 2 --policy pd": "draft model",
    f"{SHORT} --policy pd --plots": "--out",
    f"{SHORT} --polcy pd": "--policy",
    f"{SHORT} --policy pd --seed -1": "seed=-1 must be at least 0",
    f"{SHORT} --policy pd --set workload.request_rate=1:30": "workload.request_rate",
    f"{SHORT} --policy pd --set 'seed=!!int\t1'": "Give plain values without tags",
    f"{SHORT} --policy pd --json /proc/result.json": "/proc",
    "comapre": "'compare'",
    "profiles list 000": "no shipped profile of a GPU 000. GPUs: ",
    "plan --profile cpu/tiny --set num_speculative_tokens=0,2": "'0,2' is not a valid integer",
    f"tune --profile {PAIR} --lengths 0,500": "must be at most 126",
    f"validate http://h:1 --fit-only --profile {PAIR} --set server.levels=1,1000000": "at most 10000 requests at once",
    f"{TINY} --num-speculative-tokens 2,2": "has a value twice",
    f"{TINY} --num-speculative-tokens 0,2 --out somewhere": "lanesim sweep",
    f"{VARY} prefix_cache": "must be KEY=A,B, such as prefix_cache=on,off",
    f"{VARY} prefix_cache=on": "prefix_cache=on must be two or more different values",
    f"{VARY} prefix_cache=on,onn": "prefix_cache='onn' must be on or off",
    f"{VARY} speculation=off,eagel3": "Did you mean 'eagle3'?",
    f"{VARY} speculation=off,mtp": "has no such draft. Shipped pairs: h100-sxm/llama-3.1-8b+eagle3",
    f"{VARY} gpu=h100,b100": "GPU 'b100'",
    f"{VARY} context=1k,1.0001k": "1.0001k must be a whole number of tokens, such as 1500 or 1.5k",
    f"{VARY} max_num_seq=4,64": "unknown key 'max_num_seq'. Did you mean",
    f"{VARY} max_num_seqs=4,8 --set engine.max_num_seqs=16": TWICE,
    f"{VARY} context=1k,2k --input-len 500": TWICE,
    f"{VARY} request_rate=1,2 --request-rate 2,3": TWICE,
    f"{VARY} policy=pd,continuous --policy pd": TWICE,
    f"{VARY} max_num_seqs=4,8 --vary engine.max_num_seqs=16,32": TWICE,
    f"{VARY} goodput.ttft_ms=100,200 --goodput ttft:300": TWICE,
    f"{VARY} num_speculative_tokens=1,2 {CONFIG}": TWICE,
    "compare Qwen/Qwen3-8B --gpu h200 --serve 'vllm serve Qwen/Qwen3-32B'": "Qwen/Qwen3-8B and --serve's Qwen/",
    "compare --profile cpu/tiny --gpu h200": "--profile names its own GPU",
    "tune Qwen/Qwen3-8B --gpu h200 --profile cpu/tiny": "cpu/tiny and h200-sxm/qwen3-8b: give one profile here",
    "compare --serve 'ls -l' --gpu h200": "Give such as 'vllm serve",
    "tune Qwen/Qwen3-8B --gpu h200 --acceptance 2.6": "Add --draft eagle3",
    "compare /dev/zero": "'/dev/zero' is a device or a pipe",
    "compare a\0b.yaml": r"'a\x00b.yaml': no path or value holds a null",
    f"{TINY} --seed {2**63}": f"seed={2**63} must be",
    f"{TINY} --goodput ttft:5 itl:3": "unknown goodput metric 'itl'",
    f"{TINY} --set policy_options.poll_s=1e-320": "policy_options.poll_s=1e-320 must",
    f"{TINY} --json a\udcff": r"a\udcff': the name is not UTF-8 text",
    f"""{TINY} --speculative-config '{'{"a":' * 99}'""": "nested deeper than 64",
}
"""Command lines, and what the one line of the error names."""


@pytest.mark.parametrize("line", REFUSED, ids=ascii)
def test_bad_input_is_one_clear_line_and_exit_code_2(
    line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    has_folder = line.startswith("compare") and "--vary" not in line and not {"--plots", "--out"} & set(line.split())
    assert run([*shlex.split(line), *["--out", "out"] * has_folder]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err[:9], captured.err.count("\n")) == ("", "lanesim: ", 1)
    assert REFUSED[line] in captured.err
    assert list(tmp_path.iterdir()) == []


def test_several_values_of_a_flag_begin_with_a_sentence_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(compare("--policy", "continuous", "--num-speculative-tokens", "0,2")) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("num_speculative_tokens=2")


@pytest.mark.parametrize("place", ["sim.names:absent", "absent_package:command", "sim.names:unknown"])
def test_the_help_is_there_whatever_an_installed_command_turns_out_to_be(
    place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from importlib import metadata

    mine = metadata.EntryPoint("mine", place, "lanesim.commands")
    monkeypatch.setattr(metadata, "entry_points", lambda *, group: metadata.EntryPoints([mine]))
    assert run(["--help"]) == 0
    assert "\n  mine" in capsys.readouterr().out
