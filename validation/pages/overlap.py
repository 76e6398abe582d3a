"""Published comparisons of one plain stream with two, beside what `leftover`, `serial` and full overlap make of them.

    python -m validation overlap DATA/corun.csv DATA/pegainfer/pegainfer_overlap_speculation_rtx5090.csv

No profile has those models on those GPUs, so the cells are ratios in closed form, from published times alone. A pass of
prefill takes P alone and a decode step d, with as many kernels each, so that the prefill's share is s = P / (P + d).
While it runs, for P / r at its rate r, decode loses (1 - own rate) of that time: a share
L = s (1 - phi) / (s + phi (1 - s)) of P: all of it at phi = 0 (serial), none at full overlap, the bound of roofs.
What the constant was chosen on stands apart from what judges it. Cells without a published time of decode alone have no
prediction. Not here: the rates (sim.devices.contention).
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

import msgspec

from sim.devices.contention import ASSUMED_PHI

CHOSEN = "phi was chosen on it"
BAR_POINTS = 3.0
"""Mean size of the error of TPOT changes that the judging cells may have."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of one plain stream and of two."""

    name: str
    metric: str
    one: float
    two: float
    is_judge: bool
    alone: float | None = None
    """Of decode steps beside which nothing is prefilled, in the metric's unit."""
    prefill: float | None = None
    """A chunk's pass alone, likewise."""

    @property
    def change_pct(self) -> float:
        return 100.0 * (self.two / self.one - 1.0)

    def predicted_pct(self, phi: float | None) -> float | None:
        """At phi; None for full overlap."""
        if self.alone is None or self.prefill is None:
            return None
        waited = self.one - self.alone
        return -100.0 * (1.0 - (0.0 if phi is None else loss(self.prefill, self.alone, phi))) * waited / self.one


def loss(prefill: float, decode: float, phi: float) -> float:
    """Share of a prefill's time that decode beside it loses.

    >>> loss(9.0, 1.0, 0.0), round(loss(9.0, 1.0, 0.07), 3)
    (1.0, 0.923)
    """
    share = prefill / (prefill + decode)
    return share * (1.0 - phi) / (share + phi * (1.0 - share))


def read(path: Path) -> list[dict[str, str]]:
    """Raises ValueError where the file has no rows."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise ValueError(f"{str(path)!r} has no rows; want a CSV with a header")
    return rows


def gaps_of_chunks(rows: Sequence[Mapping[str, str]]) -> list[Cell]:
    """Gaps of decode beside one chunk of several lengths: the intercept over lengths stands for a decode alone."""
    own = [row for row in rows if row["what"].startswith("decode beside a chunk of ")]
    if len(own) < 2:
        return []
    tokens, gaps = [float(row["what"].rsplit(" ", 1)[1]) for row in own], [float(row["one_stream"]) for row in own]
    slope = sum((t - mean(tokens)) * (g - mean(gaps)) for t, g in zip(tokens, gaps, strict=True)) / sum(
        (t - mean(tokens)) ** 2 for t in tokens
    )
    alone = mean(gaps) - slope * mean(tokens)
    return [_published(row, alone=alone, prefill=gap - alone) for row, gap in zip(own, gaps, strict=True)]


def _published(row: Mapping[str, str], alone: float | None = None, prefill: float | None = None) -> Cell:
    return Cell(
        name=f"{row['gpu']}, {row['what']}",
        metric=row["metric"],
        one=float(row["one_stream"]),
        two=float(row["two_plain_streams"]),
        is_judge=row["use"] != CHOSEN,
        alone=alone,
        prefill=prefill,
    )


def served(rows: Sequence[Mapping[str, str]]) -> list[Cell]:
    """Mean TPOT of modes `off` and `stream` of one table and load; the median gap stands for a decode alone, the 99th
    percentile less it for a chunk."""
    loads: dict[tuple[str, ...], dict[str, Mapping[str, str]]] = {}
    for row in rows:
        if row["tpot_mean_ms"] and row["itl_p50_ms"] and row["mode"] in ("off", "stream"):
            load = tuple(row[key] for key in ("gpu", "table", "isl", "osl", "qps", "concurrency"))
            loads.setdefault(load, {})[row["mode"]] = row
    return [
        Cell(
            name=f"{load[0]}, {load[1]}, {load[2]}->{load[3]}, {f'{load[4]} req/s' if load[4] else f'c={load[5]}'}",
            metric="TPOT mean",
            one=float(both["off"]["tpot_mean_ms"]),
            two=float(both["stream"]["tpot_mean_ms"]),
            is_judge=True,
            alone=float(both["off"]["itl_p50_ms"]),
            prefill=float(both["off"]["itl_p99_ms"]) - float(both["off"]["itl_p50_ms"]),
        )
        for load, both in loads.items()
        if len(both) == 2
    ]


def cells(corun: Path, modes: Path) -> list[Cell]:
    """Of both files; a cell of the first that the second has with its times is left to the second."""
    rows, found = read(corun), served(read(modes))
    chunks = gaps_of_chunks(rows)
    known = {cell.name for cell in chunks} | {(cell.metric, cell.one, cell.two) for cell in found}
    rest = [_published(row) for row in rows]
    return [*found, *chunks, *(c for c in rest if c.name not in known and (c.metric, c.one, c.two) not in known)]


def error_points(found: Sequence[Cell]) -> float | None:
    """Mean size of the error of the judging TPOT changes at the assumed phi."""
    errors = [
        abs(predicted - cell.change_pct)
        for cell in found
        if cell.is_judge
        and cell.metric == "TPOT mean"
        and (predicted := cell.predicted_pct(ASSUMED_PHI.value)) is not None
    ]
    return mean(errors) if errors else None


def page(found: Sequence[Cell]) -> str:
    lines = ["Change from one plain stream to two, percent; closed form from published times, not simulated."]
    for is_judge, title in ((True, "Cells that judge phi"), (False, "Cells that phi was chosen on")):
        lines += [
            "",
            f"{title}:",
            "",
            "| cell | metric | measured | leftover | serial | full overlap (bound of roofs) |",
        ]
        lines.append("|---|---|--:|--:|--:|--:|")
        for cell in found:
            if cell.is_judge is is_judge:
                made = [cell.predicted_pct(phi) for phi in (ASSUMED_PHI.value, 0.0, None)]
                shown = " | ".join("–" if value is None else f"{value:+.1f}" for value in made)
                lines.append(f"| {cell.name} | {cell.metric} | {cell.change_pct:+.1f} | {shown} |")
    error = error_points(found)
    if error is not None:
        verdict = "met" if error <= BAR_POINTS else "not met"
        lines += ["", f"Judging TPOT changes: mean error {error:.1f} points, bar {BAR_POINTS:g}: {verdict}."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corun", type=Path, help="cells of one plain stream against two")
    parser.add_argument("modes", type=Path, help="served runs by mode, with the times of decode alone")
    given = parser.parse_args()
    print(page(cells(given.corun, given.modes)))


if __name__ == "__main__":
    main()
