"""Tables for the terminal. Not here: the numbers in them (sim.compare.side_by_side)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sim.compare.side_by_side import MIN_FOR_P99, Comparison
from sim.compare.verdict import Order, Paired, PolicySummary, flips_at, placed
from sim.devices.contention import Regime
from sim.devices.partition import MEASURED
from sim.metrics.load import Verdict
from sim.names import in_words, span
from sim.policies.options import DEFERRED, ONLY_TOGETHER, PARTITION_FLAGS
from sim.report.layout import measured_width, new_table, number, print_table, say
from sim.studies.cost_draws import ONLY_IF
from sim.studies.evidence import shortened

PASSES = ("prefill", "decode", "draft", "verify")
"""Kinds of a profile's errors that are whole passes."""
HOW_TO = "--verbose has all that this rests on"
HEADLINE = (
    ("mean_ttft_ms", "TTFT", "mean ms"),
    ("p99_ttft_ms", "TTFT", "p99 ms"),
    ("mean_tpot_ms", "TPOT", "mean ms"),
    ("p99_tpot_ms", "TPOT", "p99 ms"),
    ("p99_itl_ms", "ITL", "p99 ms"),
    ("mean_e2el_ms", "E2EL", "mean ms"),
    ("steady_output_throughput", "output", "tok/s"),
    ("device_utilization", "GPU", "busy %"),
)
COLUMN_WIDTH = 11
"""Width of a number with its interval below, where policies stand side by side because metrics do not fit so."""
WIDER = 1.5
"""Intervals so many times as wide as the narrowest stand by themselves."""
SLO_NAMES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "e2el_ms": "E2EL"}
PAIRED_SHOWN = ("mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms", "steady_output_throughput")
NAMES = {
    "mean_ttft_ms": "TTFT mean (ms)",
    "mean_tpot_ms": "TPOT mean (ms)",
    "mean_e2el_ms": "E2EL mean (ms)",
    "steady_output_throughput": "output (tok/s)",
    "output_throughput": "output (tok/s)",
}
WHOLE_RUN = {
    "steady_output_throughput": "output_throughput",
    "steady_output_throughput_per_gpu": "output_throughput_per_gpu",
}
"""Metrics of the table where all requests arrive at once, so that no part of a run is steady."""


def comparison_tables(
    console: Console, result: Comparison, percentiles: Sequence[float] = (), *, is_verbose: bool = False
) -> None:
    """The comparison of `sim.compare.side_by_side.compare`: the sentence, a row per policy, paired differences to the
    first, and what it rests on in at most four lines (all of it where `is_verbose`).

    `percentiles` that were requested get further columns.
    """
    say(console, result.verdict, "bold")
    for line in _head(result, is_verbose=is_verbose):
        console.print(line, highlight=False)
    for table in _policies(result, _columns(result, percentiles), console):
        print_table(console, table)
    if len(result.policies) > 1:
        print_table(console, _paired(result))
    for line in notes(result) if is_verbose else comparison_in_brief(result):
        say(console, line, "dim")


def _head(result: Comparison, *, is_verbose: bool) -> list[str]:
    """Scenario, and the caps in which policies differ; those of all, and how steps are planned, on demand."""
    scenario = result.scenario
    workload, speculation = scenario["workload"], scenario["speculation"]
    is_recorded = workload["trace_arrivals"] == "recorded"
    pace = "as recorded" if is_recorded else f"at {workload['request_rate']}/s"
    load = f"{result.length.num_prompts} requests {pace}"
    if workload["max_concurrency"]:
        load += f", at most {workload['max_concurrency']} at once"
    engine = result.runs[0].get("engine")
    drafts = "no speculation"
    if any(row.mean["spec_decode_num_drafts"] for row in result.policies):
        drafts = f"k={speculation['num_speculative_tokens']}, {speculation['acceptance']}"
    lines = [
        f"[bold]{escape(result.profile.name)}[/]  {escape(f'engine {engine}, ') if engine else ''}{escape(load)}, "
        f"{escape(workload['dataset_name'])} lengths, {escape(drafts)}, "
        f"{scenario['replications']} replication{'s' * (scenario['replications'] > 1)} from seed {scenario['seed']}"
    ]
    shared, differing = _caps_lines(result)
    return [*lines, *shared, *differing, _scheduling_line(result)] if is_verbose else lines + differing


def _scheduling_line(result: Comparison) -> str:
    """Policies by the way in which they hide the host's time behind the GPU's."""
    names = {None: "planned between works", True: "planned while the GPU works", False: "planned after each step"}
    by_regime: dict[str, list[str]] = {}
    for policy, run in _first_runs(result).items():
        by_regime.setdefault(names[run["async_scheduling"]], []).append(policy)
    return "host: " + "; ".join(f"{regime} ({', '.join(policies)})" for regime, policies in by_regime.items())


def _first_runs(result: Comparison) -> dict[str, Any]:
    """The first run of each policy, whose engine, caps and partition are those of all."""
    return {row.policy: next(run for run in result.runs if run["policy"] == row.policy) for row in result.policies}


def _caps_lines(result: Comparison) -> tuple[list[str], list[str]]:
    """The caps that all policies share, and those in which they differ; a line of each, if there are any."""
    caps = {policy: run.get("caps") or {} for policy, run in _first_runs(result).items()}
    shared, differing = [], []
    for name in dict.fromkeys(name for by_name in caps.values() for name in by_name):
        known = {policy: by_name[name] for policy, by_name in caps.items() if by_name.get(name) is not None}
        if len(set(known.values())) == 1:
            shared.append(f"{name} {next(iter(known.values()))}")
        elif known:
            differing.append(f"{name} " + ", ".join(f"{value} ({policy})" for policy, value in known.items()))
    same = [f"caps: {', '.join(shared)}"] if shared else []
    return same, [f"[bold]caps that differ[/]: {'; '.join(differing)}"] if differing else []


def _columns(result: Comparison, percentiles: Sequence[float]) -> list[tuple[str, str, str]]:
    """(key, title, unit) of each column; SLOs that were given have theirs."""
    columns = list(HEADLINE)
    if any((run.get("num_gpus") or 1) != 1 for run in result.runs):
        after = [key for key, *_ in columns].index("steady_output_throughput") + 1
        columns.insert(after, ("steady_output_throughput_per_gpu", "per GPU", "tok/s"))
    if result.scenario["window"]["stop_s"] is not None:
        columns.insert(0, ("completed", "ended", "in window"))
    for percent in percentiles:
        for name in ("ttft", "tpot", "itl", "e2el"):
            key = f"p{percent:g}_{name}_ms"
            if all(key != known for known, *_ in columns):
                columns.append((key, name.upper(), f"p{percent:g} ms"))
    if any(bound is not None for bound in result.scenario["goodput"].values()):
        columns.append(("request_goodput", "goodput", "req/s"))
        columns.append(("slo_attainment", "meet SLO", "% of finished"))
    return [(_shown(result, key), title, unit) for key, title, unit in columns]


def _shown(result: Comparison, key: str) -> str:
    """`key`, or its neighbour of the whole run where no policy has it."""
    return key if any(row.mean.get(key) is not None for row in result.policies) else WHOLE_RUN.get(key, key)


def _policies(result: Comparison, columns: Sequence[tuple[str, str, str]], console: Console) -> list[Table]:
    """One table with a row per policy where that fits, else tables with a column per policy, so that nothing is cut."""
    rows = [(_name(row), [_cell(result, row, key) for key, _, _ in columns], row.unstable) for row in result.policies]
    caption = None
    if result.scenario["replications"] > 1:
        caption = "mean, ± half of its 95 % interval over replications"
    if any(key in row.at_least for row in result.policies for key, _, _ in columns):
        caption = "; ".join(filter(None, [caption, "≥ at least"]))
    titles = [f"{title}\n{unit}" for _, title, unit in columns]
    by_policy = new_table(["policy"], titles, [], show_edge=False, caption=caption)
    for name, cells, is_dim in rows:
        by_policy.add_row(name, *cells, style="dim" if is_dim else None)
    width = console.width
    if measured_width(console, by_policy) <= width:
        return [by_policy]
    at_once = max(1, (width - 18) // (COLUMN_WIDTH + 4))
    tables = []
    for start in range(0, len(rows), at_once):
        shown = rows[start : start + at_once]
        cells_of = zip(*(cells for _, cells, _ in shown), strict=True)
        below = [(f"{title} {unit}", *cells) for (_, title, unit), cells in zip(columns, cells_of, strict=True)]
        last = caption if start + at_once >= len(rows) else None
        tables.append(new_table([""], [name for name, _, _ in shown], below, show_edge=False, caption=last))
    return tables


def _name(row: PolicySummary) -> str:
    name = row.policy + f"\n{placed(row)}" * bool(placed(row))
    if row.load.verdict is not Verdict.STABLE:
        name += f"\n  {row.load.verdict}"
    if row.mean["censored"]:
        name += f"\n  {row.mean['censored']:.0f} censored"
    return name


def _cell(result: Comparison, row: PolicySummary, key: str) -> str:
    if key == "slo_attainment":
        return _slo_cell(result, row.policy)
    mean, interval = row.mean[key], row.ci95[key]
    scale = 100.0 if key == "device_utilization" else 1.0
    if mean is None:
        return number(None)
    text = "≥ " * (key in row.at_least) + number(mean * scale)
    if interval is not None:
        text += f"\n±{number((interval[1] - interval[0]) / 2 * scale)}"
    return text


def _slo_cell(result: Comparison, policy: str) -> str:
    """Share of the finished requests that meet all SLOs, and each of them, over all replications."""
    runs: list[Any] = [run["slo_attainment"] for run in result.runs if run["policy"] == policy]
    means = {name: 100.0 * sum(shares[name] or 0.0 for shares in runs) / len(runs) for name in runs[0]}
    parts = [f"{SLO_NAMES[name]} {value:.0f}" for name, value in means.items() if name != "all"]
    return "\n".join([f"{means.get('all', 0.0):.1f}", *(parts if len(parts) > 1 else [])])


def _paired(result: Comparison) -> Table:
    first = result.policies[0].policy
    shown = [_shown(result, metric) for metric in PAIRED_SHOWN]
    title = f"difference to {first} on the same requests [95 % interval]"
    table = new_table(["policy"], [], [], title=title, title_justify="left", show_edge=False)
    for metric in shown:
        table.add_column(NAMES[metric], justify="right", overflow="fold")
    rows = {(row.a, row.metric): row for row in result.paired if row.b == first}
    for policy in dict.fromkeys(policy for policy, _ in rows):
        table.add_row(policy, *(_difference(rows[policy, metric]) for metric in shown))
    return table


def _difference(row: Paired) -> str:
    if row.difference is None:
        return number(None)
    sign = "+" if row.difference > 0 else ""
    text = f"{sign}{number(row.difference)}"
    phi = flips_at(row)
    if phi is not None or row.order in (Order.OVERLAP, Order.DRAWS):
        return f"{text}\n{row.order.value}" + ("" if phi is None else f"\nphi* {phi}")
    return text + ("\n[{}, {}]".format(*map(number, row.interval)) if row.interval else "")


def notes(result: Comparison) -> list[str]:
    """All that the table rests on."""
    errors = result.profile.errors
    known = ", ".join(f"{kind} {value:.1f} %" for kind, value in errors.items() if value is not None)
    lines = [f"costs: mean error of kernels and passes on held-out points: {known or 'none stated'}"]
    unknown = [kind for kind, value in errors.items() if value is None]
    if unknown:
        lines[0] += f"; not validated: {', '.join(unknown)}"
    accepted = [row.mean["spec_decode_acceptance_length"] for row in result.policies]
    lengths = [length for length in accepted if length is not None]
    if lengths:
        shown = span(f"{length:.2f}" for length in sorted(lengths))
        lines.append(f"acceptance length (tokens per verify): {shown}")
    lines += _overlap_lines(result) + _partition_lines(result)
    lines += _power_lines(result) + _load_lines(result) + _tail_lines(result)
    if result.length.num_cooldowns:
        lines.append("output: tokens that come before the last arrival that is measured")
    elif _shown(result, "steady_output_throughput") == "output_throughput":
        lines.append("output: tokens of the whole run, the drain included, as vLLM counts")
    else:
        lines.append(
            "output: tokens that come before the last arrival, or until the end where that is more; with the drain, as "
            "vLLM counts, in the JSON"
        )
    left_out = [(result.length.num_warmups, "first"), (result.length.num_cooldowns, "last")]
    parts = [f"the {which} {count}" for count, which in left_out if count]
    if parts:
        lines.append(f"{' and '.join(parts)} requests of each run are left out" + " (MSER-5)" * result.length.is_auto)
    if result.scenario["replications"] < 2:
        lines.append("no intervals: they need --replications 2 or more")
    return [*lines, *(level_lines(result) if result.levels else []), *result.notes, *result.evidence]


def _overlap_lines(result: Comparison) -> list[str]:
    """Three lines at most: where overlap was not measured, what each policy with several streams gives over phi."""
    profile, devices = result.profile, result.scenario["devices"]
    phi = profile.phi
    if phi is None:
        return [f"overlap of streams: {profile.overlap}"]
    if devices["overlap"] == Regime.ROOFS:
        return ["overlap of streams: up to the roofs, an upper bound, as requested; no order of lanes is stated"]
    if devices["overlap"] is not None or devices.get("phi") is not None:
        given = phi.value if devices.get("phi") is None else devices["phi"]
        shown = "serial" if devices["overlap"] == Regime.SERIAL else f"phi {given:g}"
        return [f"overlap of streams: not measured; {shown}, as requested, other values not checked"]
    lanes = [row for row in result.policies if row.by_overlap]
    if not lanes:
        return []
    lines = [f"overlap of streams: phi {phi.value:g}, bracket {phi.low:g} to {phi.high:g} ({phi.source})"]
    for metric in ("mean_e2el_ms", _shown(result, "steady_output_throughput")):
        spans = [
            f"{row.policy} {' / '.join(number(means[metric]) for means in row.by_overlap.values())}" for row in lanes
        ]
        lines.append(f"{NAMES[metric]} at phi {phi.low:g} / {phi.value:g} / {phi.high:g}: {', '.join(spans)}")
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


def _load_lines(result: Comparison) -> list[str]:
    lines = []
    for row in result.policies:
        load = row.load
        if load.capacity_per_s is None or load.ci95 is None or load.verdict is Verdict.STABLE:
            continue
        low, high = load.ci95
        lines.append(
            f"{row.policy} is {load.verdict}: {number(load.rate_per_s)} requests/s arrive, it serves "
            f"{number(load.capacity_per_s)} [{number(low)}, {number(high)}]; its means depend on the run's length"
        )
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
        + "; near saturation it is too low, and marked ≥"
        * any(row.at_least for row in result.policies)
    ]


def comparison_in_brief(result: Comparison) -> list[str]:
    """Basis of a comparison, short."""
    overlap = [] if result.profile.phi is None else _overlap_lines(result)[:1]
    notes = [note for note in result.notes if not note.startswith(ONLY_IF)]
    return in_brief([*level_lines(result), *overlap, *_power_lines(result)], result.evidence, notes)


def _power_lines(result: Comparison) -> list[str]:
    """Watts of a GPU and joules of a token, where they were requested."""
    if not result.scenario.get("energy"):
        return []
    gpu = result.profile.name.partition("/")[0]
    parts = [
        f"{row.policy} {number(row.mean['power_w'])} W a GPU, {number(row.mean['joules_per_output_token'])} J a token"
        for row in result.policies
        if row.mean.get("power_w") is not None
    ]
    if not parts:
        return [f"power: not known of {gpu}"]
    where = "within 15 % on A100s" if gpu == "a100-sxm" else f"measured on A100s alone, none on {gpu}"
    return [f"power: {'; '.join(parts)} ({where})"]


def level_lines(result: Comparison) -> list[str]:
    """Distances that levels may have from a server's, end to end, and the elasticity of latency to step times near
    saturation: a line each, where there is something to say."""
    if not result.levels:
        return [costs_line(result.profile.errors)]
    widths = {level.policy: 100.0 * (level.interval[1] / level.mean_e2el_ms - 1.0) for level in result.levels}
    least = min(widths.values())
    alike = [level for level in result.levels if widths[level.policy] <= WIDER * least]
    below = max(100.0 * (1.0 - level.interval[0] / level.mean_e2el_ms) for level in alike)
    others = [
        f"{policy} {width:.0f} %" if width < 100.0 else f"{policy} {1.0 + width / 100.0:.1f} times"
        for policy, width in widths.items()
        if width > WIDER * least
    ]
    known = result.levels[0].num_set_ups
    where = f"{known} measured set-up{'s' * (known > 1)} like it" if known else "measured set-ups, none like it"
    higher = ", ".join([f"{least:.0f} % higher", *others])
    text = f"in 19 cases of 20 a server's mean E2EL is {below:.0f} % lower to {higher} (by errors on {where}"
    engine = [max(0.0, level.engine_pct) for level in result.levels if level.engine_pct is not None]
    if engine and max(engine) >= 0.5:
        text += f"; the engine's own times, averaged over machines, add {_percents(engine)}"
    text += ")"
    steep = [f"{level.elasticity:.1f} % ({level.policy})" for level in result.levels if level.elasticity is not None]
    return [text, *([f"near saturation: steps 1 % longer make mean E2EL longer by {in_words(steep)}"] if steep else [])]


def _percents(values: Iterable[float]) -> str:
    return f"{span(f'{value:.0f}' for value in sorted(values))} %"


def in_brief(lines: Sequence[str], evidence: Sequence[str], notes: Sequence[str]) -> list[str]:
    """`lines`, the first of the others in short, and where all of them are."""
    brief = list(lines)
    if evidence:
        brief.append(shortened(evidence))
    return [*brief, f"{notes[0]}; {HOW_TO}" if notes else HOW_TO]


def costs_line(errors: Mapping[str, float | None]) -> str:
    """Held-out errors of whole passes."""
    stated = {kind: errors[kind] for kind in PASSES if kind in errors}
    known = [f"{kind} {'unknown' if value is None else f'{value:.1f} %'}" for kind, value in stated.items()]
    return f"costs: held-out error {', '.join(known)}" if known else "costs: no error stated"
