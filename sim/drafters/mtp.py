"""MTP: a layer of the target's kind that predicts the token after next, run once per token."""

import msgspec

from sim.costs.shapes import ModelShape
from sim.drafters.drafter import Drafter


def layer(target: ModelShape) -> ModelShape:
    """The multi-token-prediction layer of `target`: one layer of its kind, experts and all, over embedding and hidden
    state projected to one; embedding and LM head are the target's. Run once per drafted token.

    Source: DeepSeek-V3 (arXiv 2412.19437, section 2.2).
    """
    if target.mtp_layers == 0:
        raise ValueError(f"{target.name} has no MTP layer to draft with. Try --draft eagle3 or ngram")
    experts, indexer, parts = target.experts, target.indexer, target.compressed
    return msgspec.structs.replace(
        target,
        name="mtp",
        layers=1,
        window_layers=0,
        window=0,
        linear=None,
        indexer=None if indexer is None else msgspec.structs.replace(indexer, shared_layers=0, full_layers=0),
        compressed=None if parts is None else msgspec.structs.replace(parts, chosen_layers=0, window_layers=1),
        experts=None if experts is None else msgspec.structs.replace(experts, dense_layers=0),
        input_features=2,
        shares_head=True,
    )


DRAFTER = Drafter(
    name="mtp",
    reads_features=True,
    has_checkpoint=False,
    mark="input_features",
    what="an MTP layer",
    head=layer,
    sglang="NEXTN",
)
