"""docs/silicon.md: served cells of three engines, judged by class, beside a peer's predictions."""
