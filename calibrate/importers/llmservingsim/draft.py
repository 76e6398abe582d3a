"""A draft's points beside LLMServingSim's target: from the draft's own folder, or composed from the target's points.

Not here: what points are made of (calibrate.importers.llmservingsim.table).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from calibrate.importers.llmservingsim.errors import layer_errors
from calibrate.importers.llmservingsim.files import ONCE, LayerFiles, read_layer_files
from calibrate.importers.llmservingsim.table import LayerPoints, RawCurve, gather_s, layer_points, reduced_s
from sim.costs.datasheets import Datasheet
from sim.costs.kernels import AllReduce
from sim.costs.profile import KindError, Profile
from sim.costs.shapes import EAGLE3, ModelShape

HEAD_SOURCE = (
    "draft eagle3 composed, not measured: the target's own layer with twice its QKV, its attention, its LM head and "
    "sampler by share of the vocabulary, its fusion by share of the weights"
)
NAMES = {"decode": "draft", "body": "draft_body", "prefill": "draft_prefill"}
"""Kinds of the draft's errors, after those of its own table."""


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
        found = layer_errors(profile, points, draft)
        return {name: found[kind] for kind, name in NAMES.items()}

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
    reason = KindError(mean_error_pct=None, max_error_pct=None, points=0, held_out=HEAD_SOURCE)
    return dict.fromkeys(NAMES.values(), reason)
