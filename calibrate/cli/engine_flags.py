"""Flags that forms of `lanesim validate` share: how the real engine was set up.

Not here: the checks of the values (sim.run.scenario), tables on the terminal (calibrate.cli.profile_output).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Struct

from sim.cli.flags import JsonFile, Overwrite, key
from sim.cli.options import Overrides

if TYPE_CHECKING:
    from calibrate.served.judge import LoadSetup

DRAFT_KEY = "speculation.num_speculative_tokens"


class LoadFlags(Struct, frozen=True, kw_only=True):
    """Flags of loads that a server had; None where not given."""

    profile: Annotated[str, "Cost profile of the GPU and models: gpu/target[+draft], or its file."]
    engine: Annotated[
        str | None,
        key("engine.name"),
        "Engine and version that served, such as vllm-0.12. [default: the profile's, or vllm-0.33]",
    ] = None
    set: Overrides = ()
    json: JsonFile = None
    overwrite: Overwrite = False


def set_up(engine: str | None, overrides: Sequence[str]) -> dict[str, Any]:
    """The raw scenario of the flags: the `engine` block of that name, and what --set says."""
    from sim.run.scenario_file import parse_override, set_dotted

    raw: dict[str, Any] = {"engine": {} if engine is None else {"name": engine}}
    for text in overrides:
        set_dotted(raw, *parse_override(text))
    return raw


def cells_of(raw: Mapping[str, Any], requests: Sequence[tuple[int, int]] = ()) -> LoadSetup:
    """What `raw` says of all cells. Raises ValueError for other blocks."""
    from calibrate.served.judge import LoadSetup

    if foreign := sorted(set(raw) - {"engine", "workload", "speculation", "seed"}):
        raise ValueError(
            f"--set {foreign[0]}: want a key of engine, workload or speculation. The measured loads have the rest"
        )
    blocks = {name: raw.get(name, {}) for name in ("engine", "workload", "speculation")}
    return LoadSetup(**blocks, requests=requests, seed=raw.get("seed", 0))
