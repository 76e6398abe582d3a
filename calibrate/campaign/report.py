"""What a campaign ships: profiles, raw points as one Parquet file, and a report of predicted against measured.

Everything comes from the campaign's directory. Not here: measuring (calibrate.campaign.steps), any fit (calibrate.fit).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from calibrate.campaign.plan import Campaign
from calibrate.campaign.steps import PREDICTIONS
from calibrate.points import file as points_file
from calibrate.points.work import place_of
from sim.costs.profile import MeasuredPoint, Profile
from sim.costs.profile_files import encode, load
from sim.report.results import write_parquet

MOST_BYTES = 5_000_000
"""Of the raw points in the repository."""
BARS = {"output_throughput": 5.0, "p50_e2el_ms": 5.0, "p99_ttft_ms": 10.0}
"""Percent: predicted against measured, closed loop."""
HELD_OUT_BARS = {"body": 6.0, "decode": 10.0, "prefill": 10.0, "verify": 10.0, "overlap": 10.0}
Rows = list[list[str]]


def ship(out: Path, root: Path, campaign: Campaign) -> int:
    """Write into the repository at `root`; exit code 1 and one line if the measurements are not there."""
    paths = [path for job in campaign.jobs if (path := out / f"{job.name}.json").exists()]
    if not paths:
        print(f"campaign: {str(out)!r} holds no profile; run the campaign first", file=sys.stderr)
        return 1
    profiles = [load(path) for path in paths]
    gpu = profiles[0].gpu.name
    report = root / "docs" / "validation" / gpu
    report.mkdir(parents=True, exist_ok=True)
    size = write_points(report / "points.parquet", [path.with_suffix(".points.jsonl") for path in paths])
    if size > MOST_BYTES:
        print(f"campaign: points.parquet has {size} bytes, more than {MOST_BYTES}", file=sys.stderr)
        return 1
    for profile in profiles:
        # A profile of the repository carries no points: they are in the Parquet file.
        file = root / "sim" / "profiles" / f"{profile.name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encode(without_points(profile)))
    if (out / PREDICTIONS).exists():
        (report / PREDICTIONS).write_text((out / PREDICTIONS).read_text())
    (report / "README.md").write_text("\n".join(report_lines(out, campaign, profiles)) + "\n")
    cells = [row for cell in campaign.cells for row in cell_rows(out, cell.name)]
    if cells:
        _figure(report / "predicted.png", cells)
    print(f"campaign: {len(profiles)} profiles in sim/profiles/{gpu}, report and points in {report}")
    return 0


def without_points(profile: Profile) -> Profile:
    return msgspec.structs.replace(profile, points=())


def write_points(path: Path, sources: Sequence[Path]) -> int:
    """Every measured pass and every pair that ran together, as one table; its size in bytes."""
    fields = [field for field in MeasuredPoint.__struct_fields__ if field != "sustained_s"]
    columns: dict[str, list[Any]] = {name: [] for name in ("pair", *fields, "sustained_s", "together")}
    for source in sources:
        held = points_file.read(source)
        name = source.name.removesuffix(".points.jsonl")
        for point in held.points:
            columns["pair"].append(name)
            for field in fields:
                columns[field].append(getattr(point, field))
            columns["sustained_s"].append(held.sustained.get(place_of(point)))
            columns["together"].append(None)
        for entry in held.overlap:
            columns["pair"].append(name)
            for field in (*fields, "sustained_s"):
                columns[field].append(None)
            columns["together"].append(json.dumps(entry))
    write_parquet(path, columns)
    return path.stat().st_size


def report_lines(out: Path, campaign: Campaign, profiles: Sequence[Profile]) -> list[str]:
    lines = [f"# {profiles[0].gpu.name}: measured and predicted", "", *_ceilings(out, profiles[0]), ""]
    lines += ["## Held-out points", "", "Mean error in percent (points); **bold** misses its bar.", ""]
    kinds = list(dict.fromkeys(kind for profile in profiles for kind in profile.errors))
    rows = [[profile.name, *(_held_out(profile, kind) for kind in kinds)] for profile in profiles]
    lines += table(["profile", *kinds], rows)
    lines += ["", "## Several issuers, overlap, serving", ""]
    headers = [
        "profile",
        "eager issuers 1, 2, 3",
        "graphed",
        "eta compute, bandwidth",
        "tau us",
        "step us",
        "result us",
        "look us",
    ]
    lines += table(headers, [_host(profile) for profile in profiles])
    lines += ["", "## Replays, predicted before they were run", ""]
    lines += ["Shared tape, closed loop. Errors are (predicted - measured) / measured; **bold** misses its bar.", ""]
    cells = [row for cell in campaign.cells for row in cell_rows(out, cell.name)]
    headers = [
        "cell",
        "policy",
        *(f"{name}: predicted, measured, error" for name in BARS),
        "mechanism E2EL",
        "device idle",
    ]
    lines += table(headers, [_cell(row) for row in cells]) if cells else ["None was run."]
    if cells:
        lines += ["", *_signs(cells), "", "![Predicted against measured](predicted.png)"]
    return [*lines, "", "## Lossless", "", *_lossless(out)]


def cell_rows(out: Path, cell: str) -> list[dict[str, Any]]:
    """Per policy of a replayed cell what was predicted, what was measured, and the mechanism error."""
    validation, summary = out / f"replay-{cell}" / "validation.json", out / f"replay-{cell}" / "summary.json"
    if not validation.exists():
        return []
    judged = {run["policy"]: run for run in json.loads(validation.read_text())["runs"]}
    predicted = json.loads((out / PREDICTIONS).read_text())[cell]
    return [
        {
            "cell": cell,
            "policy": run["policy"],
            "predicted": predicted[run["policy"]],
            "measured": {name: run[name] for name in BARS},
            "mechanism_pct": judged[run["policy"]]["decomposition"]["mechanism"]["e2el"]["mean"]["error_pct"],
            "idle_share": run["device_idle_share"],
        }
        for run in json.loads(summary.read_text())["runs"]
    ]


def table(headers: Sequence[str], rows: Rows) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (headers, ["---"] * len(headers), *rows)]


def error_pct(row: dict[str, Any], name: str) -> float:
    return 100.0 * (float(row["predicted"][name]) / float(row["measured"][name]) - 1.0)


def _cell(row: dict[str, Any]) -> list[str]:
    numbers = []
    for name, bar_pct in BARS.items():
        error = error_pct(row, name)
        numbers.append(f"{row['predicted'][name]:.1f}, {row['measured'][name]:.1f}, {_marked(error, bar_pct)}")
    return [row["cell"], row["policy"], *numbers, f"{row['mechanism_pct']:+.1f}", f"{100 * row['idle_share']:.0f} %"]


def _signs(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Of every two policies of a cell whose measured throughputs differ by more than twice the combined error."""
    right, wrong = 0, []
    for number, one in enumerate(rows):
        for other in rows[number + 1 :]:
            if one["cell"] != other["cell"]:
                continue
            name = "output_throughput"
            measured = one["measured"][name] - other["measured"][name]
            predicted = one["predicted"][name] - other["predicted"][name]
            spread = sum((each["predicted"][name] - each["measured"][name]) ** 2 for each in (one, other)) ** 0.5
            if abs(measured) <= 2.0 * spread:
                continue
            if measured * predicted > 0.0:
                right += 1
            else:
                wrong.append(f"{one['cell']}: {one['policy']} - {other['policy']}")
    said = f"Differences of two policies' throughput larger than twice the combined error: {right} with the right sign"
    return [f"{said}, {len(wrong)} with the wrong one{': ' + '; '.join(wrong) if wrong else ''}."]


def _ceilings(out: Path, profile: Profile) -> list[str]:
    path = out / "ceilings.json"
    if not path.exists():
        return ["Ceilings: not measured."]
    found = json.loads(path.read_text())
    return [
        f"Ceilings ({found['dtype']}): {found['flops_per_s'] / 1e12:.2f} TFLOP/s of "
        f"{profile.gpu.peak_flops / 1e12:.2f}, copies at {found['copy_bytes_per_s'] / 1e9:.1f} GB/s of "
        f"{profile.gpu.bandwidth_bytes_per_s / 1e9:.1f} (what the profile takes for its roofs)."
    ]


def _held_out(profile: Profile, kind: str) -> str:
    error = profile.errors.get(kind)
    if error is None or error.mean_error_pct is None:
        return "-"
    return f"{_marked(error.mean_error_pct, HELD_OUT_BARS.get(kind, float('inf')), sign='')} ({error.points})"


def _host(profile: Profile) -> list[str]:
    host, overlap = profile.host, profile.overlap
    return [
        profile.name,
        ", ".join(f"{factor:.2f}" for factor in host.inflation_eager),
        ", ".join(f"{factor:.2f}" for factor in host.inflation_graphed),
        f"{overlap.eta_compute:.2f}, {overlap.eta_bandwidth:.2f}",
        f"{1e6 * overlap.tau_s:.1f}",
        f"{1e6 * host.step_s:.0f}",
        f"{1e6 * host.result_s:.0f}",
        f"{1e6 * host.look_s:.0f}",
    ]


def _lossless(out: Path) -> list[str]:
    path = out / "lossless.json"
    if not path.exists():
        return ["Not run."]
    found = json.loads(path.read_text())
    gaps = [entry["logit_gap"] for entry in found["differing"]]
    told = f", largest gap of the two best logits there {max(gaps):.3g}" if gaps else ""
    return [
        f"{found['target']} with a draft of its first {found['draft_layers']} layers (epsilon {found['epsilon']:g}): "
        f"{len(gaps)} of {found['requests']} greedy texts ({found['tokens']} tokens) differ from plain decoding{told}; "
        f"{100 * found['acceptance_rate']:.0f} % of the drafted tokens were accepted."
    ]


def _marked(error: float, bar_pct: float, *, sign: str = "+") -> str:
    text = f"{error:{sign}.1f}"
    return text if abs(error) <= bar_pct else f"**{text}**"


def _figure(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """One point per cell and policy; on the diagonal the prediction was right."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    titles = {"output_throughput": "tokens/s", "p50_e2el_ms": "p50 E2EL, ms", "p99_ttft_ms": "p99 TTFT, ms"}
    figure, axes = plt.subplots(1, len(BARS), figsize=(12, 4))
    for axis, name in zip(axes, BARS, strict=True):
        for policy in dict.fromkeys(row["policy"] for row in rows):
            own = [row for row in rows if row["policy"] == policy]
            measured, predicted = ([row[side][name] for row in own] for side in ("measured", "predicted"))
            axis.loglog(measured, predicted, "o", alpha=0.75, label=policy)
        ends = [min(axis.get_xlim()[0], axis.get_ylim()[0]), max(axis.get_xlim()[1], axis.get_ylim()[1])]
        axis.plot(ends, ends, color="black", linewidth=0.8)
        axis.set_title(titles[name], fontsize=10)
        axis.set_xlabel("measured")
        axis.tick_params(which="both", labelsize=7, labelrotation=30)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("predicted")
    axes[0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)
