"""The frame of the twins: two ways to ask one thing, whose answers must agree.

A twin is a test that takes what was drawn and returns both answers, plain values of any depth, or several such pairs;
its name says what holds. Commands run in this process. Not here: what is drawn (tests.twins.drawn).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from math import isclose
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st

from sim.cli.main import run
from sim.run.scenario_file import FLAT_NAMES
from tests.properties import examples
from tests.sim.cli.test_consent import commands

Json = Any
Asked = Mapping[str, Json]
"""Flags by name, without dashes; a list stands for a flag given several times, and `set` holds dotted keys."""
SHARE = 0.1
"""Of the examples that a property gets; a twin runs two commands at least."""
PHASES = (Phase.explicit, Phase.generate)
"""What fails is shown as it was drawn: it is small already, and to make it smaller takes hundreds of commands."""
SHOWN = 8
"""Differences that a failure names."""
COMMANDS = dict(commands())
WIDE = "400"
"""Columns of the terminal, so that no table is folded."""


class Refusal(ValueError):
    """A command ended with another code than 0: the code and its line."""


class Pair(NamedTuple):
    """Two answers that must agree."""

    one: Json
    other: Json


def twin(*drawn: st.SearchStrategy[Any], rel: float = 0.0, share: float = SHARE) -> Callable[..., Callable[[], None]]:
    """A test of a function from what is `drawn` to a Pair. Numbers may differ by `rel` of the larger one."""

    def as_test(pair_of: Callable[..., Pair]) -> Callable[[], None]:
        def check(values: tuple[Any, ...]) -> None:
            one, other = pair_of(*values)
            found = list(differences(one, other, rel))
            assert not found, "\n".join([f"{len(found)} differences", *found[:SHOWN]])

        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(check, name, getattr(pair_of, name))
        slow = HealthCheck.too_slow, HealthCheck.data_too_large
        once = examples(share, suppress_health_check=slow, phases=PHASES, report_multiple_bugs=False)
        return once(given(st.tuples(*drawn))(check))

    return as_test


def differences(one: Json, other: Json, rel: float = 0.0, where: str = "") -> Iterator[str]:
    """A line for each value that differs, under its keys."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in dict.fromkeys((*one, *other)):
            if key not in one or key not in other:
                yield f"{where}.{key}: only in {'one' if key in one else 'the other'}"
            else:
                yield from differences(one[key], other[key], rel, f"{where}.{key}")
    elif _is_list(one) and _is_list(other):
        if len(one) != len(other):
            yield f"{where}: {len(one)} values against {len(other)}"
        for place, values in enumerate(zip(one, other, strict=False)):
            yield from differences(*values, rel, f"{where}[{place}]")
    elif _is_number(one) and _is_number(other):
        if not isclose(one, other, rel_tol=rel, abs_tol=1e-12):
            yield f"{where}: {one!r} against {other!r}"
    elif one != other:
        yield f"{where}: {one!r} against {other!r}"


def _is_list(value: Json) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# -- asking


def words(asked: Asked, command: str = "compare") -> list[str]:
    """The flags of a command line; keys of a scenario that the command has no flag for are set."""
    known = {option.removeprefix("--") for each in COMMANDS[command].params for option in each.opts}
    keys = dict(asked.get("set", {}))
    found: list[str] = []
    for name, value in asked.items():
        if value is None or name == "set":
            continue
        if name not in known:
            key = name.replace("-", "_")
            keys[FLAT_NAMES.get(key, key)] = value
        elif isinstance(value, list):
            found += [word for each in value for word in (f"--{name}", str(each))]
        else:
            found += [f"--{name}", str(value)]
    return found + [word for key, held in keys.items() for word in ("--set", f"{key}={json.dumps(held, default=str)}")]


def said(*line: str) -> str:
    """What a command prints. Raises Refusal."""
    out, errors = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(errors), patch.dict(os.environ, COLUMNS=WIDE):
        code = run(line)
    if code:
        raise Refusal(f"exit code {code}: {errors.getvalue().strip()} ({' '.join(line)})")
    return out.getvalue()


def answer(command: str, asked: Asked, *more: str) -> Json:
    """The JSON of a command on a scenario, in one process."""
    alone = ("--workers", "1") if command == "compare" else ()
    return json.loads(said(command, *words(asked, command), *more, *alone, "--json", "-"))


def runs(asked: Asked, *more: str) -> list[dict[str, Json]]:
    """The runs of a comparison."""
    found: list[dict[str, Json]] = answer("compare", asked, *more)["runs"]
    return found


def or_refused(ask: Callable[[], Json]) -> Json:
    """The answer, or that there is none: what is refused misleads nobody."""
    try:
        return ask()
    except ValueError:
        return "refused"


def only(values: Sequence[Mapping[str, Json]], *keys: str) -> list[dict[str, Json]]:
    """Some keys of each."""
    return [{key: value[key] for key in keys} for value in values]


def without(values: Sequence[Mapping[str, Json]], *keys: str) -> list[dict[str, Json]]:
    """All keys of each but some."""
    return [{key: value for key, value in each.items() if key not in keys} for each in values]


def with_set(asked: Asked, **changes: Json) -> dict[str, Json]:
    """`asked` with other values of dotted keys, written with two underscores for a dot."""
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    return {**asked, "set": {**asked.get("set", {}), **keys}}


def flat(asked: Asked) -> dict[str, Json]:
    """The question as keywords of Python."""
    named = {name.replace("-", "_"): value for name, value in asked.items() if name != "set"}
    return named | dict(asked.get("set", {}))


def dotted(asked: Asked) -> dict[str, Any]:
    """The question under the scenario's dotted keys."""
    return {FLAT_NAMES.get(name, name): value for name, value in flat(asked).items()}


def nested(asked: Asked) -> dict[str, Any]:
    """The question as a scenario file has it."""
    found: dict[str, Any] = {}
    for key, value in dotted(asked).items():
        block, _, name = key.rpartition(".")
        (found.setdefault(block, {}) if block else found)[name] = value
    return found


@contextmanager
def folder() -> Iterator[Path]:
    """A folder of one example."""
    with TemporaryDirectory(prefix="lanesim-twin-") as path:
        yield Path(path)


def write_lines(path: Path, rows: Sequence[Mapping[str, Json]]) -> Path:
    """JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
