"""Report 002's benchmark on a calibrated GPU: 14 concurrency levels x 3 pairs x engines, in an honest window.

    .venv/bin/python -m validation report_grid [--out DIR]

Prints, per pair and level, the tokens per second of completed requests over the window (the headline) for every engine,
with the requests that the window cut; draws throughput against latency per pair into DIR.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import yaml

from sim.compare.side_by_side import PolicySummary, compare
from sim.costs.profile_files import load
from sim.report.pictures.figures import draw_throughput_latency
from sim.run.scenario import parse_scenario
from sim.run.scenario_file import set_dotted

GRID = Path(__file__).parents[2] / "sim" / "scenarios" / "report-002-grid.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/report-002"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    plan = yaml.safe_load(GRID.read_text())
    for profile_name in plan["grid"]["profile"]:
        results = []
        print(profile_name)
        for rate in plan["grid"]["workload.request_rate"]:
            raw = yaml.safe_load(GRID.read_text())["scenario"]
            set_dotted(raw, "profile", profile_name)
            set_dotted(raw, "workload.request_rate", rate)
            scenario = parse_scenario(raw)
            result = compare(scenario, load(profile_name))
            results.append(result)
            print(f"  C={round(rate / 0.05):>3}  " + "  ".join(_cell(row) for row in result.policies))
        draw_throughput_latency(out / f"{profile_name.split('/')[1]}.png", results)
    print(f"figures in {out}")


def _cell(row: PolicySummary) -> str:
    mean = row.mean
    if mean["throughput_completed_window"] is None:
        return f"{row.policy}      – tok/s"
    return f"{row.policy} {mean['throughput_completed_window']:6.1f} tok/s ({mean['censored']:.0f} cut)"
