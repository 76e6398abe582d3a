"""Figures that README states, each with what it comes from; exits 1 where README says otherwise.

They are of results that are committed. Not here: how the results are made (the programs that wrote them).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from validation.claims.ledger import ClaimVerdict, sections
from validation.tables import csv_rows

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REAL = DOCS / "real-gpus.md"
SERVED, JUDGED = DOCS / "validation" / "served-cells.csv", DOCS / "validation" / "accuracy-cells.csv"


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
    claims = [claim for section in sections().values() for claim in section.claims]
    fitted = sum(claim.if_met is ClaimVerdict.FITTED for claim in claims)
    yield f"{len(claims)} published figures ({fitted} of them fitted on)", "validation/claims/claims.yaml"
    pairs = csv_rows(DOCS / "atlas.csv")
    yield f"the atlas of {len(pairs)} published pairs", "docs/atlas.csv, make atlas"
    yield from served_cells()
    yield judged_speedups()
    replays, error = re.findall(
        r"predicted (\d+) replays .*? ([\d.]+) % off in mean", " ".join(REAL.read_text().split())
    )[0]
    yield (
        f"an H200 and an H100 | us | {replays} replays | {error} % |",
        "docs/real-gpus.md, python -m validation real_gpus",
    )


def served_cells() -> Iterator[tuple[str, str]]:
    """Judged served cells that the peer predicts as well, of models that had no part in a constant; TTFT of those that
    do not wait for admission."""
    import pandas as pd

    from validation.pages.leaderboard import METRICS, beside, left_out

    cells = pd.read_csv(SERVED)
    both = left_out(cells[(cells.role == "judged") & cells.peer_tpot_error_pct.notna()])
    (tpot, peer_tpot), (ttft, peer_ttft) = (beside(both, metric) for metric in METRICS)
    origin = "docs/validation/served-cells.csv, python -m validation silicon_page"
    yield f"| others | {len(both):,} loads | {tpot} % |", origin
    yield f"| others | {(both.is_starved == 0).sum():,} loads | {ttft} % |", origin
    yield f"AISimulate 0.13 is {peer_tpot} % and {peer_ttft} % off there", origin


def judged_speedups() -> tuple[str, str]:
    """Mean size of the error of speed-ups that others measured and that nothing was fitted on."""
    import pandas as pd

    from validation.judge.accuracy_page import error_pct

    cells = pd.read_csv(JUDGED)
    drafted = cells[(cells.part == "specbundle") & (cells.role == "judged")]
    error = error_pct(drafted, "speedup").abs().mean()
    origin = "docs/validation/accuracy-cells.csv, make accuracy-public"
    return f"dense models and experts | others | {len(drafted)} loads | {error:.1f} % |", origin
