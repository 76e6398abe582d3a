"""What may be opened and how much of it, JSON and YAML that say one thing alone, CSV by rows."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sim.files import read
from sim.files.arrow_tables import read_csv
from sim.files.json_values import convert, json_lines, parse_json, read_json
from sim.files.read import Unreadable, lines_of, printable, read_bytes, read_text
from sim.files.yaml_values import parse_yaml, read_yaml, yaml_text


def test_devices_pipes_and_directories_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (Path("/dev/zero"), tmp_path / "pipe", tmp_path):
        with pytest.raises(Unreadable, match=f"^trace '{path}' is a "):
            read_bytes(path, "trace")


def test_a_missing_file_and_a_null_in_a_path_say_so() -> None:
    with pytest.raises(Unreadable, match=r"^trace 'no/such' cannot be read: No such file or directory$"):
        read_bytes("no/such", "trace")
    with pytest.raises(Unreadable, match="no path holds a null character"):
        read_bytes("a\0b", "trace")


def test_what_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(3 << 40)
    with pytest.raises(Unreadable, match="has 3145728 MiB, and at most 256 are read"):
        read_bytes(path, "profile")


def all_lines(path: Path, what: str) -> object:
    return list(lines_of(path, what))


def all_rows(path: Path, what: str) -> object:
    return list(read_csv(path, what).rows)


PACKED, MORE = gzip.compress(b"0,8,2\n" * 1_000_000), gzip.compress(b"0,8,2\n")
Read = Callable[[Path, str], object]
FILES: list[tuple[str, bytes, Read, dict[str, int], str]] = [
    ("f", b"12345\n", all_lines, {"MAX_LINE_BYTES": 5}, "line 1: longer than"),
    ("f.csv", b"1\n2\n3\n4\n", all_lines, {"MAX_LINES": 3}, "has more than the 3 lines that are read"),
    ("f.gz", PACKED + MORE, all_lines, {"FREE_UNPACKED_BYTES": 1 << 20}, "has more than the 1 MiB that are read"),
    ("f", b"\xef\xbb\xbfone\ntwo \xff\n", read_text, {}, "line 2: not UTF-8 text"),
    ("f", b"\xef\xbb\xbfone\ntwo \xff\n", all_lines, {}, "line 2: not UTF-8 text"),
    ("f.yaml", b"a: " + b"x" * (1 << 20), read_yaml, {}, "and at most 1 are read"),
    ("f.json", b"{", read_json, {}, "line 1: not valid JSON"),
    ("f.jsonl", b'{"a": 1}\n\n{"a": 1, "a": 2}', lambda *at: list(json_lines(*at)), {}, "line 3: key 'a' stands twice"),
    ("f.csv", b"", all_rows, {}, "is empty. Give a header line"),
    ("f.csv", b"a,b, a\n", all_rows, {}, "line 1: column 'a' is there twice"),
    ("f.csv", b"a,b\n1,2\n1\n", all_rows, {}, "line 3: 1 fields, and the header has 2"),
    ("f.csv", b'a,b\n1,"2\n', all_rows, {}, "line 2: not valid CSV: unexpected end of data"),
    ("f.csv", b"a,b\n1,\x1b[31m\n", all_rows, {}, "line 2: control character '\\x1b'. Is it no text?"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "reading", "limits", "problem"), FILES)
def test_a_file_that_is_wrong_is_one_line_with_its_name_and_place(
    name: str, content: bytes, reading: Read, limits: dict[str, int], problem: str, tmp_path: Path, monkeypatch: Any
) -> None:
    for limit, value in limits.items():
        monkeypatch.setattr(read, limit, value)
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^trace '{path}' ") as caught:
        reading(path, "trace")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_and_a_last_line_without_an_end_are_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbfone\ntwo")
    assert read_text(path, "note") == "one\ntwo"
    assert list(lines_of(path, "note")) == [(1, "one\n"), (2, "two")]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": 1,\n "a": 2}', ": key 'a' stands twice"),
        ('[{"a": 1},\n {"a": NaN}]', ": '[1].a' NaN is no number of JSON. Give null or a finite one"),
        ('{"a":\n 1e999}', ": 'a' 1e999 is no finite number"),
        ('{"seed": 9223372036854775808}', ": 'seed' 9223372036854775808 must be below 2^63"),
        ('{"a": "\\u001b[31m"}', ": 'a' holds the control character '\\x1b'. Remove it"),
        ('{"a": {"b\\u001b": 1}}', ": 'a' a key holds the control character '\\x1b'. Remove it"),
        ('{"a": "\\ud800"}', ": 'a' holds the control character '\\ud800'. Remove it"),
        ("[" * 100_000, ": nested deeper than 64 levels"),
        ("[" * 65 + "]" * 65, ": nested deeper than 64 levels"),
        ('{"a": 1\n', " line 2: not valid JSON: expecting ',' delimiter"),
        ("[NaN,\n }", " line 2: not valid JSON: expecting value"),
        ("", " line 1: not valid JSON: expecting value"),
    ],
)
def test_json_that_is_wrong_names_its_line_or_key(text: str, problem: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_json(text, "note")
    assert str(caught.value) == f"note{problem}"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a.b": 1, "a": {"b": 2}, "\\u0041\\ufffe": "\\\\u001b"}', {"a.b": 1, "a": {"b": 2}, "A\ufffe": "\\u001b"}),
        ("[" * 64 + "]" * 64, eval("[" * 64 + "]" * 64)),
        ('["[[{\\"[[", "\\\\"]' + " " * 10, ['[[{"[[', "\\"]),
        ('["' + "[" * 100 + '"]', ["[" * 100]),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
    ],
)
def test_json_that_is_right_is_read_as_it_is(text: str, value: Any) -> None:
    assert parse_json(text, "note") == value


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    rows: int


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    points: list[Inner]
    named: dict[str, int] = {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{\n"points": [\n{"rows": 1},\n{"rows": "x"}]}', "points[1].rows: expected `int`, got `str`"),
        ('{\n"points": [\n{"row": 1}]}', "points[0]: object contains unknown field `row`. Did you mean 'rows'?"),
        ('{\n"points": [],\n"named": {"a": null}}', "named[...]: expected `int`, got `null`"),
        ("3", "expected `object`, got `int`"),
    ],
)
def test_a_value_of_the_wrong_kind_names_its_key(text: str, problem: str) -> None:
    with pytest.raises(ValueError) as caught:
        convert(parse_json(text, "note"), Outer, "note")
    assert str(caught.value) == f"note: {problem}"


def test_a_key_of_older_files_is_passed_over_where_it_says_nothing() -> None:
    class Host(msgspec.Struct, forbid_unknown_fields=True):
        step_s: float

    assert convert([{"step_s": 1.0, "prompt_launch_s": 0.0}], list[Host], "old") == [Host(1.0)]
    with pytest.raises(ValueError, match="prompt_launch_s"):
        convert([{"step_s": 1.0, "prompt_launch_s": 0.07}], list[Host], "old")


def test_json_lines_name_file_and_line_and_pass_over_blank_ones(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n\n[2]\n')
    assert list(json_lines(path, "trace")) == [(1, {"a": 1}), (3, [2])]


def test_yaml_is_read_by_the_core_schema_of_1_2() -> None:
    text = """
    time: 1:30
    octal: 010
    really_octal: 0o17
    hex: 0x1F
    exponent: 1e3
    separated: 1_000
    yes: no
    date: 2026-01-02
    quoted: "1"
    nothing:
    tilde: ~
    is_true: True
    infinite: .inf
    less: -.inf
    merge: {<<: x}
    """
    assert parse_yaml(text, "note") == {
        "time": "1:30",
        "octal": 10,
        "really_octal": 15,
        "hex": 31,
        "exponent": 1000.0,
        "separated": "1_000",
        "yes": "no",
        "date": "2026-01-02",
        "quoted": "1",
        "nothing": None,
        "tilde": None,
        "is_true": True,
        "infinite": float("inf"),
        "less": float("-inf"),
        "merge": {"<<": "x"},
    }
    assert parse_yaml("", "note") is None


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (LAUGHS, "line 5: more than 100000 values, aliases unfolded"),
        ("a: &a [*a]", "line 1: alias *a stands for nothing above it"),
        ("? [a, b]\n: 1", "line 1: a key must be a plain text"),
        ('a: 1\nb: !!int ""', "line 2: tag 'tag:yaml.org,2002:int' is not read. Give plain values without tags"),
        ("a: 1\nb: 2\na: 3", "line 3: key 'a' stands twice"),
        ("a: 1\n--- \nb: 2", "line 2: a second document begins. Give one"),
        ("[" * 1000, "line 1: nested deeper than 64 levels"),
        ('a: "\\e[31m"', "line 1: the text '\\x1b[31m' holds a control character. Remove it"),
        ("a: 9223372036854775808", "line 1: 9223372036854775808 must be below 2^63"),
        ("a: 1e999", "line 1: 1e999 is no finite number"),
        ("a: .nan", "line 1: .nan is no number"),
        ("a: [1", "not valid YAML"),
        ("a: \x00", "not valid YAML"),
    ],
)
def test_yaml_that_is_wrong_names_its_line(text: str, problem: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_yaml(text, "note")
    assert str(caught.value).startswith("note line ")
    assert problem in str(caught.value)


def test_an_alias_is_a_copy_of_its_own() -> None:
    found = parse_yaml("a: &a {x: 1}\nb: *a", "note")
    found["a"]["x"] = 2
    assert found["b"] == {"x": 1}


@pytest.mark.parametrize("value", ["1e3", "0o7", "1:30", "yes", "~", "", "010", "a: b", ".5", "+1", "2026-01-02", "1."])
def test_yaml_that_we_write_reads_back_as_the_text_that_it_was(value: str) -> None:
    import yaml

    text = yaml_text({"key": [value]})
    assert parse_yaml(text, "note") == {"key": [value]}
    assert yaml.safe_load(text) == {"key": [value]}


def test_yaml_that_we_write_names_nothing_to_be_repeated() -> None:
    value = [1, 2]
    assert "&" not in yaml_text({"first": value, "second": value})


def test_csv_gives_rows_with_their_lines_and_strips_the_header(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(b'\xef\xbb\xbfa, b\r\n1,"x\ny"\r\n\r\n , \r\n3,4')
    header, rows = read_csv(path, "trace")
    assert (header, list(rows)) == (["a", "b"], [(3, ["1", "x\ny"]), (6, ["3", "4"])])


def test_messages_hold_nothing_that_a_terminal_obeys() -> None:
    assert printable("a\x1b[31m \n b\x9b") == "a\\x1b[31m b\\x9b"
