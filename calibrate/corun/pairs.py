"""Which two passes run beside each other, the most valuable first.

Prefill chunks beside decode rows, and drafts beside verify passes, each captured and eager; corners before what lies
between them, captured before eager. Smaller ones of the first pair also on shares of the multiprocessors. Pure. Not
here: their rates (calibrate.corun.rates).
"""

from __future__ import annotations

from typing import NamedTuple

from calibrate.points.point_works import Place

DRAFT_TOKENS = 4
"""Tokens per row of a draft; a verify row has one query token more."""
CONTEXTS = {"cuda": (1024, 512, 256), "cpu": (256,)}
"""Tokens in KV of every decoding row, and the longest prompt of a chunk: the first that fits the device's memory."""
NUM_SHARED_CHUNKS = 2
"""Chunk lengths that run on shares: longer ones take most of a minute on a fifth of a GPU."""
ROOM_TOKENS = 256
"""Tokens of a slot beyond its context: slots come in steps of so many tokens."""


class Grid(NamedTuple):
    chunk_tokens: tuple[int, ...]
    decode_rows: tuple[int, ...]
    draft_rows: tuple[int, ...]
    """Rows of a draft, and as many others of the verify pass beside it."""
    shares_pct: tuple[int, ...] = ()
    """Of the multiprocessors, of a prefill beside a decode on the rest."""


GRIDS = {
    "cuda": Grid((128, 512, 1024, 2048), (1, 8, 32, 128), (1, 8, 32, 64), (20, 40, 60, 80)),
    "cpu": Grid((16, 64), (1, 4), (1, 4)),
}
LAUNCHES = {
    "prefill": (("graphed", "graphed"), ("eager", "graphed"), ("eager", "eager")),
    "draft": (("graphed", "graphed"), ("eager", "eager")),
    "shares": (("graphed", "graphed"), ("eager", "eager")),
}
"""Launches of the two sides; the second line of prefill is what a replay does."""


class Cell(NamedTuple):
    """Two passes, each on a stream and on rows of its own."""

    a: Place
    b: Place
    share_pct: int | None = None
    """Of the multiprocessors, that the first pass is to have while the second has the rest; None: both have all."""

    @property
    def name(self) -> str:
        on = "" if self.share_pct is None else f" on {self.share_pct} %"
        return f"{_name(self.a)}{on} beside {_name(self.b)}"

    @property
    def kinds(self) -> str:
        return f"{self.a.kind} beside {self.b.kind}"

    @property
    def is_captured(self) -> bool:
        return self.a.launch == self.b.launch == "graphed"


def cells(device: str, context_tokens: int) -> list[Cell]:
    """Every cell of the device's grid, in the order of measuring."""
    grid = GRIDS[device]
    ranked: list[tuple[int, bool, Cell]] = []
    for chunk in grid.chunk_tokens:
        for rows in grid.decode_rows:
            is_corner = chunk in _ends(grid.chunk_tokens) and rows in _ends(grid.decode_rows)
            for rank, (a, b) in enumerate(_launches("prefill", device)):
                # Prompts no longer than the context: a longer chunk is several of them, as in an engine.
                prompts = max(1, chunk // context_tokens)
                prefill = Place("prefill", "target", prompts, min(chunk, context_tokens), 0, a)
                decode = Place("decode", "target", rows, 1, context_tokens, b)
                ranked.append((rank, is_corner, Cell(prefill, decode)))
                # Behind the same pair on the whole device, which they are compared with.
                if chunk in grid.chunk_tokens[:NUM_SHARED_CHUNKS] and rows in _ends(grid.decode_rows):
                    on_shares = grid.shares_pct if (a, b) in LAUNCHES["shares"] else ()
                    ranked += [(rank + 2, True, Cell(prefill, decode, share)) for share in on_shares]
    for rows in grid.draft_rows:
        for rank, (a, b) in enumerate(_launches("draft", device)):
            draft = Place("draft", "draft", rows, DRAFT_TOKENS, context_tokens, a)
            verify = Place("verify", "target", rows, DRAFT_TOKENS + 1, context_tokens, b)
            ranked.append((rank, rows in _ends(grid.draft_rows), Cell(draft, verify)))
    return [cell for rank, is_corner, cell in sorted(ranked, key=lambda each: each[0] + (0 if each[1] else 2))]


def slots(device: str, context_tokens: int) -> int:
    """Rows of the largest cell, both sides."""
    return max(cell.a.rows + cell.b.rows for cell in cells(device, context_tokens))


def _launches(kind: str, device: str) -> tuple[tuple[str, str], ...]:
    return LAUNCHES[kind] if device == "cuda" else (("eager", "eager"),)


def _ends(values: tuple[int, ...]) -> tuple[int, int]:
    return values[0], values[-1]


def _name(place: Place) -> str:
    return f"{place.kind} {place.rows}x{place.tokens} {place.launch}"
