"""`plan` and `validate_url` as functions of Python, with the keywords of the commands' flags.

Imports what they need when they are called. Not here: the commands (calibrate.cli), other questions
(sim.report.notebook).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from sim.plugins import plain_number

if TYPE_CHECKING:
    from calibrate.server.served_run import ServedRun
    from sim.report.shown import ShownRental

Flags = TypeVar("Flags", bound=msgspec.Struct)


def plan(
    model: str,
    /,
    *,
    rate: float,
    input_len: int,
    output_len: int,
    goodput: Mapping[str, float],
    draft: str | None = None,
    **flags: Any,
) -> ShownRental:
    """Deployments of `model` to rent for `rate` requests per second: `lanesim plan`. SLOs are milliseconds,
    `goodput={"ttft": 1000, "tpot": 40}`. Further keywords are the command's flags, such as `gpu`, `price` and `draws`.
    Raises ValueError.

    >>> import lanesim
    >>> load = {"rate": 1, "input_len": 64, "output_len": 16, "goodput": {"ttft": 1000}, "draws": 2}
    >>> lanesim.plan("cpu/tiny", **load).frame()["deployment"].tolist()
    ['TP1']
    """
    from calibrate.cli.plan.flags import PlanFlags
    from calibrate.cli.plan.planning import planned
    from sim.cli.options import parse_goodput
    from sim.report.shown import ShownRental, shown_as

    given = {
        "scenario": model,
        "rate": rate,
        "input_len": input_len,
        "output_len": output_len,
        "method": draft,
        **flags,
    }
    bounds_ms = parse_goodput([f"{name.removesuffix('_ms')}:{plain_number(ms)}" for name, ms in goodput.items()])
    if not bounds_ms:
        raise ValueError("no limit on latency is given. Add one, such as goodput={'ttft': 1000, 'tpot': 40}")
    return shown_as(ShownRental, planned(_flags(PlanFlags, given | flags), bounds_ms, lambda stage, done, total: None))


def validate_url(url: str, /, scenario: str | Path | None = None, **flags: Any) -> ServedRun:
    """Fit a profile to the server at `url`, predict the scenario's requests, send them, and compare: `lanesim validate
    URL`. Keywords are the command's flags, such as request_rate, num_prompts, input_len and out. Raises ValueError.

    >>> import lanesim
    >>> lanesim.validate_url("localhost", request_rate=4)
    Traceback (most recent call last):
    ValueError: 'localhost' must be the address of a server, such as http://localhost:8000
    """
    from calibrate.cli.validate_server import ServerFlags, served

    return served(_flags(ServerFlags, {"url": url, "scenario": scenario, **flags}), lambda stage, done, total: None)


def _flags(kind: type[Flags], given: Mapping[str, Any]) -> Flags:
    """The flags of a command from keywords, checked as the command line checks them. Raises ValueError."""
    values = {name: str(value) if isinstance(value, Path) else plain_number(value) for name, value in given.items()}
    for name in values:
        if name not in kind.__struct_fields__:
            from sim.names import unknown

            raise ValueError(unknown("keyword", name, kind.__struct_fields__))
    try:
        return msgspec.convert(values, kind, strict=False, dec_hook=lambda wanted, value: wanted(value))
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
