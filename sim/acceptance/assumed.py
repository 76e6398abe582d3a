"""Acceptance assumed of a drafter where none is given, each measured on one model and one kind of text. Not here: what
the forms mean (forms)."""

from __future__ import annotations

from typing import NamedTuple


class Assumed(NamedTuple):
    """Acceptance of a drafter."""

    acceptance: str
    longest: int
    """Draft length up to which lengths are tried."""
    source: str


ASSUMED = {
    "eagle3": Assumed("length:2.83@3", 5, "MiniMax-M3's EAGLE-3, coding"),
    "mtp": Assumed("length:2.99@3", 3, "GLM-5.2's MTP, coding"),
    "dspark": Assumed("length:2.87@3", 5, "Kimi-K3's DSpark, coding"),
    "ngram": Assumed("length:1.40@3", 5, "llama-3.1-8b on ShareGPT's prompts; code 2.03, GSM8K 1.16"),
    "": Assumed("length:2.73@3", 5, "a draft of 1B of the same family"),
}
"""Name of a head, or ngram -> its acceptance; the empty name stands for any draft model."""
SHORT_K = 3
"""Draft length where neither it nor an acceptance is given: all of them were measured at it."""


def assumed_of(drafter: str) -> Assumed:
    """The assumption about a head, about n-grams, or about a draft model of another name.

    >>> assumed_of("eagle3").acceptance, assumed_of("llama-3.2-1b").acceptance
    ('length:2.83@3', 'length:2.73@3')
    """
    return ASSUMED.get(drafter, ASSUMED[""])
