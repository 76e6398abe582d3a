from typing import Any

def serve(*arguments: Any) -> tuple[Any, ...] | None:
    """A whole run, from limits, host, two models, arrays, and the functions for what is lacking and beyond range; None
    where it is not for the core."""
