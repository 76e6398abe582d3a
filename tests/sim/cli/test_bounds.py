"""Largest values of every number: what is above is refused at once, in one line that says the range."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import msgspec
import pytest

import lanesim
from sim.acceptance.models import MAX_DRAFT_TOKENS
from sim.cli.flags import MAX_DRAWS, DraftTokens, Listed
from sim.cli.main import run
from sim.cli.options import SHARED
from sim.run.scenario import MOST
from sim.studies import cost_draws
from tests.sim.cli.test_consent import commands

PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"
LENGTHS = "--input-len 8 --output-len 8"
SLO = "--goodput ttft:500 tpot:40"
COMPARE = f"compare --profile {PAIR} --policy pd"
CAPACITY = f"capacity --profile {PAIR} --policy pd {SLO}"
REFUSED = {
    f"{COMPARE} --input-len 9223372036854775807": "workload.input_len=9223372036854775807 must",
    f"{COMPARE} --output-len 10000001": "workload.output_len=10000001 must be at most 10,000,000",
    f"{COMPARE} --request-rate 1e9": "workload.request_rate=1000000000.0 must be at most 1,000,000",
    f"{COMPARE} --num-speculative-tokens 500": "num_speculative_tokens=500 must be at most 126",
    f"{COMPARE} --draws 1000000": "1000000 is not in the range 0<=x<=10000",
    f"{CAPACITY} --attainment nan": "nan is not in the range 0.0<x<=1.0",
    f"{CAPACITY} --num-speculative-tokens 500": "must be at most 126",
    f"{CAPACITY} --target-rate 1e9": "1000000000.0 is not in the range 0.0<x<=1000000.0",
    f"{CAPACITY} --draws 1000000": "is not in the range 0<=x<=10000",
    f"tune --profile {PAIR} --lengths 0,500": "must be at most 126",
    f"tune --profile {PAIR} --draws 1000000": "is not in the range 0<=x<=10000",
    f"plan llama-3.1-8b --gpu h200-sxm {LENGTHS} {SLO} --rate 1e9": "is not in the range 0.0<x<=1000000.0",
    f"plan llama-3.1-8b --gpu h200-sxm {LENGTHS} {SLO} --num-speculative-tokens 500": "is not in the range 1<=x<=126",
    f"plan llama-3.1-8b --gpu h200-sxm {LENGTHS} {SLO} --draws 1000000": "is not in the range 1<=x<=10000",
    f"validate http://h:1 --fit-only --profile {PAIR} --levels 1,1000000": "want 10000 requests at once at most",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_beyond_every_bound_is_refused_with_its_range(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line.split()) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert REFUSED[line] in said.err


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


@pytest.mark.parametrize("key", MOST)
def test_every_bound_of_a_scenario_holds(key: str) -> None:
    most = MOST[key]
    changes: dict[str, Any] = {key: most + 1}
    if key == "workload.num_prefixes":
        changes["workload.prefix_len"] = 8
    with pytest.raises(ValueError, match=rf"^{key}=.* must be at most {most:,.0f}$"):
        lanesim.Scenario.of(profile=PAIR, policy="pd", num_prompts=4, **changes)


def test_numbers_of_a_scenario_that_no_bound_names_are_few() -> None:
    """Bounded where they are made: shares, phi, seeds, replicas and the options of single policies."""
    scenario = lanesim.Scenario.of(profile=PAIR, policy="pd")
    for block in ("workload", "engine", "speculation"):
        struct = getattr(scenario, block)
        hints = {each.name: str(each.type) for each in msgspec.structs.fields(struct)}
        free = {
            name for name, hint in hints.items() if ("int" in hint or "float" in hint) and f"{block}.{name}" not in MOST
        }
        assert free <= {
            *("num_prompts", "num_warmups", "num_cooldowns", "random_range_ratio", "length_range"),
            *("gpu_memory_utilization", "rules"),
            *("synthetic_acceptance_length", "synthetic_acceptance_rates"),
            *("num_speculative_tokens_per_batch_size", "speculative_adaptive_config"),
        }
