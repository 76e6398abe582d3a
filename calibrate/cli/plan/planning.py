"""The answer of `lanesim plan`: candidates of a model by its name, the question, and what disputes the answer.

Not here: the search (sim.studies.plan.search), imports (calibrate.importers), flags (flags).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click
from msgspec.structs import replace

from calibrate.catalogue.model_configs import ModelSource
from calibrate.catalogue.published_tables import cache_folder, published_tables
from calibrate.cli.plan.flags import PlanFlags
from calibrate.cli.profile_output import needs_analysis
from sim.acceptance.pairs import ANY, LONGEST, origin_of
from sim.compare.pool import OnDone
from sim.costs.datasheets import gpu_name
from sim.costs.engine_costs import DEFAULT_ENGINE, engine_of
from sim.costs.profile import Profile
from sim.costs.profile_files import load, shipped
from sim.drafters.registry import DRAFTERS, HEADS, LOOKED_UP, drafter_named, pair_of
from sim.files.json_values import Json, read_json
from sim.model_names import DEGREE
from sim.report.say import DISPUTE
from sim.run.forecast import StepForecast
from sim.run.resolve import resolve
from sim.run.scenario import Scenario, parse_scenario
from sim.run.scenario_file import parse_override, set_dotted
from sim.studies.attainment import usd_per_gpu_h
from sim.studies.cost_draws import DEFAULT_DRAWS
from sim.studies.plan.candidate_ranking import POLICY, Candidate, Contender, Refused, label_of
from sim.studies.plan.pools import apart, with_pools
from sim.studies.plan.search import Rental, in_other_tables, plan

NO_DRAFT = ("none", "off")
MOST_GPUS = 8
"""GPUs of a replica at most, where --gpus is not given."""
POOL_DRAWS = 6
"""Draws with --disaggregate, whose runs take 40 times as long."""


def planned(flags: PlanFlags, bounds_ms: dict[str, float], on_step: OnDone) -> Rental:
    """The deployments to rent for SLOs of `bounds_ms`. Raises ValueError where nothing can be rented."""
    from calibrate.importers.aiconfigurator.deployment import tables_of
    from calibrate.importers.plan_candidates import scaled_from

    assert flags.rate is not None
    price, began_s, engine = usd_per_gpu_h(flags.price), time.monotonic(), flags.engine or DEFAULT_ENGINE

    def rank(ranking: Sequence[Contender]) -> None:
        rows = ", ".join(f"{each.gpus} GPUs as {each.candidate.label}" for each in ranking[:5])
        click.echo(f"first estimate after {time.monotonic() - began_s:.0f} s: {rows}", err=True)

    candidates, refused, named = _candidates(flags, on_step)
    scenario, assumed = _scenario(flags, bounds_ms, candidates)
    if flags.disaggregate:
        candidates += apart(scenario, candidates, flags.gpus or MOST_GPUS)
    result = plan(
        scenario,
        candidates,
        rate_per_s=flags.rate,
        price_per_gpu_h=price,
        draws=flags.draws if flags.draws is not None else POOL_DRAWS if flags.disaggregate else DEFAULT_DRAWS,
        refused=refused,
        target_model=named.repository,
        on_done=on_step,
        on_ranking=rank,
    )
    profile = next(each.profile for each in candidates if each.name == result.deployments[0].profile)
    notes = [scaled_from(profile), assumed, named.assumed, *result.notes]
    if (tables := tables_of(profile, engine.partition("-")[0])) is not None:
        notes.insert(0, f"kernel tables: {tables}")
    if named.repository is not None:
        disputed, ratio = disputed_step(result, scenario, profile, named.repository, engine)
        notes.insert(0, disputed)
        if ratio is not None and result.deployments[0].policy == POLICY:
            whose = f"{engine.partition('-')[0]}'s"
            notes.insert(0, in_other_tables(result, profile, ratio, whose, on_done=on_step))
    result = replace(result, notes=list(filter(None, notes)))
    return with_pools(result, candidates, flags.gpus or MOST_GPUS, named.repository) if flags.disaggregate else result


def _candidates(flags: PlanFlags, on_step: OnDone) -> tuple[list[Candidate], list[Refused], ModelSource]:
    """Deployments that could be rented, those that cannot, and the model."""
    model, engine = str(flags.scenario), flags.engine or DEFAULT_ENGINE
    if model in shipped() or (model.endswith(".json") and _is_profile(Path(model))):
        profile = load(model)
        return [Candidate(model, profile)], [], ModelSource(profile.target)
    if flags.gpu is None:
        raise ValueError(f"{model!r} needs a GPU. Add one, such as --gpu h200-sxm")
    try:
        from calibrate.importers.aiconfigurator.lookups import ENGINES
        from calibrate.importers.plan_candidates import deployments, imported, kernels_of, pair_named
    except ImportError as error:
        raise needs_analysis(error) from None
    drafter = drafter_named(flags.method or NO_DRAFT[0])
    drafts = None if drafter in (*NO_DRAFT, *LOOKED_UP) else drafter
    degrees = {kind: int(count) for kind, count in DEGREE.findall(model)}
    target, draft, named = pair_named(DEGREE.sub("", model), drafts)
    gpu = gpu_name(flags.gpu.lower())
    tables, source = published_tables()
    kernels_of(tables, gpu)
    name, _, version = engine.partition("-")
    kernels = (name, version or None) if name in ENGINES else (ENGINES[0], None)
    wanted = deployments(target, flags.gpus or MOST_GPUS, kernels, *map(degrees.get, ("tp", "ep", "dp")))
    if not wanted:
        raise ValueError(f"a replica of {model} needs more than --gpus {flags.gpus or MOST_GPUS}. Raise it")
    profiles, failed = imported(tables, source, gpu, target, draft, wanted, cache_folder("profiles"), on_step)
    refused = [Refused(deployment=label_of(*each.deployment[:3]), why=each.why) for each in failed]
    if not profiles:
        # Of the deployment with the most GPUs, which is the likeliest to fit.
        _, largest = max(zip(failed, refused, strict=True), key=lambda pair: pair[0].deployment.devices)
        raise ValueError(f"plan: {target.name} on {gpu}: {largest.deployment}: {largest.why}")
    candidates = [Candidate(str(each.path), each.profile) for each in profiles]
    engine_of(engine, candidates[0].profile)
    return candidates, refused, named


def _is_profile(path: Path) -> bool:
    values = read_json(path, "profile or model config")
    return isinstance(values, dict) and "kernels" in values


def _scenario(
    flags: PlanFlags, bounds_ms: dict[str, float], candidates: Sequence[Candidate]
) -> tuple[Scenario, str | None]:
    """The question, and a word on what was assumed."""
    draft, assumed = candidates[0].profile.draft, None
    drafter = flags.method if flags.method in LOOKED_UP else None if draft is None else draft.name
    speculation: dict[str, Json] = {"num_speculative_tokens": 0}
    if drafter is not None:
        method = drafter if drafter in (*HEADS, *LOOKED_UP) else "draft_model"
        k = flags.num_speculative_tokens or LONGEST.get(method, 5)
        if flags.acceptance is None:
            origin = origin_of(ANY, *pair_of(candidates[0].profile, DRAFTERS[method]), k)
            assumed = f"Acceptance of {method}: {origin}."
        speculation = {"num_speculative_tokens": k, "acceptance": flags.acceptance or ANY, "method": method}
    raw: dict[str, Json] = {
        "profile": candidates[0].name,
        "policy": ["continuous"],
        "engine": {"name": flags.engine or DEFAULT_ENGINE},
        "workload": {"dataset_name": "fixed", "input_len": flags.input_len, "output_len": flags.output_len},
        "speculation": speculation,
        "goodput": {f"{name}_ms": bound for name, bound in bounds_ms.items()},
    }
    for text in flags.set:
        set_dotted(raw, *parse_override(text))
    return parse_scenario(raw), assumed


def disputed_step(
    result: Rental, scenario: Scenario, profile: Profile, repository: str, engine: str
) -> tuple[str | None, float | None]:
    """The decode step of the best row by the tables' own package beside this importer's, and where they contradict
    each other so many times as long it is."""
    from calibrate.importers.aiconfigurator.deployment import Deployment
    from calibrate.importers.plan_candidates import DISPUTED, own_decode_ms

    best, kernels = result.deployments[0], engine.partition("-")[0]
    deployment = Deployment(best.tp, best.ep if best.ep > 1 else None, best.dp, kernels)
    context = (scenario.workload.input_len or 0) + (scenario.workload.output_len or 0) // 2
    own = own_decode_ms(repository, profile.gpu.name, deployment, context)
    stood_in = profile.source.partition("not from the engine's own tables: ")[2]
    if own is None:
        return (f"not from {kernels}'s own tables: {stood_in}" if stood_in else None), None
    theirs_ms, predictor = own
    resolved = resolve(scenario, profile, "continuous")
    ours_ms = 1e3 * StepForecast(resolved.costs, resolved.limits, context, has_draft=False).step_s(1, 0)
    whose = f" ({stood_in.split(';')[0]})" if stood_in else ""
    step = f"One decode step takes {ours_ms:.1f} ms here{whose}. By {predictor} it takes {theirs_ms:.1f} ms"
    if max(theirs_ms / ours_ms, ours_ms / theirs_ms) < DISPUTED:
        return f"{step}.", None
    return f"{DISPUTE}{step} ({kernels}'s tables). Measure one server first.", theirs_ms / ours_ms
