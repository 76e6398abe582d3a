"""The rule of words on pages, in notebooks and in helps: short sentences, few numbers, one bracket, no semicolon.

Not here: what is true of them (tests.test_docs, tests.test_page_commands).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lanesim
from tests.sim.cli.test_consent import commands
from tests.test_page_commands import text_of

ROOT = Path(__file__).parent.parent
MAX_WORDS, MAX_NUMBERS, MAX_WORDS_OF_A_RECORD = 25, 4, 40
HOUSE = re.compile(
    r"\b(?:worlds?|looks?|lives?|life|paces?|cells?|draws?|drawn|brackets?|levels?|seats?|rows?|holds?|held|told|untold"
    r"|asked|known|found|own|somebody|nobody|whoever|as given)\b",
    re.IGNORECASE,
)
"""Words of this house, which no reader of vLLM's pages knows."""
PAGES = ["README.md", "CONTRIBUTING.md", "SECURITY.md"]
PAGES += sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md") if page.parent.name != "adr")
PAGES += sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("notebooks/*.ipynb"))
RECORDS = sorted(ROOT.glob("docs/adr/*.md"))


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


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_no_sentence_against_the_rule(page: str) -> None:
    assert list(filter(breaks_the_rule, sentences(text_of(ROOT / page)))) == []


def test_what_the_site_says_above_helps_and_names_keeps_the_rule() -> None:
    """docs/site_hooks.py needs mkdocs, which is not everywhere: its texts are read."""
    texts = re.findall(r'^(?:COMMANDS|NAMES) = """(.*?)"""', (ROOT / "docs/site_hooks.py").read_text(), re.M | re.S)
    assert len(texts) == 2
    assert list(filter(breaks_the_rule, sentences("\n\n".join(texts)))) == []


def docstrings(thing: Any) -> Iterator[str]:
    """Those of a name of lanesim and of its members, without doctests."""
    members = [each for name, each in vars(thing).items() if name[0] != "_"] if inspect.isclass(thing) else []
    for each in (thing, *(each for each in members if inspect.isroutine(each) or isinstance(each, property))):
        yield re.sub(r"^>>> .*(?:\n.+)*", "", inspect.getdoc(each) or "", flags=re.MULTILINE)


def test_the_page_of_names_has_no_sentence_against_the_rule() -> None:
    texts = [text for name in lanesim.__all__ for text in docstrings(getattr(lanesim, name))]
    bad = [sentence for text in texts for sentence in filter(breaks_the_rule, sentences(text))]
    assert bad == []


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_decision_record_has_no_sentence_that_is_far_too_long(record: Path) -> None:
    prose = [re.sub(r"`[^`]*`", "x", sentence) for sentence in sentences(record.read_text())]
    assert [each for each in prose if len(each.split()) > MAX_WORDS_OF_A_RECORD] == []


def test_helps_have_no_sentence_against_the_rule() -> None:
    texts = [text for _, each in commands() for text in (each.help, *(getattr(one, "help", "") for one in each.params))]
    found = [sentence for text in texts for sentence in filter(breaks_the_rule, sentences(text or ""))]
    assert found == []
