"""The page of a served run with its pair: what speculation does, by requests in flight and at the load.

Not here: measuring and judging (calibrate.server.served_run).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from calibrate.served.line import pace_of, steps_of
from calibrate.server.served_run import PARTS, ServedRun
from sim.metrics.compared import LATENCIES, STATISTICS, THROUGHPUT
from sim.report.tables import number, percent

Rows = Iterable[Sequence[str]]
DISTURBED = 0.1
"""Change of a server's pace from prediction to load beyond which nothing is concluded."""


def pace(run: ServedRun) -> float:
    """Steps of the load over what was predicted with: how much slower the machine was than right before it."""
    assert run.fitted is not None
    return pace_of(run.fitted, steps_of(run.sent)) - 1.0


def served_page(run: ServedRun, machine: Mapping[str, str]) -> Iterator[str]:
    """Lines of Markdown; no verdict where the machine changed between a prediction and its load."""
    assert run.plain is not None
    assert run.in_flight
    paces = {"without": pace(run.plain), "with": pace(run)}
    changed = [f"{name} speculation steps took {each:+.0%}" for name, each in paces.items() if abs(each) > DISTURBED]
    yield from ("# A server without and with speculation" + ": *disturbed*" * bool(changed), "")
    if changed:
        yield f"No verdict: between prediction and load, {', '.join(changed)}."
    else:
        yield from (f"- {sentence}." for sentence in run.verdict)
    yield from ("", "E2EL in closed loops, percent shorter with it; least and most over rounds.", "")
    loads = [
        [str(each.at_once), *(f"{value:.0f}" for value in (each.measured, each.low, each.high, each.predicted))]
        for each in run.in_flight
    ]
    yield from table(["in flight", "measured", "least", "most", "fitted"], loads)
    yield from ("", "The load, predicted before it was sent.", "")
    errors = [each.errors[PARTS[0]] for each in (run.plain, run)]
    rows = [
        (f"{latency.upper()} {statistic} (ms)", [side[latency][statistic] for side in errors])
        for latency in LATENCIES
        for statistic in STATISTICS
    ]
    rows.append(("output (tok/s)", [side[THROUGHPUT] for side in errors]))
    yield from table(
        ["metric", *(f"{name}, {what}" for name in paces for what in ("measured", "predicted", "error"))],
        (
            [
                name,
                *(
                    text
                    for each in both
                    for text in (number(each["real"]), number(each["simulated"]), percent(each["error_pct"]))
                ),
            ]
            for name, both in rows
        ),
    )
    yield from ("", f"Predicted {run.plain.predicted_at} and {run.predicted_at}.", "")
    yield from table(["machine", "is"], ([name, value] for name, value in machine.items()))
    yield ""


def table(headers: Sequence[str], rows: Rows) -> Iterator[str]:
    """Lines of a table in Markdown."""
    for line in (headers, ["---"] * len(headers), *rows):
        yield f"| {' | '.join(line)} |"
