"""Models by their names on Hugging Face: a table with sources, and config.json files of the hub or its cache.

Not here: what a config.json says (model_configs)."""

from __future__ import annotations

import os
import re
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from socket import create_connection
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import msgspec

from sim.model_names import model_key
from sim.names import install_line


class Published(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Layers of one or several repositories, as the keys of a config.json."""

    source: str
    names: tuple[str, ...] = ()
    """Further repositories with these layers: fine-tunes, later versions, distilled models."""
    config: dict[str, Any]


TABLE = msgspec.json.decode(Path(__file__).with_name("models.json").read_bytes(), type=dict[str, Published])
"""A repository with its number format -> its layers."""
LINES = {each: each for each in TABLE} | {name: each for each, line in TABLE.items() for name in line.names}
"""Repository -> the one that TABLE has; those of TABLE stand first."""
NETWORK_S = 5.0
"""Seconds to wait for Hugging Face before the cache is read."""
CLOSE = 0.8
"""Likeness of two names from which on one is a slip of the pen for the other."""
FORMATS: dict[str, str] = msgspec.json.decode(Path(__file__).with_name("config_keys.json").read_bytes())["endings"]
"""Ending of a repository's name -> weight format."""
BLOCK_SCALED = ("qwen", "deepseek", "glm", "zai-org")
"""Organisations, and families where none is named, whose own -FP8 is scaled by blocks of 128 x 128."""


def without_format(name: str) -> tuple[str, str | None]:
    """A name in lower case without its ending for a weight format, and that format.

    >>> without_format("RedHatAI/Qwen3-32B-FP8-dynamic"), without_format("Qwen/Qwen3-32B")
    (('redhatai/qwen3-32b', 'fp8'), ('qwen/qwen3-32b', None))
    """
    lower = name.lower()
    for ending, weights in FORMATS.items():
        plain = lower.removesuffix(f"-{ending}")
        if plain != lower:
            is_block = ending == "fp8" and plain.startswith(BLOCK_SCALED)
            return plain, "fp8-block" if is_block else weights
    return lower, None


def published(name: str) -> str | None:
    """The repository of LINES with the layers of `name`, its own or its base's. Formats are an organisation's own."""
    wanted, key = name.lower(), model_key(name)
    organisation = wanted.rpartition("/")[0] if without_format(name)[1] else ""
    known = [each for each in LINES if not organisation or each.lower().startswith(f"{organisation}/")]
    for is_same in (
        lambda repository: repository.lower() == wanted,
        lambda repository: repository.lower().partition("/")[2] == wanted.rpartition("/")[2],
        lambda repository: model_key(repository) == key,
    ):
        same = next(filter(is_same, known), None)
        if same is not None:
            return same
    return None


def downloaded(name: str) -> Path | None:
    """The config.json of a repository from Hugging Face, or from its cache alone without huggingface_hub; or None."""
    try:
        from huggingface_hub import constants, hf_hub_download

        host = urlsplit(constants.ENDPOINT)
        if not getproxies():  # Where the host is out of reach, hf_hub_download tries six times, a line each.
            create_connection((host.hostname or "", host.port or 443), NETWORK_S).close()
        return Path(hf_hub_download(name, "config.json", etag_timeout=NETWORK_S))
    except (ImportError, OSError, ValueError):
        # No package, no network, no such repository, or one that asks for a licence: what the cache has may be enough.
        home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
        cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
        return next(iter(cache.glob(f"models--{name.replace('/', '--')}/snapshots/*/config.json")), None)


def unknown_model(name: str, known: list[str]) -> str:
    """A line on an unknown model: a name of the same numbers that it may be a slip for, and how to get its config."""
    spelt = {_bare(each): each for each in [*LINES, *known] if _numbers(each) == _numbers(name)}
    close = get_close_matches(_bare(name), spelt, n=1, cutoff=CLOSE)
    hint = f". Did you mean {spelt[close[0]]!r}?" if close else ""
    if "/" not in name:
        return f"unknown model {name!r}{hint} (give a Hugging Face name, a config.json or a directory with one)"
    folder = name.rpartition("/")[2]
    other = "" if find_spec("huggingface_hub") else f", or let lanesim get them: {install_line('tables')}"
    return (
        f"unknown model {name!r}{hint}. Get its dimensions with `hf download {name} config.json --local-dir {folder}` "
        f"and name {folder}/config.json{other}"
    )


def _bare(name: str) -> str:
    return name.rpartition("/")[2].lower()


def _numbers(name: str) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)?", model_key(name))
