"""`lanesim validate URL --fit-only`: closed loops of streamed requests, and the profile fitted to them.

What was sent is in a file after every loop and before the fit; `lanesim calibrate fit FILE` fits that
file again. Not here: the looks themselves (calibrate.server.side), the fit (calibrate.served.fit).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from secrets import token_hex
from typing import Annotated

import click
from msgspec import Meta

from calibrate.cli.engine_flags import cells_of, set_up
from calibrate.cli.fit import FitFlags, finish, priced
from calibrate.cli.profile_output import check_out
from sim.cli.flags import ARGUMENT, COUNT, Tokens, command, key
from sim.cli.options import listed

EXAMPLE = (
    "lanesim validate http://localhost:8000 --fit-only --profile h100-sxm/llama-3.1-8b \\\n"
    "    --set server.levels=1,4,16,64 --out mine.json"
)
MAX_LEVEL = 10_000
"""Requests at once, each a connection."""


Served = Annotated[str | None, key("server.model"), "Model, as the server names it. [its only one]"]
Patience = Annotated[
    float,
    Meta(gt=0.0, le=86_400.0),
    key("server.timeout_s"),
    "Most seconds that one answer, or a start of the server, may take.",
]
LEVELS, ROUNDS = key("server.levels"), key("server.rounds")
KEY = "LANESIM_API_KEY"
"""Environment variable that holds the server's key."""


class ProbeFlags(FitFlags, frozen=True, kw_only=True):
    """Flags about the loads and the fit."""

    url: Annotated[str, ARGUMENT, Meta(title="URL")]
    model: Served = None
    timeout_s: Patience = 300.0
    levels: Annotated[
        str, LEVELS, "Numbers of parallel requests to send. The largest is predicted from the others."
    ] = "1,2,4,8,16"
    rounds: Annotated[int, Meta(ge=1, le=COUNT), ROUNDS, "How often each of them is sent."] = 7
    input_len: Annotated[Tokens, "Tokens of each prompt."] = 128
    output_len: Annotated[int, Meta(ge=2, le=10_000_000), "Tokens requested."] = 64


@command("fit", ProbeFlags, example=EXAMPLE)
def fit_command(flags: ProbeFlags) -> None:
    """Time a server from outside: closed loops of streamed requests, several numbers of them at once. The largest is
    predicted from the others. Only the address that is given is called; it serves what is asked, so mind the bill."""
    from calibrate.served.fit import fit_served
    from calibrate.server.endpoint import base_of
    from calibrate.server.network import Client
    from calibrate.server.side import PLAIN, Side
    from sim.cli.console import progress
    from sim.costs.engine_costs import engine_of
    from sim.costs.profile_files import load

    base, levels, key = base_of(flags.url), levels_of(flags.levels), server_key()
    measured = (Path("probe") if flags.out is None else flags.out).with_suffix(".measured.json")
    check_out(flags.out, [flags.profile], json_path=flags.json, others={"measured levels": measured})
    profile, raw = load(flags.profile), set_up(flags.engine, flags.set)
    engine_of(flags.engine, profile)
    lengths = {"input_len": flags.input_len, "output_len": flags.output_len}
    loops = {
        "policy": "continuous",
        **raw,
        "profile": flags.profile,
        "workload": {"num_prompts": 1, "request_rate": 1.0, **lengths},
        "speculation": PLAIN,
    }
    with _keeping(measured, flags, len(levels)), progress() as on_step:
        with Client(base, timeout_s=flags.timeout_s, key=key) as client:
            side = Side(client, flags.model, loops, profile, measured, new_words(), "", on_step, is_fresh=True)
            side.warm_up(levels[-1])
            side.look_alone([flags.input_len])
            # By turns, so that a minute in which the server is slow falls on all levels.
            for number, at_once in product(range(flags.rounds), levels):
                side.look_at(at_once, number)
        served = side.looks.rounds
        fitted = fit_served(priced(profile, raw, side.looks), served, cells_of(raw), on_step)
    finish(fitted, flags, served)


def server_key() -> str | None:
    """The key that the environment has for a server; it is never shown."""
    key = os.environ.get(KEY, "").strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ValueError(f"{KEY}: want a key of printable ASCII characters without spaces")
    return key or None


def new_words() -> str:
    """Part of a seed that no command had before: a server may still have the prompts of those in its cache."""
    return token_hex(4)


def levels_of(text: str) -> list[int]:
    levels = sorted(set(listed("server.levels", text, int, "numbers of requests at once, such as 1,4,16") or ()))
    if levels[0] < 1 or len(levels) < 2:
        raise ValueError(f"server.levels {text!r}: want at least two different ones, each at least 1")
    if levels[-1] > MAX_LEVEL:
        raise ValueError(f"server.levels {text!r}: want {MAX_LEVEL} requests at once at most")
    return levels


@contextmanager
def _keeping(measured: Path, flags: ProbeFlags, num_levels: int) -> Iterator[None]:
    """An error within the block, or a signal, says what is kept in the file `measured`, and how to fit it."""
    from calibrate.served.reports import read_looks

    given = {"--profile": flags.profile, "--engine": flags.engine, "--out": flags.out}
    words = [
        str(measured),
        *(str(word) for flag, value in given.items() if value is not None for word in (flag, value)),
    ]
    words += [word for override in flags.set for word in ("--set", override)]
    try:
        yield
    except BaseException as error:
        done = len(read_looks(measured).rounds) // num_levels if measured.exists() else 0
        again = shlex.join(["lanesim", "calibrate", "fit", *words])
        kept = f"{done} of {flags.rounds} rounds are in {str(measured)!r}. To fit them: {again}"
        if done and isinstance(error, ValueError):
            error.add_note(f"({kept})")
        elif done:
            click.echo(f"lanesim: {kept}", err=True)
        raise
