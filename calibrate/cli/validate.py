"""`lanesim validate`: one command by what it is given, a replay's directory or one of the words of FORMS.

The options are those of all forms, each declared with its form; one that the form at hand lacks is refused. Not here:
what the forms do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from calibrate.cli.validate_file import EXAMPLE
from sim.cli.flags import FlagsCommand, made, parameters
from sim.cli.lazy import command_at

DIRECTORY, FILE, SERVER, FIT = "DIRECTORY", "FILE", "URL", "URL --fit-only"
TABLE, RUN = "cells", "vllm"
"""Words that may stand before a table, or requests."""
FORMS = {
    DIRECTORY: "realrun.cli.validate:directory_command",
    FILE: "calibrate.cli.validate_file:file_command",
    SERVER: "calibrate.cli.validate_server:server_command",
    FIT: "calibrate.cli.validate_server:fit_command",
}
"""The command of each form; a file or directory that is called cells or vllm is reached as ./cells."""


def _form(kind: str) -> FlagsCommand:
    command = command_at(FORMS[kind])
    assert isinstance(command, FlagsCommand)
    return command


def _options() -> list[click.Parameter]:
    """Options of all forms, each once and none of them required: that is seen when the form is known."""
    words = click.Argument(["words"], nargs=-1, metavar="DIRECTORY | FILE | URL [--fit-only]")
    only = click.Option(
        ["--fit-only"],
        is_flag=True,
        help="Fit a profile to the server at URL. The largest load is predicted from the others.",
    )
    options: dict[str | None, click.Parameter] = {"words": words, "fit_only": only}
    for kind in FORMS:
        for option in parameters(_form(kind).flags):
            if isinstance(option, click.Option):
                option.required = False
                options.setdefault(option.name, option)
    return list(options.values())


def _chosen(words: Sequence[str], is_fit_only: bool) -> tuple[str, Sequence[str]]:
    """The form that a command line is of, and its arguments."""
    first = words[0] if words else ""
    if is_fit_only:
        return FIT, words
    if first in (TABLE, RUN):
        return FILE, words[1:]
    if first.startswith(("http://", "https://")):
        return SERVER, words
    return FILE if Path(first).is_file() else DIRECTORY, words


def _validate(words: tuple[str, ...], fit_only: bool, **values: Any) -> None:
    kind, arguments = _chosen(words, fit_only)
    form, source_of = _form(kind), click.get_current_context().get_parameter_source
    wanted = {str(param.name): param for param in parameters(form.flags)}
    given = {name: value for name, value in values.items() if source_of(name) is ParameterSource.COMMANDLINE}
    for name in given:
        if name not in wanted:
            raise click.UsageError(f"no option --{name.replace('_', '-')} in `lanesim validate {kind}`")
    named = [param for param in wanted.values() if isinstance(param, click.Argument)]
    if not sum(param.required for param in named) <= len(arguments) <= len(named):
        titles = " ".join(dict.fromkeys([kind, *(param.make_metavar(click.Context(form)) for param in named)]))
        raise click.UsageError(f"validate {' '.join(words)} does not fit. Write `lanesim validate {titles}`")
    given |= {str(param.name): param.type(text) for param, text in zip(named, arguments, strict=False)}
    for name, param in wanted.items():
        if param.required and name not in given:
            raise click.UsageError(f"Missing option '{param.opts[0]}'.")
    if kind == DIRECTORY and not Path(words[0]).exists():
        raise click.UsageError(f"{words[0]!r} is no file or directory. A server's address begins with http://")
    form.body(made(form.flags, given))


validate_command = FlagsCommand(
    "validate",
    params=_options(),
    callback=_validate,
    short_help="How far off the simulator is: on your server, a benchmark's file or a replay.",
    epilog=f"\b\nExample:\n  {EXAMPLE}",
    help="""Say how far off the simulator was.

    URL: lanesim predicts the load that you describe, sends it to your server, and compares. It calls only that address.

    URL --fit-only: it sends several numbers of parallel requests and fits a profile to the answers. The largest number
    is predicted from the others.

    FILE: what a benchmark wrote or printed, a CSV of loads, or the requests of a vLLM run. A CSV has columns
    concurrency, input_len and output_len, and what was measured, such as ttft_ms, tpot_ms or output_throughput.
    Optional columns are num_speculative_tokens, acceptance, max_num_seqs and label. A list of requests or prompts
    may follow FILE.

    DIRECTORY: results of `lanesim replay`. Its error has three parts. mechanism: with the measured time of each pass.
    cost: with the times of the profile. contention: with streams that slow each other down.""",
).take([_form(kind).flags for kind in FORMS])
