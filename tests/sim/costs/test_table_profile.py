"""Profiles of the table form: chosen by their form, strict, and refused by the name of the key."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from sim.costs.profile_files import decode, encode
from tests.sim.costs.table_points import HOLES, POINTS, VERIFY, table


def test_a_table_survives_writing_and_reading() -> None:
    profile = table(HOLES)
    assert decode(encode(profile), "copy") == profile
    assert json.loads(encode(profile))["kernels"]["form"] == "table"


Place = tuple[str | int, ...]


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("target", "body", "tokens"), [1, 11, 11], "tokens=[1, 11, 11] must rise"),
        (("target", "body", "tokens"), [2, 11, 101], "must begin with 1"),
        (("target", "body", "seconds"), [1.0, 0.5, 2.0], "seconds must not fall along tokens"),
        (("target", "head", "seconds"), [0.0, 1.0], "must be finite and positive"),
        (("draft", "decode_attention", "seconds"), [[1.0, 2.0]], "[rows][context_tokens], 2 x 2 numbers"),
        (("draft", "decode_attention", "seconds"), [[1.0, 2.0], [None, None]], "only nulls at one value of rows"),
        (("draft", "decode_attention", "seconds"), [[1.0, 2.0], [0.9, 3.0]], "must not fall along rows or context"),
        (("target", "prefill_attention", "history_tokens"), [5], "history_tokens=[5] must begin with 0"),
        (("target", "verify_attention", "queries"), [1, 5], "queries=[1, 5] must be at least 2"),
        (("target", "decode_attention", "seconds", 0), "fast", ": kernels.target.decode_attention.seconds[0]"),
        (("draft",), None, "lacks kernels.draft"),
    ],
)
def test_impossible_tables_are_refused_by_the_name_of_the_key(place: Place, value: object, message: str) -> None:
    content: dict[str, Any] = json.loads(encode(table(msgspec.structs.replace(POINTS, verify_attention=VERIFY))))
    inner: Any = content["kernels"]
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    with pytest.raises(ValueError) as caught:
        decode(json.dumps(content).encode(), "p.json")
    assert message in str(caught.value)
    assert "p.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_points_of_a_draft_need_a_draft() -> None:
    content: dict[str, Any] = json.loads(encode(table())) | {"draft": None}
    with pytest.raises(ValueError, match=r"kernels\.draft = null"):
        decode(json.dumps(content).encode(), "p.json")
