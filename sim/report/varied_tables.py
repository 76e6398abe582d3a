"""Settings side by side on the terminal: the sentence, a row per setting and load, the line that starts the best.

Not here: the comparisons (sim.studies.comparison), tables of one (tables).
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from sim.compare.side_by_side import Comparison
from sim.compare.verdict import HANGS_ON, METRIC, PolicySummary, Standing
from sim.metrics.load import Verdict
from sim.names import span
from sim.report.layout import new_table, number, print_table, say
from sim.report.say import continued
from sim.report.tables import comparison_in_brief, comparison_tables
from sim.studies.comparison.varied import Varied
from sim.workload.generate import FIXED_INPUT_LEN, FIXED_OUTPUT_LEN

COLUMNS = ("mean_ttft_ms", "mean_tpot_ms", METRIC, "steady_output_throughput")
TITLES = ("TTFT ms", "TPOT ms", "E2EL ms", "tok/s")
MAX_SENTENCES = 3
"""Loads up to which each has its sentence."""


def print_varied(console: Console, result: Varied, *, is_verbose: bool = False) -> None:
    """The answer first, then one table of differences, what to type, and what it rests on."""
    say(console, result.verdict, "bold")
    is_many = len(result.loads) > 1
    if 1 < len(result.loads) <= MAX_SENTENCES and len(result.loads[0].comparison.policies) > 1:
        for each in result.loads:
            say(console, f"{each.name}: {each.comparison.verdict}", "")
    say(console, _header(result), "dim")
    print_table(console, varied_table(result, is_many=is_many))
    for label, line in result.start.items():
        say(console, continued(f"start {label}: {line}", console.width))
    for note in result.notes:
        say(console, f"note: {note}", "dim")
    if is_verbose:
        for each in result.loads:
            say(console, each.name or "all", "bold")
            comparison_tables(console, each.comparison, is_verbose=True)
    else:
        for line in comparison_in_brief(result.loads[0].comparison):
            say(console, line, "dim")


def varied_table(result: Varied, *, is_many: bool) -> Table:
    """A row per setting, those of a load below its name; differences are to the first setting."""
    base = result.loads[0].comparison.policies[0].policy
    has_differences = len(result.loads[0].comparison.policies) > 1
    titles, head = list(TITLES), ""
    captions: dict[str, None] = {}
    if has_differences:
        head = _common(result.loads[0].comparison)
        titles.append(f"E2EL vs {base.removeprefix(head)}")
    table = new_table([head.rstrip("=")], titles, [], show_edge=False, padding=(0, 1, 0, 0))
    for each in result.loads:
        if is_many and has_differences:
            table.add_row(f"[dim]{each.name}[/]")
        for row in each.comparison.policies:
            name = row.policy.removeprefix(head) if has_differences else each.name
            state = "" if row.load.verdict in (Verdict.STABLE, Verdict.CLOSED) else f" ({row.load.verdict})"
            if row.verdict is not None and row.verdict is not Standing.SLOWER:
                state = f" ({row.verdict})"
            cells = [number(row.mean.get(key)) for key in COLUMNS]
            if has_differences:
                text, order = _difference(each.comparison, row)
                cells.append(text)
                captions |= {f"* {order}": None} if text.endswith("*") else {}
            style = "bold" if row.verdict is Standing.FASTEST else None
            table.add_row(f"{'  ' * (is_many and has_differences)}{name}{state}", *cells, style=style)
    if captions:
        table.caption, table.caption_justify = "; ".join(captions), "left"
    return table


def _common(comparison: Comparison) -> str:
    """`speculation=` where all settings begin with it."""
    heads = {row.policy.partition("=")[0] for row in comparison.policies if row.policy.count("=") == 1}
    return f"{heads.pop()}=" if len(heads) == 1 and all("=" in row.policy for row in comparison.policies) else ""


def _difference(comparison: Comparison, row: PolicySummary) -> tuple[str, str]:
    """`-12.3 % (-98 to -70 ms)`: of the means, with the interval that the order rests on. A * where the order is open,
    and on what it depends. Draws of costs move both means, so the interval is no percentage of one of them."""
    first = comparison.policies[0]
    pair = next((p for p in comparison.paired if (p.a, p.b, p.metric) == (row.policy, first.policy, METRIC)), None)
    base = first.mean[METRIC]
    if pair is None or pair.difference is None or not base:
        return "", ""
    text = f"{100.0 * pair.difference / base:+.1f} %"
    if pair.interval is not None:
        is_long = max(map(abs, pair.interval)) >= 1000.0
        low, high = (end / 1000.0 if is_long else end for end in pair.interval)
        text += f" ({low:+.2f} to {high:+.2f} s)" if is_long else f" ({low:+.0f} to {high:+.0f} ms)"
    return text + "*" * (pair.order in HANGS_ON), pair.order.value


def _header(result: Varied) -> str:
    """All that the settings share: profile and engine, load, draws."""
    first = result.loads[0].comparison
    workload, keys = first.scenario["workload"], {key.rpartition(".")[2] for key in result.grid}
    shown = []
    if not keys & {"gpu", "profile"}:
        shown.append(first.profile.name)
    if not keys & {"engine", "name"}:
        engines = dict.fromkeys(str(run.get("engine")) for run in first.runs)
        shown.append(f"engine {', '.join(engines)}")
    counts = span(str(each.comparison.length.num_prompts) for each in result.loads)
    if workload["trace_arrivals"] == "recorded":
        shown.append(f"{counts} requests as recorded")
    elif "request_rate" in keys:
        shown.append(f"{counts} requests")
    else:
        shown.append(f"{counts} requests at {workload['request_rate']}/s")
    if workload["max_concurrency"] and "max_concurrency" not in keys:
        shown.append(f"at most {workload['max_concurrency']} at once")
    lengths = [workload["input_len"] or FIXED_INPUT_LEN, workload["output_len"] or FIXED_OUTPUT_LEN]
    if workload["dataset_name"] == "fixed" and not keys & {"context", "input_len", "output_len"}:
        shown.append("{} tokens in, {} out".format(*lengths))
    else:
        shown.append(f"{workload['dataset_name']} lengths")
    count = first.scenario["replications"]
    return f"{', '.join(shown)}; {count} run{'s' * (count > 1)} each, all on the same requests"
