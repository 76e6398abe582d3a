"""ShareGPT-style conversations: lengths of the first prompt and its answer, given in the file or counted.

Not here: arrival times; these files have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

from sim.files.json_values import Json, read_json
from sim.workload.trace_files import Columns, TraceRow, tokens_of

MAX_CONVERSATION_BYTES = 2 << 30
"""Size of such a file, which is read at once: the one that everybody uses has 640 MB."""
MIN_TOKENS = 4
"""Counted conversations with a shorter prompt or answer are passed over, as in `vllm bench serve`; its upper bounds are
not applied."""


def sharegpt_rows(path: str, tokenizer: str | None, most: int | None) -> Columns:
    """The first `most` conversations of at least two turns.

    An entry has `prompt_tokens` and `output_tokens`, or `conversations` with texts under `value`, which are
    counted by the tokenizer.json in the local directory `tokenizer`. Raises ValueError, one line naming the entry.
    """
    entries = read_json(path, "trace", max_bytes=MAX_CONVERSATION_BYTES, has_prose=True)
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"trace {path!r}: want a non-empty JSON list of conversations")
    rows = Columns()
    for row in _rows(path, entries, tokenizer):
        if len(rows) == most:
            break
        rows.add(row)
    if not len(rows):
        raise ValueError(f"trace {path!r}: no conversation of at least two turns of {MIN_TOKENS} tokens in it")
    return rows


def _rows(path: str, entries: list[Json], tokenizer: str | None) -> Iterator[TraceRow]:
    count: Callable[[str], int] | None = None
    for number, entry in enumerate(entries, start=1):
        where = f"trace {path!r} entry {number}"
        if not isinstance(entry, dict):
            raise ValueError(f"{where}: want an object, got {type(entry).__name__}")
        label = str(entry.get("id", ""))
        if "prompt_tokens" in entry or "output_tokens" in entry:
            lengths = [tokens_of(entry.get(name), where, name) for name in ("prompt_tokens", "output_tokens")]
            yield TraceRow(None, lengths[0], lengths[1], id=label)
            continue
        turns = entry.get("conversations")
        if not isinstance(turns, list):
            raise ValueError(f"{where}: want prompt_tokens and output_tokens, or a list `conversations`")
        if len(turns) < 2:
            continue
        texts = [turn.get("value") if isinstance(turn, dict) else None for turn in turns[:2]]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{where}: its first two turns must have a text under `value`")
        if count is None:
            count = _counter(path, tokenizer)
        prompt, output = (count(str(text)) for text in texts)
        if prompt >= MIN_TOKENS and output >= MIN_TOKENS:
            yield TraceRow(None, prompt, output, id=label)


def _counter(path: str, tokenizer: str | None) -> Callable[[str], int]:
    if not tokenizer:
        raise ValueError(f"trace {path!r}: texts without lengths; name a tokenizer: {path}#tokenizer=DIRECTORY")
    if not Path(tokenizer).is_dir():
        raise ValueError(f"tokenizer={tokenizer!r} must be a local directory")
    try:
        tokenizers = import_module("tokenizers")
    except ImportError:
        raise ValueError(f"trace {path!r}: counting its tokens needs `pip install tokenizers`") from None
    file = Path(tokenizer) / "tokenizer.json"
    try:
        encode = tokenizers.Tokenizer.from_file(str(file)).encode
    except Exception as error:  # the library raises bare Exception for a missing or malformed file
        raise ValueError(f"{file}: cannot be loaded: {str(error).splitlines()[0]}") from None
    return lambda text: len(encode(text, add_special_tokens=False).ids)
