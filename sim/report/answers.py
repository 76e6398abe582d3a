"""Answers of studies on the terminal and as JSON. Not here: the answers (sim.studies), comparisons (tables)."""

from __future__ import annotations

import json

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from sim.studies.tune import Tuning


def print_tuning(console: Console, result: Tuning) -> None:
    """The lengths by concurrency, the verdict, what to type, and what it rests on."""
    table = Table(box=SIMPLE_HEAD, title=f"{result.objective} against no speculation, by draft length K")
    table.add_column("in flight", justify="right")
    shown = [length.k for length in result.points[0].lengths]
    for k in shown:
        table.add_column(str(k), justify="right")
    table.add_column("answer", justify="right")
    table.add_column("5 to 95 %", justify="right")
    table.add_column("regret", justify="right")
    for point in result.points:
        interval = "–" if point.interval is None else f"{point.interval[0]:.2f} to {point.interval[1]:.2f}"
        table.add_row(
            str(point.concurrency),
            *(_times(length.speedup, is_chosen=length.k == point.k and _drafts(result)) for length in point.lengths),
            str(point.k) if _drafts(result) else "none",
            interval,
            f"{100.0 * point.expected_regret:.1f} %",
        )
    console.print(table)
    console.print(f"verdict: {result.verdict}", highlight=False)
    gain = result.gain
    low, high = gain.interval
    console.print(
        f"{gain.of} over {gain.over}: {100 * gain.mean:+.1f} % ({100 * low:+.1f} to {100 * high:+.1f})"
        + ("" if gain.is_sure else ", which may be nothing"),
        highlight=False,
    )
    console.print(f"break-even: {_break_even(result)}", highlight=False)
    console.print(f"expected regret against the best length of each draw: {100 * result.expected_regret:.1f} %")
    deployment = result.deployment
    console.print(deployment.vllm_serve, soft_wrap=True, highlight=False)
    if deployment.sglang_flags:
        console.print(f"sglang: {deployment.sglang_flags}", soft_wrap=True, highlight=False)
    if deployment.sglang_adaptive_config is not None:
        text = json.dumps(deployment.sglang_adaptive_config)
        console.print(f"speculative_adaptive.json: {text}", soft_wrap=True, highlight=False)
    console.print(f"intervals: 5 to 95 % of {result.draws} {result.covers}", soft_wrap=True, highlight=False)
    for note in result.notes:
        console.print(f"note: {note}", soft_wrap=True, highlight=False)


def _drafts(result: Tuning) -> bool:
    return result.deployment.speculative_config is not None


def _times(speedup: float | None, *, is_chosen: bool) -> str:
    if speedup is None:
        return "–"
    return f"[bold]{speedup:.2f}[/bold]" if is_chosen else f"{speedup:.2f}"


def _break_even(result: Tuning) -> str:
    most = result.points[-1].concurrency
    low, high = (_requests(value, most) for value in result.break_even_interval)
    middle = result.break_even_concurrency
    if middle == 0.0:
        return "drafting never pays"
    return f"{_requests(middle, most)} requests in flight ({low} to {high})"


def _requests(value: float | None, most: int) -> str:
    return f"more than {most}" if value is None else f"{value:.0f}"
