"""ShareGPT-style conversations: lengths of the first prompt and its answer, given in the file or counted.

Not here: arrival times; these files have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

from sim.files.json_values import read_json
from sim.workload.trace_files import Row

MAX_CONVERSATION_BYTES = 2 << 30
"""Size of such a file, which is read at once: the one that everybody uses has 640 MB."""
MIN_TOKENS = 4
"""Counted conversations with a shorter prompt or answer are passed over, as in `vllm bench serve`; its upper bounds are
not applied."""


def conversations(path: str, tokenizer: str | None) -> Iterator[tuple[str, Row]]:
    """`prompt_tokens`, `output_tokens` and `id` of each conversation of at least two turns, and where it stands.

    An entry has the two, or `conversations` with texts under `value`, which are counted by the tokenizer.json in the
    local directory `tokenizer`. Raises ValueError, one line naming the entry.
    """
    entries = read_json(path, "trace", max_bytes=MAX_CONVERSATION_BYTES, has_prose=True)
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"trace {path!r}: want a non-empty JSON list of conversations")
    count: Callable[[str], int] | None = None
    num_short = 0
    for number, entry in enumerate(entries, start=1):
        where = f"trace {path!r} entry {number}"
        if not isinstance(entry, dict):
            raise ValueError(f"{where}: want an object, got {type(entry).__name__}")
        row: Row = {"id": "", "prompt_tokens": None, "output_tokens": None, **entry}
        if "prompt_tokens" not in entry and "output_tokens" not in entry:
            turns = entry.get("conversations")
            if not isinstance(turns, list):
                raise ValueError(f"{where}: want prompt_tokens and output_tokens, or a list `conversations`")
            texts = [turn.get("value") if isinstance(turn, dict) else None for turn in turns[:2]]
            if len(texts) < 2:
                num_short += 1
                continue
            if not all(isinstance(text, str) for text in texts):
                raise ValueError(f"{where}: its first two turns must have a text under `value`")
            count = count or _counter(path, tokenizer)
            lengths = [count(str(text)) for text in texts]
            if min(lengths) < MIN_TOKENS:
                num_short += 1
                continue
            row |= dict(zip(("prompt_tokens", "output_tokens"), lengths, strict=True))
        yield where, row
    if num_short == len(entries):
        raise ValueError(f"trace {path!r}: no conversation of at least two turns of {MIN_TOKENS} tokens in it")


def _counter(path: str, tokenizer: str | None) -> Callable[[str], int]:
    if not tokenizer:
        raise ValueError(f"trace {path!r}: texts without lengths. Name a tokenizer: {path}#tokenizer=DIRECTORY")
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
