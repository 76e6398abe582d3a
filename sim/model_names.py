"""Names of models and profiles as people write them: Hugging Face repositories, fine-tunes, parallel degrees.

Not here: what there is under a name (sim.costs.profile_files, sim.costs.shapes).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches
from typing import NamedTuple

SAME_LAYERS = re.compile(r"-(instruct|chat|hf|base|it|thinking|bf16|v[01]\.\d|\d{4})(?=-|$)")
"""Endings of repositories that change the weights and not the layers."""
DEGREE = re.compile(r"-(tp|ep|dp)(\d+)(?=[-+]|$)")
CLOSE = 0.4
SAME_LINE = 0.75


def model_key(name: str) -> str:
    """The part that names of one model share: without organisation, case and what changes no layer.

    >>> model_key("meta-llama/Llama-3.1-8B-Instruct"), model_key("meta-llama/Meta-Llama-3.1-8B")
    ('llama-3.1-8b', 'llama-3.1-8b')
    """
    return SAME_LAYERS.sub("", name.rpartition("/")[2].lower().removeprefix("meta-"))


class ProfileKey(NamedTuple):
    """The part that spellings of one profile share."""

    gpu: str
    target: str
    draft: str
    degrees: tuple[tuple[str, str], ...]
    """Degrees above 1, as ("tp", "2")."""

    @classmethod
    def of(cls, name: str) -> ProfileKey:
        """The key of `gpu/target[+draft]`, with -tpN, -epN and -dpN anywhere after the GPU."""
        gpu, _, models = name.lower().partition("/")
        degrees = sorted((kind, count) for kind, count in DEGREE.findall(models) if count != "1")
        target, _, draft = DEGREE.sub("", models).partition("+")
        return cls(gpu.replace("_", "-"), model_key(target), model_key(draft), tuple(degrees))

    def is_on(self, gpu: str) -> bool:
        """True where that GPU is meant, `h200` for `h200-sxm` too."""
        return gpu == self.gpu or gpu.startswith(f"{self.gpu}-")


def same_profile(name: str, known: Iterable[str]) -> str | None:
    """The one of `known` that is another spelling of `name`; None where there is none, or several.

    >>> same_profile("h200/Qwen/Qwen3-32B-FP8-tp2+eagle3", ["h200-sxm/qwen3-32b-fp8+eagle3-tp2", "h200-sxm/qwen3-32b"])
    'h200-sxm/qwen3-32b-fp8+eagle3-tp2'
    """
    key = ProfileKey.of(name)
    keys = {each: ProfileKey.of(each) for each in known}
    same = [each for each, other in keys.items() if key[1:] == other[1:] and key.is_on(other.gpu)]
    return same[0] if len(same) == 1 else None


def nearest_profile(name: str, known: Iterable[str]) -> str:
    """` Did you mean ...?`, of the same family of GPUs and line of models, or which GPUs there are."""
    names = list(known)
    gpu = ProfileKey.of(name).gpu
    family = [each for each in names if each.partition("-")[0].partition("/")[0] == gpu.partition("-")[0]]
    if "/" in name and not family:
        gpus = ", ".join(dict.fromkeys(each.partition("/")[0] for each in names))
        return f". No shipped profile is of a GPU {gpu!r}. GPUs: {gpus}"
    line = ProfileKey.of(name).target or name
    alike = [each for each in family or names if _is_of_line(ProfileKey.of(each).target, line)]
    nearest = get_close_matches(name.lower(), alike, n=1, cutoff=CLOSE)
    return f". Did you mean {nearest[0]!r}?" if nearest else ""


def _is_of_line(one: str, other: str) -> bool:
    """True where two models are called alike up to their first number, slips of the pen apart.

    >>> _is_of_line("llama-2-7b", "lama-3.1-8b"), _is_of_line("glm-4.6", "llama-2-7b")
    (True, False)
    """
    first, second = (re.split(r"[\d.-]", each)[0] for each in (one, other))
    return SequenceMatcher(None, first, second).ratio() > SAME_LINE
