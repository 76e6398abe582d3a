"""Acceptance as measured of pairs of target and drafter, by kind of prompts (pairs.json, each number with its source).

`code` as an acceptance is what was measured of the pair on code. `any` leaves the prompts open: draws take any of them,
and a comparison simulates both ends. A pair that was not measured borrows from the nearest one, which the answer names.
Not here: what a measured length means at other draft lengths (quoted), acceptance as numbers (forms).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import inf, log
from pathlib import Path
from typing import NamedTuple

import msgspec

from sim.acceptance.models import Acceptance
from sim.acceptance.quoted import Chances, MeasuredLength, MeasuredLengths, Quoted
from sim.acceptance.spread import AssumedSpread
from sim.model_names import model_key
from sim.names import in_words

KINDS = ("chat", "code", "maths", "other")
ANY = "any"
"""Acceptance where the prompts are not stated."""
SHORT_K = 3
"""Draft length where none is stated: nearly all pairs were measured at it."""
LONGEST = {"mtp": 3}
"""Draft length up to which lengths are tried, by method; 5 of all others."""
LOOKED_UP = "ngram"
"""Method whose acceptance says nothing of a drafter's, nor theirs of it."""
SIZE = re.compile(r"(\d+(?:\.\d+)?)b(?=-|$)")
"""Parameters in a model's name, billions."""


class Pair(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A measured pair."""

    target: str
    method: str
    source: str
    """Key of the file's sources."""
    lengths: dict[str, dict[str, dict[int, float]]]
    """Acceptance length, bonus included, by kind of prompts, name of the prompts and draft length."""
    drafter: str | None = None
    """Checkpoint; None where the target's own layers draft, or nothing else is published."""


class PairFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of pairs.json."""

    sources: dict[str, str]
    """Short name, then repository, commit, path and licence."""
    pairs: list[Pair]


class Measured(NamedTuple):
    """Acceptance of one pair on one set of prompts."""

    kind: str
    prompts: str
    quoted: Quoted
    pair: Pair

    def length(self, k: int) -> float:
        return self.quoted.model(k).expected_length(k)


@dataclass(frozen=True, slots=True)
class AnyPrompts:
    """A quote that leaves the kind of prompts open, all kinds as likely."""

    by_kind: tuple[tuple[Measured, ...], ...]

    @property
    def measured_k(self) -> None:
        return None

    def model(self, k: int) -> Acceptance:
        """That of the mean length over the kinds."""
        means = [_mean(one.length(k) for one in alike) for alike in self.by_kind]
        return AssumedSpread(MeasuredLength(_mean(means), k)).model(k)

    def draw(self, rng: Chances) -> Quoted:
        """That of one set of prompts, itself drawn."""
        alike = self.by_kind[int(rng.random() * len(self.by_kind))]
        return alike[int(rng.random() * len(alike))].quoted.draw(rng)

    def notes(self, ks: Iterable[int]) -> tuple[str, ...]:
        return ()

    def ends(self, k: int) -> tuple[Measured, Measured]:
        """The prompts of least and of most acceptance at draft length `k`."""
        known = [one for alike in self.by_kind for one in alike]
        return min(known, key=lambda one: one.length(k)), max(known, key=lambda one: one.length(k))


@lru_cache(maxsize=1)
def read_pairs() -> PairFile:
    """The file of this folder."""
    return msgspec.json.decode(Path(__file__).with_name("pairs.json").read_bytes(), type=PairFile)


def measured_of(target: str, params: int, method: str) -> dict[str, tuple[Measured, ...]]:
    """What is known of a pair by kind: its own, else that of the nearest pair, by method, family and size.

    >>> [one.prompts for one in measured_of("llama-3.1-8b", 8_000_000_000, "eagle3")["code"]]
    ['HumanEval', 'LiveCodeBench']
    """
    found = {}
    for kind in KINDS:
        pairs = [each for each in read_pairs().pairs if kind in each.lengths]
        pairs = [each for each in pairs if (each.method == LOOKED_UP) == (method == LOOKED_UP)]
        if pairs:
            pair = min(pairs, key=lambda each: _distance(each, target, params, method))
            found[kind] = tuple(
                Measured(kind, prompts, AssumedSpread(MeasuredLengths(tuple(sorted(lengths.items())))), pair)
                for prompts, lengths in pair.lengths[kind].items()
            )
    return found


def quoted_of(text: str, target: str, params: int, method: str) -> Quoted:
    """What `any`, or a kind of prompts, means for a pair. Raises ValueError for a kind that no such pair has."""
    known = measured_of(target, params, method)
    if text == ANY:
        return AnyPrompts(tuple(known.values()))
    if text not in known:
        raise ValueError(f"acceptance {text!r}: not measured of {method}; want {', '.join([*known, ANY])}")
    curves = known[text][0].pair.lengths[text].values()
    shared = sorted(set.intersection(*map(set, curves)))
    return AssumedSpread(MeasuredLengths(tuple((k, _mean(curve[k] for curve in curves)) for k in shared)))


def origin_of(text: str, target: str, params: int, method: str, k: int) -> str:
    """Where that acceptance is from, with its lengths at draft length `k`."""
    known = measured_of(target, params, method)
    kinds = known if text == ANY else {text: known[text]}
    least, most = AnyPrompts(tuple(kinds.values())).ends(k)
    ends = [f"{one.length(k):.2f} ({one.prompts})" for one in ([least] if least is most else [least, most])]
    by = list(dict.fromkeys(read_pairs().sources[alike[0].pair.source].partition(":")[0] for alike in kinds.values()))
    origin = f"{' to '.join(ends)} tokens a verify at K = {k}, measured by {in_words(by)}"
    lent: dict[str, list[str]] = {}
    for kind, (one, *_) in kinds.items():
        if _key(one.pair) != (model_key(target), method):
            lent.setdefault(f"{one.pair.target} with {one.pair.method}", []).append(kind)
    borrowed = [f"{in_words(kinds)} borrowed from {whose}" for whose, kinds in lent.items()]
    yours = ["yours: --acceptance code, chat, maths, other or a number"] * (text == ANY)
    return "; ".join([origin, *borrowed, *yours])


def longest_of(method: str) -> int:
    return LONGEST.get(method, 5)


def _key(pair: Pair) -> tuple[str, str]:
    return model_key(pair.target), pair.method


def _distance(pair: Pair, target: str, params: int, method: str) -> tuple[bool, bool, bool, float]:
    """Another method, another model, another family, then the logarithm of sizes."""
    theirs, ours = model_key(pair.target), model_key(target)
    size = SIZE.search(theirs)
    apart = inf if size is None else abs(log(1e9 * float(size[1]) / params))
    return pair.method != method, theirs != ours, _family(theirs) != _family(ours), apart


def _family(key: str) -> str:
    """`llama` of `llama-3.1-8b`."""
    return re.split(r"[\d.-]", key)[0]


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known)
