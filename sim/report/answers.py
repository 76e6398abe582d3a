"""Answers of studies on the terminal: tables, what they rest on, and a sentence each. Not here: the answers themselves
(sim.studies), comparisons (tables), pages (page)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from sim.compare.side_by_side import CostSource
from sim.compare.verdict import Interval
from sim.names import in_words
from sim.report.pictures.store_pictures import named
from sim.report.store_points import StorePoints
from sim.report.tables import costs_line, in_brief, measured_width, new_table, number, print_table, say
from sim.studies.attainment import Attainment, Fleet, Highest
from sim.studies.contexts.tuning import ContextTuning
from sim.studies.load_search import Limit
from sim.studies.load_table import PolicyTuning
from sim.studies.tune import IDLE, Tuning


def print_tuning(console: Console, result: Tuning, *, is_verbose: bool = False) -> None:
    """The lengths by concurrency, what to type, what it rests on in at most four lines, and last the sentence."""
    lengths = result.points[0].lengths
    shown = [length.k for length in lengths]
    table = _tuning_table(result, shown)
    while len(shown) > 2 and measured_width(console, table) > console.width:
        least = min(shown[1:], key=lambda k: (_weight(result, k), k))
        shown.remove(least)
        table = _tuning_table(result, shown)
    say(console, f"{result.objective} against no speculation, by draft length K")
    print_table(console, table)
    deployment = result.deployment
    if deployment.start:
        say(console, deployment.start)
    if deployment.sglang_adaptive_config is not None:
        say(console, f"speculative_adaptive.json: {json.dumps(deployment.sglang_adaptive_config)}")
    notes = [*deployment.notes, *(note for note in result.notes if not note.startswith(IDLE))]
    if is_verbose:
        gain = result.gain
        if len(result.table) == 1 and gain.mean > 0.0:
            mean, low, high = (100 * share for share in (gain.mean, *gain.interval))
            say(console, f"a table by batch size over {gain.over}: {mean:+.1f} % ({low:+.1f} to {high:+.1f})")
        loss = f"{100 * result.expected_regret:.1f} %"
        say(console, f"expected loss: {loss} against the best, in draws that did not choose it")
        say(console, f"intervals: 5 to 95 % of {result.draws} {result.covers}")
        _say_all(console, result.profile, notes, result.evidence)
    else:
        lines = [costs_line(result.profile.errors), f"intervals: 5 to 95 % of {result.draws} draws"]
        for line in in_brief(lines, result.evidence, notes):
            say(console, line, "dim")
    say(console, tuning_sentence(result), "bold")


def _say_all(console: Console, profile: CostSource, notes: Sequence[str], evidence: Sequence[str]) -> None:
    for line in (f"costs: {profile.source}", *(f"note: {note}" for note in notes), *evidence):
        say(console, line)


def _tuning_table(result: Tuning, shown: Sequence[int]) -> Table:
    """A row per concurrency, a column per draft length of `shown`."""
    lacking = len(result.points[0].lengths) - len(shown)
    captions = [note for note in result.notes if note.startswith(IDLE) and 0 in shown]
    captions += [f"{lacking} of the lengths that were tried are in the JSON alone"] if lacking else []
    drafts = result.deployment.speculative_config is not None
    rows = []
    for point in result.points:
        interval = "–" if point.interval is None else f"{point.interval[0]:.2f} to {point.interval[1]:.2f}"
        speedups = {length.k: length.speedup for length in point.lengths}
        times = [_times(speedups[k], is_chosen=k == point.k and drafts) for k in shown]
        answer = [str(point.k) if drafts else "none", interval, f"{100.0 * point.expected_regret:.1f} %"]
        rows.append([str(point.concurrency), *times, *answer])
    titles = ["in flight", *map(str, shown), "answer", "5 to 95 %", "regret"]
    return new_table([], titles, rows, caption="\n".join(captions), caption_justify="left")


def _weight(result: Tuning, k: int) -> float:
    """How much a reader misses of a length that is left out: the answer's own above all."""
    chances = [length.chance_best for point in result.points for length in point.lengths if length.k == k]
    return max(chances) + (1.0 if any(point.k == k for point in result.points) else 0.0)


def print_contexts(console: Console, result: ContextTuning) -> None:
    """A line per context, the rows for vLLM, and what one table for all loses."""
    table = Table(box=SIMPLE_HEAD, title=f"{result.objective}: draft length K by batch size and context")
    for name in ("prompt", "K by batch size", "break-even", "regret", "of one table for all"):
        table.add_column(name, justify="left" if name == "K by batch size" else "right")
    for each in result.contexts:
        lengths = ", ".join(f"{k} for {first}..{last}" for first, last, k in each.table)
        even = "–" if each.break_even_concurrency is None else number(each.break_even_concurrency)
        regrets = (f"{100 * regret:.1f} %" for regret in (each.regret, each.regret_without))
        table.add_row(str(each.prompt_tokens), lengths, even, *regrets)
    print_table(console, table)
    say(console, f"num_speculative_tokens_per_batch_size, as vllm#48627 proposes it: {json.dumps(result.table)}")
    say(console, f"regrets: mean over {result.draws} {result.covers}", "dim")
    for line in result.not_simulated:
        say(console, f"not simulated: {line}")
    mean, without = 100 * result.regret, 100 * result.regret_without
    losses = f"a table for each context loses {mean:.1f} %, one for all of them {without:.1f} %"
    say(console, f"{result.verdict}; {losses}", "bold")


def print_policies(console: Console, result: PolicyTuning) -> None:
    """The policies by concurrency, the verdict, and what to write into a scenario."""
    title = f"{result.objective} against the policy chosen, least and most over overlap"
    names = [candidate.policy for candidate in result.points[0].candidates]
    table = new_table([], ["in flight", *names], [], padding=(0, 1), title=title)
    table.add_column("chosen")
    for point in result.points:
        cells = []
        for candidate in point.candidates:
            low = min(interval[0] for interval in candidate.by_overlap.values())
            high = max(interval[1] for interval in candidate.by_overlap.values())
            is_chosen = candidate.policy == point.policy
            cells.append(number(candidate.value) if is_chosen else f"{100 * low:+.1f} to {100 * high:+.1f} %")
        table.add_row(str(point.concurrency), *cells, point.policy)
    print_table(console, table)
    rows = ", ".join(f"[{start}, {policy}]" for start, policy in result.adaptive_table)
    options = f"policy_options: {{adaptive_table: [{rows}], hysteresis: {result.hysteresis:g}}}"
    say(console, options)
    console.print(f"intervals: 95 % over {result.draws} {result.covers}", soft_wrap=True, highlight=False, style="dim")
    say(console, result.verdict, "bold")


def _times(speedup: float | None, *, is_chosen: bool) -> str:
    if speedup is None:
        return "–"
    return f"[bold]{speedup:.2f}[/bold]" if is_chosen else f"{speedup:.2f}"


def print_attainment(console: Console, result: Attainment, *, is_verbose: bool = False) -> None:
    """One row per policy, one per fleet for the target rate, what they rest on, and last the sentence."""
    unit, saturated = ("in flight", "saturated req/s") if result.of == "concurrency" else ("req/s", "saturated")
    has_draws = any(found.draws_interval is not None for found in result.highest)
    has_price = any(found.usd_per_million_tokens is not None for found in result.highest)
    columns = [unit, "95 % of runs", *["90 % of draws"] * has_draws, saturated, "tok/s", *["$/M tokens"] * has_price]
    rows = [
        [
            found.policy,
            _load(found),
            _range(found.ci95),
            *[_range(found.draws_interval)] * has_draws,
            number(found.saturated_per_s),
            number(found.output_tokens_per_s),
            *[number(found.usd_per_million_tokens)] * has_price,
        ]
        for found in result.highest
    ]
    say(console, f"highest {result.of} at which {100 * result.share:g} % of requests meet all SLOs")
    print_table(console, new_table(["policy"], columns, rows))
    if result.fleets:
        say(console, f"replicas for {result.target_rate:g} requests/s")
        print_table(console, _fleet_table(result))
    if is_verbose:
        for found in result.highest:
            say(console, _limit(found, result.share))
        for fleet in result.fleets:
            say(console, _replicas(fleet, result))
        if result.draws:
            say(console, f"over {result.draws} {result.covers}")
        _say_all(console, result.profile, result.notes, result.evidence)
    else:
        lines = [costs_line(result.profile.errors)]
        if result.draws:
            lines.append(f"draws: {result.draws} of costs and acceptance within their errors")
        for line in in_brief(lines, result.evidence, result.notes):
            say(console, line, "dim")
    say(console, attainment_sentence(result), "bold")


def _fleet_table(result: Attainment) -> Table:
    """A row per policy and routing."""
    rows = []
    for fleet in result.fleets:
        shares = (fleet.utilisation, fleet.confidence)
        percents = ["–" if share is None else f"{100 * share:.0f} %" for share in shares]
        count = "none" if fleet.replicas is None else str(fleet.replicas)
        rows.append([fleet.policy, fleet.routing, count, *percents, number(fleet.usd_per_million_tokens)])
    return new_table(["policy", "routing"], ["replicas", "utilised", "confidence", "$/M tokens"], rows)


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


# -- sentences


def tuning_sentence(result: Tuning) -> str:
    """Which length to draft, what it gains and up to which load."""
    loads = _span([str(point.concurrency) for point in result.points])
    middle = result.break_even_concurrency
    if result.deployment.speculative_config is None:
        if middle == 0.0:
            return f"no speculation: no draft length pays at {loads} requests in flight"
        from_load, to_load = (_at_load(value, result) for value in result.break_even_interval)
        return (
            f"no speculation: over {loads} requests in flight every draft length loses more than it gains; drafting "
            f"pays up to {_at_load(middle, result)} in flight ({from_load} to {to_load} in 90 % of draws)"
        )
    if len(result.table) == 1:
        text = f"draft {result.table[0][2]} tokens, whatever the load"
    else:
        text = "draft by batch size, " + ", ".join(f"{k} tokens at {start} to {end}" for start, end, k in result.table)
    known = [(p.speedup, p.interval) for p in result.points if p.speedup is not None and p.interval is not None]
    if known:
        low, high = min(interval[0] for _, interval in known), max(interval[1] for _, interval in known)
        gains = _span([f"{speedup:.2f}" for speedup, _ in sorted(known)])
        text += (
            f": {gains} times the {result.objective} of no speculation at {loads} requests in flight "
            f"({low:.2f} to {high:.2f} in 90 % of draws)"
        )
    if result.gain.is_sure and len(result.table) > 1:
        text += f", {100.0 * result.gain.mean:.1f} % more than {result.gain.over} at every load"
    if middle is None:
        return f"{text}; drafting pays at every load tried"
    from_load, to_load = (_at_load(value, result) for value in result.break_even_interval)
    return (
        f"{text}; in half of the draws no draft length gains anything above {middle:.0f} in flight ({from_load} to "
        f"{to_load} in 90 %)"
    )


def _at_load(value: float | None, result: Tuning) -> str:
    return f"more than {result.points[-1].concurrency}" if value is None else f"{value:.0f}"


def _span(values: Sequence[str]) -> str:
    return values[0] if values[0] == values[-1] else f"{values[0]} to {values[-1]}"


def attainment_sentence(result: Attainment) -> str:
    """The policy that holds most load within the SLOs, and the fewest replicas for the target rate."""
    unit = "requests in flight" if result.of == "concurrency" else "requests/s"
    ranked = sorted(result.highest, key=_held, reverse=True)
    parts = [_holds(ranked[0], result, unit)]
    parts += [f"{found.policy} {_load(found)}" for found in ranked[1:]]
    enough = [fleet for fleet in result.fleets if fleet.replicas is not None]
    if enough:
        fewest = min(enough, key=lambda fleet: fleet.replicas or 0)
        parts.append(_fewest(fewest, result))
        alike = dict.fromkeys(fleet.policy for fleet in enough if fleet.replicas == fewest.replicas)
        others = [policy for policy in alike if policy != fewest.policy]
        if others:
            parts.append(f"as many of {in_words(others)} do")
    elif result.target_rate is not None:
        parts.append(f"no number of replicas holds {result.target_rate:g} requests/s within them")
    return "; ".join(parts)


def _holds(found: Highest, result: Attainment, unit: str) -> str:
    share = f"{100 * result.share:g} % of requests within the SLOs"
    if found.limit is Limit.NEVER:
        return f"{found.policy} holds no load with {share}: a request that is alone misses them"
    if found.limit is Limit.UNBOUNDED or found.load is None:
        return f"{found.policy} holds every load with {share}: none of them bounds the waiting"
    ranges = []
    if found.ci95 is not None:
        ranges.append(f"{_range(found.ci95)} over runs")
    if found.draws_interval is not None:
        ranges.append(f"{_range(found.draws_interval)} in 90 % of draws")
    text = f"{found.policy} holds {number(found.load)} {unit} with {share}"
    if ranges:
        text += f" ({', '.join(ranges)})"
    if found.limit is Limit.THROUGHPUT:
        return f"{text}: all that it can serve"
    missed = {name: value for name, value in found.attainment.items() if name != "all" and value is not None}
    first = min(missed, key=lambda name: missed[name]).removesuffix("_ms").upper() if missed else "an SLO"
    text += f"; {first} is missed first"
    if found.usd_per_million_tokens is not None:
        text += f"; ${number(found.usd_per_million_tokens)} per million output tokens there"
    return text


def _fewest(fleet: Fleet, result: Attainment) -> str:
    count = fleet.replicas
    text = (
        f"{result.target_rate:g} requests/s take {count} replica{'s' * (count != 1)} of {fleet.policy} ({fleet.routing}"
    )
    if fleet.confidence is not None:
        text += f", enough with {100 * fleet.confidence:.0f} % confidence"
    text += ")"
    if fleet.usd_per_million_tokens is not None:
        text += f", ${number(fleet.usd_per_million_tokens)} per million output tokens"
    return text


def _held(found: Highest) -> float:
    if found.limit is Limit.UNBOUNDED:
        return float("inf")
    return found.load or 0.0


def sweep_sentence(points: StorePoints) -> str:
    """Which setting has the lowest mean E2EL, under how many of the conditions, and how often that is clear."""
    settings = [key for key in points.keys if key not in points.conditions]
    ranks = points.ranked("mean_e2el_ms")
    bests = Counter(named(rank.best, settings) for rank in ranks if rank.best is not None)
    num_clear = sum(
        rank.change is not None and rank.change["is_clear"] and not rank.change["is_open"] for rank in ranks
    )
    if not bests:
        return "no setting keeps up with any load"
    if not settings:
        return f"one setting under {len(ranks)} loads: `lanesim report` compares nothing"
    many = len(ranks) > 1
    shown = "; ".join(f"{name}{f' at {count} of {len(ranks)} loads' * many}" for name, count in bests.most_common())
    clear = f"clear at {num_clear or 'none'}" if many else "clear" if num_clear else "not clear"
    return f"lowest mean E2EL: {shown} ({clear}); `lanesim report` has all"
