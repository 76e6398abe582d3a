"""Acceptance as measured of pairs of target and drafter, by kind of prompts (pairs.json, each number with its source).

`any-prompts` leaves the kind open: draws take any of them, and a comparison simulates both ends. A pair that was not
measured borrows from the nearest, which the answer names.
Not here: what a measured length means at other draft lengths (quoted), acceptance as numbers (forms).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from math import inf, log
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import msgspec
import numpy as np

from sim.acceptance.models import Acceptance
from sim.acceptance.quoted import AtEveryLength, Chances, MeasuredLength, Quoted, drawn_drift
from sim.acceptance.spread import AssumedSpread
from sim.model_names import model_key
from sim.names import capital, in_words

KINDS, ANY = ("chat", "code", "maths", "other"), "any-prompts"
PROMPTS = (*KINDS, ANY)
"""Acceptances that belong to prompts; the last where nothing is stated."""
YOURS = "Yours: --acceptance code, chat, maths, other or a number"
"""Ends the note where nothing is stated."""
SHORT_K = 3
"""Draft length where none is stated: nearly all pairs were measured at it."""
LONGEST = {"mtp": 3}
"""Draft length up to which lengths are tried, by method; 5 for all others."""
LOOKED_UP = "ngram"
"""Method whose acceptance says nothing of a drafter's, nor theirs of it."""
SIZE = re.compile(r"(\d+(?:\.\d+)?)b(?=-|$)")
"""Parameters in a model's name, billions."""


class AcceptancePair(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A measured pair."""

    target: str
    method: str
    source: str
    """Short name, then repository, commit, path and licence."""
    lengths: dict[str, dict[str, dict[int, float]]]
    """Acceptance length, bonus included, by kind of prompts, name of the prompts and draft length."""
    drafter: str | None = None
    """Checkpoint; None where the target's own layers draft, or nothing else is published."""


class PairAcceptance(NamedTuple):
    """Acceptance of one pair on one set of prompts."""

    kind: str
    prompts: str
    pair: AcceptancePair

    def length(self, k: int, drift: float = 0.0) -> float:
        """On a straight line between two draft lengths, and beyond them as the nearest is carried."""
        ks, lengths = zip(*sorted(self.pair.lengths[self.kind][self.prompts].items()), strict=True)
        at = min(max(k, ks[0]), ks[-1])
        return MeasuredLength(float(np.interp(at, ks, lengths)), at, drift).model(k).expected_length(k)

    @property
    def quoted(self) -> Quoted:
        return AssumedSpread(OnPrompts(((self,),)))


@dataclass(frozen=True, slots=True)
class OnPrompts(AtEveryLength):
    """The mean of all kinds, each as likely, or in a draw one set of prompts."""

    by_kind: tuple[tuple[PairAcceptance, ...], ...]
    drift: float = 0.0

    def model(self, k: int) -> Acceptance:
        means = (fmean(one.length(k, self.drift) for one in alike) for alike in self.by_kind)
        return MeasuredLength(fmean(means), k).model(k)

    def draw(self, rng: Chances) -> OnPrompts:
        alike = self.by_kind[int(rng.random() * len(self.by_kind))]
        one = alike[int(rng.random() * len(alike))]
        return OnPrompts(((one,),), drawn_drift(rng))


@lru_cache(maxsize=1)
def read_pairs() -> list[AcceptancePair]:
    """Those of pairs.json."""
    return msgspec.json.decode(Path(__file__).with_name("pairs.json").read_bytes(), type=list[AcceptancePair])


def measured_of(text: str, target: str, params: int, method: str) -> tuple[tuple[PairAcceptance, ...], ...]:
    """What is known of a pair on a kind of prompts, or on any, kind by kind. It is the pair's own, else that of the
    nearest pair by method, family and size. Raises ValueError for a kind that no such pair has.

    >>> [one.prompts for alike in measured_of("code", "llama-3.1-8b", 8_000_000_000, "eagle3") for one in alike]
    ['HumanEval', 'LiveCodeBench']
    """
    known = [each for each in read_pairs() if (each.method == LOOKED_UP) == (method == LOOKED_UP)]
    known.sort(key=lambda each: _distance(each, target, params, method))
    found = []
    for kind in KINDS if text == ANY else (text,):
        pair = next((each for each in known if kind in each.lengths), None)
        if pair is not None:
            found.append(tuple(PairAcceptance(kind, prompts, pair) for prompts in pair.lengths[kind]))
    if not found:
        raise ValueError(f"acceptance {text!r}: not measured with {method}. Give {ANY}, or a number")
    return tuple(found)


def ends_of(text: str, target: str, params: int, method: str, k: int) -> tuple[PairAcceptance, ...]:
    """The prompts of least and of most acceptance at draft length `k`; one where these are the same."""
    known = sorted(chain(*measured_of(text, target, params, method)), key=lambda one: one.length(k))
    return tuple(known[:: max(1, len(known) - 1)])


def origin_of(text: str, target: str, params: int, method: str, k: int) -> str:
    """Where that acceptance is from, with its lengths at draft length `k`: sentences without the last point."""
    lengths = " to ".join(f"{one.length(k):.2f} on {one.prompts}" for one in ends_of(text, target, params, method, k))
    firsts = [alike[0] for alike in measured_of(text, target, params, method)]
    sources = dict.fromkeys(one.pair.source.partition(":")[0] for one in firsts)
    parts = [f"{lengths} tokens a verify at K = {k}, measured by {in_words(list(sources))}"]
    lent: dict[str, list[str]] = {}
    for one in firsts:
        if (model_key(one.pair.target), one.pair.method) != (model_key(target), method):
            lent.setdefault(f"{one.pair.target} with {one.pair.method}", []).append(one.kind)
    parts += [f"{capital(in_words(kinds))} borrowed from {whose}" for whose, kinds in lent.items()]
    return ". ".join([*parts, *[YOURS] * (text == ANY)])


def _distance(pair: AcceptancePair, target: str, params: int, method: str) -> tuple[bool, bool, bool, float]:
    """Another method, another model, another family, then the logarithm of sizes."""
    theirs, ours = model_key(pair.target), model_key(target)
    size = SIZE.search(theirs)
    apart = inf if size is None else abs(log(1e9 * float(size[1]) / params))
    families = {re.split(r"[\d.-]", key)[0] for key in (theirs, ours)}
    return pair.method != method, theirs != ours, len(families) > 1, apart
