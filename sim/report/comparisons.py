"""A comparison on the terminal: policies, or values of keys, with a row each. Not here: its numbers (sim.compare)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sim.acceptance.pairs import YOURS
from sim.compare.capacity import NEAR_SATURATION
from sim.compare.side_by_side import MIN_FOR_P99, Comparison
from sim.compare.verdict import METRIC, STATED, Order, Paired, PolicySummary, Standing, common_key, flips_at
from sim.devices.contention import Regime
from sim.devices.partition import MEASURED
from sim.metrics.load import Verdict
from sim.names import capital, duration, in_words, span
from sim.policies.options import DEFERRED, ONLY_TOGETHER, PARTITION_FLAGS
from sim.report.said import START, SURE, Said
from sim.report.tables import new_table, number
from sim.studies.comparison.in_draws import ONLY_IF
from sim.studies.comparison.varied import Varied
from sim.studies.evidence import REPLAYED
from sim.workload.generate import FIXED_INPUT_LEN, FIXED_OUTPUT_LEN

PASSES = ("prefill", "decode", "draft", "verify")
"""Kinds of a profile's errors that are whole passes."""
OUTPUT = "steady_output_throughput"
IN_BRIEF = (("mean_ttft_ms", "first token"), ("mean_tpot_ms", "per token"), (METRIC, "latency"), (OUTPUT, "tokens/s"))
"""Columns of every comparison."""
NAMES = {
    "mean_ttft_ms": "TTFT mean (ms)",
    "p99_ttft_ms": "TTFT p99 (ms)",
    "mean_tpot_ms": "TPOT mean (ms)",
    "p99_tpot_ms": "TPOT p99 (ms)",
    "p99_itl_ms": "ITL p99 (ms)",
    METRIC: "E2EL mean (ms)",
    OUTPUT: "output (tok/s)",
    "output_throughput": "output (tok/s)",
    "device_utilization": "GPU busy (%)",
}
"""Rows on demand."""
SLO_NAMES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "e2el_ms": "E2EL"}
COLUMN_WIDTH = 20
"""Characters of a policy's column on demand."""
WIDER = 1.5
"""Intervals so many times as wide as the narrowest stand by themselves."""
SHORT_NAME, NEW_LINE = 6, "\n"
"""Characters of a name that a title has beside another word."""
MAX_NOTES, MAX_SENTENCES = 2, 3
"""Notes that are printed, and loads up to which each has its own answer."""
ACCEPTANCE = "Acceptance of"
"""Begins a note on acceptance that nobody gave."""
ACCEPTANCE_ASSUMED = f"Acceptance is assumed. {YOURS}."
ACCEPTANCE_MEASURED = "Acceptance was measured on such prompts. --verbose names who measured it."
WHOLE_RUN = {OUTPUT: "output_throughput", "steady_output_throughput_per_gpu": "output_throughput_per_gpu"}
"""Metrics of the table where all requests arrive at once, so that no part of a run is steady."""


def said_comparison(result: Comparison, console: Console) -> Said:
    """Policies side by side."""
    replayed = [line for line in result.evidence if line.startswith(REPLAYED)]
    return _said([("", result)], "\n".join([*replayed, result.verdict]), [], {}, console)


def said_varied(result: Varied, console: Console) -> Said:
    """Settings under one load or several, and the line that starts the best."""
    answer = result.verdict
    if 1 < len(result.loads) <= MAX_SENTENCES:
        verdicts = [(each.name, each.comparison.verdict) for each in result.loads]
        if len(result.loads[0].comparison.policies) == 1:  # The table has the rest.
            verdicts = [(name, f"{verdict.partition(': ')[0].rstrip('.')}.") for name, verdict in verdicts]
        answer = "\n".join(f"{name}: {verdict}" for name, verdict in verdicts)
    loads = [(each.name, each.comparison) for each in result.loads]
    return _said(loads, answer, result.notes, result.grid, console, result.start.values())


def _said(
    loads: Sequence[tuple[str, Comparison]],
    answer: str,
    assumed: Sequence[str],
    grid: Mapping[str, Any],
    console: Console,
    start: Iterable[str] = (),
) -> Said:
    first = loads[0][1]
    notes = [note for note in first.notes if not note.startswith((ONLY_IF, ACCEPTANCE))]
    doubts = [*level_lines(first), *([] if first.profile.phi is None else _overlap_lines(first)[:1]), *_power(first)]
    doubts += notes[:MAX_NOTES]
    doubts += acceptance_lines([*first.notes, *assumed])
    served = _served(first, [one.length.num_prompts for _, one in loads], (key.rpartition(".")[2] for key in grid))
    lines = [*((SURE, line) for line in doubts), *((START, line) for line in start)]
    return Said(answer, [("", _settings(loads))], lines, partial(_details, served, loads, assumed, console.width))


def acceptance_lines(notes: Iterable[str]) -> list[str]:
    """Where acceptance is from, in one line for several drafters."""
    lines = list(dict.fromkeys(note for note in notes if note.startswith(ACCEPTANCE)))
    if len(lines) < 2:
        return lines
    return [ACCEPTANCE_ASSUMED if any(YOURS in line for line in lines) else ACCEPTANCE_MEASURED]


# -- one table


def _settings(loads: Sequence[tuple[str, Comparison]]) -> Table:
    """A row per setting, those of a load below its name; differences are to the first setting."""
    first = loads[0][1]
    columns = _columns(first)
    base, is_many, has_others = first.policies[0].policy, len(loads) > 1, len(first.policies) > 1
    key = common_key(row.policy for row in first.policies)
    titles = [title for _, title in columns]
    other = base.removeprefix(key)
    titles += [f"against{' ' if len(other) <= SHORT_NAME else NEW_LINE}{other}"] * has_others
    head = key.rstrip("=") or ("scheduler" if has_others or not is_many else "")
    table = new_table([head], titles, [], show_edge=False, padding=(0, 1, 0, 0))
    for name, comparison in loads:
        if is_many and has_others:
            table.add_row(f"[dim]{escape(name)}[/]")
        for row in comparison.policies:
            label = row.policy.removeprefix(key) if has_others or not name else name
            cells = [_cell(comparison, row, _shown(comparison, each)) for each, _ in columns]
            cells += [_against(comparison, row)] * has_others
            style = "bold" if row.verdict is Standing.FASTEST else "dim" if row.unstable else None
            table.add_row(f"{'  ' * (is_many and has_others)}{escape(label)}{_state(row)}", *cells, style=style)
    return table


def _columns(result: Comparison) -> list[tuple[str, str]]:
    """(key, title) of each column."""
    columns = list(IN_BRIEF)
    if any((run.get("num_gpus") or 1) != 1 for run in result.runs):
        columns.append(("steady_output_throughput_per_gpu", "a GPU"))
    if result.scenario["window"]["stop_s"] is not None:
        columns.insert(0, ("completed", "ended"))
    if any(row.load.verdict is Verdict.BURST for row in result.policies):
        columns.append(("duration", "all done\n(s)"))
    if any(row.mean.get("power_w") is not None for row in result.policies):
        columns += [("power_w", "W a GPU"), ("joules_per_output_token", "J a token")]
    if any(bound is not None for bound in result.scenario["goodput"].values()):
        columns += [("request_goodput", "goodput"), ("slo_attainment", "meet SLO\nof finished")]
    return columns


def _shown(result: Comparison, key: str) -> str:
    """`key`, or its neighbour of the whole run where no policy has it."""
    return key if any(row.mean.get(key) is not None for row in result.policies) else WHOLE_RUN.get(key, key)


def _state(row: PolicySummary) -> str:
    """What keeps a mean from being what a longer run would have, and requests that a window cut."""
    states = [] if row.load.verdict in (Verdict.STABLE, Verdict.CLOSED) else [str(row.load.verdict)]
    states += [f"{row.mean['censored']:.0f} unfinished"] if row.mean.get("censored") else []
    return "".join(f"\n  {state}" for state in states)


def _cell(result: Comparison, row: PolicySummary, key: str) -> str:
    if key == "slo_attainment":
        return _slo_cell(result, row.policy)
    mean = row.mean.get(key)
    if mean is None:
        return number(None)
    return "≥ " * (key in row.at_least) + (duration(mean) if key.endswith("_ms") else number(mean))


def _slo_cell(result: Comparison, policy: str) -> str:
    """Share of the finished requests that meet all SLOs, and each of them, over all replications."""
    runs: list[Any] = [run["slo_attainment"] for run in result.runs if run["policy"] == policy]
    means = {name: 100.0 * sum(shares[name] or 0.0 for shares in runs) / len(runs) for name in runs[0]}
    parts = [f"{SLO_NAMES[name]} {value:.0f}" for name, value in means.items() if name != "all"]
    return "\n".join([f"{means.get('all', 0.0):.1f} %", *(parts if len(parts) > 1 else [])])


def _against(comparison: Comparison, row: PolicySummary) -> str:
    """`-59 %` of the first setting's latency; `unsure` where the order is open."""
    first = comparison.policies[0]
    pair = next((p for p in comparison.paired if (p.a, p.b, p.metric) == (row.policy, first.policy, METRIC)), None)
    base = first.mean[METRIC]
    if pair is None or pair.difference is None or not base:
        return ""
    if pair.order is Order.SAME:
        return pair.order.value
    differences = [pair.difference]
    if not first.mean["spec_decode_num_drafts"]:
        differences += [mean - base for each in row.by_prompts.values() if (mean := each[METRIC]) is not None]
    ends = (_pct(100.0 * each / base) for each in (min(differences), max(differences)))
    return f"{span(ends)} %" + " (unsure)" * (pair.order not in STATED)


def _pct(value: float) -> str:
    return "0" if abs(value) < 0.05 else f"{value:+.{1 if abs(value) < 9.95 else 0}f}"


# -- on demand


def _details(
    served: str, loads: Sequence[tuple[str, Comparison]], assumed: Sequence[str], width: int
) -> list[str | Table]:
    """Of each load every metric with its interval, differences, and all that they rest on."""
    lines: list[str | Table] = [f"simulated: {served}", *(f"note: {note}" for note in assumed)]
    for name, result in loads:
        lines += [*[name] * bool(name), *_caps_lines(result)]
        lines += [*_metrics(result, width), *notes(result)]
    return lines


def _first_runs(result: Comparison) -> dict[str, Any]:
    """The first run of each policy, whose engine, caps and partition are those of all."""
    return {row.policy: next(run for run in result.runs if run["policy"] == row.policy) for row in result.policies}


def _caps_lines(result: Comparison) -> list[str]:
    """The caps that all policies share, and those in which they differ; a line of each, if there are any."""
    caps = {policy: run.get("caps") or {} for policy, run in _first_runs(result).items()}
    shared, differing = [], []
    for name in dict.fromkeys(name for by_name in caps.values() for name in by_name):
        known = {policy: by_name[name] for policy, by_name in caps.items() if by_name.get(name) is not None}
        if len(set(known.values())) == 1:
            shared.append(f"{name} {next(iter(known.values()))}")
        elif known:
            differing.append(f"{name} " + " and ".join(f"{value} ({policy})" for policy, value in known.items()))
    return [f"caps: {', '.join(texts)}" for texts in (shared, differing) if texts]


def _metrics(result: Comparison, width: int) -> Iterator[Table]:
    """Tables with a row per metric and a column per policy, as many as fit; below a mean its difference to the
    first's."""
    columns = [_shown(result, key) for key in NAMES if key != "output_throughput"]
    first, at_once = result.policies[0].policy, max(1, (width - 16) // COLUMN_WIDTH)
    pairs = {(row.a, row.metric): row for row in result.paired if row.b == first}
    caption = "mean, ± half of its 95 % interval over replications" if result.scenario["replications"] > 1 else ""
    if pairs:
        caption += f"\nbelow: difference to {first} on the same requests [95 % interval]"
    for start in range(0, len(result.policies), at_once):
        shown = result.policies[start : start + at_once]
        rows = [
            (NAMES[key], *(_with_interval(row, key, pairs.get((row.policy, key))) for row in shown)) for key in columns
        ]
        titles = [row.policy for row in shown]
        yield new_table([""], titles, rows, show_edge=False, padding=(0, 1), caption=caption.strip() or None)


def _with_interval(row: PolicySummary, key: str, pair: Paired | None) -> str:
    mean, interval = row.mean[key], row.ci95[key]
    scale = 100.0 if key == "device_utilization" else 1.0
    if mean is None:
        return number(None)
    text = "≥ " * (key in row.at_least) + number(mean * scale)
    text += "" if interval is None else f" ±{number((interval[1] - interval[0]) / 2 * scale)}"
    return text if pair is None or pair.difference is None else f"{text}\n{_difference(pair, pair.difference)}"


def _difference(row: Paired, difference: float) -> str:
    text, phi = f"{'+' * (difference > 0)}{number(difference)}", flips_at(row)
    if phi is not None or row.order in (Order.OVERLAP, Order.DRAWS, Order.REPLAYS):
        return f"{text}\n{row.order.value}" + ("" if phi is None else f"\nphi* {phi}")
    return text + ("\n[{}, {}]".format(*map(number, row.interval)) if row.interval else "")


def notes(result: Comparison) -> list[str]:
    """All that the table rests on."""
    errors = result.profile.errors
    known = span(f"{value:.1f}" for value in sorted(value for value in errors.values() if value is not None))
    lines = [f"Mean errors of GPU times, where no fit saw them: {f'{known} %' if known else 'not stated'}"]
    unknown = [kind for kind, value in errors.items() if value is None]
    if unknown:
        lines[0] += f". Not checked: {', '.join(unknown)}"
    accepted = [row.mean["spec_decode_acceptance_length"] for row in result.policies]
    lengths = [length for length in accepted if length is not None]
    if lengths:
        shown = span(f"{length:.2f}" for length in sorted(lengths))
        lines.append(f"acceptance length (tokens per verify): {shown}")
    engine = sorted(max(0.0, level.engine_pct) for level in result.levels if level.engine_pct is not None)
    if engine and engine[-1] >= 0.5:
        adds = span(f"{each:.0f}" for each in engine)
        lines.append(f"The engine's own times are averages over machines. That adds {adds} % to the range of latency.")
    lines += _overlap_lines(result) + _partition_lines(result)
    lines += _tail_lines(result)
    if result.length.num_cooldowns:
        lines.append("output: tokens that come before the last arrival that is measured")
    elif _shown(result, "steady_output_throughput") == "output_throughput":
        lines.append("output: tokens of the whole run, the drain included, as vLLM counts")
    else:
        lines.append(
            "output: tokens that come before the last arrival, or until the end where that is more. With the drain, as "
            "vLLM counts, in the JSON"
        )
    left_out = [(result.length.num_warmups, "first"), (result.length.num_cooldowns, "last")]
    parts = [f"the {which} {count}" for count, which in left_out if count]
    if parts:
        lines.append(f"{' and '.join(parts)} requests of each run are left out" + " (MSER-5)" * result.length.is_auto)
    if result.scenario["replications"] < 2:
        lines.append("no intervals: they need --replications 2 or more")
    # The answer begins with replays of this very set-up.
    evidence = [line for line in result.evidence if not line.startswith(REPLAYED)]
    return [*lines, *result.notes, *evidence]


def _overlap_lines(result: Comparison) -> list[str]:
    """The value of phi, and where overlap was not measured what each policy with several streams gives over it."""
    profile, devices = result.profile, result.scenario["devices"]
    phi = profile.phi
    if phi is None:
        return [f"overlap of streams: {profile.overlap}"]
    if devices["overlap"] == Regime.ROOFS:
        return ["Overlap of streams: an upper bound, as requested. No order of lanes is stated."]
    if devices["overlap"] is not None or devices.get("phi") is not None:
        given = phi.value if devices.get("phi") is None else devices["phi"]
        shown = "none" if devices["overlap"] == Regime.SERIAL else f"phi {given:g}"
        return [f"Overlap of streams: {shown}, as requested. Other values were not tried."]
    lanes = [row for row in result.policies if row.by_overlap]
    if not lanes:
        return []
    lines = [f"Overlap of streams (phi) was varied from {phi.low:g} to {phi.high:g}.", f"source of phi: {phi.source}"]
    for metric in ("mean_e2el_ms", _shown(result, "steady_output_throughput")):
        for row in lanes:
            means = " / ".join(number(means[metric]) for means in row.by_overlap.values())
            lines.append(f"{NAMES[metric]} of {row.policy} at phi {phi.low:g} / {phi.value:g} / {phi.high:g}: {means}")
    return lines


def _partition_lines(result: Comparison) -> list[str]:
    """Shares of the multiprocessors that lanes have, and the errors of their curves."""
    lines = []
    for row in result.policies:
        shares = _first_runs(result)[row.policy]["partition"]
        if isinstance(shares, dict):
            parts = [f"{lane} {share:g}" for lane, share in shares.items() if lane not in PARTITION_FLAGS]
            while_ = " while several lanes have work" if shares.get(ONLY_TOGETHER) else ""
            deferred = ", prompts from round end to round end" if shares.get(DEFERRED) else ""
            lines.append(f"{row.policy}: {', '.join(parts)}{while_}{deferred}")
    if lines:
        measured = result.profile.errors.get("partition")
        known = {"here": measured} if measured is not None else MEASURED.errors_pct
        alone = ", ".join(f"{name} {error:.3g} %" for name, error in known.items())
        lines.insert(0, f"shares of the multiprocessors (mean errors of their curves: {alone}):")
    return lines


def _tail_lines(result: Comparison) -> list[str]:
    """Distance from an interval where only the tail lacks one."""
    counts = [
        row.mean["effective_requests"] or 0.0
        for row in result.policies
        if row.ci95["mean_e2el_ms"] is not None and row.ci95["p99_e2el_ms"] is None
    ]
    if not counts:
        return []
    count = number(result.scenario["replications"] * min(counts))
    return [
        f"p99 has no interval: {count} independent requests in all where {MIN_FOR_P99:,} are wanted (neighbours in "
        "time resemble each other)"
        + ". Near saturation it is too low, and marked ≥"
        * any(row.at_least for row in result.policies)
    ]


def _power(result: Comparison) -> list[str]:
    """The error of watts and joules, where they were requested."""
    gpu = result.profile.name.partition("/")[0]
    if all(row.mean.get("power_w") is None for row in result.policies):
        return [f"Power of {gpu} was never measured."] * bool(result.scenario.get("energy"))
    return ["Power was within 15 % on A100s." if gpu == "a100-sxm" else f"Power was measured on A100s, not on {gpu}."]


def level_lines(result: Comparison) -> list[str]:
    """Distances that latencies may have from a server's, end to end, and what slower steps do near saturation."""
    if not result.levels:
        is_near = any(row.load.share > NEAR_SATURATION for row in result.policies)
        beyond = "No error was measured so near to the highest rate that can be served, or above it."
        return [costs_line(result.profile.errors), *[beyond] * is_near]
    widths = {level.policy: 100.0 * (level.interval[1] / level.mean_e2el_ms - 1.0) for level in result.levels}
    least = min(widths.values())
    alike = [level for level in result.levels if widths[level.policy] <= WIDER * least]
    below = max(100.0 * (1.0 - level.interval[0] / level.mean_e2el_ms) for level in alike)
    others = [
        f"{policy} {width:.0f} %" if width < 100.0 else f"{policy} {1.0 + width / 100.0:.1f} times"
        for policy, width in widths.items()
        if width > WIDER * least
    ]
    count = result.levels[0].num_set_ups
    like_it = (
        f"{count} servers like it were" if count > 1 else "One server like it was" if count else "No server like it was"
    )
    higher = ", ".join([f"{least:.0f} % higher", *others])
    text = f"Your server's latency: {below:.0f} % lower to {higher} (19 of 20 cases). {like_it} measured."
    if reasons := list(dict.fromkeys(reason for level in result.levels for reason in level.wider)):
        text += f" The range is wider, since {in_words(reasons)}."
    steep = [
        f"{level.policy} is near its limit: steps 1 % slower make its latency {level.elasticity:.1f} % longer."
        for level in result.levels
        if level.elasticity is not None
    ]
    return [text, *map(capital, steep)]


def costs_line(errors: Mapping[str, float | None]) -> str:
    """Held-out errors of whole passes."""
    stated = {kind: errors[kind] for kind in PASSES if kind in errors}
    if not any(value is not None for value in stated.values()):
        return "The error of GPU times was not measured."
    shown = [f"{kind} {'unknown' if value is None else f'{value:.1f} %'}" for kind, value in stated.items()]
    return f"Error of GPU times: {', '.join(shown)}."


def _served(first: Comparison, counts: Iterable[int], varied: Iterable[str] = ()) -> str:
    """Profile and engine, load and runs, without the keys that are `varied`."""
    workload, speculation, keys = first.scenario["workload"], first.scenario["speculation"], set(varied)
    shown = [] if keys & {"gpu", "profile"} else [first.profile.name]
    if not keys & {"engine", "name"}:
        shown += [f"engine {', '.join(dict.fromkeys(str(run.get('engine')) for run in first.runs))}"]
    rate = "" if "request_rate" in keys else f" at {workload['request_rate']}/s"
    shown.append(
        f"{span(map(str, counts))} requests{' as recorded' * (workload['trace_arrivals'] == 'recorded') or rate}"
    )
    if workload["max_concurrency"] and "max_concurrency" not in keys:
        shown.append(f"at most {workload['max_concurrency']} at once")
    lengths = [workload["input_len"] or FIXED_INPUT_LEN, workload["output_len"] or FIXED_OUTPUT_LEN]
    is_fixed = workload["dataset_name"] == "fixed" and not keys & {"context", "input_len", "output_len"}
    shown.append("{} tokens in, {} out".format(*lengths) if is_fixed else f"{workload['dataset_name']} lengths")
    if not keys:
        drafts = any(row.mean["spec_decode_num_drafts"] for row in first.policies)
        quoted = f"k={speculation['num_speculative_tokens']}, {speculation['acceptance']}"
        shown.append(quoted if drafts else "no speculation")
    count = first.scenario["replications"]
    return f"{', '.join(shown)}, {count} run{'s' * (count > 1)} each on the same requests"
