"""A plan on the terminal: the sentence first, then rows, draft length by load, what it rests on, and what to type.

Not here: the plan (sim.studies.plan.search), other answers (answers).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rich.console import Console

from sim.report.tables import new_table, number, print_table
from sim.studies.evidence import shortened
from sim.studies.plan.search import Plan, PlannedDeployment
from sim.studies.tune import Tuning


def print_plan(console: Console, result: Plan, *, capacity_line: str) -> None:
    """Fewer than 25 lines of 80 columns."""
    say = partial(console.print, highlight=False, markup=False)
    say(result.verdict)
    has_price = result.price_per_gpu_h is not None
    has_energy = any(row.joules_per_output_token is not None for row in result.deployments)
    fleet = [] if result.rate_per_s is None else ["replicas", "GPUs", "draws met"]
    rate_title = "req/s of one" if fleet else "req/s"
    extra = [*(["$/M"] if has_price else []), *(["J/tok"] if has_energy else [])]
    titles = ["K", rate_title, *fleet, "tok/s/GPU", *extra]
    table = new_table(["replica"], titles, [], box=None, padding=(0, 1), pad_edge=False)
    estimates = [row for row in result.deployments if row.is_first_pass]
    refined = [row for row in result.deployments if not row.is_first_pass]
    for row in [*refined, *estimates[:MAX_ESTIMATES]]:
        energy = [number(row.joules_per_output_token)] if has_energy else []
        table.add_row(*_cells(row, result, has_price=has_price), *energy)
    print_table(console, table)
    if estimates:
        more = len(estimates) - MAX_ESTIMATES
        say("~ an estimate, not simulated in draws" + (f"; {more} more in the JSON" if more > 0 else ""))
    if result.tuning is not None and result.rate_per_s is None:
        say(draft_lengths(result.tuning))
    if result.deployments[0].evidence:
        say(shortened(result.deployments[0].evidence))
    for note in result.notes[:MAX_NOTES]:
        say(note)
    for line in (*([f"start: {result.start}"] if result.start else []), f"check: {capacity_line}"):
        say(continued(line, console.width), soft_wrap=True)


MAX_NOTES = MAX_ESTIMATES = 2
"""The others are in the JSON."""


def continued(command: str, width: int) -> str:
    """A command over several lines of a shell, broken before its flags; one that is longer is not broken.

    >>> print(continued("vllm serve MODEL --seed 0 --port 8000", 28))
    vllm serve MODEL --seed 0 \\
        --port 8000
    """
    lines = command.split(" --")[:1]
    for flag in command.split(" --")[1:]:
        if len(lines[-1]) + len(flag) + len(" -- \\") <= width:
            lines[-1] += f" --{flag}"
        else:
            lines.append(f"    --{flag}")
    return " \\\n".join(lines)


def draft_lengths(tuning: Tuning) -> str:
    """The best draft length by requests in flight, and what it gains.

    The table of the line that starts the server is simpler: it has fewer rows, for which a length may be second best.
    """
    groups: list[tuple[int, list[int], list[float]]] = []
    for point in tuning.points:
        best = min((each for each in point.lengths if each.k), key=lambda each: each.expected_regret)
        if best.speedup is not None:
            if not groups or groups[-1][0] != best.k:
                groups.append((best.k, [], []))
            groups[-1][1].append(point.concurrency)
            groups[-1][2].append(best.speedup)
    said = [f"{k} at {_ends(loads, 'd')} ({_ends(gains, '.2f')})" for k, loads, gains in groups]
    ends = tuning.break_even_concurrency
    pays = "at every load tried" if ends is None else ("at none" if ends == 0.0 else f"up to {ends:.0f} in flight")
    return f"best K by requests in flight (throughput over no drafter): {', '.join(said)}; pays {pays}"


def _ends(values: Sequence[float], form: str) -> str:
    """`1 to 16`, or the only one."""
    first, last = values[0], values[-1]
    return f"{first:{form}}" if len(values) == 1 else f"{first:{form}} to {last:{form}}"


def _cells(row: PlannedDeployment, result: Plan, *, has_price: bool) -> list[str]:
    about = "~" if row.is_first_pass else ""
    rate = f"{about}{number(row.rate_per_replica)}"
    if row.rate_interval is not None:
        rate += f" ({number(row.rate_interval[0])}–{number(row.rate_interval[1])})"
    met = "–" if row.worlds_met is None else f"{row.worlds_met}/{result.draws}"
    cells = [
        row.deployment,
        str(row.num_speculative_tokens or "none"),
        rate,
        *([] if result.rate_per_s is None else [f"{about}{row.replicas}", f"{about}{row.gpus}", met]),
        f"{about}{row.output_tokens_per_s_per_gpu:.0f}",
    ]
    return [*cells, f"{about}{row.usd_per_million_tokens:.2f}"] if has_price and row.usd_per_million_tokens else cells
