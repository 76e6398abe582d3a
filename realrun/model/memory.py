"""Memory that a pair takes on a device, item by item, before anything of it is made.

Weights, KV and what passes make on the way follow from the dimensions, and were counted on passes at full size. What
libraries and graphs take is documented or assumed. Not here: making it (realrun.model.kv, realrun.model.weights).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from realrun.host import cuda
from sim.costs.shapes import ModelShape

GIB = 1 << 30
CUBLAS_BYTES = 32 << 20
"""Workspace of cuBLAS per handle and stream on Hopper (its documentation); 4 MiB before."""
HANDLES = 2
"""Threads that use a stream: one warms it up, one issues; cuBLAS has a handle for each."""
MODULE_BYTES = GIB
"""Code of torch's, cuBLAS's and FlashAttention's kernels, loaded as they are first used; assumed."""
GRAPH_BYTES = GIB
"""Nodes of captured graphs, all streams together; assumed."""
SPLIT_BYTES = 16 << 20
"""Parts of split rows before they are put together: at most 128 tiles of 128 queries of 256 numbers."""
TOKEN_BYTES = 256
"""Positions, slots and rotary factors of a token, and what is compared with them."""


class Sizes(NamedTuple):
    slots: int
    max_tokens: int
    """Tokens per slot."""
    draft_tokens: int
    prompt_tokens: int
    """Most of one pass."""
    streams: int
    """Streams, which may all have run their largest pass: the allocator keeps memory by stream."""
    has_graphs: bool

    @property
    def decoding_tokens(self) -> int:
        return self.slots * (self.draft_tokens + 1)


class Ledger(NamedTuple):
    """Bytes by what takes them."""

    weights: int
    kv: int
    """And tokens."""
    passes: int
    """The largest pass of every stream."""
    libraries: int
    graphs: int

    @property
    def total(self) -> int:
        return sum(self)

    def __str__(self) -> str:
        parts = zip(self._fields, self, strict=True)
        return f"{self.total / GIB:.1f} GiB ({', '.join(f'{name} {size / GIB:.1f}' for name, size in parts)})"


def ledger(models: Sequence[ModelShape], sizes: Sizes, *, is_cuda: bool = True) -> Ledger:
    """Bytes that a target and its draft, if any, take of a device's memory; a CPU has neither libraries nor graphs.

    >>> from sim.costs.shapes import model
    >>> pair = [model("llama-2-7b"), model("tinyllama-1.1b")]
    >>> sizes = Sizes(slots=64, max_tokens=660, draft_tokens=4, prompt_tokens=8192, streams=4, has_graphs=True)
    >>> print(ledger(pair, sizes))
    42.0 GiB (weights 14.6, kv 21.8, passes 3.1, libraries 1.2, graphs 1.2)
    """
    slots = sizes.slots + 1
    kv = slots * sizes.max_tokens * (round(sum(shape.kv_bytes_per_token for shape in models)) + 8)
    decoding = max(pass_bytes(shape, sizes.decoding_tokens, sizes) for shape in models)
    with_prompts = max(pass_bytes(shape, sizes.decoding_tokens + sizes.prompt_tokens, sizes) for shape in models)
    return Ledger(
        weights=sum(shape.weight_bytes for shape in models),
        kv=kv,
        passes=sizes.streams * with_prompts,
        libraries=(sizes.streams * HANDLES * CUBLAS_BYTES + MODULE_BYTES) if is_cuda else 0,
        graphs=(sizes.streams * decoding + GRAPH_BYTES) if is_cuda and sizes.has_graphs else 0,
    )


def pass_bytes(shape: ModelShape, tokens: int, sizes: Sizes) -> int:
    """Most that a pass over `tokens` has made and not yet freed: an MLP's inputs, halves and product, or the logits."""
    layer = tokens * (shape.dtype_bytes * (shape.hidden + 4 * shape.intermediate) + TOKEN_BYTES)
    outputs = tokens * (shape.dtype_bytes * shape.hidden + TOKEN_BYTES)
    logits = sizes.decoding_tokens * shape.vocab * shape.dtype_bytes
    return SPLIT_BYTES + max(layer, outputs + logits)


def check_fits(num_bytes: int, what: str, device: torch.device) -> None:
    has = cuda.find(device).free_bytes()
    if num_bytes > has:
        raise ValueError(
            f"{what} needs {num_bytes / GIB:.1f} GiB and {device} has {has / GIB:.1f} GiB. "
            "Choose a smaller model, fewer slots or fewer tokens per slot"
        )
