"""Checkpoints that engines can load: the repositories on Hugging Face whose models profiles are named after.

Not here: the dimensions of these models (sim.costs.shapes), command lines (sim.studies.deploy).
"""

from __future__ import annotations

from typing import NamedTuple

from sim.costs.shapes import Formats, ModelShape

REPOSITORIES = {
    "apertus-8b": "swiss-ai/Apertus-8B-2509",
    "codellama-34b": "codellama/CodeLlama-34b-hf",
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "gpt-oss-20b": "openai/gpt-oss-20b",
    "llama-2-7b": "meta-llama/Llama-2-7b-hf",
    "llama-3.1-70b": "meta-llama/Llama-3.1-70B",
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B",
    "llama-3.2-1b": "meta-llama/Llama-3.2-1B",
    "llama-68m": "JackFram/llama-68m",
    "qwen2.5-0.5b": "Qwen/Qwen2.5-0.5B",
    "qwen2.5-1.5b": "Qwen/Qwen2.5-1.5B",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "qwen3-32b": "Qwen/Qwen3-32B",
    "qwen3-8b": "Qwen/Qwen3-8B",
    "tinyllama-1.1b": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
}
"""Name of a model in a profile -> its repository. Base models where a family has both; heads of EAGLE-3 and DSpark
belong to one fine-tune of their target and have no entry."""
PUBLISHED_FORMATS = {"gpt-oss-120b": "mxfp4", "gpt-oss-20b": "mxfp4"}
"""Format of the experts in the repository where it is not bf16."""
ONLINE = "fp8"
"""Format to which vLLM and SGLang bring a bf16 checkpoint as they load it (`--quantization fp8`)."""


class Checkpoint(NamedTuple):
    """What to load, and the format it is brought to meanwhile."""

    name: str
    quantization: str | None = None
    note: str | None = None
    """What a placeholder stands for."""


def checkpoint(shape: ModelShape, placeholder: str) -> Checkpoint:
    """The repository of a model, or the placeholder where none is known that holds these weights.

    >>> from sim.costs.shapes import model
    >>> checkpoint(model("llama-3.1-8b"), "<target>").name, checkpoint(model("tiny-target"), "<target>").name
    ('meta-llama/Llama-3.1-8B', '<target>')
    """
    repository, formats = REPOSITORIES.get(shape.name), _weight_formats(shape)
    published = {PUBLISHED_FORMATS.get(shape.name, "bf16")}
    if repository is not None and formats in (set(), published):
        return Checkpoint(repository)
    if repository is not None and formats == {ONLINE}:
        return Checkpoint(repository, quantization=ONLINE)
    weights = f" with {' and '.join(sorted(formats))} weights" if formats else ""
    return Checkpoint(placeholder, note=f"{placeholder} stands for a checkpoint of {shape.name}{weights}")


def _weight_formats(shape: ModelShape) -> set[str]:
    """Of the matrices, without bf16; the three ways of running mxfp4 are one format on disk."""
    formats = shape.formats or Formats()
    names = [formats.projections, formats.mlp, *([formats.experts] if shape.experts is not None else [])]
    return {"mxfp4" if name.startswith("mxfp4") else name for name in names} - {"bf16"}
