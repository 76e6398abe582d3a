"""`lanesim validate URL --fit-only`: drive an OpenAI-compatible endpoint, fit its constants, predict a level held back.

What was measured is in a file after every round and before the fit; given in place of the address, it is fitted again.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated

import click
from msgspec import Meta, Struct, structs

from calibrate.cli.profile_output import check_out, print_saved, save
from sim.cli.flags import ARGUMENT, COUNT, JsonFile, Overwrite, Tokens, command
from sim.cli.options import listed

if TYPE_CHECKING:
    from calibrate.production.levels import ServedLevel
    from sim.costs.profile import Profile
    from sim.files.json_values import Json

EXAMPLE = (
    "lanesim validate http://localhost:8000 --fit-only --profile h100-sxm/llama-3.1-8b \\\n"
    "    --levels 1,4,16,64 --out mine.json"
)
MAX_LEVEL = 10_000
"""Requests at once, each a connection."""
MIN_REQUESTS = 8
"""Requests in a round of one level, at least."""
REQUESTS_PER_STREAM = 6
WARM_UP_WAVES = 2
"""Waves of as many requests as the highest level has at once, before anything counts: servers compile, allocate and
fill caches while they answer their first requests."""
OF_A_MEASUREMENT = (
    *("model", "levels", "rounds", "input_len", "output_len"),
    *("measured", "timeout_s", "api_key_env"),
)
"""Flags that mean nothing where the levels are measured already."""
OF_A_FIT = ("engine", "max_num_seqs", "max_num_batched_tokens")
MAX_SPREAD_PCT = 15.0
"""Rounds that differ by more are said to be noisy: a median of them is no better than that."""


class ProbeFlags(Struct, frozen=True, kw_only=True):
    """Flags about the levels and the fit."""

    url: Annotated[str, ARGUMENT, Meta(title="URL")]
    profile: Annotated[str, "Profile of the GPU and models: a name or a path."]
    model: Annotated[str | None, "Model, as the server names it. [its only one]"] = None
    levels: Annotated[str, "Requests at once, a closed loop each; the middle one is predicted."] = "1,2,4,8,16"
    rounds: Annotated[int, Meta(ge=1, le=COUNT), "Over the levels, by turns."] = 7
    input_len: Annotated[Tokens, "Words of each prompt."] = 128
    output_len: Annotated[int, Meta(ge=2, le=10_000_000), "Tokens requested."] = 64
    engine: Annotated[str | None, "Engine to start from [as in compare]."] = None
    max_num_seqs: Annotated[int | None, Meta(ge=1, le=COUNT), "The server's. [the engine's own]"] = None
    max_num_batched_tokens: Annotated[Tokens | None, "The server's. [the engine's own]"] = None
    timeout_s: Annotated[float, Meta(gt=0.0, le=86_400.0), "Longest that one answer may take, to its last byte."] = (
        300.0
    )
    api_key_env: Annotated[str | None, Meta(title="NAME"), "Environment variable that holds the server's key."] = None
    measured: Annotated[
        Path | None,
        "File for the measured levels; give it in place of URL to fit them again. "
        "[OUT.measured.json beside --out, else probe.measured.json]",
    ] = None
    out: Annotated[Path | None, "Profile to write, with the server's constants as its own."] = None
    json: JsonFile = None
    overwrite: Overwrite = False


@command("probe", ProbeFlags, example=EXAMPLE, hidden=True)
def probe_command(flags: ProbeFlags) -> None:
    """Time a server from outside: closed loops of streamed requests at several levels. One level is held back and
    predicted from the others. Only the address that is given is called; it serves what is asked, so mind the bill."""
    from calibrate.production.level_files import read_measured
    from calibrate.server.probe import base_of
    from sim.costs.engine_costs import engine_of
    from sim.costs.profile_files import load

    url, profile_name, out, json_path = flags.url, flags.profile, flags.out, flags.json
    if Path(url).is_file():
        usual = {field.name: field.default for field in structs.fields(flags)}
        given = [name for name in OF_A_MEASUREMENT if getattr(flags, name) != usual[name]]
        if given:
            raise ValueError(f"{url!r} is measured already: leave out {', '.join(map(_flag, given))}")
        check_out(out, [profile_name, url], json_path=json_path)
        profile = load(profile_name)
        served = read_measured(Path(url))
        _fit(profile, served, flags)
        return
    base = base_of(url)
    key = key_of(flags.api_key_env)
    levels = levels_of(flags.levels)
    measured = flags.measured or (Path("probe") if out is None else out).with_suffix(".measured.json")
    check_out(out, [profile_name], json_path=json_path, others={"--measured": measured})
    profile = load(profile_name)
    engine_of(flags.engine, profile)
    with _keeping(measured, base, _again(measured, flags), flags.rounds) as keep:
        served = drive(base, key, levels, flags, keep)
        _fit(profile, served, flags)


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


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _again(measured: Path, flags: ProbeFlags) -> str:
    """The command that fits what is kept in `measured` as this one would have."""
    given = [(_flag(name), getattr(flags, name)) for name in ("profile", *OF_A_FIT, "out", "json")]
    words = [str(word) for flag, value in given if value is not None for word in (flag, value)]
    return shlex.join(["lanesim", "validate", str(measured), "--fit-only", *words])


@contextmanager
def _keeping(measured: Path, url: str, again: str, rounds: int) -> Iterator[Callable[[list[ServedLevel]], None]]:
    """Function that saves the levels after each round. An error within the block, or a signal, names their file."""
    from calibrate.production.level_files import write_measured

    done = 0

    def keep(served: list[ServedLevel]) -> None:
        nonlocal done
        write_measured(measured, url, served)
        done += 1

    def kept() -> str:
        return f"{done} of {rounds} rounds are in {str(measured)!r}; to fit them: {again}"

    try:
        yield keep
    except ValueError as error:
        if done:
            error.add_note(f"({kept()})")
        raise
    except BaseException:
        if done:
            click.echo(f"lanesim: {kept()}", err=True)
        raise


def _fit(profile: Profile, served: Sequence[ServedLevel], flags: ProbeFlags) -> None:
    """Fit the levels but the middle one, predict that, and write and print what comes of it."""
    from calibrate.cli.production import advice, plain, show
    from calibrate.judge.cells import CellSetup
    from calibrate.production.engine_fit import fit_served, predicted
    from sim.cli.console import write_json

    engine = {
        "name": flags.engine,
        "max_num_seqs": flags.max_num_seqs,
        "max_num_batched_tokens": flags.max_num_batched_tokens,
    }
    setup = CellSetup(engine={name: value for name, value in engine.items() if value is not None}, warmup_waves=1)
    held = served[len(served) // 2]
    fitted = fit_served(profile, [each for each in served if each is not held], setup)
    errors_pct = predicted(fitted, held, setup)
    out = flags.out
    if out is not None:
        save(fitted.profile, out)
    held_plain: dict[str, Json] = {
        "concurrency": held.concurrency,
        "measured": held.measured,
        "errors_pct": errors_pct,
        "spreads_pct": held.spreads_pct,
    }
    ending = advice(fitted, flags.profile, out, errors_pct)
    if write_json(flags.json, plain(fitted) | {"held_back": held_plain, "next": ending}):
        show(fitted, errors_pct)
        told = ", ".join(f"{name} {error:+.1f} %" for name, error in errors_pct.items())
        print(f"held back, {held.concurrency:g} at once, predicted: {told}")
        for each in served:
            if spreads := ", ".join(f"{name} ±{spread:.0f} %" for name, spread in each.spreads_pct.items()):
                print(f"{each.source}, over its rounds: {spreads}")
        for each in served:
            for reason, count in each.failed.items():
                print(f"{each.source}: {count} of {each.sent} requests failed: {reason}")
        if any(spread > MAX_SPREAD_PCT for each in served for spread in each.spreads_pct.values()):
            print("rounds of one load differ: let nothing else use the server and this machine, or add --rounds")
        if out is not None:
            print_saved(fitted.profile, out)
        print(ending)


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


def _of_a_round(concurrency: int) -> int:
    return max(MIN_REQUESTS, REQUESTS_PER_STREAM * concurrency)


def drive(
    base: str, key: str | None, levels: list[int], flags: ProbeFlags, on_round: Callable[[list[ServedLevel]], None]
) -> list[ServedLevel]:
    """Every level measured; `on_round` hears the levels so far after each round."""
    from calibrate.production.levels import middling
    from calibrate.server.network import Client
    from calibrate.server.probe import find, level
    from sim.cli.console import progress

    words_drawn = new_words()
    with Client(base, timeout_s=flags.timeout_s, key=key) as client, progress() as on_step:
        endpoint = find(client, flags.model)

        def one(concurrency: int, count: int, what: str, seed: int) -> ServedLevel:
            return level(
                client,
                endpoint,
                concurrency=concurrency,
                num_requests=count,
                input_words=flags.input_len,
                output_tokens=flags.output_len,
                seed=f"{words_drawn} {seed}",
                on_done=lambda done: on_step(what, done, count),
            )

        one(levels[-1], WARM_UP_WAVES * levels[-1], "warming up", -1)
        rounds: dict[int, list[ServedLevel]] = {concurrency: [] for concurrency in levels}
        # By turns, so that a server or a machine that slows down for a while does so for one round of each level.
        for number in range(flags.rounds):
            for concurrency in levels:
                count = _of_a_round(concurrency)
                rounds[concurrency].append(one(concurrency, count, f"{concurrency} at once", number))
            medians = [middling(rounds[concurrency]) for concurrency in levels]
            on_round(medians)
    return medians
