"""`python -m validation NAME ...`: the programs that judge the simulator, one per name, or their list without a name.

A program is its module's `main`, or the function that is named; it has a parameter for every argument, and one with a
default is a flag.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from importlib import import_module
from inspect import Parameter, signature
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from sim.files.lock import check_destinations

PROGRAMS = {
    "accuracy": ("validation.judge.sections", "tables of runs of others, simulated, with bars and fits"),
    "accuracy_page": ("validation.pages.accuracy", "docs/accuracy.md: how far off, and who is better, from the tables"),
    "atlas": ("validation.pages.atlas", "docs/atlas.csv: published pairs, best draft length at each load"),
    "claims": ("validation.claims.claims_command", "published claims: claimed, simulated, verdict and why"),
    "conformance": (
        "validation.conformance.replayed",
        "steps of real schedulers beside those of continuous",
    ),
    "constants": (
        "validation.constants",
        "constants of engines: judged by models that gave none of them, or fitted anew",
    ),
    "drafted": ("validation.judge.drafted", "served cells that draft with MTP, beside plain ones of the same set-up"),
    "evidence": ("validation.judge.evidence", "sim/evidence: means of judged served cells, which answers quote"),
    "notebooks": ("validation.pages.notebooks", "executes the notebooks on small settings"),
    "real_gpus": ("validation.pages.real_gpus", "docs/real-gpus.md: replays on GPUs and verify passes, beside today"),
    "real_vllm": (
        "validation.replays.real_vllm",
        "docs/validation/real-vllm.md: a real vLLM here, predicted, then sent the load",
    ),
    "scenario_docs": ("validation.pages.scenario", "docs/scenario.md, from the schema"),
    "silicon": ("validation.judge.served_judge", "served cells by class, beside a peer"),
    "silicon_tables": ("validation.judge.served_judge:write_tables", "tables of results of silicon"),
}
"""Name -> (module and function, `main` where none is named; what it does)."""
OUTPUTS = ("out", "table", "json", "page")
"""Parameters of programs that name what is written: files, or a folder. One without a default is a flag, too."""


def main(args: list[str]) -> int:
    """The exit code: 2, and one line, where there is no such program, no such file as it wants, or bad input."""
    if not args or args[0] not in PROGRAMS:
        lines = [f"  {name:20}{what}" for name, (_, what) in PROGRAMS.items()]
        print("\n".join(["usage: python -m validation NAME ...", *lines]), file=sys.stderr)
        return 2
    module, _, function = PROGRAMS[args[0]][0].partition(":")
    program = getattr(import_module(module), function or "main")
    name = f"python -m validation {args[0]}"
    try:
        return int(program(**arguments(program, args[1:], name)) or 0)
    except FileNotFoundError as error:
        print(f"{name}: {error.filename}: no such file", file=sys.stderr)
    except ValueError as error:
        print(f"{name}: {error}", file=sys.stderr)
    return 2


def arguments(program: Callable[..., Any], words: Sequence[str], name: str = "") -> dict[str, Any]:
    """Values of `program`'s parameters from a command line, each of the parameter's type. Exits with 2 as argparse
    does; raises ValueError for an output that is there, or is read as well."""
    about = sys.modules[program.__module__].__doc__
    parser = ArgumentParser(prog=name, description=about, formatter_class=RawDescriptionHelpFormatter)
    hints, parameters = get_type_hints(program), signature(program).parameters
    for parameter_name, parameter in parameters.items():
        kind, is_required = hints[parameter_name], parameter.default is Parameter.empty
        how: dict[str, Any] = {"type": next(iter(get_args(kind)), kind)}
        if kind is bool:
            how = {"action": "store_true"}
        elif get_origin(kind) is Literal:
            how = {"choices": get_args(kind)}
        elif get_origin(kind) in (list, Sequence):
            how |= {"nargs": "*", "action": "extend"}
        if is_required and parameter_name not in OUTPUTS:
            parser.add_argument(parameter_name, **how)
        else:
            default = None if is_required else parameter.default
            default = list(default) if isinstance(default, tuple) else default
            parser.add_argument(f"--{parameter_name.replace('_', '-')}", default=default, required=is_required, **how)
    outputs = [each for each in parameters if each in OUTPUTS]
    if outputs:
        parser.add_argument("--overwrite", action="store_true", help="Replace output files that are there.")
    given = vars(parser.parse_args(words))
    # What a program writes by itself is its page of the repository.
    named = {f"--{each}": given[each] for each in outputs if given[each] != parser.get_default(each)}
    values = chain.from_iterable(v if isinstance(v, list) else [v] for k, v in given.items() if k not in OUTPUTS)
    read = [value for value in values if isinstance(value, Path)]
    check_destinations(named, overwrite=given.pop("overwrite", False), inputs=read)
    return given


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
