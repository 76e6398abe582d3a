"""What servers say of themselves: looks at metrics, logs and results as levels of load; what is missing is said."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from calibrate.cli.check_files import check_file
from calibrate.cli.fit import source_command
from calibrate.cli.validate_file import file_command
from calibrate.served.fit import fit_served
from calibrate.served.judge import LoadSetup, scenario_of
from calibrate.served.load import Accepted, mean_load, middling, pooled
from calibrate.served.metrics import Growth, parse, served_between
from calibrate.served.readers import ServerLooks, in_words, levels, loads_of, read_bench, read_windows
from sim.cli.main import run
from sim.costs.profile_files import load as profile
from tests.properties import assert_refused, some

LABELS = 'engine="0",model_name="m"'


def look(requests: int, steps: int, *, drafts: int = 0, accepted: tuple[int, ...] = ()) -> str:
    """`/metrics` of vLLM after `requests` of 100 prompt and 41 output tokens: TTFT 50 ms, TPOT 10 ms."""
    histograms = {
        "time_to_first_token_seconds": (requests, 0.05 * requests),
        "request_time_per_output_token_seconds": (requests, 0.01 * requests),
        "e2e_request_latency_seconds": (requests, 0.45 * requests),
        "request_prompt_tokens": (requests, 100 * requests),
        "request_generation_tokens": (requests, 41 * requests),
        "iteration_tokens_total": (steps, 141 * requests),
    }
    lines = ["# HELP vllm:num_requests_running Number of requests.", "# TYPE vllm:num_requests_running gauge"]
    lines.append(f"vllm:num_requests_running{{{LABELS}}} 3.0")
    for name, (count, total) in histograms.items():
        lines += [f"# TYPE vllm:{name} histogram", f'vllm:{name}_bucket{{{LABELS},le="+Inf"}} {count}']
        lines += [f"vllm:{name}_count{{{LABELS}}} {count}", f"vllm:{name}_sum{{{LABELS}}} {total}"]
    counters = {"generation_tokens": 41 * requests, "prompt_tokens": 100 * requests}
    if drafts:
        counters |= {"spec_decode_num_drafts": drafts, "spec_decode_num_draft_tokens": drafts * len(accepted)}
    for name, value in counters.items():
        lines += [f"# TYPE vllm:{name} counter", f"vllm:{name}_total{{{LABELS}}} {value}"]
    if drafts:
        lines.append("# TYPE vllm:spec_decode_num_accepted_tokens_per_pos counter")
        for place, count in enumerate(accepted):
            name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            lines.append(f'{name}{{{LABELS},position="{place}"}} {count}')
    return "\n".join([*lines, "# HELP python_gc gc", "# TYPE python_gc counter", "python_gc_total 3.0"]) + "\n"


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_two_looks_tell_means_of_what_was_served_between_them() -> None:
    """30 more requests of 40 tokens after the first, in 150 more steps: 8 at once."""
    found = served_between(parse(look(10, 77), "a"), parse(look(40, 227), "b"), source="b", duration_s=None)
    assert (found.num_requests, found.concurrency) == (30, pytest.approx(30 * 40 / 150))
    assert found.lengths == (pytest.approx(100.0), pytest.approx(41.0))
    assert found.measured == {"ttft_ms": pytest.approx(50.0), "tpot_ms": pytest.approx(10.0)}
    assert found.accepted is None


def test_drafts_between_two_looks_tell_their_rates_and_how_many_tokens_a_step_writes(tmp_path: Path) -> None:
    """600 more drafts of 2 tokens, 420 and 180 of them accepted so far: 2 tokens per verify."""
    before = look(10, 50, drafts=100, accepted=(90, 10))
    after = look(40, 200, drafts=700, accepted=(510, 190))
    found = served_between(parse(before, "a"), parse(after, "b"), source="b", duration_s=10.0)
    assert found.accepted == Accepted(drafts=600, draft_tokens=2, rates=(0.7, 0.3))
    assert (some(found.accepted).length, some(found.accepted).quote) == (2.0, "vllm:0.7,0.3")
    assert found.concurrency == pytest.approx(30 * 40 / (150 * 2.0))
    assert found.measured["output_throughput"] == pytest.approx(30 * 41 / 10.0)


def test_steps_without_a_draft_count_as_ones_that_accept_nothing() -> None:
    """1,200 tokens behind the first ones: 300 of drafts, so 900 steps of a request, of which 300 had a draft."""
    after = look(30, 150, drafts=300, accepted=(210, 90))
    found = served_between({}, parse(after, "b"), source="b", duration_s=None)
    assert found.accepted == Accepted(drafts=300, draft_tokens=2, rates=(pytest.approx(0.7 / 3), pytest.approx(0.1)))
    assert found.concurrency == pytest.approx(900 / 150)


def test_a_server_that_counts_no_steps_is_told_by_littles_law() -> None:
    before, after = (
        {sample: value for sample, value in parse(text, "x").items() if "iteration" not in sample[0]}
        for text in (look(10, 1), look(40, 1))
    )
    for flag in ("metrics BEFORE AFTER", "--over-s"):
        with pytest.raises(ValueError, match=flag):
            served_between(before, after, source="b", duration_s=None, flag=flag)
    assert served_between(before, after, source="b", duration_s=5.0).concurrency == pytest.approx(30 * 0.45 / 5.0)


def load_line(running: int, tokens_per_s: float, waiting: int = 0) -> str:
    return (
        "INFO 07-01 12:00:00 [loggers.py:118] Engine 000: Avg prompt throughput: 812.3 tokens/s, Avg generation "
        f"throughput: {tokens_per_s} tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: "
        "3.2%, Prefix cache hit rate: 0.0%"
    )


def spec_line(rates: str, drafted: int) -> str:
    return (
        "INFO 07-01 12:00:00 [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 2.00, Accepted throughput: "
        f"41.20 tokens/s, Drafted throughput: 60.58 tokens/s, Accepted: 100 tokens, Drafted: {drafted} tokens, "
        f"Per-position acceptance rate: {rates}, Avg Draft acceptance rate: 50.0%"
    )


def sglang_look(requests: int, accept_length: float) -> str:
    """`/metrics` of SGLang after `requests` of 512 and 128 tokens: E2EL 1 s, TTFT 0.2 s; gaps sampled by token."""
    told = {
        "e2e_request_latency_seconds": (requests, 1.0 * requests),
        "time_to_first_token_seconds": (requests, 0.2 * requests),
        "inter_token_latency_seconds": (127 * requests, 0.8 * requests),
    }
    lines = [
        f"sglang:spec_accept_length {accept_length}",
        f"sglang:prompt_tokens_total {512 * requests}",
        f"sglang:generation_tokens_total {128 * requests}",
    ]
    for name, (count, total) in told.items():
        lines += [f"sglang:{name}_count {count}", f"sglang:{name}_sum {total}"]
    return "\n".join(lines) + "\n"


def test_an_sglang_server_drafts_where_its_gauge_says_so() -> None:
    """The gauge is of the newest steps: that of the first look counts only where the second one has none."""
    before = parse(sglang_look(0, 2.66), "a")
    for after, length in ((1.7, 1.7), (0.0, 2.66)):
        found = served_between(
            before, parse(sglang_look(1000, after), "b"), source="b", duration_s=125.0, num_speculative_tokens=3
        )
        assert found.accepted is not None
        assert (found.accepted.quote, found.accepted.drafts) == (f"length:{length}@3", pytest.approx(127_000 / length))
        assert (found.concurrency, found.measured["tpot_ms"]) == (pytest.approx(8.0), pytest.approx(800 / 127))
    with pytest.warns(UserWarning, match=r"drafts, with acceptance length 1\.70.*num_speculative_tokens=K"):
        found = served_between(before, parse(sglang_look(1000, 1.7), "b"), source="b", duration_s=125.0)
    assert found.accepted is None


def test_a_server_without_drafts_says_nothing_of_them() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = served_between(
            parse(sglang_look(0, 0.0), "a"), parse(sglang_look(10, 0.0), "b"), source="b", duration_s=9.0
        )
    assert found.accepted is None


LLAMA_CPP = """# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total {tokens}
# TYPE llamacpp:n_busy_slots_per_decode gauge
llamacpp:n_busy_slots_per_decode 1.5
# TYPE llamacpp:spec_decode_num_draft_tokens_total counter
llamacpp:spec_decode_num_draft_tokens_total {drafted}
# TYPE llamacpp:spec_decode_num_drafts_total counter
llamacpp:spec_decode_num_drafts_total {drafts}
# TYPE llamacpp:spec_decode_num_accepted_tokens_per_pos_total counter
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{{position="0"}} {first}
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{{position="1"}} {second}
"""


def test_drafts_of_llama_cpp_are_counted_and_its_requests_are_not() -> None:
    before = parse(LLAMA_CPP.format(tokens=10, drafted=4, drafts=2, first=1, second=1), "a")
    after = parse(LLAMA_CPP.format(tokens=90, drafted=44, drafts=22, first=11, second=6), "b")
    assert Growth(before, after, "b").accepted == Accepted(drafts=20.0, draft_tokens=2, rates=(0.5, 0.25))
    with pytest.raises(ValueError, match=r"or none is counted \(llama.cpp\)"):
        served_between(before, after, source="b", duration_s=5.0)


def test_a_log_tells_the_levels_that_lasted(tmp_path: Path) -> None:
    """The first and last line of a level mix it with its neighbour; one where requests wait is no level."""
    lines = [load_line(8, 100.0), load_line(8, 400.0), load_line(8, 420.0), load_line(8, 410.0), load_line(8, 300.0)]
    lines += [load_line(64, 900.0, waiting=3) for _ in range(5)] + ["something else"]
    found = levels(written(tmp_path / "server.log", "\n".join(lines)), 100, 40)
    assert [(each.concurrency, each.measured) for each in found] == [(8.0, {"output_throughput": pytest.approx(410.0)})]


def test_acceptance_in_a_log_is_weighted_by_its_drafts(tmp_path: Path) -> None:
    lines = [load_line(4, 100.0)]
    for rates, drafted in (("0.800, 0.400", 200), ("0.600, 0.200", 600)):
        lines += [load_line(4, 100.0), spec_line(rates, drafted)]
    lines += [load_line(4, 100.0)]
    (found,) = levels(written(tmp_path / "server.log", "\n".join(lines)), 100, 40)
    assert some(found.accepted).draft_tokens == 2
    assert some(found.accepted).rates == (pytest.approx(0.65), pytest.approx(0.25))


def test_sglangs_lines_tell_load_and_acceptance_length() -> None:
    line = (
        "[2025-07-01 12:00:00] Decode batch. #running-req: 8, #token: 4096, token usage: 0.02, accept len: 2.50, "
        "cuda graph: True, gen throughput (token/s): 404.5, #queue-req: 0"
    )
    (window,) = read_windows([line], num_speculative_tokens=3)
    assert (window.running, window.waiting, window.output_tokens_per_s) == (8, 0, 404.5)
    assert some(window.accepted).quote == "length:2.5@3"
    (without,) = read_windows([line.replace("accept len: 2.50, ", "")])
    assert (without.running, without.output_tokens_per_s, without.accepted) == (8, 404.5, None)


RESULT = {
    "completed": 50,
    "total_input_tokens": 5000,
    "total_output_tokens": 2050,
    "output_throughput": 800.0,
    "mean_ttft_ms": 50.0,
    "mean_tpot_ms": 10.0,
    "max_concurrency": 8,
}


def test_a_benchmarks_result_is_a_level_at_its_concurrency_or_by_littles_law(tmp_path: Path) -> None:
    """41 tokens at 800/s, 0.45 s each: 8.78 in flight."""
    (closed,) = read_bench(written(tmp_path / "r.json", json.dumps(RESULT)))
    assert (closed.concurrency, closed.measured["tpot_ms"], closed.input_len) == (8.0, 10.0, 100.0)
    (open_loop,) = read_bench(written(tmp_path / "o.json", json.dumps(RESULT | {"max_concurrency": None})))
    assert open_loop.concurrency == pytest.approx(800.0 / 41 * 0.45)


@pytest.mark.parametrize(
    ("rate", "limit", "load"),
    [
        ("inf", None, ("inf", None, 100)),
        (4.5, None, (4.5, None, 100)),
        ("inf", 8, ("inf", 8, 80)),
        (2, 8, ("inf", 8, 80)),
    ],
)
def test_a_result_is_simulated_as_its_client_sent_it(
    tmp_path: Path, rate: float | str, limit: int | None, load: tuple[float | str, int | None, int]
) -> None:
    """At a rate, or all at once: the requests that came; in a closed loop ten for each in flight."""
    result = json.dumps(RESULT | {"completed": 100, "request_rate": rate, "max_concurrency": limit})
    (read,) = read_bench(written(tmp_path / "r.json", result))
    workload = scenario_of(read, profile("h100-sxm/llama-3.1-8b"), LoadSetup(engine={})).workload
    assert (workload.request_rate, workload.max_concurrency, workload.num_prompts) == (float(load[0]), *load[1:])


def test_bench_serving_of_sglang_tells_the_acceptance_length(tmp_path: Path) -> None:
    path = written(tmp_path / "r.jsonl", json.dumps(RESULT | {"accept_length": 2.5}))
    (drafting,) = read_bench(path, num_speculative_tokens=3)
    assert some(drafting.accepted).quote == "length:2.5@3"
    with pytest.warns(UserWarning, match="this server drafts"):
        (without,) = read_bench(path)
    assert without.accepted is None


COUNTS = {
    "spec_decode_num_drafts": 100,
    "spec_decode_num_draft_tokens": 200,
    "spec_decode_num_accepted_tokens": 100,
    "spec_decode_per_position_acceptance_rates": [0.7, 0.3],
    "spec_decode_acceptance_length": 2.0,
}
COUNTER = f"vllm:spec_decode_num_accepted_tokens_total{{{LABELS}}}"


def of_result(tmp_path: Path, wrong: dict[str, Any]) -> Accepted | None:
    return read_bench(written(tmp_path / "r.json", json.dumps(RESULT | COUNTS | wrong)))[0].accepted


def of_looks(_: Path, count: int) -> Accepted | None:
    """Of 600 drafts of 2 tokens 600 are accepted by position."""
    after = look(40, 200, drafts=600, accepted=(420, 180))
    counted = f"{after}# TYPE vllm:spec_decode_num_accepted_tokens counter\n{COUNTER} {count}\n"
    return Growth({}, parse(counted, "b"), "b").accepted


def of_log(tmp_path: Path, drafted: int) -> Accepted | None:
    lines = [load_line(4, 100.0), load_line(4, 100.0), spec_line("0.8, 0.4", drafted), load_line(4, 100.0)]
    path = written(tmp_path / "server.log", "\n".join(lines))
    return levels(path, 9, 9)[0].accepted


def test_counts_that_agree_are_read(tmp_path: Path) -> None:
    assert of_result(tmp_path, {}) == Accepted(drafts=100.0, draft_tokens=2, rates=(0.7, 0.3))
    assert of_looks(tmp_path, 600) == Accepted(drafts=600.0, draft_tokens=2, rates=(0.7, 0.3))


@pytest.mark.parametrize(
    ("read", "wrong", "named"),
    [
        (of_result, {"spec_decode_num_accepted_tokens": 201}, "201 tokens accepted of 200 drafted"),
        (of_result, {"spec_decode_num_accepted_tokens": 160}, "length 2.00 by position and 2.60 by its counts"),
        (of_result, {"spec_decode_per_position_acceptance_rates": [0.3, 0.1]}, "length 1.40 by position and 2.00"),
        (of_looks, 1300, "1300 tokens accepted of 1200"),
        (of_looks, 300, "length 2.00 by position and 1.50"),
        (of_log, 99, "100 tokens accepted of 99 drafted"),
    ],
)
def test_counts_that_contradict_each_other_are_refused(
    read: Callable[[Path, Any], object], wrong: Any, named: str, tmp_path: Path
) -> None:
    assert_refused(lambda: read(tmp_path, wrong), named)


def test_means_are_a_closed_loop_of_mean_lengths() -> None:
    accepted = Accepted(drafts=10, draft_tokens=2, rates=(0.7, 0.3))
    load = mean_load("r.json", 7.6, 100.4, 41.0, tpot_s=0.01, accepted=accepted)
    workload = scenario_of(load, profile("cpu/tiny"), LoadSetup(engine={})).workload
    assert (workload.max_concurrency, workload.input_len, workload.output_len) == (8, 100, 41)
    assert (load.num_speculative_tokens, load.acceptance, load.measured) == (2, "vllm:0.7,0.3", {"tpot_ms": 10.0})


@pytest.mark.parametrize(
    "wrong",
    [{"rates": (0.5,)}, {"rates": (0.4, 0.5)}, {"rates": (), "draft_tokens": 65}, {"mean_length": 3.5},
     {"drafts": float("inf")}],
)  # fmt: skip
def test_acceptance_that_no_counting_gives_is_refused(wrong: dict[str, Any]) -> None:
    sound: dict[str, Any] = {"drafts": 10.0, "draft_tokens": 2, "rates": (0.7, 0.3)}
    Accepted(**sound).check("x")
    assert_refused(lambda: Accepted(**sound | wrong).check("x"), "x: ")
    several = [Accepted(drafts=1, draft_tokens=k, rates=(0.5,) * k) for k in (2, 3)]
    assert_refused(lambda: pooled(several, "server.log"), "server.log: draft lengths 2, 3 in one source")


def test_of_rounds_the_one_of_the_median_time_per_token_counts_with_how_far_they_differ() -> None:
    rounds = [
        mean_load("4 at once", 4.0, 64.0, 30.0, ttft_s=ttft_s, tpot_s=0.004 / rate, output_tokens_per_s=1000.0 * rate)
        for rate, ttft_s in ((1.0, 0.5), (0.2, 0.02), (1.6, 0.01))
    ]
    found = middling(rounds)
    assert found.measured == rounds[0].measured
    assert found.spreads_pct == {
        "ttft_ms": pytest.approx(1225.0),
        "tpot_ms": pytest.approx(218.75),
        "output_throughput": pytest.approx(70.0),
    }
    # 1000, 200 and 1600: a standard deviation of 702.4 over the root of 3, a median's error 1.2533 times a mean's.
    assert found.repeats_pct["output_throughput"] == pytest.approx(1.2533 * 70.24 / 3**0.5, rel=1e-3)
    assert middling(rounds[:1]) is rounds[0]


def test_a_data_parallel_log_is_one_series_per_engine(tmp_path: Path) -> None:
    """Two engines with other loads: as one series no line would have the same load before and after."""
    lines = [
        load_line(running, 10.0 * running).replace("Engine 000", f"Engine 00{engine}")
        for _ in range(4)
        for engine, running in ((0, 8), (1, 3))
    ]
    found = levels(written(tmp_path / "server.log", "\n".join(lines)), 100, 40)
    assert [(each.concurrency, each.measured["output_throughput"]) for each in found] == [(3.0, 30.0), (8.0, 80.0)]


def test_medians_are_read_where_there_are_no_means(tmp_path: Path) -> None:
    medians = {name.replace("mean", "median"): value for name, value in RESULT.items()} | {"max_concurrency": None}
    path = written(tmp_path / "r.json", json.dumps(medians))
    (load,) = loads_of(path)
    assert load.measured == {"ttft_p50_ms": 50.0, "tpot_p50_ms": 10.0, "output_throughput": 800.0}
    assert load.concurrency == pytest.approx(800.0 / 41 * 0.45)
    assert fit_served(profile("cpu/tiny"), [load], LoadSetup(engine={})).fits[0].error_pct < 1.0
    assert_refused(lambda: read_bench(written(path, json.dumps({**medians, "median_tpot_ms": None}))), "median_tpot_ms")


STAMPS = {"queued_ts": 1.0, "scheduled_ts": 1.1, "first_token_ts": 1.2, "last_token_ts": 1.9}
LOOKS = ServerLooks(url="http://x", rounds=[mean_load("2 at once", 2.0, 20.0, 5.0, tpot_s=0.01)])
MEANS = ["--set", "workload.input_len=100", "--set", "workload.output_len=40"]
FILES = {
    "server.log": "\n".join([load_line(2, 100.0)] * 4),
    "r.json": json.dumps(RESULT),
    "list.json": json.dumps([RESULT, RESULT]),
    "r.jsonl": json.dumps(RESULT | {"request_rate": float("inf")}),
    "cells.csv": "concurrency,input_len,output_len,tpot_ms\n2,20,5,1.0\n",
    "requests.jsonl": json.dumps({"request_id": "a", "input_toks": 9, "output_toks": 9, "arrival_time": 0.5} | STAMPS),
    "looks.json": msgspec.json.encode(LOOKS).decode(),
}


@pytest.mark.parametrize("name", FILES)
def test_every_command_that_takes_a_file_has_the_same_loads_of_it(name: str, tmp_path: Path) -> None:
    path = written(tmp_path / name, FILES[name])
    more = MEANS if name.endswith(".log") else []
    loads = loads_of(path, None, {"input_len": 100, "output_len": 40})
    assert more or check_file(path)[1].startswith(in_words(loads))
    limits = ["--set", "engine.max_num_seqs=8", "--set", "engine.max_num_batched_tokens=512"]
    done = CliRunner().invoke(file_command, [str(path), "--profile", "cpu/tiny", "--json", "-", *limits, *more])
    assert done.exit_code == 0, done.output
    judged = json.loads(done.output)
    assert len(judged.get("cells", loads)) == len(loads)
    assert judged.get("num_requests", 1) == 1
    fitted = CliRunner().invoke(source_command, [str(path), "--profile", "cpu/tiny", "--json", "-", *more])
    if not loads[0].measured:
        assert "needs requests in flight" in str(fitted.exception)
    else:
        assert [each["concurrency"] for each in json.loads(fitted.output)["levels"]] == [
            load.concurrency for load in loads
        ]


def test_what_was_simulated_is_refused_as_a_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What `lanesim compare --json` wrote, whole or a run of it."""
    path = tmp_path / "compared.json"
    assert run(["compare", "cpu/tiny", "--num-prompts", "4", "--request-rate", "4", "--json", str(path)]) == 0
    assert check_file(path) == ("comparison", "1 simulated runs")
    (one,) = json.loads(path.read_text())["runs"]
    for file in (path, written(tmp_path / "run.json", json.dumps(one)), written(tmp_path / "r.jsonl", json.dumps(one))):
        for words in (["validate"], ["calibrate", "fit"], ["diagnose"]):
            capsys.readouterr()
            assert run([*words, str(file), "--profile", "cpu/tiny"]) == 2
            told = capsys.readouterr().err
            assert (told.count("\n"), file.name in told, "was simulated by lanesim" in told) == (1, True, True)
