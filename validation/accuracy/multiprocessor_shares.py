"""Fits the solo curves of shares of multiprocessors, and says how far they are off on models that no fit saw.

    .venv/bin/python -m validation partition DATA

DATA holds `muxserve_a100_mps` (step times of LLaMA-1 on an A100 by MPS share) and `monoserve_gh200` (attention of
Qwen3-30B-A3B on a GH200 by green context, and beside others), which are no part of this project. LLaMA 7B and that
attention are fitted; LLaMA 13B and 30B (two GPUs) are judged only. Demands are those that a simulation has: of the
shipped profile, with the model's dimensions. Prints constants for sim.devices.partition and tables of errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from sim.costs.cost import Demands
from sim.costs.forms.compact import CompactCosts, CompactPasses
from sim.costs.profile import ShareCurve
from sim.costs.profile_files import load
from sim.costs.shapes import MODELS, ModelShape
from sim.devices.partition import MEASURED
from sim.interface.work import Chunk, Kind, Work
from validation.tables import csv_rows

LLAMA = MODELS["llama-2-7b"]
"""LLaMA-1 7B has the same dimensions."""
JUDGED = {
    ("llama-7b", 1): LLAMA,
    ("llama-13b", 1): msgspec.structs.replace(LLAMA, layers=40, hidden=5120, intermediate=13824, heads=40, kv_heads=40),
    # Half of every matrix, as one of two GPUs has it; all-reduces left out.
    ("llama-30b", 2): msgspec.structs.replace(
        LLAMA, layers=60, hidden=6656, intermediate=17920 // 2, heads=26, kv_heads=26, vocab=16000
    ),
}
FITTED = ("llama-7b", 1)
ATTENTION_WEIGHT = 1 / 3
"""Weight of MonoServe's points in the fit, which are a sixth as many as MuxServe's, and the only ones below a share of
0.3."""
QWEN = MODELS["qwen3-32b"]
ATTENTION = msgspec.structs.replace(QWEN, layers=48, hidden=2048, heads=32, kv_heads=4)
"""Attention of Qwen3-30B-A3B."""
DECODE_STEPS = 128
"""Decode steps of MonoServe's decode points, one row each."""
GH200_BANDWIDTH = 4.0e12 / 3.35e12
"""Memory of a GH200 (96 GB) relative to that of an H100-SXM, by their datasheets."""
GH200_SMS = 132
VICTIM_TOKENS, VICTIM_SMS = 4096, 64
"""The prefill that MonoServe ran beside others."""
SOLO = ("latency_demand", "boosted", "boosted_below", "parallel_bandwidth")
QUEUE = ("queue_slowdown", "queue_power")


class Point(NamedTuple):
    """A work on a share: its demands on the whole device, and its time relative to that there."""

    model: str
    phase: str
    tokens: int
    """Tokens through the body, in one pass."""
    share: float
    demands: Demands
    slowdown: float

    def error(self, curve: ShareCurve) -> float:
        return curve.slowdown(curve.mix(*self.demands), self.share) / self.slowdown - 1.0


def main(data: Path) -> None:
    models = {key: list(model_points(data / "muxserve_a100_mps", *key)) for key in JUDGED}
    attention = list(attention_points(data / "monoserve_gh200"))

    def solo_loss(curve: ShareCurve) -> float:
        own, other = mean_size(models[FITTED], curve), mean_size(attention, curve)
        return (1.0 - ATTENTION_WEIGHT) * own + ATTENTION_WEIGHT * other

    victim = next(p for p in attention if p.phase == "prefill" and p.tokens == VICTIM_TOKENS)
    beside = list(readers(data / "monoserve_gh200"))

    def queue_loss(curve: ShareCurve) -> float:
        return sum(abs(beside_reader(curve, victim, share) / slowdown - 1.0) for share, slowdown in beside)

    fitted = fit(MEASURED, SOLO, solo_loss)
    fitted = fit(fitted, QUEUE, queue_loss)
    print("fitted:  ", "  ".join(f"{name} {getattr(fitted, name):.3f}" for name in SOLO + QUEUE))
    print("shipped: ", "  ".join(f"{name} {getattr(MEASURED, name):.3f}" for name in SOLO + QUEUE))
    print("\nmean size of the error of the shipped constants, percent, by share")
    for (model, num_gpus), points in models.items():
        title = f"{model} on {num_gpus} GPU{'s' * (num_gpus > 1)}" + ", fitted" * ((model, num_gpus) == FITTED)
        print_table(title, points, lambda p: p.phase)
        print_table("  by tokens of a pass", points, lambda p: f"{1 << (p.tokens - 1).bit_length()}")
    print_table("attention on a GH200, fitted", attention, lambda p: p.phase)
    print("\nprefill attention on 64 of 132 SMs beside")
    for share, slowdown in beside:
        print(f"  a reader on {share:.2f}: {slowdown:.2f} measured, {beside_reader(MEASURED, victim, share):.2f}")
    print(f"  itself: 1.07 measured, {beside_itself(MEASURED, victim):.2f}")


def model_points(folder: Path, model: str, num_gpus: int) -> Iterator[Point]:
    """MuxServe's rows of one model, suspect ones left out."""
    keys = ("model", "tp_gpus", "phase", "batch", "seq_len_tokens", "mps_percent")
    suspect = {tuple(row[key] for key in keys) for row in csv_rows(folder / "suspect_points.csv")}
    times = {
        tuple(row[key] for key in keys): float(row["time_ms"])
        for row in csv_rows(folder / "mps_latency.csv")
        if (row["model"], int(row["tp_gpus"])) == (model, num_gpus)
    }
    costs = costs_of(JUDGED[model, num_gpus])
    for key, time_ms in times.items():
        *rest, percent = key
        whole = (*rest, "100")
        if percent == "100" or time_ms <= 0.0 or times.get(whole, -1.0) <= 0.0 or suspect & {key, whole}:
            continue
        phase, batch, length = key[2], int(key[3]), int(key[4])
        work = prefill(batch, length) if phase == "prefill" else decode(batch, length)
        tokens = batch * length if phase == "prefill" else batch
        yield Point(model, phase, tokens, int(percent) / 100, costs.demands(work), time_ms / times[whole])


def prefill(batch: int, length: int) -> Work:
    return Work(kind=Kind.PREFILL, chunks=(Chunk(length, 0),) * batch, head_rows=batch)


def decode(batch: int, length: int) -> Work:
    return Work(kind=Kind.VERIFY, rows=batch, row_tokens=batch, context_tokens=batch * length, head_rows=batch)


def costs_of(shape: ModelShape) -> CompactCosts:
    """What a simulation on an A100 has for `shape` on one device."""
    profile = load("a100-sxm/llama-2-7b")
    overlap = msgspec.structs.replace(profile.overlap, demand_floor=0.0)
    return CompactCosts(msgspec.structs.replace(profile, target=shape, overlap=overlap))


def attention_points(folder: Path) -> Iterator[Point]:
    """MonoServe's attention sublayers; demands by their FLOPs, bytes and time, for which no profile exists."""
    profile = load("h100-sxm/llama-2-7b")
    passes = CompactPasses(profile, profile.target, ())
    times = {
        (row["phase"], int(row["input_len"]), int(row["sms"])): float(row["latency_s"])
        for row in csv_rows(folder / "fig02_sm_share.csv")
        if row["module"] == "attention"
    }
    weights = sum(columns * depth for columns, depth in ATTENTION.gemms()[:2])
    query_size, kv_bytes = ATTENTION.heads * ATTENTION.head_dim, ATTENTION.kv_bytes_per_token / ATTENTION.layers
    elementwise = 2 * (8 * ATTENTION.hidden + 2 * (ATTENTION.heads + ATTENTION.kv_heads) * ATTENTION.head_dim)
    for (phase, length, sms), time_s in times.items():
        if sms == GH200_SMS:
            continue
        tokens, pairs, num_passes = (length, length**2 / 2, 1) if phase == "prefill" else (1, length, DECODE_STEPS)
        scale = ATTENTION.layers * num_passes / times[phase, length, GH200_SMS]
        flops = scale * (2 * tokens * weights + 4 * query_size * pairs)
        moved = scale * (2 * weights + length * kv_bytes + tokens * elementwise)
        demands = Demands(
            min(1.0, flops / passes.compute_roof), min(1.0, moved / (GH200_BANDWIDTH * passes.bandwidth_roof))
        )
        yield Point("attention", phase, tokens, sms / GH200_SMS, demands, time_s / times[phase, length, GH200_SMS])


def readers(folder: Path) -> Iterator[tuple[float, float]]:
    """(share of a reader of HBM, slowdown of the prefill beside it)."""
    for row in csv_rows(folder / "fig06_reader_placement.csv"):
        if row["weights_in"] == "hbm":
            yield int(row["reader_sms"]) / GH200_SMS, float(row["attention_slowdown"])


def beside_reader(curve: ShareCurve, victim: Point, reader_share: float) -> float:
    mix, share = curve.mix(*victim.demands), VICTIM_SMS / GH200_SMS
    return curve.slowdown(mix, share, reading=reader_share) / curve.slowdown(mix, share)


def beside_itself(curve: ShareCurve, victim: Point) -> float:
    mix, share = curve.mix(*victim.demands), VICTIM_SMS / GH200_SMS
    computing, reading = share * mix.compute, share * victim.demands.bandwidth
    return curve.slowdown(mix, share, computing=computing, reading=reading) / curve.slowdown(mix, share)


def fit(curve: ShareCurve, names: Sequence[str], loss: Callable[[ShareCurve], float]) -> ShareCurve:
    """`curve` with the constants called `names` at the least loss nearby."""
    from scipy.optimize import minimize

    def at(values: Sequence[float]) -> ShareCurve:
        return msgspec.structs.replace(curve, **dict(zip(names, map(float, values), strict=True)))

    start = [getattr(curve, name) for name in names]
    found = minimize(lambda values: loss(at(values)), start, method="Nelder-Mead", options={"xatol": 1e-4})
    return at(found.x)


def mean_size(points: Sequence[Point], curve: ShareCurve) -> float:
    return sum(abs(point.error(curve)) for point in points) / len(points)


def print_table(title: str, points: Sequence[Point], label: Callable[[Point], str]) -> None:
    shares = sorted({point.share for point in points})
    print(f"\n{title:<34}" + "".join(f"{share:>7.2f}" for share in shares) + "    all  bias")
    for name in [*dict.fromkeys(map(label, points)), "all"]:
        own = [point for point in points if name in ("all", label(point))]
        cells = [[p for p in own if p.share == share] for share in shares]
        text = "".join(f"{100 * mean_size(cell, MEASURED):>7.1f}" if cell else f"{'':>7}" for cell in cells)
        bias = sum(point.error(MEASURED) for point in own) / len(own)
        print(f"  {name:<32}{text}{100 * mean_size(own, MEASURED):>7.1f}{100 * bias:>6.1f}")
