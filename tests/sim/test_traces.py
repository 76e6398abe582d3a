"""Trace importers: each format, its arrivals, and files with something wrong in them."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path

import numpy as np
import pytest

from sim.traces import read_trace, rescaled
from sim.workload import WorkloadSpec, arrival_times, build_requests

DATA = Path(__file__).parents[3] / "shared/data/traces"
needs_traces = pytest.mark.skipif(not DATA.is_dir(), reason="the recorded traces are absent")

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.6805900,396,109
2023-11-16 18:15:51.6805900,10,1
"""


@pytest.fixture
def write(tmp_path):
    def put(text, name="trace.csv"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return put


def test_azure_rows_become_requests(write):
    trace = read_trace("trace-azure", write(AZURE))
    assert trace.arrival_s.tolist() == pytest.approx([0.0, 4.0, 5.0])
    assert trace.prompt_tokens.tolist() == [374, 396, 10]
    assert trace.output_tokens.tolist() == [44, 109, 1]
    assert trace.ids == ("0", "1", "2")


def test_windows_line_ends_a_byte_order_mark_and_a_missing_last_newline_are_no_fault(write):
    trace = read_trace("trace-azure", write("\ufeff" + AZURE.strip().replace("\n", "\r\n")))
    assert trace.prompt_tokens.tolist() == [374, 396, 10]


def test_num_prompts_takes_the_first_rows_and_looks_at_no_other(write):
    trace = read_trace("trace-azure", write(AZURE + "broken\n"), 2)
    assert trace.output_tokens.tolist() == [44, 109]


def test_more_prompts_than_rows_is_an_error(write):
    with pytest.raises(ValueError, match="3 requests in it, and num_prompts=4"):
        read_trace("trace-azure", write(AZURE), 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty; want a header line with TIMESTAMP"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no requests in it"),
        ("TIMESTAMP,ContextToken,GeneratedTokens\n", "line 1: no column 'ContextTokens'; did you mean 'ContextToken'?"),
        (AZURE + "2023-11-16 18:15:52,18\n", "line 5: 2 fields, and the header has 3"),
        (AZURE + "2023-11-16 18:15:52,ten,4\n", "line 5: ContextTokens='ten' must be a whole number of tokens"),
        (AZURE + "2023-11-16 18:15:52,0,4\n", "line 5: ContextTokens='0' must be a whole number of tokens, at least 1"),
        (AZURE + "2023-11-16 18:15:52,5,-4\n", "line 5: GeneratedTokens='-4' must be"),
        (AZURE + "2023-11-16 18:15:52,5,\n", "line 5: GeneratedTokens='' must be"),
        (AZURE + "2023-11-16 18:15:50,5,4\n", "line 5: arrival is 1.68059 s before the row above"),
        (AZURE + "yesterday,5,4\n", "line 5: TIMESTAMP='yesterday' must be an ISO 8601 date and time"),
        (AZURE + '"2023-11-16,5,4\n', "line 5: not valid CSV"),
    ],
)
def test_a_bad_azure_file_names_file_line_and_field(write, text, message):
    path = write(text)
    with pytest.raises(ValueError) as caught:
        read_trace("trace-azure", path)
    assert message in str(caught.value)
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_absent_or_binary_file_is_one_line(tmp_path):
    for name in ("trace-azure", "mooncake", "sharegpt", "csv", "jsonl"):
        with pytest.raises(ValueError, match="No such file"):
            read_trace(name, str(tmp_path / "absent"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x9f" * 10)
    for name in ("trace-azure", "mooncake", "sharegpt"):
        with pytest.raises(ValueError, match="cannot be read as text|not valid JSON"):
            read_trace(name, str(tmp_path / "binary"))


def test_mooncake_json_lines_share_the_leading_hashes_seen_before(write):
    rows = [
        {"timestamp": 0, "input_length": 1300, "output_length": 5, "hash_ids": [1, 2, 3]},
        {"timestamp": 0, "input_length": 1500, "output_length": 6, "hash_ids": [1, 2, 4]},
        {"timestamp": 3000, "input_length": 700, "output_length": 7, "hash_ids": [4, 9]},
        {"timestamp": 3500, "input_length": 700, "output_length": 7, "hash_ids": [4, 9]},
    ]
    trace = read_trace("mooncake", write("\n".join(map(json.dumps, rows)), "trace.jsonl"))
    assert trace.arrival_s.tolist() == pytest.approx([0.0, 0.0, 3.0, 3.5])
    assert trace.shared_prefix_tokens.tolist() == [0, 1024, 512, 700]


def test_mooncake_csv_counts_its_blocks(write):
    text = "timestamp_ms,input_length,output_length,n_blocks_512,n_prefix_blocks_seen_before\n0,6758,500,14,0\n27,7322,490,15,1\n"
    trace = read_trace("mooncake", write(text))
    assert trace.arrival_s.tolist() == pytest.approx([0.0, 0.027])
    assert trace.shared_prefix_tokens.tolist() == [0, 512]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"timestamp": 1, "input_length": 5', "line 2: not valid JSON"),
        ("[1, 2]", "line 2: want an object"),
        ('{"timestamp": 1, "input_len": 5, "output_length": 5, "hash_ids": []}', "no field 'input_length'; did you mean"),
        ('{"timestamp": "x", "input_length": 5, "output_length": 5, "hash_ids": []}', "timestamp='x' must be a number (ms)"),
        ('{"timestamp": NaN, "input_length": 5, "output_length": 5, "hash_ids": []}', "timestamp=nan must be"),
        ('{"timestamp": 1, "input_length": 5.5, "output_length": 5, "hash_ids": []}', "input_length=5.5 must be"),
        ('{"timestamp": 1, "input_length": true, "output_length": 5, "hash_ids": []}', "input_length=True must be"),
        ('{"timestamp": 1, "input_length": 5, "output_length": 5, "hash_ids": ["a"]}', "hash_ids=['a'] must be a list"),
        ('{"timestamp": -1, "input_length": 5, "output_length": 5, "hash_ids": []}', "line 2: arrival is 0.001 s before"),
    ],
)
def test_a_bad_mooncake_line_is_named(write, line, message):
    good = '{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": []}\n'
    with pytest.raises(ValueError) as caught:
        read_trace("mooncake", write(good + line, "trace.jsonl"))
    assert message in str(caught.value)


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
def test_a_generic_csv_reads_every_unit(write, unit, stamps):
    text = "who,when,in,out\n" + "".join(f"r{i},{stamp},{i + 5},{i + 1}\n" for i, stamp in enumerate(stamps))
    trace = read_trace("csv", write(text) + f"#arrival=when,unit={unit},prompt=in,output=out,id=who")
    assert trace.arrival_s.tolist() == pytest.approx([0.0, 0.5])
    assert trace.prompt_tokens.tolist() == [5, 6]
    assert trace.ids == ("r0", "r1")


def test_a_column_that_ends_in_its_unit_needs_no_other_word(write):
    trace = read_trace("csv", write("t_ms,i,o\n0,1,1\n250,1,1\n") + "#arrival=t_ms,prompt=i,output=o")
    assert trace.arrival_s.tolist() == pytest.approx([0.0, 0.25])


def test_default_columns_need_no_map(write):
    rows = '{"arrival_s": 0, "prompt_tokens": 5, "output_tokens": 2}\n{"arrival_s": 1.5, "prompt_tokens": 6, "output_tokens": 3}\n'
    trace = read_trace("jsonl", write(rows, "t.jsonl"))
    assert trace.arrival_s.tolist() == [0.0, 1.5]
    assert trace.output_tokens.tolist() == [2, 3]


def test_sessions_share_the_conversation_so_far(write):
    text = "arrival_s,prompt_tokens,output_tokens,chat\n0,10,5,a\n1,20,5,b\n2,30,5,a\n3,12,5,a\n"
    trace = read_trace("csv", write(text) + "#session=chat")
    assert trace.shared_prefix_tokens.tolist() == [0, 0, 15, 12]


def test_a_prefix_column_is_taken_at_its_word(write):
    text = "arrival_s,prompt_tokens,output_tokens,shared\n0,10,5,0\n1,20,5,8\n"
    assert read_trace("csv", write(text) + "#prefix=shared").shared_prefix_tokens.tolist() == [0, 8]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("arival=x", "unknown trace option 'arival'; did you mean 'arrival'?"),
        ("arrival=when", "does not end in its unit; add unit="),
        ("arrival=when,unit=min", "unknown unit of arrivals 'min'"),
        ("prompt=", "prompt= must name a column"),
        ("session=a,prefix=b", "both say what is shared"),
        ("prompt=inn", "no column 'inn'"),
    ],
)
def test_a_bad_column_map_is_one_line(write, options, message):
    with pytest.raises(ValueError) as caught:
        read_trace("csv", write("arrival_s,in,output_tokens\n0,1,1\n") + f"#{options}")
    assert message in str(caught.value)


def test_an_unknown_format_gets_a_suggestion():
    with pytest.raises(ValueError, match="did you mean 'mooncake'"):
        read_trace("moonkake", "x")


def test_sharegpt_lengths_may_stand_in_the_file(write):
    entries = [{"id": "a", "prompt_tokens": 5, "output_tokens": 7}, {"prompt_tokens": 6, "output_tokens": 1}]
    trace = read_trace("sharegpt", write(json.dumps(entries), "s.json"))
    assert trace.arrival_s is None
    assert trace.prompt_tokens.tolist() == [5, 6]
    assert trace.ids == ("a", "1")


def test_sharegpt_texts_need_a_tokenizer(write):
    entries = [{"conversations": [{"value": "hi"}]}, {"conversations": [{"value": "hi"}, {"value": "ho"}]}]
    path = write(json.dumps(entries), "s.json")
    with pytest.raises(ValueError, match="texts without lengths; name a tokenizer"):
        read_trace("sharegpt", path)
    with pytest.raises(ValueError, match="must be a local directory"):
        read_trace("sharegpt", f"{path}#tokenizer=absent")


def test_sharegpt_texts_are_counted_by_a_local_tokenizer(write, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"[UNK]": 0}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    turns = [[("a b c d e", "f g h i")], [("short", "f g h i")], [("a b c d", "e f g h i j")]]
    entries = [{"conversations": [{"value": text} for text in pair]} for ((pair),) in turns]
    trace = read_trace("sharegpt", f"{write(json.dumps(entries), 's.json')}#tokenizer={tmp_path}")
    assert list(zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True)) == [(5, 4), (4, 6)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ('[{"prompt_tokens": 5, "outp', "not valid JSON (truncated?)"),
        ("{}", "want a non-empty JSON list"),
        ("[3]", "entry 1: want an object, got int"),
        ('[{"prompt_tokens": 5}]', "entry 1: output_tokens=None must be"),
        ('[{"conversations": 5}]', "entry 1: want prompt_tokens and output_tokens, or a list"),
        ('[{"conversations": [1, 2]}]', "entry 1: its first two turns must have a text"),
        ('[{"conversations": []}]', "no conversation of at least two turns"),
    ],
)
def test_a_bad_sharegpt_file_names_the_entry(write, text, message):
    with pytest.raises(ValueError) as caught:
        read_trace("sharegpt", write(text, "s.json"))
    assert message in str(caught.value)


def spec(path, **changes):
    return WorkloadSpec(dataset_name="trace-azure", dataset_path=path, num_prompts=3, **changes)


def test_arrivals_are_replayed_rescaled_or_drawn(write):
    path = write(AZURE)

    def arrivals(how, **changes):
        requests = build_requests(spec(path, **changes), 0, trace_arrivals=how)
        assert [request.prompt_tokens for request in requests] == [374, 396, 10]
        return [request.arrival_s for request in requests]

    assert arrivals("recorded") == pytest.approx([0.0, 4.0, 5.0])
    assert arrivals("rescaled", request_rate=4.0) == pytest.approx([0.0, 0.4, 0.5])
    assert arrivals("rescaled", request_rate=inf) == [0.0, 0.0, 0.0]
    assert arrivals("poisson", request_rate=4.0) == arrival_times(3, 4.0, 1.0, 0).tolist()
    with pytest.raises(ValueError, match="did you mean 'rescaled'"):
        arrivals("rescale")


def test_a_trace_without_a_clock_gets_drawn_arrivals_and_cannot_be_replayed(write):
    path = write('[{"prompt_tokens": 5, "output_tokens": 7}]', "s.json")
    spec = WorkloadSpec(dataset_name="sharegpt", dataset_path=path, num_prompts=1)
    assert [request.arrival_s for request in build_requests(spec, 0)] == arrival_times(1, 4.0, 1.0, 0).tolist()
    with pytest.raises(ValueError, match="no arrival times to replay"):
        build_requests(spec, 0, trace_arrivals="recorded")


def test_arrivals_all_at_once_have_no_shape_to_rescale():
    with pytest.raises(ValueError, match="all arrive at once"):
        rescaled(np.zeros(3), 4.0, "trace.csv")
    assert rescaled(np.zeros(1), 4.0, "trace.csv").tolist() == [0.0]


@needs_traces
@pytest.mark.parametrize(
    ("name", "file", "count", "means"),
    [
        ("trace-azure", "azure2023/AzureLLMInferenceTrace_conv.csv", 19_366, (1154.70, 211.13)),
        ("trace-azure", "azure2023/AzureLLMInferenceTrace_code.csv", 8_819, (2047.85, 27.88)),
        ("mooncake", "mooncake/conversation_trace_trimmed.csv", 12_031, (12_035.06, 342.61)),
    ],
)
def test_recorded_traces_are_read_whole(name, file, count, means):
    trace = read_trace(name, str(DATA / file))
    assert len(trace.ids) == count
    assert (trace.prompt_tokens.mean(), trace.output_tokens.mean()) == pytest.approx(means, abs=0.01)
    assert (np.diff(trace.arrival_s) >= 0.0).all()
    assert (trace.shared_prefix_tokens <= trace.prompt_tokens).all()


@needs_traces
@pytest.mark.slow
@pytest.mark.parametrize("name", ["azure-conv", "azure-code"])
def test_length_tables_have_the_percentiles_of_their_trace(name):
    """50,000 drawn requests, seed 0: 50th, 90th and 99th percentiles within 7 %."""
    trace = read_trace("trace-azure", str(DATA / f"azure2023/AzureLLMInferenceTrace_{name[6:]}.csv"))
    requests = build_requests(WorkloadSpec(dataset_name=name, num_prompts=50_000), 0)
    for column, recorded in (("prompt_tokens", trace.prompt_tokens), ("output_tokens", trace.output_tokens)):
        drawn = [getattr(request, column) for request in requests]
        assert np.percentile(drawn, (50, 90, 99)) == pytest.approx(np.percentile(recorded, (50, 90, 99)), rel=0.07)
