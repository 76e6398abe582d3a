"""`lanesim validate URL --fit-only`: closed loops of streamed requests, and the profile fitted to them.

What was sent is in a file after every loop and before the fit; given in place of the address, it is fitted again.
Not here: the looks themselves (calibrate.server.side), the fit (calibrate.served.fit).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated, Any

import click
from msgspec import Meta, Struct, structs

from calibrate.cli.engine_flags import set_up
from calibrate.cli.production import finish
from calibrate.cli.profile_output import check_out
from sim.cli.flags import ARGUMENT, COUNT, JsonFile, Overwrite, Tokens, command
from sim.cli.lazy import forwarding
from sim.cli.options import Overrides, listed

if TYPE_CHECKING:
    from calibrate.served.reports import ServerLooks

EXAMPLE = (
    "lanesim validate http://localhost:8000 --fit-only --profile h100-sxm/llama-3.1-8b \\\n"
    "    --levels 1,4,16,64 --out mine.json"
)
MAX_LEVEL = 10_000
"""Requests at once, each a connection."""
OF_A_MEASUREMENT = (
    *("model", "levels", "rounds", "input_len", "output_len"),
    *("measured", "timeout_s", "api_key_env"),
)
"""Flags that mean nothing where the loads are measured already."""
MAX_SPREAD_PCT = 15.0
"""Rounds that differ by more are said to be noisy: a median of them is no better than that."""


class ProbeFlags(Struct, frozen=True, kw_only=True):
    """Flags about the loads and the fit."""

    url: Annotated[str, ARGUMENT, Meta(title="URL")]
    profile: Annotated[str, "Profile of the GPU and models: a name or a path."]
    model: Annotated[str | None, "Model, as the server names it. [its only one]"] = None
    levels: Annotated[str, "Requests at once, a closed loop each; the largest is predicted from the others."] = (
        "1,2,4,8,16"
    )
    rounds: Annotated[int, Meta(ge=1, le=COUNT), "Over the levels, by turns."] = 7
    input_len: Annotated[Tokens, "Tokens of each prompt."] = 128
    output_len: Annotated[int, Meta(ge=2, le=10_000_000), "Tokens requested."] = 64
    engine: Annotated[str | None, "Engine to start from [as in compare]."] = None
    set: Overrides = ()
    timeout_s: Annotated[float, Meta(gt=0.0, le=86_400.0), "Longest that one answer may take, to its last byte."] = (
        300.0
    )
    api_key_env: Annotated[str | None, Meta(title="NAME"), "Environment variable that holds the server's key."] = None
    measured: Annotated[
        Path | None,
        "File for the measured loads; give it in place of URL to fit them again. "
        "[OUT.measured.json beside --out, else probe.measured.json]",
    ] = None
    out: Annotated[Path | None, "Profile to write, with the server's constants as its own."] = None
    json: JsonFile = None
    overwrite: Overwrite = False


@command("fit", ProbeFlags, example=EXAMPLE)
def fit_command(flags: ProbeFlags) -> None:
    """Time a server from outside: closed loops of streamed requests, several numbers of them at once. The largest is
    predicted from the others. Only the address that is given is called; it serves what is asked, so mind the bill."""
    from calibrate.served.reports import read_looks
    from calibrate.server.endpoint import base_of
    from sim.costs.engine_costs import engine_of
    from sim.costs.profile_files import load

    inputs = [flags.profile]
    if Path(flags.url).is_file():
        usual = {field.name: field.default for field in structs.fields(flags)}
        given = [name for name in OF_A_MEASUREMENT if getattr(flags, name) != usual[name]]
        if given:
            raise ValueError(f"{flags.url!r} is measured already: leave out {', '.join(map(_flag, given))}")
        check_out(flags.out, [*inputs, flags.url], json_path=flags.json)
        _fit(read_looks(Path(flags.url)), flags)
        return
    base, levels = base_of(flags.url), levels_of(flags.levels)
    key = key_of(flags.api_key_env)
    measured = flags.measured or (Path("probe") if flags.out is None else flags.out).with_suffix(".measured.json")
    check_out(flags.out, inputs, json_path=flags.json, others={"--measured": measured})
    engine_of(flags.engine, load(flags.profile))
    with _keeping(measured, flags, len(levels)):
        _fit(_looked(flags, base, key, levels, measured), flags)


probe_command = forwarding("probe", "validate", "--fit-only")


def key_of(name: str | None) -> str | None:
    """Value of the environment variable `name`, which may be the key itself, by mistake: it is never shown."""
    if name is None:
        return None
    key = os.environ.get(name, "").strip()
    if not key:
        raise ValueError("--api-key-env names no environment variable that holds a key; want its name, not the key")
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ValueError(f"--api-key-env {name}: want a key of printable ASCII characters without spaces")
    return key


def new_words() -> str:
    """Part of a seed that no command had before: a server may still have the prompts of those in its cache."""
    return token_hex(4)


def levels_of(text: str) -> list[int]:
    levels = sorted(set(listed("--levels", text, int, "numbers of requests at once, such as 1,4,16") or ()))
    if levels[0] < 1 or len(levels) < 2:
        raise ValueError(f"--levels {text!r}: want at least two different ones, each at least 1: one is held back")
    if levels[-1] > MAX_LEVEL:
        raise ValueError(f"--levels {text!r}: want {MAX_LEVEL} requests at once at most")
    return levels


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@contextmanager
def _keeping(measured: Path, flags: ProbeFlags, num_levels: int) -> Iterator[None]:
    """An error within the block, or a signal, says what is kept in the file `measured`, and how to fit it."""
    from calibrate.served.reports import read_looks

    given = [(_flag(name), getattr(flags, name)) for name in ("profile", "engine", "out", "json")]
    given += [("--set", text) for text in flags.set]
    words = [str(word) for flag, value in given if value is not None for word in (flag, value)]
    again = shlex.join(["lanesim", "validate", str(measured), "--fit-only", *words])
    try:
        yield
    except BaseException as error:
        done = len(read_looks(measured).rounds) // num_levels if measured.exists() else 0
        kept = f"{done} of {flags.rounds} rounds are in {str(measured)!r}; to fit them: {again}"
        if done and isinstance(error, ValueError):
            error.add_note(f"({kept})")
        elif done:
            click.echo(f"lanesim: {kept}", err=True)
        raise


def _raw(flags: ProbeFlags) -> dict[str, Any]:
    """The scenario of the loops."""
    lengths = {"input_len": flags.input_len, "output_len": flags.output_len}
    raw = set_up(flags.engine, flags.set) | {"profile": flags.profile, "policy": "continuous"}
    return raw | {"workload": {"num_prompts": 1, "request_rate": 1.0, **lengths}}


def _looked(flags: ProbeFlags, base: str, key: str | None, levels: list[int], measured: Path) -> ServerLooks:
    """The server looked at in closed loops of every level, by turns, so that a minute in which it is slow falls on
    all of them."""
    from calibrate.server.network import Client
    from calibrate.server.side import PLAIN, Side
    from sim.cli.console import progress
    from sim.costs.profile_files import load

    with Client(base, timeout_s=flags.timeout_s, key=key) as client, progress() as on_step:
        raw = {**_raw(flags), "speculation": PLAIN}
        side = Side.of(client, flags.model, raw, load(flags.profile), measured, new_words(), "", on_step, is_fresh=True)
        side.warm_up(levels[-1])
        side.look_alone([flags.input_len])
        for number, at_once in product(range(flags.rounds), levels):
            side.look_at(at_once, number)
    return side.looks


def _fit(looks: ServerLooks, flags: ProbeFlags) -> None:
    """Fit the profile to what was sent, and write and print what comes of it."""
    from calibrate.served.fit import fit_served
    from calibrate.served.judge import setup_of
    from calibrate.server.looks import with_price_of
    from calibrate.server.side import as_counted
    from sim.cli.console import progress
    from sim.costs.profile_files import load

    if len({each.concurrency for each in looks.rounds}) < 2:
        raise ValueError("want at least two loads, each of another number of requests at once")
    profile = load(flags.profile)
    scenario, _ = as_counted(_raw(flags), looks.rounds)
    with progress() as on_step:
        priced = with_price_of(scenario, profile, looks.lone)
        fitted = fit_served(priced, looks.rounds, setup_of(scenario), on_step)
    lines = []
    for load_ in (level.served for level in fitted.levels):
        if spreads := ", ".join(f"{name} ±{spread:.0f} %" for name, spread in load_.spreads_pct.items()):
            lines.append(f"{load_.source}, over its rounds: {spreads}")
    failed = [each.failed for one in looks.rounds for each in one.requests if each.failed]
    if failed:
        lines.append(
            f"{len(failed)} of {sum(len(each.requests) for each in looks.rounds)} requests failed: {failed[0]}"
        )
    if any(spread > MAX_SPREAD_PCT for level in fitted.levels for spread in level.served.spreads_pct.values()):
        lines.append("rounds of one load differ: let nothing else use the server and this machine, or add --rounds")
    finish(fitted, flags, lines)
