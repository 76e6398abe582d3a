"""Flags shared by the commands that take a scenario: file first, then flags, then --set; last wins.

Not here: what the values mean and their checks (sim.run.scenario).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sim.cli.console import CONSENT
from sim.names import unknown

if TYPE_CHECKING:
    from sim.files.json_values import Json
    from sim.run.scenario import Scenario

F = TypeVar("F", bound=Callable[..., None])
T = TypeVar("T")

BOUND = re.compile(r"[A-Za-z0-9_]+:[-+.0-9eE]+")
"""What looks like a bound of --goodput, on whatever metric."""
GOODPUT_METRICS = ("ttft", "tpot", "e2el")

ENGINE_NAMES = (
    "vllm-0.32",
    "vllm-0.24",
    "vllm-0.23",
    "vllm-0.19",
    "vllm-0.12",
    "vllm-0.9",
    "sglang-0.5",
    "trtllm-1.1",
    "trtllm-1.0",
    "ideal",
)
"""Engines for --help, which must not look at files; the first is the default. A test holds them to sim/engines."""

FLAGS: dict[str, tuple[type, str]] = {
    "profile": (str, "Cost profile: gpu/target[+draft], or a path."),
    "request_rate": (float, "Requests per second; inf = all at once."),
    "burstiness": (float, "Gamma shape of arrivals; 1 = Poisson."),
    "max_concurrency": (int, "Most requests in flight; without --request-rate a closed loop of as many."),
    "num_prompts": (str, "Requests per run; auto = as many as steady means take."),
    "num_warmups": (int, "First requests left out of the metrics."),
    "dataset_name": (
        str,
        "fixed, sharegpt-long, azure-conv, azure-code, or a trace: trace-azure, mooncake, burstgpt, sharegpt, "
        "guidellm, aiperf, inference-perf, vllm-bench, csv, jsonl (docs/traces.md).",
    ),
    "dataset_path": (
        str,
        "File of a trace; columns of csv, jsonl: arrival_time, input_len, output_len and the like.",
    ),
    "input_len": (int, "Prompt tokens (implies fixed lengths)."),
    "output_len": (int, "Output tokens (implies fixed lengths)."),
    "random_range_ratio": (
        float,
        "Fixed lengths are drawn within this share of them, (1 - ratio) to (1 + ratio) times; below 1.",
    ),
    "num_speculative_tokens": (int, "Draft length; 0 = no speculation."),
    "acceptance": (
        str,
        "iid:0.7, length:2.6@3 (measured at draft length 3), vllm:.74,.49,.37 (unconditional rates, as vLLM logs "
        "them), per-position:.74,.66,.76 (conditional rates), beta:13,8, markov:.13,.82, tape:FILE.",
    ),
    "controller": (
        str,
        "Draft-length controller: fixed, feedback, by_batch, goodput, sglang_adaptive, adaptive_verification.",
    ),
    "engine": (str, f"Engine: {', '.join(ENGINE_NAMES)}; default: the profile's own, else {ENGINE_NAMES[0]}."),
    "max_num_seqs": (int, "Requests admitted and unfinished, in every policy; default: the engine's on that GPU."),
    "max_num_batched_tokens": (int, "Tokens of one target pass, in every policy; default: likewise."),
    "num_gpu_blocks": (int, "KV blocks; default: what fits beside the weights."),
    "seed": (int, "Replication r draws from child r of it."),
    "replications": (int, "Runs per policy; intervals need 2 or more."),
}


MAX_DRAWS = 10_000
"""Each is a profile in memory, of some kB, and several runs; sim.studies.cost_draws has the same bound."""
COUNT = 1_000_000
"""Most of anything that is counted on a command line."""


class Number(click.FloatRange):
    """A number in a range; click has nan in every one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if number != number:
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number


TOKENS = click.IntRange(1, 10_000_000)
UP_TO_BILLION = click.IntRange(max=1_000_000_000)
WORKERS = click.IntRange(1, 1024)
GPUS = click.IntRange(1, 1024)
DRAFT_TOKENS = click.IntRange(1, 126)
"""As sim.acceptance.models has it, which a command line does not wait for."""
SEEDS = click.IntRange(0, 2**63 - 1)
DRAWS = click.IntRange(0, MAX_DRAWS)
RATE = Number(0.0, 1e6, min_open=True)
SHARE = Number(0.0, 1.0, min_open=True)
SECONDS = Number(0.0, 1e6, min_open=True)


def _consent(context: click.Context, _: click.Parameter, is_given: bool) -> None:
    context.meta[CONSENT] = is_given


OVERWRITE = click.option(
    "--overwrite", is_flag=True, expose_value=False, callback=_consent, help="Replace output files that are there."
)
"""Consent of every command that writes; sim.cli.console.claim asks for it."""
VERBOSE = click.option("--verbose", is_flag=True, help="Print all that the answer rests on; the JSON always has it.")


SHARED = ("policy", *FLAGS, "speculative_config", "goodput", "overrides")
"""Flags of every command that takes a scenario, by their parameters."""


class Listed(click.ParamType[float | list[float]]):
    """A number, or several with commas between: a small grid, where a command takes one."""

    def __init__(self, kind: type[int] | type[float]) -> None:
        self.kind: click.ParamType[float] = click.INT if kind is int else click.FLOAT
        self.name = "integer" if kind is int else "float"

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | list[float]:
        if isinstance(value, str) and "," in value:
            return [self.kind.convert(part.strip(), param, ctx) for part in value.split(",")]
        return self.kind.convert(value, param, ctx)


def scenario_options(function: F) -> F:
    """Add the scenario argument and every flag of FLAGS, --policy, --goodput and --set."""
    decorators = [
        click.argument("scenario", required=False, type=click.Path(path_type=Path)),
        click.option("--policy", multiple=True, help="Policy to run; repeat for several."),
        *(
            click.option(
                f"--{name.replace('_', '-')}",
                name,
                type=Listed(kind) if kind in (int, float) else kind,
                multiple=name == "profile",
                default=None,
                help=help_,
            )
            for name, (kind, help_) in FLAGS.items()
        ),
        click.option(
            "--speculative-config",
            metavar="JSON",
            default=None,
            help="vLLM's, verbatim: method (draft_model, eagle3, mtp, pard, dflash, dspark, ngram), "
            "num_speculative_tokens and the rest; other flags win.",
        ),
        click.option("--goodput", multiple=True, metavar="NAME:MS", help="SLO as ttft:200 tpot:50 e2el:5000."),
        click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Any scenario key, dotted."),
    ]
    for decorate in reversed(decorators):
        function = decorate(function)
    return function


def gather(flags: dict[str, Any], lists: dict[str, list[Json]] | None = None) -> dict[str, Json]:
    """The raw scenario of a command line; removes from `flags` what it used. Raises ValueError.

    Flags with several values go into `lists` by their dotted key, the first into the scenario; without `lists` they are
    refused, and of several profiles the last one wins.
    """
    from sim.cli.lazy import SOURCE
    from sim.run.scenario_file import FLAT_NAMES, parse_override, read_scenario, set_dotted

    path = flags.pop("scenario")
    raw: dict[str, Json] = {}
    if path is not None:
        click.get_current_context().meta[SOURCE] = str(path)
        raw = read_scenario(path)
    policies = flags.pop("policy")
    if policies:
        raw["policy"] = list(policies)
    speculative_config = flags.pop("speculative_config")
    if speculative_config is not None:
        from sim.run.vllm_config import speculation_of

        for name, value in speculation_of(speculative_config).items():
            set_dotted(raw, f"speculation.{name}", value)
    for name in FLAGS:
        value = flags.pop(name)
        if name == "profile":
            value = list(dict.fromkeys(value)) if lists is not None else list(value)[-1:]
            value = value[0] if len(value) == 1 else value or None
        if isinstance(value, list):
            if lists is None:
                flag = f"--{name.replace('_', '-')}"
                raise ValueError(f"{flag} {','.join(map(str, value))}: want one value; `lanesim compare` takes several")
            if len(set(value)) < len(value):
                raise ValueError(f"--{name.replace('_', '-')} {','.join(map(str, value))}: a value stands twice")
            lists[FLAT_NAMES[name]] = value
            value = value[0]
        if value is not None:
            set_dotted(raw, FLAT_NAMES[name], value)
    for name, bound_ms in parse_goodput(flags.pop("goodput")).items():
        set_dotted(raw, f"goodput.{name}_ms", bound_ms)
    for text in flags.pop("overrides"):
        set_dotted(raw, *parse_override(text))
    return raw


def inputs_of(path: Path | None, scenario: Scenario) -> list[str | Path | None]:
    """Files that a run of `scenario`, read from `path` where it was, may read: no output may go there."""
    tape = scenario.speculation.acceptance.removeprefix("tape:")
    named = [scenario.profile, scenario.engine.name, scenario.workload.dataset_path, tape]
    return [path, *named, *(name.rpartition("#")[0] for name in named if name is not None and "#" in name)]


def parse_goodput(texts: Sequence[str]) -> dict[str, float]:
    """`ttft:200` pairs, milliseconds."""
    bounds = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon:
            wanted = f"{name}:MILLISECONDS" if name in GOODPUT_METRICS else "NAME:MILLISECONDS, such as ttft:1000"
            raise ValueError(f"--goodput {text!r}: want {wanted}")
        if name not in GOODPUT_METRICS:
            raise ValueError(unknown("goodput metric", name, GOODPUT_METRICS))
        try:
            bounds[name] = float(value)
        except ValueError:
            raise ValueError(f"--goodput {text!r}: want {name}:MILLISECONDS") from None
    return bounds


def listed(flag: str, text: str | None, read: Callable[[str], T], wanted: str) -> list[T] | None:
    """Values of a flag with commas between; None where it was not given. Raises ValueError."""
    if text is None:
        return None
    try:
        return [read(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{flag} {text!r}: want {wanted}") from None


class ListOptions(click.Command):
    """A command on a scenario: its own flags come first in the help, and --goodput takes several values at once, as
    `vllm bench serve` has it."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own: list[tuple[str, str]] = []
        shared: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                (shared if param.name in SHARED else own).append(record)
        for title, records in (("Options", own), ("Scenario", shared)):
            with formatter.section(title):
                formatter.write_dl(records)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spread: list[str] = []
        is_listing = False
        for arg in args:
            is_value = is_listing and (arg.partition(":")[0] in GOODPUT_METRICS or bool(BOUND.fullmatch(arg)))
            if is_value and spread[-1] != "--goodput":
                spread.append("--goodput")
            spread.append(arg)
            is_listing = is_value or arg == "--goodput"
        return super().parse_args(ctx, spread)
