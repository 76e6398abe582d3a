"""Answers of studies on the terminal and as JSON. Not here: the answers (sim.studies), comparisons (tables)."""

from __future__ import annotations

import json
from functools import partial

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from sim.compare.side_by_side import Interval
from sim.report.tables import number, print_table
from sim.studies.attainment import Attainment, Fleet, Highest
from sim.studies.load_search import Limit
from sim.studies.load_table import PolicyTuning
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
    print_table(console, table)
    say = partial(console.print, highlight=False, markup=False, soft_wrap=True)
    say(f"verdict: {result.verdict}")
    gain = result.gain
    low, high = gain.interval
    say(
        f"{gain.of} over {gain.over}: {100 * gain.mean:+.1f} % ({100 * low:+.1f} to {100 * high:+.1f})"
        + ("" if gain.is_sure else ", which may be nothing")
    )
    for gain in result.dynamic:
        low, high = gain.interval
        worth = "worth it" if gain.is_sure else "not worth it for sure"
        say(f"{gain.of} over {gain.over}: {100 * gain.mean:+.1f} % ({100 * low:+.1f} to {100 * high:+.1f}), {worth}")
    say(f"break-even: {_break_even(result)}")
    say(f"expected regret against the best length of draws that did not choose: {100 * result.expected_regret:.1f} %")
    deployment = result.deployment
    say(deployment.vllm_serve)
    if deployment.sglang_flags:
        say(f"python -m sglang.launch_server {deployment.sglang_flags}")
    if deployment.sglang_adaptive_config is not None:
        text = json.dumps(deployment.sglang_adaptive_config)
        say(f"speculative_adaptive.json: {text}")
    for note in deployment.notes:
        say(f"note: {note}")
    say(f"intervals: 5 to 95 % of {result.draws} {result.covers}")
    for note in result.notes:
        say(f"note: {note}")
    for line in result.evidence:
        say(line)


def print_policies(console: Console, result: PolicyTuning) -> None:
    """The policies by concurrency, the verdict, and what to write into a scenario."""
    table = Table(box=SIMPLE_HEAD, title=f"{result.objective} against the policy chosen, least and most over overlap")
    table.add_column("in flight", justify="right")
    shown = [candidate.policy for candidate in result.points[0].candidates]
    for policy in shown:
        table.add_column(policy, justify="right")
    table.add_column("chosen")
    for point in result.points:
        cells = []
        for candidate in point.candidates:
            low = min(interval[0] for interval in candidate.by_overlap.values())
            high = max(interval[1] for interval in candidate.by_overlap.values())
            is_chosen = candidate.policy == point.policy
            cells.append(number(candidate.value) if is_chosen else f"{100 * low:+.1f} to {100 * high:+.1f} %")
        table.add_row(str(point.concurrency), *cells, point.policy)
    console.print(table)
    console.print(f"verdict: {result.verdict}", highlight=False)
    rows = ", ".join(f"[{start}, {policy}]" for start, policy in result.adaptive_table)
    options = f"policy_options: {{adaptive_table: [{rows}], hysteresis: {result.hysteresis:g}}}"
    console.print(options, soft_wrap=True, highlight=False, markup=False)
    console.print(f"intervals: 95 % over {result.draws} {result.covers}", soft_wrap=True, highlight=False)


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


def print_attainment(console: Console, result: Attainment) -> None:
    """One row per policy, then the replicas for the target rate."""
    unit = "in flight" if result.of == "concurrency" else "requests/s"
    has_draws = any(found.draws_interval is not None for found in result.highest)
    has_price = any(found.usd_per_million_tokens is not None for found in result.highest)
    table = Table(
        box=SIMPLE_HEAD, title=f"highest {result.of} at which {100 * result.share:g} % of requests meet all SLOs"
    )
    table.add_column("policy", no_wrap=True)
    columns = [unit, "95 % of runs", *(["90 % of draws"] if has_draws else []), "saturated/s", "output tok/s"]
    for name in (*columns, *(["$/M tokens"] if has_price else [])):
        table.add_column(name, justify="right")
    for found in result.highest:
        cells = [_load(found), _range(found.ci95), *([_range(found.draws_interval)] if has_draws else [])]
        cells += [number(found.saturated_per_s), number(found.output_tokens_per_s)]
        table.add_row(found.policy, *cells, *([number(found.usd_per_million_tokens)] if has_price else []))
    print_table(console, table)
    say = partial(console.print, highlight=False, markup=False, soft_wrap=True)
    for found in result.highest:
        say(_limit(found, result.share))
    for fleet in result.fleets:
        say(_replicas(fleet, result))
    if result.draws:
        say(f"over {result.draws} {result.covers}")
    for note in result.notes:
        say(f"note: {note}")
    for line in result.evidence:
        say(line)


def _range(interval: Interval | None) -> str:
    return "–" if interval is None else f"{number(interval[0])} to {number(interval[1])}"


def _load(found: Highest) -> str:
    if found.load is None:
        return found.limit.value
    return number(found.load)


def _limit(found: Highest, share: float) -> str:
    """Why the load ends there."""
    shares = ", ".join(
        f"{name.removesuffix('_ms')} {100 * value:.1f} %"
        for name, value in found.attainment.items()
        if value is not None and name != "all"
    )
    if found.limit is Limit.NEVER:
        return f"{found.policy}: never; requests that are alone meet {shares} of them"
    if found.limit is Limit.UNBOUNDED:
        return f"{found.policy}: unbounded; these SLOs hold with every request at once, since none bounds the waiting"
    if found.limit is Limit.THROUGHPUT:
        return f"{found.policy}: as much as it can serve at all; the SLOs hold up to there ({shares})"
    here = f"at it, the mean of {found.replications} runs' own, {shares}"
    return f"{found.policy}: beyond it fewer than {100 * share:g} % meet them; {here}"


def _replicas(fleet: Fleet, result: Attainment) -> str:
    head = f"{fleet.policy}, {fleet.routing}, {result.target_rate:g} requests/s: "
    if fleet.enough is None:
        return head + "no number of replicas meets the SLOs"
    enough, fewer = fleet.enough, fleet.one_fewer
    as_given = (
        f"{100 * enough.attainment:.1f} % meet the SLOs, {100 * enough.ci95[0]:.1f} to {100 * enough.ci95[1]:.1f}"
    )
    if fewer is not None:
        as_given += f"; {fewer.replicas} do not, {100 * fewer.attainment:.1f} %"
    text = f"{head}{fleet.replicas} replicas"
    if fleet.utilisation is not None:
        text += f", {100 * fleet.utilisation:.0f} % utilised"
    if fleet.usd_per_million_tokens is not None:
        text += f", ${number(fleet.usd_per_million_tokens)} per million output tokens"
    if fleet.confidence is None:
        return f"{text} ({as_given})"
    text += f", enough with {100 * fleet.confidence:.0f} % confidence: {_needed(fleet, result.draws)}\n"
    return text + f"  costs and acceptance as given: {enough.replicas} ({as_given})"


def _needed(fleet: Fleet, draws: int) -> str:
    """Such as: 4 replicas in 11 of 20 draws, 5 in 9."""
    parts = [f"{'more' if count is None else count} in {number_of}" for count, number_of in fleet.needed]
    (first, number_of), *_ = fleet.needed
    parts[0] = f"{'more' if first is None else first} replicas in {number_of} of {draws} draws"
    return ", ".join(parts)
