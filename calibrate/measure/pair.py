"""The pair that is measured: its sizes, its models with random or real weights, its kernels.

Not here: what a user may name a model (calibrate.catalogue.model_configs), timing (calibrate.measure.timing).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypedDict

import torch

from calibrate.catalogue.model_configs import FAMILIES, ModelSource, source_of, with_dtype
from calibrate.fit.grid import Limits
from realrun.kernels.host_slots import PairOptions, doubling
from realrun.kernels.pair_kernels import PairKernels
from realrun.model.attention import attention_on, slot_tokens
from realrun.model.memory import Ledger, Sizes, check_fits, ledger
from realrun.model.weights import Family, load_model, random_model
from sim.costs.shapes import MODELS
from sim.files.json_values import Json

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Defaults(TypedDict):
    dtype: str
    budget: float
    rows: int
    context: int


DEFAULTS: dict[str, Defaults] = {
    "cpu": {"dtype": "float32", "budget": 120.0, "rows": 16, "context": 512},
    "cuda": {"dtype": "bfloat16", "budget": 480.0, "rows": 32, "context": 2048},
}
"""Defaults of each device."""
MIN_CONTEXT = 256
DRAFT_TOKENS = 8
PASS_TOKENS = {"cpu": 512, "cuda": 4096}
"""Prompt tokens of the longest pass that is timed."""
ISSUERS = 11
"""Streams that a measurement uses: eager and graphed, three sides; five of the policies that serve."""


class PairSpec(NamedTuple):
    """A pair to build; everything that a measurement depends on beside the machine. Shapes have their dtype's bytes."""

    device: str
    dtype: str
    target: ModelSource
    draft: ModelSource | None
    rows: int
    slot_tokens: int
    attention: str
    seed: int = 0
    """Of the weights and of what lies in unwritten KV."""

    def as_options(self) -> dict[str, Json]:
        """Plain values, to tell one measurement from another."""
        plain: dict[str, Json] = self._asdict()
        for role, source in (("target", self.target), ("draft", self.draft)):
            plain[role] = None if source is None else source.shape.name
            plain[f"{role}_weights"] = None if source is None else "random" if source.weights is None else "real"
        return plain


def pair_spec(
    device: str, target: str, draft: str | None = None, rows: int | None = None, context: int | None = None
) -> PairSpec:
    """The pair to build; raises ValueError for sizes and models that cannot be."""
    defaults = DEFAULTS[device]
    sources = []
    for name in (target, draft):
        source = source_of(name) if name is not None else None
        if name is not None and source is not None and source.family is None and name not in MODELS:
            raise ValueError(f"{name}: passes can be built for {', '.join(FAMILIES)} (model_type), not for this one")
        sources.append(source and source._replace(shape=with_dtype(source.shape, defaults["dtype"])))
    assert sources[0] is not None
    longest = min(source.shape.max_context for source in sources if source is not None)
    if context is None:
        context = min(defaults["context"], longest)
    if not MIN_CONTEXT <= context <= longest:
        raise ValueError(f"measure.context={context} must be in {MIN_CONTEXT}..{longest}, what the models take")
    rows = defaults["rows"] if rows is None else rows
    if rows < 1:
        raise ValueError(f"measure.rows={rows} must be at least 1")
    context = min(slot_tokens(device, context), longest)
    return PairSpec(device, defaults["dtype"], sources[0], sources[1], rows, context, attention_on(device))


def limits(spec: PairSpec) -> Limits:
    return Limits(
        rows=spec.rows,
        slot_tokens=spec.slot_tokens,
        pass_tokens=min(PASS_TOKENS[spec.device], spec.rows * spec.slot_tokens),
        draft_tokens=min(DRAFT_TOKENS, spec.slot_tokens // 4),
        has_draft=spec.draft is not None,
        has_graphs=spec.device == "cuda",
    )


def build(spec: PairSpec) -> PairKernels:
    """The pair. Raises ValueError for models that do not fit or do not go together."""
    sources = [spec.target] if spec.draft is None else [spec.target, spec.draft]
    vocabularies = {source.shape.name: source.shape.vocab for source in sources}
    if len(set(vocabularies.values())) > 1:
        raise ValueError(f"draft and target must share vocabulary, got {vocabularies}")
    names = " and ".join(source.shape.name for source in sources)
    what = f"{names} in {spec.dtype} with KV of {spec.rows} slots of {spec.slot_tokens} tokens"
    # All of it at once; each part alone is checked again where it is made.
    check_fits(needs(spec).total, what, torch.device(spec.device))
    options = options_of(spec)
    models = [_model(source, spec) for source in sources]
    return PairKernels(models[0], models[1] if len(models) > 1 else None, options)


def options_of(spec: PairSpec) -> PairOptions:
    """Options that the pair runs with: where there are graphs, rows padded and captured as a replay's are."""
    has_graphs = limits(spec).has_graphs
    return PairOptions(
        slots=spec.rows,
        max_tokens=spec.slot_tokens,
        draft_tokens_max=min(DRAFT_TOKENS, spec.slot_tokens // 4),
        seed=spec.seed,
        batch_buckets=doubling(spec.rows) if has_graphs else (),
        cuda_graphs=has_graphs,
    )


def needs(spec: PairSpec) -> Ledger:
    allowed = limits(spec)
    sizes = Sizes(
        slots=spec.rows,
        max_tokens=spec.slot_tokens,
        draft_tokens=allowed.draft_tokens,
        prompt_tokens=allowed.pass_tokens,
        streams=ISSUERS,
        has_graphs=allowed.has_graphs,
    )
    shapes = [source.shape for source in (spec.target, spec.draft) if source is not None]
    return ledger(shapes, sizes, is_cuda=spec.device == "cuda")


def _model(source: ModelSource, spec: PairSpec) -> PreTrainedModel:
    dtype = getattr(torch, spec.dtype)
    if source.weights is not None:
        return load_model(source.weights, dtype=dtype, device=spec.device)
    family = Family(source.family) if source.family is not None else None
    return random_model(source.shape, dtype=dtype, device=spec.device, seed=spec.seed, family=family)
