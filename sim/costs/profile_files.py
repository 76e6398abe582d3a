"""Profile files: finding, reading and writing profiles, and to how many digits. Not here: what is in one (profile)."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from sim.costs.forms.physics import check_physics
from sim.costs.profile import SCHEMA, Profile
from sim.files.json_values import Json, convert, parse_json
from sim.files.read import Unreadable, read_text
from sim.files.write import write_text
from sim.model_names import nearest_profile, same_profile
from sim.names import unknown
from sim.plugins import shown

SHIPPED = Path(__file__).parent.parent / "profiles"
MAKER = "calibrate.importers.plan_candidates:profile_of"
"""Finds or makes the file of a profile that is not shipped, by its name; loaded when it is needed."""


class UnknownProfile(ValueError):
    """No shipped profile and no file has this name."""


def shipped() -> list[str]:
    """Names of the shipped profiles, `gpu/target[+draft]`, sorted.

    >>> import lanesim
    >>> "h100-sxm/llama-3.1-8b" in lanesim.profile_names()
    True
    """
    return sorted(f"{path.parent.name}/{path.stem}" for path in SHIPPED.glob("*/*.json"))


@lru_cache(maxsize=256)
def spelling(name: str) -> str:
    """The shipped profile that `name` means, as it is called; `name` itself where none does, or it is a path.

    >>> spelling("h200/meta-llama/Llama-3.1-8B-Instruct"), spelling("mine.json")
    ('h200-sxm/llama-3.1-8b', 'mine.json')
    """
    names = shipped()
    if name.endswith(".json") or name in names:
        return name
    return same_profile(name, names) or name


def default_lengths(name: str) -> tuple[int, int] | None:
    """Default prompt and output tokens of the profile of that name, or path; None where it has none."""
    path = Path(name) if name.endswith(".json") else SHIPPED / f"{spelling(name)}.json"
    try:
        state = path.stat()
        return _lengths_in(path, state.st_mtime_ns, state.st_size)
    except (OSError, ValueError):
        return None


@lru_cache(maxsize=256)
def _lengths_in(path: Path, changed_ns: int, size: int) -> tuple[int, int] | None:
    return load(path).default_lengths


def load(name: str | Path) -> Profile:
    """The shipped profile `name`, in any spelling of it (`model_names`), or the one in the JSON file at that path.

    Raises UnknownProfile, or ValueError where the file is not a valid profile. Both say so in one line.

    >>> import lanesim
    >>> lanesim.load_profile("h100-sxm/llama-3.1-8b").target.layers
    32
    """
    is_path = isinstance(name, Path) or name.endswith(".json")
    text = str(name) if is_path else spelling(str(name))
    path = Path(name) if is_path else SHIPPED / f"{text}.json"
    if not is_path and text not in shipped():
        path = _made(text)
    try:
        content = read_text(path, "profile file")
    except Unreadable as error:
        raise UnknownProfile(str(error)) from None
    profile = decode(content, str(path))
    if is_path:
        try:
            check_physics(profile)
        except ValueError as error:
            raise ValueError(f"profile {text!r}: {error}") from None
    return profile


def _made(name: str) -> Path:
    """The file of a profile that is not shipped, made from published tables. Raises UnknownProfile."""
    module, _, function = MAKER.partition(":")
    hint, why = nearest_profile(name, shipped()), ""
    if name.count("/") and find_spec(module.partition(".")[0]):
        try:
            return Path(getattr(import_module(module), function)(name))
        except (ValueError, ImportError) as error:
            why = str(error)
    known = f"unknown profile {name!r}{hint} (a name from `lanesim profiles`, or a path to a .json file)"
    if not why or ("Did you mean" in hint and why.startswith("unknown model")):
        raise UnknownProfile(known)
    what = known if why.startswith("no kernel tables") else f"no profile {name!r} is shipped"
    raise UnknownProfile(f"{what}. None can be made: {why}")


def decode(content: str | bytes, where: str) -> Profile:
    """The profile in `content`; `where` names it in errors."""
    where = f"profile {where!r}"
    raw = parse_json(content.decode() if isinstance(content, bytes) else content, where)
    if not isinstance(raw, dict):
        raise ValueError(f"{where}: the file must hold a JSON object, got {type(raw).__name__}")
    schema = raw.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise ValueError(f"{where}: schema={schema} is newer than {SCHEMA}, which this version reads. Update lanesim")
    if schema != SCHEMA:
        raise ValueError(f"{where}: schema={schema!r} must be {SCHEMA}")
    return convert(raw, Profile, where)


def encode(profile: Profile) -> bytes:
    """`profile` as JSON, one line per top-level key: short, and readable in a diff."""
    raw: dict[str, Json] = msgspec.to_builtins(profile)
    lines = ",\n".join(f"  {_json(key)}: {_json(value)}" for key, value in raw.items())
    return f"{{\n{lines}\n}}\n".encode()


def save_profile(profile: Profile, path: str | Path) -> Path:
    """Write `profile` to the JSON file at `path`, whole or not at all. Returns the path.

    >>> import lanesim, tempfile
    >>> path = lanesim.save_profile(lanesim.load_profile("cpu/tiny"), tempfile.mkdtemp() + "/tiny.json")
    >>> lanesim.load_profile(path).name
    'cpu/tiny'
    """
    if not isinstance(profile, Profile) or not isinstance(path, str | Path):
        raise ValueError(f"save_profile needs a Profile and a path, and got {shown(profile)} and {shown(path)}")
    path = Path(path)
    if path.suffix != ".json":
        raise ValueError(f"{str(path)!r} must end with .json: profiles are known by it")
    content = encode(profile).decode()
    decode(content, str(path))
    write_text(path, content)
    return path


def ship_profile(profile: Profile, folder: Path = SHIPPED) -> Path:
    """Write `profile` below `folder` by its name, as `load` finds shipped ones; returns the path."""
    path = folder / f"{profile.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    return save_profile(profile, path)


def changed(profile: Profile, **fields: Any) -> Profile:
    """A copy of `profile` with other values in some of its fields, checked anew.

    >>> import lanesim
    >>> lanesim.changed(lanesim.load_profile("cpu/tiny"), source="mine").source
    'mine'
    """
    if not isinstance(profile, Profile):
        raise ValueError(f"changed: {shown(profile)} is not a Profile")
    for name in fields:
        if name not in Profile.__struct_fields__:
            raise ValueError(unknown("field of a profile", name, Profile.__struct_fields__))
    try:
        raw = msgspec.to_builtins({name: getattr(profile, name) for name in Profile.__struct_fields__} | fields)
    except TypeError as error:
        raise ValueError(f"profile {profile.name!r}: {error}") from None
    return convert(raw, Profile, f"profile {profile.name!r}")


def _json(value: Json) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


def round_constant(value: float) -> float:
    """Four significant digits; and what an optimiser left a hair above a bound of zero is zero."""
    return 0.0 if abs(value) < 1e-15 else float(f"{value:.4g}")
