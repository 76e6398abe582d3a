"""Largest values of every number: what is above is refused at once, in one line that says the range."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any, get_type_hints

import click
import msgspec
import pytest

import lanesim
from sim.acceptance.models import MAX_DRAFT_TOKENS
from sim.bounds import Bounds
from sim.cli.flags import MAX_DRAWS, DraftTokens, Listed
from sim.cli.options import SHARED
from sim.run.scenario import Scenario
from sim.studies import cost_draws
from tests.sim.cli.test_consent import commands

PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"


def numbers(command: click.Command) -> Iterator[click.Parameter]:
    """Options of a number that the scenario does not check."""
    for each in command.params:
        if each.name in SHARED:
            continue
        is_plain = each.type in (click.INT, click.FLOAT) and not getattr(each, "is_flag", False)
        if is_plain or (isinstance(each.type, click.IntRange | click.FloatRange) and not isinstance(each.type, Listed)):
            yield each


def test_every_number_of_the_command_line_has_a_largest_value() -> None:
    unbounded = [
        (path, each.opts[0])
        for path, command in commands()
        for each in numbers(command)
        if getattr(each.type, "max", None) is None
    ]
    assert unbounded == []
    assert DraftTokens.__metadata__[0].le == MAX_DRAFT_TOKENS
    assert MAX_DRAWS == cost_draws.MAX_DRAWS


UNBOUNDED = {
    *("schema", "engine.rules", "workload.random_range_ratio"),
    *("speculation.num_speculative_tokens_per_batch_size", "policy_options.partition", "policy_options.adaptive_table"),
}
"""Numbers with a check of their own."""
ALONGSIDE = {"workload.sharing.num_prefixes": {"workload.sharing.prefix_len": 8}}


def fields(struct: type = Scenario, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys of all blocks, and their types."""
    for name, hint in get_type_hints(struct, include_extras=True).items():
        if isinstance(hint, type) and (issubclass(hint, msgspec.Struct) or is_dataclass(hint)):
            yield from fields(hint, f"{prefix}{name}.")
        else:
            yield prefix + name, hint


def bounds_of(hint: Any) -> Bounds | None:
    return next((note for note in getattr(hint, "__metadata__", ()) if isinstance(note, Bounds)), None)


BOUNDED = {key: bounds for key, hint in fields() if (bounds := bounds_of(hint)) is not None}


@pytest.mark.parametrize("key", BOUNDED)
def test_every_bound_of_a_scenario_holds(key: str) -> None:
    bounds = BOUNDED[key]
    beyond = [bounds.most + 1, bounds.least if bounds.is_open else bounds.least - 1]
    for value in beyond:
        changes = ALONGSIDE.get(key, {}) | {key: value}
        with pytest.raises(ValueError, match=rf"^{key}=.* must be (at most|at least|above) [\d,.e-]+$"):
            lanesim.Scenario.of({"profile": PAIR, "policy": "pd"}, **changes)


def test_every_number_of_a_scenario_has_bounds() -> None:
    numbers = {key for key, hint in fields() if "int" in str(hint) or "float" in str(hint)}
    assert numbers - BOUNDED.keys() <= UNBOUNDED
