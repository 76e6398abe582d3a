"""Profiles of models by their names, split over the GPUs of a replica in every way, imported from the installed tables
and kept in the user's cache folder, under a name with a hash of all that they were made from.

Beside them the publisher's own decode step, for users to see where the two differ. Not here: models by name
(calibrate.catalogue.model_configs), which deployment is best (sim.studies.plan.search).
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import msgspec

from calibrate.catalogue.derived_profiles import derive, nearest
from calibrate.catalogue.model_configs import ModelSource, shapes_of, source_of, with_formats
from calibrate.catalogue.published_tables import PACKAGES, cache_folder, published_tables
from calibrate.importers.aiconfigurator.deployment import (
    Deployment,
    gpus_of,
    import_deployment,
    profile_name,
)
from sim.compare.pool import default_workers, started
from sim.costs.datasheets import DATASHEETS, gpu_name
from sim.costs.memory import kv_capacity_tokens
from sim.costs.profile import Profile
from sim.costs.profile_files import UnknownProfile, load, save_profile
from sim.costs.shapes import ModelShape
from sim.drafters.registry import HEADS, LOOKED_UP
from sim.model_names import DEGREE
from sim.names import unknown

MADE_FROM = ("calibrate/importers/aiconfigurator", "calibrate/fit", "calibrate/catalogue", "sim/costs")
"""Folders whose code a profile depends on."""
DISPUTED = 1.3
"""Ratio of two decode steps that contradict each other; the importer is 6 % off on dense models (docs/accuracy.md)."""

DEGREES = (1, 2, 4, 8)
NEEDED_TOKENS = 32_768
"""Tokens of KV that have room beside the weights where nobody says over how many GPUs a model is split."""
LETTERS = re.compile(r"^[a-z]*")
"""Beginning of a GPU's name: rtx, h, mi."""
KV8 = "-kv8"
"""Ending of a model's name in a profile's, whose KV cache is in FP8."""
OnDone = Callable[[str, int, int], None]


class Imported(NamedTuple):
    path: Path
    profile: Profile
    deployment: Deployment


class NotImported(NamedTuple):
    deployment: Deployment
    why: str


def profile_of(name: str) -> Path:
    """The profile `gpu/MODEL[+DRAFT]`, over as few GPUs as hold it unless -tpN, -epN or -dpN say. Raises ValueError."""
    gpu, _, models = name.partition("/")
    given = {kind: int(count) for kind, count in DEGREE.findall(models)}
    model, _, drafter = DEGREE.sub("", models).partition("+")
    target, draft, named = pair_named(model, drafter or None)
    tables, source = published_tables()
    gpu = gpu_name(gpu.lower())
    kernels_of(tables, gpu)
    why = ""
    for layout in [given] if given else [{"tp": degree} for degree in DEGREES]:
        deployment = Deployment(layout.get("tp", 1), layout.get("ep"), layout.get("dp", 1))
        profiles, failed = imported(tables, source, gpu, target, draft, [deployment], cache_folder("profiles"))
        if failed:
            why = failed[0].why
        elif not given and kv_capacity_tokens(profiles[0].profile) < NEEDED_TOKENS:
            why = f"{deployment.devices} x {gpu} have no room for {NEEDED_TOKENS:,} tokens of KV"
        else:
            fewest = (
                "" if given or deployment.devices == 1 else f", TP{deployment.devices}: the fewest GPUs that hold it"
            )
            made = f"profile {profiles[0].profile.name}: NVIDIA's kernel tables ({source}){fewest}"
            notes = (made, scaled_from(profiles[0].profile), named.assumed)
            warnings.warn(". ".join(note for note in notes if note), stacklevel=2)
            return profiles[0].path
    raise ValueError(f"{model} on {gpu}: {why}")


def scaled_from(profile: Profile) -> str:
    """Words on the GPU whose tables a profile was scaled from, and how far off that is; empty for its own GPU's."""
    gpu = re.match(r"derived from ([^/]+)/", profile.source)
    return "" if gpu is None else f"{gpu[1]}'s times scaled by data sheets, which was off by 13 % where it was tried"


def kernels_of(tables: Path, gpu: str) -> str:
    """The GPU whose kernels stand for those of `gpu`: itself, or the nearest with tables. Raises ValueError."""
    known = gpus_of(tables)
    origin = gpu if gpu in known else nearest(gpu, known)
    if origin is None:
        served = [*known, *(each for each in DATASHEETS if each not in known and nearest(each, known))]
        # Data sheets are NVIDIA's. A suggestion from another maker or another line of GPUs is none.
        alike = [each for each in DATASHEETS if LETTERS.findall(gpu)[0] in ("", LETTERS.findall(each)[0])]
        raise ValueError(f"{unknown('GPU', gpu, alike).partition(' Choose from')[0]} Choose from {', '.join(served)}")
    return origin


def pair_named(model: str, drafter: str | None) -> tuple[ModelShape, ModelShape | None, ModelSource]:
    """A target and its draft, a name of HEADS or a model, and where the target comes from. Raises ValueError. `model`
    may end in -kv8 for a KV cache in FP8, and a config.json in -fp8 or another format of the weights."""
    kv = "fp8" if model.endswith(KV8) else None
    path, config, weights = model.removesuffix(KV8).rpartition(".json-")
    model = f"{path}.json" if config else model.removesuffix(KV8)
    try:
        target, draft = shapes_of(model, drafter, plain=False)
    except ValueError as error:
        if "/" in (drafter or "/") or not str(error).startswith(f"unknown model {drafter!r} (give"):
            raise
        raise ValueError(unknown("drafter", str(drafter), [*HEADS, *LOOKED_UP, "none", "or a model"])) from None
    target = with_formats(target, weights if config else None, kv)
    return target, draft and with_formats(draft, None, kv), source_of(model, plain=False)


def deployments(
    shape: ModelShape, max_gpus: int, kernels: tuple[str, str | None], tp: int | None, ep: int | None, dp: int | None
) -> list[Deployment]:
    """Ways to split a model over 1, 2, 4 .. `max_gpus` GPUs of a replica, with the degrees that are given; `kernels` is
    (engine, its version). Dense models: tensor parallel alone, since further ranks are further replicas. Experts: cut,
    spread, or spread over ranks whose attention has separate requests."""
    layouts = []
    for degree in (2**power for power in range(max_gpus.bit_length())):
        layouts.append((degree, 1, 1))
        if shape.experts is not None and degree > 1:
            layouts += [(degree, degree, 1), (1, degree, degree)]
    wanted = [
        each for each in layouts if all(given in (None, size) for given, size in zip((tp, ep, dp), each, strict=True))
    ] or [(tp or 1, ep or 1, dp or 1)]
    return [Deployment(a, None if b == 1 else b, c, *kernels) for a, b, c in wanted if a * c <= max_gpus]


def imported(
    tables: Path,
    source: str,
    gpu: str,
    target: ModelShape,
    draft: ModelShape | None,
    wanted: Sequence[Deployment],
    cache: Path,
    on_done: OnDone = lambda stage, done, total: None,
) -> tuple[list[Imported], list[NotImported]]:
    """The profiles of `wanted`, cached or made in separate processes, and why others cannot be."""
    by_index: dict[int, Imported] = {}
    failed: dict[int, NotImported] = {}
    missing = []
    for index, deployment in enumerate(wanted):
        path = _path(cache, source, gpu, target, draft, deployment)
        with suppress(UnknownProfile, ValueError):
            by_index[index] = Imported(path, load(path), deployment)
        if index not in by_index:
            missing.append(index)
    if missing:
        on_done("importing tables", 0, len(missing))
        read = partial(_import, tables, source, gpu, target, draft, wanted)
        with started(min(len(missing), default_workers()), is_apart=True) as pool:
            for num, (place, profile) in enumerate(pool.run(read, missing), start=1):
                index = missing[place]
                on_done("importing tables", num, len(missing))
                if isinstance(profile, str):
                    failed[index] = NotImported(wanted[index], profile)
                    continue
                path = _path(cache, source, gpu, target, draft, wanted[index])
                path.parent.mkdir(parents=True, exist_ok=True)
                save_profile(profile, path)
                by_index[index] = Imported(path, profile, wanted[index])
    return [by_index[index] for index in sorted(by_index)], [failed[index] for index in sorted(failed)]


def _import(
    tables: Path,
    source: str,
    gpu: str,
    target: ModelShape,
    draft: ModelShape | None,
    wanted: Sequence[Deployment],
    index: int,
) -> Profile | str:
    """The profile, or why there is none; made in a worker."""
    try:
        origin = kernels_of(tables, gpu)
        profile = import_deployment(tables, origin, target, draft, wanted[index], source=source)
        return profile if origin == gpu else derive(profile, gpu)
    except ValueError as error:
        return str(error)


def _path(
    cache: Path, source: str, gpu: str, target: ModelShape, draft: ModelShape | None, deployment: Deployment
) -> Path:
    """`gpu/target-HASH.json`, the hash of everything that the profile is made from."""
    parts = (source, gpu, msgspec.to_builtins(target), msgspec.to_builtins(draft), list(deployment), _code_hash())
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:8]
    return cache / f"{profile_name(gpu, target, draft, deployment)}-{key}.json"


@cache
def _code_hash() -> str:
    root, made = Path(__file__).parents[2], hashlib.sha256()
    for folder in MADE_FROM:
        for path in sorted((root / folder).glob("*.[jp]*")):
            made.update(path.read_bytes())
    return made.hexdigest()


def own_decode_ms(repository: str, gpu: str, deployment: Deployment, context_tokens: int) -> tuple[float, str] | None:
    """Milliseconds of a decode step of one row by the tables' own package, and its name; None without an answer."""
    module = published_tables()[0].parent
    spec = find_spec(module.name)
    if spec is None or spec.origin is None or Path(spec.origin).parent != module:
        return None
    cut, spread = deployment.split()
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        handle = import_module(f"{module.name}.sdk.engine").EngineHandle.compile(
            repository,
            gpu.replace("-", "_"),
            deployment.engine,
            tp_size=deployment.tensor_parallel,
            attention_dp_size=deployment.data_parallel,
            moe_tp_size=cut,
            moe_ep_size=spread,
        )
        return float(handle.decode_step_latency(1, context_tokens, 2)), PACKAGES[module.name]
    except Exception:
        # Whatever a foreign library makes of a model that it does not know: there is no second opinion then.
        return None
    finally:
        logging.disable(before)
