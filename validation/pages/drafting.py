"""Writes docs/drafting.md: where each way of drafting pays, by batch, GPU, dense or MoE, and what decides it.

    python -m validation drafting [--out docs/drafting.md]

Needs the kernel tables (`pip install 'lanesim[tables]'`). A round of k drafted tokens costs what the cost model says of
its verify pass and its draft passes; it pays where a round yields more tokens than it costs plain steps. Both are of
the GPU alone (engine `ideal`), of full batches without prompts beside them: what an engine adds makes small batches of
fast models pay more. Not here: serving with arrivals (`lanesim compare`), the best length under load (`lanesim tune`).
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from calibrate.hardware.models import format_names, source_of, with_formats
from calibrate.importers.aiconfigurator.deployment import Deployment, import_deployment, installed_tables
from sim.costs.engine import load_engine
from sim.costs.forms.build import build_costs
from sim.costs.forms.table import TableCosts
from sim.costs.profile import Profile
from sim.costs.shapes import ModelShape, draft_model, model
from sim.interface.work import Kind, Model, Work
from sim.policies.continuous.plan import draft_of
from sim.policies.options import Method

PAGE = Path(__file__).parents[2] / "docs" / "drafting.md"
BATCHES = (1, 4, 16, 64, 256)
K = 3
CONTEXT_TOKENS = 2048
PAYS = 1.02
"""Speed-up from which drafting is said to pay."""


class Target(NamedTuple):
    gpu: str
    config: str
    """File of its config.json in the tables' package, less `_config.json`."""
    weights: str | None
    deployment: Deployment
    name: str


TARGETS = (
    Target("h100-sxm", "meta-llama--Meta-Llama-3.1-8B", None, Deployment(), "llama-3.1-8b"),
    Target("h200-sxm", "meta-llama--Meta-Llama-3.1-70B", "fp8", Deployment(4), "llama-3.1-70b"),
    Target("b200-sxm", "Qwen--Qwen3-32B", "nvfp4", Deployment(), "qwen3-32b"),
    Target("h100-sxm", "Qwen--Qwen3-30B-A3B", None, Deployment(), "qwen3-30b-a3b"),
    Target("h200-sxm", "openai--gpt-oss-120b", None, Deployment(), "gpt-oss-120b"),
    Target("h200-sxm", "deepseek-ai--DeepSeek-V3", None, Deployment(8, 8), "deepseek-v3"),
    Target("b200-sxm", "openai--gpt-oss-120b", "mxfp4-fp8", Deployment(), "gpt-oss-120b"),
)


class Way(NamedTuple):
    method: Method
    drafter: str | None
    """Name of its shape; `own`: one pass of an EAGLE-3 head over all slots; None: no model."""
    length: float
    """Tokens a round at k = 3, the target's own included."""
    quoted: str


WAYS = (
    Way(Method.DRAFT_MODEL, "llama-3.2-1b", 2.8, "iid 0.75 of a 1B draft of the same family"),
    Way(Method.EAGLE3, "eagle3", 2.83, "EAGLE-3 of MiniMax-M3, SPEED-Bench coding (InferenceX)"),
    Way(Method.MTP, "mtp", 2.99, "MTP of GLM-5.2, likewise"),
    Way(Method.PARALLEL, "eagle3", 2.6, "assumed: EAGLE-3's first positions, later ones fall faster"),
    Way(Method.DSPARK, "dspark", 2.87, "DSpark of Kimi-K3, likewise"),
    Way(Method.NGRAM, None, 1.4, "n-gram, chat (`markov:.13,.82`)"),
)


class Round(NamedTuple):
    """Seconds of one round's parts, and of a plain step, at one batch."""

    plain_s: float
    plain_body_s: float
    body_s: float
    plain_attention_s: float
    attention_s: float
    plain_head_s: float
    head_s: float
    draft_s: float

    @property
    def needs(self) -> float:
        """Tokens that a round must yield to be no slower."""
        return (self.body_s + self.attention_s + self.head_s + self.draft_s) / self.plain_s


def round_of(costs: TableCosts, way: Way, rows: int) -> Round:
    target = costs.passes(Model.TARGET)
    context = rows * CONTEXT_TOKENS

    def part(tokens: int) -> tuple[float, float, float]:
        body_s = target.padded_body_s(tokens, rows, tokens)
        head_s = target.head_s(tokens)
        step = Work(kind=Kind.STEP, rows=rows, row_tokens=tokens, context_tokens=context, head_rows=tokens)
        return body_s, costs.cost(step).device_s - body_s - head_s, head_s

    plain, verify = part(rows), part((K + 1) * rows)
    if way.drafter is None:
        draft_s = costs.cost(Work(kind=Kind.HOST, rows=rows)).prepare_s
    else:
        draft_s = costs.cost(draft_of(way.method, rows, (K + 1) * rows, context, (), K)).device_s
    return Round(sum(plain), plain[0], verify[0], plain[1], verify[1], plain[2], verify[2], draft_s)


def mechanism(costs: TableCosts, shape: ModelShape, way: Way, rows: int, found: Round) -> str:
    """The part that makes a round dearer than a step most, in words with its figure."""
    parts = {
        "draft": found.draft_s,
        "body": found.body_s - found.plain_body_s,
        "attention": found.attention_s - found.plain_attention_s,
        "head": found.head_s - found.plain_head_s,
    }
    name = max(parts, key=lambda part: parts[part])
    share = f"+{100 * parts[name] / found.plain_s:.0f} % of a step"
    tokens = (K + 1) * rows
    if name == "draft":
        passes = "host search" if way.drafter is None else "one pass" if way.method.value in ONE_PASS else f"{K} passes"
        return f"drafting ({passes}): {share}"
    if name == "attention":
        return f"attention of {K + 1} queries a row: {share}"
    if name == "head":
        return f"LM head and sampler over {K + 1} times the rows: {share}"
    experts = shape.experts
    if experts is not None and experts.unique(rows) < 0.9 * experts.num:
        few, many = experts.unique(rows), experts.unique(experts.unrelated(rows, tokens))
        return f"verify reads {many:.0f} experts for {few:.0f} ({many / few:.1f} times): {share}"
    return f"verify computes {tokens} tokens for {rows}: {share}"


ONE_PASS = (Method.PARALLEL.value, Method.DSPARK.value)


def profile_of(target: Target, way: Way) -> Profile | None:
    """With the drafter of `way`; None where there is none for that target."""
    tables, revision = installed_tables()
    path = tables.parent / "model_configs" / f"{target.config}_config.json"
    shape = msgspec.structs.replace(source_of(str(path), plain=False).shape, name=target.name)
    shape = with_formats(shape, target.weights, None)
    draft = None
    if way.drafter is not None:
        if way.method is Method.DRAFT_MODEL:
            if not target.name.startswith("llama"):
                return None
            draft = model(way.drafter)
        else:
            if way.drafter != "mtp" and shape.latent is not None:
                return None
            draft = draft_model(way.drafter, shape if way.drafter == "mtp" else dense(shape))
    return import_deployment(tables, target.gpu, shape, draft, target.deployment, source=revision)


def dense(shape: ModelShape) -> ModelShape:
    """What the head of a mixture-of-experts target is drawn after: its width, with a dense MLP of six times that."""
    if shape.experts is None:
        return msgspec.structs.replace(shape, formats=None)
    return msgspec.structs.replace(
        shape, formats=None, experts=None, intermediate=6 * shape.hidden, window=0, window_layers=0
    )


def rows_of(target: Target) -> Iterator[str]:
    """A line of the table per way of drafting."""
    for way in WAYS:
        profile = profile_of(target, way)
        if profile is None:
            continue
        costs = build_costs(profile, load_engine("ideal", target.gpu))
        assert isinstance(costs, TableCosts)
        cells, rounds = [], []
        for rows in BATCHES:
            found = round_of(costs, way, rows)
            gain = way.length / found.needs
            rounds.append((rows, found, gain))
            cells.append(f"{'**' * (gain >= PAYS)}{gain:.2f}{'**' * (gain >= PAYS)} ({found.needs:.2f})")
        rows, found, _ = min(rounds, key=lambda each: each[2])
        why = mechanism(costs, profile.target, way, rows, found)
        kind = "MoE" if profile.target.experts is not None else "dense"
        width = f", {target.deployment.devices} GPUs" if target.deployment.devices > 1 else ""
        name = f"{target.name}{format_names(profile.target)}{width}"
        yield f"| {way.method.value} | {name} | {target.gpu} | {kind} | {' | '.join(cells)} | at {rows}: {why} |"


HEAD = """# Where drafting pays

Generated by `python -m validation drafting` from kernel tables; nothing here was served. A cell is the speed-up of a
full batch at k = 3 and 2,048 tokens of context. In brackets: the tokens that a round must yield to be no slower than
plain decoding. Drafting pays where the number is bold. The last column says what makes a round most expensive, at the
batch size where drafting gains least.

Only the GPU is priced. An engine adds a fixed time to every step, plain or drafting, which favours drafting at small
batches.

Use the bracket: compare it with the acceptance length in your server's log. The speed-up is an example. It takes these
lengths, which others measured on other models:
"""


def page() -> str:
    lengths = [f"- `{way.method.value}`: {way.length:g} tokens a round ({way.quoted})" for way in WAYS]
    titles = ["method", "target", "GPU", "kind", *(f"batch {rows}" for rows in BATCHES), "what decides"]
    lines = [HEAD, *lengths, "", "| " + " | ".join(titles) + " |", "|" + " :-- |" * len(titles)]
    for target in TARGETS:
        lines.extend(rows_of(target))
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PAGE)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    options.out.write_text(page())
