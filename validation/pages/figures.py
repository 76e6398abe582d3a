"""Figures that README states, each with what it comes from; exits 1 where README says otherwise.

They are of results that are committed. Not here: how the results are made (the programs that wrote them).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from validation.claims.ledger import ClaimVerdict, sections
from validation.pages.accuracy import DOCS, PAGE
from validation.tables import csv_rows


def main(readme: Path = DOCS.parent / "README.md") -> int:
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
    table = PAGE.read_text().partition("\n|")[2].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        yield line, "docs/accuracy.md, python -m validation accuracy_page"
