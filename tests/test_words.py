"""The rule of words on the site's pages and in helps: short sentences, few numbers, one bracket, no semicolon.

Not here: what is true of them (tests.test_docs, tests.test_page_commands).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.cli.test_consent import commands

ROOT = Path(__file__).parent.parent
MAX_WORDS, MAX_NUMBERS = 25, 4
HOUSE = re.compile(r"\b(?:worlds?|paces?|seats?|told|untold|somebody|nobody|whoever)\b", re.IGNORECASE)
"""Words of this house, which no reader of vLLM's pages knows."""
NAV = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
PAGES = ["README.md", *(f"docs/{page}" for page in re.findall(r": ([\w/-]+\.md)$", NAV, re.MULTILINE))]
EXCEPTIONS = {"docs/accuracy.md": 2}
"""Sentences that break the rule, by page: the numbers only fall."""


def sentences(text: str) -> Iterator[str]:
    """Sentences of Markdown without code, tables, headings and links' targets."""
    text = re.sub(r"```[\s\S]*?```|^\s*\|.*$|^#.*$|^    .*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text).replace("**", "")
    for part in re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.) ", text, flags=re.MULTILINE):
        yield from re.split(r"(?<=[.!?:])\s+(?=[\w*`])", " ".join(part.split()))


def breaks_the_rule(sentence: str) -> bool:
    prose = re.sub(r"`[^`]*`", "x", sentence)
    numbers = re.findall(r"(?<![\w.-])\d[\d,.]*", prose)
    is_long = len(prose.split()) > MAX_WORDS or len(numbers) > MAX_NUMBERS
    return is_long or ";" in prose or prose.count("(") > 1 or HOUSE.search(prose) is not None


@pytest.mark.parametrize("page", [page for page in PAGES if (ROOT / page).exists()])
def test_a_page_has_only_the_sentences_against_the_rule_that_are_counted(page: str) -> None:
    found = list(filter(breaks_the_rule, sentences((ROOT / page).read_text())))
    assert len(found) == EXCEPTIONS.get(page, 0), found


def test_helps_have_only_the_sentences_against_the_rule_that_are_counted() -> None:
    texts = [text for _, each in commands() for text in (each.help, *(getattr(one, "help", "") for one in each.params))]
    found = [sentence for text in texts for sentence in filter(breaks_the_rule, sentences(text or ""))]
    assert len(found) == EXCEPTIONS.get("helps", 0), found
