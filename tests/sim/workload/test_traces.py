"""Trace importers: each format, its arrivals, and files with something wrong in them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sim.cli.main import run
from sim.workload.traces import read_trace
from tests.sim.workload.conftest import Write

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.6805900,396,109
2023-11-16 18:15:51.6805900,10,1
"""


def test_windows_line_ends_a_byte_order_mark_and_a_missing_last_newline_are_no_fault(write: Write) -> None:
    trace = read_trace("trace-azure", write("\ufeff" + AZURE.strip().replace("\n", "\r\n")))
    assert trace.prompt_tokens.tolist() == [374, 396, 10]


def test_num_prompts_takes_the_first_rows_and_looks_at_no_other(write: Write) -> None:
    trace = read_trace("trace-azure", write(AZURE + "broken\n"), 2)
    assert trace.output_tokens.tolist() == [44, 109]


def test_mooncake_csv_says_nothing_of_what_prompts_share(write: Write) -> None:
    header = "timestamp_ms,input_length,output_length,n_blocks_512,n_prefix_blocks_seen_before\n"
    trace = read_trace("mooncake", write(header + "0,6758,500,14,0\n27,7322,490,15,1\n"))
    assert trace.arrival_s.tolist() == pytest.approx([0.0, 0.027])
    assert (trace.prompt_tokens.tolist(), trace.contents) == ([6758, 7322], ())


@pytest.mark.parametrize(
    ("unit", "stamps"),
    [
        ("s", ["10", "10.5"]),
        ("ms", ["1", "501"]),
        ("us", ["0", "500000"]),
        ("ns", ["7", "500000007"]),
        ("datetime", ["2024-01-01T00:00:00Z", "2024-01-01T01:00:00.5+01:00"]),
    ],
)
def test_a_generic_csv_reads_every_unit(write: Write, unit: str, stamps: list[str]) -> None:
    text = "who,when,in,out\n" + "".join(f"r{i},{stamp},{i + 5},{i + 1}\n" for i, stamp in enumerate(stamps))
    trace = read_trace("csv", write(text) + f"#arrival=when,unit={unit},prompt=in,output=out,id=who")
    assert trace.arrival_s.tolist() == pytest.approx([0.0, 0.5])
    assert trace.prompt_tokens.tolist() == [5, 6]
    assert trace.ids == ("r0", "r1")


def test_a_column_that_ends_in_its_unit_needs_no_other_word(write: Write) -> None:
    trace = read_trace("csv", write("t_ms,i,o\n0,1,1\n250,1,1\n") + "#arrival=t_ms,prompt=i,output=o")
    assert trace.arrival_s.tolist() == pytest.approx([0.0, 0.25])


@pytest.mark.parametrize("name", ["jsonl", "mooncake"])
def test_a_count_may_be_written_as_a_real_number_and_one_that_is_missing_is_named(name: str, write: Write) -> None:
    row = {"timestamp": 0, "arrival_s": 0, "input_length": 12.0, "output_length": 3}
    assert read_trace(name, write(json.dumps(row), "t.jsonl")).prompt_tokens.tolist() == [12]
    later = row | {"input_length": 13}
    del later["output_length"]
    with pytest.raises(ValueError, match="line 2: no field 'output_length'"):
        read_trace(name, write(f"{json.dumps(row)}\n{json.dumps(later)}", "t.jsonl"))


CLOCK = "arrival_time,prompt_tokens,output_tokens\n"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("1700000000", "1700000004"),
        ("1700000000000", "1700000004000"),
        ("1700000000000000", "1700000004000000"),
        ("1700000000000000000", "1700000004000000000"),
    ],
)
def test_the_size_of_unix_times_tells_their_unit(first: str, second: str, write: Write) -> None:
    trace = read_trace("csv", write(f"{CLOCK}{first},10,2\n{second},30,4\n"))
    assert trace.arrival_s is not None
    assert trace.arrival_s.tolist() == pytest.approx([0.0, 4.0], abs=1e-5)
    assert trace.in_words == "2 requests in 4 s, 0.25/s, 20 in, 3 out"
    assert trace.note is None


@pytest.mark.parametrize(
    ("last", "words", "note"),
    [
        ("12240", "2 requests in 3.4 h, 8.17e-05/s", "8.17e-05 requests per second is below 0.05"),
        ("0.0005", "2 requests in 500 us, 2e+03/s", "2e\\+03 requests per second is above 1,000"),
    ],
)
def test_an_odd_rate_is_noted(last: str, words: str, note: str, write: Write) -> None:
    trace = read_trace("csv", write(f"{CLOCK}0,10,2\n{last},30,4\n"))
    assert trace.in_words.startswith(words)
    assert re.search(note, trace.note or "")
    assert "FILE#unit=ms" in (trace.note or "")


def test_a_trace_without_times_or_all_at_once_has_no_rate(write: Write) -> None:
    trace = read_trace("csv", write(f"{CLOCK}5,10,2\n5,30,4\n"))
    assert (trace.in_words, trace.note) == ("2 requests all at once, 20 in, 3 out", None)
    trace = read_trace("csv", write("prompt_tokens,output_tokens\n10,2\n") + "#arrival=")
    assert (trace.in_words, trace.note) == ("1 requests without times, 10 in, 2 out", None)


def test_check_and_a_note_of_a_run_say_what_was_recorded(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(f"{CLOCK}0,10,2\n100,30,4\n")
    assert run(["check", path]) == 0
    checked = capsys.readouterr()
    assert "trace (csv): 2 requests in 100 s, 0.01/s, 20 in, 3 out" in checked.out
    assert "note: " in checked.err
    compare = ["compare", "--profile", "cpu/tiny", "--policy", "pd", "--workers", "1", "--num-prompts", "2"]
    compare += ["--set", "workload.dataset_name=csv", "--set", f"workload.dataset_path={path}"]
    assert run(compare) == 0
    told = capsys.readouterr()
    assert f"{path}: 2 requests in 100 s, 0.01/s, 20 in, 3 out" in told.err
    assert "0.01 requests per second is below 0.05" in told.err
    assert run([*compare, "--request-rate", "5"]) == 0
    assert "below 0.05" not in capsys.readouterr().err


def test_check_names_how_columns_of_any_csv_are_named(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write("when,in,out\n0,10,2\n500,30,4\n")
    assert run(["check", path]) == 0
    assert "FILE#arrival=COLUMN,prompt=COLUMN,output=COLUMN,unit=ms" in capsys.readouterr().out
    assert run(["check", f"{path}#arrival=when,prompt=in,output=out,unit=ms"]) == 0
    assert "2 requests in 500 ms" in capsys.readouterr().out


def test_sharegpt_lengths_may_stand_in_the_file(write: Write) -> None:
    entries = [{"id": "a", "prompt_tokens": 5, "output_tokens": 7}, {"prompt_tokens": 6, "output_tokens": 1}]
    trace = read_trace("sharegpt", write(json.dumps(entries), "s.json"))
    assert trace.arrival_s is None
    assert trace.prompt_tokens.tolist() == [5, 6]
    assert trace.ids == ("a", "1")


def test_sharegpt_texts_are_counted_by_a_local_tokenizer(write: Write, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"[UNK]": 0}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    pairs = [("a b c d e", "f g h i"), ("short", "f g h i"), ("a b c d", "e f g h i j")]
    entries = [{"conversations": [{"value": text} for text in pair]} for pair in pairs]
    trace = read_trace("sharegpt", f"{write(json.dumps(entries), 's.json')}#tokenizer={tmp_path}")
    assert list(zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True)) == [(5, 4), (4, 6)]
