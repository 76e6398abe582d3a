"""Published comparisons of one plain stream with two, beside what `leftover`, `serial` and full overlap make of them.

    python -m validation overlap DATA

DATA has corun.csv and pegainfer/. No profile has those models on those GPUs, so the cells are ratios in closed form,
from published times alone. A pass of prefill takes P alone and a decode step d, with as many kernels each, so that the
prefill's share is s = P / (P + d), its rate beside decode r = s + phi (1 - s), and decode's q = 1 - s + phi s:
- TPOT: a prefill lasts P / r, of which decode loses 1 - q: L = s (1 - phi) / r of P, all of it at phi = 0 (serial).
- TTFT: P / r instead of P + d, and the queue in front of it likewise.
- A gap of decode: d / q, or d + L P where the prefill ends first.
Full overlap, the bound of roofs, is phi = 1. With one request in flight nothing overlaps. What the constant was chosen
on stands apart from what judges it. Cells without a published time of decode alone have no prediction. Shares of the
multiprocessors that hold while several lanes have work are simulated, too. Not here: the rates
(sim.devices.contention).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from statistics import linear_regression, mean
from typing import NamedTuple

import msgspec

from calibrate.catalogue.derived_profiles import with_models
from sim.costs.datasheets import DATASHEETS
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.costs.shapes import MODELS
from sim.devices.contention import ASSUMED_PHI
from sim.devices.partition import MEASURED, Portion, rates_on_shares
from sim.metrics.summary import Run, number, summarise
from sim.policies.options import DEFERRED, ONLY_TOGETHER
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate
from validation.page import markdown
from validation.tables import csv_rows, grouped, off_pct

CHOSEN = "phi was chosen on it"
LEFTOVER = "leftover"
FORMS = {LEFTOVER: ASSUMED_PHI.value, "serial": 0.0, "full overlap (bound of roofs)": 1.0}
"""Phi of each form that is shown beside the measurement."""
SIMULATED_ON = "rtx-4090/qwen3-8b"
"""Whose constants stand in for those of an RTX 5090, with its roofs: no kernel of one is public."""
QWEN3_4B = msgspec.structs.replace(
    MODELS["qwen3-32b"], name="qwen3-4b", layers=36, hidden=2560, intermediate=9728, heads=32, tied_embeddings=True
)
SHARED_SMS = 32
"""Multiprocessors that decode has in pegainfer's partition, which its flag rounds to 20 %."""
NUM_PROMPTS = 1000
BAR_POINTS = 3.0
"""Mean size of the error of TPOT changes that the judging cells may have."""


class StreamPair(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of one plain stream and of two."""

    name: str
    metric: str
    one: float
    two: float
    is_judge: bool
    alone: float | None = None
    """Time of decode steps beside which nothing is prefilled, in the metric's unit."""
    prefill: float | None = None
    """A chunk's pass alone, likewise; 0 = none beside decode."""
    rates: tuple[float, float] | None = None
    """Rates of prefill and decode beside each other, on shares of the multiprocessors; None = plain streams."""

    @property
    def change_pct(self) -> float:
        return off_pct(self.two, self.one)

    def predicted_pct(self, phi: float) -> float | None:
        """The change that two plain streams at `phi` make, or shares where the cell has them, percent; None where
        unknown."""
        if self.alone is None or self.prefill is None:
            return None
        decode, prefill = self.alone, self.prefill
        if not prefill:
            return 0.0
        prefill_rate, decode_rate = self.rates or (rate(prefill, decode, phi), rate(decode, prefill, phi))
        if self.metric.startswith("TTFT"):
            return off_pct(prefill / prefill_rate, prefill + decode)
        lost = (1.0 - decode_rate) / prefill_rate
        if "p99" in self.metric:
            ends_first = decode / decode_rate < prefill / prefill_rate
            gap = decode / decode_rate if ends_first else decode + lost * prefill
            return off_pct(gap, decode + prefill)
        return 100.0 * (lost - 1.0) * (self.one - decode) / self.one


def rate(alone: float, other: float, phi: float) -> float:
    """Rate of a pass that takes `alone` alone, beside one that takes `other`."""
    share = alone / (alone + other)
    return share + phi * (1.0 - share)


def gaps_of_chunks(rows: Sequence[Mapping[str, str]]) -> list[StreamPair]:
    """Gaps of decode beside one chunk of several lengths: the intercept over lengths stands for a decode alone."""
    chunked = [row for row in rows if row["what"].startswith("decode beside a chunk of ")]
    if len(chunked) < 2:
        return []
    tokens, gaps = (
        [float(row["what"].rsplit(" ", 1)[1]) for row in chunked],
        [float(row["one_stream"]) for row in chunked],
    )
    alone = linear_regression(tokens, gaps).intercept
    return [_published(row, alone=alone, prefill=gap - alone) for row, gap in zip(chunked, gaps, strict=True)]


def _published(row: Mapping[str, str], alone: float | None = None, prefill: float | None = None) -> StreamPair:
    return StreamPair(
        name=f"{row['gpu']}, {row['what']}",
        metric=row["metric"],
        one=float(row["one_stream"]),
        two=float(row["two_plain_streams"]),
        is_judge=row["use"] != CHOSEN,
        alone=alone,
        prefill=prefill,
    )


def served(rows: Sequence[Mapping[str, str]]) -> list[StreamPair]:
    """Mean TPOT and median TTFT of modes `off` and `stream` of one table and load; the median gap stands for a decode
    alone, the 99th percentile less it for a prefill."""
    timed = [row for row in rows if row["tpot_mean_ms"] and row["itl_p50_ms"] and row["mode"] in ("off", "stream")]
    loads = {
        load: {row["mode"]: row for row in modes}
        for load, modes in grouped(timed, itemgetter("gpu", "table", "isl", "osl", "qps", "concurrency")).items()
    }
    return [
        StreamPair(
            name=f"{load[0]}, {load[1]}, {shape(load)}",
            metric=metric,
            one=float(both["off"][key]),
            two=float(both["stream"][key]),
            is_judge=True,
            alone=float(both["off"]["itl_p50_ms"]),
            prefill=0.0 if is_one else float(both["off"]["itl_p99_ms"]) - float(both["off"]["itl_p50_ms"]),
        )
        for load, both in loads.items()
        if len(both) == 2
        for is_one in (bool(load[5]) and float(load[5]) == 1.0,)
        for metric, key in (("TPOT mean", "tpot_mean_ms"), ("TTFT median", "ttft_p50_ms"))
        if both["off"][key] and both["stream"][key]
    ]


def shape(load: Sequence[str]) -> str:
    """Lengths, and rate or concurrency, of (gpu, table, isl, osl, qps, concurrency)."""
    lengths = f"{float(load[2]):g}->{float(load[3]):g}"
    return f"{lengths}, {float(load[4]):g} req/s" if load[4] else f"{lengths}, c={float(load[5]):g}"


def injected(rows: Sequence[Mapping[str, str]], modes: Sequence[Mapping[str, str]]) -> list[StreamPair]:
    """Gaps of decode beside injected prompts: the second file has the time of decode alone."""
    alone = {f"{float(m['itl_p99_ms']):.1f}": m for m in modes if m["mode"] == "off" and m["decode_only_itl_p50_ms"]}
    return [
        _published(row, alone=decode, prefill=float(row["one_stream"]) - decode)
        for row in rows
        if row["metric"] == "decode gap p99" and row["one_stream"] in alone
        for decode in (float(alone[row["one_stream"]]["decode_only_itl_p50_ms"]),)
    ]


def partitioned(rows: Sequence[Mapping[str, str]]) -> list[StreamPair]:
    """A share of the multiprocessors for decode while a prefill runs, against one stream; the median TPOT at the lowest
    rate of the same model and lengths stands for a decode alone. Prefill is taken to be all compute, decode to be all
    bandwidth, each on its curve (sim.devices.partition)."""
    pairs = []
    for row in rows:
        share = re.match(r"green-ctx (\d+)%", row["mode"])
        if share is None:
            continue
        load = [row[key] for key in ("gpu", "isl", "osl")]
        like = [other for other in rows if [other[key] for key in ("gpu", "isl", "osl")] == load]
        (off,) = (other for other in like if other["mode"] == "off" and other["table"] == row["table"])
        lone = [other for other in like if other["model"] == row["model"] and other["engine"] == row["engine"]]
        alone = min((float(other["qps"]), float(other["tpot_p50_ms"])) for other in lone if other["tpot_p50_ms"])[1]
        part = int(share[1]) / 100.0
        prefill_rate, decode_rate = rates_on_shares(
            [Portion(1.0 - part, True), Portion(part, True)],
            (1.0, 1.0),
            (1.0, 1.0),
            [(1.0, 0.0), (0.0, 1.0)],
            MEASURED,
            1.0,
        )
        for metric, key in (("TPOT mean", "tpot_mean_ms"), ("TTFT mean", "ttft_mean_ms"), ("ITL p99", "itl_p99_ms")):
            pairs.append(
                StreamPair(
                    name=f"{row['gpu']}, {row['model']}, {row['mode']}, {float(row['qps']):g} req/s",
                    metric=metric,
                    one=float(off[key]),
                    two=float(row[key]),
                    is_judge=True,
                    alone=alone,
                    prefill=float(off["itl_p99_ms"]) - alone,
                    rates=(prefill_rate, decode_rate),
                )
            )
    return pairs


class Dynamic(NamedTuple):
    """Percent that `pd` on shares that give way differs by from one stream, in simulations on `profile`."""

    profile: Profile
    at_once: Mapping[str, float]
    """Change of each metric, with prompts that begin when they come."""
    deferred: Mapping[str, float]
    """Change of each metric, with prompts that begin and end where a decode step does."""


def simulated(row: Mapping[str, str], prompt_tokens: int) -> Dynamic:
    """The partition of `row` on QWEN3_4B. The mean prompt that the engine saw stands for the one that was asked for."""
    sheet, base = DATASHEETS["rtx-5090"], with_models(load(SIMULATED_ON), QWEN3_4B, None)
    gemm = msgspec.structs.replace(base.compact.gemm, multiprocessors=sheet.multiprocessors)
    kernels = msgspec.structs.replace(base.compact, gemm=gemm)
    profile = msgspec.structs.replace(base, name="rtx-5090/qwen3-4b", gpu=sheet.gpu, kernels=kernels)

    def run(policy: str, partition: dict[str, float | bool] | None) -> Run:
        scenario = Scenario.of(
            profile=SIMULATED_ON,
            policy=policy,
            input_len=prompt_tokens,
            output_len=int(float(row["osl"])),
            request_rate=float(row["qps"]),
            num_prompts=NUM_PROMPTS,
            num_speculative_tokens=0,
            **{"engine.name": "ideal", "policy_options.partition": partition},
        )
        return summarise(simulate(resolve(scenario, profile, policy), 0), num_warmups=NUM_PROMPTS // 10)

    share = SHARED_SMS / sheet.multiprocessors
    lanes: dict[str, float | bool] = {"prefill": 1.0 - share, "decode": share, ONLY_TOGETHER: True}
    one = run("autoregressive", None)

    def changes(partition: dict[str, float | bool]) -> dict[str, float]:
        two = run("pd", partition)
        keys = (("TPOT mean", "mean_tpot_ms"), ("TTFT mean", "mean_ttft_ms"), ("ITL p99", "p99_itl_ms"))
        return {metric: off_pct(number(two, key) or 0.0, number(one, key) or 1.0) for metric, key in keys}

    return Dynamic(profile, changes(lanes), changes(lanes | {DEFERRED: True}))


def simulated_of(rows: Sequence[Mapping[str, str]]) -> Dynamic:
    """The simulation of the rows with a partition, which are at one load."""
    row = next(row for row in rows if row["mode"].startswith("green-ctx"))
    like = [other for other in rows if all(other[key] == row[key] for key in ("isl", "osl", "qps"))]
    seen = [float(other["mean_prompt_tokens"]) for other in like if other["mean_prompt_tokens"]]
    return simulated(row, round(mean(seen)) if seen else int(float(row["isl"])))


def cells(corun: Path, modes: Path) -> list[StreamPair]:
    """Cells of both files; a cell of the first that the second has with its times is left to the second."""
    rows, runs = csv_rows(corun), csv_rows(modes)
    measured = [*served(runs), *gaps_of_chunks(rows), *injected(rows, runs)]
    known = {(cell.metric, cell.one, cell.two) for cell in measured}
    rest = [_published(row) for row in rows]
    return [*measured, *(cell for cell in rest if (cell.metric, cell.one, cell.two) not in known)]


def error_points(pairs: Sequence[StreamPair], phi: float = ASSUMED_PHI.value) -> float | None:
    """Mean size of the error of the judging TPOT changes."""
    errors = [
        abs(predicted - cell.change_pct)
        for cell in pairs
        if cell.is_judge and cell.metric == "TPOT mean" and (predicted := cell.predicted_pct(phi)) is not None
    ]
    return mean(errors) if errors else None


def _table(pairs: Sequence[StreamPair], made: Mapping[str, Callable[[StreamPair], float | None]]) -> str:
    """Table of what was measured of each pair, and of what is made of it, percent."""
    import pandas as pd

    def signed(value: float | None) -> str | None:
        return None if value is None else f"{value:+.1f}"

    rows = [
        {"cell": pair.name, "metric": pair.metric, "measured": signed(pair.change_pct)}
        | {title: signed(value(pair)) for title, value in made.items()}
        for pair in pairs
    ]
    return markdown(pd.DataFrame(rows, columns=["cell", "metric", "measured", *made]))


def report(pairs: Sequence[StreamPair], shares: Sequence[StreamPair] = (), dynamic: Dynamic | None = None) -> str:
    by_form = {form: partial(StreamPair.predicted_pct, phi=phi) for form, phi in FORMS.items()}
    lines = ["Change from one plain stream to two, percent; closed form from published times, not simulated."]
    for is_judge, title in ((True, "Cells that judge phi"), (False, "Cells that phi was chosen on")):
        lines += ["", f"{title}:", "", _table([pair for pair in pairs if pair.is_judge is is_judge], by_form)]
    errors = {form: error_points(pairs, phi) for form, phi in FORMS.items()}
    error = errors[LEFTOVER]
    if error is not None:
        verdict = "met" if error <= BAR_POINTS else "not met"
        others = ", ".join(f"{form} {value:.1f}" for form, value in errors.items() if form != LEFTOVER and value)
        lines += [
            "",
            f"Judging TPOT changes: mean error {error:.1f} points ({others}), bar {BAR_POINTS:g}: {verdict}.",
            "Gaps are in no bar: one constant does not predict them. – : no published time of decode alone.",
        ]
    if shares:
        at_once, deferred = ({}, {}) if dynamic is None else (dynamic.at_once, dynamic.deferred)
        made: dict[str, Callable[[StreamPair], float | None]] = {
            "closed form": partial(StreamPair.predicted_pct, phi=0.0),
            "simulated": lambda pair: at_once.get(pair.metric),
            "prompts deferred": lambda pair: deferred.get(pair.metric),
        }
        lines += ["", "Shares of the multiprocessors while both lanes have work, against one stream:", ""]
        lines.append(_table(shares, made))
    if dynamic is not None:
        right = [pair.change_pct * dynamic.deferred[pair.metric] > 0.0 for pair in shares]
        lines += ["", f"Signs right where prompts are deferred, as that engine does it: {sum(right)} of {len(right)}."]
        lines += [f"Simulated: {dynamic.profile.source.partition(';')[0]}; roofs of the {dynamic.profile.gpu.name}."]
    return "\n".join(lines)


def main(data: Path) -> None:
    modes = data / "pegainfer" / "pegainfer_overlap_speculation_rtx5090.csv"
    rows = csv_rows(modes)
    print(report(cells(data / "corun.csv", modes), partitioned(rows), simulated_of(rows)))
