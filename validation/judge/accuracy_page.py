"""Writes docs/accuracy.md, and beside it validation/accuracy-cells.csv with every cell: measured and simulated.

    python -m validation accuracy DATA_FOLDER [--out docs/accuracy.md] [--only PART ...]

DATA_FOLDER holds the public data that the sections name; none of it is part of this repository. A part that cannot be
run is reported as such, and the command exits with 1. A speed-up's sign, the concurrency at which it crosses 1, and the
draft length that one would deploy are what a user acts on. The regret is what deploying lanesim's choice loses in
measured throughput. Not here: the sections themselves (validation.judge.sections), cells of one's own (`lanesim
validate cells`).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Sequence
from functools import reduce
from importlib.metadata import version
from itertools import pairwise
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from calibrate.served.load import JUDGED, ServedLoad
from sim.metrics.compared import THROUGHPUT
from validation.judge.sections import SPEEDUP, JudgedSection, section_of
from validation.judge.specs import ROOT, SECTIONS, SectionSpec, specs
from validation.tables import MISSING, off_pct, page

if TYPE_CHECKING:
    import pandas as pd

CELLS = Path("validation/accuracy-cells.csv")
"""Every cell, relative to the page's folder."""
PAGE = ROOT / "docs/accuracy.md"
NEAR_ONE = 0.05
"""A measured speed-up this close to 1 has no sign: jobs differ by as much."""
METRICS = {
    "tok/s": (THROUGHPUT,),
    "TPOT": ("tpot_ms", "itl_ms"),
    "TTFT": ("ttft_ms",),
    "speed-up": (SPEEDUP,),
    "acceptance length": ("acceptance_length",),
}
"""Column -> metrics of a cell, the first that it has."""
CELL_METRICS = ("output_throughput", "tpot_ms", "itl_ms", "ttft_ms", "e2el_ms", SPEEDUP, "acceptance_length")
PEER_METRICS = ("tpot_ms", "ttft_ms", "e2el_ms")
CELL_FIELDS = ("gpu", "engine", "target", "method", "num_speculative_tokens")


def build(sections: Sequence[SectionSpec], data: Path) -> tuple[list[JudgedSection], list[str]]:
    """The sections that can be judged, and a line for each that cannot."""
    built, failures = [], []
    for spec in sections:
        print(f"{spec.title} ...", file=sys.stderr)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                built.append(section_of(spec, data))
            except ValueError as error:
                failures.append(f"{spec.part} could not be run: {error}")
            except OSError as error:
                name = Path(error.filename).name if error.filename else "a file"
                failures.append(f"{spec.part} could not be run: {name}: {error.strerror}")
    return built, failures


def bars_of(sections: Sequence[JudgedSection]) -> pd.DataFrame:
    """Every bar, and whether it is met."""
    import pandas as pd

    rows = [
        {
            "run": section.spec.title,
            "metric": bar.what,
            "error": f"{bar.error_pct:.2f} %" if bar.is_size else f"{bar.error_pct:+.2f} %",
            "bar": f"{bar.bar_pct:g} %",
            "met": "yes" if bar.is_met else "**no**",
        }
        for section in sections
        for bar in section.bars
    ]
    return pd.DataFrame(rows)


def main(data: Path, out: Path = PAGE, only: Sequence[str] = ()) -> int:
    wanted = [spec for spec in specs() if not only or spec.part in only]
    if not data.is_dir():
        raise ValueError(f"{str(data)!r} is no folder. Give the one with aiconfigurator/ and llmservingsim/ in it")
    if not wanted:
        raise ValueError(f"--only {' '.join(only)}: no such part in {SECTIONS.name}")
    return write_report(wanted, data, out)


def write_report(sections: Sequence[SectionSpec], data: Path, out: Path) -> int:
    """The page and its cells; 1 where a section could not be run."""
    built, failures = build(sections, data)
    cells, bars = frame(built), bars_of(built)
    met = (bars["met"] == "yes").sum()
    page(
        out,
        "accuracy",
        version=version("lanesim"),
        failures="".join(f"\n**{each}**\n" for each in failures),
        met=str(met),
        bars=str(len(bars)),
        summary=bars,
        classes=classes(cells),
        decisions=decisions(cells),
        fitted=[f"{section.spec.title}: {section.fitted}" for section in built],
    )
    (out.parent / CELLS).parent.mkdir(parents=True, exist_ok=True)
    table = cells.drop(columns=["k", "concurrency", "decides"])
    table.to_csv(out.parent / CELLS, index=False, float_format="%.6g", lineterminator="\n")
    print(*failures, f"{out}: {met} of {len(bars)} bars met.", sep="\n", file=sys.stderr)
    return 1 if failures else 0


# -- tables


def frame(sections: Sequence[JudgedSection]) -> pd.DataFrame:
    """A row per cell: what was measured, what was simulated, what a peer predicts. `k` is the draft length, or what the
    summary has for it; `decides` where users choose by the speed-up."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for section in sections:
        for each in section.judged:
            cell, known = each.cell, each.metrics
            row = {"part": section.spec.part} | {name: getattr(cell, name) for name in CELL_FIELDS}
            row |= {"workload": cell.label or f"{cell.input_len}->{cell.output_len}", "load": load_of(cell)}
            row |= {"num_prompts": cell.num_prompts, "role": cell.role}
            for name in CELL_METRICS:
                sides = known.get(name, {})
                row |= {name: sides.get("real"), f"{name}_simulated": sides.get("simulated")}
            row["peer"] = cell.peer
            for name in PEER_METRICS:
                sides = each.peer.get(name, {})
                row |= {f"peer_{name}": sides.get("simulated"), f"peer_{name}_real": sides.get("real")}
            k = section.spec.together or str(cell.num_speculative_tokens)
            rows.append(row | {"k": k, "concurrency": cell.concurrency, "decides": section.spec.decides})
    cells = pd.DataFrame(rows)
    return cells.astype({name: float for name in cells if name.startswith(CELL_METRICS)} | {"num_prompts": "Int64"})


def load_of(cell: ServedLoad) -> str:
    """Requests in flight, or arrivals per second; `open` for recorded arrivals."""
    if cell.request_rate is not None:
        return f"{cell.request_rate:g}/s"
    return str(cell.concurrency) if cell.concurrency else "open"


def classes(cells: pd.DataFrame) -> pd.DataFrame:
    """Errors of judged cells by GPU, engine, model, method and k: mean size and the largest, those of peers on the same
    cells behind the slash."""
    import pandas as pd

    cells = cells.assign(gpu=pd.Categorical(cells["gpu"], cells["gpu"].unique()))
    lines = []
    ordered = cells.sort_values(["gpu", "num_speculative_tokens"], kind="stable")
    for names, of in ordered.groupby(["gpu", "engine", "target", "method", "k"], sort=False, observed=True):
        judged = of[of["role"] == JUDGED]
        line = dict(zip(("GPU", "engine", "model", "method", "k"), names, strict=True))
        line["judged"] = f"{len(judged)} of {len(of)}"
        line |= {title: _sizes(judged, metrics) for title, metrics in METRICS.items()}
        lines.append(line | {"peer": next(filter(None, of["peer"]), "")})
    return pd.DataFrame(lines)


def _sizes(judged: pd.DataFrame, names: Sequence[str]) -> str:
    ours = _first(error_pct(judged, name) for name in names)
    texts = [spread(ours)]
    if of_peer := [error_pct(judged, name, "peer_") for name in names if name in PEER_METRICS]:
        texts.append(spread(_first(of_peer)[ours.notna()]))
    return " / ".join(filter(None, texts)) or MISSING


def error_pct(cells: pd.DataFrame, metric: str, peer: str = "") -> pd.Series:
    """Errors in percent, lanesim's, or of `peer_` the other's; missing where a side is not known."""
    real, simulated = (f"{peer}{metric}_real", f"{peer}{metric}") if peer else (metric, f"{metric}_simulated")
    return off_pct(cells[simulated], cells[real])


def _first(errors: Iterable[pd.Series]) -> pd.Series:
    """The first of the columns that has a value, row by row."""
    return reduce(lambda one, other: one.fillna(other), errors)


def spread(errors: pd.Series) -> str:
    """Mean size and the largest; nothing of none."""
    sizes = errors.dropna().abs()
    return f"{fmean(sizes):.1f} ({sizes.max():.1f})" if len(sizes) else ""


def decisions(cells: pd.DataFrame) -> pd.DataFrame:
    """A line per workload, method and draft length: signs that are right, crossings of 1, and the regret."""
    import pandas as pd

    lines: list[dict[str, str]] = []
    workloads = cells[cells["decides"]].groupby(["gpu", "engine", "target", "workload"], sort=False)
    for (gpu, _, model, name), members in workloads:
        for method, drafting in members.dropna(subset=SPEEDUP).groupby("method", sort=False):
            regrets = _regrets_pct(members[members["method"].isin(["none", method])])
            texts = [f"{fmean(regrets):.2f} ({max(regrets):.2f})"] if regrets else []
            for k, of in drafting.groupby("num_speculative_tokens"):
                real, simulated = of[SPEEDUP], of[f"{SPEEDUP}_simulated"]
                signed = (real - 1.0).abs() > NEAR_ONE
                right = ((real - 1.0) * (simulated - 1.0) > 0.0) & signed
                at = [crossing(list(zip(of["concurrency"], side, strict=True))) for side in (real, simulated)]
                lines.append(
                    {
                        "GPU": gpu,
                        "model": model,
                        "workload": name,
                        "method": method,
                        "k": str(k),
                        "signs right": f"{right.sum()} of {signed.sum()}",
                        "crosses 1 at c, real": "none" if at[0] is None else f"{at[0]:.0f}",
                        "lanesim": "none" if at[1] is None else f"{at[1]:.0f}",
                        "error": "" if at[0] is None or at[1] is None else f"{off_pct(at[1], at[0]):+.2f} %",
                        "regret of the best k, %: mean (most)": texts.pop() if texts else "",
                    }
                )
    return pd.DataFrame(lines)


def crossing(points: Sequence[tuple[float, float]]) -> float | None:
    """The concurrency at which the speed-up falls through 1, between two cells on their logs; None where it does not.

    >>> crossing([(1, 1.5), (8, 1.2), (32, 0.8)])
    16.0
    """
    for (low, before), (high, after) in pairwise(sorted(points)):
        if before >= 1.0 > after:
            share = (before - 1.0) / (before - after)
            return round(exp(log(low) + share * log(high / low)), 6)
    return None


def _regrets_pct(cells: pd.DataFrame) -> list[float]:
    """Measured throughput, percent, that the draft length loses that is best in the simulation, at each concurrency
    with several lengths."""
    regrets = []
    for _, same_load in cells.dropna(subset=THROUGHPUT).groupby("concurrency", sort=False):
        means = same_load.groupby("num_speculative_tokens", sort=False)[[THROUGHPUT, f"{THROUGHPUT}_simulated"]].mean()
        if len(means) > 1:
            chosen = means[f"{THROUGHPUT}_simulated"].idxmax()
            regrets.append(100.0 * (1.0 - means.loc[chosen, THROUGHPUT] / means[THROUGHPUT].max()))
    return regrets
