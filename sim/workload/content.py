"""Common content of prompts: chained ids of their blocks, from whatever a file or a generator says of them.

An id stands for a block and all that comes before it, so that requests which begin alike have equal ids. Ids count up
from 0; what no other request has is left out.
Not here: who holds which block (sim.engine.paged).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np

from sim.files.json_values import Json, json_lines
from sim.plugins import checked_name

BLOCK_TOKENS = 16
"""Tokens behind one of `prefix_blocks`: vLLM's block, where nobody says otherwise."""
MOONCAKE_BLOCK_TOKENS = 512
"""Tokens behind one of `hash_ids` (Mooncake's trace description)."""
BLOCK_FIELDS = {"prefix_blocks": BLOCK_TOKENS, "hash_ids": MOONCAKE_BLOCK_TOKENS}
"""Fields of files that name a prompt's blocks, and the tokens behind one."""
TOKEN_FIELDS = ("input_tok_ids", "prompt_token_ids")
"""Fields that have the tokens themselves."""
UNCLASSED = "other"
"""Content class of a prompt that names none."""
LENGTH_FIELDS = ("input_toks", "input_length", "prompt_tokens", "input_len")
Content = tuple[int, ...]


class Chains:
    """Ids of blocks by all that comes before them.

    >>> chains = Chains()
    >>> chains.of(["system", "a"]), chains.of(["system", "b"]), chains.of(["a"])
    ((0, 1), (0, 2), (3,))
    >>> chains.of(["system", "a", "b"]), chains.of(["a", "b"])
    ((0, 1, 4), (3, 5))
    """

    def __init__(self) -> None:
        self._ids: dict[tuple[int, Hashable], int] = {}

    def of(self, blocks: Iterable[Hashable]) -> Content:
        ids = []
        last = -1
        for block in blocks:
            last = self._ids.setdefault((last, block), len(self._ids))
            ids.append(last)
        return tuple(ids)


def common(contents: Sequence[Sequence[int]]) -> list[Content]:
    """Each content's leading blocks that another one has as well, as chained ids from 0: nobody can find the rest.

    Ids that do not stand for what comes before them, as plain hashes of blocks, are chained first.

    >>> common([(70, 80, 81), (70, 80, 82), (70,), (9,)]), common([(5, 6), (7, 6)])
    ([(0, 1), (0, 1), (0,), ()], [(), ()])
    >>> common([]), common([(), ()]), common([(9, 7, 3), (9, 7, 2), (), (5,), (9,)])
    ([], [(), ()], [(0, 1), (0, 1), (), (), (0,)])
    >>> common([(1, -4), (2, -4), (2, -4)]), common([(1, 1), (1, 1), (1,)]), common([(1 << 80, 5), (1 << 80, 6)])
    ([(), (2, 3), (2, 3)], [(0, 1), (0, 1), (0,)], [(0,), (0,)])
    """
    lengths = np.array([len(content) for content in contents], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    total = int(lengths.sum())
    try:
        flat = np.fromiter(chain.from_iterable(contents), dtype=np.int64, count=total)
    except OverflowError:
        chains = Chains()
        return common([chains.of(content) for content in contents])
    _, first, kinds, uses = np.unique(flat, return_index=True, return_inverse=True, return_counts=True)
    before = np.concatenate(([-1], kinds[:-1]))[:total]
    before[starts[lengths > 0]] = -1
    if (before != before[first][kinds]).any():
        chains = Chains()
        return common([chains.of(content) for content in contents])
    ends_alone = np.append(np.flatnonzero(uses[kinds] == 1), total)
    first_alone = ends_alone[np.searchsorted(ends_alone, starts)]
    ends = np.minimum(starts + lengths, first_alone)
    ids = np.empty(len(first), dtype=np.int64)
    ids[np.argsort(first, kind="stable")] = np.arange(len(first))
    flat_ids = ids[kinds].tolist()
    return [tuple(flat_ids[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def listed(cell: Json, where: str, field: str) -> list[int]:
    """A list of whole numbers or texts: JSON's, or in a CSV cell separated by blanks or as JSON."""
    values: Json = cell
    if isinstance(cell, str):
        text = cell.strip()
        try:
            values = msgspec.json.decode(text) if text.startswith("[") else [int(part) for part in text.split()]
        except ValueError:
            values = None
    whole = [value for value in values if type(value) is int] if isinstance(values, list) else []
    if not isinstance(values, list) or len(whole) != len(values):
        raise ValueError(f"{where}: {field}={cell!r:.40} must be a list of whole numbers")
    return whole


def whole_blocks(blocks: list[int], prompt_tokens: int, block_tokens: int, where: str, field: str) -> list[int]:
    """`blocks` without a last one in part. Raises ValueError where there are more than the prompt has."""
    most = -(-prompt_tokens // block_tokens)
    if len(blocks) > most:
        raise ValueError(
            f"{where}: {field} has {len(blocks)} blocks, and {prompt_tokens} prompt tokens are {most} of {block_tokens}"
        )
    return blocks[: prompt_tokens // block_tokens]


def blocks_of_tokens(tokens: Sequence[int], block_tokens: int) -> Iterator[tuple[int, ...]]:
    """Whole blocks of a prompt's tokens."""
    for start in range(0, len(tokens) - block_tokens + 1, block_tokens):
        yield tuple(tokens[start : start + block_tokens])


def reblocked(contents: Sequence[Content], content_tokens: int, block_tokens: int, source: str) -> list[Content]:
    """Contents in blocks of `content_tokens` as an engine with blocks of `block_tokens` has them.

    Raises ValueError where the two sizes do not divide.

    >>> reblocked([(0, 1, 2, 3), (0, 1)], 16, 32, "trace"), reblocked([(0, 1), (0,)], 16, 8, "trace")
    ([(1, 3), (1,)], [(0, 1, 2, 3), (0, 1)])
    >>> reblocked([(0, 1, 2, 3, 4), (0,)], 16, 32, "trace"), reblocked([(0, 2), ()], 512, 256, "trace")
    ([(1, 3), ()], [(0, 1, 4, 5), ()])
    """
    if content_tokens == block_tokens:
        return list(contents)
    if block_tokens % content_tokens == 0:
        step = block_tokens // content_tokens
        return [content[step - 1 :: step] for content in contents]
    parts, rest = divmod(content_tokens, block_tokens)
    if rest:
        raise ValueError(
            f"{source}: its content is in blocks of {content_tokens} tokens, which engine.block_size={block_tokens} "
            "neither divides nor is a multiple of"
        )
    return [tuple([block * parts + part for block in content for part in range(parts)]) for content in contents]


def _prompt_lines(path: Path, fields: Sequence[str]) -> Iterator[tuple[str, dict[str, Json], str, list[int]]]:
    """Where each line of a JSON-lines file stands, its object, which of `fields` all of them have, and the list there.
    Raises ValueError, one line naming file and line."""
    field = ""
    for number, row in json_lines(path, "prompts"):
        where = f"prompts {str(path)!r} line {number}"
        if not isinstance(row, dict):
            raise ValueError(f"{where} must be an object with {' or '.join(fields)}")
        field = field or next((name for name in fields if name in row), "")
        if field not in row:
            raise ValueError(f"{where}: no {field or ', '.join(fields)} (it has: {', '.join(row)})")
        yield where, row, field, listed(row[field], where, field)
    if not field:
        raise ValueError(f"prompts {str(path)!r} is empty. Give one JSON object per request")


def read_prompt_tokens(path: Path) -> list[tuple[list[int], str]]:
    """Each line's prompt tokens (TOKEN_FIELDS) and content `class`. Raises ValueError as `_prompt_lines` does."""
    prompts = []
    for where, row, field, tokens in _prompt_lines(path, TOKEN_FIELDS):
        if not tokens:
            raise ValueError(f"{where}: {field} is empty")
        prompts.append((tokens, checked_name(f"{where}: class", row.get("class", UNCLASSED))))
    return prompts


def read_prompts(path: Path, block_tokens: int) -> list[tuple[Content, int | None]]:
    """Each line's content in blocks of `block_tokens`, from `prefix_blocks`, `hash_ids` or `input_tok_ids`, and the
    prompt tokens where they are. Raises ValueError as `_prompt_lines` does."""
    chains, content_tokens = Chains(), block_tokens
    contents: list[Sequence[int]] = []
    lengths: list[int | None] = []
    for where, row, field, blocks in _prompt_lines(path, (*BLOCK_FIELDS, *TOKEN_FIELDS)):
        content_tokens = BLOCK_FIELDS.get(field, block_tokens)
        told = next((name for name in LENGTH_FIELDS if name in row), None)
        length = None if told is None else row[told]
        if length is not None and (type(length) is not int or length < 0):
            raise ValueError(f"{where}: {told}={length!r:.40} must be a whole number of tokens")
        if field in TOKEN_FIELDS:
            length = len(blocks)
            contents.append(chains.of(blocks_of_tokens(blocks, block_tokens)))
        else:
            contents.append(blocks if length is None else whole_blocks(blocks, length, content_tokens, where, field))
        lengths.append(length)
    shared = reblocked(common(contents), content_tokens, block_tokens, str(path))
    return list(zip(shared, lengths, strict=True))
