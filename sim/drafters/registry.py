"""Every way of drafting by its name: the modules of this folder that have a DRAFTER.

Not here: what one is (drafter).
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import sim.drafters
from sim.costs.profile import Profile
from sim.costs.shapes import ModelShape, model
from sim.drafters.drafter import Drafter

_MODULES = (import_module(f"sim.drafters.{module.name}") for module in iter_modules(sim.drafters.__path__))
DRAFTERS: dict[str, Drafter] = {each.DRAFTER.name: each.DRAFTER for each in _MODULES if hasattr(each, "DRAFTER")}
SPELLINGS = {spelling: each for each in DRAFTERS.values() for spelling in (each.name, *each.spellings)}
"""Names in vLLM's speculative_config -> what runs here."""
HEADS = {name: each.head for name, each in DRAFTERS.items() if each.head is not None}
"""Drafters that belong to a target."""
LOOKED_UP = tuple(name for name, each in DRAFTERS.items() if each.looks_up)


def drafter_of(profile: Profile) -> Drafter | None:
    """The way of drafting that follows from the shape of the profile's draft; None for a separate model."""
    shape, marked = profile.draft, (each for each in DRAFTERS.values() if each.mark)
    return None if shape is None else next((each for each in marked if getattr(shape, each.mark)), None)


def pair_of(profile: Profile, method: Drafter) -> tuple[str, int, str]:
    """Name and parameters of the target, and how its draft drafts."""
    own = None if method.looks_up else drafter_of(profile)
    return profile.target.name, profile.target.params, (own or method).name


def in_parallel(drafter: Drafter) -> Drafter:
    """The same with vLLM's parallel_drafting; itself where that is no other way of drafting."""
    return next((each for each in DRAFTERS.values() if each.vllm_method == drafter.name), drafter)


def drafter_named(name: str) -> str:
    """The head that a repository holds by its name; any other name stays as it is.

    >>> drafter_named("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"), drafter_named("meta-llama/Llama-3.2-1B")
    ('eagle3', 'meta-llama/Llama-3.2-1B')
    """
    squeezed = name.lower().replace("-", "").replace("_", "")
    return next((head for head in HEADS if "/" in name and head in squeezed), name)


def draft_model(name: str, target: ModelShape) -> ModelShape:
    """The shape called `name` as a draft for `target`; a name of HEADS is that target's head."""
    return HEADS[name](target) if name in HEADS else model(name)
