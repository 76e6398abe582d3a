"""`lanesim plan`: the command line of sim.studies.plan.search, for a model by its name.

Importing this module imports click alone. Not here: the search, imports (calibrate.importers).
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
from msgspec import Meta, Struct

from sim.cli.console import OnStep, claim, progress, write_json
from sim.cli.flags import (
    ARGUMENT,
    MAX_DRAWS,
    DraftTokens,
    Gpus,
    JsonFile,
    Overwrite,
    Price,
    Rate,
    Share,
    Tokens,
    command,
)
from sim.cli.options import Goodput, parse_goodput

if TYPE_CHECKING:
    from calibrate.catalogue.model_configs import Source
    from sim.costs.shapes import ModelShape
    from sim.files.json_values import Json
    from sim.run.scenario import Scenario
    from sim.studies.plan.candidate_ranking import Candidate, Ranked, Refused
    from sim.studies.plan.search import Plan

EXAMPLE = (
    "lanesim plan Qwen/Qwen3-32B-FP8 --gpu h200-sxm --rate 40 --input-len 1500 \\\n"
    "    --output-len 300 --goodput ttft:1000 tpot:40 --draft eagle3 --price 3.5/gpu-h"
)
ASSUMED = {
    "eagle3": ("length:2.83@3", 5, "MiniMax-M3's EAGLE-3, coding"),
    "mtp": ("length:2.99@3", 3, "GLM-5.2's MTP, coding"),
    "dspark": ("length:2.87@3", 5, "Kimi-K3's DSpark, coding"),
    "": ("length:2.73@3", 5, "a draft of 1B of the same family"),
}
"""What is assumed of each drafter: an acceptance where none is given, the longest draft to try, whose it is."""
NO_SLO = "plan: no SLO given; want some of --goodput ttft:MS tpot:MS e2el:MS"


class PlanFlags(Struct, frozen=True, kw_only=True):
    """Flags of `lanesim plan`."""

    model: Annotated[str, ARGUMENT]
    gpu: Annotated[str | None, "GPU, such as h200-sxm; a profile's name has its own."] = None
    rate: Annotated[Rate | None, "Requests per second; without: the most of one replica."] = None
    input_len: Annotated[Tokens, "Prompt tokens."]
    output_len: Annotated[Tokens, "Output tokens."]
    goodput: Goodput = ()
    attainment: Annotated[Share, "Share that meets all SLOs."] = 0.95
    draft: Annotated[str | None, "Drafter: eagle3, mtp, dspark, or a model. [default: none]"] = None
    acceptance: Annotated[
        str | None, "Acceptance of its drafts, such as length:2.6@3. [default: assumed by drafter]"
    ] = None
    num_speculative_tokens: Annotated[DraftTokens | None, "Longest to try."] = None
    engine: Annotated[str, "Whose kernels and overheads."] = "vllm-0.32"
    price: Price = None
    energy: Annotated[bool, "Joules per output token, too."] = False
    gpus: Annotated[Gpus, "GPUs of a replica at most."] = 8
    tp: Annotated[Gpus | None, "Tensor parallel. [default: searched]"] = None
    ep: Annotated[Gpus | None, "Expert parallel. [default: searched]"] = None
    dp: Annotated[Gpus | None, "Data parallel attention. [default: searched]"] = None
    weights: Annotated[str | None, "bf16, fp8, fp8-block, nvfp4, mxfp4, int4. [default: the checkpoint's]"] = None
    kv_dtype: Annotated[str | None, "bf16 or fp8. [default: the checkpoint's]"] = None
    draws: Annotated[int, Meta(ge=1, le=MAX_DRAWS), "Draws of costs and acceptance."] = 20
    json: JsonFile = None
    overwrite: Overwrite = False


@command("plan", PlanFlags, example=EXAMPLE, short_help="From a model's name to what to rent.")
def plan_command(flags: PlanFlags) -> None:
    """Which deployment of MODEL to rent: a Hugging Face name, a config.json, or a profile's name.

    Splits over GPUs are searched, with and without the drafter; the best few are simulated in draws of what costs and
    acceptance might as well be.
    """
    model = flags.model
    price = None if flags.price is None else _gpu_price(flags.price)
    claim(files={"--json": flags.json}, inputs=[model])
    if not parse_goodput(flags.goodput):
        raise ValueError(NO_SLO)
    began_s = time.monotonic()
    with progress() as on_step:
        candidates, refused, named = _candidates(model, flags, on_step)
        scenario, assumed = _scenario(flags, candidates)
        result = _planned(scenario, candidates, refused, named.repository, price, flags, on_step, began_s)
    # What random prompts do to acceptance is about the line that loads a server, which is in the JSON alone.
    notes = [note for note in result.notes if note.startswith("<")]
    disputed, ratio = _disputed(result, scenario, candidates, named, flags.engine)
    from msgspec.structs import replace

    if ratio is not None:
        from sim.studies.plan.search import with_world

        profile = next(each.profile for each in candidates if each.name == result.deployments[0].profile)
        whose = f"{flags.engine.partition('-')[0]}'s own"
        with progress() as on_step:
            result = with_world(result, profile, ratio, whose, on_done=on_step)
    result = replace(result, notes=[note for note in (disputed, assumed, named.assumed) if note] + notes)
    if write_json(flags.json, result.plain):
        from rich.console import Console

        from sim.report.plans import print_plan

        print_plan(Console(), result, capacity_line=_capacity_line(result, flags))


# -- candidates


def _gpu_price(text: str) -> float:
    """Dollars per GPU and hour. Replicas differ in their GPUs here, so a price has to say that it is of one."""
    from sim.metrics.price import GPU, Price

    price = Price.of_text(text)
    if price.of != GPU:
        raise ValueError(f"--price {text!r}: want dollars per hour of one GPU, such as 3.5/{GPU}")
    return price.usd_per_h


def _candidates(model: str, flags: PlanFlags, on_step: OnStep) -> tuple[list[Candidate], list[Refused], Source]:
    """What could be rented, what cannot, and the model."""
    from calibrate.catalogue.model_configs import Source
    from sim.costs.profile_files import load, shipped
    from sim.studies.plan.candidate_ranking import Candidate

    if model in shipped() or (model.endswith(".json") and _is_profile(Path(model))):
        profile = load(model)
        return [Candidate(model, profile)], [], Source(profile.target)
    if flags.gpu is None:
        raise ValueError(f"--gpu is missing: {model!r} is a model, want such as --gpu h200-sxm")
    return _imported(model, flags.gpu, flags, on_step)


def _is_profile(path: Path) -> bool:
    from sim.files.json_values import read_json

    found = read_json(path, "profile or model config")
    return isinstance(found, dict) and "kernels" in found


def _imported(
    model: str, wanted_gpu: str, flags: PlanFlags, on_step: OnStep
) -> tuple[list[Candidate], list[Refused], Source]:
    from calibrate.catalogue.model_configs import source_of, with_formats
    from calibrate.cli.profile_output import needs_analysis
    from sim.costs.datasheets import DATASHEETS, gpu_name
    from sim.costs.engine_costs import engine_of
    from sim.costs.shapes import HEADS
    from sim.names import unknown
    from sim.studies.plan.candidate_ranking import Candidate, Refused, label_of

    try:
        from calibrate.importers.aiconfigurator.deployment import DEVICES, installed_tables
        from calibrate.importers.plan_candidates import cache_folder, deployments, imported, in_kernel_format
    except ImportError as error:
        raise needs_analysis(error) from None
    gpu = wanted_gpu if wanted_gpu in DEVICES else gpu_name(wanted_gpu.lower())
    if gpu not in DEVICES:
        if gpu in DATASHEETS:
            raise ValueError(
                f"no kernel tables of GPU {gpu!r}, only of {', '.join(DEVICES)}; a profile's name needs none"
            )
        raise ValueError(unknown("GPU", wanted_gpu, DEVICES))
    name = flags.draft
    draft = _draft_model(name) if name is not None and name not in HEADS else None
    tables, source = installed_tables()
    named = source_of(model, plain=False)
    target = with_formats(named.shape, flags.weights, flags.kv_dtype)
    target = in_kernel_format(target, gpu)
    if name in HEADS:
        draft = HEADS[name](named.shape)
    if draft is not None:
        draft = with_formats(draft, None, flags.kv_dtype)
    kernels = flags.engine.partition("-")[0]
    if kernels not in ("vllm", "sglang", "trtllm"):
        kernels = "vllm"
    wanted = deployments(target, flags.gpus, kernels, flags.tp, flags.ep, flags.dp)
    if not wanted:
        raise ValueError(f"--tp, --dp: want no more than --gpus {flags.gpus} GPUs in a replica")
    found, failed = imported(tables, source, gpu, target, draft, wanted, cache_folder(), on_step)
    refused = [Refused(deployment=label_of(*each.deployment[:3]), why=each.why) for each in failed]
    if not found:
        # Of the deployment with the most GPUs, which is the likeliest to fit.
        _, largest = max(zip(failed, refused, strict=True), key=lambda pair: pair[0].deployment.devices)
        raise ValueError(f"plan: {target.name} on {gpu}: {largest.deployment}: {largest.why}")
    candidates = [Candidate(str(each.path), each.profile) for each in found]
    engine_of(flags.engine, candidates[0].profile)
    return candidates, refused, named


def _draft_model(name: str) -> ModelShape:
    from calibrate.catalogue.model_configs import source_of
    from sim.costs.shapes import HEADS
    from sim.names import unknown

    try:
        return source_of(name, plain=False).shape
    except ValueError as error:
        if str(error).startswith("unknown model") and "did you mean" not in str(error):
            raise ValueError(unknown("drafter", name, [*HEADS, "or a model"])) from None
        raise


# -- the question


def _scenario(flags: PlanFlags, candidates: Sequence[Candidate]) -> tuple[Scenario, str | None]:
    """And a word on what was assumed."""
    from sim.run.scenario import parse_scenario

    draft, assumed = candidates[0].profile.draft, None
    speculation: dict[str, Json] = {"num_speculative_tokens": 0}
    if draft is not None:
        acceptance, longest, whose = ASSUMED.get(draft.name, ASSUMED[""])
        if flags.acceptance is None:
            assumed = f"acceptance {acceptance} assumed ({whose}); --acceptance"
        speculation = {
            "num_speculative_tokens": flags.num_speculative_tokens or longest,
            "acceptance": flags.acceptance or acceptance,
            "method": draft.name if draft.name in ASSUMED else "draft_model",
        }
    goodput = {f"{name}_ms": bound for name, bound in parse_goodput(flags.goodput).items()}
    lengths = {"input_len": flags.input_len, "output_len": flags.output_len}
    raw: dict[str, Json] = {
        "profile": candidates[0].name,
        "policy": ["continuous"],
        "engine": {"name": flags.engine},
        "workload": {"dataset_name": "fixed", **lengths},
        "speculation": speculation,
        "goodput": goodput,
        "energy": flags.energy,
    }
    return parse_scenario(raw), assumed


def _planned(
    scenario: Scenario,
    candidates: Sequence[Candidate],
    refused: Sequence[Refused],
    repository: str | None,
    price: float | None,
    flags: PlanFlags,
    on_step: OnStep,
    began_s: float,
) -> Plan:
    from sim.studies.plan.search import plan

    def rank(ranking: Sequence[Ranked]) -> None:
        rows = [
            f"{each.candidate.label} {'no drafter' if each.k < 1 else f'K = {each.k}'} ~{each.rate_per_s:.3g}/s"
            + ("" if each.gpus is None else f", ~{each.gpus} GPUs")
            for each in ranking[:5]
        ]
        click.echo(f"first ranking after {time.monotonic() - began_s:.0f} s: {'; '.join(rows)}", err=True)

    return plan(
        scenario,
        candidates,
        rate_per_s=flags.rate,
        share=flags.attainment,
        price_per_gpu_h=price,
        draws=flags.draws,
        refused=refused,
        target_model=repository,
        on_done=on_step,
        on_ranking=rank,
    )


# -- saying


def _disputed(
    result: Plan, scenario: Scenario, candidates: Sequence[Candidate], named: Source, engine: str
) -> tuple[str | None, float | None]:
    """Aiconfigurator's own decode step of the best row beside this importer's, and where they contradict each other so
    many times as long it is."""
    if named.repository is None:
        return None, None
    from calibrate.importers.aiconfigurator.deployment import Deployment
    from calibrate.importers.plan_candidates import DISPUTED, own_decode_ms
    from sim.run.forecast import StepForecast
    from sim.run.resolve import resolve

    best = result.deployments[0]
    profile = next(each.profile for each in candidates if each.name == best.profile)
    kernels = engine.partition("-")[0]
    deployment = Deployment(best.tp, best.ep if best.ep > 1 else None, best.dp, kernels)
    context = (scenario.workload.input_len or 0) + (scenario.workload.output_len or 0) // 2
    theirs_ms = own_decode_ms(named.repository, profile.gpu.name, deployment, context)
    if theirs_ms is None:
        return None, None
    resolved = resolve(scenario, profile, "continuous")
    ours_ms = 1e3 * StepForecast(resolved.costs, resolved.limits, context, has_draft=False).round_s(1, 0)
    stood_in = profile.source.partition("not from the engine's own tables: ")[2]
    whose = f" ({stood_in.split(';')[0]})" if stood_in else ""
    if max(theirs_ms / ours_ms, ours_ms / theirs_ms) < DISPUTED:
        return f"a decode step takes {ours_ms:.1f} ms here{whose}, {theirs_ms:.1f} by aiconfigurator-core", None
    disputed = (
        f"tables dispute: a decode step takes {ours_ms:.1f} ms here{whose}, {theirs_ms:.1f} by aiconfigurator-core "
        f"({kernels}'s own); measure it before you rent"
    )
    return disputed, theirs_ms / ours_ms


def _capacity_line(result: Plan, flags: PlanFlags) -> str:
    """The command that checks the best row alone, with both routings."""
    from sim.costs.engine_costs import DEFAULT_ENGINE

    best, speculation, engine = result.deployments[0], result.scenario["speculation"], result.scenario["engine"]["name"]
    words = [
        "lanesim", "capacity", "--profile", best.profile, "--policy", "continuous",
        *([] if engine == DEFAULT_ENGINE else ["--engine", engine]),
        "--input-len", str(flags.input_len), "--output-len", str(flags.output_len),
        "--num-speculative-tokens", str(best.num_speculative_tokens),
        "--max-num-seqs", str(result.scenario["engine"]["max_num_seqs"]),
    ]  # fmt: skip
    if best.num_speculative_tokens:
        words += ["--acceptance", speculation["acceptance"]]
    words += ["--goodput", *flags.goodput]
    if result.rate_per_s is not None:
        words += ["--target-rate", f"{result.rate_per_s:g}"]
    home = str(Path.home())
    return shlex.join(words).replace(f"{home}/", "~/")
