"""The CSV of rates: a line per cell, each with the machine's fingerprint and what the pair was built as.

Replaced whole after every cell, so that a kill leaves a sound file. One of another machine, or none of ours, is refused
and stays as it is. Times are medians, spreads half of the 95 % interval of a median; rates are relative to each side
alone, medians over the rounds, of which `rate_sum_low` and `rate_sum_high` are the extremes. Shares are those of the
multiprocessors that the driver gave, 1 on plain streams; times alone are on the same share. Clocks are empty where the
driver says nothing. Not here: measuring (calibrate.measure.rates).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from itertools import chain
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from calibrate.measure.rates import ROUNDS, Rates
from calibrate.points.point_works import Cell, Place
from calibrate.points.points_file import MAY_CHANGE, Clocks, Ran
from sim.files.json_values import Json
from sim.files.read import read_text
from sim.files.write import write_text

OPTIONS = ("target", "draft", "target_weights", "draft_weights", "rows", "slot_tokens", "attention", "seed")
"""What a pair is built as, of PairSpec.as_options."""
OF_CELL = (*(f"{side}_{key}" for side in "ab" for key in Place._fields), "share_pct")
OF_SIDE = (
    *("alone_ms", "alone_spread_ms", "alone_passes", "together_ms", "together_spread_ms", "together_passes"),
    *("rate", "share"),
)
POSITIVE = (
    *(f"{side}_{key}" for side in "ab" for key in OF_SIDE if "spread" not in key),
    *("rate_sum", "rate_sum_low", "rate_sum_high", "rate_sum_a_first", "rate_sum_b_first"),
)
OTHERS = (
    *(f"{side}_{key}" for side in "ab" for key in OF_SIDE if "spread" in key),
    *("noise_pct", "starts", "window_s", "device_allocations"),
    *("sm_mhz_before", "sm_mhz_after", "power_w_after", "throttled_after"),
)
"""`noise_pct` is half of the range of the rounds' sums, of their median; `starts` the side that began each round."""

Line = dict[str, Any]
"""Values of POSITIVE, numbers, and of OTHERS."""


def line_of(rates: Rates, before: Clocks | None, after: Clocks | None) -> Line:
    found: Line = {}
    for name, side, share in zip("ab", rates.sides, rates.shares, strict=True):
        alone = 1e3 * side.alone_s, 1e3 * side.alone_spread_s, side.alone_passes
        together = 1e3 * side.together_s, 1e3 * side.together_spread_s, side.together_passes
        values = *alone, *together, median(side.rates), share
        found |= {f"{name}_{key}": value for key, value in zip(OF_SIDE, values, strict=True)}
    sums = [sum(both) for both in zip(*(side.rates for side in rates.sides), strict=True)]
    return found | {
        "rate_sum": median(sums),
        "rate_sum_low": min(sums),
        "rate_sum_high": max(sums),
        "rate_sum_a_first": median(sums[::2]),
        "rate_sum_b_first": median(sums[1::2]),
        "noise_pct": 50.0 * (max(sums) - min(sums)) / median(sums),
        "starts": "".join("ab"[turn % 2] for turn in range(ROUNDS)),
        "window_s": rates.window_s,
        "device_allocations": rates.num_allocations,
        "sm_mhz_before": before.sm_mhz if before else None,
        "sm_mhz_after": after.sm_mhz if after else None,
        "power_w_after": after.power_w if after else None,
        "throttled_after": "; ".join(after.throttled) if after else None,
    }


class Table:
    """The cells that are measured on this machine. Raises ValueError for a file of another one, or none of ours."""

    def __init__(self, path: Path, fingerprint: Mapping[str, str]) -> None:
        self.path, self._fingerprint = path, dict(fingerprint)
        self._columns = [*fingerprint, *OPTIONS, *OF_CELL, *POSITIVE, *OTHERS]
        self._rows = self._read() if path.exists() else []

    def lines(self, options: Mapping[str, Json] | None = None) -> dict[Cell, Line]:
        """What is known of a pair that was built so, or of any."""
        mine = [row for row in self._rows if not options or all(row[key] == str(options[key]) for key in OPTIONS)]
        return {_cell(row): row | _numbers(row) for row in mine}

    def ran(self) -> list[Ran]:
        """The cells, as what follows from them is fitted to."""
        return [_ran(cell, line) for cell, line in self.lines().items()]

    def add(self, options: Mapping[str, Json], cell: Cell, line: Line) -> None:
        places = dict(zip(OF_CELL, (*chain(*cell.places), cell.share_pct), strict=True))
        values = {**options, **self._fingerprint, **places, **line}
        self._rows.append({key: _text(values[key]) for key in self._columns})
        out = io.StringIO()
        writer = csv.DictWriter(out, self._columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows)
        write_text(self.path, out.getvalue())

    def _read(self) -> list[dict[str, str]]:
        lines = read_text(self.path, "rates file").splitlines()
        rows, number = [], 1
        try:
            if next(csv.reader(lines[:1], strict=True), None) != self._columns:
                raise ValueError("its columns are not this version's")
            for values in csv.reader(lines[1:], strict=True):
                number += 1
                rows.append(dict(zip(self._columns, values, strict=True)))
                _cell(rows[-1])
                _numbers(rows[-1])
                for key, ours in self._fingerprint.items():
                    if rows[-1][key] != ours and not key.startswith(MAY_CHANGE):
                        raise ValueError(f"another machine's: {key} was {rows[-1][key]!r}, is now {ours!r}")
        except (ValueError, csv.Error) as error:
            what = f"rates file {str(self.path)!r} line {number}"
            raise ValueError(f"{what}: {error}; choose another --out or remove it") from None
        return rows


def _cell(row: Mapping[str, str]) -> Cell:
    """Raises ValueError (msgspec's is one) for what is no pair of passes."""
    a, b = (msgspec.convert([row[f"{side}_{key}"] for key in Place._fields], Place, strict=False) for side in "ab")
    return Cell((a, b), int(row["share_pct"]) if row["share_pct"] else None)


def _ran(cell: Cell, line: Line) -> Ran:
    return Ran(
        cell=cell,
        shares=tuple(line[f"{side}_share"] for side in "ab"),
        alone_s=tuple(1e-3 * line[f"{side}_alone_ms"] for side in "ab"),
        together_s=tuple(1e-3 * line[f"{side}_together_ms"] for side in "ab"),
        rates=tuple(line[f"{side}_rate"] for side in "ab"),
    )


def _numbers(row: Mapping[str, str]) -> dict[str, float]:
    """Raises ValueError for what is no number, or none that can be."""
    found = {key: float(row[key]) for key in POSITIVE}
    for key, value in found.items():
        if not (value > 0.0 and isfinite(value)):
            raise ValueError(f"{key} is {value!r}, must be positive")
    return found


def _text(value: object) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
