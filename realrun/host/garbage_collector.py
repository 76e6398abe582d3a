"""Keeps Python's garbage collector out of what is being timed.

With torch and transformers loaded a full collection walks a million objects: 0.2 s on a laptop, at any moment. vLLM
freezes what it has loaded before it serves, and so do we: later collections see only what came since.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Context in which the collector looks at nothing that exists at its beginning. May be nested."""
    was_frozen = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not was_frozen:
            gc.unfreeze()
