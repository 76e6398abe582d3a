"""Imports LLMServingSim's kernel profiles (casys-kaist/LLMServingSim, MIT): per-layer times inside a running vLLM.

PATH is the folder of one GPU, model and degree of parallelism, `.../bf16/tp1`: dense.csv, per_sequence.csv,
attention.csv, of a mixture of experts moe.csv, and skew.csv and ../meta.yaml where present. They hold kernel times of
one layer, sharded but at full dimensions otherwise, so layers and dimensions come from our table; all-reduces, gathers
and host constants, which they do not have, from calibrate.catalogue.host_costs.
The profile keeps the points.
A draft's points come from the draft's own folder, or are composed from the target's. Mixed passes fit the verify rule.
Not here, but beside this: reading (layer_files), points (layer_tables), errors (layer_errors).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from functools import lru_cache
from itertools import compress
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from calibrate.catalogue.derived_profiles import check_divides, check_fits
from calibrate.catalogue.host_costs import (
    GATHER_SOURCE,
    Engine,
    all_reduce_of,
    engine_of,
    gather_of,
    host_costs,
    vllm_of,
)
from calibrate.fit.fit_errors import DRAFT_KINDS, errors_of_draft, not_judged
from calibrate.fit.verify_rows import ATTENTION, QUERY_TILES, MixedPoints, VerifyFit, fit_verify_rule
from calibrate.importers.llmservingsim.layer_errors import layer_errors, skew_errors
from calibrate.importers.llmservingsim.layer_files import (
    LICENCE,
    ONCE,
    REPOSITORY,
    Attention,
    LayerFiles,
    read_layer_files,
)
from calibrate.importers.llmservingsim.layer_tables import (
    LayerPoints,
    RawCurve,
    gather_s,
    layer_points,
    reduced_s,
    table_of,
)
from sim.costs.compact_kernels import AllReduce, VerifyAttention
from sim.costs.datasheets import Datasheet, datasheet
from sim.costs.forms.build import build_costs
from sim.costs.passes import ModelPasses
from sim.costs.profile import SCHEMA, UNLOADED, KindError, Overlap, Profile
from sim.costs.shapes import EAGLE3, ModelShape
from sim.costs.table_kernels import TableKernels
from sim.interface.work import Model

NO_RULE = "no mixed passes there, so the rule of verify rows is not fitted: nothing slows them down"
TABLE_SOURCE = (
    "table of the points, smoothed; embedding and last norm, once per pass, are spread over the layers' bodies; "
    "rows beside a chunk add a median over all chunks"
)
UNFITTED_RULE = VerifyAttention(kv_slowdown=1.0)
HEAD_SOURCE = (
    "draft eagle3 composed, not measured: the target's own layer with twice its QKV, its attention, its LM head and "
    "sampler by share of the vocabulary, its fusion by share of the weights"
)


class Draft(NamedTuple):
    """Points of a draft, how they came about, and their errors, of the profile that holds them."""

    points: LayerPoints
    source: str
    errors: Callable[[Profile], dict[str, KindError]]


def read_draft(
    draft: ModelShape,
    path: str | Path | None,
    sheet: Datasheet,
    target: ModelShape,
    files: LayerFiles,
    reduce: AllReduce | None,
) -> Draft:
    """Points of `draft`. Raises ValueError where they would need a folder that is not given, or two that disagree."""
    is_head = draft.fused_features > 0
    if is_head and target.experts is not None:
        raise ValueError(f"--draft {EAGLE3}: composed of a dense target's layer, and {target.name!r} has experts")
    if is_head and path is not None:
        raise ValueError(f"--draft {EAGLE3} is composed from the target's tables; leave --draft-path out")
    if is_head:
        return Draft(_head_points(draft, target, files, reduce), HEAD_SOURCE, _head_errors)
    if path is None:
        raise ValueError(
            f"--draft {draft.name!r}: these tables hold one model; give the draft's own folder with --draft-path"
        )
    own = read_layer_files(Path(path), sheet, draft, files.tensor_parallel)
    if own.engine_version != files.engine_version:
        raise ValueError(
            f"--draft-path: tables of vLLM {own.engine_version} beside a target's of {files.engine_version}; want one"
        )
    points = layer_points(own, draft, reduce)

    def errors(profile: Profile) -> dict[str, KindError]:
        return errors_of_draft(layer_errors(profile, points, draft))

    return Draft(points, f"draft {draft.name} from its own tables", errors)


def _head_points(draft: ModelShape, target: ModelShape, files: LayerFiles, reduce: AllReduce | None) -> LayerPoints:
    """One layer as wide as the target's: all of its kernels are the target's own but QKV, which reads embedding and
    feature together, and the LM head over a smaller vocabulary."""
    tokens, body_s = files.layer_s(files.layer | dict.fromkeys(ONCE, 1))
    _, qkv_s = files.layer_s({"qkv_proj": 1})
    rows, head_s = files.head_s({"lm_head": 1, "sampler": 1})
    head_s = head_s * (draft.vocab / target.vocab)
    body_s = body_s + (draft.qkv_inputs - target.qkv_inputs) * qkv_s
    if reduce is not None:
        body_s = body_s + reduced_s(reduce, draft, tokens)
        head_s = head_s + gather_s(reduce, draft, files.tensor_parallel, rows)
    return layer_points(files, target, reduce)._replace(body=RawCurve(tokens, body_s), head=RawCurve(rows, head_s))


def _head_errors(profile: Profile) -> dict[str, KindError]:
    del profile
    return dict.fromkeys(DRAFT_KINDS.values(), not_judged(HEAD_SOURCE))


class _Known(NamedTuple):
    """What is known before any kernels are."""

    sheet: Datasheet
    files: LayerFiles
    engine: Engine
    reduce: AllReduce | None
    ranks: int
    """Data-parallel, with the experts spread over them."""


def import_llmservingsim(
    path: str | Path,
    gpu: str,
    target: ModelShape,
    draft: ModelShape | None = None,
    tensor_parallel: int = 1,
    data_parallel: int = 1,
    *,
    draft_path: str | Path | None = None,
    revision: str = "unrecorded revision",
    engine_version: str | None = None,
) -> Profile:
    """A profile of `target` on `gpu`, with errors of held-out points. A draft comes from its own folder `draft_path`,
    or, where it is the target's EAGLE-3 head, from the target's points by share of weights.

    With `data_parallel` it is one rank's, and the experts are spread over all ranks; see sim.costs.profile.

    `engine_version` replaces the folder's own. Raises ValueError naming the table and what is
    wrong with it.
    """
    for shape in (target, draft):
        if shape is not None and not msgspec.structs.replace(shape, experts=None).is_plain:
            raise ValueError(f"{shape.name!r}: want a dense decoder or plain experts in one number format")
    if target.experts is not None and draft is not None:
        raise ValueError(f"--target {target.name!r} has experts: want no --draft")
    if data_parallel < 1 or (data_parallel > 1 and (target.experts is None or tensor_parallel > 1)):
        raise ValueError(
            f"--dp {data_parallel} with --tp {tensor_parallel}: ranks that share the experts of {target.name!r}, one "
            "device each, are what the tables have; ranks of a dense model are further replicas"
        )
    sheet = datasheet(gpu)
    shapes = [shape for shape in (target, draft) if shape is not None]
    for shape in shapes:
        check_divides(shape, tensor_parallel)
    names = " and ".join(shape.name for shape in shapes)
    check_fits(names, sum(shape.weight_bytes for shape in shapes), sheet.gpu, tensor_parallel * data_parallel)
    files = read_layer_files(Path(path), sheet, target, tensor_parallel)
    version = engine_version or files.engine_version
    engine = engine_of(sheet.gpu.name, version)
    known = _Known(sheet, files, engine, all_reduce_of(engine, tensor_parallel), data_parallel)
    gather = gather_of(engine, data_parallel)
    points = layer_points(files, target, known.reduce, data_parallel, gather)
    drafted = None
    if draft is not None:
        drafted = read_draft(draft, draft_path, sheet, target, files, known.reduce)
    elif draft_path is not None:
        raise ValueError("--draft-path without --draft: name the model of that folder")
    name = f"{sheet.gpu.name}/{target.name}" + (f"+{draft.name}" if draft is not None else "")
    for flag, degree in (("tp", tensor_parallel), ("ep", data_parallel), ("dp", data_parallel)):
        name += f"-{flag}{degree}" if degree > 1 else ""
    profile = Profile(
        schema=SCHEMA,
        name=name,
        gpu=sheet.gpu,
        target=target,
        draft=draft,
        tensor_parallel=tensor_parallel,
        data_parallel=data_parallel,
        expert_parallel=None if target.experts is None else data_parallel,
        kernels=TableKernels(
            target=table_of(points),
            draft=table_of(drafted.points) if drafted is not None else None,
            verify_rule=UNFITTED_RULE,
            attention_implementation=ATTENTION.get(sheet.family, "FlashAttention-3"),
            kv_layout="paged",
        ),
        host=host_costs(vllm_of(sheet.gpu.name, version)),
        overlap=Overlap(),
        errors={},
        conditions=UNLOADED,
        source=_source(known, revision, drafted),
        fingerprint=None,
        date=date.today().isoformat(),
    )
    return _with_rule_and_errors(profile, known, points, drafted)


def _with_rule_and_errors(profile: Profile, known: _Known, points: LayerPoints, drafted: Draft | None) -> Profile:
    fitted = fit_rule(profile, known.files.attention, QUERY_TILES.get(known.sheet.family, 1))
    if fitted is not None:
        profile = with_rule(profile, fitted.rule)
    errors = layer_errors(profile, points, profile.target)
    if drafted is not None:
        errors |= drafted.errors(profile)
    if known.files.skew is not None:
        errors |= skew_errors(known.files.skew)
    reason = f"no verify shapes there; {fitted.words}" if fitted is not None else NO_RULE
    return msgspec.structs.replace(profile, errors=errors | {"verify": not_judged(reason)})


def _source(known: _Known, revision: str, drafted: Draft | None) -> str:
    files, engine = known.files, known.engine
    version = f"vLLM {files.engine_version}" if files.engine_version else "vLLM of an unrecorded version"
    parts = [
        f"{REPOSITORY}@{revision} ({LICENCE}), kernel times of one layer inside {version}, eager",
        TABLE_SOURCE,
    ]
    if known.reduce is not None:
        parts.append(
            f"two all-reduces per layer, one of the embedding, and the logits gathered at their rate, by constants of "
            f"vLLM {engine.version} on {engine.gpu} fitted to {engine.source}"
        )
    if files.experts is not None:
        parts.append("experts by how many a pass activates, were they drawn uniformly")
    if known.ranks > 1:
        parts.append(f"spread over {known.ranks} ranks, whose tokens are gathered and scattered by {GATHER_SOURCE}")
    if drafted is not None:
        parts.append(drafted.source)
    return "; ".join([*parts, *files.notes])


# -- the verify rule


def fit_rule(profile: Profile, attention: Attention, query_tile: int) -> VerifyFit | None:
    """The rule with which `profile` predicts the mixed passes of `attention`, its target's, best."""

    @lru_cache(maxsize=1)
    def passes(rule: VerifyAttention) -> ModelPasses:
        return build_costs(_by_rule(profile, rule)).passes(Model.TARGET)

    def added_s(rule: VerifyAttention, rows: int, kv_tokens: int) -> float:
        return passes(rule).rows_s(rows, rows, kv_tokens, beside_chunks=True)

    return fit_verify_rule(mixed_points(attention), added_s, query_tile)


def with_rule(profile: Profile, rule: VerifyAttention) -> Profile:
    return msgspec.structs.replace(profile, kernels=msgspec.structs.replace(profile.table, verify_rule=rule))


def _by_rule(profile: Profile, rule: VerifyAttention) -> Profile:
    """`profile` without its points of rows beside chunks, so that the rule stands in."""
    target = msgspec.structs.replace(profile.table.target, rows_beside_chunks=None)
    kernels = msgspec.structs.replace(profile.table, target=target, verify_rule=rule)
    return msgspec.structs.replace(profile, kernels=kernels)


def mixed_points(attention: Attention) -> MixedPoints:
    """Mixed passes whose chunk and whose rows were also measured alone."""
    mixed = attention.mixed()
    rows_s, chunk_s = attention.decode().by_rows(), attention.prefill().by_chunk()
    chunks = list(zip(mixed.chunk.tolist(), mixed.history.tolist(), strict=True))
    rows = list(zip(mixed.rows.tolist(), mixed.context.tolist(), strict=True))
    known = [a in chunk_s and b in rows_s for a, b in zip(chunks, rows, strict=True)]
    use = mixed.where(np.array(known, dtype=bool))
    return MixedPoints(
        rows=use.rows,
        context=use.context,
        chunk_s=np.array([chunk_s[key] for key in compress(chunks, known)]),
        rows_alone_s=np.array([rows_s[key] for key in compress(rows, known)]),
        seconds=use.seconds,
    )
