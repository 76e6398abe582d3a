"""Figures of the ledger, from its rows alone. Imports matplotlib and seaborn; only called where figures were asked for.

Not here: the rows (one module per section), tables (validation.claims.command).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sim.files.write import write_figure
from sim.report.pictures.panels import DPI, set_log_scale, set_theme
from validation.claims.ledger import Row, Verdict, read_section

CLAIMED, PD, PDV = "#555555", "#d95f02", "#1b6ca8"
LEVELS = {"phi_low": "v", "phi_middle": "o", "phi_high": "^"}
SPOKEN = {"phi_low": "phi 0", "phi_middle": "phi 0.07", "phi_high": "phi 0.25"}
"""Regimes of overlap and their marks."""
VERDICTS = {
    Verdict.REPRODUCED: "#2e8b57",
    Verdict.EXPLAINED: "#1b6ca8",
    Verdict.REFUTED: "#c0392b",
    Verdict.NOT_TESTABLE: "#999999",
}
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
    right.set_ylim(0.8, 60)
    set_log_scale(right, "y")
    right.set_ylabel("PDV / PD at C = 128")
    right.set_title("33x is one finished request against 34")
    figure.tight_layout()
    return figure


def _gains(rows: dict[str, Row]) -> Any:
    """Section B: PDV against PD by concurrency, claimed, and at every phi."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6.5, 3.4))
    found = {int(key.rsplit(".", 1)[1]): row for key, row in rows.items() if key.startswith("B.gain.")}
    for at, row in enumerate(found.values()):
        assert row.interval is not None
        axis.plot([at, at], row.interval, color=PDV, linewidth=2, alpha=0.5)
        axis.plot(at, row.claimed, "s", color=CLAIMED)
        for level, mark in LEVELS.items():
            axis.plot(at, row.details[level], mark, color=PDV, markersize=5)
    axis.plot([], [], "s", color=CLAIMED, label="claimed")
    for level, mark in LEVELS.items():
        axis.plot([], [], mark, color=PDV, label=f"simulated, {SPOKEN[level]}")
    axis.axhline(0.0, color="grey", linewidth=1)
    axis.set_xticks(range(len(found)), [str(concurrency) for concurrency in found])
    axis.set_xlabel("requests at once")
    axis.set_ylabel("PDV over PD, tokens/s (%)")
    axis.set_title("Report 004: three lanes against two, batches as stated")
    axis.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.01, 0.5))
    figure.tight_layout()
    return figure


def _ratios(rows: dict[str, Row]) -> Any:
    """Sections C and H: every figure over its claimed one, by verdict, intervals drawn."""
    import matplotlib.pyplot as plt

    shown = [row for row in rows.values() if isinstance(row.claimed, int | float) and isinstance(row.simulated, float)]
    figure, axis = plt.subplots(figsize=(8.5, 0.24 * len(shown) + 1.0))
    for at, row in enumerate(reversed(shown)):
        assert isinstance(row.claimed, int | float)
        values = sorted(end / row.claimed for end in row.interval) if row.interval is not None else None
        if values is not None:
            axis.plot(values, [at, at], color=VERDICTS[row.verdict], linewidth=1.5, alpha=0.6)
        assert isinstance(row.simulated, float)
        axis.plot(row.simulated / row.claimed, at, "o", color=VERDICTS[row.verdict], markersize=5)
    axis.set_yticks(range(len(shown)), [row.id for row in reversed(shown)])
    axis.axvline(1.0, color="grey", linewidth=1)
    axis.set_xlabel("simulated / claimed")
    for verdict, colour in VERDICTS.items():
        if any(row.verdict is verdict for row in shown):
            axis.plot([], [], "o", color=colour, label=verdict.value)
    axis.legend(loc="best", fontsize="small")
    axis.margins(y=0.02)
    figure.tight_layout()
    return figure


def _tail(rows: dict[str, Row]) -> Any:
    """Section E: P50 and P99 of ITL by rate, claimed, with the draft, and without speculation."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4))
    for axis, percent in zip(axes, (50, 99), strict=True):
        found = {int(key.rsplit(".", 1)[1]): row for key, row in rows.items() if key.startswith(f"E.p{percent}.")}
        rates = sorted(found)
        axis.plot(rates, [found[rate].claimed for rate in rates], "s--", color=CLAIMED, label="claimed")
        axis.plot(rates, [found[rate].simulated for rate in rates], "o-", color=PDV, label="simulated, with the draft")
        plain = [found[rate].details["plain"] for rate in rates]
        axis.plot(rates, plain, "o-", color=PD, label="simulated, no speculation")
        axis.set_xlabel("requests per second")
        axis.set_ylabel(f"P{percent} of ITL (ms)")
        axis.set_ylim(bottom=0)
    axes[0].legend(fontsize="small")
    figure.suptitle("What verify does to the tail, and what is there without it")
    figure.tight_layout()
    return figure


def _what_if(rows: dict[str, Row]) -> Any:
    """Section F: speed-up by what `about 50 % accepted` means, with eager drafts and with graphed ones."""
    import matplotlib.pyplot as plt

    readings = {"conditional": "50 % per token", "share": "half of the drafted", "length": "3.6 tokens per step"}
    eager, graphed = rows["F.spec.speedup"].details, rows["F.spec.whatif"].details
    series = (
        ("eager drafts, 20.2 ms", [eager[name] for name in readings], CLAIMED),
        (f"graphed, {graphed['slower_ms']:.1f} ms", [graphed[f"slower_{name}"] for name in readings], "#7fb3d5"),
        (f"graphed, {graphed['compute_ms']:.1f} ms", [graphed[name] for name in readings], PDV),
    )
    figure, axis = plt.subplots(figsize=(7, 3.4))
    for at, (label, values, colour) in enumerate(series):
        places = [place + 0.27 * (at - 1) for place in range(len(readings))]
        axis.bar(places, values, width=0.25, color=colour, label=label)
        for place, value in zip(places, values, strict=True):
            axis.text(place, value + 0.04, f"{value:.2f}", ha="center", fontsize="small")
    axis.axhline(1.0, color="grey", linewidth=1)
    axis.set_xticks(range(len(readings)), list(readings.values()))
    axis.set_ylabel("speed-up over plain decoding")
    axis.legend(fontsize="small", loc="upper left")
    axis.set_title("DiSpec: the draft under CUDA graphs")
    figure.tight_layout()
    return figure


def _deployment(rows: dict[str, Row]) -> Any:
    """Section G: PDV over PD by concurrency at every phi; shaded where the report says PDV."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(10, 5.6), sharex=True, sharey=True)
    for axis, (gpu, pair) in zip(axes.flat, [(g, p) for g in ("a100", "h100") for p in ("7b", "34b")], strict=True):
        found = {int(key.rsplit(".", 1)[1]): row for key, row in rows.items() if key.startswith(f"G.{gpu}.{pair}.")}
        for at, row in enumerate(found.values()):
            assert row.interval is not None
            if row.claimed == "PDV":
                axis.axvspan(at - 0.5, at + 0.5, color="#fdebd0", zorder=0)
            axis.plot([at, at], row.interval, color=PDV, linewidth=2, alpha=0.5)
            for level, mark in LEVELS.items():
                axis.plot(at, row.details[f"ratio_{level}"], mark, color=PDV, markersize=5)
        axis.axhline(1.0, color="grey", linewidth=1)
        axis.set_xticks(range(len(found)), [str(label) for label in found])
        axis.set_title(f"{gpu.upper()}, {pair.upper()} verifier")
    for axis in axes[:, 0]:
        axis.set_ylabel("PDV / PD, tokens/s")
    for axis in axes[1]:
        axis.set_xlabel("requests at once")
    for level, mark in LEVELS.items():
        axes[0, 0].plot([], [], mark, color=PDV, label=SPOKEN[level])
    axes[0, 0].fill_between([], [], color="#fdebd0", label="the report says PDV")
    axes[0, 0].legend(fontsize="small", loc="lower right", ncols=2)
    figure.tight_layout()
    return figure


FIGURES: dict[str, dict[str, Callable[[dict[str, Row]], Any]]] = {
    "A": {"A_completions.png": _completions},
    "B": {"B_gains.png": _gains},
    "C": {"C_ratios.png": _ratios},
    "E": {"E_tail.png": _tail},
    "F": {"F_what_if.png": _what_if},
    "G": {"G_deployment.png": _deployment},
    "H": {"H_ratios.png": _ratios},
}
"""By section: the figures drawn of it."""
