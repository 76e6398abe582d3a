"""Figures that README states, each with what it comes from; exits 1 where README says otherwise.

They are of results that are committed, and of `make demo` where it has run here. Not here: how the results are made
(the programs that wrote them).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any

from sim.report.results import SUMMARY
from validation.claims.ledger import ClaimVerdict, sections
from validation.tables import csv_rows

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SERVED, JUDGED = DOCS / "validation" / "served-cells.csv", DOCS / "validation" / "accuracy-cells.csv"
DEMO = ROOT / "results" / "demo" / SUMMARY


def main(readme: Path = ROOT / "README.md") -> int:
    text = " ".join(readme.read_text().split())
    wrong = 0
    for sentence, origin in figures():
        is_there = " ".join(sentence.split()) in text
        wrong += not is_there
        print(f"{'ok' if is_there else 'NOT IN README'}: {sentence} ({origin})")
    return int(wrong > 0)


def figures() -> Iterator[tuple[str, str]]:
    """Words of README with figures in them, and the file and the command that they come from."""
    if DEMO.exists():
        yield json.loads(DEMO.read_text())["verdict"], "make demo"
    claims = [claim for section in sections().values() for claim in section.claims]
    fitted = sum(claim.if_met is ClaimVerdict.FITTED for claim in claims)
    yield f"{len(claims)} published figures ({fitted} of them fitted on)", "validation/claims/claims.yaml"
    pairs = csv_rows(DOCS / "atlas.csv")
    yield f"the atlas of {len(pairs)} published pairs", "docs/atlas.csv, make atlas"
    yield from served_cells()
    if JUDGED.exists():
        yield from judged_runs()


def served_cells() -> Iterator[tuple[str, str]]:
    """Judged served cells that the peer predicts as well, of models that had no part in a constant; TTFT of those that
    do not wait for admission."""
    import pandas as pd

    from validation.pages.leaderboard import left_out

    cells = pd.read_csv(SERVED)
    both = left_out(cells[(cells.role == "judged") & cells.peer_tpot_error_pct.notna()])
    tpot, peer_tpot = (both[name].abs().mean() for name in ("tpot_error_pct", "peer_tpot_error_pct"))
    admitted = both[both.is_starved == 0]
    ttft, peer_ttft = (admitted[name].abs().mean() for name in ("ttft_error_pct", "peer_ttft_error_pct"))
    yield (
        f"On {len(both):,} measured serving cells of models that no constant was fitted on, TPOT is {tpot:.1f} % off "
        f"(AISimulate 0.13's {peer_tpot:.1f} %) and TTFT {ttft:.1f} % ({peer_ttft:.1f} %)",
        "docs/validation/served-cells.csv, python -m validation silicon_page",
    )


def judged_runs() -> Iterator[tuple[str, str]]:
    """Errors on others' runs: the largest of timed runs and of a study, means of speed-ups."""
    import pandas as pd

    origin = "docs/validation/accuracy-cells.csv, make accuracy-public"
    cells = pd.read_csv(JUDGED)

    def sizes(of: Any, *metrics: str) -> Any:
        """Sizes of errors, percent, of every cell and metric."""
        return pd.concat([100.0 * (of[f"{name}_simulated"] / of[name] - 1.0).abs() for name in metrics])

    timed = cells[(cells.part == "runs") & (cells.workload == "ShareGPT")]
    worst = sizes(timed, "ttft_ms", "tpot_ms", "e2el_ms", "output_throughput").max()
    yield f"an RTX 4090 and an RTX PRO 6000 within {ceil(worst)} % on mean TTFT, TPOT, E2EL and throughput", origin
    study = cells[cells.part == "a100"]
    throughput, speedup = (ceil(10.0 * sizes(study, name).max()) / 10 for name in ("output_throughput", "speedup"))
    yield f"an A100 within {throughput:g} % of throughput in every cell, its speed-up within {speedup:g} %", origin
    drafted = cells[(cells.part == "specbundle") & (cells.role == "judged")]
    is_dense = drafted.target.str.startswith("llama")
    dense, experts = (sizes(drafted[mask], "speedup").mean() for mask in (is_dense, ~is_dense))
    yield f"SGLang on H200 {dense:.1f} % off for dense models and {experts:.1f} % for mixtures of experts", origin
