"""Figures of the ledger, from its rows alone. Imports matplotlib and seaborn; only called where figures were asked for.

Not here: the rows (one module per section), tables (sim.claims.report).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sim.claims.ledger import Row, read_section
from sim.files.write import write_figure
from sim.report.figures import DPI, set_theme

CLAIMED, PD, PDV = "#555555", "#d95f02", "#1b6ca8"
ENGINES = (("pd", "PD", PD), ("pdv", "PDV", PDV))


def draw(directory: Path, rows: Sequence[Row]) -> list[str]:
    """The figures of every section that has rows here, into `directory`; the names of the files.

    Raises ValueError without the plotting libraries.
    """
    set_theme()
    names = []
    for section in sorted({row.section for row in rows}):
        for name, paint in FIGURES.get(section, {}).items():
            figure = paint({row.id: row for row in rows if row.section == section})
            write_figure(directory / name, partial(figure.savefig, dpi=DPI, bbox_inches="tight"))
            _close(figure)
            names.append(name)
    return names


def _whiskers(row: Row) -> tuple[float, float, float]:
    """The figure and how far its interval reaches below and above it."""
    assert isinstance(row.simulated, float)
    low, high = row.interval or (row.simulated, row.simulated)
    return row.simulated, max(0.0, row.simulated - low), max(0.0, high - row.simulated)


def _close(figure: Any) -> None:
    import matplotlib.pyplot as plt

    plt.close(figure)


def _completions(rows: dict[str, Row]) -> Any:
    """Section A: finished requests by label, claimed and simulated; and the ratio of throughputs, cut and drained."""
    import matplotlib.pyplot as plt

    section = read_section("A")
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.9))
    for engine, title, colour in ENGINES:
        found = {
            int(key.rsplit(".", 1)[1]): row for key, row in rows.items() if key.startswith(f"A.completed.{engine}.")
        }
        labels = sorted(found)
        places = range(len(labels))
        shift = -0.09 if engine == "pd" else 0.09
        values, below, above = zip(*(_whiskers(found[label]) for label in labels), strict=True)
        left.errorbar(
            [at + shift for at in places],
            values,
            yerr=[below, above],
            fmt="o",
            color=colour,
            capsize=3,
            markersize=4,
            label=f"{title}, simulated (95 % of runs)",
        )
        for at, label in zip(places, labels, strict=True):
            claim = section.claim(f"A.completed.{engine}.{label}")
            low, high = claim.low or 0.0, claim.high or 0.0
            left.fill_between([at + shift - 0.16, at + shift + 0.16], low - 0.4, high + 0.4, color=colour, alpha=0.22)
        left.set_xticks(list(places), [str(label) for label in labels])
    left.fill_between([], [], color="grey", alpha=0.4, label="measured (CSV, range of labels)")
    left.set_xlabel("concurrency label C")
    left.set_ylabel("requests finished within 60 s")
    left.set_ylim(bottom=-1)
    left.legend(loc="center right", bbox_to_anchor=(1.0, 0.48))
    left.set_title("One service-time profile for both engines")
    bars = (
        ("claimed", 33.7, CLAIMED),
        ("simulated,\nfinished in 60 s", rows["A.33x.windowed"].simulated, PDV),
        (
            "simulated, work\nin the window",
            rows["A.rounds.pdv"].details["rounds"] / rows["A.rounds.pd"].details["rounds"],
            PDV,
        ),
        ("simulated,\nrun until drained", rows["A.33x.drained"].simulated, PDV),
    )
    known = [(name, value, colour) for name, value, colour in bars if isinstance(value, int | float)]
    right.bar(
        [name for name, _, _ in known],
        [value for _, value, _ in known],
        color=[colour for _, _, colour in known],
        width=0.55,
    )
    for at, (_, value, _) in enumerate(known):
        right.text(at, value * 1.06, f"{value:.3g}", ha="center")
    right.set_yscale("log")
    right.set_ylim(0.8, 60)
    right.set_ylabel("PDV / PD at C = 128")
    right.set_title("33x is one finished request against 34")
    figure.tight_layout()
    return figure


FIGURES: dict[str, dict[str, Callable[[dict[str, Row]], Any]]] = {"A": {"A_completions.png": _completions}}
"""By section: the figures drawn of it."""
