"""Conversations as a trace: lengths given or counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.workload.traces import read_trace
from tests.sim.workload.conftest import Write


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
