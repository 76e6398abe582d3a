from typing import Any

def serve(*arguments: Any) -> tuple[Any, ...] | None:
    """A whole run: its steps and totals, from the functions for what is lacking and beyond range, and buffers; None
    where it is not for the core."""

def serve_in_lanes(*arguments: Any) -> tuple[Any, ...] | None:
    """A whole run of a policy with lanes: tokens held, gaps and totals; None where nothing can go on."""
