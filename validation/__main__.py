"""`python -m validation NAME ...`: what the simulator is judged on, one program per name; without one, their list.

A program is its module's `main`, which has the command line as `words`, or a parameter of every argument; one with a
default is a flag.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from importlib import import_module
from inspect import Parameter, signature
from typing import Any, Literal, get_args, get_origin, get_type_hints

from sim.files.lock import check_destinations

PROGRAMS = {
    "accuracy": ("validation.accuracy.accuracy_page", "docs/accuracy.md: real runs of others beside simulated ones"),
    "accuracy_intervals": (
        "validation.coverage:accuracy_intervals",
        "how often tune's interval of a speed-up holds",
    ),
    "atlas": ("validation.pages.atlas_page", "docs/atlas.html: published pairs, best draft length by load, break-even"),
    "claims": ("validation.claims.claims_command", "published claims: claimed, simulated, verdict and why"),
    "conformance": (
        "validation.conformance.conformance_command",
        "steps of real schedulers beside those of continuous",
    ),
    "drafted": ("validation.silicon.drafted", "served cells that draft with MTP, beside plain ones of the same set-up"),
    "evidence": ("validation.silicon.evidence", "sim/evidence: means of judged served cells, which answers quote"),
    "figures": (
        "validation.pages.figures",
        "figures that README states, and what each comes from; 1 where one is not so",
    ),
    "leaderboard": ("validation.pages.leaderboard", "docs/leaderboard.md: lanesim beside every other simulator"),
    "left_out": ("validation.left_out", "pooled constants of engines without each of their sources"),
    "notebooks": ("validation.pages.notebooks", "executes the notebooks on small settings"),
    "overlap": ("validation.pages.overlap", "published A/Bs of one plain stream against two, beside leftover"),
    "profile_errors": ("validation.pages.profile_errors", "error of a profile on its held-out points, per kind"),
    "replay_accuracy": (
        "validation.replays.replay_accuracy",
        "docs/validation: this CPU measured, predicted, replayed",
    ),
    "scenario_docs": ("validation.pages.scenario", "docs/scenario.md, from the schema"),
    "sglang_steps": ("validation.conformance.sglang_scheduler", "SGLang's own scheduler beside lanesim's, every step"),
    "silicon": ("validation.silicon.silicon_command", "served cells by class, beside a peer"),
    "silicon_page": ("validation.silicon.silicon_page", "docs/silicon.md, from results of silicon"),
    "speed": ("validation.speed.processes", "CPU seconds and memory, beside a bare loop"),
    "support": ("validation.pages.support", "docs/support.md: which model runs on which GPU"),
    "truths": ("validation.coverage:truths", "answers of capacity, tune and plan in other draws of costs"),
    "verdicts": ("validation.coverage:verdicts", "how often load verdicts and intervals hold"),
    "who_wins": ("validation.pages.who_wins", "docs/who-wins.md: the fastest policy by load"),
}
"""Name -> (module and function, `main` where none is named; what it does)."""
OUTPUTS = ("out", "table")
"""Parameters of programs that name what is written: files, or a folder."""


def main(args: list[str]) -> int:
    """The exit code: 2 where there is no such program, or no such file as it wants."""
    if not args or args[0] not in PROGRAMS:
        lines = [f"  {name:20}{what}" for name, (_, what) in PROGRAMS.items()]
        print("\n".join(["usage: python -m validation NAME ...", *lines]), file=sys.stderr)
        return 2
    module, _, function = PROGRAMS[args[0]][0].partition(":")
    program = getattr(import_module(module), function or "main")
    sys.argv = [f"python -m validation {args[0]}", *args[1:]]
    given = {} if signature(program).parameters.keys() <= {"words"} else arguments(program, args[1:])
    try:
        return int(program(**given) or 0)
    except FileNotFoundError as error:
        print(f"{sys.argv[0]}: {error.filename}: no such file", file=sys.stderr)
        return 2


def arguments(program: Callable[..., Any], words: Sequence[str]) -> dict[str, Any]:
    """Values of `program`'s parameters from a command line, each of the parameter's type. Exits with 2 as argparse
    does."""
    outputs = [name for name in OUTPUTS if name in signature(program).parameters]
    about = sys.modules[program.__module__].__doc__
    parser = ArgumentParser(prog=sys.argv[0], description=about, formatter_class=RawDescriptionHelpFormatter)
    hints = get_type_hints(program)
    for name, parameter in signature(program).parameters.items():
        kind = hints[name]
        how: dict[str, Any] = {"type": next(iter(get_args(kind)), kind)}
        if kind is bool:
            how = {"action": "store_true"}
        elif get_origin(kind) is Literal:
            how = {"choices": get_args(kind)}
        elif get_origin(kind) in (list, tuple):
            how["nargs"] = "*"
        if parameter.default is Parameter.empty:
            parser.add_argument(name, **how)
        else:
            parser.add_argument(f"--{name.replace('_', '-')}", default=parameter.default, **how)
    if outputs:
        parser.add_argument("--overwrite", action="store_true", help="Replace output files that are there.")
    given = vars(parser.parse_args(words))
    # What a program writes by itself is its page of the repository.
    named = {f"--{name}": given[name] for name in outputs if given[name] != parser.get_default(name)}
    try:
        check_destinations(named, overwrite=given.pop("overwrite", False))
    except ValueError as error:
        parser.error(str(error))
    return given


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
