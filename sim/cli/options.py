"""Flags of the commands that take a scenario. The file is read first, then flags, then --set, and the last one wins.

Not here: how flags are declared (sim.cli.flags), what the values mean and their checks (sim.run.scenario).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import click
from msgspec import Meta, Struct, structs

from sim.cli.flags import ARGUMENT, GOODPUT_METRICS, key
from sim.model_names import DEGREE, model_key
from sim.names import unknown

if TYPE_CHECKING:
    from sim.files.json_values import Json
    from sim.run.scenario import Scenario

T = TypeVar("T")

RequestRate = Annotated[float | None, "Requests per second. inf sends all at once."]
MaxConcurrency = Annotated[int | None, "Most requests in flight. Without --request-rate, as many are always in flight."]
NumPrompts = Annotated[str | None, "Requests per run. auto: as many as steady means need."]
Goodput = Annotated[tuple[str, ...], Meta(title="NAME:MS"), "Limits on latency, such as ttft:200 tpot:50 e2el:5000."]
Gpu = Annotated[str | None, "GPU that serves MODEL, such as h200."]
Serve = Annotated[
    str | None,
    Meta(title="LINE"),
    "In place of MODEL: the command that starts your server, such as 'vllm serve MODEL -tp 2'.",
]
Method = Annotated[
    str | None,
    Meta(extra={"spelling": "--draft"}),
    "Drafter: draft_model, eagle3, mtp, parallel, dspark, ngram, or a model on Hugging Face. [default: the profile's]",
]
Engine = Annotated[str | None, "Engine, such as vllm-0.33 or sglang-0.5. [default: the profile's, or vllm-0.33]"]
DRAFT_LENGTH = "Draft length, 0 for no speculation."
Policies = Annotated[tuple[str, ...], "Scheduler to run. May be repeated. [default: continuous]"]
Overrides = Annotated[
    tuple[str, ...],
    Meta(title="KEY=VALUE"),
    "Any scenario key, such as engine.max_num_seqs=64. docs/scenario.md lists them.",
]


class WorkloadFlags(Struct, frozen=True, kw_only=True):
    """Flags of every command that takes a scenario; any other key of it is set by --set."""

    scenario: Annotated[Path | None, ARGUMENT, Meta(title="[MODEL|SCENARIO]")] = None
    profile: Annotated[tuple[str, ...], "Cost profile: gpu/target[+draft], or its file."] = ()
    set: Overrides = ()


class ServedFlags(WorkloadFlags, frozen=True, kw_only=True):
    """And of those that simulate an engine, by SLOs."""

    input_len: Annotated[int | None, "Prompt tokens (implies fixed lengths)."] = None
    output_len: Annotated[int | None, "Output tokens (implies fixed lengths)."] = None
    gpu: Gpu = None
    serve: Serve = None
    method: Method = None
    num_speculative_tokens: Annotated[int | None, key("speculation.num_speculative_tokens"), DRAFT_LENGTH] = None
    acceptance: Annotated[
        str | None,
        "Kind of prompts: code, chat, maths or other. Or a figure: 2.6 tokens a verify, length:2.6@3 at draft length "
        "3, vllm:.74,.49,.37 as vLLM logs. docs/acceptance.md has more. [default: any-prompts]",
    ] = None
    engine: Engine = None
    goodput: Goodput = ()

    @property
    def repositories(self) -> dict[str, Any]:
        """The target and the drafter on Hugging Face that are named, for lines that start a server."""
        from sim.run.launch_line import launched

        target = str(self.scenario) if self.gpu is not None and not self.profile else ""
        target = DEGREE.sub("", target).partition("+")[0] if self.serve is None else launched(self.serve).repository
        draft = self.method or ""
        return {
            "target_model": target if "/" in target else None,
            "draft_model": draft if "/" in draft else None,
        }


class CompareScenario(ServedFlags, frozen=True, kw_only=True):
    """All that set a scenario of `lanesim compare`."""

    num_speculative_tokens: Annotated[int | None, DRAFT_LENGTH] = None
    policy: Policies = ()
    num_prompts: NumPrompts = None
    request_rate: RequestRate = None
    max_concurrency: MaxConcurrency = None
    seed: Annotated[int | None, "Seed of arrivals, lengths and acceptance."] = None
    replications: Annotated[int | None, "Runs per scheduler. [default: 4, or 1 where nothing is compared]"] = None
    speculative_config: Annotated[
        str | None, Meta(title="JSON"), "The JSON that `vllm serve` takes. Other options win."
    ] = None


SHARED = CompareScenario.__struct_fields__
"""Flags that set a scenario, by their parameters."""


def gather(flags: WorkloadFlags, lists: dict[str, list[Json]] | None = None) -> dict[str, Json]:
    """The raw scenario of a command line. Raises ValueError.

    Flags with several values go into `lists` by their dotted key, the first into the scenario; without `lists` the last
    of several profiles wins.
    """
    from sim.cli.lazy import SOURCE
    from sim.run.scenario_file import FLAT_NAMES, parse_override, read_scenario, set_dotted

    given = structs.asdict(flags)
    raw: dict[str, Json] = {}
    if flags.scenario is not None and not is_model(flags.scenario):
        click.get_current_context().meta[SOURCE] = str(flags.scenario)
        raw = read_scenario(flags.scenario)
    if given.get("policy"):
        raw["policy"] = list(given["policy"])
    raw.setdefault("policy", ["continuous"])
    if given.get("speculative_config") is not None:
        from sim.run.vllm_config import speculation_of

        for name, value in speculation_of(given["speculative_config"]).items():
            set_dotted(raw, f"speculation.{name}", value)
    profiles = list(flags.profile[0 if lists is not None else -1 :])
    gpu = given.get("gpu")
    if given.get("serve") is not None:
        profiles.append(_served_as(given, raw))
    elif flags.scenario is not None and is_model(flags.scenario):
        profiles.append(profile_named(str(flags.scenario), gpu))
    elif gpu is not None:
        other = ". --profile names its own GPU" * bool(profiles)
        raise ValueError(f"--gpu {gpu} goes with MODEL, such as `meta-llama/Llama-3.1-8B --gpu {gpu}`{other}")
    profiles = _distinct(profiles, several=lists is not None)
    if given.get("method") is not None:
        profiles, given["method"] = with_drafter(profiles, given["method"])
    given["profile"] = profiles
    for name, dotted in FLAT_NAMES.items():
        value = given.get(name)
        if isinstance(value, list) and name == "profile" and len(value) < 2:
            value = value[0] if value else None
        if isinstance(value, list):
            assert lists is not None
            if len(set(value)) < len(value):
                raise ValueError(f"--{name.replace('_', '-')} {','.join(map(str, value))} has a value twice")
            lists[dotted], value = value, value[0]
        if value is not None:
            set_dotted(raw, dotted, value)
    for name, bound_ms in parse_goodput(given.get("goodput", ())).items():
        set_dotted(raw, f"goodput.{name}_ms", bound_ms)
    for text in flags.set:
        set_dotted(raw, *parse_override(text))
    return raw


def _distinct(profiles: list[str], *, several: bool) -> list[str]:
    """Each profile once, however it is spelt. Raises ValueError for MODEL beside another, where a command takes one."""
    from sim.costs.profile_files import spelling

    by_spelling = {spelling(each): each for each in profiles}
    if len(by_spelling) > 1 and not several:
        raise ValueError(f"{' and '.join(by_spelling)}: give one profile here. `lanesim compare` takes several")
    return list(by_spelling.values())


def with_assumptions(raw: dict[str, Json]) -> dict[str, Json]:
    """The scenario without speculation where its profile has no draft, and with any kind of prompts where it drafts, if
    nothing is said about them."""
    from sim.acceptance.pairs import ANY, SHORT_K

    speculation = raw.get("speculation")
    if speculation is None and raw.get("profile"):
        raw["speculation"] = {"num_speculative_tokens": 0} if has_no_drafter(raw) else {"acceptance": ANY}
    elif isinstance(speculation, dict) and "acceptance" not in speculation:
        speculation["acceptance"] = ANY
        if "method" in speculation:
            speculation.setdefault("num_speculative_tokens", SHORT_K)
    return raw


def has_no_drafter(raw: dict[str, Json]) -> bool:
    """True where nothing is said about speculation, and the profile has no draft."""
    from sim.costs.profile_files import load

    return bool(raw.get("profile")) and "speculation" not in raw and load(str(raw["profile"])).draft is None


def _served_as(given: dict[str, Any], raw: dict[str, Json]) -> str:
    """The profile of a server by the line that starts it, whose keys go into `raw` and whose drafter into `given`; with
    a note on what of the line was not read."""
    from sim.run.launch_line import launched
    from sim.run.scenario_file import set_dotted

    line, asked = launched(given["serve"]), given["scenario"]
    if asked is not None and is_model(asked) and model_key(DEGREE.sub("", str(asked))) != model_key(line.repository):
        raise ValueError(f"{asked} and --serve's {line.repository} are two models. Leave {asked} out")
    for dotted, value in line.keys.items():
        set_dotted(raw, dotted, value)
    if given.get("method") is None:
        given["method"] = line.draft
    named = ", ".join([line.model, *(f"{dotted}={value}" for dotted, value in line.keys.items())])
    named += ", with vLLM's kernel times" * ("engine.name" in line.keys)
    left = f". Not read: {', '.join(line.unread)}" if line.unread else ""
    warnings.warn(f"--serve: simulated as {named}{left}", stacklevel=2)
    if given["gpu"] is None:
        raise ValueError("--serve names no GPU. Add one, such as --gpu h200")
    return profile_named(line.model, given["gpu"])


def is_model(argument: Path) -> bool:
    """True for a MODEL, or a profile's name, where a command takes a scenario file, too.

    >>> is_model(Path("meta-llama/Llama-3.1-8B")), is_model(Path("scenario.yaml"))
    (True, False)
    """
    return argument.suffix not in (".yaml", ".yml") and (argument.is_dir() or not argument.exists())


def profile_named(model: str, gpu: str | None) -> str:
    """The name of a profile of `model` on `gpu`; without `gpu`, of a profile that is named so. Raises ValueError."""
    from sim.costs.profile_files import shipped, spelling

    if gpu is not None:
        return spelling(f"{gpu}/{model}")
    if spelling(model) not in shipped():
        raise ValueError(f"{model!r} is a model and needs a GPU. Write `{model} --gpu h200`. A file ends in .yaml")
    return spelling(model)


def with_drafter(profiles: list[str], draft: str) -> tuple[list[str], str]:
    """Profiles by name with a drafter, where they have none, and its way of drafting. `draft` is one of vLLM's methods,
    or a model or head on Hugging Face."""
    from sim.costs.profile_files import spelling
    from sim.drafters.registry import HEADS, SPELLINGS, drafter_named

    named = drafter_named(draft)
    if named in SPELLINGS and named not in HEADS:
        return profiles, draft
    paired = [each if "+" in each or each.endswith(".json") else spelling(f"{each}+{named}") for each in profiles]
    return paired, named if named in HEADS else "draft_model"


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
            raise ValueError(f"--goodput {text!r} must be {wanted}")
        if name not in GOODPUT_METRICS:
            raise ValueError(unknown("goodput metric", name, GOODPUT_METRICS))
        try:
            bounds[name] = float(value)
        except ValueError:
            raise ValueError(f"--goodput {text!r} must be {name}:MILLISECONDS") from None
    return bounds


def listed(flag: str, text: str | None, read: Callable[[str], T], wanted: str) -> list[T] | None:
    """Values of a flag with commas between; None where it was not given. Raises ValueError."""
    if text is None:
        return None
    try:
        return [read(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{flag} {text!r} must be {wanted}") from None
