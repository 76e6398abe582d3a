"""Flags of a command, declared once: a Struct whose fields are its options, with type, default, bounds and help.

A field is `name: Annotated[type, Meta(ge=..., le=...), "help"] = default`.
Its flag is its name with dashes; a title in Meta stands for the value in the help. `bool` is a flag, a tuple may be
repeated, a Literal is a choice, a type that admits None has no default to show. A field with a key has no flag: --set
gives it. Options of EVERYWHERE belong to the whole command line: a field says COMMON and gets one of them.
The command gets the Struct. Not here: what flags mean (each command's file).
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click
from msgspec import NODEFAULT, Meta, Struct, structs

F = TypeVar("F", bound=Struct)
BOUND = re.compile(r"[A-Za-z0-9_]+:[-+.0-9eE]+")
"""What looks like a bound of --goodput, on whatever metric."""
THOUSANDS = re.compile(r"(\d+(?:\.\d+)?)([kKmM])")
GOODPUT_METRICS = ("ttft", "tpot", "e2el")
GIVEN = "lanesim.given"
"""Key of click's meta for the words behind the command's name."""
ARGUMENT, COMMON = object(), object()
"""Among the annotations of a field: it is given by its position, or it is one of EVERYWHERE; no flag of its own."""


def key(dotted: str) -> Meta:
    """Among the annotations of a field: it has no flag, --set gives it by this dotted key."""
    return Meta(extra={"key": dotted})


def _keep(context: click.Context, param: click.Parameter, value: Any) -> None:
    if value:
        context.meta[f"lanesim.{param.name}"] = value


_SAID = {
    "json": ("FILE", "Write the result as JSON, to stdout with -."),
    "verbose": (None, "Print all that the answer rests on. The JSON always has it."),
    "overwrite": (None, "Replace output files that are there."),
}
EVERYWHERE = {
    name: click.Option([f"--{name}"], metavar=value, is_flag=not value, expose_value=False, callback=_keep, help=said)
    for name, (value, said) in _SAID.items()
}
"""Options of the whole command line, wherever in it they stand, by the fields that take them."""

MAX_DRAWS = 10_000
"""Each is a profile in memory, of some kB, and several runs; sim.studies.cost_draws has the same bound."""
COUNT = 1_000_000
"""Most of anything that is counted on a command line."""

Tokens = Annotated[int, Meta(ge=1, le=10_000_000)]
DraftTokens = Annotated[int, Meta(ge=1, le=126)]
"""The bounds of sim.acceptance.models, which a command line does not wait for."""
Gpus = Annotated[int, Meta(ge=1, le=1024)]
Draws = Annotated[int, Meta(ge=0, le=MAX_DRAWS)]
Rate = Annotated[float, Meta(gt=0.0, le=1e6)]
Seconds = Annotated[float, Meta(gt=0.0, le=1e6)]
Workers = Annotated[int | None, Meta(ge=1, le=1024), "Processes. [default: one per core]"]
JsonFile = Annotated[str | None, COMMON]
Overwrite = Annotated[bool, COMMON]
"""Consent of every command that writes; sim.cli.console.claim asks for it."""
Verbose = Annotated[bool, COMMON]
Price = Annotated[str | None, Meta(title="USD/gpu-h"), "Price of one GPU, such as 3.5/gpu-h."]


def _plain(value: Any) -> Any:
    """A number as people write it, `1k` and `1.5M`, as digits; anything else as it is."""
    written = THOUSANDS.fullmatch(value) if isinstance(value, str) else None
    return value if written is None else f"{float(written[1]) * (1e3 if written[2] in 'kK' else 1e6):.12g}"


class WholeNumber(click.IntRange):
    """A whole number in a range, such as 8k."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number: int = super().convert(_plain(value), param, ctx)
        return number

    def _describe_range(self) -> str:
        return "" if self.min is self.max is None else super()._describe_range()


class Number(click.FloatRange):
    """A number in a range; click has nan in every one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(_plain(value), param, ctx)
        if number != number:
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number


class Listed(click.ParamType[float | list[float]]):
    """A number, or several with commas between: a small grid, where a command takes one."""

    def __init__(self, kind: click.ParamType[Any]) -> None:
        self.kind, self.name = kind, kind.name

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | list[float]:
        if isinstance(value, str) and "," in value:
            return [self.kind.convert(part.strip(), param, ctx) for part in value.split(",")]
        number: float = self.kind.convert(value, param, ctx)
        return number


def _told(hint: Any) -> tuple[Any, list[Any]]:
    """The type itself, without None, and all annotations, outer ones first."""
    notes: list[Any] = []
    while (origin := get_origin(hint)) in (Annotated, Union, types.UnionType):
        if origin is Annotated:
            hint, *more = get_args(hint)
            notes += more
        else:
            hint = next(each for each in get_args(hint) if each is not types.NoneType)
    return hint, notes


def _type_of(hint: Any, notes: list[Any]) -> click.ParamType[Any]:
    if get_origin(hint) is Literal:
        return click.Choice(get_args(hint))
    if hint is Path:
        return click.Path(path_type=Path)
    bounds: dict[str, Any] = {}
    for note in notes:
        for end, name in (("ge", "min"), ("gt", "min"), ("le", "max"), ("lt", "max")):
            if isinstance(note, Meta) and (bound := getattr(note, end)) is not None:
                bounds |= {name: bound, f"{name}_open": end in ("gt", "lt")}
    if hint is float:
        return Number(**bounds) if bounds else click.FLOAT
    if hint is int:
        return WholeNumber(**bounds)
    return click.STRING


def parameters(flags: type[Struct]) -> list[click.Parameter]:
    """Click's options and arguments of the Struct, in the order of its fields."""
    return [param for dotted, param in _declared(flags) if dotted is None]


def keys(flags: type[Struct]) -> dict[str, click.Parameter]:
    """What --set gives of the Struct itself, by the dotted keys."""
    return {dotted: param for dotted, param in _declared(flags) if dotted is not None}


def _declared(flags: type[Struct]) -> list[tuple[str | None, click.Parameter]]:
    """The key, where --set gives it, and click's parameter of each field that is none of EVERYWHERE."""
    hints, listed = get_type_hints(flags, include_extras=True), getattr(flags, "listed", ())
    told = [(field, *_told(hints[field.name])) for field in structs.fields(flags)]
    return [
        (_extra(notes, "key"), _parameter(field, hint, notes, is_listed=field.name in listed))
        for field, hint, notes in told
        if COMMON not in notes
    ]


def _extra(notes: Iterable[Any], name: str) -> str | None:
    """What the first note that has it, the innermost, says under `name`."""
    extras = (note.extra or {} for note in notes if isinstance(note, Meta))
    return next((extra[name] for extra in extras if name in extra), None)


def made(flags: type[F], values: Mapping[str, Any]) -> F:
    """The Struct of a command line: `values`, options of EVERYWHERE, and the keys of --set that are its own."""
    context = click.get_current_context()
    given, known, own = dict(values), {field.name for field in structs.fields(flags)}, keys(flags)
    for name, option in EVERYWHERE.items():
        if (value := context.meta.get(f"lanesim.{name}")) is None:
            continue
        if name not in known:
            raise click.UsageError(f"no option {option.opts[0]} in `{context.command_path}`")
        given[name] = value
    if own:
        from sim.run.scenario_file import FLAT_NAMES

        split = [(*text.partition("="), text) for text in given.get("set", ())]
        named = [(own.get(FLAT_NAMES.get(name, name)), value, text) for name, _, value, text in split]
        given["set"] = tuple(text for param, _, text in named if param is None)
        given |= {str(param.name): param.type_cast_value(context, value) for param, value, _ in named if param}
    return flags(**given)


def _parameter(field: structs.FieldInfo, hint: Any, notes: list[Any], *, is_listed: bool) -> click.Parameter:
    is_many = get_origin(hint) is tuple
    if is_many:
        hint, more = _told(get_args(hint)[0])
        notes += more
    kind, is_required = _type_of(hint, notes), field.default is NODEFAULT
    title = next((note.title for note in notes if isinstance(note, Meta) and note.title), None)
    default = None if is_many else field.default
    if ARGUMENT in notes:
        return click.Argument([field.name], type=kind, required=is_required, metavar=title, nargs=-1 if is_many else 1)
    name = field.name.rstrip("_").replace("_", "-")
    more_of: dict[str, Any] = {}
    if hint is bool:
        flag = f"--{name}" if default is False else f"--{name}/--no-{name}"
        more_of["is_flag"] = True
    else:
        flag = f"--{name}"
        more_of |= {"type": Listed(kind) if is_listed and hint in (int, float) else kind, "multiple": is_many}
        more_of |= {"metavar": title, "show_default": not is_required and default is not None}
    # A default of None would be a value to click, whatever is required.
    more_of |= {"required": True} if is_required else {"default": default}
    spellings = [spelling] if (spelling := _extra(notes, "spelling")) else []
    return click.Option(
        [flag, *spellings, field.name], help=next((note for note in notes if isinstance(note, str)), None), **more_of
    )


def spread_goodput(args: Sequence[str]) -> list[str]:
    """The command line with --goodput before each of its values: `--goodput ttft:200 tpot:50` has one."""
    spread: list[str] = []
    is_listing = False
    for arg in args:
        is_value = is_listing and (arg.partition(":")[0] in GOODPUT_METRICS or bool(BOUND.fullmatch(arg)))
        if is_value and spread[-1] != "--goodput":
            spread.append("--goodput")
        spread.append(arg)
        is_listing = is_value or arg == "--goodput"
    return spread


class FlagsCommand(click.Command):
    """A command whose help lists its own flags before those of every scenario. --goodput takes several values at once,
    as `vllm bench serve` has it."""

    shared: tuple[str, ...] = ()
    flags: type[Struct]
    body: Callable[[Any], None]
    keys: Mapping[str, click.Parameter]
    common: tuple[str, ...]

    def take(self, forms: Sequence[type[Struct]]) -> FlagsCommand:
        """The command with the keys of `forms`, and the options of EVERYWHERE that one of them has."""
        self.keys = {dotted: param for form in reversed(forms) for dotted, param in keys(form).items()}
        named = {field.name for form in forms for field in structs.fields(form)}
        self.common = tuple(name for name in EVERYWHERE if name in named)
        return self

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), *EVERYWHERE.values()]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[str, list[tuple[str, str]]] = {"Options": [], "Scenario": []}
        for param in super().get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                rows["Scenario" if param.name in self.shared else "Options"].append(record)
        rows["Keys of --set"] = [(dotted, getattr(param, "help", None) or "") for dotted, param in self.keys.items()]
        common = [EVERYWHERE[name].get_help_record(ctx) for name in self.common]
        rows["Of every command (lanesim --help)"] = [record for record in common if record is not None]
        for title, records in rows.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[GIVEN] = list(args)
        try:
            return super().parse_args(ctx, spread_goodput(args))
        except click.NoSuchOption as error:
            if word := self._instead(error.option_name):
                raise click.UsageError(f"no option {error.option_name} here: {word}") from None
            raise

    def _instead(self, option: str) -> str | None:
        """What stands for an option that the command lacks: a key, or what WENT says."""
        from sim.run.scenario import dotted_keys
        from sim.run.scenario_file import FLAT_NAMES

        name = option.lstrip("-").replace("-", "_")
        own = next((dotted for dotted, param in self.keys.items() if param.name == name), None)
        if own is None and name in WENT:
            return WENT[name]
        if own is None and not any(param.name == "set" for param in self.params):
            return None
        if name == "workers":  # of processes; policy_options.workers is part of a policy
            return "the command runs one process per core"
        known = {key.rpartition(".")[2]: key for key in dotted_keys()} | FLAT_NAMES
        dotted = own or known.get(name)
        return None if dotted is None else f"--set {dotted}=VALUE"


BY_NAME = "lanesim calibrate fit FILE --profile h100-sxm/llama-3.1-8b"
WEIGHTS = "--set replay.weights=DIR, of folders target and draft, and prompts.jsonl"
WENT = {degree: f"write Qwen/Qwen3-32B-{degree}2 for the model" for degree in ("tp", "ep", "dp")} | {
    **dict.fromkeys(("target_weights", "draft_weights"), WEIGHTS),
    "serve": "`lanesim validate URL --restart COMMAND` starts and judges a server",
    **dict.fromkeys(("metrics_before", "metrics_after"), "lanesim calibrate fit metrics BEFORE AFTER"),
    "bench_json": f"name the file, as in `{BY_NAME}`",
    "log": f"name the file, as in `{BY_NAME}`",
    "help_all": "--help shows all options",
    "emit_vllm": "compare --vary, tune and plan print the line that starts the server",
    "save_detailed": "--verbose --json FILE has the requests of each run",
    "figures": "the page of --out has the pictures",
    "where": "the page of --out filters its points",
    "series": "the page of --out chooses the lines",
    "attainment": "the share of requests that meets all SLOs is 0.95, and another one in Python",
    "weights": "write such as Qwen/Qwen3-32B-FP8 for the model",
    "kv_dtype": "write such as Qwen/Qwen3-32B-kv8 for the model",
    "dtype": "a device has its usual one",
    "attention": "a device has its usual one",
    "no_serving": "what serving adds is always measured",
    "duration_s": "lanesim calibrate fit metrics BEFORE AFTER SECONDS",
    "steps": "lanesim calibrate fit steps FILE",
    "columns": "the header of the table names the columns as ours",
    "requests": "name the file behind the table, or behind the word `requests` of calibrate fit",
    "gpu": "`lanesim profiles list h200` lists those of a GPU",
    "policy": "--set policy=pd, or policy=[pd,pdv]",
    "prompts": "validate takes the file behind the requests of a run, replay in the folder of replay.weights",
    "max_requests": "at most 10,000 are sent",
    "api_key_env": "the variable LANESIM_API_KEY holds the key",
    "dry_run": "a sweep says how far it is, and goes on where it was stopped",
}
"""Option that a command had -> what stands for it."""


def command(
    name: str, flags: type[F], *, example: str, short_help: str | None = None
) -> Callable[[Callable[[F], None]], FlagsCommand]:
    """The click command that calls the decorated function with its flags; `example` ends the help, as it runs."""

    def wrap(function: Callable[[F], None]) -> FlagsCommand:
        found = FlagsCommand(
            name,
            params=parameters(flags),
            callback=lambda **values: function(made(flags, values)),
            help=function.__doc__,
            epilog=f"\b\nExample:\n  {example}",
            short_help=short_help,
        )
        found.flags, found.body = flags, function
        found.shared = getattr(flags, "shared", tuple(getattr(flags.__base__, "__struct_fields__", ())))
        return found.take([flags])

    return wrap
