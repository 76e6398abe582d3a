from typing import Any

def serve(
    limits: tuple[Any, ...], host: tuple[float, ...], target: Any, draft: Any, arrays: Any, ask: Any, check: Any
) -> tuple[Any, ...] | None: ...
