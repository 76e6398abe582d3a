from typing import Any

def serve(
    limits: tuple[Any, ...], host: tuple[Any, ...], target: Any, draft: Any, arrays: Any, ask: Any, check: Any
) -> tuple[Any, ...] | None: ...
